//! A coordinator process under measurement.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, bail};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use shuntyard_store::testing::Postgres;
use tempfile::TempDir;
use tokio::time;

use super::{Setup, now, rss_mb, seconds};

/// The coordinator must answer within this.
const START_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Coordinator {
    child: Child,
    pub(super) data: TempDir,
    pub(super) url: String,
    token: String,
    http: Client,
    /// Time from the start of the process to its first "ready".
    pub(super) ready_ms: f64,
    pub(super) database: Database,
}

/// The database that it uses; kept alive with it.
pub(super) struct Database {
    pub(super) url: Option<String>,
    _server: Option<Postgres>,
}

impl Database {
    async fn start(setup: &Setup) -> Self {
        if !setup.postgres {
            return Self { url: None, _server: None };
        }
        let server = Postgres::start_durable("bench");
        Self { url: Some(server.database("bench").await), _server: Some(server) }
    }
}

impl Coordinator {
    pub(super) async fn start(setup: &Setup) -> anyhow::Result<Self> {
        let data = tempfile::tempdir().context("make a data folder")?;
        let database = Database::start(setup).await;
        // The first start migrates; the second is what is timed.
        let first = Self::launch(setup, &data, &database)?;
        let mut first = Process(first);
        wait_ready(data.path()).await?;
        first.0.kill().context("stop the first start")?;
        first.0.wait().context("stop the first start")?;
        fs::remove_file(data.path().join("endpoint.json")).context("forget the first start")?;
        let start = now();
        let child = Self::launch(setup, &data, &database)?;
        let url = wait_ready(data.path()).await?;
        let ready_ms = seconds(start) * 1000.0;
        let token =
            fs::read_to_string(data.path().join("admin-token")).context("read the token")?;
        let http = Client::new();
        Ok(Self { child, data, url, token, http, ready_ms, database })
    }

    fn launch(setup: &Setup, data: &TempDir, database: &Database) -> anyhow::Result<Child> {
        let mut command = Command::new(&setup.program);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data.path());
        if let Some(url) = &database.url {
            let file = data.path().join("database-url");
            fs::write(&file, url).context("write the database's address")?;
            command.arg("--database-url-file").arg(file);
        }
        let log = fs::File::create(data.path().join("server.log")).context("make a log")?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.spawn().with_context(|| format!("start {}", setup.program.display()))
    }

    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<Value> {
        let request = self.http.request(method, format!("{}/api/v1{path}", self.url));
        let response = request.bearer_auth(&self.token).json(body).send().await?;
        let status = response.status();
        let answer: Value = response.json().await.unwrap_or_default();
        if !status.is_success() {
            bail!("{path}: {status}: {answer}");
        }
        Ok(answer)
    }

    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call(Method::GET, path, &json!({})).await
    }

    /// A token that enrols `uses` agents.
    pub(super) async fn enrolment(&self, uses: usize) -> anyhow::Result<String> {
        let new = json!({ "name": "bench", "kind": "enrol", "org": "default", "uses": uses });
        let made = self.call(Method::POST, "/tokens", &new).await?;
        Ok(made["secret"].as_str().context("a token has a secret")?.to_owned())
    }

    /// Resident memory, in megabytes.
    pub(super) fn rss_mb(&self) -> f64 {
        rss_mb(self.child.id())
    }

    /// Processor time so far, in seconds.
    pub(super) fn cpu_s(&self) -> f64 {
        let stat =
            fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        let after = stat.rsplit(") ").next().unwrap_or_default();
        let ticks: f64 =
            after.split(' ').skip(11).take(2).filter_map(|t| t.parse::<f64>().ok()).sum();
        ticks / 100.0
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

async fn wait_ready(data: &Path) -> anyhow::Result<String> {
    let (start, http) = (now(), Client::new());
    loop {
        let endpoint = fs::read_to_string(data.join("endpoint.json")).unwrap_or_default();
        if let Ok(endpoint) = serde_json::from_str::<Value>(&endpoint)
            && let Some(url) = endpoint["url"].as_str()
            && http.get(format!("{url}/readyz")).send().await.is_ok_and(|r| r.status().is_success())
        {
            return Ok(url.to_owned());
        }
        if start.elapsed() > START_TIMEOUT {
            let log = fs::read_to_string(data.join("server.log")).unwrap_or_default();
            bail!("the coordinator does not start: {log}");
        }
        time::sleep(Duration::from_millis(1)).await;
    }
}
