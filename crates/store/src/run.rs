//! Reading runs and what belongs to them.

use std::collections::BTreeMap;

use serde_json::Value;
use shuntyard_core::state::{AttemptState, JobState, OutcomeSet, RunState, StepState};
use shuntyard_protocol::{
    AgentId, EventId, JobId, Outcome, RunId, SourceId, Timestamp,
    agent::{AttemptId, End},
};

use sqlx::QueryBuilder;

use crate::{
    Store,
    column::row,
    db::read,
    error::{During, StoreError},
    page::{Cursor, PAGE_MAX, Page, fetch},
};

row! {
    pub struct RunInfo {
        pub id: RunId,
        pub org: String,
        pub source_id: SourceId,
        /// Name of the source; empty when it was removed.
        pub source: String,
        pub event_id: EventId,
        pub event_kind: String,
        pub actor: Option<String>,
        pub workflow: String,
        pub file: String,
        /// Counts up per source and workflow.
        pub number: u64,
        pub plan_key: Option<String>,
        pub timeout_ms: Option<u64>,
        pub ref_name: Option<String>,
        pub branch: Option<String>,
        pub commit_sha: Option<String>,
        pub title: Option<String>,
        /// The workflow's variables.
        pub env: BTreeMap<String, String>,
        pub rerun_of: Option<RunId>,
        /// The gate that the whole run passes.
        pub gate_id: Option<i64>,
        pub gate_cancels: bool,
        /// It waits there.
        pub held: bool,
        /// Grows with every change of the run or its jobs, except that an agent is asked.
        pub revision: u64,
        pub state: RunState,
        pub cancel_reason: Option<String>,
        pub cancel_by: Option<String>,
        pub n_waiting: u32,
        pub n_running: u32,
        pub n_success: u32,
        pub n_failed: u32,
        pub n_timed_out: u32,
        pub n_cancelled: u32,
        pub n_skipped: u32,
        pub n_lost: u32,
        pub n_tolerated: u32,
        pub created_at: Timestamp,
        pub started_at: Option<Timestamp>,
        pub ended_at: Option<Timestamp>,
    }

    /// A run that has not ended.
    pub struct OpenRun {
        pub id: RunId,
        pub source_id: SourceId,
        pub workflow: String,
        pub plan_key: Option<String>,
        pub state: RunState,
        pub created_at: Timestamp,
        /// When its first job began.
        pub started_at: Option<Timestamp>,
    }

    pub struct EventInfo {
        pub id: EventId,
        pub org: String,
        pub source_id: SourceId,
        pub kind: String,
        pub event_key: Option<String>,
        pub ref_name: Option<String>,
        pub branch: Option<String>,
        pub commit_sha: Option<String>,
        pub actor: Option<String>,
        pub title: Option<String>,
        pub body: Value,
        pub created_at: Timestamp,
    }

    pub struct JobInfo {
        pub id: JobId,
        pub run_id: RunId,
        pub org: String,
        pub position: u32,
        /// Name in the plan.
        pub name: String,
        pub title: String,
        pub matrix: Option<Value>,
        /// `protocol::plan::Job` as JSON.
        pub spec: Value,
        pub class: i64,
        pub priority: i32,
        pub retry_max: u32,
        pub retry_on: OutcomeSet,
        pub continue_on_error: bool,
        pub state: JobState,
        pub reason: Option<String>,
        /// Number of the current attempt, or of the next one while the job waits.
        pub attempt: u32,
        pub try_no: u32,
        pub waiting_for: u32,
        pub refused: Vec<AgentId>,
        /// The gate that it passes once it is ready.
        pub gate_id: Option<i64>,
        pub cancel_force: Option<bool>,
        pub cancel_reason: Option<String>,
        pub cancel_by: Option<String>,
        /// The job of an earlier run whose result a rerun took over.
        pub carried_from: Option<JobId>,
        pub created_at: Timestamp,
        pub queued_at: Option<Timestamp>,
        pub started_at: Option<Timestamp>,
        pub ended_at: Option<Timestamp>,
    }

    pub struct AttemptInfo {
        pub job_id: JobId,
        pub attempt: u32,
        pub try_no: u32,
        pub state: AttemptState,
        pub agent_id: Option<AgentId>,
        pub release_at: Option<Timestamp>,
        pub renewed_at: Option<Timestamp>,
        pub seq: u64,
        pub reason: Option<String>,
        /// What it reported after it was lost: "reported success late".
        pub late: Option<Outcome>,
        pub end_json: Option<End>,
        pub log_bytes: u64,
        pub created_at: Timestamp,
        pub started_at: Option<Timestamp>,
        pub ended_at: Option<Timestamp>,
    }

    /// A step that has begun or ended; the others stand only in the job's plan.
    pub struct StepInfo {
        pub idx: u32,
        pub state: StepState,
        pub started_at: Option<Timestamp>,
        pub ended_at: Option<Timestamp>,
        pub exit_code: Option<i32>,
        pub error: Option<String>,
        pub outputs: Option<Value>,
        pub tries: u32,
    }

    pub struct EdgeInfo {
        /// Name of the upstream job in the plan.
        pub upstream: String,
        pub job_id: JobId,
        pub accepts: OutcomeSet,
    }
}

/// Which runs to list; an absent field excludes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunFilter {
    pub org: Option<String>,
    pub source: Option<SourceId>,
    pub workflow: Option<String>,
    pub branch: Option<String>,
    pub commit: Option<String>,
    pub state: Option<RunState>,
}

