//! Locking and loading what a batch touches.
//!
//! Gates that jobs may come to are locked first, then runs, jobs and attempts, each in id order; so two batches that share a run
//! follow one another, and whoever comes second reads what the first one wrote. With SQLite the
//! transaction has the write lock already.
//!
//! Rows with several key columns are found by a join with the list of keys: SQLite searches the
//! index for each of them then, but reads the whole table for `(a, b) in (values …)`.

use std::collections::{BTreeMap, BTreeSet};

use shuntyard_core::{
    apply::{Fact, GroupKey, Loaded, Subject},
    gate::{GateId, Place},
};
use shuntyard_protocol::{
    JobId, RunId,
    agent::{AttemptFact, AttemptId},
};
use uuid::Uuid;

use super::{
    ROWS_MAX, portions,
    rows::{AttemptRow, EdgeRow, GroupRow, JobRow, RunRow, SELECT_JOBS, SELECT_RUNS, StepRow},
};
use crate::{
    column::row,
    db::{Lock, Statement, Tx, cells, on},
    error::{During, StoreError},
    gate,
};

/// What the batch needs of the database.
#[derive(Default)]
pub(crate) struct Scope {
    pub(crate) jobs: BTreeSet<JobId>,
    /// Runs of which all open jobs are needed.
    pub(crate) whole_runs: BTreeSet<RunId>,
    pub(crate) attempts: BTreeSet<AttemptId>,
    pub(crate) steps: BTreeSet<(AttemptId, u32)>,
    /// A job may end, so that its neighbours matter.
    pub(crate) may_end: bool,
    /// Blocked jobs may become ready, so that their gates matter.
    pub(crate) may_ready: bool,
}

impl Scope {
    pub(crate) fn of(facts: &[Fact]) -> Self {
        let mut scope = Self::default();
        for fact in facts {
            match fact.subject() {
                Subject::Attempt(id) => {
                    scope.jobs.insert(id.job);
                    scope.attempts.insert(id);
                }
                Subject::Job(job) => {
                    scope.jobs.insert(job);
                }
                Subject::Run(run) => {
                    scope.whole_runs.insert(run);
                }
            }
            scope.note(fact);
        }
        scope
    }

    fn note(&mut self, fact: &Fact) {
        match fact {
            Fact::Attempt { id, fact: AttemptFact::StepStarted { step, .. }, .. } => {
                self.steps.insert((*id, *step));
            }
            Fact::Attempt { id, fact: AttemptFact::StepEnded(end), .. } => {
                self.steps.insert((*id, end.step));
            }
            Fact::Attempt { fact: AttemptFact::Ended(_), .. }
            | Fact::Abandoned { .. }
            | Fact::CancelJob { .. }
            | Fact::CancelRun { .. }
            | Fact::Lost { .. }
            | Fact::QueueExpired { .. }
            | Fact::WaitExpired { .. } => {
                self.may_end = true;
                self.may_ready = true;
            }
            Fact::Admitted { place: Place::Run(_) } => self.may_ready = true,
            Fact::Reserved { .. }
            | Fact::Refused { .. }
            | Fact::OfferExpired { .. }
            | Fact::StartExpired { .. }
            | Fact::Begin { .. }
            | Fact::Renewed { .. }
            | Fact::Admitted { place: Place::Job(_) }
            | Fact::Overdue { .. } => {}
        }
    }
}

// Conditions, before and after the ids that they take.
const BY_ID: (&str, &str) = ("id", "");
/// A job's run never changes.
const RUNS_OF_JOBS: (&str, &str) = ("id in (select run_id from job where id", ")");
const OPEN_OF_RUNS: (&str, &str) = (
    "run_id",
    " and state in ('blocked', 'held', 'queued', 'offered', 'starting', 'running', 'recovering')",
);

/// Loads and locks everything in `scope`; `logged` are attempts whose logs grow. Also returns how
/// many log bytes each loaded attempt has.
pub(crate) async fn load(
    tx: &mut Tx,
    scope: &Scope,
    logged: &BTreeSet<AttemptId>,
) -> Result<(Loaded, BTreeMap<AttemptId, u64>), StoreError> {
    let mut loaded = Loaded::default();
    let jobs = scope.jobs.iter().map(|job| job.uuid());
    // The order of the locks is that of the runs' ids only within one portion of jobs.
    if scope.may_ready || !scope.whole_runs.is_empty() || scope.jobs.len() > ROWS_MAX {
        lock_gates_and_runs(tx, scope, &mut loaded).await?;
    } else {
        lock_runs(tx, RUNS_OF_JOBS, jobs.clone(), &mut loaded).await?;
    }
    lock_jobs(tx, BY_ID, jobs, &mut loaded).await?;
    let whole_runs = scope.whole_runs.iter().map(|run| run.uuid());
    lock_jobs(tx, OPEN_OF_RUNS, whole_runs, &mut loaded).await?;
    let mut attempts: BTreeSet<AttemptId> = scope.attempts.union(logged).copied().collect();
    attempts.extend(loaded.jobs.iter().map(|(&job, row)| AttemptId { job, attempt: row.attempt }));
    let log_bytes = lock_attempts(tx, &attempts, &mut loaded).await?;
    load_steps(tx, &scope.steps, &mut loaded).await?;
    if scope.may_end {
        let groups = loaded.jobs.values().map(shuntyard_core::apply::Job::group_key).collect();
        load_edges(tx, &groups, &mut loaded).await?;
        load_ends_of_edges(tx, &mut loaded).await?;
    }
    Ok((loaded, log_bytes))
}

