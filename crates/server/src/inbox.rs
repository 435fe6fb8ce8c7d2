//! From deliveries to runs: normalise, plan, match, create. A reconciler.
//!
//! A delivery is leased, so that a coordinator that dies over it leaves it to another one; ending it
//! and creating its runs is one transaction.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, bail};
use futures_util::future;
use serde::{Deserialize, Serialize};
use serde_json::json;
use shuntyard_core::{
    apply::Retry,
    event::{Changed, Event, Kind as EventKind},
    plan as rules,
    state::OutcomeSet,
    trigger::{self, Verdict},
};
use shuntyard_protocol::{
    DeliveryId, EventId, JobId, RunId, SourceId,
    api::StartRequest,
    plan::{Job, RunsOn, Selector, Workflow},
};
use shuntyard_store::{Delivery, NewDelivery, NewEvent, NewJob, NewRun, Source, StoreError};

use crate::{
    app::App,
    dispatch,
    planner::{self, PlanFailure},
    source::{Base, Incoming, Meaning, generic, github},
    sources::{Kind, Settings},
    watch,
};

/// The sender's name of a start by hand.
pub(crate) const MANUAL: &str = "manual";

/// Deliveries taken at once.
const BATCH_ROWS: u32 = 16;
/// Another coordinator may take a delivery after this.
const LEASE: Duration = Duration::from_mins(15);
/// Tries before a delivery is given up.
const TRIES_MAX: u32 = 5;
/// Waiting time after try n is this · 4ⁿ⁻¹.
const RETRY_BASE: Duration = Duration::from_secs(2);
/// Jobs that may wait in an org's queue.
const QUEUE_DEPTH: u32 = 100_000;

/// What a delivery came to.
enum Done {
    Created,
    Ignored(String),
    /// The author's or sender's mistake.
    Refused(String),
}

/// Takes what is due, once. True: there may be more.
async fn batch(app: &App) -> anyhow::Result<bool> {
    let now = app.env.now();
    let due = app.store.lease_deliveries(app.instance, BATCH_ROWS, LEASE, now).await?;
    let any = !due.is_empty();
    let mut by_source: BTreeMap<SourceId, Vec<Delivery>> = BTreeMap::new();
    for delivery in due {
        by_source.entry(delivery.source_id).or_default().push(delivery);
    }
    // A slow repository holds up its own deliveries, which keep their order, and no others.
    let sources = by_source.into_values().map(async |deliveries| {
        for delivery in deliveries {
            let ended = process(app, &delivery).await;
            let Err(error) = ended else { continue };
            if !error.downcast_ref::<StoreError>().is_some_and(StoreError::is_poison) {
                return Err(error);
            }
            // It would be refused for ever, and the others with it.
            tracing::error!(delivery = %delivery.id, error = format!("{error:#}"), "not storable");
            let (outcome, now) = ("what came of it cannot be stored", app.env.now());
            app.store.finish_delivery(delivery.id, "failed", outcome, None, now).await?;
        }
        anyhow::Ok(())
    });
    future::try_join_all(sources).await?;
    Ok(any)
}

/// One tick of the reconciler.
pub(crate) async fn tick(app: &App) -> anyhow::Result<()> {
    while batch(app).await? {}
    Ok(())
}

async fn process(app: &App, delivery: &Delivery) -> anyhow::Result<()> {
    let now = app.env.now();
    let (state, outcome) = match handle(app, delivery).await {
        Ok(Done::Created) => {
            app.pokes.dispatch.poke();
            return Ok(());
        }
        Ok(Done::Ignored(reason)) => ("ignored", reason),
        Ok(Done::Refused(reason)) => ("failed", reason),
        Err(error) => {
            let error = format!("{error:#}");
            if let Some(wait) = wait_after(delivery.tries) {
                tracing::warn!(delivery = %delivery.id, error, "delivery will be tried again");
                app.store.retry_delivery(delivery.id, now + wait, &error).await?;
                return Ok(());
            }
            ("failed", error)
        }
    };
    tracing::info!(delivery = %delivery.id, state, outcome, "delivery ended");
    app.store.finish_delivery(delivery.id, state, &outcome, None, now).await?;
    Ok(())
}

