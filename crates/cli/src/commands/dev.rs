//! `shunt dev`: a whole CI server for one repository on this machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use serde_json::json;
use shuntyard_protocol::{
    DeliveryId, RunId, SourceId,
    api::{Delivery, NewSource, Page, Run, Source},
};
use shuntyard_server::{
    config::Config,
    git::{self, Git, Head},
};
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
/// How often a delivery that is being handled is looked at.
const SETTLE_PERIOD: Duration = Duration::from_millis(10);
/// Runs of earlier starts that a start looks at. It is a full page of the API.
const EARLIER_RUNS: u32 = 500;

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
    let mut session = Session::new(&server, path, args.once);
    // Before there is an agent: until then, nothing that an earlier start left behind ends.
    if let Err(failure) = session.begin().await {
        server.stop(None).await?;
        return Err(failure);
    }
    server.start_agent(LocalAgent { slots: args.slots, run_as: None }).await?;
    let mut screen = Screen::new(Style::choose(args.json));
    greet(&server, &screen);
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
    git: Git,
    name: String,
    path: PathBuf,
    once: bool,
    source: Option<SourceId>,
    /// Runs that were over before this start.
    over: BTreeSet<RunId>,
    /// Runs that an earlier start left unfinished, the first one first.
    left: Vec<RunId>,
    /// Runs that were shown until their end, and whether they succeeded.
    followed: BTreeMap<RunId, bool>,
    /// Deliveries of which nothing is left to say.
    deliveries: BTreeSet<DeliveryId>,
}

impl Session {
    fn new(server: &Server, path: PathBuf, once: bool) -> Self {
        Self {
            client: server.client.clone(),
            git: server.git(),
            name: paths::source_name(&path),
            path,
            once,
            source: None,
            over: BTreeSet::new(),
            left: Vec::new(),
            followed: BTreeMap::new(),
            deliveries: BTreeSet::new(),
        }
    }

    /// Makes the source, and sees what earlier starts did.
    async fn begin(&mut self) -> Result {
        self.source = Some(self.register().await?.id);
        let runs = self.runs(EARLIER_RUNS, None).await?.items;
        let (over, left): (Vec<_>, Vec<_>) = runs.iter().rev().partition(|run| is_over(run));
        self.over = over.iter().map(|run| run.id).collect();
        self.left = left.iter().map(|run| run.id).collect();
        let deliveries = self.deliveries().await?;
        let handled = deliveries.iter().filter(|delivery| delivery.state != "pending");
        self.deliveries = handled.map(|delivery| delivery.id).collect();
        Ok(())
    }

    async fn serve(&mut self, screen: &mut Screen) -> Result {
        warn_uncommitted(&self.path, screen).await?;
        match self.left.len() {
            0 => {}
            1 => screen.say("1 run of last time goes on"),
            more => screen.say(&format!("{more} runs of last time go on")),
        }
        for run in self.left.clone() {
            self.follow(run, screen).await?;
        }
        let mut good = true;
        match self.runs_of_head(screen).await {
            Ok(runs) => {
                for run in runs {
                    good &= self.follow(run, screen).await?;
                }
            }
            // What is committed next may be right.
            Err(Failure::Said(_)) if !self.once => {}
            Err(failure) => return Err(failure),
        }
        if self.once {
            return if good { Ok(()) } else { Err(Failure::Said(FAILED)) };
        }
        screen.say(&format!(
            "\n{}watching {} for commits; Ctrl-C ends{}",
            style::DIM,
            self.path.display(),
            anstyle::Reset
        ));
        self.watch(screen).await
    }

    /// Shows every run and every delivery that was not shown yet, and those that come.
    async fn watch(&mut self, screen: &mut Screen) -> Result {
        loop {
            for delivery in self.deliveries().await? {
                if delivery.state != "pending" && self.deliveries.insert(delivery.id) {
                    say_outcome(&delivery, screen);
                }
            }
            for run in self.unknown_runs().await? {
                self.follow(run.id, screen).await?;
            }
            time::sleep(LOOK_PERIOD).await;
        }
    }

    /// Shows a run until its end, unless it was shown already. Whether it succeeded.
    async fn follow(&mut self, run: RunId, screen: &mut Screen) -> Result<bool> {
        if let Some(good) = self.followed.get(&run) {
            return Ok(*good);
        }
        let last = live::follow(&self.client, &run.to_string(), screen).await?;
        let good = last.run.state == "success";
        self.followed.insert(run, good);
        Ok(good)
    }

