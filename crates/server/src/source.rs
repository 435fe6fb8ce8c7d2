//! From what a source sends to a normalised event.

pub(crate) mod generic;
pub(crate) mod github;

use shuntyard_core::event::Kind;

/// What a delivery means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    Event(Box<Incoming>),
    /// Nothing to do, and why: shown on the delivery.
    Ignored(String),
}

/// An event before the repository was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Incoming {
    pub kind: Kind,
    /// Absent: the head of the default branch.
    pub commit: Option<String>,
    pub ref_name: Option<String>,
    /// What the changed files are compared with.
    pub base: Base,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// The head before a push, possibly forced: compare the two trees.
    Before(String),
    /// A new branch: compare with the merge base of the default branch.
    New,
    /// A pull request: compare with the merge base of its target, at this commit.
    Target(String),
    /// Not about files.
    None,
}

fn ignored(reason: impl Into<String>) -> Meaning {
    Meaning::Ignored(reason.into())
}
