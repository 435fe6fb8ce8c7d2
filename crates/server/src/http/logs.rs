//! Logs: as lines, as raw bytes, and live with the run by server-sent events.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Path, Query, State},
    http::header,
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use base64::{Engine, prelude::BASE64_STANDARD};
use futures_util::{Stream, stream};
use serde::Deserialize;
use shuntyard_protocol::{
    RunId,
    agent::AttemptId,
    api::{LogChunk, LogLines, Problem, RunDetail, lines},
};
use shuntyard_store::{Change, StoreError};
use tokio::{
    sync::{broadcast, mpsc},
    time,
};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    auth::Viewer,
    error::{ApiResult, bad_request},
    runs,
};
use crate::app::App;

/// Most bytes of a log that one answer or event carries.
const SLICE_BYTES: u32 = 256 * 1024;
/// Safety net of a live view: it looks for itself at least this often.
const POLL_PERIOD: Duration = Duration::from_secs(1);
/// Events that wait for a slow reader.
const EVENTS_CAPACITY: usize = 16;
/// A log that is still incomplete this long after its run ended is not waited for.
const LATE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Deserialize, utoipa::IntoParams)]
pub struct LogQuery {
    /// Absent: the current attempt.
    attempt: Option<u32>,
    /// 0 is checkout and set-up, step `i` writes stream `i + 1`. Absent: all, in order.
    stream: Option<u32>,
    /// Offset of the first byte.
    from: Option<u64>,
}

#[utoipa::path(get, path = "/api/v1/jobs/{id}/logs", tag = "logs",
    params(("id" = String, Path), LogQuery),
    responses((status = 200, body = LogLines), (status = 404, body = Problem)))]
pub async fn as_lines(
    State(app): State<Arc<App>>,
    Viewer(caller): Viewer,
    Path(id): Path<String>,
    Query(query): Query<LogQuery>,
) -> ApiResult<Json<LogLines>> {
    let job = runs::find_job(&app, &caller, &id).await?;
    let current = runs::current(&app, &job).await?;
    let attempt = AttemptId { attempt: query.attempt.unwrap_or(current.attempt), ..current };
    let stream =
        query.stream.ok_or_else(|| bad_request("say which stream: 0, or a step's index + 1"))?;
    let from = query.from.unwrap_or(0);
    let slice = app.store.log_read(attempt, stream, from, SLICE_BYTES).await?;
    // A line that is still being written, or cut by the limit, comes with the next answer.
    let whole = slice.bytes.iter().rposition(|&b| b == b'\n').map_or(0, |end| end + 1);
    let at_end = slice.complete && slice.from + slice.bytes.len() as u64 == slice.to;
    let long_line = whole == 0 && slice.bytes.len() == SLICE_BYTES as usize;
    let len = if at_end || long_line { slice.bytes.len() } else { whole };
    let next = slice.from + len as u64;
    Ok(Json(LogLines {
        lines: lines(&slice.bytes[..len], slice.from, &slice.marks),
        next,
        complete: slice.complete && next == slice.to,
        torn: slice.torn,
    }))
}

#[utoipa::path(get, path = "/api/v1/jobs/{id}/logs/raw", tag = "logs",
    params(("id" = String, Path), LogQuery),
    responses((status = 200, description = "the bytes as they were written",
        content_type = "application/octet-stream"), (status = 404, body = Problem)))]
pub async fn raw(
    State(app): State<Arc<App>>,
    Viewer(caller): Viewer,
    Path(id): Path<String>,
    Query(query): Query<LogQuery>,
) -> ApiResult<Response> {
    let job = runs::find_job(&app, &caller, &id).await?;
    let current = runs::current(&app, &job).await?;
    let attempt = AttemptId { attempt: query.attempt.unwrap_or(current.attempt), ..current };
    let streams = app.store.log_streams(attempt).await?;
    let wanted = streams.iter().filter(|s| query.stream.is_none_or(|only| only == s.stream));
    let complete = streams.iter().all(|stream| stream.complete);
    let wanted: Vec<_> = wanted.map(|stream| stream.stream).rev().collect();
    let cursor = (app, wanted, query.from.unwrap_or(0));
    let body = stream::try_unfold(cursor, move |(app, mut wanted, from)| async move {
        let Some(&stream) = wanted.last() else { return Ok::<_, StoreError>(None) };
        let slice = app.store.log_read(attempt, stream, from, SLICE_BYTES).await?;
        let mut next = from + slice.bytes.len() as u64;
        if slice.bytes.is_empty() {
            wanted.pop();
            next = 0;
        }
        Ok(Some((Bytes::from(slice.bytes), (app, wanted, next))))
    });
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (
            header::HeaderName::from_static("x-log-complete"),
            if complete { "true" } else { "false" },
        ),
    ];
    Ok((headers, Body::from_stream(body)).into_response())
}

#[derive(Deserialize, utoipa::IntoParams)]
pub struct EventsQuery {
    /// Also the logs of its jobs.
    logs: Option<bool>,
}

