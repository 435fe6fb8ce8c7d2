//! Running a run again.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use shuntyard_core::{
    apply::Retry,
    state::{JobState, OutcomeSet},
};
use shuntyard_protocol::{JobId, Outcome, RunId, Timestamp};

use crate::{
    Store,
    apply::rows,
    column::row,
    db::{Tx, again, on},
    error::{During, StoreError},
    gate,
    run::{self, EdgeInfo, RunInfo},
    seed::{self, JobSeed, RunSeed},
    store::Change,
};

/// What came of [`Store::rerun`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rerun {
    pub run: RunId,
    /// Jobs that run again …
    pub again: u32,
    /// … and those whose result was taken over.
    pub carried: u32,
}

row! {
    struct OldJob {
        id: JobId,
        name: String,
        title: String,
        matrix: Option<String>,
        spec: String,
        class_key: String,
        priority: i32,
        retry_max: u32,
        retry_on: OutcomeSet,
        continue_on_error: bool,
        gate_id: Option<i64>,
        gate_cancels: bool,
        state: JobState,
        carried_from: Option<JobId>,
    }
}

pub(crate) const OLD_JOBS: &str = "select j.*, l.key as class_key from job j \
    join label_class l on l.id = j.class where j.run_id = $1 order by j.position";

impl Store {
    /// Makes a new run of the same event and plan. With `only_failed`, jobs that succeeded or were
    /// skipped, and behind which nothing runs again, are taken over with their outputs. The same
    /// `new_id` again changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when the run is unknown, has not ended, or nothing of it failed.
    pub async fn rerun(
        &self,
        old: RunId,
        only_failed: bool,
        new_id: RunId,
        mut mint: impl FnMut() -> JobId + Send,
        now: Timestamp,
    ) -> Result<Rerun, StoreError> {
        let (rerun, fresh) = again!(self.rerun_once(old, only_failed, new_id, &mut mint, now))?;
        if fresh {
            self.announce(Change {
                runs: vec![new_id],
                queue_ready: true,
                gates: true,
                ..Change::default()
            });
        }
        Ok(rerun)
    }

    /// Also tells whether it was made just now.
    async fn rerun_once(
        &self,
        old: RunId,
        only_failed: bool,
        new_id: RunId,
        mint: &mut (impl FnMut() -> JobId + Send),
        now: Timestamp,
    ) -> Result<(Rerun, bool), StoreError> {
        let invalid = |why: &str| StoreError::Invalid {
            what: format!("a rerun of {old}"),
            why: why.to_owned(),
        };
        let during = "read a run to run it again";
        let mut tx = self.inner.db.begin().await?;
        if let Some(done) = find_rerun(&mut tx, new_id).await? {
            return Ok((done, false));
        }
        let run: Option<RunInfo> = on!(&mut tx, Db, c => {
            sqlx::query_as(run::RUN).bind(old.uuid()).fetch_optional(c).await
        })
        .during(during)?;
        let run = run.ok_or_else(|| invalid("there is no such run"))?;
        if !run.state.is_ended() {
            return Err(invalid("it has not ended; cancel it first"));
        }
        let jobs = old_jobs(&mut tx, old).await?;
        let edges: Vec<EdgeInfo> = on!(&mut tx, Db, c => {
            sqlx::query_as(run::EDGES).bind(old.uuid()).fetch_all(c).await
        })
        .during(during)?;
        let keep = if only_failed { kept(&jobs, &edges) } else { BTreeSet::new() };
        if keep.len() == jobs.len() {
            return Err(invalid("nothing of it failed"));
        }
        let count = |n: usize| u32::try_from(n).expect("a run has few thousand jobs");
        let carried = count(keep.len());
        let again = count(jobs.len()) - carried;
        let jobs: Vec<JobSeed> =
            jobs.into_iter().map(|job| job_seed(job, &edges, &keep, mint)).collect();
        if !seed::is_open(&jobs) {
            return Err(invalid("nothing of it would run again"));
        }
        let of_jobs = jobs.iter().filter_map(|job| job.ticket);
        let gates = of_jobs.map(|ticket| ticket.gate).chain(run.gate_id).collect();
        let mut gates = gate::lock(&mut tx, &gates).await?;
        seed::insert(&mut tx, run_seed(run, new_id, jobs, now), &mut gates, now).await?;
        tx.commit().await?;
        Ok((Rerun { run: new_id, again, carried }, true))
    }
}

