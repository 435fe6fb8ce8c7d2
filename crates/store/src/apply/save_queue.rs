//! Queue and outbox rows, made from the rows that were written before.

use std::collections::BTreeSet;

use shuntyard_protocol::{JobId, RunId, Timestamp};
use sqlx::QueryBuilder;
use uuid::Uuid;

use super::portions;
use crate::{
    db::{Lists, Tx, on},
    error::{During, StoreError},
};

/// Takes jobs out of the queue.
pub(crate) async fn dequeue(tx: &mut Tx, jobs: &BTreeSet<JobId>) -> Result<(), StoreError> {
    let ids: Vec<Uuid> = jobs.iter().map(|job| job.uuid()).collect();
    for ids in portions(&ids) {
        on!(tx, Db, c => {
            let mut q = QueryBuilder::<Db>::new("delete from queue where job_id");
            q.push_in(ids);
            q.done().execute(c).await.map(drop)
        })
        .during("take jobs out of the queue")?;
    }
    Ok(())
}

/// Puts jobs into the queue: at its end in the order of their run, or where they were before.
pub(crate) async fn enqueue(
    tx: &mut Tx,
    jobs: &BTreeSet<JobId>,
    now: Timestamp,
) -> Result<(), StoreError> {
    const BACK: &str = "insert into queue (seq, job_id, run_id, org, class, priority, queued_at) \
        select queue_seq, id, run_id, org, class, priority, coalesce(queued_at, ";
    const NEW: &str = "insert into queue (job_id, run_id, org, class, priority, queued_at) \
        select id, run_id, org, class, priority, coalesce(queued_at, ";
    let ids: Vec<Uuid> = jobs.iter().map(|job| job.uuid()).collect();
    for ids in portions(&ids) {
        for (text, end) in [
            (BACK, " and queue_seq is not null order by queue_seq on conflict do nothing"),
            (NEW, " and queue_seq is null order by run_id, position on conflict do nothing"),
        ] {
            on!(tx, Db, c => {
                let mut q = QueryBuilder::<Db>::new(text);
                q.push_bind(now.0).push(") from job where id").push_in(ids).push(end);
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
            let mut q = QueryBuilder::<Db>::new(
                "insert into outbox (org, run_id, state, next_at, tries, created_at) \
                select org, id, state, ");
            q.push_bind(now.0).push(", 0, ").push_bind(now.0).push(" from run where id").push_in(ids);
            q.done().execute(c).await.map(drop)
        })
        .during("note runs for the outbox")?;
    }
    Ok(())
}
