//! `cargo xtask sim`: more seeds of the simulated cluster than the tests play, one again with its
//! trace, or every deliberate fault.

use clap::Args;

#[derive(Args)]
pub(crate) struct Sim {
    /// How many seeds to play, from 0 on; with --mutants, for each fault at most.
    #[arg(long, default_value_t = 3000)]
    seeds: u64,
    /// Play only this seed, and print its trace.
    #[arg(long, conflicts_with = "mutants")]
    seed: Option<u64>,
    /// Put each deliberate fault into the code, one after the other: all must be caught.
    #[arg(long)]
    mutants: bool,
    /// Put this deliberate fault into the code.
    #[arg(long, conflicts_with = "mutants")]
    mutant: Option<String>,
}

pub(crate) fn run(sim: &Sim) -> anyhow::Result<()> {
    let mut words = vec!["run", "--locked", "--package", "shuntyard-sim", "--bin", "cluster"];
    // Deliberate faults do not exist in a release build.
    if !sim.mutants && sim.mutant.is_none() {
        words.push("--release");
    }
    words.push("--");
    let number = sim.seed.unwrap_or(sim.seeds).to_string();
    words.extend([if sim.seed.is_some() { "--seed" } else { "--seeds" }, &number]);
    words.extend(sim.mutants.then_some("--mutants"));
    words.extend(sim.mutant.iter().flat_map(|name| ["--mutant", name]));
    crate::test::cargo(&words)
}
