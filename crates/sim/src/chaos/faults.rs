//! What goes wrong, and when: a random schedule that a seed repeats.

use std::{ops::Range, time::Duration};

/// Between two faults, in milliseconds.
const GAP_MS: Range<u64> = 150..1_200;
/// Before a killed process is started again.
const DOWN_MS: Range<u64> = 0..1_500;

/// Random numbers that a seed repeats (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number of the range, which is not empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next_u64() % (range.end - range.start)
    }

    pub fn index(&mut self, len: usize) -> usize {
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        usize::try_from(self.within(0..len)).unwrap_or(0)
    }

    fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.within(range))
    }
}

/// One thing that goes wrong. Agents and supervisors are chosen by a number that the caller takes
/// modulo those that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9`, and a start some time later.
    KillCoordinator {
        down: Duration,
    },
    KillAgent {
        agent: usize,
        down: Duration,
    },
    /// SIGTERM, as a service manager would.
    StopAgent {
        agent: usize,
        down: Duration,
    },
    KillSupervisor {
        which: usize,
    },
    /// SIGSTOP, and SIGCONT some time later.
    PauseCoordinator {
        pause: Duration,
    },
    PauseAgent {
        agent: usize,
        pause: Duration,
    },
    PauseSupervisor {
        which: usize,
        pause: Duration,
    },
    /// Every connection between agents and coordinator breaks.
    Cut,
    /// What is sent arrives late.
    Delay {
        by: Duration,
        lasting: Duration,
    },
    /// Nothing arrives, and no connection breaks.
    Silence {
        lasting: Duration,
    },
    RestartDatabase,
    CancelRun {
        which: usize,
        force: bool,
    },
}

impl Fault {
    /// For the summary.
    pub fn name(&self) -> &'static str {
        match self {
            Self::KillCoordinator { .. } => "coordinator killed",
            Self::KillAgent { .. } => "agent killed",
            Self::StopAgent { .. } => "agent stopped",
            Self::KillSupervisor { .. } => "supervisor killed",
            Self::PauseCoordinator { .. } => "coordinator paused",
            Self::PauseAgent { .. } => "agent paused",
            Self::PauseSupervisor { .. } => "supervisor paused",
            Self::Cut => "connections cut",
            Self::Delay { .. } => "connections delayed",
            Self::Silence { .. } => "connections silent",
            Self::RestartDatabase => "database restarted",
            Self::CancelRun { .. } => "run cancelled",
        }
    }
}

/// An endless schedule.
#[derive(Clone, Debug)]
pub struct Schedule {
    random: Random,
    /// Whether there is a database server to restart.
    server: bool,
    /// After this time an attempt without renewals is given up; pauses are shorter and longer.
    release: Duration,
}

impl Schedule {
    pub fn new(seed: u64, server: bool, release: Duration) -> Self {
        Self { random: Random::new(seed), server, release }
    }

    /// The next fault, and how long after the last one.
    pub fn step(&mut self) -> (Duration, Fault) {
        let gap = self.random.millis(GAP_MS);
        (gap, self.fault())
    }

    fn fault(&mut self) -> Fault {
        let kinds = if self.server { 13 } else { 12 };
        let (agent, which) = (self.random.index(1 << 16), self.random.index(1 << 16));
        match self.random.within(0..kinds) {
            0 => Fault::KillCoordinator { down: self.random.millis(DOWN_MS) },
            1 => Fault::KillAgent { agent, down: self.random.millis(DOWN_MS) },
            2 => Fault::StopAgent { agent, down: self.random.millis(DOWN_MS) },
            3 | 4 => Fault::KillSupervisor { which },
            5 => Fault::PauseCoordinator { pause: self.pause() },
            6 => Fault::PauseAgent { agent, pause: self.pause() },
            7 => Fault::PauseSupervisor { which, pause: self.pause() },
            8 => Fault::Cut,
            9 => Fault::Delay {
                by: self.random.millis(10..400),
                lasting: self.random.millis(200..3_000),
            },
            10 => Fault::Silence { lasting: self.pause() },
            11 => Fault::CancelRun { which, force: self.random.within(0..2) == 0 },
            _ => Fault::RestartDatabase,
        }
    }

    /// Two of three pauses are well within the lease, the third is longer.
    fn pause(&mut self) -> Duration {
        let release = u64::try_from(self.release.as_millis()).unwrap_or(u64::MAX);
        if self.random.within(0..3) < 2 {
            self.random.millis(50..release / 4)
        } else {
            self.random.millis(release..release * 5 / 4)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn schedule(seed: u64, server: bool) -> Vec<(Duration, Fault)> {
        let mut schedule = Schedule::new(seed, server, Duration::from_secs(5));
        std::iter::repeat_with(|| schedule.step()).take(500).collect()
    }

    #[test]
    fn a_seed_repeats_its_schedule_and_another_makes_another() {
        assert_eq!(schedule(7, true), schedule(7, true));
        assert_ne!(schedule(7, true), schedule(8, true));
    }

    #[test]
    fn everything_goes_wrong_sooner_or_later() {
        let names = |server| -> BTreeSet<_> {
            schedule(1, server).iter().map(|(_, fault)| fault.name()).collect()
        };
        assert_eq!(names(true).len(), 12);
        assert!(!names(false).contains(Fault::RestartDatabase.name()));
    }

    #[test]
    fn pauses_are_shorter_and_longer_than_a_lease() {
        let pauses: Vec<_> = schedule(1, false)
            .into_iter()
            .filter_map(|(_, fault)| {
                if let Fault::PauseSupervisor { pause, .. } = fault { Some(pause) } else { None }
            })
            .collect();
        assert!(pauses.iter().any(|pause| *pause < Duration::from_secs(2)));
        assert!(pauses.iter().any(|pause| *pause >= Duration::from_secs(5)));
    }
}
