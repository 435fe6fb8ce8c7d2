//! A normalised event: what any source's happening looks like to triggers and workflows.

use serde::{Deserialize, Serialize};

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Kind {
    /// A branch has a new head.
    Push {
        branch: String,
    },
    /// A tag was made or moved.
    Tag {
        tag: String,
    },
    PullRequest(PullRequest),
    /// Started by hand or by the API.
    Manual {
        workflow: String,
    },
    /// A signed request to a generic source.
    Generic {},
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullRequest {
    pub number: u64,
    /// `opened`, `synchronize`, …
    pub action: String,
    pub title: String,
    /// Branch that it wants to change.
    pub target: String,
    /// Branch that it comes from.
    pub source: String,
    /// The head is in another repository, or that repository is gone.
    pub fork: bool,
}

/// Which files an event changed. Not knowing is not the same as none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Changed {
    /// Paths in the repository; a rename counts with both names.
    Files(Vec<String>),
    /// Why they are not known. Path filters then let the workflow run.
    Unknown(String),
}

/// An event with the commit that it is about. `ctx.event` in a workflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub kind: Kind,
    /// Commit to run, hex.
    pub commit: String,
    /// Full name, `refs/heads/main`.
    #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
    pub ref_name: Option<String>,
    /// Head before the push; absent for a new ref.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// First line of the commit's message.
    #[serde(default)]
    pub subject: String,
    #[serde(default)]
    pub author: String,
    pub changed: Changed,
}

impl Event {
    /// The branch that a person would name: the pushed one, or the pull request's source.
    pub fn branch(&self) -> Option<&str> {
        match &self.kind {
            Kind::Push { branch } => Some(branch),
            Kind::PullRequest(pr) => Some(&pr.source),
            Kind::Tag { .. } | Kind::Manual { .. } | Kind::Generic {} => {
                self.ref_name.as_deref()?.strip_prefix("refs/heads/")
            }
        }
    }

    /// One word for lists.
    pub fn trigger(&self) -> &'static str {
        match self.kind {
            Kind::Push { .. } => "push",
            Kind::Tag { .. } => "tag",
            Kind::PullRequest(_) => "pr",
            Kind::Manual { .. } => "manual",
            Kind::Generic {} => "generic",
        }
    }
}