/// `run` with the names that people know it by.
macro_rules! runs {
    ($rest:literal) => {
        concat!(
            "select run.*, coalesce(source.name, '') as source, event.kind as event_kind, \
            event.actor as actor from run join event on event.id = run.event_id \
            left join source on source.id = run.source_id ",
            $rest
        )
    };
}

const LIST: &str = runs!("where (run.created_at, run.id) < (");
pub(crate) const RUN: &str = runs!("where run.id = $1");
pub(crate) const RUNS_BY_ID: &str = runs!("where run.id");
pub(crate) const OPEN: &str = "select id, source_id, workflow, plan_key, state, created_at, \
    started_at from run where state in ('pending', 'running', 'cancelling') and id > $1 \
    order by id limit $2";
pub(crate) const EVENT: &str = "select * from event where id = $1";
pub(crate) const JOBS: &str = "select * from job where run_id = $1 order by position";
pub(crate) const JOB: &str = "select * from job where id = $1";
pub(crate) const ATTEMPTS: &str = "select * from attempt where job_id = $1 order by attempt";
pub(crate) const STEPS: &str = "select * from step where job_id = $1 and attempt = $2 order by idx";
pub(crate) const EDGES: &str = "select * from edge where run_id = $1 order by job_id, upstream";

impl Store {
    /// Runs, newest first.
    pub async fn list_runs(
        &self,
        filter: &RunFilter,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<RunInfo>, StoreError> {
        let after = after.unwrap_or(Cursor::START);
        // Only conditions that are asked for are in the text, so that an index fits them.
        let texts = [
            ("run.org", filter.org.as_deref()),
            ("run.workflow", filter.workflow.as_deref()),
            ("run.branch", filter.branch.as_deref()),
            ("run.commit_sha", filter.commit.as_deref()),
            ("run.state", filter.state.map(RunState::as_str)),
        ];
        let rows = read!(&self.inner.db, Kind, c => {
            let mut q = QueryBuilder::<Kind>::new(LIST);
            q.push_bind(after.at.0).push(", ").push_bind(after.id).push(")");
            for (column, value) in texts {
                if let Some(value) = value {
                    q.push(" and ").push(column).push(" = ").push_bind(value);
                }
            }
            if let Some(source) = filter.source {
                q.push(" and run.source_id = ").push_bind(source.uuid());
            }
            q.push(" order by run.created_at desc, run.id desc limit ").push_bind(fetch(limit));
            q.build_query_as().fetch_all(c).await
        })
        .during("list runs")?;
        Ok(Page::new(rows, limit, |row: &RunInfo| Cursor { at: row.created_at, id: row.id.uuid() }))
    }

    /// Runs that have not ended, oldest first, up to [`PAGE_MAX`] behind `after`: whoever watches
    /// over whole runs (their time limit, say) walks through them.
    pub async fn open_runs(&self, after: Option<RunId>) -> Result<Vec<OpenRun>, StoreError> {
        let after = after.map_or(uuid::Uuid::nil(), RunId::uuid);
        read!(&self.inner.db, Kind, c => {
            sqlx::query_as(OPEN).bind(after).bind(i64::from(PAGE_MAX)).fetch_all(c).await
        })
        .during("list open runs")
    }

    pub async fn run(&self, id: RunId) -> Result<Option<RunInfo>, StoreError> {
        read!(&self.inner.db, Kind, c => {
            sqlx::query_as(RUN).bind(id.uuid()).fetch_optional(c).await
        })
        .during("read a run")
    }

    pub async fn event(&self, id: EventId) -> Result<Option<EventInfo>, StoreError> {
        read!(&self.inner.db, Kind, c => {
            sqlx::query_as(EVENT).bind(id.uuid()).fetch_optional(c).await
        })
        .during("read an event")
    }

    /// In the order of the plan.
    pub async fn jobs_of(&self, run: RunId) -> Result<Vec<JobInfo>, StoreError> {
        read!(&self.inner.db, Kind, c => sqlx::query_as(JOBS).bind(run.uuid()).fetch_all(c).await)
            .during("list jobs")
    }

    pub async fn job(&self, id: JobId) -> Result<Option<JobInfo>, StoreError> {
        read!(&self.inner.db, Kind, c => {
            sqlx::query_as(JOB).bind(id.uuid()).fetch_optional(c).await
        })
        .during("read a job")
    }

    /// Oldest first.
    pub async fn attempts_of(&self, job: JobId) -> Result<Vec<AttemptInfo>, StoreError> {
        read!(&self.inner.db, Kind, c => {
            sqlx::query_as(ATTEMPTS).bind(job.uuid()).fetch_all(c).await
        })
        .during("list attempts")
    }

    pub async fn steps_of(&self, id: AttemptId) -> Result<Vec<StepInfo>, StoreError> {
        read!(&self.inner.db, Kind, c => sqlx::query_as(STEPS)
            .bind(id.job.uuid()).bind(i64::from(id.attempt)).fetch_all(c).await)
        .during("list steps")
    }

    pub async fn edges_of(&self, run: RunId) -> Result<Vec<EdgeInfo>, StoreError> {
        read!(&self.inner.db, Kind, c => sqlx::query_as(EDGES).bind(run.uuid()).fetch_all(c).await)
            .during("list edges")
    }
}
