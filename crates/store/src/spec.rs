//! Everything that a start tells an agent.

use std::collections::BTreeMap;

use serde_json::Value;
use shuntyard_core::state::JobState;
use shuntyard_protocol::{JobId, Outcome, agent::End};

use crate::{
    Store,
    column::row,
    db::read,
    error::{During, StoreError},
    run::{EventInfo, JobInfo, RunInfo},
    source::Source,
};

/// The parts of a `protocol::agent::Spec`, but for the plan's folder (see [`Store::plan`]).
#[derive(Clone, Debug, PartialEq)]
pub struct SpecParts {
    pub job: JobInfo,
    pub run: RunInfo,
    pub event: EventInfo,
    /// Absent: it was removed.
    pub source: Option<Source>,
    /// Upstream jobs by name in the plan; the children of a fan-out in their order.
    pub needs: BTreeMap<String, Vec<UpstreamParts>>,
}

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
    struct UpstreamRow {
        id: JobId,
        name: String,
        title: String,
        matrix: Option<Value>,
        state: JobState,
        end_json: Option<End>,
    }
}

/// A job that was taken over has its attempts in the run that it comes from.
pub(crate) const UPSTREAM: &str = "select u.id, u.name, u.title, u.matrix, u.state, a.end_json \
    from edge e join job u on u.run_id = e.run_id and u.name = e.upstream \
    join job o on o.id = coalesce(u.carried_from, u.id) \
    left join attempt a on a.job_id = o.id and a.attempt = o.attempt \
    where e.job_id = $1 order by u.position";

impl Store {
    /// What is needed to start a job; absent: there is no such job.
    pub async fn spec_for(&self, job: JobId) -> Result<Option<SpecParts>, StoreError> {
        let Some(job) = self.job(job).await? else { return Ok(None) };
        let gone = |what| StoreError::Corrupt { what, why: format!("job {} needs it", job.id) };
        let run = self.run(job.run_id).await?.ok_or_else(|| gone("run"))?;
        let event = self.event(run.event_id).await?.ok_or_else(|| gone("event"))?;
        let source = self.source(run.source_id).await?;
        let needs = self.upstreams(job.id).await?;
        Ok(Some(SpecParts { job, run, event, source, needs }))
    }

    /// The upstream jobs of a job, as far as they have ended.
    pub async fn upstreams(
        &self,
        job: JobId,
    ) -> Result<BTreeMap<String, Vec<UpstreamParts>>, StoreError> {
        let rows: Vec<UpstreamRow> = read!(&self.inner.db, Kind, c => {
            sqlx::query_as(UPSTREAM).bind(job.uuid()).fetch_all(c).await
        })
        .during("read upstream jobs")?;
        let mut needs: BTreeMap<String, Vec<UpstreamParts>> = BTreeMap::new();
        for row in rows {
            needs.entry(row.name).or_default().push(UpstreamParts {
                job: row.id,
                title: row.title,
                matrix: row.matrix,
                outcome: row.state.outcome(),
                outputs: row.end_json.and_then(|end| end.outputs),
            });
        }
        Ok(needs)
    }
}
