//! Runs and jobs: listed, shown, cancelled, run again; the queue.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::{Path, Query, State},
    http::StatusCode,
};
use serde::Deserialize;
use shuntyard_core::{
    apply::{Answer, Fact},
    gate::Place,
    state::{JobState, RunState},
};
use shuntyard_protocol::{
    JobId, RunId,
    agent::AttemptId,
    api::{
        self, CancelRequest, Job, JobDetail, LogStream, Page, Problem, QueueItem, RerunRequest,
        Run, RunDetail,
    },
    plan,
};
use shuntyard_store::{JobInfo, RunFilter, RunInfo, StepInfo};

use super::{
    audit,
    auth::{Caller, Operator, Viewer},
    error::{ApiError, ApiResult, bad_request, conflict, not_found},
    page_args, parse_id, sources,
};
use crate::{app::App, waiting};

#[derive(Deserialize, utoipa::IntoParams)]
pub struct ListQuery {
    org: Option<String>,
    source: Option<String>,
    workflow: Option<String>,
    branch: Option<String>,
    commit: Option<String>,
    state: Option<String>,
    cursor: Option<String>,
    limit: Option<u32>,
}

#[utoipa::path(get, path = "/api/v1/runs", tag = "runs", params(ListQuery),
    responses((status = 200, body = Page<Run>), (status = 401, body = Problem)))]
pub async fn list(
    State(app): State<Arc<App>>,
    Viewer(caller): Viewer,
    Query(query): Query<ListQuery>,
) -> ApiResult<Json<Page<Run>>> {
    let (cursor, limit) = page_args(query.cursor.as_deref(), query.limit)?;
    let source = match &query.source {
        Some(name) => Some(sources::find(&app, &caller, query.org.as_deref(), name).await?.id),
        None => None,
    };
    let state = query.state.as_deref().map(|word| {
        RunState::parse(word).ok_or_else(|| bad_request(format!("'{word}' is no state of a run")))
    });
    let org = match (query.org, caller.org()) {
        (Some(org), _) if !caller.may_see(&org) => return Err(not_found("org", org)),
        (Some(org), _) => Some(org),
        (None, own) => own.map(str::to_owned),
    };
    let filter = RunFilter {
        org,
        source,
        workflow: query.workflow,
        branch: query.branch,
        commit: query.commit,
        state: state.transpose()?,
    };
    let page = app.store.list_runs(&filter, cursor, limit).await?;
    let items = page.items.into_iter().map(view).collect();
    Ok(Json(Page { items, next: page.next.map(|cursor| cursor.to_string()) }))
}

#[utoipa::path(get, path = "/api/v1/runs/{id}", tag = "runs", params(("id" = String, Path)),
    responses((status = 200, body = RunDetail), (status = 404, body = Problem)))]
pub async fn show(
    State(app): State<Arc<App>>,
    Viewer(caller): Viewer,
    Path(id): Path<String>,
) -> ApiResult<Json<RunDetail>> {
    let run = find(&app, &caller, &id).await?;
    Ok(Json(detail(&app, run).await?))
}

#[utoipa::path(get, path = "/api/v1/jobs/{id}", tag = "runs", params(("id" = String, Path)),
    responses((status = 200, body = JobDetail), (status = 404, body = Problem)))]
pub async fn job(
    State(app): State<Arc<App>>,
    Viewer(caller): Viewer,
    Path(id): Path<String>,
) -> ApiResult<Json<JobDetail>> {
    let job = find_job(&app, &caller, &id).await?;
    let current = current(&app, &job).await?;
    let attempts = app.store.attempts_of(current.job).await?;
    let logs = app.store.log_streams(current).await?;
    let steps = app.store.steps_of(current).await?;
    let held = job.state == JobState::Held;
    let mut waits = if held { waiting::at_gates(&app, job.run_id).await? } else { BTreeMap::new() };
    let why = waits.remove(&Place::Job(job.id));
    let job = job_view(job, &steps);
    Ok(Json(JobDetail {
        job: Job { reason: why.or(job.reason.clone()), ..job },
        attempts: attempts.into_iter().map(attempt_view).collect(),
        logs: logs.into_iter().map(stream_view).collect(),
    }))
}

#[utoipa::path(post, path = "/api/v1/runs/{id}/cancel", tag = "runs", params(("id" = String, Path)),
    request_body = CancelRequest, responses((status = 202), (status = 404, body = Problem)))]
