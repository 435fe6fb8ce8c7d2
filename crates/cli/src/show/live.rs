//! Following runs: their events come in over the API, and a display shows them.

mod plain;
mod streams;
mod text;
mod tree;

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, IsTerminal},
    time::Duration,
};

use anyhow::Context;
use base64::{Engine, prelude::BASE64_STANDARD};
use futures_util::StreamExt;
use serde_json::json;
use shuntyard_protocol::{
    JobId, Timestamp,
    agent::Mark,
    api::{LogChunk, RunDetail},
};
use tokio::{sync::mpsc, time};

use self::streams::Streams;
use crate::{
    client::Client,
    exit::{Failure, Result},
    show,
};

/// Before a connection that broke is made anew.
const RECONNECT_PERIOD: Duration = Duration::from_millis(500);
/// Connections in a row that break, or cannot be made, before a follower gives up: two minutes.
const BREAKS_LIMIT: u32 = 240;
/// Updates that wait to be shown; then the server waits.
const UPDATES_CAPACITY: usize = 64;
/// Lines of a failed step that the summary repeats.
const TAIL_LINES: usize = 50;

/// Something new about a run.
pub(crate) enum Update {
    Run(Box<RunDetail>),
    Log(Chunk),
}

/// New bytes of one stream, which nobody has seen before.
pub(crate) struct Chunk {
    pub(crate) job: JobId,
    pub(crate) attempt: u32,
    /// 0 is set-up, `i + 1` step `i`.
    pub(crate) stream: u32,
    pub(crate) from: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) marks: Vec<Mark>,
}

/// New whole lines of one stream.
struct Lines {
    job: JobId,
    stream: u32,
    whole: Vec<Line>,
}

struct Line {
    /// When its first byte was read.
    at: Timestamp,
    text: String,
}

/// How runs are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// A tree that changes in place.
    Tree,
    /// Prefixed lines.
    Plain,
    /// One JSON object a line.
    Json,
}

impl Style {
    /// The best for where the output goes.
    pub(crate) fn choose(json: bool) -> Self {
        match (json, io::stdout().is_terminal()) {
            (true, _) => Self::Json,
            (false, true) => Self::Tree,
            (false, false) => Self::Plain,
        }
    }
}

/// Shows one run until its end, whether or not somebody reads it. Returns its last state.
pub(crate) async fn follow(client: &Client, run: &str, screen: &mut Screen) -> Result<RunDetail> {
    let last = each_update(client, run, |update| Ok(show::unread(screen.update(update))?)).await?;
    show::unread(screen.finish(&last))?;
    Ok(last)
}

/// Hands over each update of a run until its end. Returns its last state.
pub(crate) async fn each_update(
    client: &Client,
    run: &str,
    mut take: impl FnMut(Update) -> Result,
) -> Result<RunDetail> {
    let (sender, mut updates) = mpsc::channel(UPDATES_CAPACITY);
    let reading = read(client.clone(), run.to_owned(), sender);
    tokio::pin!(reading);
    let mut last = None;
    let mut done = false;
    loop {
        tokio::select! {
            ended = &mut reading, if !done => {
                ended?;
                done = true;
            }
            update = updates.recv() => match update {
                Some(update) => {
                    if let Update::Run(detail) = &update {
                        last = Some((**detail).clone());
                    }
                    take(update)?;
                }
                None => break,
            },
        }
    }
    match last {
        Some(detail) => Ok(detail),
        None => client.get(&format!("/runs/{run}"), &[]).await,
    }
}

/// Reads live events; a connection that breaks is made anew, and what came before is not repeated.
async fn read(client: Client, run: String, updates: mpsc::Sender<Update>) -> Result {
    let mut seen: BTreeMap<(JobId, u32, u32), u64> = BTreeMap::new();
    let mut breaks = 0;
    while breaks < BREAKS_LIMIT {
        let mut events = match client.events(&run).await {
            // It was there before, and may come back.
            Err(Failure::Error(_)) if breaks > 0 => {
                breaks += 1;
                time::sleep(RECONNECT_PERIOD).await;
                continue;
            }
            events => Box::pin(events?),
        };
        while let Some(Ok(event)) = events.next().await {
            breaks = 0;
            match event.name.as_str() {
                "run" => {
                    let detail = serde_json::from_str(&event.data).context("read a live run")?;
                    drop(updates.send(Update::Run(Box::new(detail))).await);
                }
                "log" => {
                    let chunk: LogChunk =
                        serde_json::from_str(&event.data).context("read a live log")?;
                    let known = seen.entry((chunk.job, chunk.attempt, chunk.stream)).or_default();
                    if let Some(fresh) = fresh(chunk, known)? {
                        drop(updates.send(Update::Log(fresh)).await);
                    }
                }
                "end" => return Ok(()),
                _ => {}
            }
        }
        breaks += 1;
        time::sleep(RECONNECT_PERIOD).await;
    }
    Err(anyhow::anyhow!("the connection to the server broke and did not come back").into())
}

/// What of a chunk is new to somebody who has come to the offset `known`.
fn fresh(chunk: LogChunk, known: &mut u64) -> anyhow::Result<Option<Chunk>> {
    let LogChunk { job, attempt, stream, from, bytes, marks } = chunk;
    let mut bytes = BASE64_STANDARD.decode(&bytes).context("read a live log")?;
    let skip = known.saturating_sub(from);
    if skip > 0 && skip >= bytes.len() as u64 {
        return Ok(None);
    }
    *known = from + bytes.len() as u64;
    bytes.drain(..usize::try_from(skip)?);
    Ok(Some(Chunk { job, attempt, stream, from: from + skip, bytes, marks }))
}

