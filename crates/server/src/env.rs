//! The two things that make a process unlike its replay: the clock and randomness.

use std::{sync::Arc, time::Instant};

use aws_lc_rs::rand;
use shuntyard_protocol::Timestamp;

/// Reads time. Everything else takes `now` as an argument.
pub trait Clock: Send + Sync {
    fn now(&self) -> Timestamp;
}

/// The machine's time at the start, moved on by the monotonic clock, so that a step of the wall
/// clock neither ends a lease early nor keeps it.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
    wall: Timestamp,
}

impl SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock module")]
    pub fn new() -> Self {
        let wall = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis();
        Self { started: Instant::now(), wall: Timestamp(i64::try_from(wall).unwrap_or(i64::MAX)) }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        self.wall + self.started.elapsed()
    }
}

/// Clock and randomness, handed to whatever needs them.
#[derive(Clone)]
pub struct Env {
    clock: Arc<dyn Clock>,
}

impl Env {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock }
    }

    pub fn system() -> Self {
        Self::new(Arc::new(SystemClock::new()))
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Bytes from the operating system's generator.
    #[expect(clippy::unused_self, reason = "randomness is part of the environment, like time")]
    pub fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        rand::fill(&mut bytes).expect("the operating system has randomness");
        bytes
    }

    /// A secret of 32 bytes, as hex.
    pub fn secret(&self) -> String {
        hex::encode(self.random::<32>())
    }
}
