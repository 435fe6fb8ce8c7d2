//! Taking jobs from the queue to offer them.

use std::collections::BTreeSet;

use shuntyard_protocol::{
    AgentId, InstanceId, JobId, RunId, Timestamp, agent::AttemptId, plan::RunsOn,
};
use uuid::Uuid;

use crate::{
    Store,
    apply::portions,
    column::row,
    db::{Lock, Statement, Tx, again, cells, on, read},
    error::{During, StoreError},
    store::Change,
};

/// Most jobs of one claim.
pub(crate) const CLAIM_MAX: u32 = 500;
/// Claims that may run at the same time and still each find all that they ask for.
const CLAIMS_AT_ONCE: i64 = 4;
/// A waiting job rises by one level of priority in this time, so that none waits for ever.
pub(crate) const LIFT_MS: i64 = 10 * 60 * 1000;

row! {
    /// What some queued or past jobs of one org and priority ask of their agents.
    pub struct LabelClass {
        pub id: i64,
        pub runs_on: RunsOn,
    }

    struct Taken {
        seq: i64,
        job_id: JobId,
        run_id: RunId,
        org: String,
        name: String,
        title: String,
        class: i64,
        attempt: u32,
        try_no: u32,
        refused: Vec<AgentId>,
        queued_at: Timestamp,
    }
}

/// A job that is offered now, by whoever claimed it.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    pub id: AttemptId,
    pub run: RunId,
    pub org: String,
    pub name: String,
    pub title: String,
    pub class: i64,
    /// Agents to ask last: they turned this job down before.
    pub refused: Vec<AgentId>,
    pub queued_at: Timestamp,
}

pub(crate) const CLASSES: &str = "select id, key as runs_on from label_class order by id";
/// Goes from class to class in the index: how much is queued does not matter.
pub(crate) const QUEUED_CLASSES: &str = "with recursive waiting (class) as ( \
    select min(class) from queue union all \
    select (select min(q.class) from queue q where q.class > w.class) from waiting w \
    where w.class is not null) \
    select id, key as runs_on from label_class \
    where id in (select class from waiting where class is not null) order by id";

impl Store {
    /// All classes that any job ever asked for.
    pub async fn label_classes(&self) -> Result<Vec<LabelClass>, StoreError> {
        read!(&self.inner.db, Kind, c => sqlx::query_as(CLASSES).fetch_all(c).await)
            .during("list label classes")
    }

    /// The classes that queued jobs ask for.
    pub async fn queued_classes(&self) -> Result<Vec<LabelClass>, StoreError> {
        read!(&self.inner.db, Kind, c => sqlx::query_as(QUEUED_CLASSES).fetch_all(c).await)
            .during("list queued classes")
    }

    /// Takes up to `limit` queued jobs of `classes`, to be offered until `offer_until`: from the
    /// org with the fewest live attempts by its weight first, within an org by priority (which
    /// rises with age), then in order of arrival. What another claim has locked is passed over.
    pub async fn claim(
        &self,
        classes: &[i64],
        limit: u32,
        owner: InstanceId,
        offer_until: Timestamp,
        now: Timestamp,
    ) -> Result<Vec<Claimed>, StoreError> {
        let limit = limit.min(CLAIM_MAX);
        if classes.is_empty() || limit == 0 {
            return Ok(Vec::new());
        }
        let mut taken = Vec::new();
        for classes in portions(classes) {
            let left = limit - u32::try_from(taken.len()).expect("it is at most CLAIM_MAX");
            if left == 0 {
                break;
            }
            taken.extend(again!(self.claim_once(classes, left, owner, offer_until, now))?);
        }
        let runs: BTreeSet<RunId> = taken.iter().map(|row| row.run_id).collect();
        self.announce(Change { runs: runs.into_iter().collect(), ..Change::default() });
        Ok(taken.into_iter().map(claimed).collect())
    }

    async fn claim_once(
        &self,
        classes: &[i64],
        limit: u32,
        owner: InstanceId,
        offer_until: Timestamp,
        now: Timestamp,
    ) -> Result<Vec<Taken>, StoreError> {
        let mut tx = self.inner.db.begin().await?;
        let taken = take(&mut tx, classes, limit, now).await?;
        if taken.is_empty() {
            return Ok(taken);
        }
        dequeue(&mut tx, &taken).await?;
        offer(&mut tx, &taken).await?;
        insert_attempts(&mut tx, &taken, owner, offer_until, now).await?;
        tx.commit().await?;
        Ok(taken)
    }
}

