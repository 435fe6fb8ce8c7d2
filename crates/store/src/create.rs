//! Making the runs of an event, all in one transaction.

use std::collections::BTreeMap;

use serde_json::Value;
use shuntyard_core::{
    apply::Retry,
    gate::Ticket,
    limits::RUN_JOBS_MAX,
    mutant::{self, Mutant},
};
use shuntyard_protocol::{
    DeliveryId, EventId, JobId, RunId, SourceId, Timestamp,
    plan::{Concurrency, Need, RunsOn},
};

use crate::{
    Store,
    column::row,
    db::{Tx, again, clean, on},
    delivery,
    error::{During, StoreError},
    gate::{self, Gates},
    seed::{self, JobSeed, RunSeed},
    store::Change,
};

/// A normalised happening.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    pub id: EventId,
    pub org: String,
    pub source: SourceId,
    pub kind: String,
    /// Says which happening it is (kind, ref and commit, say): an event of the source with the same
    /// key is this one. Absent: it is new.
    pub event_key: Option<String>,
    pub ref_name: Option<String>,
    pub branch: Option<String>,
    pub commit: Option<String>,
    pub actor: Option<String>,
    pub title: Option<String>,
    /// All of it: `ctx.event`.
    pub body: Value,
}

/// One matched workflow.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRun {
    pub id: RunId,
    pub workflow: String,
    pub file: String,
    pub plan_key: Option<String>,
    pub env: BTreeMap<String, String>,
    /// From the run's start until it is cancelled, in milliseconds; absent: as long as it takes.
    pub timeout_ms: Option<u64>,
    /// The whole run waits for a slot.
    pub concurrency: Option<Concurrency>,
    /// At least one; their order is kept.
    pub jobs: Vec<NewJob>,
}

/// One job, after fan-out.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    pub id: JobId,
    /// Name in the plan; all children of a fan-out share it.
    pub name: String,
    pub title: String,
    pub matrix: Option<Value>,
    /// `protocol::plan::Job` as JSON.
    pub spec: Value,
    pub runs_on: RunsOn,
    pub priority: i32,
    pub retry: Retry,
    pub continue_on_error: bool,
    pub needs: Vec<Need>,
    /// It waits for a slot once it is ready.
    pub concurrency: Option<Concurrency>,
}

/// What came of [`Store::create_runs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// The event's id: another than asked for when it was known before.
    pub event: EventId,
    /// The runs in the order asked for; those that existed before under their old id.
    pub runs: Vec<RunId>,
    /// Runs that are new.
    pub fresh: u32,
}

row! {
    struct DeliveryState {
        state: String,
        event_id: Option<EventId>,
        created_at: Timestamp,
    }
}

pub(crate) const DELIVERY: &str = "select state, event_id, created_at from delivery where id = $1";
pub(crate) const INSERT_EVENT: &str = "insert into event (id, org, source_id, kind, event_key, \
    ref_name, branch, commit_sha, actor, title, body, created_at) \
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) on conflict do nothing";
pub(crate) const EVENT_BY_KEY: &str =
    "select id from event where source_id = $1 and event_key = $2";
pub(crate) const RUN_OF_EVENT: &str =
    "select id from run where event_id = $1 and workflow = $2 and rerun_of is null";
pub(crate) const LOCK_EVENT: &str = "update event set created_at = created_at where id = $1";
pub(crate) const QUEUE_DEPTH: &str = "select count(*) from (select 1 from queue where org = $1 union all \
    select 1 from gate_place p join gate g on g.id = p.gate_id \
    where not p.holding and g.org = $1 limit $2) as waiting";

