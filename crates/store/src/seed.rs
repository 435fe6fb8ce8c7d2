//! The rows of a new run: its jobs, groups, edges, and what of it can start at once.

use std::collections::{BTreeMap, BTreeSet};

use shuntyard_core::{
    apply::{Counts, Retry},
    gate::{Gate, GateId, Ticket},
    state::{JobState, OutcomeSet, RunState},
};
use shuntyard_protocol::{EventId, JobId, Outcome, RunId, SourceId, Timestamp};

use crate::{
    apply::{portions, save_gates, save_queue},
    db::{Statement, Tx, cells, on},
    error::{During, StoreError},
};

pub(crate) struct RunSeed {
    pub(crate) id: RunId,
    pub(crate) org: String,
    pub(crate) source_id: SourceId,
    pub(crate) event_id: EventId,
    pub(crate) workflow: String,
    pub(crate) file: String,
    pub(crate) plan_key: Option<String>,
    pub(crate) ref_name: Option<String>,
    pub(crate) branch: Option<String>,
    pub(crate) commit_sha: Option<String>,
    pub(crate) title: Option<String>,
    pub(crate) env: String,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) rerun_of: Option<RunId>,
    pub(crate) ticket: Option<Ticket>,
    /// Its turn at gates.
    pub(crate) arrived_at: Timestamp,
    pub(crate) jobs: Vec<JobSeed>,
}

pub(crate) struct JobSeed {
    pub(crate) id: JobId,
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) matrix: Option<String>,
    pub(crate) spec: String,
    /// `runs_on` as JSON: jobs that ask for the same are of one class.
    pub(crate) class_key: String,
    pub(crate) priority: i32,
    pub(crate) retry: Retry,
    pub(crate) continue_on_error: bool,
    pub(crate) needs: Vec<(String, OutcomeSet)>,
    pub(crate) ticket: Option<Ticket>,
    /// It is not run again: the outcome of an earlier run's job is taken over.
    pub(crate) carried: Option<(JobId, Outcome)>,
}

/// Where a new job stands.
struct Start {
    state: JobState,
    waiting_for: u32,
    /// Why it was skipped.
    reason: Option<String>,
    /// Its place at its gate: with a slot or without.
    place: Option<bool>,
}

pub(crate) const NUMBER: &str = "insert into run_counter (source_id, workflow, last) \
    values ($1, $2, 1) on conflict (source_id, workflow) do update set \
    last = run_counter.last + 1 returning last";
pub(crate) const INSERT_RUN: &str = "insert into run (id, org, source_id, event_id, workflow, \
    file, number, plan_key, ref_name, branch, commit_sha, title, env, rerun_of, revision, state, \
    n_waiting, n_running, n_success, n_failed, n_timed_out, n_cancelled, n_skipped, n_lost, \
    n_tolerated, created_at, timeout_ms, gate_id, gate_cancels, held, gated, arrived_at) \
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, 1, $15, $16, 0, $17, 0, 0, 0, $18, 0, 0, $19, $20, $21, $22, $23, $24, $25)";
pub(crate) const PUT_CLASS: &str =
    "insert into label_class (org, priority, key) values ($1, $2, $3) on conflict do nothing";
pub(crate) const CLASS: &str =
    "select id from label_class where org = $1 and priority = $2 and key = $3";

pub(crate) const INSERT_PLACE: &str = "insert into gate_place (gate_id, run_id, holding, cancels, \
    arrived_at, created_at) values ($1, $2, $3, $4, $5, $6)";

