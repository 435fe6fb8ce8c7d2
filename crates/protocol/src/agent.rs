//! The agent link: every frame between an agent and a coordinator, and the supervisor's link to
//! its agent, which carries the attempt's share of the same frames.
//!
//! A start is a permission, not an order: `offer → reserve → (commit) → start → begin → begun`,
//! and no instruction of the user runs before `begun`. Everything about a begun attempt carries
//! `(job, attempt)` and the random key that `begun` returned. What is older than the current
//! attempt is answered `superseded`.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{AgentId, InstanceId, JobId, Outcome, RunId, Timestamp, offsets, plan};

/// Oldest and newest version of this link that this build speaks.
pub const VERSIONS: Versions = Versions { min: 1, max: 1 };

/// Most facts in one frame.
pub const FACTS_PER_FRAME_MAX: usize = 64;
/// Most attempts that one agent may run at once, and so most renewals in one frame.
pub const SLOTS_MAX: u32 = 1024;
/// Most labels of an agent.
pub const LABELS_MAX: usize = 256;
/// Longest label.
pub const LABEL_BYTES_MAX: usize = 256;

/// A range of versions of the link; both ends speak the highest that both know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    pub min: u32,
    pub max: u32,
}

impl Versions {
    /// The version to speak with a peer that knows `other`.
    pub fn common(self, other: Self) -> Option<u32> {
        let version = self.max.min(other.max);
        (version >= self.min && version >= other.min).then_some(version)
    }
}

/// One physical execution of a job. The number is the fence: it only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptId {
    pub job: JobId,
    pub attempt: u32,
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job, self.attempt)
    }
}

/// The random key of a begun attempt, 32 bytes as hex. Whoever has it may speak for the attempt.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptKey(pub String);

impl fmt::Debug for AttemptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AttemptKey(…)")
    }
}

/// The most that an agent's host puts between an attempt and the rest of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Containment {
    /// Process group only: a daemonised child may survive.
    None,
    /// Subreaper and sweep.
    Subreaper,
    /// Own PID and mount namespace; the init dies with its supervisor.
    Namespace,
}

/// Frames from an agent. `Log` carries the chunks' bytes, one after the other, as its payload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromAgent {
    Hello(Hello),
    /// The agent has a slot free and keeps it for `reservation`; commit now.
    Reserve {
        id: AttemptId,
    },
    Refuse {
        id: AttemptId,
        reason: String,
    },
    /// Asks for permission to run the first instruction of the user.
    Begin {
        id: AttemptId,
    },
    Renew {
        renewals: Vec<Renewal>,
    },
    Log {
        id: AttemptId,
        key: AttemptKey,
        chunks: Vec<Chunk>,
    },
    Facts {
        id: AttemptId,
        key: AttemptKey,
        facts: Vec<NumberedFact>,
    },
    /// The attempt ended before `begun`: the workspace could not be made, say.
    Abandon {
        id: AttemptId,
        reason: String,
    },
    /// Offer nothing more.
    Draining {},
    /// A frame of a later version, skipped.
    #[serde(other)]
    Unknown,
}

/// First frame of an agent, in answer to `challenge`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub versions: Versions,
    /// Ed25519 public key, hex: the agent's identity.
    pub public_key: String,
    /// Signature (hex) by that key over [`hello_message`].
    pub signature: String,
    /// Enrolment token; needed until the key is enrolled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    pub name: String,
    pub labels: Vec<String>,
    /// Attempts that may run at once.
    pub slots: u32,
    pub containment: Containment,
    pub boot_id: String,
    /// Version of the software, for people.
    pub software: String,
    /// Everything that the agent's host still has of earlier links.
    #[serde(default)]
    pub attempts: Vec<Held>,
}

/// What an agent signs to prove its key: the coordinator's nonce, bound to this use.
pub fn hello_message(nonce: &str) -> Vec<u8> {
    format!("shuntyard agent hello 1\n{nonce}").into_bytes()
}

/// One attempt that an agent still holds when it registers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    pub id: AttemptId,
    /// Absent: it had no answer to `begin` yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<AttemptKey>,
    /// The supervisor lives. If not, only its spool is left.
    pub alive: bool,
}

/// The supervisor's own beat. An agent never renews for a supervisor that does not beat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Renewal {
    pub id: AttemptId,
    pub key: AttemptKey,
    /// Grows with each renewal; the supervisor knows when it sent which.
    pub beat: u64,
}

/// A stretch of one log stream: bytes [from, from + len).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// 0 is the attempt's own stream (checkout, set-up); step `i` writes stream `i + 1`.
    pub stream: u32,
    pub from: u64,
    pub len: u32,
    /// When the bytes from each offset on were read, by the supervisor's clock corrected to the
    /// coordinator's. The first mark is at `from`.
    pub marks: Vec<Mark>,
}

/// "From this offset on, read at this time."
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark(pub u64, pub Timestamp);

/// A fact with its place in the attempt's history. Numbers start at 1 and have no holes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NumberedFact {
    pub seq: u64,
    pub fact: AttemptFact,
}

