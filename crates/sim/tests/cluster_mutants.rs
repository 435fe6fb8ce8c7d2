//! Deliberate faults, each with seeds of which one catches it; `cargo xtask sim --mutants` tries all
//! faults with many seeds.
#![cfg(debug_assertions)]

use std::ops::RangeInclusive;

use shuntyard_core::mutant::Mutant;
use shuntyard_sim::world::{Play, play};

/// Of these seeds one catches the fault. Those that are missing here are too rare for a short test:
/// they need late answers, long logs, or commands that outlive their supervisor.
const CATCHES: &[(Mutant, RangeInclusive<u64>)] = &[
    (Mutant::DropFence, 10..=10),
    (Mutant::AckBeforeCommit, 3..=3),
    (Mutant::SkipSpoolSync, 6..=6),
    (Mutant::ReuseAttemptNumber, 2..=2),
    (Mutant::IgnoreKeyHash, 1..=1),
    (Mutant::AcceptLateResult, 16..=16),
    (Mutant::LostWhenOverdue, 2..=2),
    (Mutant::BeginSuperseded, 4..=4),
    (Mutant::DoubleEdge, 3..=3),
    (Mutant::ForgetCount, 0..=0),
    (Mutant::KeepOverlap, 20..=20),
    (Mutant::ForgetResend, 0..=9),
    (Mutant::EndDeliveryApart, 0..=9),
];

#[test]
fn deliberate_faults_are_caught() {
    let caught = |mutant, seeds: &RangeInclusive<u64>| {
        let mutant = Some(mutant);
        seeds.clone().any(|seed| play(Play { seed, mutant, ..Play::default() }).violation.is_some())
    };
    let missed: Vec<_> = CATCHES.iter().filter(|(mutant, seeds)| !caught(*mutant, seeds)).collect();
    assert!(missed.is_empty(), "{missed:?}: the world changed: look for seeds that catch these");
}