/// Inserts a run with everything that belongs to it. `gates` are those of its tickets, locked.
pub(crate) async fn insert(
    tx: &mut Tx,
    run: RunSeed,
    gates: &mut BTreeMap<GateId, Gate>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let held = run.ticket.is_some_and(|ticket| !enter(gates, ticket));
    let mut starts = starts(&run.jobs);
    pass_gates(&mut starts, &run.jobs, held, gates);
    let open = open_by_group(&run.jobs, &starts);
    insert_run(tx, &run, held, &starts, now).await?;
    insert_jobs(tx, &run, &starts, now).await?;
    insert_groups(tx, &run, &open).await?;
    insert_edges(tx, &run).await?;
    insert_places(tx, &run, held, &starts, now).await?;
    let ready: BTreeMap<JobId, u32> = run
        .jobs
        .iter()
        .zip(&starts)
        .filter(|(_, start)| start.state == JobState::Queued)
        .map(|(job, _)| (job.id, 0))
        .collect();
    save_queue::enqueue(tx, &ready, now).await?;
    save_queue::announce(tx, &BTreeSet::from([run.id]), now).await
}

/// Whether anything of a run would have to run.
pub(crate) fn is_open(jobs: &[JobSeed]) -> bool {
    starts(jobs).iter().any(|start| !start.state.is_ended())
}

/// True: it holds a slot now.
fn enter(gates: &mut BTreeMap<GateId, Gate>, ticket: Ticket) -> bool {
    gates.get_mut(&ticket.gate).is_some_and(Gate::enter)
}

async fn insert_places(
    tx: &mut Tx,
    run: &RunSeed,
    held: bool,
    starts: &[Start],
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut wakes = BTreeSet::new();
    if let Some(ticket) = run.ticket {
        on!(tx, Db, c => sqlx::query(INSERT_PLACE)
            .bind(ticket.gate).bind(run.id.uuid()).bind(!held).bind(ticket.cancels)
            .bind(run.arrived_at.0).bind(now.0).execute(c).await.map(drop))
        .during("take a run's place at its gate")?;
        wakes.extend(ticket.cancels.then_some(ticket.gate));
    }
    let mut entered = BTreeMap::new();
    for (job, start) in run.jobs.iter().zip(starts) {
        if let (Some(ticket), Some(holds)) = (job.ticket, start.place) {
            entered.insert(job.id, holds);
            wakes.extend(ticket.cancels.then_some(ticket.gate));
        }
    }
    save_gates::enter(tx, &entered, now).await?;
    save_gates::wake(tx, &wakes, now).await
}

/// Jobs of each group that have to run.
fn open_by_group<'a>(jobs: &'a [JobSeed], starts: &[Start]) -> BTreeMap<&'a str, u32> {
    let mut open = BTreeMap::new();
    for (job, start) in jobs.iter().zip(starts) {
        *open.entry(job.name.as_str()).or_insert(0) += u32::from(!start.state.is_ended());
    }
    open
}

/// Where each job stands. A group that was taken over whole has ended: it lets go or skips those
/// behind it now, because they may have been cancelled before they learned of it.
fn starts(jobs: &[JobSeed]) -> Vec<Start> {
    let mut starts: Vec<Start> = jobs.iter().map(carried).collect();
    loop {
        let ended = ended_groups(jobs, &starts);
        let mut skipped = false;
        for (job, start) in jobs.iter().zip(&mut starts) {
            let closed = |(name, when): &&(String, OutcomeSet)| {
                ended.get(name.as_str()).is_some_and(|outcome| !when.contains(*outcome))
            };
            if !start.state.is_ended()
                && let Some((name, _)) = job.needs.iter().find(closed)
            {
                start.state = JobState::Ended(Outcome::Skipped);
                start.reason = Some(format!("'{name}' ended as {}", ended[name.as_str()]));
                skipped = true;
            }
        }
        if skipped {
            continue;
        }
        for (job, start) in jobs.iter().zip(&mut starts) {
            wait(start, job, &ended);
        }
        return starts;
    }
}

fn carried(job: &JobSeed) -> Start {
    let state = job.carried.map_or(JobState::Blocked, |(_, outcome)| JobState::Ended(outcome));
    Start { state, waiting_for: 0, reason: None, place: None }
}

