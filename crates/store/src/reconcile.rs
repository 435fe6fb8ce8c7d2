//! What becomes of the attempts that an agent brings along when it registers.

use std::collections::BTreeMap;

use shuntyard_core::{apply::KeyHash, state::JobState};
use shuntyard_protocol::{
    AgentId, InstanceId, JobId,
    agent::{AttemptId, Verdict},
};

use crate::{
    Store,
    column::row,
    db::{Lock, Statement, Tx, again, cells, on, read},
    error::{During, StoreError},
};

/// One attempt that an agent's host still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldAttempt {
    pub id: AttemptId,
    /// Absent: it had no answer to `begin` yet.
    pub key_hash: Option<KeyHash>,
}

/// An attempt that must be told to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CancelWanted {
    pub id: AttemptId,
    pub force: bool,
    pub reason: String,
}

row! {
    struct HeldRow {
        job_id: JobId,
        attempt: u32,
        current: u32,
        job_state: JobState,
        agent_id: Option<AgentId>,
        key_hash: Option<KeyHash>,
        seq: u64,
    }

    struct StreamRow {
        job_id: JobId,
        attempt: u32,
        stream: u32,
        to_byte: u64,
    }

    struct CancelRow {
        id: JobId,
        attempt: u32,
        cancel_force: bool,
        cancel_reason: String,
    }
}

pub(crate) const CANCELS: &str = "select j.id, j.attempt, j.cancel_force, j.cancel_reason \
    from attempt a join job j on j.id = a.job_id and j.attempt = a.attempt \
    where a.agent_id = $1 and a.state in ('offered', 'starting', 'running') \
    and a.state = 'running' and j.cancel_force is not null order by j.id";

impl HeldRow {
    fn id(&self) -> AttemptId {
        AttemptId { job: self.job_id, attempt: self.attempt }
    }

    fn verdict(&self, held: &HeldAttempt, agent: AgentId, log: BTreeMap<u32, u64>) -> Verdict {
        let (id, facts) = (held.id, self.seq);
        let current = self.attempt == self.current;
        if self.agent_id != Some(agent) {
            return Verdict::Kill { id };
        }
        match held.key_hash {
            // It asks again for its permission, or for the answer that was lost.
            None if current && self.job_state == JobState::Starting => {
                Verdict::Keep { id, log, facts }
            }
            None if current && self.job_state.is_running() && self.seq == 0 => {
                Verdict::Keep { id, log, facts }
            }
            Some(key) if self.key_hash == Some(key) => {
                if current && self.job_state.is_running() {
                    Verdict::Keep { id, log, facts }
                } else {
                    Verdict::Finish { id, log, facts }
                }
            }
            Some(_) | None => Verdict::Kill { id },
        }
    }
}

impl Store {
    /// Judges what `agent` holds and gives the attempts that go on to `instance`, whose link the
    /// agent chose, whether or not their old owner lives. Renewals prolong them from here on.
    pub async fn reconcile(
        &self,
        agent: AgentId,
        instance: InstanceId,
        held: &[HeldAttempt],
    ) -> Result<Vec<Verdict>, StoreError> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        again!(self.reconcile_once(agent, instance, held))
    }

    async fn reconcile_once(
        &self,
        agent: AgentId,
        instance: InstanceId,
        held: &[HeldAttempt],
    ) -> Result<Vec<Verdict>, StoreError> {
        let mut tx = self.inner.db.begin().await?;
        let rows = held_rows(&mut tx, held).await?;
        let mut logs = log_ends(&mut tx, held).await?;
        let verdicts: Vec<Verdict> = held
            .iter()
            .map(|held| match rows.get(&held.id) {
                Some(row) => row.verdict(held, agent, logs.remove(&held.id).unwrap_or_default()),
                None => Verdict::Kill { id: held.id },
            })
            .collect();
        let kept: Vec<AttemptId> = verdicts
            .iter()
            .filter(|verdict| matches!(verdict, Verdict::Keep { .. }))
            .map(Verdict::id)
            .collect();
        own(&mut tx, &kept, instance).await?;
        tx.commit().await?;
        Ok(verdicts)
    }

    /// The running attempts of an agent that somebody wants to end: to be repeated at every
    /// contact until they have.
    pub async fn cancels_for(&self, agent: AgentId) -> Result<Vec<CancelWanted>, StoreError> {
        let rows: Vec<CancelRow> = read!(&self.inner.db, Kind, c => {
            sqlx::query_as(CANCELS).bind(agent.uuid()).fetch_all(c).await
        })
        .during("find cancels")?;
        Ok(rows
            .into_iter()
            .map(|row| CancelWanted {
                id: AttemptId { job: row.id, attempt: row.attempt },
                force: row.cancel_force,
                reason: row.cancel_reason,
            })
            .collect())
    }
}

async fn held_rows(
    tx: &mut Tx,
    held: &[HeldAttempt],
) -> Result<BTreeMap<AttemptId, HeldRow>, StoreError> {
    let lock = tx.lock(Lock::Held);
    let rows: Vec<HeldRow> = on!(tx, Db, c => {
        let mut q = Statement::<Db>::new("select a.job_id, a.attempt, j.attempt as current, \
            j.state as job_state, a.agent_id, a.key_hash, a.seq from");
        q.push_rows(held, |held| cells![held.id.job, held.id.attempt]);
        q.push(" cross join attempt a join job j on j.id = a.job_id \
            where a.job_id = v.column1 and a.attempt = v.column2 \
            order by a.job_id, a.attempt").push(lock);
        q.done_as().fetch_all(c).await
    })
    .during("find an agent's attempts")?;
    Ok(rows.into_iter().map(|row| (row.id(), row)).collect())
}

async fn log_ends(
    tx: &mut Tx,
    held: &[HeldAttempt],
) -> Result<BTreeMap<AttemptId, BTreeMap<u32, u64>>, StoreError> {
    let rows: Vec<StreamRow> = on!(tx, Db, c => {
        let mut q = Statement::<Db>::new("select t.* from");
        q.push_rows(held, |held| cells![held.id.job, held.id.attempt]);
        q.push(" cross join log_stream t where t.job_id = v.column1 \
            and t.attempt = v.column2");
        q.done_as().fetch_all(c).await
    })
    .during("read where an agent's logs end")?;
    let mut logs: BTreeMap<AttemptId, BTreeMap<u32, u64>> = BTreeMap::new();
    for row in rows {
        let id = AttemptId { job: row.job_id, attempt: row.attempt };
        logs.entry(id).or_default().insert(row.stream, row.to_byte);
    }
    Ok(logs)
}

async fn own(tx: &mut Tx, kept: &[AttemptId], instance: InstanceId) -> Result<(), StoreError> {
    if kept.is_empty() {
        return Ok(());
    }
    on!(tx, Db, c => {
        let mut q = Statement::<Db>::new("update attempt set owner_instance = ");
        q.push_bind(instance.uuid());
        q.push(", owner_epoch = owner_epoch + 1 from");
        q.push_rows(kept, |id| cells![id.job, id.attempt]);
        q.push(" where attempt.job_id = v.column1 and attempt.attempt = v.column2");
        q.done().execute(c).await.map(drop)
    })
    .during("take an agent's attempts over")
}
