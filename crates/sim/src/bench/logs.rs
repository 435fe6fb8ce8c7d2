//! Log bytes per second through the link, and the first screen of a long log.

use anyhow::Context;
use serde::Serialize;
use tokio::task::JoinSet;

use super::{
    Quiet, Setup,
    agent::{self, Work},
    coordinator::Coordinator,
    dispatch, now, seconds,
};

#[derive(Debug, Serialize)]
pub struct Report {
    pub database: &'static str,
    pub machine: Quiet,
    pub megabytes: u64,
    pub agents: usize,
    /// Sent by the agents, stored, and acknowledged.
    pub mb_per_s: f64,
    pub coordinator_rss_mb: f64,
    /// From the request to the last byte of the first 256 KiB of one log, as lines.
    pub first_screen_ms: f64,
    /// The same for its end.
    pub last_screen_ms: f64,
}

/// Each of `agents` sends one log; together they have `megabytes`.
pub async fn run(setup: &Setup, megabytes: u64, agents: usize) -> anyhow::Result<Report> {
    let machine = Quiet::look();
    let coordinator = Coordinator::start(setup).await?;
    dispatch::register(&coordinator, agents).await?;
    let (sender, mut done) = agent::done_channel();
    let token = coordinator.enrolment(agents).await?;
    let bulk_bytes = megabytes * 1024 * 1024 / agents as u64;
    let mut links = JoinSet::new();
    for index in 0..agents {
        let work = Work { lines: 0, bulk_bytes, slots: 1 };
        let (url, name) = (coordinator.url.clone(), format!("agent-{index}"));
        links.spawn(agent::run(url, token.clone(), name, work, sender.clone()));
    }
    let begin = now();
    dispatch::start(&coordinator, "full").await?;
    dispatch::wait(&mut done, &mut links, agents).await?;
    #[expect(clippy::cast_precision_loss, reason = "a count of megabytes")]
    let rate = megabytes as f64 / seconds(begin);
    let runs = coordinator.get("/runs?workflow=full&limit=1&org=default").await?;
    let run = runs["items"][0]["id"].as_str().context("the run")?.to_owned();
    let detail = coordinator.get(&format!("/runs/{run}")).await?;
    let job = detail["jobs"][0]["id"].as_str().context("the job")?.to_owned();
    let screen = async |from: u64| {
        let start = now();
        coordinator.get(&format!("/jobs/{job}/logs?stream=1&from={from}")).await?;
        anyhow::Ok(seconds(start) * 1000.0)
    };
    Ok(Report {
        database: if setup.postgres { "postgres" } else { "sqlite" },
        machine,
        megabytes,
        agents,
        mb_per_s: rate,
        coordinator_rss_mb: coordinator.rss_mb(),
        first_screen_ms: screen(0).await?,
        last_screen_ms: screen(bulk_bytes.saturating_sub(256 * 1024)).await?,
    })
}