/// Groups without a job that has to run. What is taken over has succeeded or was skipped.
fn ended_groups<'a>(jobs: &'a [JobSeed], starts: &[Start]) -> BTreeMap<&'a str, Outcome> {
    let open = open_by_group(jobs, starts);
    let mut ended: BTreeMap<&str, Outcome> = open
        .into_iter()
        .filter(|(_, open)| *open == 0)
        .map(|(name, _)| (name, Outcome::Skipped))
        .collect();
    for (job, start) in jobs.iter().zip(starts) {
        if let (JobState::Ended(Outcome::Success), Some(outcome)) =
            (start.state, ended.get_mut(job.name.as_str()))
        {
            *outcome = Outcome::Success;
        }
    }
    ended
}

fn wait(start: &mut Start, job: &JobSeed, ended: &BTreeMap<&str, Outcome>) {
    if start.state.is_ended() {
        return;
    }
    let waiting = job.needs.iter().filter(|(name, _)| !ended.contains_key(name.as_str())).count();
    start.waiting_for = u32::try_from(waiting).expect("a run has few thousand jobs");
    if waiting == 0 {
        start.state = JobState::Queued;
    }
}

/// Brings jobs that are ready to their gates; a run that waits at its own holds all of them.
fn pass_gates(
    starts: &mut [Start],
    jobs: &[JobSeed],
    held: bool,
    gates: &mut BTreeMap<GateId, Gate>,
) {
    for (start, job) in starts.iter_mut().zip(jobs).filter(|(start, _)| !start.state.is_ended()) {
        if held {
            start.state = JobState::Blocked;
            start.waiting_for += 1;
        } else if let (JobState::Queued, Some(ticket)) = (start.state, job.ticket) {
            let holds = enter(gates, ticket);
            start.state = if holds { JobState::Queued } else { JobState::Held };
            start.place = Some(holds);
        }
    }
}

async fn insert_run(
    tx: &mut Tx,
    run: &RunSeed,
    held: bool,
    starts: &[Start],
    now: Timestamp,
) -> Result<(), StoreError> {
    let gated = run.jobs.iter().any(|job| job.ticket.is_some());
    let mut counts = Counts::default();
    for start in starts {
        *counts.slot(start.state, false) += 1;
    }
    let number: i64 = on!(tx, Db, c => sqlx::query_scalar(NUMBER)
        .bind(run.source_id.uuid()).bind(&run.workflow).fetch_one(c).await)
    .during("number a run")?;
    on!(tx, Db, c => sqlx::query(INSERT_RUN)
        .bind(run.id.uuid()).bind(&run.org).bind(run.source_id.uuid()).bind(run.event_id.uuid())
        .bind(&run.workflow).bind(&run.file).bind(number).bind(&run.plan_key).bind(&run.ref_name)
        .bind(&run.branch).bind(&run.commit_sha).bind(&run.title).bind(&run.env)
        .bind(run.rerun_of.map(RunId::uuid)).bind(RunState::Pending.as_str())
        .bind(i64::from(counts.waiting)).bind(i64::from(counts.success))
        .bind(i64::from(counts.skipped)).bind(now.0).bind(run.timeout_ms.map(millis))
        .bind(run.ticket.map(|ticket| ticket.gate))
        .bind(run.ticket.is_some_and(|ticket| ticket.cancels))
        .bind(held).bind(gated).bind(run.arrived_at.0)
        .execute(c).await.map(drop))
    .during("insert a run")
}

fn millis(millis: u64) -> i64 {
    i64::try_from(millis).unwrap_or(i64::MAX)
}

