//! Each deliberate fault with a seed that catches it. `cargo xtask sim --mutants` looks for more.
#![cfg(debug_assertions)]

use shuntyard_core::mutant::Mutant;
use shuntyard_sim::world::{Play, play};

/// Seeds that catch a fault.
const CATCHES: &[(Mutant, u64)] = &[
    (Mutant::DropFence, 80),
    (Mutant::AckBeforeCommit, 3),
    (Mutant::SkipSpoolSync, 9),
    (Mutant::ReuseAttemptNumber, 0),
    (Mutant::IgnoreKeyHash, 5),
    (Mutant::AcceptLateResult, 6),
    (Mutant::LostWhenOverdue, 0),
    (Mutant::BeginSuperseded, 0),
    (Mutant::DoubleEdge, 3),
    (Mutant::ForgetCount, 0),
];

#[test]
fn each_deliberate_fault_is_caught_by_its_seed() {
    let missed: Vec<_> = CATCHES
        .iter()
        .filter(|&&(mutant, seed)| {
            play(Play { seed, mutant: Some(mutant), ..Play::default() }).violation.is_none()
        })
        .collect();
    assert!(missed.is_empty(), "{missed:?}: the world changed: look for seeds that catch these");
}

#[test]
fn without_a_fault_these_seeds_hold() {
    for &(_, seed) in CATCHES {
        let story = play(Play { seed, ..Play::default() });
        assert!(story.violation.is_none(), "{story}");
    }
}
