//! The HTTP API: what `/api/v1` answers and takes.
//!
//! Times are milliseconds since the Unix epoch. States are words: an ended run, job or step is called
//! by its outcome. Lists come newest first, a page at a time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    AgentId, DeliveryId, EventId, JobId, RunId, SourceId, Timestamp, TokenId,
    agent::{Containment, Mark},
};

macro_rules! api {
    ($($(#[$meta:meta])* pub struct $name:ident { $($body:tt)* })+) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub struct $name { $($body)* }
    )+};
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Hand it back as `cursor` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

api! {
    /// One matched workflow of one event.
    pub struct Run {
        pub id: RunId,
        /// The happening that started it.
        pub event: EventId,
        /// Counts the runs of a workflow.
        pub number: u64,
        pub org: String,
        pub source: String,
        pub workflow: String,
        /// pending, running, cancelling, or the outcome.
        pub state: String,
        /// Why it was cancelled, by whom.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub reason: Option<String>,
        /// push, tag, pr, manual, generic.
        pub trigger: String,
        #[serde(default)]
        pub branch: Option<String>,
        pub commit: String,
        pub subject: String,
        pub author: String,
        pub created_at: Timestamp,
        #[serde(default)]
        pub started_at: Option<Timestamp>,
        #[serde(default)]
        pub ended_at: Option<Timestamp>,
        /// The run that this one repeats.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub rerun_of: Option<RunId>,
    }

    /// A run with its jobs.
    pub struct RunDetail {
        pub run: Run,
        /// Why it ran.
        #[serde(default)]
        pub why: String,
        /// Why nothing of it starts: it waits for a slot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub waiting: Option<String>,
        /// In the order of the plan.
        pub jobs: Vec<Job>,
    }

    /// One node of a run's graph.
    pub struct Job {
        pub id: JobId,
        pub run: RunId,
        /// Name in the plan.
        pub name: String,
        /// Name with the values of its matrix.
        pub title: String,
        /// blocked, held, queued, offered, starting, running, recovering, or the outcome.
        pub state: String,
        /// Why it did not succeed, was skipped, or is held.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub reason: Option<String>,
        /// Number of the current placement; 0 before the first.
        pub attempt: u32,
        /// Number of the current try.
        pub try_no: u32,
        pub needs: Vec<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub matrix: Option<Value>,
        #[serde(default)]
        pub queued_at: Option<Timestamp>,
        #[serde(default)]
        pub started_at: Option<Timestamp>,
        #[serde(default)]
        pub ended_at: Option<Timestamp>,
        /// The job of an earlier run whose result was taken over; the steps and logs are that one's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub carried_from: Option<JobId>,
        /// Steps of the current attempt.
        pub steps: Vec<Step>,
    }

    /// One function or command of a job.
    pub struct Step {
        pub index: u32,
        pub name: String,
        /// pending, running, or the outcome.
        pub state: String,
        #[serde(default)]
        pub started_at: Option<Timestamp>,
        #[serde(default)]
        pub ended_at: Option<Timestamp>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub exit_code: Option<i32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub error: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub outputs: Option<Value>,
        #[serde(default)]
        pub tries: u32,
    }

    /// One physical execution of a job.
    pub struct Attempt {
        pub attempt: u32,
        pub try_no: u32,
        /// offered, starting, running, withdrawn, or the outcome.
        pub state: String,
        #[serde(default)]
        pub agent: Option<AgentId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub reason: Option<String>,
        /// What it reported after it had been given up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub late: Option<String>,
        #[serde(default)]
        pub started_at: Option<Timestamp>,
        #[serde(default)]
        pub ended_at: Option<Timestamp>,
    }

    /// A job with everything that is known about it.
    pub struct JobDetail {
        pub job: Job,
        pub attempts: Vec<Attempt>,
        /// Streams of the current attempt.
        pub logs: Vec<LogStream>,
    }

    /// How far a log stream has come. Stream 0 is checkout and set-up, step `i` writes `i + 1`.
    pub struct LogStream {
        pub stream: u32,
        /// Bytes stored.
        pub len: u64,
        /// Everything that the attempt wrote is here.
        pub complete: bool,
        /// The supervisor died: what it had not stored is missing at the end.
        pub torn: bool,
    }

    /// New bytes of a log, as sent by server-sent events.
    pub struct LogChunk {
        pub job: JobId,
        pub attempt: u32,
        pub stream: u32,
        pub from: u64,
        /// The bytes in base64: a log is not always text.
        pub bytes: String,
        /// "From this offset on, read at this time."
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<(u64, i64)>))]
        pub marks: Vec<Mark>,
    }

    /// One line of a log.
    pub struct LogLine {
        /// When its first byte was read.
        pub at: Timestamp,
        /// Bytes that are not UTF-8 show as U+FFFD.
        pub text: String,
    }

    /// A stretch of a log as lines.
    pub struct LogLines {
        pub lines: Vec<LogLine>,
        /// Where to go on.
        pub next: u64,
        pub complete: bool,
        pub torn: bool,
    }

    pub struct Agent {
        pub id: AgentId,
        pub org: String,
        pub name: String,
        pub labels: Vec<String>,
        pub slots: u32,
        #[cfg_attr(feature = "openapi", schema(value_type = String))]
        pub containment: Containment,
        pub software: String,
        pub connected: bool,
        pub draining: bool,
        pub seen_at: Timestamp,
        pub revoked: bool,
        /// Attempts that it runs now.
        pub running: u32,
    }

    pub struct Source {
        pub id: SourceId,
        pub org: String,
        pub name: String,
        /// github, generic, local.
        pub kind: String,
        pub url: String,
        /// ignore or run.
        pub forks: String,
        /// Labels of jobs without `runsOn`.
        pub labels: Vec<String>,
        /// A webhook secret is set; it is never shown.
        pub has_webhook_secret: bool,
        /// Where the forge sends its webhooks.
        pub webhook_url: String,
        pub created_at: Timestamp,
    }

    pub struct NewSource {
        pub name: String,
        pub kind: String,
        pub url: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub org: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub webhook_secret: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub forks: Option<String>,
        #[serde(default)]
        pub labels: Vec<String>,
        /// For a local source: the files as they are, committed or not.
        #[serde(default)]
        pub work_tree: bool,
    }

    /// What is absent stays as it is.
    pub struct SourceChange {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub url: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub webhook_secret: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub forks: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub labels: Option<Vec<String>>,
    }

    /// One accepted inbound webhook.
    pub struct Delivery {
        pub id: DeliveryId,
        pub source: SourceId,
        /// The sender's own id.
        pub key: String,
        /// The sender's name for what happened.
        pub kind: String,
        /// pending, done, ignored, failed.
        pub state: String,
        #[serde(default)]
        pub outcome: Option<String>,
        #[serde(default)]
        pub event: Option<EventId>,
        pub tries: u32,
        #[serde(default)]
        pub error: Option<String>,
        pub created_at: Timestamp,
    }

    /// A job that waits for an agent, or a run or job that waits for a slot.
    pub struct QueueItem {
        /// Absent: the whole run waits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub job: Option<JobId>,
        pub run: RunId,
        pub title: String,
        pub since: Timestamp,
        /// Those that go before it.
        pub ahead: u64,
        pub priority: i32,
        /// Why it is waiting.
        pub waiting: String,
    }

    pub struct Token {
        pub id: TokenId,
        pub org: String,
        /// api, enrol, signin.
        pub kind: String,
        #[serde(default)]
        pub role: Option<String>,
        pub name: String,
        pub created_at: Timestamp,
        #[serde(default)]
        pub expires_at: Option<Timestamp>,
        #[serde(default)]
        pub used_at: Option<Timestamp>,
        pub revoked: bool,
    }

    pub struct NewToken {
        pub name: String,
        /// api or enrol.
        pub kind: String,
        /// viewer, operator or admin; for api tokens.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub role: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub org: Option<String>,
        /// Absent: 90 days for api, one hour for enrol.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub ttl_ms: Option<u64>,
        /// How many agents an enrolment token admits. Absent: one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub uses: Option<u32>,
    }

    /// The one time that a token is shown.
    pub struct CreatedToken {
        pub token: Token,
        pub secret: String,
    }

    pub struct CancelRequest {
        /// Kill at once, without the grace.
        #[serde(default)]
        pub force: bool,
        #[serde(default)]
        pub reason: Option<String>,
    }

    pub struct RerunRequest {
        /// Only what did not succeed, and what needs it.
        #[serde(default)]
        pub failed: bool,
    }

    /// Starts a workflow by hand.
    pub struct StartRequest {
        pub source: String,
        pub workflow: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub org: Option<String>,
        /// Branch, tag or commit. Absent: the head of the default branch.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        pub ref_name: Option<String>,
    }

    /// An error, as RFC 9457 has it.
    pub struct Problem {
        /// Page that explains the code.
        #[serde(rename = "type")]
        pub kind: String,
        pub title: String,
        pub status: u16,
        /// Stable; for programs.
        pub code: String,
        pub detail: String,
        /// Also in the server's log.
        #[serde(default)]
        pub request_id: String,
    }

    /// What this server is.
    pub struct Info {
        pub version: String,
        pub cluster: String,
        pub url: String,
        /// Open jobs by state.
        pub jobs: BTreeMap<String, u64>,
    }
}

/// Offsets at which a log is read as lines, with their times.
pub fn lines(bytes: &[u8], from: u64, marks: &[Mark]) -> Vec<LogLine> {
    let mut lines = Vec::new();
    let (mut offset, mut next_mark) = (from, 0);
    let mut at = marks.first().map_or(Timestamp(0), |mark| mark.1);
    for line in bytes.split_inclusive(|&b| b == b'\n') {
        while let Some(&Mark(start, time)) = marks.get(next_mark)
            && start <= offset
        {
            at = time;
            next_mark += 1;
        }
        let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line)).into_owned();
        lines.push(LogLine { at, text });
        offset += line.len() as u64;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_time_of_its_first_byte() {
        let marks = [Mark(10, Timestamp(1)), Mark(13, Timestamp(2)), Mark(16, Timestamp(3))];
        let found = lines(b"a\nbc\xff\nd", 10, &marks);
        let found: Vec<_> = found.iter().map(|line| (line.at.0, line.text.as_str())).collect();
        assert_eq!(found, [(1, "a"), (1, "bc\u{fffd}"), (3, "d")]);
    }
}
