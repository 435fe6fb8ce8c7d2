//! Webhooks per second.

use anyhow::Context;
use reqwest::{Client, Method};
use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;

use super::{Quiet, Setup, Spread, coordinator::Coordinator, now, seconds};

#[derive(Debug, Serialize)]
pub struct Report {
    pub database: &'static str,
    pub connections: usize,
    pub machine: Quiet,
    pub webhooks_per_s: f64,
    pub accepted_ms: Spread,
}

/// Sends `count` different signed webhooks over `connections`.
pub async fn run(setup: &Setup, count: usize, connections: usize) -> anyhow::Result<Report> {
    let machine = Quiet::look();
    let coordinator = Coordinator::start(setup).await?;
    let source = json!({
        "name": "hook", "kind": "generic", "org": "default",
        "url": "https://example.invalid/x.git", "webhook_secret": "bench",
    });
    coordinator.call(Method::POST, "/sources", &source).await?;
    let url = format!("{}/webhooks/default/hook", coordinator.url);
    let begin = now();
    let mut tasks = JoinSet::new();
    for connection in 0..connections {
        let (url, share) = (url.clone(), count / connections);
        tasks.spawn(async move {
            let (http, mut times) = (Client::new(), Vec::with_capacity(share));
            for index in 0..share {
                let start = now();
                // A ref that starts nothing, so that only the inbox is measured.
                let body = json!({ "ref": "refs/notes/x", "n": [connection, index] });
                let request = http.post(&url).bearer_auth("bench").json(&body);
                request.send().await?.error_for_status().context("accepted")?;
                times.push(seconds(start) * 1000.0);
            }
            anyhow::Ok(times)
        });
    }
    let mut times = Vec::with_capacity(count);
    while let Some(ended) = tasks.join_next().await {
        times.extend(ended??);
    }
    #[expect(clippy::cast_precision_loss, reason = "a count of requests")]
    let rate = times.len() as f64 / seconds(begin);
    Ok(Report {
        database: if setup.postgres { "postgres" } else { "sqlite" },
        connections,
        machine,
        webhooks_per_s: rate,
        accepted_ms: Spread::of(times),
    })
}