/// How long to wait after so many tries that failed. None: it is given up.
fn wait_after(tries: u32) -> Option<Duration> {
    (tries < TRIES_MAX).then(|| RETRY_BASE * 4u32.pow(tries.saturating_sub(1)))
}

async fn handle(app: &App, delivery: &Delivery) -> anyhow::Result<Done> {
    let Some(source) = app.store.source(delivery.source_id).await? else {
        return Ok(Done::Ignored("the source was removed".to_owned()));
    };
    let meaning = match meaning(&source, delivery) {
        Ok(meaning) => meaning,
        Err(error) => return Ok(Done::Refused(format!("{error:#}"))),
    };
    let incoming = match meaning {
        Meaning::Event(incoming) => *incoming,
        Meaning::Ignored(reason) => return Ok(Done::Ignored(reason)),
    };
    let (event, plan_commit) = complete(app, &source, incoming).await?;
    let planned = match planner::plan_at(app, &source, &plan_commit).await {
        Ok(planned) => planned,
        Err(PlanFailure::Author(error) | PlanFailure::Limit(error)) => {
            return Ok(Done::Refused(format!("plan error: {error}")));
        }
        Err(PlanFailure::Here(error)) => return Err(error),
    };
    if planned.plan.workflows.is_empty() {
        return Ok(Done::Ignored("no file exports a workflow at this commit".to_owned()));
    }
    let (mut runs, mut outcome) = (Vec::new(), Vec::new());
    for workflow in &planned.plan.workflows {
        match trigger::matches(workflow, &event)? {
            Verdict::Match(reason) => {
                outcome.push(format!("{}: runs: {reason}", workflow.name));
                runs.push(new_run(app, &source, workflow, &planned.key, &event)?);
            }
            Verdict::NoMatch(reasons) => {
                outcome.push(format!("{}: {}", workflow.name, reasons.join("; ")));
            }
        }
    }
    let outcome = outcome.join("\n");
    if runs.is_empty() {
        return Ok(Done::Ignored(outcome));
    }
    let event = new_event(app, &source, delivery, &event);
    let now = app.env.now();
    let of = Some((delivery.id, outcome.as_str()));
    app.store.create_runs(&event, runs, of, QUEUE_DEPTH, now).await?;
    Ok(Done::Created)
}

/// Whether strangers wrote the code: it runs only where it cannot look around. A pull request's ref
/// that somebody starts by hand may be a fork's.
fn is_strange(kind: &EventKind, ref_name: Option<&str>) -> bool {
    match kind {
        EventKind::PullRequest(pr) => pr.fork,
        EventKind::Manual { .. } => ref_name.is_some_and(|name| name.starts_with("refs/pull/")),
        EventKind::Push { .. } | EventKind::Tag { .. } | EventKind::Generic {} => false,
    }
}

/// Where the workflows for strangers' code come from: the head of the branch that they want to get
/// it into, so that they change the code that is tested, but not what is done with it. What the
/// payload says of that branch may be from long ago.
async fn trusted_plan(app: &App, url: &str, incoming: &Incoming) -> anyhow::Result<Option<String>> {
    if !is_strange(&incoming.kind, incoming.ref_name.as_deref()) {
        return Ok(None);
    }
    let commit = match &incoming.kind {
        EventKind::PullRequest(pr) => {
            app.git.resolve(url, &format!("refs/heads/{}", pr.target)).await?
        }
        EventKind::Manual { .. }
        | EventKind::Push { .. }
        | EventKind::Tag { .. }
        | EventKind::Generic {} => app.git.default_head(url).await?.commit,
    };
    Ok(Some(commit))
}

