//! Sets of outcomes, as small as their database column.

use shuntyard_protocol::Outcome;

/// A set of [`Outcome`]s: which ends of an upstream let a job go on, or are tried again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct OutcomeSet(u8);

impl OutcomeSet {
    pub const NONE: Self = Self(0);
    pub const ALL: Self = Self(0b11_1111);

    /// From the stored bits; unknown ones are dropped.
    pub fn from_bits(bits: i64) -> Self {
        Self(u8::try_from(bits & i64::from(Self::ALL.0)).unwrap_or(0))
    }

    /// The stored form: bit `i` stands for `Outcome::ALL[i]`.
    pub fn bits(self) -> i64 {
        i64::from(self.0)
    }

    pub fn contains(self, outcome: Outcome) -> bool {
        self.0 & bit(outcome) != 0
    }

    #[must_use]
    pub fn with(self, outcome: Outcome) -> Self {
        Self(self.0 | bit(outcome))
    }
}

impl FromIterator<Outcome> for OutcomeSet {
    fn from_iter<T: IntoIterator<Item = Outcome>>(outcomes: T) -> Self {
        outcomes.into_iter().fold(Self::NONE, Self::with)
    }
}

/// Stored: a bit never changes its meaning.
fn bit(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Success => 1,
        Outcome::Failed => 2,
        Outcome::TimedOut => 4,
        Outcome::Cancelled => 8,
        Outcome::Skipped => 16,
        Outcome::Lost => 32,
    }
}
