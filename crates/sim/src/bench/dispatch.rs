//! Jobs per second, and how long a job waits when there is room.

use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::Method;
use serde::Serialize;
use serde_json::{Value, json};
use shuntyard_store::testing::rows_per_s;
use tokio::{task::JoinSet, time};

use super::{
    Quiet, Setup, Spread,
    agent::{self, Work},
    coordinator::Coordinator,
    now, seconds,
};

/// Jobs of one run at full speed: the matrix and the jobs that have it.
const MATRIX: usize = 250;
/// The second phase starts this many jobs at once …
const PACE_JOBS: usize = 20;
/// … this often: 200 a second …
const PACE_PERIOD: Duration = Duration::from_millis(100);
/// … for this many times.
const PACE_ROUNDS: usize = 50;
/// A run without progress for this long is broken.
const STALL_TIMEOUT: Duration = Duration::from_mins(1);

#[derive(Debug, Serialize)]
pub struct Report {
    pub database: &'static str,
    pub jobs: usize,
    pub agents: usize,
    pub lines: usize,
    pub machine: Quiet,
    pub jobs_per_s: f64,
    pub queue_to_start_ms: QueueToStart,
    pub coordinator_rss_mb: Rss,
    pub coordinator_cpu_s: f64,
    pub ready_ms: f64,
    pub store_limit_rows_per_s: f64,
    /// Jobs for each row that the database alone could take.
    pub jobs_per_store_row: f64,
}

#[derive(Debug, Serialize)]
pub struct QueueToStart {
    pub full_speed: Spread,
    pub at_200_jobs_per_s: Spread,
}

#[derive(Debug, Serialize)]
pub struct Rss {
    pub idle: f64,
    pub peak: f64,
}

/// A workflow with as many jobs as are wanted, all of them startable at once.
fn workflow(name: &str, jobs: usize) -> String {
    let (full, rest) = (jobs / MATRIX, jobs % MATRIX);
    let mut text =
        "import { job, manual, sh, workflow } from 'shuntyard';\nconst jobs = [];\n".to_owned();
    let sizes = std::iter::repeat_n(MATRIX, full).chain((rest > 0).then_some(rest));
    for (index, size) in sizes.enumerate() {
        let job = format!(
            "jobs.push(job('j{index}', {{ matrix: {{ n: Array.from({{length: {size}}}, (_, i) => i) }}, \
             steps: [sh('true')] }}));\n"
        );
        text.push_str(&job);
    }
    text + &format!("export default workflow('{name}', {{ on: manual(), jobs }});\n")
}

