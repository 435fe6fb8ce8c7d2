//! Deliberate faults, each with a seed that catches it; `cargo xtask sim --mutants` tries all faults
//! with many seeds.
#![cfg(debug_assertions)]

use shuntyard_core::mutant::Mutant;
use shuntyard_sim::world::{Play, play};

/// Which seed catches which fault.
fn seed(mutant: Mutant) -> u64 {
    match mutant {
        Mutant::ForgetInterrupted => 292,
        Mutant::LeaseFromAnswer => 153,
        Mutant::SkipSpoolSync => 50,
        Mutant::AckBeforeCommit => 11,
        Mutant::IgnoreKeyHash => 9,
        Mutant::RetryUncontained | Mutant::DoubleEdge => 5,
        Mutant::DropFence | Mutant::BeginSuperseded => 2,
        Mutant::AcceptLateResult
        | Mutant::SupersedeEnded
        | Mutant::ForgetResend
        | Mutant::TrimUnacked
        | Mutant::OverfillGate
        | Mutant::ForgetWake => 1,
        Mutant::ReuseAttemptNumber
        | Mutant::LostWhenOverdue
        | Mutant::ForgetCount
        | Mutant::KeepOverlap
        | Mutant::EndDeliveryApart => 0,
    }
}

fn missed(mutants: &[Mutant]) -> Vec<(Mutant, u64)> {
    let catches = |mutant| {
        let play = play(Play { seed: seed(mutant), mutant: Some(mutant), ..Play::default() });
        play.violation.is_some()
    };
    let missed = mutants.iter().filter(|&&mutant| !catches(mutant));
    missed.map(|&mutant| (mutant, seed(mutant))).collect()
}

// All faults, in two parts that run beside each other.

#[test]
fn deliberate_faults_are_caught() {
    let missed = missed(&Mutant::ALL[..8]);
    assert!(missed.is_empty(), "{missed:?}: the world changed: look for seeds that catch these");
}

#[test]
fn more_deliberate_faults_are_caught() {
    let missed = missed(&Mutant::ALL[8..]);
    assert!(missed.is_empty(), "{missed:?}: the world changed: look for seeds that catch these");
}
