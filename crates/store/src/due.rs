//! What is overdue: the reconcilers' only question.

use std::collections::{BTreeMap, btree_map::Entry};

use shuntyard_core::{
    gate::{GateId, Place},
    state::AttemptState,
};
use shuntyard_protocol::{
    AgentId, JobId, RunId, Timestamp,
    agent::{AttemptId, Containment},
};

use crate::{
    Store,
    column::row,
    db::read,
    error::{During, StoreError},
    page::PAGE_MAX,
};

/// Something whose time has come. Each becomes a fact, which checks again.
#[derive(Clone, Debug, PartialEq)]
pub enum Due {
    /// Nobody answered the offer.
    Offer { id: AttemptId },
    /// The committed attempt did not begin.
    Start { id: AttemptId, agent: Option<AgentId> },
    /// No renewal for too long; nothing is given away yet.
    Renewal { id: AttemptId, agent: Option<AgentId> },
    /// The release has passed.
    Release {
        id: AttemptId,
        agent: Option<AgentId>,
        /// What the agent's host puts around its attempts.
        containment: Option<Containment>,
    },
    /// The run took longer than its workflow allows.
    Run { run: RunId, timeout_ms: u64 },
    /// Somebody has waited too long for a slot.
    /// `holders`: in words.
    Wait { place: Place, group: String, holders: String },
    /// The job has waited too long for an agent.
    Queue { job: JobId, queued_at: Timestamp },
}

/// From when on things are overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// Attempts that were last renewed before this are recovering.
    pub renewed_before: Timestamp,
    /// Jobs that were queued before this have waited too long; absent: none has.
    pub queued_before: Option<Timestamp>,
    /// Who has waited for a slot since before this has waited too long; absent: nobody has.
    pub waits_before: Option<Timestamp>,
}

row! {
    struct AttemptDue {
        job_id: JobId,
        attempt: u32,
        state: AttemptState,
        agent_id: Option<AgentId>,
        release_at: Option<Timestamp>,
        containment: Option<Containment>,
    }

    struct QueueDue {
        job_id: JobId,
        queued_at: Timestamp,
    }

    struct RunDue {
        id: RunId,
        timeout_ms: u64,
    }

    struct NextDue {
        at: Option<Timestamp>,
    }
}

pub(crate) const ATTEMPTS: &str = "select a.job_id, a.attempt, a.state, a.agent_id, \
    a.release_at, g.containment from attempt a join job j on j.id = a.job_id \
    left join agent g on g.id = a.agent_id \
    where a.state in ('offered', 'starting', 'running') \
    and ((a.state in ('offered', 'starting') and a.deadline <= $1) \
    or (a.state = 'running' and a.release_at <= $1) \
    or (a.state = 'running' and j.state = 'running' and a.renewed_at < $2)) \
    order by coalesce(a.release_at, a.deadline), a.job_id limit $3";
pub(crate) const QUEUE: &str =
    "select job_id, queued_at from queue where queued_at < $1 order by queued_at limit $2";
pub(crate) const RUNS: &str = "select id, timeout_ms from run \
    where state in ('pending', 'running') and timeout_ms is not null \
    and started_at + timeout_ms <= $1 order by id limit $2";
pub(crate) const NEXT: &str = "select min(case when state = 'running' then release_at \
    else deadline end) as at from attempt where state in ('offered', 'starting', 'running')";

impl Store {
    /// Up to `limit` of each kind, the longest overdue first.
    pub async fn due(
        &self,
        overdue: Overdue,
        limit: u32,
        now: Timestamp,
    ) -> Result<Vec<Due>, StoreError> {
        let limit = i64::from(limit.clamp(1, PAGE_MAX));
        let attempts: Vec<AttemptDue> = read!(&self.inner.db, Kind, c => sqlx::query_as(ATTEMPTS)
            .bind(now.0).bind(overdue.renewed_before.0).bind(limit).fetch_all(c).await)
        .during("find overdue attempts")?;
        let mut due: Vec<Due> = attempts.into_iter().map(|row| attempt_due(&row, now)).collect();
        let runs: Vec<RunDue> = read!(&self.inner.db, Kind, c => {
            sqlx::query_as(RUNS).bind(now.0).bind(limit).fetch_all(c).await
        })
        .during("find overdue runs")?;
        let runs = runs.into_iter();
        due.extend(runs.map(|row| Due::Run { run: row.id, timeout_ms: row.timeout_ms }));
        if let Some(before) = overdue.queued_before {
            let jobs: Vec<QueueDue> = read!(&self.inner.db, Kind, c => {
                sqlx::query_as(QUEUE).bind(before.0).bind(limit).fetch_all(c).await
            })
            .during("find overdue jobs")?;
            due.extend(
                jobs.into_iter()
                    .map(|row| Due::Queue { job: row.job_id, queued_at: row.queued_at }),
            );
        }
        if let Some(before) = overdue.waits_before {
            due.extend(self.waits_due(before, limit).await?);
        }
        Ok(due)
    }

    async fn waits_due(&self, before: Timestamp, limit: i64) -> Result<Vec<Due>, StoreError> {
        let (mut due, mut held) = (Vec::new(), BTreeMap::<GateId, String>::new());
        for place in self.waiting_since(before, limit).await? {
            let holders = match held.entry(place.gate_id) {
                Entry::Occupied(known) => known.get().clone(),
                Entry::Vacant(entry) => entry.insert(self.holders(place.gate_id).await?).clone(),
            };
            due.push(Due::Wait { place: place.place(), group: place.group_name, holders });
        }
        Ok(due)
    }

    /// When the next offer, start or release will be overdue; absent: nothing is live.
    pub async fn next_due(&self) -> Result<Option<Timestamp>, StoreError> {
        let row: NextDue =
            read!(&self.inner.db, Kind, c => sqlx::query_as(NEXT).fetch_one(c).await)
                .during("find the next deadline")?;
        Ok(row.at)
    }
}

fn attempt_due(row: &AttemptDue, now: Timestamp) -> Due {
    let id = AttemptId { job: row.job_id, attempt: row.attempt };
    let agent = row.agent_id;
    match row.state {
        AttemptState::Offered => Due::Offer { id },
        AttemptState::Starting => Due::Start { id, agent },
        AttemptState::Running | AttemptState::Withdrawn | AttemptState::Ended(_) => {
            if row.release_at.is_some_and(|at| at <= now) {
                Due::Release { id, agent, containment: row.containment }
            } else {
                Due::Renewal { id, agent }
            }
        }
    }
}