pub async fn cancel(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Path(id): Path<String>,
    Json(request): Json<CancelRequest>,
) -> ApiResult<StatusCode> {
    let run = find(&app, &caller, &id).await?;
    let reason = request.reason.unwrap_or_else(|| "cancelled by hand".to_owned());
    let fact =
        Fact::CancelRun { run: run.id, force: request.force, reason, by: caller.name.clone() };
    accept(app.store.submit(fact).await?)?;
    audit(&app, &caller, &run.org, "run.cancel", &id).await?;
    Ok(StatusCode::ACCEPTED)
}

#[utoipa::path(post, path = "/api/v1/jobs/{id}/cancel", tag = "runs", params(("id" = String, Path)),
    request_body = CancelRequest, responses((status = 202), (status = 404, body = Problem)))]
pub async fn cancel_job(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Path(id): Path<String>,
    Json(request): Json<CancelRequest>,
) -> ApiResult<StatusCode> {
    let job = find_job(&app, &caller, &id).await?;
    let reason = request.reason.unwrap_or_else(|| "cancelled by hand".to_owned());
    let fact =
        Fact::CancelJob { job: job.id, force: request.force, reason, by: caller.name.clone() };
    accept(app.store.submit(fact).await?)?;
    audit(&app, &caller, &job.org, "job.cancel", &id).await?;
    Ok(StatusCode::ACCEPTED)
}

#[utoipa::path(post, path = "/api/v1/runs/{id}/rerun", tag = "runs", params(("id" = String, Path)),
    request_body = RerunRequest,
    responses((status = 201, body = Run), (status = 409, body = Problem)))]
pub async fn rerun(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Path(id): Path<String>,
    Json(request): Json<RerunRequest>,
) -> ApiResult<(StatusCode, Json<Run>)> {
    let run = find(&app, &caller, &id).await?;
    if !run.state.is_ended() {
        return Err(conflict("the run has not ended yet; cancel it first"));
    }
    let now = app.env.now();
    let new = RunId::mint(now, app.env.random());
    let mut mint = || JobId::mint_in(new, now, app.env.random());
    app.store.rerun(run.id, request.failed, new, &mut mint, now).await?;
    app.pokes.dispatch.poke();
    audit(&app, &caller, &run.org, "run.rerun", &id).await?;
    let run = app.store.run(new).await?.ok_or_else(|| not_found("run", new))?;
    Ok((StatusCode::CREATED, Json(view(run))))
}

#[derive(Deserialize, utoipa::IntoParams)]
pub struct QueueQuery {
    limit: Option<u32>,
}

#[utoipa::path(get, path = "/api/v1/queue", tag = "runs", params(QueueQuery),
    responses((status = 200, body = Page<QueueItem>), (status = 401, body = Problem)))]
pub async fn queue(
    State(app): State<Arc<App>>,
    Viewer(caller): Viewer,
    Query(query): Query<QueueQuery>,
) -> ApiResult<Json<Page<QueueItem>>> {
    let (_, limit) = page_args(None, query.limit)?;
    let items = waiting::queue(&app, caller.org(), limit).await?;
    Ok(Json(Page { items, next: None }))
}

/// Turns the answer to a request into a response.
fn accept(answer: Answer) -> ApiResult<()> {
    match answer {
        Answer::Done => Ok(()),
        Answer::Stale => Err(conflict("it has ended already")),
        Answer::Failed { reason } => Err(conflict(reason)),
        other @ (Answer::Committed
        | Answer::Begun { .. }
        | Answer::Renewed { .. }
        | Answer::Expired
        | Answer::Acked { .. }
        | Answer::Gap { .. }
        | Answer::Superseded
        | Answer::Unknown) => Err(ApiError::from(anyhow::anyhow!("unexpected answer {other:?}"))),
    }
}

pub async fn find(app: &App, caller: &Caller, id: &str) -> ApiResult<RunInfo> {
    let run = app.store.run(parse_id(id)?).await?.filter(|run| caller.may_see(&run.org));
    run.ok_or_else(|| not_found("run", id))
}

pub async fn find_job(app: &App, caller: &Caller, id: &str) -> ApiResult<JobInfo> {
    let job = app.store.job(parse_id(id)?).await?.filter(|job| caller.may_see(&job.org));
    job.ok_or_else(|| not_found("job", id))
}

