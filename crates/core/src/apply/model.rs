//! The rows that a decision reads and changes, as values.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use shuntyard_protocol::{
    AgentId, JobId, Outcome, RunId, Timestamp,
    agent::{AttemptId, End},
};

use super::KeyHash;
use crate::gate::{Gate, GateId, Place, Ticket};
use crate::state::{AttemptState, JobState, OutcomeSet, RunState, StepState};

/// One job of the plan in one run: all children of its fan-out. Edges start at groups.
pub type GroupKey = (RunId, String);

/// What the store loaded: the touched runs and jobs, their attempts, the groups of those jobs with
/// their outgoing edges, and the jobs at the other ends with their groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    pub runs: BTreeMap<RunId, Run>,
    pub jobs: BTreeMap<JobId, Job>,
    pub attempts: BTreeMap<AttemptId, Attempt>,
    pub steps: BTreeMap<(AttemptId, u32), Step>,
    pub groups: BTreeMap<GroupKey, Group>,
    /// A group without an entry was not loaded; one without edges has an empty list.
    pub edges: BTreeMap<GroupKey, Vec<Edge>>,
    /// The gates that jobs may come to now; they are locked.
    pub gates: BTreeMap<GateId, Gate>,
}

/// A run and its counters. Nothing ever counts rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub state: RunState,
    pub counts: Counts,
    pub cancel: Option<Cancel>,
    /// The gate that the whole run passes.
    pub ticket: Option<Ticket>,
    /// It waits there: each of its jobs waits for one thing more.
    pub held: bool,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
}

/// Jobs of a run by what they mean for the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocked, held, queued, offered or starting.
    pub waiting: u32,
    /// Running or recovering.
    pub running: u32,
    pub success: u32,
    pub failed: u32,
    pub timed_out: u32,
    pub cancelled: u32,
    pub skipped: u32,
    pub lost: u32,
    /// Ended badly, but with `continue_on_error`.
    pub tolerated: u32,
}

impl Counts {
    /// Jobs that have not ended.
    pub fn open(self) -> u32 {
        self.waiting + self.running
    }

    /// Where a job in `state` is counted.
    pub fn slot(&mut self, state: JobState, continue_on_error: bool) -> &mut u32 {
        match state {
            JobState::Blocked
            | JobState::Held
            | JobState::Queued
            | JobState::Offered
            | JobState::Starting => &mut self.waiting,
            JobState::Running | JobState::Recovering => &mut self.running,
            JobState::Ended(Outcome::Success) => &mut self.success,
            JobState::Ended(Outcome::Failed | Outcome::TimedOut | Outcome::Lost)
                if continue_on_error =>
            {
                &mut self.tolerated
            }
            JobState::Ended(Outcome::Failed) => &mut self.failed,
            JobState::Ended(Outcome::TimedOut) => &mut self.timed_out,
            JobState::Ended(Outcome::Cancelled) => &mut self.cancelled,
            JobState::Ended(Outcome::Skipped) => &mut self.skipped,
            JobState::Ended(Outcome::Lost) => &mut self.lost,
        }
    }

    /// How a run with these jobs ends: its worst job, `skipped` only when all of them were. A run
    /// that was cancelled and lost a job to it is cancelled, whatever failed before.
    pub fn outcome(self, cancelling: bool) -> Outcome {
        match self {
            _ if cancelling && self.cancelled > 0 => Outcome::Cancelled,
            _ if self.failed > 0 => Outcome::Failed,
            _ if self.timed_out > 0 => Outcome::TimedOut,
            _ if self.lost > 0 => Outcome::Lost,
            _ if self.cancelled > 0 => Outcome::Cancelled,
            _ if self.success + self.tolerated > 0 || self.skipped == 0 => Outcome::Success,
            _ => Outcome::Skipped,
        }
    }
}

/// Somebody's wish that a run or job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancel {
    /// Without grace.
    pub force: bool,
    pub reason: String,
    /// Who, for people.
    pub by: String,
}

