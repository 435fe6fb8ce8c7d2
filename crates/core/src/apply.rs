//! Facts and what follows from them: the one place where runs and jobs change state.
//!
//! A [`Fact`] says what happened. The store collects facts, locks and loads what they touch as a
//! [`Loaded`], asks [`decide`], and writes the result back in one transaction. Facts are applied in
//! order, so a batch means exactly what its facts would mean one by one; each of them is safe to
//! repeat, because whoever lost an answer sends again. `Loaded` may hold more than is needed; when
//! it holds too little, [`decide`] names what is missing instead of guessing.
//!
//! **The key of an attempt.** `begin` is repeated when its answer is lost, and must then return the
//! same key. So the key is not drawn at random and stored, but derived by the coordinator from the
//! cluster's master key and the attempt's id (a MAC), which every coordinator can repeat; facts and
//! rows carry only its SHA-256.

use serde_json::Value;
use shuntyard_protocol::{
    AgentId, JobId, RunId, Timestamp,
    agent::{AttemptFact, AttemptId},
};

use crate::{gate::Place, state::Illegal};

mod attempt;
mod cancel;
mod gates;
mod graph;
mod model;
mod placement;
#[cfg(test)]
mod tests;
mod world;

pub use model::{
    Attempt, Cancel, Counts, Edge, Group, GroupKey, Job, Loaded, Retry, Run, Step, Touched,
};

use world::World;

/// A job whose agents give up before the first instruction this often, in one try, fails.
pub const PLACEMENTS_MAX: u32 = 3;
/// Agents that refused a job and are asked last; older refusals are forgotten.
pub const REFUSED_MAX: usize = 16;
/// SHA-256 of an attempt's key.
pub type KeyHash = [u8; 32];

/// Something that happened, with everything that is needed to apply it.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// An agent kept a slot for an offered attempt and must begin it by `start_by`.
    Reserved {
        id: AttemptId,
        agent: AgentId,
        start_by: Timestamp,
    },
    /// An agent turned an offer down.
    Refused {
        id: AttemptId,
        agent: AgentId,
        reason: String,
    },
    /// Nobody answered an offer until its deadline; `agent` was asked, if anybody was.
    OfferExpired {
        id: AttemptId,
        agent: Option<AgentId>,
    },
    /// A committed attempt did not begin until its deadline.
    StartExpired {
        id: AttemptId,
    },
    /// The agent gave a committed attempt up before its first instruction.
    Abandoned {
        id: AttemptId,
        agent: AgentId,
        reason: String,
    },
    /// The agent asks for permission to run the first instruction.
    Begin {
        id: AttemptId,
        agent: AgentId,
        key_hash: KeyHash,
        release_at: Timestamp,
    },
    /// The supervisor lives; its attempt is not given away before `release_at`.
    Renewed {
        id: AttemptId,
        key_hash: KeyHash,
        release_at: Timestamp,
    },
    /// The next fact of an attempt's own history.
    Attempt {
        id: AttemptId,
        key_hash: KeyHash,
        seq: u64,
        fact: AttemptFact,
    },
    CancelRun {
        run: RunId,
        force: bool,
        reason: String,
        by: String,
    },
    CancelJob {
        job: JobId,
        force: bool,
        reason: String,
        by: String,
    },
    /// No renewal since before `renewed_before`: the job shows `recovering`.
    Overdue {
        id: AttemptId,
        renewed_before: Timestamp,
    },
    /// The release has passed. `contained`: nothing of the attempt can still run, so that another
    /// try is safe.
    Lost {
        id: AttemptId,
        contained: bool,
    },
    /// A job waited longer than it may.
    QueueExpired {
        job: JobId,
        reason: String,
    },
    /// Whoever waited longest at a gate gets a slot; the gate is locked.
    Admitted {
        place: Place,
    },
    /// Somebody waited longer at a gate than it may.
    WaitExpired {
        place: Place,
        reason: String,
        by: String,
    },
}

/// What a fact is about, and so what must be loaded for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Attempt(AttemptId),
    Job(JobId),
    /// The run with all its jobs that have not ended, and their current attempts.
    Run(RunId),
}

impl Fact {
    pub fn subject(&self) -> Subject {
        match self {
            Self::Reserved { id, .. }
            | Self::Refused { id, .. }
            | Self::OfferExpired { id, .. }
            | Self::StartExpired { id }
            | Self::Abandoned { id, .. }
            | Self::Begin { id, .. }
            | Self::Renewed { id, .. }
            | Self::Attempt { id, .. }
            | Self::Overdue { id, .. }
            | Self::Lost { id, .. } => Subject::Attempt(*id),
            Self::CancelJob { job, .. } | Self::QueueExpired { job, .. } => Subject::Job(*job),
            Self::CancelRun { run, .. } => Subject::Run(*run),
            Self::Admitted { place } | Self::WaitExpired { place, .. } => match place {
                Place::Run(run) => Subject::Run(*run),
                Place::Job(job) => Subject::Job(*job),
            },
        }
    }