/// The attempt that a job's steps and logs are of. A result that was taken over has those of the job
/// that it comes from.
pub async fn current(app: &App, job: &JobInfo) -> ApiResult<AttemptId> {
    let own = AttemptId { job: job.id, attempt: job.attempt };
    let Some(from) = job.carried_from else { return Ok(own) };
    let origin = app.store.job(from).await?;
    Ok(origin.map_or(own, |job| AttemptId { job: job.id, attempt: job.attempt }))
}

/// A run with its jobs and their steps.
pub async fn detail(app: &App, run: RunInfo) -> ApiResult<RunDetail> {
    let rows = app.store.jobs_of(run.id).await?;
    let held = run.held || rows.iter().any(|job| job.state == JobState::Held);
    let waits = if held { waiting::at_gates(app, run.id).await? } else { BTreeMap::new() };
    let mut jobs = Vec::new();
    for job in rows {
        let steps = match current(app, &job).await? {
            AttemptId { attempt: 0, .. } => Vec::new(),
            current => app.store.steps_of(current).await?,
        };
        let why = waits.get(&Place::Job(job.id)).cloned();
        let view = job_view(job, &steps);
        jobs.push(Job { reason: why.or(view.reason.clone()), ..view });
    }
    let waiting = waits.get(&Place::Run(run.id)).cloned();
    let why = format!("{} of {}", run.event_kind, run.ref_name.as_deref().unwrap_or("a commit"));
    Ok(RunDetail { run: view(run), why, waiting, jobs })
}

pub fn view(run: RunInfo) -> Run {
    let by = run.cancel_by.map(|by| format!(" by {by}")).unwrap_or_default();
    Run {
        id: run.id,
        event: run.event_id,
        number: run.number,
        org: run.org,
        source: run.source,
        workflow: run.workflow,
        state: run.state.as_str().to_owned(),
        reason: run.cancel_reason.map(|reason| format!("{reason}{by}")),
        trigger: run.event_kind,
        branch: run.branch,
        commit: run.commit_sha.unwrap_or_default(),
        subject: run.title.unwrap_or_default(),
        author: run.actor.unwrap_or_default(),
        created_at: run.created_at,
        started_at: run.started_at,
        ended_at: run.ended_at,
        rerun_of: run.rerun_of,
    }
}

fn job_view(job: JobInfo, steps: &[StepInfo]) -> Job {
    // The spec was checked when the run was made.
    let spec: plan::Job = serde_json::from_value(job.spec).unwrap_or_default();
    let known = |index: u32| steps.iter().find(|step| step.idx == index);
    let steps = (0u32..).zip(&spec.steps).map(|(index, step)| {
        let info = known(index);
        api::Step {
            index,
            name: step.name.clone(),
            state: info.map_or("pending", |info| info.state.as_str()).to_owned(),
            started_at: info.and_then(|info| info.started_at),
            ended_at: info.and_then(|info| info.ended_at),
            exit_code: info.and_then(|info| info.exit_code),
            error: info.and_then(|info| info.error.clone()),
            outputs: info.and_then(|info| info.outputs.clone()),
            tries: info.map_or(0, |info| info.tries),
        }
    });
    Job {
        steps: steps.collect(),
        id: job.id,
        run: job.run_id,
        name: job.name,
        title: job.title,
        state: job.state.as_str().to_owned(),
        reason: job.reason,
        attempt: job.attempt,
        try_no: job.try_no,
        carried_from: job.carried_from,
        needs: spec.needs.into_iter().map(|need| need.job).collect(),
        matrix: job.matrix,
        queued_at: job.queued_at,
        started_at: job.started_at,
        ended_at: job.ended_at,
    }
}

fn attempt_view(attempt: shuntyard_store::AttemptInfo) -> api::Attempt {
    api::Attempt {
        attempt: attempt.attempt,
        try_no: attempt.try_no,
        state: attempt.state.as_str().to_owned(),
        agent: attempt.agent_id,
        reason: attempt.reason,
        late: attempt.late.map(|late| late.to_string()),
        started_at: attempt.started_at,
        ended_at: attempt.ended_at,
    }
}

fn stream_view(stream: shuntyard_store::LogStream) -> LogStream {
    LogStream {
        stream: stream.stream,
        len: stream.to,
        complete: stream.complete,
        torn: stream.torn,
    }
}
