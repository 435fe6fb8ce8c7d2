//! `cargo xtask bench`: builds for release and measures. Prints one JSON object.

use std::{env, process::Command};

use anyhow::{Context, bail};
use clap::ValueEnum;

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum What {
    /// Jobs per second, and how long jobs wait.
    Dispatch,
    /// From a webhook to a finished run of one `echo`, and a burst of such runs.
    Run,
    /// Webhooks accepted per second.
    Webhooks,
    /// Log megabytes per second, and the first screen of a long log.
    Logs,
}

impl What {
    /// How many of what it measures, unless somebody says.
    const fn count(self) -> usize {
        match self {
            Self::Dispatch | Self::Webhooks => 20_000,
            Self::Run => 200,
            Self::Logs => 1000,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Database {
    Sqlite,
    Postgres,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    what: What,
    #[arg(long, value_enum, default_value = "sqlite")]
    db: Database,
    /// Jobs (20000), runs of the burst (200), webhooks (20000), or megabytes of log (1000).
    #[arg(long, alias = "jobs")]
    count: Option<usize>,
    /// Simulated agents, or connections.
    #[arg(long, default_value_t = 16)]
    agents: usize,
    /// Log lines of each job.
    #[arg(long, default_value_t = 5)]
    lines: usize,
    /// Accepted for scripts: the output is always JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    // One after the other: built together, features for tests would get into the program.
    build("shuntyard-cli", "shunt")?;
    build("shuntyard-sim", "shunt-bench")?;
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let folder = std::path::absolute(target).context("find the target folder")?.join("release");
    let status = Command::new(folder.join("shunt-bench"))
        .arg(folder.join("shunt"))
        .arg(word(&args.what))
        .arg(word(&args.db))
        .args(
            [args.count.unwrap_or(args.what.count()), args.agents, args.lines]
                .map(|number| number.to_string()),
        )
        .status()
        .context("start the load generator")?;
    if !status.success() {
        bail!("the benchmark failed");
    }
    Ok(())
}

/// The word of an option as it is typed.
fn word(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn build(package: &str, bin: &str) -> anyhow::Result<()> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let args = ["build", "--release", "--quiet", "--package", package, "--bin", bin];
    let status = Command::new(cargo).args(args).status().context("start cargo")?;
    if !status.success() {
        bail!("{bin} does not build");
    }
    Ok(())
}
