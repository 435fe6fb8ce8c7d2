//! Randomness that replays: SplitMix64.

/// A stream of numbers that its seed determines.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed ^ 0x5eed_5eed_5eed_5eed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, both included.
    pub(super) fn range(&mut self, low: i64, high: i64) -> i64 {
        let span = high.abs_diff(low).saturating_add(1);
        low + i64::try_from(self.next() % span).expect("it is at most high - low")
    }

    /// The same for sizes.
    pub(super) fn size(&mut self, low: usize, high: usize) -> usize {
        low + usize::try_from(self.next() % (high - low + 1) as u64).expect("it is below a usize")
    }

    /// True `n` times in a thousand.
    pub(super) fn chance(&mut self, n: u64) -> bool {
        self.next() % 1000 < n
    }

    pub(super) fn pick<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        if list.is_empty() { None } else { list.get(self.size(0, list.len() - 1)) }
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next().to_le_bytes()[0])
    }
}