    /// Memory that it takes beyond its own size, about: texts and outputs, which agents choose.
    pub fn weight(&self) -> usize {
        match self {
            Self::Refused { reason, .. }
            | Self::Abandoned { reason, .. }
            | Self::QueueExpired { reason, .. } => reason.len(),
            Self::CancelRun { reason, by, .. }
            | Self::CancelJob { reason, by, .. }
            | Self::WaitExpired { reason, by, .. } => reason.len() + by.len(),
            Self::Attempt { fact: AttemptFact::StepEnded(end), .. } => {
                let error = end.error.as_ref().map_or(0, String::len);
                error + end.outputs.as_ref().map_or(0, value_weight)
            }
            Self::Attempt { fact: AttemptFact::Ended(end), .. } => {
                let reason = end.reason.as_ref().map_or(0, String::len);
                let ends = end.ends.len() * size_of::<(u32, u64)>();
                reason + ends + end.torn.len() + end.outputs.as_ref().map_or(0, value_weight)
            }
            Self::Attempt { fact: AttemptFact::StepStarted { .. }, .. }
            | Self::Reserved { .. }
            | Self::OfferExpired { .. }
            | Self::StartExpired { .. }
            | Self::Begin { .. }
            | Self::Renewed { .. }
            | Self::Overdue { .. }
            | Self::Lost { .. }
            | Self::Admitted { .. } => 0,
        }
    }
}

/// What a small map takes, however few pairs are in it.
const MAP_BYTES: usize = 640;

/// Parsed JSON takes many times the room of its text: `[[],{"":0}]` has a list of values for every
/// three bytes, and a whole map for every seven.
fn value_weight(value: &Value) -> usize {
    let inner = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(value_weight).sum(),
        Value::Object(values) if values.is_empty() => 0,
        Value::Object(values) => {
            let inner = |(key, value): (&String, &Value)| key.len() + value_weight(value);
            let maps = 1 + values.len() / 6;
            maps * MAP_BYTES + values.iter().map(inner).sum::<usize>()
        }
    };
    size_of::<Value>() + inner
}

/// What became of a fact.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// It holds now; perhaps it did before.
    Done,
    /// `Reserved`: the attempt is this agent's; send the start.
    Committed,
    /// `Begin`: permission, until `release_at`.
    Begun { release_at: Timestamp, cancel: Option<Cancel> },
    /// `Renewed`: not given away before `release_at`. Whoever renews hears of a cancel again.
    Renewed { release_at: Timestamp, cancel: Option<Cancel> },
    /// `Renewed`: too late, the release has passed or the attempt is over. The fence holds; the
    /// attempt's result is still taken until it is declared lost, and its log after that.
    Expired,
    /// `Attempt`: everything up to `seq` is committed.
    Acked { seq: u64 },
    /// `Attempt`: facts are missing; send again from `have + 1`.
    Gap { have: u64 },
    /// The attempt is not the current one, or is not this sender's.
    Superseded,
    /// The condition of the fact does not hold (any more); nothing changed.
    Stale,
    /// No such run or job.
    Unknown,
    /// It cannot be applied, now or later; it changed nothing.
    Failed { reason: String },
}

/// The state after a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub loaded: Loaded,
    /// What differs from before and must be written.
    pub touched: Touched,
    /// One for each fact, in order.
    pub answers: Vec<Answer>,
}

/// A cascade of skips reached groups whose outgoing edges were not loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the edges of {} more groups are needed", groups.len())]
pub struct Missing {
    pub groups: Vec<GroupKey>,
}

/// Why one fact changed nothing.
enum Stop {
    /// It needs rows that were not loaded.
    Missing(GroupKey),
    Illegal(Illegal),
}

impl From<Illegal> for Stop {
    fn from(illegal: Illegal) -> Self {
        Self::Illegal(illegal)
    }
}

/// Applies `facts` in order. `now` is database time.
///
/// # Errors
/// [`Missing`] when more rows are needed: load them and everything behind them, then ask again.
pub fn decide(loaded: Loaded, facts: &[Fact], now: Timestamp) -> Result<Decision, Missing> {
    let mut world = World::new(loaded, now);
    let mut answers = Vec::with_capacity(facts.len());
    for fact in facts {
        match world.apply(fact) {
            Ok(answer) => answers.push(answer),
            Err(Stop::Illegal(illegal)) => {
                answers.push(Answer::Failed { reason: illegal.to_string() });
            }
            Err(Stop::Missing(group)) => return Err(Missing { groups: vec![group] }),
        }
    }
    let (loaded, touched) = world.finish();
    Ok(Decision { loaded, touched, answers })
}
