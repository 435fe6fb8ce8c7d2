//! From a webhook to a finished run: a real coordinator, a real agent, a job of one `echo` step.

use std::{
    fs,
    process::{Child, Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use reqwest::{Client, Method};
use serde::Serialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{task::JoinSet, time};

use super::{Quiet, Setup, Spread, coordinator::Coordinator, now, rss_mb};
use crate::forge::{
    Forge, Repository,
    github::{Webhook, signature},
};

const SECRET: &str = "bench";
/// Runs that one agent has at the same time.
const SLOTS: usize = 8;
/// Connections of the burst.
const CONNECTIONS: usize = 32;
/// Runs one after the other whose workflow and commit everybody knows.
const WARM: usize = 100;
/// Runs whose workflow nobody has seen before.
const COLD: usize = 20;
/// A run that has not ended after this long is broken.
const STALL_TIMEOUT: Duration = Duration::from_mins(2);
/// How often the end of the burst is looked for.
const POLL_PERIOD: Duration = Duration::from_millis(50);

#[derive(Debug, Serialize)]
pub struct Report {
    pub database: &'static str,
    pub machine: Quiet,
    /// The agent has the repository, the coordinator the plan.
    pub warm: Latency,
    /// A new commit with a changed workflow.
    pub cold: Latency,
    pub burst: usize,
    pub burst_runs_per_s: f64,
    pub coordinator_rss_mb: f64,
    pub agent_idle_rss_mb: f64,
}

/// Milliseconds from the first byte of the webhook.
#[derive(Debug, Serialize)]
pub struct Latency {
    pub runs: usize,
    pub accepted_ms: Spread,
    pub job_started_ms: Spread,
    pub step_started_ms: Spread,
    pub finished_ms: Spread,
}

/// Warm runs one after the other, then cold ones, then a burst of `burst` warm ones.
///
/// # Errors
/// When a process does not start, a webhook is refused or a run does not succeed.
pub async fn run(setup: &Setup, burst: usize) -> anyhow::Result<Report> {
    let machine = Quiet::look();
    let bench = Bench::start(setup).await?;
    let agent_idle_rss_mb = rss_mb(bench.agent.0.id());
    // Warms the connection, the plan and the repository on the agent.
    let first = bench.commit(0)?;
    bench.one(&first, "first").await?;
    let mut warm = Vec::with_capacity(WARM);
    for index in 0..WARM {
        warm.push(bench.one(&first, &format!("warm-{index}")).await?);
    }
    let mut cold = Vec::with_capacity(COLD);
    for index in 1..=COLD {
        let commit = bench.commit(index)?;
        cold.push(bench.one(&commit, &format!("cold-{index}")).await?);
    }
    let burst_runs_per_s = bench.burst(&first, burst).await?;
    Ok(Report {
        database: if setup.postgres { "postgres" } else { "sqlite" },
        machine,
        warm: Latency::of(&warm),
        cold: Latency::of(&cold),
        burst,
        burst_runs_per_s,
        coordinator_rss_mb: bench.coordinator.rss_mb(),
        agent_idle_rss_mb,
    })
}

impl Latency {
    fn of(runs: &[Life]) -> Self {
        let spread = |pick: fn(&Life) -> f64| Spread::of(runs.iter().map(pick).collect());
        Self {
            runs: runs.len(),
            accepted_ms: spread(|life| life.accepted),
            job_started_ms: spread(|life| life.job_started),
            step_started_ms: spread(|life| life.step_started),
            finished_ms: spread(|life| life.finished),
        }
    }
}

/// When what happened to one run, in milliseconds after its webhook.
struct Life {
    accepted: f64,
    job_started: f64,
    step_started: f64,
    finished: f64,
}

struct Bench {
    coordinator: Coordinator,
    agent: Agent,
    _forge: Forge,
    repository: Repository,
    /// What every push starts from.
    root: String,
    http: Client,
}

/// An agent process under measurement; it drains and ends when dropped.
struct Agent(Child, #[expect(dead_code, reason = "keeps the folder")] TempDir);

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Bench {
    async fn start(setup: &Setup) -> anyhow::Result<Self> {
        let coordinator = Coordinator::start(setup).await?;
        let forge = Forge::new()?;
        let repository = forge.repository("echo")?;
        let source = json!({
            "name": "echo", "kind": "github", "org": "default",
            "url": repository.url(), "webhook_secret": SECRET,
        });
        coordinator.call(Method::POST, "/sources", &source).await?;
        let root = repository.commit("main", &[("README.md", "echo\n")])?;
        let agent = start_agent(setup, &coordinator).await?;
        Ok(Self { coordinator, agent, _forge: forge, repository, root, http: Client::new() })
    }

    /// A commit whose workflow no other commit has.
    fn commit(&self, index: usize) -> anyhow::Result<String> {
        let workflow = format!(
            "import {{ job, push, sh, workflow }} from 'shuntyard';\n\
             export default workflow('echo', {{ on: push(), jobs: [job('echo', {{ steps: [sh('echo {index}')] }})] }});\n"
        );
        self.repository.commit("main", &[(".shuntyard/workflows/echo.ts", &workflow)])
    }

    /// The webhook of a branch that went from the first commit to `commit`.
    fn webhook(&self, commit: &str, branch: &str) -> anyhow::Result<Webhook> {
        self.repository.branch(branch, commit)?;
        let name = format!("refs/heads/{branch}");
        Ok(self.repository.push(branch, &name, Some(&self.root), commit))
    }

    fn post(&self, webhook: Webhook) -> reqwest::RequestBuilder {
        self.http
            .post(format!("{}/webhooks/default/echo", self.coordinator.url))
            .header("X-GitHub-Event", webhook.event)
            .header("X-GitHub-Delivery", webhook.id)
            .header("X-Hub-Signature-256", signature(SECRET, &webhook.body))
            .header("Content-Type", "application/json")
            .body(webhook.body)
    }

    /// One push, to the end of its run.
    async fn one(&self, commit: &str, branch: &str) -> anyhow::Result<Life> {
        let request = self.post(self.webhook(commit, branch)?);
        let (start, sent) = (now(), epoch_ms()?);
        request.send().await?.error_for_status().context("accepted")?;
        let accepted = super::seconds(start) * 1000.0;
        let runs = self.ended(&format!("branch={branch}&"), 1).await?;
        let run = runs.first().context("a push has a run")?;
        let detail =
            self.coordinator.get(&format!("/runs/{}", run["id"].as_str().unwrap_or(""))).await?;
        let job = &detail["jobs"][0];
        let since = |value: &Value| anyhow::Ok(value.as_f64().context("a time")? - sent);
        Ok(Life {
            accepted,
            job_started: since(&job["started_at"])?,
            step_started: since(&job["steps"][0]["started_at"])?,
            finished: since(&run["ended_at"])?,
        })
    }

    /// Runs per second, from the first webhook to the end of the last run.
    async fn burst(&self, commit: &str, count: usize) -> anyhow::Result<f64> {
        let mut webhooks = Vec::with_capacity(count);
        for index in 0..count {
            webhooks.push(self.webhook(commit, &format!("burst/{index}"))?);
        }
        let sent = epoch_ms()?;
        let mut connections = JoinSet::new();
        let mut shares = vec![Vec::new(); CONNECTIONS];
        for (index, webhook) in webhooks.into_iter().enumerate() {
            shares[index % CONNECTIONS].push(webhook);
        }
        for share in shares {
            let requests: Vec<_> = share.into_iter().map(|webhook| self.post(webhook)).collect();
            connections.spawn(async move {
                for request in requests {
                    request.send().await?.error_for_status().context("accepted")?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = connections.join_next().await {
            ended??;
        }
        let runs = self.ended("", count).await?;
        let last = runs.iter().filter_map(|run| run["ended_at"].as_f64()).fold(sent, f64::max);
        #[expect(clippy::cast_precision_loss, reason = "a count of runs")]
        Ok(count as f64 * 1000.0 / (last - sent))
    }

    /// The newest `count` runs that a filter selects, once all of them have succeeded.
    async fn ended(&self, filter: &str, count: usize) -> anyhow::Result<Vec<Value>> {
        let (start, pause) = (now(), if count == 1 { POLL_PERIOD / 10 } else { POLL_PERIOD });
        while start.elapsed() < STALL_TIMEOUT {
            time::sleep(pause).await;
            let runs = self.newest(filter, count).await?;
            if runs.len() == count && runs.iter().all(|run| !run["ended_at"].is_null()) {
                if let Some(run) = runs.iter().find(|run| run["state"] != "success") {
                    bail!("a run did not succeed: {run}");
                }
                return Ok(runs);
            }
        }
        bail!("runs did not end within {} s", STALL_TIMEOUT.as_secs())
    }

    async fn newest(&self, filter: &str, count: usize) -> anyhow::Result<Vec<Value>> {
        let (mut runs, mut cursor) = (Vec::with_capacity(count), String::new());
        while runs.len() < count {
            let limit = (count - runs.len()).min(100);
            let path = format!("/runs?org=default&{filter}limit={limit}{cursor}");
            let mut page = self.coordinator.get(&path).await?;
            runs.extend(page["items"].as_array_mut().map(std::mem::take).unwrap_or_default());
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        Ok(runs)
    }
}

async fn start_agent(setup: &Setup, coordinator: &Coordinator) -> anyhow::Result<Agent> {
    let data = tempfile::tempdir().context("make a folder for the agent")?;
    let token = data.path().join("token");
    fs::write(&token, coordinator.enrolment(1).await?).context("write the token")?;
    let log = fs::File::create(data.path().join("agent.log")).context("make a log")?;
    let child = Command::new(&setup.program)
        .args(["agent", "--coordinator", &coordinator.url, "--slots", &SLOTS.to_string()])
        .arg("--enrol-token-file")
        .arg(&token)
        .arg("--data")
        .arg(data.path().join("data"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .with_context(|| format!("start {}", setup.program.display()))?;
    let (agent, start) = (Agent(child, data), now());
    while start.elapsed() < STALL_TIMEOUT {
        let agents = coordinator.get("/agents").await?;
        if agents["items"].as_array().is_some_and(|agents| !agents.is_empty()) {
            return Ok(agent);
        }
        time::sleep(POLL_PERIOD).await;
    }
    bail!("the agent does not register")
}

#[expect(clippy::disallowed_methods, reason = "compared with the times that the API gives")]
fn epoch_ms() -> anyhow::Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64() * 1000.0)
}