fn meaning(source: &Source, delivery: &Delivery) -> anyhow::Result<Meaning> {
    if delivery.kind == MANUAL {
        return manual(&delivery.body);
    }
    let settings = Settings::of(source)?;
    match Kind::parse(&source.kind) {
        Some(Kind::Github | Kind::Local) => {
            github::normalise(&delivery.kind, &delivery.body, &source.name, settings.forks())
        }
        Some(Kind::Generic) => generic::normalise(&delivery.body),
        None => {
            bail!("the source has the kind '{}', which this version does not know", source.kind)
        }
    }
}

/// The body of a delivery that a person made.
#[derive(Serialize, Deserialize)]
struct Manual {
    workflow: String,
    ref_name: Option<String>,
}

fn manual(body: &[u8]) -> anyhow::Result<Meaning> {
    let manual: Manual = serde_json::from_slice(body).context("start request")?;
    let commit = manual.ref_name.as_deref().filter(|name| crate::git::check_commit(name).is_ok());
    Ok(Meaning::Event(Box::new(Incoming {
        kind: EventKind::Manual { workflow: manual.workflow },
        commit: commit.map(str::to_owned),
        ref_name: manual.ref_name.filter(|name| name.starts_with("refs/")),
        base: Base::None,
    })))
}

/// Stores a start by hand, like any other delivery.
pub(crate) async fn insert_manual(
    app: &App,
    source: &Source,
    request: &StartRequest,
) -> anyhow::Result<DeliveryId> {
    let ref_name = request.ref_name.as_ref().map(|name| {
        let plain = !name.starts_with("refs/") && crate::git::check_commit(name).is_err();
        if plain { format!("refs/heads/{name}") } else { name.clone() }
    });
    let now = app.env.now();
    let id = DeliveryId::mint(now, app.env.random());
    let body = Manual { workflow: request.workflow.clone(), ref_name };
    let delivery = NewDelivery {
        id,
        org: source.org.clone(),
        source: source.id,
        delivery_key: id.to_string(),
        body_digest: None,
        kind: MANUAL.to_owned(),
        headers: json!({}),
        body: serde_json::to_vec(&body)?,
    };
    app.store.insert_delivery(&delivery, now).await?;
    app.pokes.inbox.poke();
    Ok(id)
}

/// Looks at the repository: which commit, by whom, what changed.
///
/// Also returns the commit whose workflows are planned.
async fn complete(
    app: &App,
    source: &Source,
    incoming: Incoming,
) -> anyhow::Result<(Event, String)> {
    let url = watch::code_url(app, source).await?;
    let trusted = trusted_plan(app, &url, &incoming).await?;
    let (commit, ref_name) = match (incoming.commit, incoming.ref_name) {
        (Some(commit), ref_name) => (commit, ref_name),
        (None, Some(name)) => (app.git.resolve(&url, &name).await?, Some(name)),
        (None, None) => {
            let head = app.git.default_head(&url).await?;
            (head.commit, head.ref_name)
        }
    };
    let needed: Vec<_> = std::iter::once(commit.as_str()).chain(trusted.as_deref()).collect();
    let wanted = match &incoming.base {
        Base::Before(commit) | Base::Target(commit) => Some(commit.as_str()),
        Base::New | Base::None => None,
    };
    let mut known = app.git.fetch(source.id, &url, &needed, wanted.as_slice()).await?;
    let commit = known.remove(&commit).with_context(|| format!("{commit} is no commit"))?;
    let info = app.git.commit_info(source.id, &commit).await?;
    let before = match &incoming.base {
        Base::Before(before) => Some(before.clone()),
        Base::New | Base::Target(_) | Base::None => None,
    };
    let changed = changed(app, source, &url, &commit, ref_name.as_deref(), incoming.base).await;
    let changed = changed.unwrap_or_else(|error| Changed::Unknown(format!("{error:#}")));
    let plan_commit = trusted.unwrap_or_else(|| commit.clone());
    let event = Event {
        kind: incoming.kind,
        commit,
        ref_name,
        before,
        subject: info.subject,
        author: info.author,
        changed,
    };
    Ok((event, plan_commit))
}

