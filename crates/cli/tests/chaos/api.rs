//! The coordinator's API. It may be down at any time, so everything is asked again.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use shuntyard_sim::forge::github::{Webhook, signature};

/// Secret of the source's webhooks.
pub(crate) const SECRET: &str = "what only the forge knows";
/// One request may take this long.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Everything is asked again for this long.
const PATIENCE: Duration = Duration::from_mins(1);
const AGAIN: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(crate) struct Api {
    url: String,
    token: String,
    http: reqwest::Client,
}

impl Api {
    pub(crate) fn new(url: String, token: String) -> Self {
        let http = reqwest::Client::builder().timeout(REQUEST_TIMEOUT).build().unwrap();
        Self { url, token, http }
    }

    async fn once(&self, path: &str, body: Option<&Value>) -> anyhow::Result<(Value, bool)> {
        let url = format!("{}/api/v1{path}", self.url);
        let request = match body {
            Some(body) => self.http.post(&url).json(body),
            None => self.http.get(&url),
        };
        let answer = request.bearer_auth(&self.token).send().await?;
        let status = answer.status();
        let complete = answer.headers().get("x-log-complete").is_some_and(|value| value == "true");
        let bytes = answer.bytes().await?;
        ensure!(!status.is_server_error(), "{path}: {status}");
        if !status.is_success() {
            bail!(Refused(format!("{path}: {status}: {}", String::from_utf8_lossy(&bytes))));
        }
        let value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Ok((value, complete))
    }

    async fn ask(&self, path: &str, body: Option<&Value>) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.once(path, body).await {
                Ok((value, _)) => return value,
                Err(error) if error.is::<Refused>() => panic!("{error}"),
                Err(error) => assert!(Instant::now() < deadline, "{path}: {error:#}"),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.ask(path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        self.ask(path, Some(body)).await
    }

    /// Once; a refusal or no answer is fine.
    pub(crate) async fn try_post(&self, path: &str, body: &Value) {
        self.once(path, Some(body)).await.ok();
    }

    pub(crate) async fn try_get(&self, path: &str) -> Option<Value> {
        self.once(path, None).await.ok().map(|(value, _)| value)
    }

    /// Every item of a list.
    pub(crate) async fn list(&self, path: &str) -> Vec<Value> {
        let mut items = Vec::new();
        let mut cursor = String::new();
        loop {
            let mut page = self.get(&format!("{path}?limit=100{cursor}")).await;
            items.extend(page["items"].as_array_mut().map(std::mem::take).unwrap_or_default());
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return items,
            }
        }
    }

    /// The bytes of a log stream of an attempt, and whether all of the attempt's log is there.
    pub(crate) async fn log(&self, job: &str, attempt: u32, stream: u32) -> (Vec<u8>, bool) {
        let path = format!("/jobs/{job}/logs/raw?attempt={attempt}&stream={stream}");
        let url = format!("{}/api/v1{path}", self.url);
        let answer = self.http.get(url).bearer_auth(&self.token).send().await;
        let answer = answer.context("log").unwrap();
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        let complete = answer.headers()["x-log-complete"] == "true";
        (answer.bytes().await.unwrap().to_vec(), complete)
    }

    /// Sends a webhook until it is answered 2xx.
    pub(crate) async fn deliver(&self, source: &str, hook: &Webhook) {
        let url = format!("{}/webhooks/default/{source}", self.url);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let request = self
                .http
                .post(&url)
                .header("content-type", "application/json")
                .header("x-github-event", hook.event)
                .header("x-github-delivery", &hook.id)
                .header("x-hub-signature-256", signature(SECRET, &hook.body))
                .body(hook.body.clone());
            let said = match request.send().await {
                Ok(answer) if answer.status().is_success() => return,
                Ok(answer) => answer.status().to_string(),
                Err(error) => error.to_string(),
            };
            assert!(Instant::now() < deadline, "webhook {}: {said}", hook.id);
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// The coordinator understood, and said no.
#[derive(Debug)]
struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}
