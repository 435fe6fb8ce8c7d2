//! Rows of the tables that `core` decides about, and their way into its model.

use shuntyard_core::{
    apply::{Attempt, Cancel, Counts, Edge, Group, Job, KeyHash, Retry, Run, Step},
    gate::{GateId, Ticket},
    state::{AttemptState, JobState, OutcomeSet, RunState, StepState},
};
use shuntyard_protocol::{AgentId, JobId, Outcome, RunId, Timestamp, agent::End};

use crate::column::row;

row! {
    pub(crate) struct RunRow {
        pub(crate) id: RunId,
        pub(crate) state: RunState,
        pub(crate) cancel_force: Option<bool>,
        pub(crate) cancel_reason: Option<String>,
        pub(crate) cancel_by: Option<String>,
        pub(crate) gate_id: Option<i64>,
        pub(crate) gate_cancels: bool,
        pub(crate) held: bool,
        pub(crate) n_waiting: u32,
        pub(crate) n_running: u32,
        pub(crate) n_success: u32,
        pub(crate) n_failed: u32,
        pub(crate) n_timed_out: u32,
        pub(crate) n_cancelled: u32,
        pub(crate) n_skipped: u32,
        pub(crate) n_lost: u32,
        pub(crate) n_tolerated: u32,
        pub(crate) started_at: Option<Timestamp>,
        pub(crate) ended_at: Option<Timestamp>,
    }

    pub(crate) struct JobRow {
        pub(crate) id: JobId,
        pub(crate) run_id: RunId,
        pub(crate) name: String,
        pub(crate) state: JobState,
        pub(crate) reason: Option<String>,
        pub(crate) attempt: u32,
        pub(crate) try_no: u32,
        pub(crate) abandoned: u32,
        pub(crate) waiting_for: u32,
        pub(crate) retry_max: u32,
        pub(crate) retry_on: OutcomeSet,
        pub(crate) continue_on_error: bool,
        pub(crate) refused: Vec<AgentId>,
        pub(crate) gate_id: Option<i64>,
        pub(crate) gate_cancels: bool,
        pub(crate) cancel_force: Option<bool>,
        pub(crate) cancel_reason: Option<String>,
        pub(crate) cancel_by: Option<String>,
        pub(crate) queue_seq: Option<i64>,
        pub(crate) queued_at: Option<Timestamp>,
        pub(crate) started_at: Option<Timestamp>,
        pub(crate) ended_at: Option<Timestamp>,
    }

    pub(crate) struct AttemptRow {
        pub(crate) job_id: JobId,
        pub(crate) attempt: u32,
        pub(crate) state: AttemptState,
        pub(crate) try_no: u32,
        pub(crate) agent_id: Option<AgentId>,
        pub(crate) key_hash: Option<KeyHash>,
        pub(crate) deadline: Timestamp,
        pub(crate) release_at: Option<Timestamp>,
        pub(crate) renewed_at: Option<Timestamp>,
        pub(crate) seq: u64,
        pub(crate) reason: Option<String>,
        pub(crate) late: Option<Outcome>,
        pub(crate) end_json: Option<End>,
        pub(crate) started_at: Option<Timestamp>,
        pub(crate) ended_at: Option<Timestamp>,
        pub(crate) log_bytes: u64,
    }

    pub(crate) struct StepRow {
        pub(crate) job_id: JobId,
        pub(crate) attempt: u32,
        pub(crate) idx: u32,
        pub(crate) state: StepState,
        pub(crate) started_at: Option<Timestamp>,
        pub(crate) ended_at: Option<Timestamp>,
        pub(crate) exit_code: Option<i32>,
        pub(crate) error: Option<String>,
        pub(crate) outputs: Option<serde_json::Value>,
        pub(crate) tries: u32,
    }

    pub(crate) struct GroupRow {
        pub(crate) run_id: RunId,
        pub(crate) name: String,
        pub(crate) open_jobs: u32,
        pub(crate) outcome: Outcome,
    }

    pub(crate) struct EdgeRow {
        pub(crate) run_id: RunId,
        pub(crate) upstream: String,
        pub(crate) job_id: JobId,
        pub(crate) accepts: OutcomeSet,
    }
}

