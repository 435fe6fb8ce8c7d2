//! How a job ended.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The final outcome of a job, and with it the vocabulary of `needs … when`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Success,
    Failed,
    TimedOut,
    Cancelled,
    Skipped,
    /// Its agent was lost; nobody knows how far it came.
    Lost,
}

impl Outcome {
    pub const ALL: [Self; 6] =
        [Self::Success, Self::Failed, Self::TimedOut, Self::Cancelled, Self::Skipped, Self::Lost];

    /// The word in SQL, JSON and on screen.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::Skipped => "skipped",
            Self::Lost => "lost",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == text)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
