//! `shunt dev`: a whole CI server for one repository on this machine.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use serde_json::json;
use shuntyard_protocol::{
    RunId,
    api::{Delivery, NewSource, Page, Run, RunDetail, Source},
};
use shuntyard_server::{config::Config, git};
use tokio::time;

use super::server::{Interrupt, LocalAgent, Server, interrupted, plan_error};
use crate::{
    args::Dev,
    client::Client,
    exit::{FAILED, Failure, Result, usage},
    paths,
    show::{
        live::{self, Screen, Style},
        style,
    },
};

/// How often new runs and deliveries are looked for.
const LOOK_PERIOD: Duration = Duration::from_millis(200);

pub(crate) async fn run(args: Dev) -> Result {
    let path = args.path.canonicalize();
    let path = path.map_err(|error| usage(format!("{}: {error}", args.path.display())))?;
    if !path.is_dir() {
        return Err(usage(format!("{} is not a folder", path.display())));
    }
    let data = args.data.clone().map_or_else(|| paths::dev_data(&path), Ok)?;
    let mut config = Config { data_dir: data, ..Config::default() };
    if let Some(listen) = args.listen {
        config.listen = listen;
    }
    let mut server = Server::start(config, args.listen.is_none()).await?;
    server.start_agent(LocalAgent { slots: args.slots, run_as: None }).await?;
    let mut screen = Screen::new(Style::choose(args.json));
    let client = server.client.clone();
    greet(&server, &screen);
    let session = Session { client, name: paths::source_name(&path), path, once: args.once };
    let (result, interrupt) = tokio::select! {
        result = session.serve(&mut screen) => (result, None),
        error = server.agent_failed() => (Err(Failure::Error(error)), None),
        interrupt = interrupted() => {
            let interrupt = interrupt?;
            if interrupt == Interrupt::Keyboard {
                screen.say("stopping: commands get 5 s; queued work stays queued");
            }
            (Ok(()), Some(interrupt))
        }
    };
    let stopped = server.stop(interrupt).await;
    result.and(stopped)
}

fn greet(server: &Server, screen: &Screen) {
    let (url, data) = (server.url(), server.data());
    screen.event(&json!({ "type": "started", "url": url, "data": data }));
    let (bold, dim) = (style::BOLD, style::DIM);
    let version = env!("CARGO_PKG_VERSION");
    screen.say(&format!(
        "{bold}Shuntyard {version}{bold:#}  {url}/api/v1  {dim}data in {}{dim:#}",
        data.display()
    ));
}

/// One repository under watch.
struct Session {
    client: Client,
    name: String,
    path: PathBuf,
    once: bool,
}

impl Session {
    async fn serve(&self, screen: &mut Screen) -> Result {
        self.register().await?;
        warn_uncommitted(&self.path, screen).await?;
        let open = self.open_runs().await?;
        let (mut followed, first) = if open.is_empty() {
            let runs = self.push(screen).await;
            match runs {
                Ok(runs) => (BTreeSet::new(), runs),
                Err(error) if self.once => return Err(error),
                Err(Failure::Said(_)) => (BTreeSet::new(), Vec::new()),
                Err(error) => return Err(error),
            }
        } else {
            screen.say(&format!("{} runs of last time go on", open.len()));
            (BTreeSet::new(), open)
        };
        let mut failed = false;
        for run in &first {
            followed.insert(*run);
            failed |= self.follow(*run, screen).await?.run.state != "success";
        }
        if self.once {
            return if failed { Err(Failure::Said(FAILED)) } else { Ok(()) };
        }
        screen.say(&format!(
            "\n{}watching {} for commits; Ctrl-C ends{}",
            style::DIM,
            self.path.display(),
            anstyle::Reset
        ));
        let newest = self.runs().await?;
        followed.extend(newest.iter().map(|run| run.id));
        self.watch(followed, screen).await
    }

    /// Follows every run that starts from now on.
    async fn watch(&self, mut followed: BTreeSet<RunId>, screen: &mut Screen) -> Result {
        let mut deliveries =
            self.deliveries().await?.into_iter().map(|d| d.id).collect::<BTreeSet<_>>();
        loop {
            time::sleep(LOOK_PERIOD).await;
            for delivery in self.deliveries().await? {
                if delivery.state != "pending" && deliveries.insert(delivery.id) {
                    say_outcome(&delivery, screen);
                }
            }
            let mut fresh = self.runs().await?;
            fresh.retain(|run| !followed.contains(&run.id));
            fresh.reverse();
            for run in fresh {
                followed.insert(run.id);
                self.follow(run.id, screen).await?;
            }
        }
    }