async fn old_jobs(tx: &mut Tx, run: RunId) -> Result<Vec<OldJob>, StoreError> {
    on!(tx, Db, c => sqlx::query_as(OLD_JOBS).bind(run.uuid()).fetch_all(c).await)
        .during("read a run's jobs to run them again")
}

async fn find_rerun(tx: &mut Tx, id: RunId) -> Result<Option<Rerun>, StoreError> {
    let jobs = old_jobs(tx, id).await?;
    if jobs.is_empty() {
        return Ok(None);
    }
    let carried = jobs.iter().filter(|job| job.carried_from.is_some()).count();
    let count = |n: usize| u32::try_from(n).expect("a run has few thousand jobs");
    Ok(Some(Rerun { run: id, again: count(jobs.len() - carried), carried: count(carried) }))
}

/// Jobs that need not run again: they ended well or were skipped, and everything that they waited
/// for is kept, too.
fn kept(jobs: &[OldJob], edges: &[EdgeInfo]) -> BTreeSet<JobId> {
    let mut needs: BTreeMap<JobId, Vec<&str>> = BTreeMap::new();
    for edge in edges {
        needs.entry(edge.job_id).or_default().push(&edge.upstream);
    }
    let good =
        |job: &OldJob| matches!(job.state, JobState::Ended(Outcome::Success | Outcome::Skipped));
    let mut keep: BTreeSet<JobId> = jobs.iter().filter(|job| good(job)).map(|job| job.id).collect();
    loop {
        // Groups with a child that runs again.
        let again: BTreeSet<&str> = jobs
            .iter()
            .filter(|job| !keep.contains(&job.id))
            .map(|job| job.name.as_str())
            .collect();
        let before = keep.len();
        keep.retain(|job| {
            !needs.get(job).is_some_and(|needs| needs.iter().any(|name| again.contains(name)))
        });
        if keep.len() == before {
            return keep;
        }
    }
}

fn job_seed(
    job: OldJob,
    edges: &[EdgeInfo],
    keep: &BTreeSet<JobId>,
    mint: &mut impl FnMut() -> JobId,
) -> JobSeed {
    let outcome = job.state.outcome().filter(|_| keep.contains(&job.id));
    JobSeed {
        id: mint(),
        needs: edges
            .iter()
            .filter(|edge| edge.job_id == job.id)
            .map(|edge| (edge.upstream.clone(), edge.accepts))
            .collect(),
        carried: outcome.map(|outcome| (job.carried_from.unwrap_or(job.id), outcome)),
        name: job.name,
        title: job.title,
        matrix: job.matrix,
        spec: job.spec,
        class_key: job.class_key,
        priority: job.priority,
        retry: Retry { max_tries: job.retry_max, on: job.retry_on },
        continue_on_error: job.continue_on_error,
        ticket: rows::ticket(job.gate_id, job.gate_cancels),
    }
}

/// At gates it stands behind whoever came before it was asked for.
fn run_seed(run: RunInfo, id: RunId, jobs: Vec<JobSeed>, now: Timestamp) -> RunSeed {
    RunSeed {
        id,
        org: run.org,
        source_id: run.source_id,
        event_id: run.event_id,
        workflow: run.workflow,
        file: run.file,
        plan_key: run.plan_key,
        ref_name: run.ref_name,
        branch: run.branch,
        commit_sha: run.commit_sha,
        title: run.title,
        env: Value::from_iter(run.env).to_string(),
        timeout_ms: run.timeout_ms,
        rerun_of: Some(run.id),
        ticket: rows::ticket(run.gate_id, run.gate_cancels),
        arrived_at: now,
        jobs,
    }
}
