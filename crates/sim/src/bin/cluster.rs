//! Plays seeds of the simulated cluster: `cargo xtask sim`.
#![expect(clippy::print_stdout, reason = "a command-line tool for developers")]

use std::{
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use anyhow::{Context, bail};
use shuntyard_core::mutant::Mutant;
use shuntyard_sim::world::{Play, Story, play};

struct Args {
    /// Play this one and print its trace.
    seed: Option<u64>,
    seeds: u64,
    mutants: bool,
    /// Play with this deliberate fault.
    mutant: Option<Mutant>,
}

fn args() -> anyhow::Result<Args> {
    let mut args = Args { seed: None, seeds: 1000, mutants: false, mutant: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || -> anyhow::Result<u64> {
            let text = words.next().with_context(|| format!("{word} needs a number"))?;
            text.parse().with_context(|| format!("{word}: '{text}' is not a number"))
        };
        match word.as_str() {
            "--seed" => args.seed = Some(number()?),
            "--seeds" => args.seeds = number()?,
            "--mutants" => args.mutants = true,
            "--mutant" => args.mutant = Some(mutant(&words.next().unwrap_or_default())?),
            _ => bail!("'{word}' is unknown: use --seed S, --seeds N, --mutants or --mutant NAME"),
        }
    }
    Ok(args)
}

fn mutant(name: &str) -> anyhow::Result<Mutant> {
    let found = Mutant::ALL.into_iter().find(|mutant| format!("{mutant:?}") == name);
    found.with_context(|| format!("'{name}' is none of {:?}", Mutant::ALL))
}

fn main() -> ExitCode {
    match args().and_then(|args| run(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    if args.mutants {
        return mutants(args.seeds);
    }
    if let Some(seed) = args.seed {
        let story = play(Play { seed, mutant: args.mutant, ..Play::default() });
        println!("{story}");
        return match story.violation {
            Some(_) => bail!("seed {seed} does not hold"),
            None => Ok(()),
        };
    }
    if let Some(story) = first_bad(args.seeds, args.mutant) {
        println!("{story}");
        bail!("seed {} does not hold", story.seed);
    }
    println!("{} seeds held", args.seeds);
    Ok(())
}

/// Every deliberate fault must be caught by some seed.
fn mutants(seeds: u64) -> anyhow::Result<()> {
    // A fault may end in a panic, which is one way to be caught.
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for mutant in Mutant::ALL {
        if let Some(story) = first_bad(seeds, Some(mutant)) {
            let why = story.violation.unwrap_or_default();
            let why: String = why.chars().take(160).collect();
            println!("{mutant:?}: seed {}: {why}", story.seed);
        } else {
            println!("{mutant:?}: not caught by {seeds} seeds");
            missed.push(mutant);
        }
    }
    if !missed.is_empty() {
        bail!("{missed:?} are not caught");
    }
    Ok(())
}

/// Plays seeds from 0 on with all processors, up to the first that does not hold.
fn first_bad(seeds: u64, mutant: Option<Mutant>) -> Option<Story> {
    let next = AtomicU64::new(0);
    let end = AtomicU64::new(seeds);
    let bad: Mutex<Option<Story>> = Mutex::new(None);
    let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end.load(Ordering::Relaxed) {
                        return;
                    }
                    let story = play(Play { seed, mutant, ..Play::default() });
                    if story.violation.is_some() {
                        end.fetch_min(seed, Ordering::Relaxed);
                        let mut bad = bad.lock().unwrap_or_else(PoisonError::into_inner);
                        if bad.as_ref().is_none_or(|other| story.seed < other.seed) {
                            *bad = Some(story);
                        }
                    }
                }
            });
        }
    });
    bad.into_inner().unwrap_or_else(PoisonError::into_inner)
}