async fn lock_gates_and_runs(
    tx: &mut Tx,
    scope: &Scope,
    loaded: &mut Loaded,
) -> Result<(), StoreError> {
    let mut runs = scope.whole_runs.clone();
    let mut gated = scope.whole_runs.clone();
    for row in runs_of(tx, &scope.jobs).await? {
        runs.insert(row.id);
        gated.extend(row.gated.then_some(row.id));
    }
    if scope.may_ready && !gated.is_empty() {
        let ahead = gates_ahead(tx, &gated).await?;
        loaded.gates = gate::lock(tx, &ahead).await?;
    }
    lock_runs(tx, BY_ID, runs.iter().map(|run| run.uuid()), loaded).await
}

/// Loads everything behind `groups`, however far: a cascade of skips runs through it.
pub(crate) async fn load_behind(
    tx: &mut Tx,
    groups: &[GroupKey],
    loaded: &mut Loaded,
) -> Result<(), StoreError> {
    let rows: Vec<EdgeRow> = on!(tx, Db, c => {
        let mut q = Statement::<Db>::new("with recursive behind (run_id, name) as (select v.* from");
        q.push_rows(groups, |(run, name)| cells![*run, name]);
        q.push(" union select j.run_id, j.name from behind b \
            join edge e on e.run_id = b.run_id and e.upstream = b.name \
            join job j on j.id = e.job_id) \
            select e.run_id, e.upstream, e.job_id, e.accepts from behind b \
            join edge e on e.run_id = b.run_id and e.upstream = b.name");
        q.done_as().fetch_all(c).await
    })
    .during("load the graph behind a job")?;
    for group in groups {
        loaded.edges.entry(group.clone()).or_default();
    }
    let reached: BTreeSet<JobId> = rows.iter().map(|row| row.job_id).collect();
    put_edges(rows, loaded);
    load_ends_of_edges(tx, loaded).await?;
    // The last groups of the cascade have no edges, and that is known now.
    for job in reached.iter().filter_map(|job| loaded.jobs.get(job)) {
        loaded.edges.entry(job.group_key()).or_default();
    }
    Ok(())
}

row! {
    struct RunOf {
        id: RunId,
        gated: bool,
    }
}

async fn runs_of(tx: &mut Tx, jobs: &BTreeSet<JobId>) -> Result<Vec<RunOf>, StoreError> {
    let ids: Vec<Uuid> = jobs.iter().map(|job| job.uuid()).collect();
    let mut runs = Vec::new();
    for ids in portions(&ids) {
        let found: Vec<RunOf> = on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("select distinct r.id, r.gated from job j \
                join run r on r.id = j.run_id where j.id");
            q.push_in(ids);
            q.done_as().fetch_all(c).await
        })
        .during("find the runs of jobs")?;
        runs.extend(found);
    }
    Ok(runs)
}

/// The gates that blocked jobs of `runs` come to when they become ready. A job's gate never changes.
async fn gates_ahead(tx: &mut Tx, runs: &BTreeSet<RunId>) -> Result<BTreeSet<GateId>, StoreError> {
    let ids: Vec<Uuid> = runs.iter().map(|run| run.uuid()).collect();
    let mut gates = BTreeSet::new();
    for ids in portions(&ids) {
        let found: Vec<(GateId,)> = on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("select distinct gate_id from job \
                where gate_id is not null and state = 'blocked' and run_id");
            q.push_in(ids);
            q.done_as().fetch_all(c).await
        })
        .during("find the gates of jobs")?;
        gates.extend(found.into_iter().map(|(gate,)| gate));
    }
    Ok(gates)
}

/// Runs whose ids stand between `before` and `after` in the condition, in the order of their ids.
async fn lock_runs(
    tx: &mut Tx,
    (before, after): (&str, &str),
    ids: impl Iterator<Item = Uuid>,
    loaded: &mut Loaded,
) -> Result<(), StoreError> {
    let lock = tx.lock(Lock::Runs);
    for ids in portions(&ids.collect::<Vec<_>>()) {
        let rows: Vec<RunRow> = on!(tx, Db, c => {
            let mut q = Statement::<Db>::new(SELECT_RUNS);
            q.push(before).push_in(ids).push(after).push(" order by id").push(lock);
            q.done_as().fetch_all(c).await
        })
        .during("lock runs")?;
        loaded.runs.extend(rows.into_iter().map(|row| (row.id, row.model())));
    }
    Ok(())
}

