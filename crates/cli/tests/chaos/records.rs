//! From the API and the truths to a [`History`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use serde_json::Value;
use shuntyard_sim::chaos::{
    history::{Attempt, Delivery, History, Job, Log, Run},
    work::{self, Record},
};

use crate::world::{SOURCE, World};

/// What was sent: delivery id and the workflows that it starts.
pub(crate) type Sent = BTreeMap<String, BTreeSet<String>>;

/// Letters at the end of the lines of a workflow's jobs.
pub(crate) type Widths = BTreeMap<&'static str, usize>;

/// Everything that was recorded.
pub(crate) async fn collect(world: &World, sent: &Sent, widths: &Widths) -> History {
    let known = world.api.list(&format!("/sources/{SOURCE}/deliveries")).await;
    let of = |key: &str| known.iter().find(|delivery| delivery["key"] == key);
    let deliveries = sent.iter().map(|(key, workflows)| Delivery {
        key: key.clone(),
        workflows: workflows.clone(),
        state: of(key).map(|delivery| word(&delivery["state"])),
        event: of(key).and_then(|delivery| delivery["event"].as_str().map(str::to_owned)),
    });
    let mut history = History { deliveries: deliveries.collect(), ..History::default() };
    for run in world.api.list("/runs").await {
        let (id, workflow) = (word(&run["id"]), word(&run["workflow"]));
        let detail = world.api.get(&format!("/runs/{id}")).await;
        for job in detail["jobs"].as_array().unwrap() {
            let width = widths[workflow.as_str()];
            history.jobs.push(job_of(world, &word(&job["id"]), width).await);
        }
        let (event, state) = (word(&run["event"]), word(&run["state"]));
        history.runs.push(Run { id, event, workflow, state });
    }
    history.truths = truths(world);
    history
}

/// What the commands wrote down, by job.
pub(crate) fn truths(world: &World) -> BTreeMap<String, Vec<Record>> {
    let mut truths = BTreeMap::new();
    for entry in fs::read_dir(world.truth()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "truth") {
            let job = path.file_stem().unwrap().to_string_lossy().into_owned();
            truths.insert(job, work::parse(&fs::read_to_string(&path).unwrap()).unwrap());
        }
    }
    truths
}

async fn job_of(world: &World, id: &str, width: usize) -> Job {
    let detail = world.api.get(&format!("/jobs/{id}")).await;
    let job = &detail["job"];
    let steps = job["steps"].as_array().unwrap().iter();
    let steps: Vec<_> = steps
        .map(|step| {
            let from = step["outputs"]["attempt"].as_str().map(str::to_owned);
            (word(&step["state"]), from)
        })
        .collect();
    let mut attempts = Vec::new();
    for attempt in detail["attempts"].as_array().unwrap() {
        attempts.push(attempt_of(world, id, attempt).await);
    }
    Job {
        id: id.to_owned(),
        state: word(&job["state"]),
        attempt: u32::try_from(job["attempt"].as_u64().unwrap()).unwrap(),
        width,
        steps,
        attempts,
    }
}

/// Steps of every job of these tests, at most.
const STEPS: u32 = 2;

async fn attempt_of(world: &World, job: &str, attempt: &Value) -> Attempt {
    let number = u32::try_from(attempt["attempt"].as_u64().unwrap()).unwrap();
    let mut logs = BTreeMap::new();
    let mut complete = true;
    for step in 0..STEPS {
        let (bytes, whole) = world.api.log(job, number, step + 1).await;
        let path = format!("/jobs/{job}/logs?attempt={number}&stream={}", step + 1);
        let torn = world.api.get(&path).await["torn"] == true;
        complete &= whole;
        logs.insert(step, Log { bytes, torn });
    }
    Attempt {
        number,
        state: word(&attempt["state"]),
        reason: word(&attempt["reason"]),
        late: attempt["late"].as_str().map(str::to_owned),
        complete,
        logs,
    }
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
