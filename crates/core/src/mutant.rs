//! Deliberate faults, each of which the simulation must catch.
//!
//! They exist only where the feature `mutants` and debug assertions are on; in every other build
//! [`on`] is a constant `false`, and the faulty code is not compiled in.

/// One deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutant {
    /// A supervisor whose lease ran out goes on.
    DropFence,
    /// The lease counts from when an answer comes, not from when it was asked for.
    LeaseFromAnswer,
    /// Facts and logs are acknowledged before they are committed.
    AckBeforeCommit,
    /// Facts count as synced without a sync.
    SkipSpoolSync,
    /// A job that is placed again keeps the number of its attempt.
    ReuseAttemptNumber,
    /// Whoever knows an attempt's id may speak for it.
    IgnoreKeyHash,
    /// The late result of a lost attempt becomes the job's.
    AcceptLateResult,
    /// A job is given away as soon as its renewals are overdue.
    LostWhenOverdue,
    /// An attempt that is no longer the job's current one may begin.
    BeginSuperseded,
    /// A renewal that comes after its attempt's end is answered like a stranger's.
    SupersedeEnded,
    /// A lost attempt is tried again although its commands may still run.
    RetryUncontained,
    /// An upstream job counts twice.
    DoubleEdge,
    /// A run's counters forget a job that ended.
    ForgetCount,
    /// What a log has already is not trimmed away.
    KeepOverlap,
    /// After a reconnect only what is new is sent.
    ForgetResend,
    /// Log segments are deleted before they are acknowledged.
    TrimUnacked,
    /// A delivery is ended apart from the creation of its runs.
    EndDeliveryApart,
    /// A coordinator does not get again what it leased and was interrupted at.
    ForgetInterrupted,
    /// A gate lets everybody through who finds nobody waiting.
    OverfillGate,
    /// Whoever leaves a gate wakes nobody.
    ForgetWake,
    /// However long the database took to tell its time, it is that time.
    TrustSlowClock,
}

impl Mutant {
    pub const ALL: [Self; 21] = [
        Self::DropFence,
        Self::LeaseFromAnswer,
        Self::AckBeforeCommit,
        Self::SkipSpoolSync,
        Self::ReuseAttemptNumber,
        Self::IgnoreKeyHash,
        Self::AcceptLateResult,
        Self::LostWhenOverdue,
        Self::BeginSuperseded,
        Self::SupersedeEnded,
        Self::RetryUncontained,
        Self::DoubleEdge,
        Self::ForgetCount,
        Self::KeepOverlap,
        Self::ForgetResend,
        Self::TrimUnacked,
        Self::EndDeliveryApart,
        Self::ForgetInterrupted,
        Self::OverfillGate,
        Self::ForgetWake,
        Self::TrustSlowClock,
    ];
}

#[cfg(all(feature = "mutants", debug_assertions))]
mod switch {
    use std::cell::Cell;

    use super::Mutant;

    thread_local! {
        static CURRENT: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Turns one fault on, or all off, for this thread.
    pub fn set(mutant: Option<Mutant>) {
        CURRENT.set(mutant);
    }

    /// Whether this fault is on.
    pub fn on(mutant: Mutant) -> bool {
        CURRENT.get() == Some(mutant)
    }
}

#[cfg(not(all(feature = "mutants", debug_assertions)))]
mod switch {
    /// Never: this build has no faults on purpose.
    #[inline]
    pub const fn on(_: super::Mutant) -> bool {
        false
    }
}

pub use switch::*;