    /// The runs of the head. They are started if there are none since this start or open before it.
    async fn runs_of_head(&mut self, screen: &Screen) -> Result<Vec<RunId>> {
        // What was committed while no `dev` was there is on its way.
        for delivery in self.deliveries().await? {
            let delivery = tried(&self.client, delivery).await?;
            if delivery.state != "pending" {
                self.deliveries.insert(delivery.id);
            }
        }
        // A head that cannot be told is an error of the push.
        if let Ok(head) = self.head().await {
            let runs = self.runs(EARLIER_RUNS, None).await?.items;
            let current = current_runs(&runs, &head, &self.over);
            if !current.is_empty() {
                return Ok(current);
            }
        }
        self.push(screen).await
    }

    async fn head(&self) -> anyhow::Result<Head> {
        if git::is_repository(&self.path).await {
            return git::local_head(&self.path).await;
        }
        let source = self.source.context("the source is registered")?;
        Ok(self.git.snapshot(source, &self.path).await?.1)
    }

    async fn register(&self) -> Result<Source> {
        let url = self.path.to_str().context("the path is not UTF-8")?.to_owned();
        let sources: Page<Source> = self.client.get("/sources", &[]).await?;
        match sources.items.into_iter().find(|source| source.name == self.name) {
            Some(source) if source.url == url => Ok(source),
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
                self.client.post("/sources", &source).await
            }
        }
    }

    /// The newest runs first; with the cursor of a page, those before.
    async fn runs(&self, limit: u32, cursor: Option<String>) -> Result<Page<Run>> {
        let mut query = vec![("source", self.name.clone()), ("limit", limit.to_string())];
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        self.client.get("/runs", &query).await
    }

    /// Runs that were neither over before this start nor shown since, the first one first.
    async fn unknown_runs(&self) -> Result<Vec<Run>> {
        let mut unknown = Vec::new();
        let mut cursor = None;
        loop {
            let page = self.runs(50, cursor).await?;
            let before = unknown.len() + page.items.len();
            unknown.extend(page.items.into_iter().filter(|run| {
                !self.over.contains(&run.id) && !self.followed.contains_key(&run.id)
            }));
            cursor = page.next;
            // Older runs than a known one are known.
            if cursor.is_none() || unknown.len() < before {
                unknown.reverse();
                return Ok(unknown);
            }
        }
    }

    async fn deliveries(&self) -> Result<Vec<Delivery>> {
        let path = format!("/sources/{}/deliveries", self.name);
        let query = [("limit", "20".to_owned())];
        Ok(self.client.get::<Page<Delivery>>(&path, &query).await?.items)
    }

    /// Runs the workflows for a push of the head.
    async fn push(&mut self, screen: &Screen) -> Result<Vec<RunId>> {
        let path = format!("/sources/{}/push", self.name);
        let delivery: Delivery = self.client.post(&path, &json!({})).await?;
        let delivery = settled(&self.client, delivery).await?;
        self.deliveries.insert(delivery.id);
        if delivery.state != "done" {
            say_outcome(&delivery, screen);
            return Err(plan_error());
        }
        runs_of(&self.client, &delivery, &self.name).await
    }
}

fn is_over(run: &Run) -> bool {
    run.ended_at.is_some()
}

/// The runs that the newest push of this head became, the newest one of each workflow, if one of them
/// is not among those that were `over`.
fn current_runs(runs: &[Run], head: &Head, over: &BTreeSet<RunId>) -> Vec<RunId> {
    // A detached head is pushed as the branch HEAD.
    let branch = head.ref_name.as_deref().unwrap_or("HEAD");
    let branch = branch.strip_prefix("refs/heads/").unwrap_or(branch);
    let pushed = |run: &&Run| {
        run.trigger == "push" && run.commit == head.commit && run.branch.as_deref() == Some(branch)
    };
    let open = runs.iter().filter(pushed).find(|run| !over.contains(&run.id));
    let Some(event) = open.map(|run| run.event) else { return Vec::new() };
    let mut newest = BTreeMap::new();
    for run in runs.iter().filter(|run| run.event == event) {
        newest.entry(run.workflow.as_str()).or_insert(run.id);
    }
    let mut current: Vec<_> = newest.into_values().collect();
    current.sort();
    current
}

/// Waits until a delivery has come to something.
pub(super) async fn settled(client: &Client, mut delivery: Delivery) -> Result<Delivery> {
    while delivery.state == "pending" {
        time::sleep(SETTLE_PERIOD).await;
        delivery = client.get(&format!("/deliveries/{}", delivery.id), &[]).await?;
    }
    Ok(delivery)
}

/// Waits until a delivery has come to something, or has to be tried again.
async fn tried(client: &Client, mut delivery: Delivery) -> Result<Delivery> {
    while delivery.state == "pending" && delivery.error.is_none() {
        time::sleep(SETTLE_PERIOD).await;
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