async fn insert_jobs(
    tx: &mut Tx,
    run: &RunSeed,
    starts: &[Start],
    now: Timestamp,
) -> Result<(), StoreError> {
    let classes = classes(tx, &run.org, &run.jobs).await?;
    let rows: Vec<_> = run.jobs.iter().zip(starts).zip(0_i64..).collect();
    for rows in portions(&rows) {
        on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("insert into job (id, run_id, org, position, \
                name, title, matrix, spec, class, priority, retry_max, retry_on, \
                continue_on_error, state, waiting_for, carried_from, created_at, queued_at, \
                ended_at, reason, gate_id, gate_cancels, attempt, try_no, abandoned, refused) \
                select v.*, 1, 1, 0, '[]' from");
            q.push_rows(rows, |((job, start), position)| {
                let queued = (start.state == JobState::Queued).then_some(now);
                cells![job.id, run.id, &run.org, *position, &job.name, &job.title, job.matrix.as_deref(), &job.spec, classes[&(job.priority, job.class_key.clone())], job.priority, job.retry.max_tries, job.retry.on, job.continue_on_error, start.state.as_str(), start.waiting_for, job.carried.map(|(from, _)| from), now, queued, start.state.is_ended().then_some(now), start.reason.as_deref(), job.ticket.map(|ticket| ticket.gate), job.ticket.is_some_and(|ticket| ticket.cancels)]});
            q.push(" where v.column1 is not null");
            q.done().execute(c).await.map(drop)
        })
        .during("insert jobs")?;
    }
    Ok(())
}

/// The label classes of jobs of one org, by priority and key.
async fn classes(
    tx: &mut Tx,
    org: &str,
    jobs: &[JobSeed],
) -> Result<BTreeMap<(i32, String), i64>, StoreError> {
    let during = "find a label class";
    let keys: BTreeSet<_> = jobs.iter().map(|job| (job.priority, job.class_key.clone())).collect();
    let mut classes = BTreeMap::new();
    for key in keys {
        let (priority, labels) = (i64::from(key.0), &key.1);
        // Asking first keeps the sequence from growing with every run.
        let mut id: Option<i64> = on!(tx, Db, c => {
            sqlx::query_scalar(CLASS).bind(org).bind(priority).bind(labels).fetch_optional(c).await
        })
        .during(during)?;
        if id.is_none() {
            on!(tx, Db, c => sqlx::query(PUT_CLASS)
                .bind(org).bind(priority).bind(labels).execute(c).await.map(drop))
            .during(during)?;
            id = on!(tx, Db, c => sqlx::query_scalar(CLASS)
                .bind(org).bind(priority).bind(labels).fetch_optional(c).await)
            .during(during)?;
        }
        let id = id.ok_or_else(|| StoreError::Corrupt {
            what: "label class",
            why: "it is gone right after it was made".to_owned(),
        })?;
        classes.insert(key, id);
    }
    Ok(classes)
}

async fn insert_groups(
    tx: &mut Tx,
    run: &RunSeed,
    open: &BTreeMap<&str, u32>,
) -> Result<(), StoreError> {
    let rows: Vec<_> = open.iter().collect();
    for rows in portions(&rows) {
        on!(tx, Db, c => {
            let mut q = Statement::<Db>::new(
                "insert into job_group (run_id, name, open_jobs, outcome) select v.* from");
            q.push_rows(rows, |(name, open)| {
                let carried = run.jobs.iter().filter(|job| job.name == **name);
                let success = carried
                    .filter_map(|job| job.carried)
                    .any(|(_, outcome)| outcome == Outcome::Success);
                // `skipped` is what every other outcome is worse than.
                let outcome = if success { Outcome::Success } else { Outcome::Skipped };
                cells![run.id, **name, **open, outcome.as_str()]});
            q.push(" where v.column1 is not null");
            q.done().execute(c).await.map(drop)
        })
        .during("insert groups")?;
    }
    Ok(())
}

async fn insert_edges(tx: &mut Tx, run: &RunSeed) -> Result<(), StoreError> {
    let rows: Vec<_> = run
        .jobs
        .iter()
        .flat_map(|job| job.needs.iter().map(move |(name, when)| (name, job.id, when)))
        .collect();
    for rows in portions(&rows) {
        on!(tx, Db, c => {
            let mut q = Statement::<Db>::new(
                "insert into edge (run_id, upstream, job_id, accepts) select v.* from");
            q.push_rows(rows, |(name, job, when)| cells![run.id, *name, *job, **when]);
            q.push(" where v.column1 is not null");
            q.done().execute(c).await.map(drop)
        })
        .during("insert edges")?;
    }
    Ok(())
}
