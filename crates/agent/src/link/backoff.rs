//! How long to wait before the next connection.

use std::time::Duration;

const FIRST_MS: u64 = 1000;
const MOST_MS: u64 = 60_000;

/// 1 s × 1.5ⁿ up to 60 s, each shortened by up to a half, so that agents do not come in step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    pub(super) fn next(&mut self, random: [u8; 2]) -> Duration {
        let mut ms = FIRST_MS;
        for _ in 0..self.failures {
            ms = (ms * 3 / 2).min(MOST_MS);
        }
        self.failures = self.failures.saturating_add(1).min(32);
        let part = u64::from(u16::from_be_bytes(random));
        Duration::from_millis(ms - ms / 2 * part / u64::from(u16::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_minute_and_are_spread() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..14).map(|_| backoff.next([0, 0]).as_millis()).collect();
        assert_eq!(waits[..4], [1000, 1500, 2250, 3375]);
        assert_eq!(waits[13], 60_000);
        assert_eq!(Backoff::default().next([0xff, 0xff]).as_millis(), 500);
    }
}
