//! `cargo xtask chaos`: the tests that kill, pause and cut off real processes, for longer.

use std::{env, process::Command};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};

/// Which database the coordinator gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Db {
    Sqlite,
    Postgres,
}

#[derive(Args)]
pub(crate) struct Orders {
    /// Time of the storm.
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Repeats the schedule of an earlier storm. Default: a new one, which is printed.
    #[arg(long)]
    seed: Option<u64>,
    #[arg(long, default_value = "sqlite")]
    db: Db,
}

pub(crate) fn run(orders: &Orders) -> anyhow::Result<()> {
    let test = match orders.db {
        Db::Sqlite => "storm_sqlite",
        Db::Postgres => "storm_postgres",
    };
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args([
        "test",
        "--release",
        "--locked",
        "--package",
        "shuntyard-cli",
        "--test",
        "chaos",
    ]);
    command.args(["--", "--exact", test, "--nocapture"]);
    command.env("SHUNT_CHAOS_MINUTES", orders.minutes.to_string());
    if let Some(seed) = orders.seed {
        command.env("SHUNT_CHAOS_SEED", seed.to_string());
    }
    let status = command.status().context("start cargo")?;
    if !status.success() {
        bail!("the storm broke a promise: see above");
    }
    Ok(())
}
