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
    JobId, Outcome, SourceId,
    agent::{AttemptId, Code, Spec, Upstream},
    frame::FRAME_BYTES_MAX,
    plan::{Action, Job},
};
use shuntyard_store::{Source, SpecParts, StoreError, UpstreamParts};
use tokio::sync::{mpsc, oneshot};

use crate::{app::App, watch};

/// Starts that wait to be read; then links wait.
pub(crate) const CAPACITY: usize = 512;
/// Starts that are read together: so many, and so many bytes of what their jobs need. A start always
/// fits alone.
const BATCH_ROWS: usize = 64;
const BATCH_BYTES: u64 = 4 * FRAME_BYTES_MAX as u64;

/// A start that a link waits for. It is dropped when the database does not answer.
pub(crate) struct Wanted {
    pub(crate) id: AttemptId,
    pub(crate) reply: oneshot::Sender<Answer>,
}

/// What came of it.
pub(crate) enum Answer {
    Start(Box<Start>),
    /// The attempt is no longer current.
    Gone,
    /// What is stored of the job cannot be understood, by whomever it is asked.
    Unusable(String),
}

/// What a start carries.
pub(crate) struct Start {
    pub(crate) spec: Spec,
    /// The workflow folder, for jobs with functions.
    pub(crate) folder: Option<Arc<str>>,
}

/// Reads what is wanted, as much at a time as came during the last read.
pub(crate) async fn run(app: Arc<App>, mut wanted: mpsc::Receiver<Wanted>) {
    let mut batch = Vec::with_capacity(BATCH_ROWS);
    while wanted.recv_many(&mut batch, BATCH_ROWS).await > 0 {
        let jobs: Vec<_> = batch.iter().map(|wanted| wanted.id.job).collect();
        match app.store.needs_bytes(&jobs).await {
            Ok(bytes) => {
                for portion in portions(std::mem::take(&mut batch), &bytes) {
                    answer(&app, portion).await;
                }
            }
            Err(error) => unanswered(&error, batch.drain(..)),
        }
    }
}

/// What may be read together. A start whose needs fit into no frame is answered at once.
fn portions(batch: Vec<Wanted>, bytes: &BTreeMap<JobId, u64>) -> Vec<Vec<Wanted>> {
    let (mut portions, mut room) = (vec![Vec::new()], BATCH_BYTES);
    for wanted in batch {
        let bytes = bytes.get(&wanted.id.job).copied().unwrap_or(0);
        if bytes > FRAME_BYTES_MAX as u64 {
            let reason = format!(
                "the outputs of the jobs before it have {bytes} bytes; that is above the limit of \
                 {FRAME_BYTES_MAX} for what a job needs to start"
            );
            drop(wanted.reply.send(Answer::Unusable(reason)));
            continue;
        }
        if bytes > room {
            portions.push(Vec::new());
            room = BATCH_BYTES;
        }
        room -= bytes;
        portions.last_mut().expect("there is one").push(wanted);
    }
    portions
}

async fn answer(app: &App, batch: Vec<Wanted>) {
    let ids: Vec<_> = batch.iter().map(|wanted| wanted.id).collect();
    match read(app, &ids).await {
        Ok(answers) => reply(batch, answers),
        // One of them is at fault; it must not hold up the others.
        Err(error) if error.is_poison() => {
            for wanted in batch {
                let id = wanted.id;
                match read(app, &[id]).await {
                    Ok(answers) => reply([wanted], answers),
                    Err(error) if error.is_poison() => {
                        reply([wanted], BTreeMap::from([(id, unusable(&error.into()))]));
                    }
                    Err(error) => unanswered(&error, [wanted]),
                }
            }
        }
        Err(error) => unanswered(&error, batch),
    }
}

fn reply(wanted: impl IntoIterator<Item = Wanted>, mut answers: BTreeMap<AttemptId, Answer>) {
    for Wanted { id, reply } in wanted {
        // A link that is gone will ask again when its agent is back.
        drop(reply.send(answers.remove(&id).unwrap_or(Answer::Gone)));
    }
}

/// Their links end, as with everything that the database does not answer.
fn unanswered(error: &StoreError, wanted: impl IntoIterator<Item = Wanted>) {
    tracing::warn!(%error, "jobs cannot be started");
    wanted.into_iter().for_each(drop);
}

