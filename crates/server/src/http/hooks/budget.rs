//! How many bytes of bodies nobody has vouched for yet: of all senders, and of each source's.
//!
//! A source has a share of its own, so that a flood at one address leaves room at the others.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};

use shuntyard_protocol::SourceId;

/// Most bytes that may be held at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub total: usize,
    pub per_source: usize,
}

/// What is held now. What does not fit is turned away.
#[derive(Debug, Default)]
pub struct Unverified(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    total: usize,
    /// Only sources that hold something.
    by_source: BTreeMap<SourceId, usize>,
}

impl Unverified {
    /// Bytes held for all sources.
    pub fn bytes(&self) -> usize {
        self.held().total
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().expect("no panic while it is held")
    }
}

/// One body's share, given back when dropped.
pub(super) struct Share<'a> {
    of: &'a Unverified,
    source: SourceId,
    limits: Limits,
    bytes: usize,
}

impl<'a> Share<'a> {
    pub(super) fn new(of: &'a Unverified, source: SourceId, limits: Limits) -> Self {
        Self { of, source, limits, bytes: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes `bytes` more. False: there is no room, and nothing was taken.
    #[must_use]
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let mut held = self.of.held();
        let of_source = held.by_source.get(&self.source).copied().unwrap_or(0);
        if held.total + bytes > self.limits.total || of_source + bytes > self.limits.per_source {
            return false;
        }
        held.total += bytes;
        held.by_source.insert(self.source, of_source + bytes);
        self.bytes += bytes;
        true
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut held = self.of.held();
        held.total -= self.bytes;
        if let Some(of_source) = held.by_source.get_mut(&self.source) {
            *of_source -= self.bytes;
            if *of_source == 0 {
                held.by_source.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use shuntyard_protocol::Timestamp;

    use super::*;

    #[test]
    fn a_share_ends_at_its_sources_limit_at_that_of_all_and_is_given_back() {
        let unverified = Unverified::default();
        let limits = Limits { total: 15, per_source: 10 };
        let source = |n: u8| SourceId::mint(Timestamp(0), [n; 10]);
        let share = |n| Share::new(&unverified, source(n), limits);
        let (mut a, mut also_a, mut b) = (share(1), share(1), share(2));
        assert!(a.grow(9) && also_a.grow(1));
        assert!(!a.grow(1) && !also_a.grow(1));
        assert!(b.grow(5) && !b.grow(1));
        assert_eq!((unverified.bytes(), a.bytes(), b.bytes()), (15, 9, 5));
        drop(a);
        assert!(also_a.grow(9) && !also_a.grow(1));
        drop((also_a, b));
        assert_eq!(unverified.bytes(), 0);
        assert!(unverified.held().by_source.is_empty());
    }
}
