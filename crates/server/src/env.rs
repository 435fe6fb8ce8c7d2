//! The two things that make a process unlike its replay: the clock and randomness.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Instant,
};

use aws_lc_rs::rand;
use shuntyard_core::timers::clock_offset;
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
    /// What the database's clock is ahead of `clock`, in milliseconds.
    offset_ms: Arc<AtomicI64>,
}

impl Env {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, offset_ms: Arc::default() }
    }

    pub fn system() -> Self {
        Self::new(Arc::new(SystemClock::new()))
    }

    /// Database time, as near as the last measurement.
    pub fn now(&self) -> Timestamp {
        Timestamp(self.clock.now().0 + self.offset_ms.load(Ordering::Relaxed))
    }

    /// Sets the clock by the database's, which `ask` reads. False: it took too long, and the clock goes
    /// on as it was set before.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn adjust<E>(
        &self,
        ask: impl Future<Output = Result<Timestamp, E>>,
    ) -> Result<bool, E> {
        let asked = self.clock.now();
        let said = ask.await?;
        let offset = clock_offset(asked, said, self.clock.now());
        if let Some(offset) = offset {
            self.offset_ms.store(offset, Ordering::Relaxed);
        }
        Ok(offset.is_some())
    }

    /// Bytes from the operating system's generator.
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