async fn changed(
    app: &App,
    source: &Source,
    url: &str,
    commit: &str,
    ref_name: Option<&str>,
    base: Base,
) -> anyhow::Result<Changed> {
    let base = match base {
        Base::None => return Ok(Changed::Unknown("the event is not about files".to_owned())),
        Base::Before(before) => Some(before),
        Base::Target(target) => app.git.merge_base(source.id, &target, commit).await,
        Base::New => {
            let head = app.git.default_head(url).await?;
            if head.ref_name.as_deref() == ref_name {
                return Ok(Changed::Unknown("first push of the default branch".to_owned()));
            }
            app.git.fetch(source.id, url, &[&head.commit], &[]).await?;
            app.git.merge_base(source.id, &head.commit, commit).await
        }
    };
    match base {
        Some(base) => app.git.changed(source.id, &base, commit).await,
        None => Ok(Changed::Unknown("no base commit".to_owned())),
    }
}

fn new_event(app: &App, source: &Source, delivery: &Delivery, event: &Event) -> NewEvent {
    let now = app.env.now();
    NewEvent {
        id: EventId::mint(now, app.env.random()),
        org: source.org.clone(),
        source: source.id,
        kind: event.trigger().to_owned(),
        // Deliveries are unique already; one that was made on purpose is a new happening.
        event_key: Some(delivery.id.to_string()),
        ref_name: event.ref_name.clone(),
        branch: event.branch().map(str::to_owned),
        commit: Some(event.commit.clone()),
        actor: Some(event.author.clone()),
        title: Some(event.subject.clone()),
        body: serde_json::to_value(event).expect("an event is JSON"),
    }
}

fn new_run(
    app: &App,
    source: &Source,
    workflow: &Workflow,
    plan_key: &str,
    event: &Event,
) -> anyhow::Result<NewRun> {
    let (now, settings) = (app.env.now(), Settings::of(source)?);
    let untrusted = is_strange(&event.kind, event.ref_name.as_deref());
    let run = RunId::mint(now, app.env.random());
    let mut jobs = Vec::new();
    for job in &workflow.jobs {
        for instance in rules::instances(job)? {
            jobs.push(NewJob {
                id: JobId::mint_in(run, now, app.env.random()),
                name: job.name.clone(),
                title: instance.title,
                matrix: instance.matrix,
                spec: serde_json::to_value(job)?,
                runs_on: dispatch::with_server_labels(
                    runs_on(job, &settings),
                    &source.org,
                    untrusted,
                ),
                priority: job.priority,
                retry: retry(job),
                continue_on_error: job.continue_on_error,
                needs: job.needs.clone(),
                concurrency: job.concurrency.clone(),
            });
        }
    }
    Ok(NewRun {
        id: run,
        workflow: workflow.name.clone(),
        file: workflow.file.clone(),
        plan_key: Some(plan_key.to_owned()),
        env: workflow.env.clone(),
        timeout_ms: workflow.timeout_ms,
        concurrency: workflow.concurrency.clone(),
        jobs,
    })
}

fn runs_on(job: &Job, settings: &Settings) -> RunsOn {
    job.runs_on.clone().unwrap_or_else(|| RunsOn {
        labels: settings.labels.iter().cloned().map(Selector::Exact).collect(),
        exclude: Vec::new(),
    })
}

fn retry(job: &Job) -> Retry {
    let set = |outcomes: &[shuntyard_protocol::Outcome]| {
        outcomes.iter().fold(OutcomeSet::default(), |set, &outcome| set.with(outcome))
    };
    match &job.retry {
        None => Retry { max_tries: 1, on: OutcomeSet::default() },
        Some(retry) if retry.on.is_empty() => {
            Retry { max_tries: retry.max_attempts, on: set(&rules::RETRY_ON_DEFAULT) }
        }
        Some(retry) => Retry { max_tries: retry.max_attempts, on: set(&retry.on) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_is_given_up_after_tries_max_tries() {
        assert_eq!(wait_after(1), Some(RETRY_BASE));
        assert_eq!(wait_after(2), Some(RETRY_BASE * 4));
        assert!(wait_after(TRIES_MAX - 1).is_some());
        assert_eq!(wait_after(TRIES_MAX), None);
    }
}
