//! The supervisor's own view of its lease: when to fence itself.
//!
//! The coordinator counts the release from when it committed a renewal; the supervisor counts it
//! from when it *sent* that renewal, which is never later. So the supervisor's fence is always
//! before the coordinator gives the job away. Times are milliseconds since boot.

use std::{collections::VecDeque, time::Duration};

use shuntyard_core::mutant::{self, Mutant};
use shuntyard_protocol::agent::Timers;

/// Beats without an answer whose sending time is remembered.
const BEATS_MAX: usize = 64;

/// Longest grace that a fence leaves to the commands.
const FENCE_GRACE_MAX: Duration = Duration::from_secs(30);

/// How far the fence has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fence {
    /// The lease holds.
    Open,
    /// Ask the commands to stop.
    Term,
    /// Kill the unit.
    Kill,
}

/// A begun attempt's lease.
#[derive(Clone, Debug)]
pub struct Lease {
    timers: Timers,
    release_at: u64,
    next_beat: u64,
    sent: VecDeque<(u64, u64)>,
}

impl Lease {
    /// The lease that `begun` brought, for a `begin` sent at `sent_at`.
    pub fn begun(timers: Timers, sent_at: u64, release_in_ms: u64) -> Self {
        let release_at = sent_at.saturating_add(release_in_ms);
        Self { timers, release_at, next_beat: 1, sent: VecDeque::new() }
    }

    /// Timers of a later coordinator.
    pub fn set_timers(&mut self, timers: Timers) {
        self.timers = timers;
    }

    /// The number of a beat that is sent at `now`.
    pub fn beat(&mut self, now: u64) -> u64 {
        let beat = self.next_beat;
        self.next_beat += 1;
        if self.sent.len() == BEATS_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((beat, now));
        beat
    }

    /// The coordinator committed this beat. Late, doubled and unknown answers change nothing.
    pub fn renewed(&mut self, beat: u64, release_in_ms: u64) {
        let Some(&(_, sent_at)) = self.sent.iter().find(|(sent, _)| *sent == beat) else { return };
        self.sent.retain(|(sent, _)| *sent > beat);
        self.release_at = self.release_at.max(sent_at.saturating_add(release_in_ms));
    }

    /// Where the fence stands at `now`.
    pub fn fence(&self, now: u64) -> Fence {
        if mutant::on(Mutant::DropFence) {
            Fence::Open
        } else if now >= self.kill_at() {
            Fence::Kill
        } else if now >= self.term_at() {
            Fence::Term
        } else {
            Fence::Open
        }
    }

    /// How long commands that are asked to stop at `now` may take over it.
    pub fn grace(&self, now: u64) -> Duration {
        Duration::from_millis(self.kill_at().saturating_sub(now)).min(FENCE_GRACE_MAX)
    }

    /// When the commands are asked to stop.
    pub fn term_at(&self) -> u64 {
        self.release_at.saturating_sub(self.timers.fence_term_ms.max(self.timers.fence_kill_ms))
    }

    /// When the unit is killed.
    pub fn kill_at(&self) -> u64 {
        self.release_at.saturating_sub(self.timers.fence_kill_ms)
    }

    /// When the kernel kills the supervisor itself, should it be stopped or stuck: half way
    /// between its own kill and the release, so that a healthy one can still say what happened.
    pub fn kernel_kill_at(&self) -> u64 {
        self.release_at.saturating_sub(self.timers.fence_kill_ms / 2)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMERS: Timers =
        Timers { renew_ms: 10, fence_term_ms: 45, fence_kill_ms: 15, reservation_ms: 15 };

    #[test]
    fn the_release_counts_from_when_the_acknowledged_beat_was_sent() {
        let mut lease = Lease::begun(TIMERS, 1000, 150);
        assert_eq!(lease.fence(1104), Fence::Open);
        let beat = lease.beat(1050);
        lease.renewed(beat, 150);
        assert_eq!(lease.fence(1154), Fence::Open);
        assert_eq!(lease.fence(1155), Fence::Term);
        assert_eq!(lease.fence(1185), Fence::Kill);
    }

    #[test]
    fn the_grace_at_the_fence_ends_with_it_and_is_never_long() {
        let lease = Lease::begun(TIMERS, 1000, 150);
        assert_eq!(lease.grace(lease.term_at()), Duration::from_millis(30));
        assert_eq!(lease.grace(lease.kill_at() + 1), Duration::ZERO);
        let timers = Timers { fence_term_ms: 90_000, ..TIMERS };
        let lease = Lease::begun(timers, 0, 100_000);
        assert_eq!(lease.grace(lease.term_at()), FENCE_GRACE_MAX);
    }

    #[test]
    fn an_answer_to_an_unknown_beat_renews_nothing() {
        let mut lease = Lease::begun(TIMERS, 1000, 150);
        lease.renewed(7, 1_000_000);
        assert_eq!(lease.kill_at(), 1135);
        let beat = lease.beat(1010);
        lease.renewed(beat, 150);
        lease.renewed(beat, 1_000_000);
        assert_eq!(lease.kill_at(), 1145);
    }

    proptest! {
        #[test]
        fn the_fence_is_never_after_the_release_of_any_committed_beat(
            steps in proptest::collection::vec((0u64..100, any::<bool>()), 0..200),
        ) {
            let mut lease = Lease::begun(TIMERS, 0, 150);
            let (mut now, mut committed) = (0, 0);
            for (wait, answered) in steps {
                now += wait;
                let beat = lease.beat(now);
                if answered {
                    lease.renewed(beat, 150);
                    committed = now;
                }
                prop_assert_eq!(lease.kill_at(), committed + 150 - 15);
                prop_assert!(lease.term_at() <= lease.kill_at());
                prop_assert!(lease.kernel_kill_at() < committed + 150);
                prop_assert!(lease.sent.len() <= BEATS_MAX);
            }
        }
    }
}