/// What runs look like on this output.
pub(crate) struct Screen {
    style: Style,
    tree: tree::Tree,
    plain: plain::Plain,
    streams: Streams,
    /// The last lines of each stream, for the summary of a failure.
    tails: BTreeMap<(JobId, u32), VecDeque<String>>,
}

impl Screen {
    pub(crate) fn new(style: Style) -> Self {
        Self {
            style,
            tree: tree::Tree::new(style == Style::Tree),
            plain: plain::Plain::default(),
            streams: Streams::default(),
            tails: BTreeMap::new(),
        }
    }

    /// Prefixed lines, and perhaps the time of each.
    pub(crate) fn plain(times: bool) -> Self {
        Self { plain: plain::Plain::new(times), ..Self::new(Style::Plain) }
    }

    /// A message beside the runs.
    pub(crate) fn say(&self, message: &str) {
        match self.style {
            Style::Tree => self.tree.say(message),
            Style::Plain => anstream::println!("{message}"),
            Style::Json => {}
        }
    }

    /// An event for programs.
    pub(crate) fn event(&self, event: &serde_json::Value) {
        if self.style == Style::Json {
            anstream::println!("{event}");
        }
    }

    pub(crate) fn update(&mut self, update: Update) -> io::Result<()> {
        match update {
            Update::Run(detail) => match self.style {
                Style::Tree => self.tree.run(&detail),
                Style::Plain => self.plain.run(&detail)?,
                Style::Json => {
                    let RunDetail { run, jobs, .. } = *detail;
                    self.event(&json!({ "type": "run", "run": run, "jobs": jobs }));
                }
            },
            Update::Log(chunk) => {
                let lines = self.streams.add(&chunk);
                self.lines(&lines)?;
            }
        }
        Ok(())
    }

    fn lines(&mut self, lines: &Lines) -> io::Result<()> {
        if lines.whole.is_empty() {
            return Ok(());
        }
        let Lines { job, stream, .. } = *lines;
        let texts = lines.whole.iter().map(|line| line.text.as_str());
        let tail = self.tails.entry((job, stream)).or_default();
        tail.extend(texts.clone().map(str::to_owned));
        while tail.len() > TAIL_LINES {
            tail.pop_front();
        }
        match self.style {
            Style::Tree => self.tree.lines(lines),
            Style::Plain => self.plain.lines(lines)?,
            Style::Json => {
                let texts: Vec<_> = texts.collect();
                self.event(&json!({ "type": "log", "job": job, "stream": stream, "lines": texts }));
            }
        }
        Ok(())
    }

    /// The end of a run: how long each job took, and what a failed step said last.
    pub(crate) fn finish(&mut self, detail: &RunDetail) -> io::Result<()> {
        for rest in self.streams.take_rest() {
            self.lines(&rest)?;
        }
        let run = &detail.run;
        self.event(&json!({ "type": "finished", "run": run.id, "workflow": run.workflow, "state": run.state }));
        self.tree.clear(&detail.jobs);
        if self.style == Style::Json {
            return Ok(());
        }
        for job in &detail.jobs {
            let failed = matches!(job.state.as_str(), "failed" | "timed_out" | "lost");
            if failed && self.style == Style::Tree {
                self.repeat_tail(job);
            }
        }
        anstream::println!();
        for job in &detail.jobs {
            let (time, state) = (show::time_of(job), show::style::paint(&job.state));
            let reason =
                job.reason.as_deref().map(|reason| format!("  {reason}")).unwrap_or_default();
            anstream::println!("  {state}  {}  {time}{reason}", job.title);
        }
        let time = show::between(Some(run.created_at), run.ended_at);
        let state = show::style::paint(&run.state);
        let reason = run.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
        anstream::println!("{state}  {} #{} in {time}{reason}", run.workflow, run.number);
        Ok(())
    }

    fn repeat_tail(&self, job: &shuntyard_protocol::api::Job) {
        let failed =
            job.steps.iter().find(|step| matches!(step.state.as_str(), "failed" | "timed_out"));
        let stream = failed.map_or(0, |step| step.index + 1);
        let name = failed.map_or("set-up", |step| step.name.as_str());
        let Some(tail) = self.tails.get(&(job.id, stream)) else { return };
        let bold = show::style::BOLD;
        anstream::println!("\n{bold}{} › {name}{bold:#}", job.title);
        for line in tail {
            anstream::println!("  {line}");
        }
        if let Some(error) = failed.and_then(|step| step.error.as_deref()) {
            anstream::println!("  {}{error}{}", show::style::ERROR, anstyle::Reset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_new_connection_repeats_is_left_out() {
        let job = JobId::mint(Timestamp(0), [0; 10]);
        let mut known = 0;
        let mut next = |from: u64, bytes: &str| {
            let bytes = BASE64_STANDARD.encode(bytes);
            let chunk = LogChunk { job, attempt: 1, stream: 1, from, bytes, marks: Vec::new() };
            let fresh = fresh(chunk, &mut known).unwrap();
            fresh.map(|fresh| (fresh.from, String::from_utf8(fresh.bytes).unwrap()))
        };
        assert_eq!(next(0, "abc"), Some((0, "abc".to_owned())));
        assert_eq!(next(0, "abc"), None);
        assert_eq!(next(0, "ab"), None);
        assert_eq!(next(0, "abcd"), Some((3, "d".to_owned())));
        assert_eq!(next(4, "ef"), Some((4, "ef".to_owned())));
    }
}