fn unusable(error: &anyhow::Error) -> Answer {
    Answer::Unusable(format!("the job cannot be started: {error:#}"))
}

/// What the starts of these attempts carry; those that are no longer current are left out.
async fn read(app: &App, ids: &[AttemptId]) -> Result<BTreeMap<AttemptId, Answer>, StoreError> {
    let jobs: Vec<_> = ids.iter().map(|id| id.job).collect();
    let mut parts = app.store.specs_for(&jobs).await?;
    let (mut answers, mut shared) = (BTreeMap::new(), Shared::default());
    for &id in ids {
        let parts = parts.remove(&id.job).filter(|parts| parts.job.attempt == id.attempt);
        let Some(parts) = parts else { continue };
        let answer = match start(app, id, parts, &mut shared).await {
            Ok(start) => Answer::Start(Box::new(start)),
            Err(error) => match error.downcast::<StoreError>() {
                Ok(error) => return Err(error),
                Err(error) => unusable(&error),
            },
        };
        answers.insert(id, answer);
    }
    Ok(answers)
}

/// What jobs of one batch have in common.
#[derive(Default)]
struct Shared {
    urls: BTreeMap<SourceId, String>,
    /// By plan.
    folders: BTreeMap<String, Arc<str>>,
}

impl Shared {
    /// Where the code is fetched from; nothing when its source was removed.
    async fn url(&mut self, app: &App, source: Option<&Source>) -> anyhow::Result<Option<String>> {
        let Some(source) = source else { return Ok(None) };
        if let Entry::Vacant(entry) = self.urls.entry(source.id) {
            entry.insert(watch::code_url(app, source).await?);
        }
        Ok(self.urls.get(&source.id).cloned())
    }

    async fn folder(&mut self, app: &App, plan: &str) -> anyhow::Result<Arc<str>> {
        if let Some(folder) = self.folders.get(plan) {
            return Ok(Arc::clone(folder));
        }
        let stored = app.store.plan(plan).await?;
        let folder: Arc<str> =
            stored.with_context(|| format!("plan {plan} is gone"))?.folder.into();
        self.folders.insert(plan.to_owned(), Arc::clone(&folder));
        Ok(folder)
    }
}

async fn start(
    app: &App,
    id: AttemptId,
    mut parts: SpecParts,
    shared: &mut Shared,
) -> anyhow::Result<Start> {
    let job: Job =
        serde_json::from_value(std::mem::take(&mut parts.job.spec)).context("spec of a job")?;
    let has_functions = job.steps.iter().any(|step| matches!(step.action, Action::Function {}));
    let folder = match &parts.run.plan_key {
        Some(plan) if has_functions => Some(shared.folder(app, plan).await?),
        _ => None,
    };
    let url = shared.url(app, parts.source.as_deref()).await?;
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

#[cfg(test)]
mod tests {
    use shuntyard_protocol::Timestamp;

    use super::*;

    fn wanted(n: u8) -> (Wanted, oneshot::Receiver<Answer>) {
        let job = JobId::mint(Timestamp(1), [n; 10]);
        let (reply, answer) = oneshot::channel();
        (Wanted { id: AttemptId { job, attempt: 1 }, reply }, answer)
    }

    #[test]
    fn what_is_read_together_is_bounded_and_what_fits_nowhere_is_not_read() {
        let frame = FRAME_BYTES_MAX as u64;
        let sizes = [frame, frame, frame, frame, 1, frame + 1, 0];
        let (batch, mut answers): (Vec<_>, Vec<_>) = (0..7).map(wanted).unzip();
        let bytes = batch.iter().zip(sizes).map(|(wanted, size)| (wanted.id.job, size)).collect();
        let portions = portions(batch, &bytes);
        let counts: Vec<_> = portions.iter().map(Vec::len).collect();
        assert_eq!(counts, [4, 2], "BATCH_BYTES is the edge");
        let Ok(Answer::Unusable(reason)) = answers[5].try_recv() else { panic!("it was answered") };
        assert!(reason.contains(&format!("{} bytes", frame + 1)), "{reason}");
        assert!(answers[0].try_recv().is_err(), "the others wait");
    }
}