/// The same for jobs.
async fn lock_jobs(
    tx: &mut Tx,
    (before, after): (&str, &str),
    ids: impl Iterator<Item = Uuid>,
    loaded: &mut Loaded,
) -> Result<(), StoreError> {
    let lock = tx.lock(Lock::Jobs);
    for ids in portions(&ids.collect::<Vec<_>>()) {
        let rows: Vec<JobRow> = on!(tx, Db, c => {
            let mut q = Statement::<Db>::new(SELECT_JOBS);
            q.push(before).push_in(ids).push(after).push(" order by id").push(lock);
            q.done_as().fetch_all(c).await
        })
        .during("lock jobs")?;
        loaded.jobs.extend(rows.into_iter().map(|row| (row.id, row.model())));
    }
    Ok(())
}

async fn lock_attempts(
    tx: &mut Tx,
    attempts: &BTreeSet<AttemptId>,
    loaded: &mut Loaded,
) -> Result<BTreeMap<AttemptId, u64>, StoreError> {
    let ids: Vec<AttemptId> = attempts.iter().copied().collect();
    let lock = tx.lock(Lock::Attempts);
    let mut log_bytes = BTreeMap::new();
    for ids in portions(&ids) {
        let rows: Vec<AttemptRow> = on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("select t.* from");
            q.push_rows(ids, |id| cells![id.job, id.attempt]);
            q.push(" cross join attempt t where t.job_id = v.column1 \
                and t.attempt = v.column2 order by t.job_id, t.attempt").push(lock);
            q.done_as().fetch_all(c).await
        })
        .during("lock attempts")?;
        for row in rows {
            let id = AttemptId { job: row.job_id, attempt: row.attempt };
            log_bytes.insert(id, row.log_bytes);
            loaded.attempts.insert(id, row.model());
        }
    }
    Ok(log_bytes)
}

async fn load_steps(
    tx: &mut Tx,
    steps: &BTreeSet<(AttemptId, u32)>,
    loaded: &mut Loaded,
) -> Result<(), StoreError> {
    let ids: Vec<_> = steps.iter().copied().collect();
    for ids in portions(&ids) {
        let rows: Vec<StepRow> = on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("select t.* from");
            q.push_rows(ids, |(id, step)| cells![id.job, id.attempt, *step]);
            q.push(" cross join step t where t.job_id = v.column1 \
                and t.attempt = v.column2 and t.idx = v.column3");
            q.done_as().fetch_all(c).await
        })
        .during("load steps")?;
        for row in rows {
            let id = AttemptId { job: row.job_id, attempt: row.attempt };
            loaded.steps.insert((id, row.idx), row.model());
        }
    }
    Ok(())
}

async fn load_edges(
    tx: &mut Tx,
    groups: &BTreeSet<GroupKey>,
    loaded: &mut Loaded,
) -> Result<(), StoreError> {
    let keys: Vec<_> = groups.iter().collect();
    for keys in portions(&keys) {
        let rows: Vec<EdgeRow> = on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("select t.* from");
            q.push_rows(keys, |(run, name)| cells![*run, name]);
            q.push(" cross join edge t where t.run_id = v.column1 \
                and t.upstream = v.column2");
            q.done_as().fetch_all(c).await
        })
        .during("load edges")?;
        put_edges(rows, loaded);
    }
    for &key in &keys {
        loaded.edges.entry(key.clone()).or_default();
    }
    Ok(())
}

fn put_edges(rows: Vec<EdgeRow>, loaded: &mut Loaded) {
    // A group may have been loaded before; its edges are the same then.
    let mut fresh: BTreeMap<GroupKey, Vec<_>> = BTreeMap::new();
    for row in rows {
        fresh.entry((row.run_id, row.upstream.clone())).or_default().push(row.model());
    }
    for (key, mut edges) in fresh {
        edges.sort_by_key(|edge| edge.to);
        loaded.edges.insert(key, edges);
    }
}

/// Loads the jobs that loaded edges lead to, and the groups of all loaded jobs.
async fn load_ends_of_edges(tx: &mut Tx, loaded: &mut Loaded) -> Result<(), StoreError> {
    let jobs: BTreeSet<JobId> = loaded
        .edges
        .values()
        .flatten()
        .map(|edge| edge.to)
        .filter(|job| !loaded.jobs.contains_key(job))
        .collect();
    lock_jobs(tx, BY_ID, jobs.iter().map(|job| job.uuid()), loaded).await?;
    let keys: BTreeSet<GroupKey> = loaded
        .jobs
        .values()
        .map(shuntyard_core::apply::Job::group_key)
        .filter(|key| !loaded.groups.contains_key(key))
        .collect();
    let keys: Vec<_> = keys.into_iter().collect();
    for keys in portions(&keys) {
        let rows: Vec<GroupRow> = on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("select t.* from");
            q.push_rows(keys, |(run, name)| cells![*run, name]);
            q.push(" cross join job_group t where t.run_id = v.column1 \
                and t.name = v.column2");
            q.done_as().fetch_all(c).await
        })
        .during("load groups")?;
        loaded.groups.extend(rows.into_iter().map(|row| {
            let group = row.model();
            ((row.run_id, row.name), group)
        }));
    }
    Ok(())
}