impl Store {
    /// Stores an event and its runs, and ends the delivery that brought it with `outcome`, all or
    /// nothing. Called again for the same event key or the same delivery it creates nothing and
    /// finds what there is. Jobs without needs are queued.
    ///
    /// # Errors
    /// [`StoreError::QueueFull`] when the org has `queue_max` or more jobs in the queue, and runs and
    /// jobs waiting at gates;
    /// [`StoreError::Invalid`] when a run has no or too many jobs, or needs a job that it has not.
    pub async fn create_runs(
        &self,
        event: &NewEvent,
        runs: Vec<NewRun>,
        delivery: Option<(DeliveryId, &str)>,
        queue_max: u32,
        now: Timestamp,
    ) -> Result<Created, StoreError> {
        for run in &runs {
            check(run)?;
        }
        let created = again!(self.create_once(event, &runs, delivery, queue_max, now))?;
        if created.fresh > 0 {
            let gates = runs.iter().any(|run| groups(run).next().is_some());
            let runs = created.runs.clone();
            self.announce(Change { runs, queue_ready: true, gates, ..Change::default() });
        }
        Ok(created)
    }

    async fn create_once(
        &self,
        event: &NewEvent,
        runs: &[NewRun],
        delivery: Option<(DeliveryId, &str)>,
        queue_max: u32,
        now: Timestamp,
    ) -> Result<Created, StoreError> {
        let mut tx = self.inner.db.begin().await?;
        let known = match delivery {
            Some((id, _)) => delivery_state(&mut tx, id).await?,
            None => None,
        };
        let arrived_at = known.as_ref().map_or(now, |row| row.created_at);
        let ended = known.filter(|row| row.state != "pending").and_then(|row| row.event_id);
        let id = match ended {
            Some(known) => known,
            None => put_event(&mut tx, event, now).await?,
        };
        if ended.is_none() {
            check_depth(&mut tx, &event.org, queue_max, runs).await?;
        }
        let mut created = Created { event: id, runs: Vec::new(), fresh: 0 };
        let mut fresh = Vec::new();
        for run in runs {
            let known = existing_run(&mut tx, id, &run.workflow).await?;
            created.runs.push(known.unwrap_or(run.id));
            fresh.extend((known.is_none() && ended.is_none()).then_some(run));
        }
        let groups = fresh.iter().flat_map(|run| groups(run));
        let mut gates = gate::open(&mut tx, &event.org, event.source, groups, now).await?;
        for run in fresh {
            let seed = seed(event, id, run, &gates, arrived_at);
            seed::insert(&mut tx, seed, &mut gates.locked, now).await?;
            created.fresh += 1;
        }
        let apart = mutant::on(Mutant::EndDeliveryApart);
        if let (Some((delivery, outcome)), None, false) = (delivery, ended, apart) {
            delivery::finish(&mut tx, delivery, "done", outcome, Some(id), now).await?;
        }
        tx.commit().await?;
        Ok(created)
    }
}

fn check(run: &NewRun) -> Result<(), StoreError> {
    let invalid = |why: String| StoreError::Invalid {
        what: format!("a run of workflow '{}'", run.workflow),
        why,
    };
    if run.jobs.is_empty() || run.jobs.len() > RUN_JOBS_MAX {
        return Err(invalid(format!(
            "it has {} jobs, and a run has 1 to {RUN_JOBS_MAX}",
            run.jobs.len()
        )));
    }
    for job in &run.jobs {
        for need in &job.needs {
            if !run.jobs.iter().any(|other| other.name == need.job) {
                return Err(invalid(format!("job '{}' needs '{}'", job.name, need.job)));
            }
        }
    }
    Ok(())
}

/// The groups that a run and its jobs belong to.
fn groups(run: &NewRun) -> impl Iterator<Item = &Concurrency> {
    run.concurrency.iter().chain(run.jobs.iter().filter_map(|job| job.concurrency.as_ref()))
}

async fn delivery_state(tx: &mut Tx, id: DeliveryId) -> Result<Option<DeliveryState>, StoreError> {
    on!(tx, Db, c => {
        sqlx::query_as(DELIVERY).bind(id.uuid()).fetch_optional(c).await
    })
    .during("read a delivery's state")
}

