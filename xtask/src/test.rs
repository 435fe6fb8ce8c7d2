//! `cargo xtask test`: everything that must hold, in the order in which it fails soonest.

use std::{env, path::Path, process::Command};

use anyhow::{Context, bail};

/// A program that the tests need, and where it comes from.
struct Need {
    program: &'static str,
    why: &'static str,
    /// Arguments for `apt-get install`, or for `cargo install`.
    source: Source,
}

enum Source {
    Debian(&'static str),
    Cargo(&'static str),
}

const NEEDS: [Need; 7] = [
    Need { program: "git", why: "sources and checkouts", source: Source::Debian("git") },
    Need {
        program: "postgres",
        why: "the store's tests run on PostgreSQL, too",
        source: Source::Debian("postgresql"),
    },
    Need {
        program: "openssl",
        why: "certificates for the TLS test",
        source: Source::Debian("openssl"),
    },
    Need {
        program: "node",
        why: "the example of a Node package",
        source: Source::Debian("nodejs"),
    },
    Need { program: "npm", why: "the example of a Node package", source: Source::Debian("npm") },
    Need {
        program: "python3",
        why: "the example of a monorepo",
        source: Source::Debian("python3"),
    },
    Need {
        program: "cargo-nextest",
        why: "runs the tests",
        source: Source::Cargo("cargo-nextest"),
    },
];

/// Folders outside `PATH` where Debian puts PostgreSQL's programs.
const POSTGRES: &str = "/usr/lib/postgresql";

pub(crate) fn run(dry_run: bool) -> anyhow::Result<()> {
    for need in &NEEDS {
        if is_there(need.program) {
            continue;
        }
        let (Source::Debian(package) | Source::Cargo(package)) = need.source;
        println!("installing {package}: {}", need.why);
        if !dry_run {
            install(need)?;
        }
    }
    if dry_run {
        return Ok(());
    }
    cargo(&["fmt", "--all", "--check"])?;
    crate::tidy::run()?;
    cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])?;
    cargo(&["nextest", "run", "--workspace", "--locked", "--no-fail-fast"])
}

fn is_there(program: &str) -> bool {
    let in_path = env::var_os("PATH")
        .is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(program).exists()));
    let versions = || std::fs::read_dir(POSTGRES).into_iter().flatten().flatten();
    in_path || versions().any(|version| version.path().join("bin").join(program).exists())
}

fn install(need: &Need) -> anyhow::Result<()> {
    match need.source {
        Source::Cargo(name) => cargo(&["install", "--locked", name]),
        Source::Debian(package) => {
            if !Path::new("/usr/bin/apt-get").exists() {
                bail!("install {} ({}) with your package manager", need.program, need.why);
            }
            let root = Path::new("/root").read_dir().is_ok();
            let prefix: &[&str] = if root { &[] } else { &["sudo"] };
            command(&[prefix, &["apt-get", "update", "-qq"]].concat())?;
            command(&[prefix, &["apt-get", "install", "-y", "-qq", package]].concat())
        }
    }
}

pub(crate) fn cargo(args: &[&str]) -> anyhow::Result<()> {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let program = program.to_string_lossy();
    command(&[&[program.as_ref()], args].concat())
}

fn command(words: &[&str]) -> anyhow::Result<()> {
    println!("$ {}", words.join(" "));
    let status = Command::new(words[0]).args(&words[1..]).status();
    let status = status.with_context(|| format!("start {}", words[0]))?;
    if !status.success() {
        bail!("`{}` failed", words.join(" "));
    }
    Ok(())
}