/// When another try of a job is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Tries in all; 1 means none is repeated.
    pub max_tries: u32,
    pub on: OutcomeSet,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub run: RunId,
    /// Its name in the plan.
    pub group: String,
    pub state: JobState,
    /// Why it ended so, or waits again; for people.
    pub reason: Option<String>,
    /// Number of the current placement, or of the next while the job waits. It only grows.
    pub attempt: u32,
    /// What people count, from 1.
    pub try_no: u32,
    /// Placements of this try that agents gave up.
    pub abandoned: u32,
    /// Incoming edges that are not satisfied yet.
    pub waiting_for: u32,
    /// The gate that it passes once it is ready.
    pub ticket: Option<Ticket>,
    pub retry: Retry,
    pub continue_on_error: bool,
    /// Agents to ask last, newest at the end.
    pub refused: Vec<AgentId>,
    pub cancel: Option<Cancel>,
    /// Its place in the queue, kept when a placement comes to nothing.
    pub queue_seq: Option<i64>,
    /// When this try became ready.
    pub queued_at: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
}

impl Job {
    pub fn group_key(&self) -> GroupKey {
        (self.run, self.group.clone())
    }

    /// What an end with `outcome` means for those who wait for it.
    pub fn effective(&self, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Failed | Outcome::TimedOut | Outcome::Lost if self.continue_on_error => {
                Outcome::Success
            }
            Outcome::Success
            | Outcome::Failed
            | Outcome::TimedOut
            | Outcome::Cancelled
            | Outcome::Skipped
            | Outcome::Lost => outcome,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    pub state: AttemptState,
    pub try_no: u32,
    pub agent: Option<AgentId>,
    pub key_hash: Option<KeyHash>,
    /// By when an offer must be answered, or a committed attempt begin.
    pub deadline: Timestamp,
    /// Not given away before.
    pub release_at: Option<Timestamp>,
    pub renewed_at: Option<Timestamp>,
    /// The last fact of its history that is committed.
    pub seq: u64,
    pub reason: Option<String>,
    /// What it reported after it was lost.
    pub late: Option<Outcome>,
    /// Its last word: outputs and where its log streams end.
    pub end: Option<End>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
}

impl Attempt {
    /// A fresh offer.
    pub fn offered(try_no: u32, deadline: Timestamp) -> Self {
        Self {
            state: AttemptState::Offered,
            try_no,
            agent: None,
            key_hash: None,
            deadline,
            release_at: None,
            renewed_at: None,
            seq: 0,
            reason: None,
            late: None,
            end: None,
            started_at: None,
            ended_at: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub state: StepState,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub exit_code: Option<i32>,
    pub error: Option<String>,
    pub outputs: Option<Value>,
    pub tries: u32,
}

/// The state of a fan-out, kept as counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Children that have not ended.
    pub open: u32,
    /// Worst end so far, as its dependants see it; final when `open` is 0.
    pub outcome: Outcome,
}

/// One job that waits for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    pub to: JobId,
    /// Outcomes of the group that let it go on.
    pub when: OutcomeSet,
}

/// What a decision changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Touched {
    pub runs: BTreeSet<RunId>,
    pub jobs: BTreeSet<JobId>,
    pub attempts: BTreeSet<AttemptId>,
    pub steps: BTreeSet<(AttemptId, u32)>,
    pub groups: BTreeSet<GroupKey>,
    /// Jobs that need a queue row now, with the fact of the batch that put each there: the queue has them
    /// in that order.
    pub enqueue: BTreeMap<JobId, u32>,
    /// Jobs whose queue row must go.
    pub dequeue: BTreeSet<JobId>,
    /// Attempts that ended: steps that still run end with this outcome.
    pub close_steps: BTreeMap<AttemptId, Outcome>,
    /// Attempts whose agents must be told to end them.
    pub cancels: BTreeSet<AttemptId>,
    /// Attempts that are over.
    pub over: BTreeSet<AttemptId>,
    /// Runs whose state changed: others may have to be told.
    pub announced: BTreeSet<RunId>,
    /// Jobs that have a place at their gate now; true: with a slot.
    pub entered: BTreeMap<JobId, bool>,
    /// Places that are given up.
    pub left: BTreeSet<Place>,
    /// Gates whose reconciler has to look.
    pub wakes: BTreeSet<GateId>,
}
