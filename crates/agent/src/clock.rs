//! The one place that reads clocks, randomness and the process environment.

use std::{collections::BTreeMap, time::SystemTime};

use rustix::time::{ClockId, clock_gettime};
use shuntyard_protocol::Timestamp;

/// This host's wall clock.
#[expect(clippy::disallowed_methods, reason = "the one reader of the wall clock")]
pub(crate) fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Milliseconds since boot, including the time that the machine slept: the clock of leases.
pub(crate) fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1000 + u64::try_from(now.tv_nsec / 1_000_000).unwrap_or(0)
}

/// Bytes that nobody can guess.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system's random source works once it is open");
    bytes
}

/// The environment of this process, without what is not UTF-8.
pub(crate) fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}