    async fn follow(&self, run: RunId, screen: &mut Screen) -> Result<RunDetail> {
        live::follow(&self.client, &run.to_string(), screen).await
    }

    async fn register(&self) -> Result {
        let url = self.path.to_str().context("the path is not UTF-8")?.to_owned();
        let sources: Page<Source> = self.client.get("/sources", &[]).await?;
        match sources.items.iter().find(|source| source.name == self.name) {
            Some(source) if source.url == url => Ok(()),
            Some(source) => Err(usage(format!(
                "the data folder belongs to {}; choose another with --data",
                source.url
            ))),
            None => {
                let source = NewSource {
                    name: self.name.clone(),
                    kind: "local".to_owned(),
                    url,
                    org: Some("default".to_owned()),
                    webhook_secret: None,
                    forks: None,
                    labels: Vec::new(),
                    work_tree: false,
                };
                self.client.post::<Source>("/sources", &source).await.map(drop)
            }
        }
    }

    async fn runs(&self) -> Result<Vec<Run>> {
        let query = [("source", self.name.clone()), ("limit", "50".to_owned())];
        Ok(self.client.get::<Page<Run>>("/runs", &query).await?.items)
    }

    /// Runs that an earlier start left unfinished.
    async fn open_runs(&self) -> Result<Vec<RunId>> {
        let runs = self.runs().await?;
        let open = runs.iter().rev().filter(|run| run.ended_at.is_none());
        Ok(open.map(|run| run.id).collect())
    }

    async fn deliveries(&self) -> Result<Vec<Delivery>> {
        let path = format!("/sources/{}/deliveries", self.name);
        let query = [("limit", "20".to_owned())];
        Ok(self.client.get::<Page<Delivery>>(&path, &query).await?.items)
    }

    /// Runs the workflows for a push of the head.
    async fn push(&self, screen: &Screen) -> Result<Vec<RunId>> {
        let path = format!("/sources/{}/push", self.name);
        let delivery: Delivery = self.client.post(&path, &json!({})).await?;
        let delivery = settled(&self.client, delivery).await?;
        if delivery.state != "done" {
            say_outcome(&delivery, screen);
            return Err(plan_error());
        }
        runs_of(&self.client, &delivery, &self.name).await
    }
}

/// Waits until a delivery has come to something.
pub(super) async fn settled(client: &Client, mut delivery: Delivery) -> Result<Delivery> {
    while delivery.state == "pending" {
        time::sleep(Duration::from_millis(10)).await;
        delivery = client.get(&format!("/deliveries/{}", delivery.id), &[]).await?;
    }
    Ok(delivery)
}

/// The runs that a delivery started, the first one first.
pub(super) async fn runs_of(
    client: &Client,
    delivery: &Delivery,
    source: &str,
) -> Result<Vec<RunId>> {
    let query = [("source", source.to_owned()), ("limit", "500".to_owned())];
    let runs: Page<Run> = client.get("/runs", &query).await?;
    let of = runs.items.iter().rev().filter(|run| Some(run.event) == delivery.event);
    Ok(of.map(|run| run.id).collect())
}

/// Says why a delivery started nothing.
pub(super) fn say_outcome(delivery: &Delivery, screen: &Screen) {
    let outcome = delivery.outcome.as_deref().unwrap_or_default();
    screen.event(&json!({ "type": "delivery", "state": delivery.state, "outcome": outcome }));
    match delivery.state.as_str() {
        "failed" => screen.say(&format!("{}error:{} {outcome}", style::ERROR, anstyle::Reset)),
        "ignored" => screen.say(&format!(
            "{}nothing to run:{} no trigger matches\n{}",
            style::WARNING,
            anstyle::Reset,
            outcome.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
        )),
        _ => {}
    }
}

async fn warn_uncommitted(path: &Path, screen: &Screen) -> Result {
    if !git::is_repository(path).await {
        return Ok(());
    }
    let count = git::uncommitted(path).await?;
    if count > 0 {
        screen.event(&json!({ "type": "uncommitted", "files": count }));
        let files = if count == 1 { "1 file is" } else { &format!("{count} files are") };
        screen.say(&format!(
            "{}{files} not part of this run (not committed); `shunt run` uses the working tree{}",
            style::WARNING,
            anstyle::Reset
        ));
    }
    Ok(())
}
