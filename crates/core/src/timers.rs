//! The timers of an attempt's life, and the rule that makes a set of them consistent.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use shuntyard_protocol::{Timestamp, agent};

use crate::mutant::{self, Mutant};

/// What a coordinator's idea of the database's clock may be off, which is far less than the time between
/// the fence and the release.
pub const CLOCK_ERROR_MAX: Duration = Duration::from_secs(1);

/// What the database's clock is ahead of a local one, in milliseconds, when it `said` a time between
/// `asked` and `answered`. None: that took longer than [`CLOCK_ERROR_MAX`], and tells too little.
pub fn clock_offset(asked: Timestamp, said: Timestamp, answered: Timestamp) -> Option<i64> {
    let told = asked + CLOCK_ERROR_MAX >= answered || mutant::on(Mutant::TrustSlowClock);
    told.then_some(said.0 - answered.0)
}

/// All times from the last committed renewal, by the database's clock, unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timers {
    /// Between two renewals.
    pub renew: Duration,
    /// The job shows `recovering`; nothing is given away yet.
    pub overdue: Duration,
    /// Only now may another attempt run, or the job be lost.
    pub release: Duration,
    /// The supervisor sends SIGTERM this long before the release …
    pub fence_term: Duration,
    /// … and kills the unit this long before it.
    pub fence_kill: Duration,
    /// An offer without an answer is withdrawn.
    pub offer: Duration,
    /// An agent keeps a reservation this long, and a start must begin within it.
    pub reservation: Duration,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            renew: Duration::from_secs(10),
            overdue: Duration::from_secs(45),
            release: Duration::from_secs(150),
            fence_term: Duration::from_secs(45),
            fence_kill: Duration::from_secs(15),
            offer: Duration::from_secs(5),
            reservation: Duration::from_secs(15),
        }
    }
}

/// Two timers whose order is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{earlier} must be shorter than {later}")]
pub struct InconsistentTimers {
    earlier: &'static str,
    later: &'static str,
}

impl Timers {
    /// Refuses a set under which an attempt could outlive its release or be ended while healthy.
    pub fn check(self) -> Result<Self, InconsistentTimers> {
        let order = [
            (self.renew * 3, "three renewals", self.overdue, "overdue"),
            (
                self.overdue,
                "overdue",
                self.release.saturating_sub(self.fence_term),
                "release − fence_term",
            ),
            (self.fence_kill, "fence_kill", self.fence_term, "fence_term"),
            (self.fence_term, "fence_term", self.release, "release"),
            (self.offer, "offer", self.reservation, "reservation"),
            (Duration::ZERO, "zero", self.fence_kill, "fence_kill"),
        ];
        match order.iter().find(|(a, _, b, _)| a >= b) {
            Some(&(_, earlier, _, later)) => Err(InconsistentTimers { earlier, later }),
            None => Ok(self),
        }
    }

    /// The share of them that agents live by.
    pub fn for_agents(self) -> agent::Timers {
        let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        agent::Timers {
            renew_ms: millis(self.renew),
            fence_term_ms: millis(self.fence_term),
            fence_kill_ms: millis(self.fence_kill),
            reservation_ms: millis(self.reservation),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_about_the_clock_counts_for_clock_error_max() {
        let (asked, said) = (Timestamp(5000), Timestamp(90_400));
        let answered = asked + CLOCK_ERROR_MAX;
        assert_eq!(clock_offset(asked, said, answered), Some(84_400));
        assert_eq!(clock_offset(asked, said, Timestamp(answered.0 + 1)), None);
    }

    #[test]
    fn the_defaults_are_consistent() {
        assert!(Timers::default().check().is_ok());
    }

    #[test]
    fn a_set_that_could_not_fence_is_refused() {
        let timers = Timers { fence_kill: Duration::from_secs(45), ..Timers::default() };
        assert_eq!(
            timers.check().unwrap_err().to_string(),
            "fence_kill must be shorter than fence_term"
        );
        let timers = Timers { release: Duration::from_mins(1), ..Timers::default() };
        assert!(timers.check().is_err());
        let timers = Timers { renew: Duration::from_secs(15), ..Timers::default() };
        assert!(timers.check().is_err());
    }
}
