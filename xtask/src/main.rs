//! Chores of the repository: `cargo xtask <chore>`.

mod bench;
mod chaos;
mod r#gen;
mod sim;
mod test;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Chores of the repository.")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Install what the tests need, then run every check and test.
    Test {
        /// Only say what would be installed.
        #[arg(long)]
        dry_run: bool,
    },
    /// Measure: jobs, webhooks and logs per second.
    Bench(bench::Args),
    /// Kill, pause and cut off real processes for a long time, and check that nothing was lost.
    Chaos(chaos::Orders),
    /// Write the reference pages of `docs/` from the code.
    Gen,
    /// Play seeds of the simulated cluster.
    Sim(sim::Sim),
    /// Check the house rules that no compiler checks.
    Tidy,
}

fn main() -> ExitCode {
    let result = match Args::parse().chore {
        Chore::Test { dry_run } => test::run(dry_run),
        Chore::Bench(args) => bench::run(&args),
        Chore::Chaos(orders) => chaos::run(&orders),
        Chore::Gen => r#gen::run(),
        Chore::Sim(args) => sim::run(&args),
        Chore::Tidy => tidy::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