fn claimed(row: Taken) -> Claimed {
    Claimed {
        id: AttemptId { job: row.job_id, attempt: row.attempt },
        run: row.run_id,
        org: row.org,
        name: row.name,
        title: row.title,
        class: row.class,
        refused: row.refused,
        queued_at: row.queued_at,
    }
}

async fn take(
    tx: &mut Tx,
    classes: &[i64],
    limit: u32,
    now: Timestamp,
) -> Result<Vec<Taken>, StoreError> {
    let lock = tx.lock(Lock::Claimed);
    // What other claims have locked is passed over, so with PostgreSQL there must be more to choose from.
    let heads = i64::from(limit) * if tx.is_pg() { CLAIMS_AT_ONCE } else { 1 };
    on!(tx, Db, c => {
        // Within a class the older one goes first, so a claim looks only at the heads.
        let mut q = Statement::<Db>::new("with heads as (select q.seq, q.org, q.queued_at, \
            c.priority from label_class c join queue q on q.class = c.id where c.id");
        q.push_in(classes).push(" and q.seq <= coalesce((select h.seq from queue h where h.class = c.id \
            order by h.seq limit 1 offset ");
        q.push_bind(heads - 1).push("), ").push_bind(i64::MAX);
        q.push(")), ranked as (select seq as ranked_seq, \
            row_number() over (partition by org order by priority + (");
        q.push_bind(now.0).push(" - queued_at) / ").push_bind(LIFT_MS);
        q.push(" desc, seq) as nth from heads), \
            busy as (select org as busy_org, count(*) as n from attempt \
            where state in ('offered', 'starting', 'running') group by org) \
            select q.seq, q.job_id, q.run_id, q.org, j.name, j.title, q.class, j.attempt, \
            j.try_no, j.refused, q.queued_at from queue q \
            join ranked on ranked_seq = q.seq join job j on j.id = q.job_id \
            left join busy on busy_org = q.org left join org on org.name = q.org \
            where j.state = 'queued' \
            order by (coalesce(n, 0) + nth) * 1.0 / coalesce(org.weight, 1), nth, q.seq limit ");
        q.push_bind(i64::from(limit)).push(lock);
        q.done_as().fetch_all(c).await
    })
    .during("claim jobs")
}

async fn dequeue(tx: &mut Tx, taken: &[Taken]) -> Result<(), StoreError> {
    let ids: Vec<Uuid> = taken.iter().map(|row| row.job_id.uuid()).collect();
    on!(tx, Db, c => {
        let mut q = Statement::<Db>::new("delete from queue where job_id");
        q.push_in(&ids);
        q.done().execute(c).await.map(drop)
    })
    .during("take claimed jobs out of the queue")
}

async fn offer(tx: &mut Tx, taken: &[Taken]) -> Result<(), StoreError> {
    on!(tx, Db, c => {
        let mut q = Statement::<Db>::new(
            "update job set state = 'offered', queue_seq = v.column2 from");
        q.push_rows(taken, |taken| cells![taken.job_id, taken.seq]);
        q.push(" where job.id = v.column1");
        q.done().execute(c).await.map(drop)
    })
    .during("offer jobs")
}

async fn insert_attempts(
    tx: &mut Tx,
    taken: &[Taken],
    owner: InstanceId,
    offer_until: Timestamp,
    now: Timestamp,
) -> Result<(), StoreError> {
    for taken in portions(taken) {
        on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("insert into attempt (job_id, attempt, try_no, \
                org, \
                deadline, owner_instance, created_at, state, seq, log_bytes, owner_epoch) \
                select v.*, 'offered', 0, 0, 0 from");
            q.push_rows(taken, |taken| cells![taken.job_id, taken.attempt, taken.try_no, &taken.org, offer_until, owner, now]);
            q.push(" where v.column1 is not null");
            q.done().execute(c).await.map(drop)
        })
        .during("insert attempts")?;
    }
    Ok(())
}
