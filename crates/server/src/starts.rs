//! What jobs need to start, read for all links together: a commit reserves jobs of many agents at
//! once, and each would else read for itself.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use shuntyard_core::{event::Event, limits};
use shuntyard_protocol::{
    Outcome,
    agent::{AttemptId, Code, Spec, Upstream},
    plan::{Action, Job},
};
use shuntyard_store::{SpecParts, UpstreamParts};
use tokio::sync::{mpsc, oneshot};

use crate::{app::App, watch};

/// Starts that wait to be read; then links wait.
pub(crate) const CAPACITY: usize = 512;

/// A start that a link waits for. It is answered with nothing when the attempt is no longer current,
/// and dropped when the database does not answer.
pub(crate) struct Wanted {
    pub(crate) id: AttemptId,
    pub(crate) reply: oneshot::Sender<Option<Box<Start>>>,
}

/// Reads what is wanted, as much at a time as came during the last read.
pub(crate) async fn run(app: Arc<App>, mut wanted: mpsc::Receiver<Wanted>) {
    let mut batch = Vec::with_capacity(CAPACITY);
    while wanted.recv_many(&mut batch, CAPACITY).await > 0 {
        let ids: Vec<_> = batch.iter().map(|wanted| wanted.id).collect();
        match read(&app, &ids).await {
            Ok(mut starts) => {
                for Wanted { id, reply } in batch.drain(..) {
                    // A link that is gone will ask again when its agent is back.
                    drop(reply.send(starts.remove(&id).map(Box::new)));
                }
            }
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "jobs cannot be started");
                batch.clear();
            }
        }
    }
}

/// What a start carries.
pub(crate) struct Start {
    pub(crate) spec: Spec,
    /// The workflow folder, for jobs with functions.
    pub(crate) folder: Vec<u8>,
}

/// What the starts of these attempts carry; those that are no longer current are left out.
async fn read(app: &App, ids: &[AttemptId]) -> anyhow::Result<BTreeMap<AttemptId, Start>> {
    let jobs: Vec<_> = ids.iter().map(|id| id.job).collect();
    let mut parts = app.store.specs_for(&jobs).await?;
    let mut urls = BTreeMap::new();
    for source in parts.values().filter_map(|parts| parts.source.as_ref()) {
        if let Entry::Vacant(entry) = urls.entry(source.id) {
            entry.insert(watch::code_url(app, source).await?);
        }
    }
    let mut starts = BTreeMap::new();
    for &id in ids {
        let parts = parts.remove(&id.job).filter(|parts| parts.job.attempt == id.attempt);
        if let Some(parts) = parts {
            let url = parts.source.as_ref().and_then(|source| urls.get(&source.id)).cloned();
            starts.insert(id, start(app, id, parts, url).await?);
        }
    }
    Ok(starts)
}

async fn start(
    app: &App,
    id: AttemptId,
    mut parts: SpecParts,
    url: Option<String>,
) -> anyhow::Result<Start> {
    let job: Job =
        serde_json::from_value(std::mem::take(&mut parts.job.spec)).context("spec of a job")?;
    let has_functions = job.steps.iter().any(|step| matches!(step.action, Action::Function {}));
    let folder = match (&parts.run.plan_key, has_functions) {
        (Some(key), true) => {
            let plan = app.store.plan(key).await?.with_context(|| format!("plan {key} is gone"))?;
            plan.folder.into_bytes()
        }
        _ => Vec::new(),
    };
    Ok(Start { spec: assemble(app, id, parts, job, url)?, folder })
}

/// `url` is where the code is fetched from; absent when its source was removed.
fn assemble(
    app: &App,
    id: AttemptId,
    parts: SpecParts,
    job: Job,
    url: Option<String>,
) -> anyhow::Result<Spec> {
    let SpecParts { job: row, run, event, source: _, needs } = parts;
    let millis = |d: std::time::Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    let body = event.body.clone();
    let event = Event::deserialize(&event.body).context("body of an event")?;
    let code = url.map(|url| Code { url, commit: event.commit, ref_name: event.ref_name });
    let mut env = run.env.clone();
    env.extend(job.env);
    Ok(Spec {
        id,
        run: run.id,
        org: run.org.clone(),
        source: run.source.clone(),
        workflow: run.workflow.clone(),
        file: run.file.clone(),
        job: row.name,
        title: row.title,
        try_no: row.try_no,
        run_number: run.number,
        matrix: row.matrix,
        event: body,
        code,
        checkout: job.checkout,
        env,
        timeout_ms: job.timeout_ms.unwrap_or(millis(limits::JOB_TIMEOUT_DEFAULT)),
        grace_ms: job.grace_ms.unwrap_or(millis(limits::GRACE_DEFAULT)),
        steps: job.steps,
        parallels: job.parallels,
        single: job.single,
        needs: needs.into_iter().map(|(name, children)| (name, upstream(children))).collect(),
        run_url: Some(app.run_url(run.id)),
    })
}

/// One upstream as its dependants see it. A fan-out counts as one: all skipped is skipped, else its
/// worst child.
fn upstream(children: Vec<UpstreamParts>) -> Upstream {
    use Outcome::{Cancelled, Failed, Lost, Skipped, Success, TimedOut};
    let worst = [Failed, TimedOut, Lost, Cancelled, Success, Skipped];
    let has = |outcome: &Outcome| children.iter().any(|child| child.outcome == Some(*outcome));
    let outcome = worst.into_iter().find(has).unwrap_or(Skipped);
    if let [single] = children.as_slice()
        && single.matrix.is_none()
    {
        return Upstream { outcome, outputs: single.outputs.clone().unwrap_or(Value::Null) };
    }
    let mut merged = Map::new();
    let mut by_matrix = Vec::with_capacity(children.len());
    for child in children {
        if let Some(Value::Object(outputs)) = &child.outputs {
            merged.extend(outputs.clone());
        }
        by_matrix.push(json!({
            "matrix": child.matrix,
            "outcome": child.outcome,
            "outputs": child.outputs,
        }));
    }
    Upstream { outcome, outputs: json!({ "byMatrix": by_matrix, "merged": merged }) }
}
