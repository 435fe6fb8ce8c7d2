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

/// All zeros: "no commit".
fn is_null(commit: &str) -> bool {
    commit.bytes().all(|b| b == b'0')
}

fn ignored(reason: impl Into<String>) -> Meaning {
    Meaning::Ignored(reason.into())
}

/// What the body of a webhook makes this server look for: commits, and a ref. `event` is GitHub's, or
/// none for a generic source. For tests that send anything.
///
/// # Errors
/// When it has no meaning.
pub fn asked_for(
    event: Option<&str>,
    body: &[u8],
) -> anyhow::Result<(Vec<String>, Option<String>)> {
    let meaning = match event {
        Some(event) => github::normalise(event, body, "web", github::Forks::Run)?,
        None => generic::normalise(body)?,
    };
    let Meaning::Event(incoming) = meaning else { return Ok((Vec::new(), None)) };
    let base = match incoming.base {
        Base::Before(commit) | Base::Target(commit) => Some(commit),
        Base::New | Base::None => None,
    };
    Ok((incoming.commit.into_iter().chain(base).collect(), incoming.ref_name))
}
