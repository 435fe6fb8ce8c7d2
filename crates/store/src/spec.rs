//! Everything that a start tells an agent.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;
use shuntyard_core::state::JobState;
use shuntyard_protocol::{JobId, Outcome, agent::End};
use uuid::Uuid;

use crate::{
    Store,
    column::row,
    db::{Statement, read},
    error::{During, StoreError},
    run::{EventInfo, JobInfo, RUNS_BY_ID, RunInfo},
    source::Source,
};

/// The parts of a `protocol::agent::Spec`, but for the plan's folder (see [`Store::plan`]).
#[derive(Clone, Debug, PartialEq)]
pub struct SpecParts {
    pub job: JobInfo,
    pub run: Arc<RunInfo>,
    pub event: Arc<EventInfo>,
    /// Absent: it was removed.
    pub source: Option<Arc<Source>>,
    pub needs: Needs,
}

/// Upstream jobs by name in the plan; the children of a fan-out in their order.
pub type Needs = BTreeMap<String, Vec<UpstreamParts>>;

/// One finished upstream job.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamParts {
    pub job: JobId,
    pub title: String,
    pub matrix: Option<Value>,
    /// Absent: it has not ended, which a job that started never sees.
    pub outcome: Option<Outcome>,
    pub outputs: Option<Value>,
}

row! {
    struct BytesRow {
        job_id: JobId,
        bytes: u64,
    }

    struct UpstreamRow {
        job_id: JobId,
        id: JobId,
        name: String,
        title: String,
        matrix: Option<Value>,
        state: JobState,
        end_json: Option<End>,
    }
}

const JOBS_BY_ID: &str = "select * from job where id";
const EVENTS_BY_ID: &str = "select * from event where id";
const SOURCES_BY_ID: &str = "select * from source where id";
/// A job that was taken over has its attempts in the run that it comes from.
const UPSTREAMS: &str = "select e.job_id, u.id, u.name, u.title, u.matrix, u.state, a.end_json \
    from edge e join job u on u.run_id = e.run_id and u.name = e.upstream \
    join job o on o.id = coalesce(u.carried_from, u.id) \
    left join attempt a on a.job_id = o.id and a.attempt = o.attempt \
    where e.job_id";

const UPSTREAM_BYTES: &str = "select e.job_id, cast(sum(length(a.end_json)) as bigint) as bytes \
    from edge e join job u on u.run_id = e.run_id and u.name = e.upstream \
    join job o on o.id = coalesce(u.carried_from, u.id) \
    join attempt a on a.job_id = o.id and a.attempt = o.attempt \
    where a.end_json is not null and e.job_id";

/// Rows by their ids: a statement that ends with the column that has them.
macro_rules! by_ids {
    ($store:expr, $text:expr, $ids:expr $(, $rest:literal)?) => {{
        let ids: Vec<Uuid> = $ids.into_iter().collect();
        if ids.is_empty() {
            Ok(Vec::new())
        } else {
            read!(&$store.inner.db, Kind, c => {
                let mut q = Statement::<Kind>::new($text);
                q.push_in(&ids)$(.push($rest))?;
                q.done_as().fetch_all(c).await
            })
            .during("read what a start needs")
        }
    }};
}

/// Ids that one statement is asked for.
pub(crate) const IDS_MAX: usize = 1000;

impl Store {
    /// What is needed to start jobs, with a handful of reads for all of them. Jobs that do not exist
    /// are left out.
    pub async fn specs_for(&self, ids: &[JobId]) -> Result<BTreeMap<JobId, SpecParts>, StoreError> {
        let mut parts = BTreeMap::new();
        for ids in ids.chunks(IDS_MAX) {
            parts.extend(self.portion_of_specs(ids).await?);
        }
        Ok(parts)
    }

    async fn portion_of_specs(&self, ids: &[JobId]) -> Result<Vec<(JobId, SpecParts)>, StoreError> {
        let jobs: Vec<JobInfo> = by_ids!(self, JOBS_BY_ID, ids.iter().map(|id| id.uuid()))?;
        let runs = distinct(jobs.iter().map(|job| job.run_id.uuid()));
        let runs: Vec<RunInfo> = by_ids!(self, RUNS_BY_ID, runs)?;
        let events = distinct(runs.iter().map(|run| run.event_id.uuid()));
        let events: Vec<EventInfo> = by_ids!(self, EVENTS_BY_ID, events)?;
        let sources = distinct(runs.iter().map(|run| run.source_id.uuid()));
        let sources: Vec<Source> = by_ids!(self, SOURCES_BY_ID, sources)?;
        let mut needs = self.upstreams_of(ids).await?;
        let runs = shared(runs, |run| run.id);
        let events = shared(events, |event| event.id);
        let sources = shared(sources, |source| source.id);
        let part = |job: JobInfo| {
            let gone = |what| StoreError::Corrupt { what, why: format!("job {} needs it", job.id) };
            let run = runs.get(&job.run_id).ok_or_else(|| gone("run"))?;
            let event = events.get(&run.event_id).ok_or_else(|| gone("event"))?;
            let source = sources.get(&run.source_id).cloned();
            let needs = needs.remove(&job.id).unwrap_or_default();
            let (run, event) = (Arc::clone(run), Arc::clone(event));
            Ok((job.id, SpecParts { job, run, event, source, needs }))
        };
        jobs.into_iter().map(part).collect()
    }

    /// How long the results of the jobs before these jobs are, as they are stored, without reading
    /// them. Jobs without any are left out.
    pub async fn needs_bytes(&self, ids: &[JobId]) -> Result<BTreeMap<JobId, u64>, StoreError> {
        let mut bytes = BTreeMap::new();
        for ids in ids.chunks(IDS_MAX) {
            let ids = ids.iter().map(|id| id.uuid());
            let rows: Vec<BytesRow> = by_ids!(self, UPSTREAM_BYTES, ids, " group by e.job_id")?;
            bytes.extend(rows.into_iter().map(|row| (row.job_id, row.bytes)));
        }
        Ok(bytes)
    }

    /// The upstream jobs of a job, as far as they have ended.
    pub async fn upstreams(&self, job: JobId) -> Result<Needs, StoreError> {
        Ok(self.upstreams_of(&[job]).await?.remove(&job).unwrap_or_default())
    }

    async fn upstreams_of(&self, ids: &[JobId]) -> Result<BTreeMap<JobId, Needs>, StoreError> {
        let rows: Vec<UpstreamRow> =
            by_ids!(self, UPSTREAMS, ids.iter().map(|id| id.uuid()), " order by u.position")?;
        let mut needs: BTreeMap<JobId, Needs> = BTreeMap::new();
        for row in rows {
            let upstream = UpstreamParts {
                job: row.id,
                title: row.title,
                matrix: row.matrix,
                outcome: row.state.outcome(),
                outputs: row.end_json.and_then(|end| end.outputs),
            };
            needs.entry(row.job_id).or_default().entry(row.name).or_default().push(upstream);
        }
        Ok(needs)
    }
}

fn distinct(ids: impl Iterator<Item = Uuid>) -> BTreeSet<Uuid> {
    ids.collect()
}

fn shared<K: Ord, T>(rows: Vec<T>, id: impl Fn(&T) -> K) -> BTreeMap<K, Arc<T>> {
    rows.into_iter().map(|row| (id(&row), Arc::new(row))).collect()
}
