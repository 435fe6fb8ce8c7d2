//! Queue and outbox rows, made from the rows that were written before.

use std::collections::{BTreeMap, BTreeSet};

use shuntyard_protocol::{JobId, RunId, Timestamp};
use uuid::Uuid;

use super::portions;
use crate::{
    db::{Statement, Tx, cells, on},
    error::{During, StoreError},
};

/// Takes jobs out of the queue.
pub(crate) async fn dequeue(tx: &mut Tx, jobs: &BTreeSet<JobId>) -> Result<(), StoreError> {
    let ids: Vec<Uuid> = jobs.iter().map(|job| job.uuid()).collect();
    for ids in portions(&ids) {
        on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("delete from queue where job_id");
            q.push_in(ids);
            q.done().execute(c).await.map(drop)
        })
        .during("take jobs out of the queue")?;
    }
    Ok(())
}

/// Puts jobs into the queue: where they were before, or at its end, in the order of the facts that put
/// them there, and those of one fact in the order of their run.
pub(crate) async fn enqueue(
    tx: &mut Tx,
    jobs: &BTreeMap<JobId, u32>,
    now: Timestamp,
) -> Result<(), StoreError> {
    const BACK: (&str, &str) = (
        "insert into queue (seq, job_id, run_id, org, class, priority, queued_at) \
        select j.queue_seq, j.id, j.run_id, j.org, j.class, j.priority, coalesce(j.queued_at, ",
        "j.queue_seq is not null order by j.queue_seq",
    );
    const NEW: (&str, &str) = (
        "insert into queue (job_id, run_id, org, class, priority, queued_at) \
        select j.id, j.run_id, j.org, j.class, j.priority, coalesce(j.queued_at, ",
        "j.queue_seq is null order by v.column2, j.run_id, j.position",
    );
    let mut jobs: Vec<_> = jobs.iter().collect();
    jobs.sort_by_key(|(_, fact)| **fact);
    for jobs in portions(&jobs) {
        for (text, end) in [BACK, NEW] {
            on!(tx, Db, c => {
                let mut q = Statement::<Db>::new(text);
                q.push_bind(now.0).push(") from");
                q.push_rows(jobs, |(job, fact)| cells![**job, **fact]);
                q.push(" cross join job j where j.id = v.column1 and ").push(end);
                q.push(" on conflict do nothing");
                q.done().execute(c).await.map(drop)
            })
            .during("queue jobs")?;
        }
    }
    Ok(())
}

/// Notes runs whose state is to be told to others.
pub(crate) async fn announce(
    tx: &mut Tx,
    runs: &BTreeSet<RunId>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let ids: Vec<Uuid> = runs.iter().map(|run| run.uuid()).collect();
    for ids in portions(&ids) {
        on!(tx, Db, c => {
            let mut q = Statement::<Db>::new(
                "insert into outbox (org, run_id, state, next_at, tries, created_at) \
                select org, id, state, ");
            q.push_bind(now.0).push(", 0, ").push_bind(now.0).push(" from run where id").push_in(ids);
            q.done().execute(c).await.map(drop)
        })
        .during("note runs for the outbox")?;
    }
    Ok(())
}