/// What happened in an attempt. Each is synced into the spool before it is sent, and kept until
/// the coordinator has committed it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AttemptFact {
    StepStarted { step: u32, at: Timestamp },
    StepEnded(StepEnd),
    Ended(End),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepEnd {
    pub step: u32,
    pub at: Timestamp,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why it did not succeed, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// JSON, at most 256 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Value>,
    /// Tries that it took.
    pub tries: u32,
}

/// The last fact of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct End {
    pub at: Timestamp,
    pub outcome: Outcome,
    /// Why it did not succeed, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Outputs by step name, or flat for a job written as `run`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Value>,
    /// Where each stream ends; the log is complete when all of it arrived.
    #[serde(deserialize_with = "offsets::deserialize")]
    pub ends: BTreeMap<u32, u64>,
    /// Streams whose end is unknown because the supervisor died: the log shows a gap mark.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub torn: Vec<u32>,
}

/// Frames from a coordinator. `Start` carries the workflow folder as its payload, when a step is a
/// function: a JSON map from path to text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToAgent {
    Challenge {
        versions: Versions,
        nonce: String,
    },
    Welcome(Welcome),
    Rejected {
        code: String,
        message: String,
    },
    Offer {
        id: AttemptId,
        /// The job, for people.
        name: String,
    },
    Start(Box<Spec>),
    Begun {
        id: AttemptId,
        key: AttemptKey,
        /// Time from the sending of `begin` to the release.
        release_in_ms: u64,
    },
    /// This attempt is not the current one: end it, keep nothing, send no more.
    Superseded {
        id: AttemptId,
    },
    Renewed {
        renewals: Vec<Renewed>,
    },
    /// Repeated at every contact until the attempt has ended.
    Cancel {
        id: AttemptId,
        force: bool,
        reason: String,
    },
    LogAck {
        id: AttemptId,
        /// Stream → everything before this offset is durable.
        #[serde(deserialize_with = "offsets::deserialize")]
        to: BTreeMap<u32, u64>,
    },
    FactAck {
        id: AttemptId,
        /// Everything up to this number is committed.
        seq: u64,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// The version both will speak.
    pub version: u32,
    pub agent: AgentId,
    pub instance: InstanceId,
    /// The coordinator's time, for the times in logs.
    pub now: Timestamp,
    pub timers: Timers,
    /// One for each attempt of `hello`.
    #[serde(default)]
    pub verdicts: Vec<Verdict>,
}

/// What becomes of an attempt that an agent brought along.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// Go on; send the log and the facts from here.
    Keep {
        id: AttemptId,
        #[serde(default, deserialize_with = "offsets::deserialize")]
        log: BTreeMap<u32, u64>,
        #[serde(default)]
        facts: u64,
    },
    /// The result is stored or no longer wanted, but its log is: send what is missing, then go.
    Finish {
        id: AttemptId,
        #[serde(default, deserialize_with = "offsets::deserialize")]
        log: BTreeMap<u32, u64>,
        #[serde(default)]
        facts: u64,
    },
    /// End it and delete it.
    Kill { id: AttemptId },
}

impl Verdict {
    pub fn id(&self) -> AttemptId {
        match self {
            Self::Keep { id, .. } | Self::Finish { id, .. } | Self::Kill { id } => *id,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewed {
    pub id: AttemptId,
    pub beat: u64,
    /// Time from the sending of that beat to the release.
    pub release_in_ms: u64,
}

/// The timers that an agent and its supervisors live by (milliseconds). The coordinator sends
/// them, so that both sides of a fence use one set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timers {
    /// Between two renewals.
    pub renew_ms: u64,
    /// SIGTERM this long before the release …
    pub fence_term_ms: u64,
    /// … and SIGKILL this long before it.
    pub fence_kill_ms: u64,
    /// How long a reservation is kept without a start.
    pub reservation_ms: u64,
}

/// Everything that an attempt needs to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    pub id: AttemptId,
    pub run: RunId,
    pub org: String,
    pub source: String,
    pub workflow: String,
    /// Path of the workflow file in the repository.
    pub file: String,
    /// Name in the plan; `title` adds the matrix values.
    pub job: String,
    pub title: String,
    /// Number of the try, from 1: what people count.
    pub try_no: u32,
    pub run_number: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matrix: Option<Value>,
    /// The normalised event: `ctx.event`.
    pub event: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    pub checkout: plan::Checkout,
    /// Workflow and job variables, merged.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub timeout_ms: u64,
    pub grace_ms: u64,
    pub steps: Vec<plan::Step>,
    #[serde(default)]
    pub parallels: Vec<plan::Parallel>,
    #[serde(default)]
    pub single: bool,
    /// Upstream jobs by name.
    #[serde(default)]
    pub needs: BTreeMap<String, Upstream>,
    /// Link to the run's page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_url: Option<String>,
}

/// Where the source code is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Code {
    /// The source's own URL: `https`, `ssh` or `file`.
    pub url: String,
    pub commit: String,
    /// Full name, `refs/heads/main`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ref_name: Option<String>,
}

/// A finished upstream job as its dependants see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Upstream {
    pub outcome: Outcome,
    /// As in [`End::outputs`]; for a fan-out `{byMatrix, merged}`.
    #[serde(default)]
    pub outputs: Value,
}

#[cfg(test)]
mod tests;