/// Stores the event or finds it; either way its row is locked until the commit, so that two that
/// bring the same event follow one another.
async fn put_event(tx: &mut Tx, event: &NewEvent, now: Timestamp) -> Result<EventId, StoreError> {
    let during = "store an event";
    let [ref_name, branch, actor, title] =
        [&event.ref_name, &event.branch, &event.actor, &event.title]
            .map(|text| text.as_deref().map(clean));
    let rows = on!(tx, Db, c => sqlx::query(INSERT_EVENT)
        .bind(event.id.uuid()).bind(&event.org).bind(event.source.uuid()).bind(&event.kind)
        .bind(&event.event_key).bind(&ref_name).bind(&branch).bind(&event.commit).bind(&actor)
        .bind(&title).bind(event.body.to_string()).bind(now.0)
        .execute(c).await.map(|done| done.rows_affected()))
    .during(during)?;
    if rows == 1 {
        return Ok(event.id);
    }
    let id = match &event.event_key {
        None => event.id,
        Some(key) => {
            let id = on!(tx, Db, c => sqlx::query_scalar(EVENT_BY_KEY)
                .bind(event.source.uuid()).bind(key).fetch_one(c).await)
            .during(during)?;
            EventId::from_uuid(id)
        }
    };
    on!(tx, Db, c => sqlx::query(LOCK_EVENT).bind(id.uuid()).execute(c).await.map(drop))
        .during(during)?;
    Ok(id)
}

async fn check_depth(tx: &mut Tx, org: &str, max: u32, runs: &[NewRun]) -> Result<(), StoreError> {
    if runs.is_empty() {
        return Ok(());
    }
    let depth: i64 = on!(tx, Db, c => sqlx::query_scalar(QUEUE_DEPTH)
        .bind(org).bind(i64::from(max)).fetch_one(c).await)
    .during("measure the queue")?;
    if depth >= i64::from(max) {
        return Err(StoreError::QueueFull { org: org.to_owned(), max });
    }
    Ok(())
}

async fn existing_run(
    tx: &mut Tx,
    event: EventId,
    workflow: &str,
) -> Result<Option<RunId>, StoreError> {
    let id: Option<uuid::Uuid> = on!(tx, Db, c => sqlx::query_scalar(RUN_OF_EVENT)
        .bind(event.uuid()).bind(workflow).fetch_optional(c).await)
    .during("find a run")?;
    Ok(id.map(RunId::from_uuid))
}

pub(crate) fn seed(
    event: &NewEvent,
    id: EventId,
    run: &NewRun,
    gates: &Gates,
    arrived_at: Timestamp,
) -> RunSeed {
    let ticket = |group: &Option<Concurrency>| group.as_ref().and_then(|g| gates.ticket(g));
    RunSeed {
        id: run.id,
        org: event.org.clone(),
        source_id: event.source,
        event_id: id,
        workflow: run.workflow.clone(),
        file: run.file.clone(),
        plan_key: run.plan_key.clone(),
        ref_name: event.ref_name.as_deref().map(clean),
        branch: event.branch.as_deref().map(clean),
        commit_sha: event.commit.clone(),
        title: event.title.as_deref().map(clean),
        env: serde_json::to_string(&run.env).expect("texts are JSON"),
        timeout_ms: run.timeout_ms,
        rerun_of: None,
        ticket: ticket(&run.concurrency),
        arrived_at,
        jobs: run.jobs.iter().map(|job| job_seed(job, ticket(&job.concurrency))).collect(),
    }
}

fn job_seed(job: &NewJob, ticket: Option<Ticket>) -> JobSeed {
    JobSeed {
        id: job.id,
        name: job.name.clone(),
        title: job.title.clone(),
        matrix: job.matrix.as_ref().map(Value::to_string),
        spec: job.spec.to_string(),
        class_key: serde_json::to_string(&job.runs_on).expect("texts are JSON"),
        priority: job.priority,
        retry: job.retry,
        continue_on_error: job.continue_on_error,
        needs: job
            .needs
            .iter()
            .map(|need| (need.job.clone(), need.when.iter().copied().collect()))
            .collect(),
        ticket,
        carried: None,
    }
}
