//! Deliberate faults, each with a seed that catches it; `cargo xtask sim --mutants` tries all faults
//! with many seeds.
#![cfg(debug_assertions)]

use shuntyard_core::mutant::Mutant;
use shuntyard_sim::world::{Play, play};

/// Which seed catches which fault.
fn seed(mutant: Mutant) -> u64 {
    match mutant {
        Mutant::ForgetInterrupted => 28,
        Mutant::AcceptLateResult => 24,
        Mutant::LeaseFromAnswer => 20,
        Mutant::TrustSlowClock => 17,
        Mutant::DropFence => 10,
        Mutant::RetryUncontained => 3,
        Mutant::OverfillGate | Mutant::ForgetWake => 2,
        Mutant::IgnoreKeyHash
        | Mutant::SupersedeEnded
        | Mutant::KeepOverlap
        | Mutant::TrimUnacked => 1,
        Mutant::AckBeforeCommit
        | Mutant::SkipSpoolSync
        | Mutant::ReuseAttemptNumber
        | Mutant::LostWhenOverdue
        | Mutant::BeginSuperseded
        | Mutant::DoubleEdge
        | Mutant::ForgetCount
        | Mutant::ForgetResend
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
