//! `cargo xtask gen`: the reference pages, as the program prints them. A test compares them.

use std::{env, fs, process::Command};

use anyhow::{Context, bail};

const PAGES: [(&str, &str); 3] =
    [("cli", "docs/cli.md"), ("config", "docs/config.md"), ("openapi", "docs/openapi.json")];

pub(crate) fn run() -> anyhow::Result<()> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    for (page, path) in PAGES {
        let run = ["run", "--quiet", "--package", "shuntyard-cli", "--", "reference", page];
        let output = Command::new(&cargo).args(run).output().context("start cargo")?;
        if !output.status.success() {
            bail!("reference {page}: {}", String::from_utf8_lossy(&output.stderr));
        }
        fs::write(path, output.stdout).with_context(|| format!("write {path}"))?;
        println!("written {path}");
    }
    Ok(())
}
