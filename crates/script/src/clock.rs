//! The one place where this crate reads clocks.

use std::time::{Duration, Instant};

/// For deadlines of commands and of the evaluating child.
#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Processor time that this process has used so far: what a loaded machine does not distort.
#[cfg(unix)]
pub(crate) fn processor_time() -> Duration {
    let spec = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = u64::try_from(spec.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(spec.tv_nsec).unwrap_or(0))
}
