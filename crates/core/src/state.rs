//! The state machines of runs, jobs, attempts and steps.
//!
//! Each machine is an enum whose `to` is the only way from one state to the next. A move that is
//! not listed is an [`Illegal`] value naming both sides, so that a caller can report it; nothing is
//! ever silently ignored. The words are what SQL, JSON and people see.

use std::fmt;

use shuntyard_protocol::Outcome;

mod outcome_set;
#[cfg(test)]
mod tests;

pub use outcome_set::OutcomeSet;

/// A move that a state machine does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a {what} cannot go from {from} to {to}")]
pub struct Illegal {
    /// run, job, attempt or step.
    pub what: &'static str,
    pub from: &'static str,
    pub to: &'static str,
}

/// A run: `pending → running → (cancelling) → ended`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunState {
    /// No job has begun.
    Pending,
    Running,
    /// Somebody cancelled it; nothing new starts, what runs is being stopped.
    Cancelling,
    Ended(Outcome),
}

/// A job: `blocked → (held) → queued → offered → starting → running → ended`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobState {
    /// Waits for upstream jobs.
    Blocked,
    /// Ready; waits at a gate.
    Held,
    /// Ready; waits for an agent.
    Queued,
    /// An agent was asked.
    Offered,
    /// The agent committed itself, but has no permission to run anything yet.
    Starting,
    Running,
    /// Running, as far as anybody knows: its renewals are overdue.
    Recovering,
    Ended(Outcome),
}

/// One attempt: what became of one placement of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttemptState {
    Offered,
    Starting,
    Running,
    /// It ended before its first instruction; the job was placed again or ended without it.
    Withdrawn,
    Ended(Outcome),
}

/// One step of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepState {
    Pending,
    Running,
    Ended(Outcome),
}

impl RunState {
    /// The word in SQL and JSON; an ended run is called by its outcome.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Cancelling => "cancelling",
            Self::Ended(outcome) => outcome.as_str(),
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "pending" => Self::Pending,
            "running" => Self::Running,
            "cancelling" => Self::Cancelling,
            _ => Self::Ended(Outcome::parse(text)?),
        })
    }

    pub fn is_ended(self) -> bool {
        self.outcome().is_some()
    }

    pub fn outcome(self) -> Option<Outcome> {
        match self {
            Self::Ended(outcome) => Some(outcome),
            Self::Pending | Self::Running | Self::Cancelling => None,
        }
    }

    /// The state after a move to `next`.
    ///
    /// # Errors
    /// [`Illegal`] when the machine has no such move.
    pub fn to(self, next: Self) -> Result<Self, Illegal> {
        let allowed = match self {
            Self::Pending => next != Self::Pending,
            Self::Running => matches!(next, Self::Cancelling | Self::Ended(_)),
            Self::Cancelling => matches!(next, Self::Ended(_)),
            Self::Ended(_) => false,
        };
        check(allowed, "run", self.as_str(), next.as_str()).map(|()| next)
    }
}

impl JobState {
    /// The word in SQL and JSON; an ended job is called by its outcome.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::Held => "held",
            Self::Queued => "queued",
            Self::Offered => "offered",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Recovering => "recovering",
            Self::Ended(outcome) => outcome.as_str(),
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "blocked" => Self::Blocked,
            "held" => Self::Held,
            "queued" => Self::Queued,
            "offered" => Self::Offered,
            "starting" => Self::Starting,
            "running" => Self::Running,
            "recovering" => Self::Recovering,
            _ => Self::Ended(Outcome::parse(text)?),
        })
    }

    pub fn is_ended(self) -> bool {
        self.outcome().is_some()
    }

    /// Its attempt has begun and has not ended.
    pub fn is_running(self) -> bool {
        matches!(self, Self::Running | Self::Recovering)
    }

    pub fn outcome(self) -> Option<Outcome> {
        match self {
            Self::Ended(outcome) => Some(outcome),
            Self::Blocked
            | Self::Held
            | Self::Queued
            | Self::Offered
            | Self::Starting
            | Self::Running
            | Self::Recovering => None,
        }
    }

    /// The state after a move to `next`.
    ///
    /// # Errors
    /// [`Illegal`] when the machine has no such move.
    pub fn to(self, next: Self) -> Result<Self, Illegal> {
        let allowed = match self {
            Self::Blocked => matches!(next, Self::Held | Self::Queued | Self::Ended(_)),
            Self::Held => matches!(next, Self::Queued | Self::Ended(_)),
            Self::Queued => matches!(next, Self::Offered | Self::Ended(_)),
            Self::Offered => matches!(next, Self::Queued | Self::Starting | Self::Ended(_)),
            Self::Starting => matches!(next, Self::Queued | Self::Running | Self::Ended(_)),
            // Back to the queue is another try.
            Self::Running => matches!(next, Self::Queued | Self::Recovering | Self::Ended(_)),
            Self::Recovering => matches!(next, Self::Queued | Self::Running | Self::Ended(_)),
            Self::Ended(_) => false,
        };
        check(allowed, "job", self.as_str(), next.as_str()).map(|()| next)
    }
}

impl AttemptState {
    /// The word in SQL and JSON; an ended attempt is called by its outcome.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Offered => "offered",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Withdrawn => "withdrawn",
            Self::Ended(outcome) => outcome.as_str(),
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "offered" => Self::Offered,
            "starting" => Self::Starting,
            "running" => Self::Running,
            "withdrawn" => Self::Withdrawn,
            _ => Self::Ended(Outcome::parse(text)?),
        })
    }

    /// Nothing of it may run any more.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Withdrawn | Self::Ended(_))
    }

    /// The state after a move to `next`.
    ///
    /// # Errors
    /// [`Illegal`] when the machine has no such move.
    pub fn to(self, next: Self) -> Result<Self, Illegal> {
        let allowed = match self {
            Self::Offered => matches!(next, Self::Starting | Self::Withdrawn),
            Self::Starting => matches!(next, Self::Running | Self::Withdrawn),
            Self::Running => matches!(next, Self::Ended(_)),
            Self::Withdrawn | Self::Ended(_) => false,
        };
        check(allowed, "attempt", self.as_str(), next.as_str()).map(|()| next)
    }
}

impl StepState {
    /// The word in SQL and JSON; an ended step is called by its outcome.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Ended(outcome) => outcome.as_str(),
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "pending" => Self::Pending,
            "running" => Self::Running,
            _ => Self::Ended(Outcome::parse(text)?),
        })
    }

    /// The state after a move to `next`. A step that never ran goes straight to its end.
    ///
    /// # Errors
    /// [`Illegal`] when the machine has no such move.
    pub fn to(self, next: Self) -> Result<Self, Illegal> {
        let allowed = match self {
            Self::Pending => matches!(next, Self::Running | Self::Ended(_)),
            Self::Running => matches!(next, Self::Ended(_)),
            Self::Ended(_) => false,
        };
        check(allowed, "step", self.as_str(), next.as_str()).map(|()| next)
    }
}

fn check(
    allowed: bool,
    what: &'static str,
    from: &'static str,
    to: &'static str,
) -> Result<(), Illegal> {
    if allowed { Ok(()) } else { Err(Illegal { what, from, to }) }
}

macro_rules! display {
    ($($name:ident),+) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    )+};
}

display!(RunState, JobState, AttemptState, StepState);
