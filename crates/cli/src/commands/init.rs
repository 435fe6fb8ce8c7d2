//! `shunt init`

use std::{fs, path::Path};

use anyhow::Context;

use crate::{args::Init, exit::Result};

const WORKFLOW: &str = include_str!("init/ci.ts");
const TSCONFIG: &str = include_str!("init/tsconfig.json");

pub(crate) fn run(args: &Init) -> Result {
    let folder = args.path.join(".shuntyard");
    fs::create_dir_all(folder.join("workflows"))
        .with_context(|| format!("make {}", folder.display()))?;
    // The types belong to this program and follow its version; what people wrote stays.
    write(&folder.join("shuntyard.d.ts"), shuntyard_script::TYPES, true)?;
    write(&folder.join("tsconfig.json"), TSCONFIG, false)?;
    write(&folder.join("workflows/ci.ts"), WORKFLOW, false)?;
    anstream::println!("\nnext: shunt run -C {}", args.path.display());
    Ok(())
}

fn write(path: &Path, text: &str, replace: bool) -> anyhow::Result<()> {
    if path.exists() && !replace {
        anstream::println!("kept     {}", path.display());
        return Ok(());
    }
    fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    anstream::println!("written  {}", path.display());
    Ok(())
}