pub async fn run(
    setup: &Setup,
    jobs: usize,
    agents: usize,
    lines: usize,
) -> anyhow::Result<Report> {
    let machine = Quiet::look();
    let coordinator = Coordinator::start(setup).await?;
    let idle = coordinator.rss_mb();
    let per_run = jobs.clamp(1, 4000);
    register(&coordinator, per_run).await?;
    let (sender, mut done) = agent::done_channel();
    let token = coordinator.enrolment(agents).await?;
    let mut links = JoinSet::new();
    for index in 0..agents {
        let work = Work { lines, bulk_bytes: 0, slots: 64 };
        let (url, name) = (coordinator.url.clone(), format!("agent-{index}"));
        links.spawn(agent::run(url, token.clone(), name, work, sender.clone()));
    }
    // A warm plan, so that full speed measures dispatch.
    start(&coordinator, "pace").await?;
    wait(&mut done, &mut links, PACE_JOBS).await?;
    let cpu = coordinator.cpu_s();
    let (begin, mut peak) = (now(), idle);
    let mut runs = Vec::new();
    let total = jobs.div_ceil(per_run) * per_run;
    for _ in 0..total / per_run {
        runs.push(start(&coordinator, "full").await?);
    }
    for _ in 0..total / 1000 {
        wait(&mut done, &mut links, 1000).await?;
        peak = f64::max(peak, coordinator.rss_mb());
    }
    wait(&mut done, &mut links, total % 1000).await?;
    let elapsed = seconds(begin);
    let cpu = coordinator.cpu_s() - cpu;
    let full_speed = waits(&coordinator, "full").await?;
    for _ in 0..PACE_ROUNDS {
        let tick = now();
        start(&coordinator, "pace").await?;
        time::sleep(PACE_PERIOD.saturating_sub(tick.elapsed())).await;
    }
    wait(&mut done, &mut links, PACE_ROUNDS * PACE_JOBS).await?;
    let paced = waits(&coordinator, "pace").await?;
    let limit = rows_per_s(coordinator.database.url.as_deref(), coordinator.data.path()).await?;
    #[expect(clippy::cast_precision_loss, reason = "a count of jobs")]
    let rate = total as f64 / elapsed;
    Ok(Report {
        database: if setup.postgres { "postgres" } else { "sqlite" },
        jobs: total,
        agents,
        lines,
        machine,
        jobs_per_s: rate,
        queue_to_start_ms: QueueToStart { full_speed, at_200_jobs_per_s: paced },
        coordinator_rss_mb: Rss { idle, peak },
        coordinator_cpu_s: cpu,
        ready_ms: coordinator.ready_ms,
        store_limit_rows_per_s: limit,
        jobs_per_store_row: rate / limit,
    })
}

/// A source whose repository has the workflows.
pub(super) async fn register(coordinator: &Coordinator, per_run: usize) -> anyhow::Result<()> {
    let folder = coordinator.data.path().join("repository");
    let workflows = folder.join(".shuntyard/workflows");
    std::fs::create_dir_all(&workflows).context("make a repository")?;
    for (name, jobs) in [("full", per_run), ("pace", PACE_JOBS)] {
        std::fs::write(workflows.join(format!("{name}.ts")), workflow(name, jobs))?;
    }
    let source = json!({ "name": "bench", "kind": "local", "org": "default", "url": folder });
    coordinator.call(Method::POST, "/sources", &source).await.map(drop)
}

pub(super) async fn start(coordinator: &Coordinator, workflow: &str) -> anyhow::Result<String> {
    let request = json!({ "source": "bench", "workflow": workflow, "org": "default" });
    let delivery = coordinator.call(Method::POST, "/runs", &request).await?;
    Ok(delivery["id"].as_str().context("a delivery has an id")?.to_owned())
}

pub(super) async fn wait(
    done: &mut tokio::sync::mpsc::Receiver<shuntyard_protocol::agent::AttemptId>,
    links: &mut JoinSet<anyhow::Result<()>>,
    count: usize,
) -> anyhow::Result<()> {
    for _ in 0..count {
        tokio::select! {
            _ = done.recv() => {}
            ended = links.join_next() => bail!("an agent ended: {ended:?}"),
            () = time::sleep(STALL_TIMEOUT) => bail!("no job ended for {} s", STALL_TIMEOUT.as_secs()),
        }
    }
    Ok(())
}

/// How long the jobs of a workflow waited.
async fn waits(coordinator: &Coordinator, workflow: &str) -> anyhow::Result<Spread> {
    let runs = coordinator.get(&format!("/runs?workflow={workflow}&limit=50&org=default")).await?;
    let mut waits = Vec::new();
    for run in runs["items"].as_array().context("a page has items")? {
        let id = run["id"].as_str().context("a run has an id")?;
        let detail = coordinator.get(&format!("/runs/{id}")).await?;
        for job in detail["jobs"].as_array().context("a run has jobs")? {
            if let (Some(queued), Some(started)) =
                (millis(&job["queued_at"]), millis(&job["started_at"]))
            {
                waits.push(started - queued);
            }
        }
    }
    Ok(Spread::of(waits))
}

fn millis(value: &Value) -> Option<f64> {
    value.as_f64()
}