/// Jobs without their plans and runs without their variables, which are long.
pub(crate) const SELECT_JOBS: &str = "select id, run_id, name, state, reason, attempt, try_no, \
    abandoned, waiting_for, retry_max, retry_on, continue_on_error, refused, gate_id, gate_cancels, cancel_force, \
    cancel_reason, cancel_by, queue_seq, queued_at, started_at, ended_at from job where ";
pub(crate) const SELECT_RUNS: &str = "select id, state, cancel_force, cancel_reason, cancel_by, \
    gate_id, gate_cancels, held, \
    n_waiting, n_running, n_success, n_failed, n_timed_out, n_cancelled, n_skipped, n_lost, \
    n_tolerated, started_at, ended_at from run where ";

/// A ticket is stored as two columns.
pub(crate) fn ticket(gate: Option<GateId>, cancels: bool) -> Option<Ticket> {
    gate.map(|gate| Ticket { gate, cancels })
}

/// A cancel is stored as three columns that are set together.
pub(crate) fn cancel(
    force: Option<bool>,
    reason: Option<String>,
    by: Option<String>,
) -> Option<Cancel> {
    Some(Cancel { force: force?, reason: reason.unwrap_or_default(), by: by.unwrap_or_default() })
}

impl RunRow {
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            waiting: self.n_waiting,
            running: self.n_running,
            success: self.n_success,
            failed: self.n_failed,
            timed_out: self.n_timed_out,
            cancelled: self.n_cancelled,
            skipped: self.n_skipped,
            lost: self.n_lost,
            tolerated: self.n_tolerated,
        }
    }

    pub(crate) fn model(self) -> Run {
        Run {
            state: self.state,
            counts: self.counts(),
            cancel: cancel(self.cancel_force, self.cancel_reason, self.cancel_by),
            ticket: ticket(self.gate_id, self.gate_cancels),
            held: self.held,
            started_at: self.started_at,
            ended_at: self.ended_at,
        }
    }
}

impl JobRow {
    pub(crate) fn model(self) -> Job {
        Job {
            run: self.run_id,
            group: self.name,
            state: self.state,
            reason: self.reason,
            attempt: self.attempt,
            try_no: self.try_no,
            abandoned: self.abandoned,
            waiting_for: self.waiting_for,
            ticket: ticket(self.gate_id, self.gate_cancels),
            retry: Retry { max_tries: self.retry_max, on: self.retry_on },
            continue_on_error: self.continue_on_error,
            refused: self.refused,
            cancel: cancel(self.cancel_force, self.cancel_reason, self.cancel_by),
            queue_seq: self.queue_seq,
            queued_at: self.queued_at,
            started_at: self.started_at,
            ended_at: self.ended_at,
        }
    }
}

impl AttemptRow {
    pub(crate) fn model(self) -> Attempt {
        Attempt {
            state: self.state,
            try_no: self.try_no,
            agent: self.agent_id,
            key_hash: self.key_hash,
            deadline: self.deadline,
            release_at: self.release_at,
            renewed_at: self.renewed_at,
            seq: self.seq,
            reason: self.reason,
            late: self.late,
            end: self.end_json,
            started_at: self.started_at,
            ended_at: self.ended_at,
        }
    }
}

impl StepRow {
    pub(crate) fn model(self) -> Step {
        Step {
            state: self.state,
            started_at: self.started_at,
            ended_at: self.ended_at,
            exit_code: self.exit_code,
            error: self.error,
            outputs: self.outputs,
            tries: self.tries,
        }
    }
}

impl GroupRow {
    pub(crate) fn model(&self) -> Group {
        Group { open: self.open_jobs, outcome: self.outcome }
    }
}

impl EdgeRow {
    pub(crate) fn model(&self) -> Edge {
        Edge { to: self.job_id, when: self.accepts }
    }
}