/// Events `run` (a `RunDetail`, whenever it changed), `log` (a `LogChunk`) and, last, `end`.
#[utoipa::path(get, path = "/api/v1/runs/{id}/events", tag = "logs",
    params(("id" = String, Path), EventsQuery),
    responses((status = 200, description = "server-sent events", content_type = "text/event-stream"),
        (status = 404, body = Problem)))]
pub async fn events(
    State(app): State<Arc<App>>,
    Viewer(caller): Viewer,
    Path(id): Path<String>,
    Query(query): Query<EventsQuery>,
) -> ApiResult<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let run = runs::find(&app, &caller, &id).await?.id;
    let (sender, receiver) = mpsc::channel(EVENTS_CAPACITY);
    let changes = app.store.changes();
    let live = Live {
        app: Arc::clone(&app),
        run,
        revision: None,
        logs: query.logs.unwrap_or(false),
        offsets: BTreeMap::new(),
        sender,
    };
    app.tasks.spawn("live view", async move {
        if let Err(error) = live.follow(changes).await {
            tracing::debug!(%run, error = format!("{error:#}"), "live view ended");
        }
    });
    Ok(Sse::new(ReceiverStream::new(receiver)).keep_alive(KeepAlive::default()))
}

/// One reader of one run.
struct Live {
    app: Arc<App>,
    run: RunId,
    /// What was sent last.
    revision: Option<u64>,
    logs: bool,
    offsets: BTreeMap<(AttemptId, u32), u64>,
    sender: mpsc::Sender<Result<Event, Infallible>>,
}

impl Live {
    async fn follow(mut self, mut changes: broadcast::Receiver<Change>) -> anyhow::Result<()> {
        loop {
            if self.catch_up().await? {
                self.send("end", &serde_json::json!({})).await?;
                return Ok(());
            }
            // A hint about something else costs nothing but this look; a lost one costs a period.
            let concerns = async {
                loop {
                    match changes.recv().await {
                        Ok(change) if self.concerned(&change) => return,
                        Ok(_) => {}
                        Err(_) => return,
                    }
                }
            };
            tokio::select! {
                _ = time::timeout(POLL_PERIOD, concerns) => {}
                () = self.sender.closed() => return Ok(()),
            }
        }
    }

    fn concerned(&self, change: &Change) -> bool {
        let known =
            |id: &AttemptId| self.offsets.range((*id, 0)..=(*id, u32::MAX)).next().is_some();
        change.runs.contains(&self.run) || change.logs.iter().any(|(id, ..)| known(id))
    }

    /// Sends what is new. True: the run has ended and all of it was sent.
    async fn catch_up(&mut self) -> anyhow::Result<bool> {
        let run = self.app.store.run(self.run).await?;
        let Some(run) = run else { return Ok(true) };
        let (ended, ended_at) = (run.state.is_ended(), run.ended_at);
        let changed = self.revision != Some(run.revision);
        let mut complete = true;
        if changed || self.logs {
            let revision = run.revision;
            let detail = runs::detail(&self.app, run).await;
            let detail = detail.map_err(|error| anyhow::anyhow!("{}", error.code()))?;
            if changed {
                self.send("run", &detail).await?;
                self.revision = Some(revision);
            }
            if self.logs {
                complete = self.send_logs(&detail).await?;
            }
        }
        let now = self.app.env.now();
        let late = ended_at.is_some_and(|at| now.since(at) > LATE_TIMEOUT);
        Ok(ended && (complete || late))
    }

    async fn send_logs(&mut self, detail: &RunDetail) -> anyhow::Result<bool> {
        let mut complete = true;
        for job in detail.jobs.iter().filter(|job| job.attempt > 0) {
            let id = AttemptId { job: job.id, attempt: job.attempt };
            let app = Arc::clone(&self.app);
            let streams = app.store.log_streams(id).await?;
            if streams.is_empty() {
                self.offsets.entry((id, 0)).or_default();
            }
            for stream in streams {
                let mut from = *self.offsets.entry((id, stream.stream)).or_default();
                while from < stream.to {
                    let slice = app.store.log_read(id, stream.stream, from, SLICE_BYTES).await?;
                    if slice.bytes.is_empty() {
                        break;
                    }
                    let chunk = LogChunk {
                        job: id.job,
                        attempt: id.attempt,
                        stream: stream.stream,
                        from,
                        bytes: BASE64_STANDARD.encode(&slice.bytes),
                        marks: slice.marks,
                    };
                    from += slice.bytes.len() as u64;
                    self.send("log", &chunk).await?;
                    self.offsets.insert((id, stream.stream), from);
                }
                complete &= stream.complete;
            }
        }
        Ok(complete)
    }

    async fn send(&self, name: &str, data: &impl serde::Serialize) -> anyhow::Result<()> {
        let event = Event::default().event(name).json_data(data)?;
        Ok(self.sender.send(Ok(event)).await?)
    }
}
