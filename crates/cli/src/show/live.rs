//! Following runs: their events come in over the API, and a display shows them.

mod plain;
mod text;
mod tree;

use std::{
    collections::{BTreeMap, VecDeque},
    io::IsTerminal,
    time::Duration,
};

use anyhow::Context;
use base64::{Engine, prelude::BASE64_STANDARD};
use futures_util::StreamExt;
use serde_json::json;
use shuntyard_protocol::{
    JobId,
    api::{LogChunk, RunDetail},
};
use tokio::{sync::mpsc, time};

use self::text::visible;
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
/// Longest line that is put together for display, in bytes.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// Lines of a failed step that the summary repeats.
const TAIL_LINES: usize = 50;

/// Something new about a run.
pub(crate) enum Update {
    Run(Box<RunDetail>),
    Lines(Lines),
}

/// New whole lines of one stream.
pub(crate) struct Lines {
    pub(crate) job: JobId,
    /// 0 is set-up, `i + 1` step `i`.
    pub(crate) stream: u32,
    pub(crate) texts: Vec<String>,
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
        match (json, std::io::stdout().is_terminal()) {
            (true, _) => Self::Json,
            (false, true) => Self::Tree,
            (false, false) => Self::Plain,
        }
    }
}

/// Follows one run until its end. Returns its last state.
pub(crate) async fn follow(client: &Client, run: &str, screen: &mut Screen) -> Result<RunDetail> {
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
                    screen.update(&update);
                    if let Update::Run(detail) = update {
                        last = Some(*detail);
                    }
                }
                None => break,
            },
        }
    }
    let last = match last {
        Some(detail) => detail,
        None => client.get(&format!("/runs/{run}"), &[]).await?,
    };
    screen.finish(&last);
    Ok(last)
}

/// Reads live events; a connection that breaks is made anew, and what came before is not repeated.
async fn read(client: Client, run: String, updates: mpsc::Sender<Update>) -> Result {
    let mut seen: BTreeMap<(JobId, u32, u32), u64> = BTreeMap::new();
    let mut partial: BTreeMap<(JobId, u32, u32), Vec<u8>> = BTreeMap::new();
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
                    let key = (chunk.job, chunk.attempt, chunk.stream);
                    let bytes = BASE64_STANDARD.decode(&chunk.bytes).context("read a live log")?;
                    let known = seen.entry(key).or_default();
                    let skip =
                        usize::try_from(known.saturating_sub(chunk.from)).unwrap_or(usize::MAX);
                    let Some(fresh) = bytes.get(skip..) else { continue };
                    *known = chunk.from + bytes.len() as u64;
                    let lines = whole_lines(partial.entry(key).or_default(), fresh);
                    if !lines.is_empty() {
                        let lines = Lines { job: chunk.job, stream: chunk.stream, texts: lines };
                        drop(updates.send(Update::Lines(lines)).await);
                    }
                }
                "end" => {
                    for ((job, _, stream), rest) in partial {
                        if !rest.is_empty() {
                            let texts = vec![String::from_utf8_lossy(&rest).into_owned()];
                            drop(updates.send(Update::Lines(Lines { job, stream, texts })).await);
                        }
                    }
                    return Ok(());
                }
                _ => {}
            }
        }
        breaks += 1;
        time::sleep(RECONNECT_PERIOD).await;
    }
    Err(anyhow::anyhow!("the connection to the server broke and did not come back").into())
}

/// Takes the whole lines out of what came so far. A very long line is cut into pieces.
fn whole_lines(partial: &mut Vec<u8>, fresh: &[u8]) -> Vec<String> {
    partial.extend_from_slice(fresh);
    let mut lines = Vec::new();
    let mut start = 0;
    while let Some(end) = partial[start..].iter().position(|&b| b == b'\n') {
        lines.push(visible(&partial[start..start + end]));
        start += end + 1;
    }
    while partial.len() - start > LINE_BYTES_MAX {
        lines.push(visible(&partial[start..start + LINE_BYTES_MAX]));
        start += LINE_BYTES_MAX;
    }
    partial.drain(..start);
    lines
}

/// What runs look like on this output.
pub(crate) struct Screen {
    style: Style,
    tree: tree::Tree,
    plain: plain::Plain,
    /// The last lines of each stream, for the summary of a failure.
    tails: BTreeMap<(JobId, u32), VecDeque<String>>,
}

impl Screen {
    pub(crate) fn new(style: Style) -> Self {
        Self {
            style,
            tree: tree::Tree::new(style == Style::Tree),
            plain: plain::Plain::default(),
            tails: BTreeMap::new(),
        }
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

    pub(crate) fn update(&mut self, update: &Update) {
        if let Update::Lines(lines) = update {
            let tail = self.tails.entry((lines.job, lines.stream)).or_default();
            tail.extend(lines.texts.iter().cloned());
            while tail.len() > TAIL_LINES {
                tail.pop_front();
            }
        }
        match (self.style, update) {
            (Style::Tree, update) => self.tree.update(update),
            (Style::Plain, update) => self.plain.update(update),
            (Style::Json, Update::Run(detail)) => {
                self.event(&json!({ "type": "run", "run": detail.run, "jobs": detail.jobs }));
            }
            (Style::Json, Update::Lines(lines)) => {
                let Lines { job, stream, texts } = lines;
                self.event(&json!({ "type": "log", "job": job, "stream": stream, "lines": texts }));
            }
        }
    }

    /// The end of a run: how long each job took, and what a failed step said last.
    fn finish(&mut self, detail: &RunDetail) {
        let run = &detail.run;
        self.event(&json!({ "type": "finished", "run": run.id, "workflow": run.workflow, "state": run.state }));
        self.tree.clear(&detail.jobs);
        if self.style == Style::Json {
            return;
        }
        for job in &detail.jobs {
            let failed = matches!(job.state.as_str(), "failed" | "timed_out" | "lost");
            if failed && self.style == Style::Tree {
                self.repeat_tail(job);
            }
        }
        anstream::println!();
        for job in &detail.jobs {
            let (time, state) =
                (show::between(job.started_at, job.ended_at), show::style::paint(&job.state));
            let reason =
                job.reason.as_deref().map(|reason| format!("  {reason}")).unwrap_or_default();
            anstream::println!("  {state}  {}  {time}{reason}", job.title);
        }
        let time = show::between(Some(run.created_at), run.ended_at);
        let state = show::style::paint(&run.state);
        let reason = run.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
        anstream::println!("{state}  {} #{} in {time}{reason}", run.workflow, run.number);
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
    fn lines_are_put_together_across_chunks() {
        let mut partial = Vec::new();
        assert!(whole_lines(&mut partial, b"ab").is_empty());
        assert_eq!(
            whole_lines(&mut partial, b"c\r\nd\xff\n10%\r20%\nx"),
            ["abc", "d\u{fffd}", "20%"]
        );
        assert_eq!(partial, b"x");
    }

    #[test]
    fn a_line_above_line_bytes_max_is_cut() {
        let mut partial = Vec::new();
        assert!(whole_lines(&mut partial, &vec![b'x'; LINE_BYTES_MAX]).is_empty());
        let lines = whole_lines(&mut partial, b"y");
        assert_eq!(lines, ["x".repeat(LINE_BYTES_MAX)]);
        assert_eq!(partial, b"y");
    }
}
