//! What must hold of everything that was recorded, whatever went wrong meanwhile.
//!
//! A pure function of the [`History`]: what the coordinator says about deliveries, runs, jobs,
//! attempts and logs, and what the commands themselves wrote down.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::work::{Record, What, line};

#[cfg(test)]
mod tests;

/// Everything that was recorded.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub deliveries: Vec<Delivery>,
    pub runs: Vec<Run>,
    pub jobs: Vec<Job>,
    /// What the commands wrote down, by job.
    pub truths: BTreeMap<String, Vec<Record>>,
}

/// A webhook that was answered 2xx.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub key: String,
    /// Workflows that it must start, each once.
    pub workflows: BTreeSet<String>,
    /// As the coordinator has it; absent when it does not know the delivery.
    pub state: Option<String>,
    pub event: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Run {
    pub id: String,
    pub event: String,
    pub workflow: String,
    pub state: String,
}

#[derive(Clone, Debug)]
pub struct Job {
    pub id: String,
    pub state: String,
    /// The current attempt.
    pub attempt: u32,
    /// Letters at the end of its lines.
    pub width: usize,
    /// State and output `attempt` of each step of the current attempt.
    pub steps: Vec<(String, Option<String>)>,
    pub attempts: Vec<Attempt>,
}

#[derive(Clone, Debug)]
pub struct Attempt {
    pub number: u32,
    pub state: String,
    pub reason: String,
    /// What it reported after it had been given up.
    pub late: Option<String>,
    /// All that was announced of its log has arrived.
    pub complete: bool,
    /// By step.
    pub logs: BTreeMap<u32, Log>,
}

#[derive(Clone, Debug, Default)]
pub struct Log {
    pub bytes: Vec<u8>,
    /// Marked as ending in a gap.
    pub torn: bool,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The coordinator does not know what it accepted, or has not come to an end with it.
    DeliveryOpen {
        key: String,
        state: String,
    },
    /// The runs of an event are not those that its delivery starts, each once.
    Runs {
        key: String,
        expected: Vec<String>,
        found: Vec<String>,
    },
    /// A run of no accepted delivery.
    RunFromNowhere {
        run: String,
    },
    RunOpen {
        run: String,
        state: String,
    },
    JobOpen {
        job: String,
        state: String,
    },
    /// A command found its job's lock taken.
    Overlap {
        attempt: String,
    },
    /// An attempt still wrote when a later one had begun.
    Concurrent {
        earlier: String,
        later: String,
    },
    /// A command ran in an attempt that had no permission, or that nobody knows.
    NoPermission {
        attempt: String,
        state: String,
    },
    /// The job's result is not that of its current attempt.
    OldResult {
        job: String,
        current: u32,
        step: usize,
        from: String,
    },
    /// The job succeeded although a command of its current attempt did not come to its end.
    Unfinished {
        attempt: String,
        step: u32,
    },
    /// A log is not the beginning of what the command wrote.
    LogDiffers {
        attempt: String,
        step: u32,
        at: usize,
    },
    /// Lines are missing, and no mark says so.
    LogShort {
        attempt: String,
        step: u32,
        state: String,
        have: usize,
        wrote: usize,
    },
    /// Not all of the log arrived.
    LogOpen {
        attempt: String,
        state: String,
    },
    /// A log has a gap mark although the attempt's supervisor came to its end.
    Torn {
        attempt: String,
        step: u32,
        state: String,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Everything that does not hold.
pub fn check(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    deliveries(history, &mut violations);
    for run in history.runs.iter().filter(|run| !is_ended(&run.state)) {
        violations.push(Violation::RunOpen { run: run.id.clone(), state: run.state.clone() });
    }
    let none = Vec::new();
    for job in &history.jobs {
        let truth = history.truths.get(&job.id).unwrap_or(&none);
        if !is_ended(&job.state) {
            violations.push(Violation::JobOpen { job: job.id.clone(), state: job.state.clone() });
        }
        result(job, truth, &mut violations);
        exclusion(job, truth, &mut violations);
        for attempt in &job.attempts {
            logs(job, attempt, truth, &mut violations);
        }
    }
    let known: BTreeSet<_> = history.jobs.iter().map(|job| &job.id).collect();
    let strangers = history.truths.iter().filter(|(job, _)| !known.contains(job));
    for record in strangers.filter_map(|(_, truth)| truth.first()) {
        let (attempt, state) = (record.attempt.clone(), "unknown job".to_owned());
        violations.push(Violation::NoPermission { attempt, state });
    }
    violations
}

/// Whether this is the word for an end.
pub fn is_ended(state: &str) -> bool {
    ["success", "failed", "timed_out", "cancelled", "skipped", "lost"].contains(&state)
}

fn deliveries(history: &History, violations: &mut Vec<Violation>) {
    let mut events = BTreeSet::new();
    for delivery in &history.deliveries {
        let (Some("done"), Some(event)) = (delivery.state.as_deref(), &delivery.event) else {
            let state = delivery.state.clone().unwrap_or_else(|| "unknown".to_owned());
            violations.push(Violation::DeliveryOpen { key: delivery.key.clone(), state });
            continue;
        };
        let runs = history.runs.iter().filter(|run| run.event == *event);
        let mut found: Vec<_> = runs.map(|run| run.workflow.clone()).collect();
        found.sort();
        let expected: Vec<_> = delivery.workflows.iter().cloned().collect();
        if found != expected || !events.insert(event.clone()) {
            violations.push(Violation::Runs { key: delivery.key.clone(), expected, found });
        }
    }
    for run in history.runs.iter().filter(|run| !events.contains(&run.event)) {
        violations.push(Violation::RunFromNowhere { run: run.id.clone() });
    }
}

/// What counts is what the current attempt did.
fn result(job: &Job, truth: &[Record], violations: &mut Vec<Violation>) {
    if job.state != "success" {
        return;
    }
    let current = name(job, job.attempt);
    for (step, (state, from)) in job.steps.iter().enumerate() {
        if state != "success" || from.as_ref() != Some(&current) {
            let from = from.clone().unwrap_or_else(|| format!("nobody ({state})"));
            let (job, current) = (job.id.clone(), job.attempt);
            violations.push(Violation::OldResult { job, current, step, from });
        }
        let step = u32::try_from(step).unwrap_or(u32::MAX);
        let of_step = |record: &&Record| record.attempt == current && record.step == step;
        if !truth.iter().filter(of_step).any(|record| record.what == What::Stop) {
            violations.push(Violation::Unfinished { attempt: current.clone(), step });
        }
    }
}

/// No two attempts at once, and none without permission.
fn exclusion(job: &Job, truth: &[Record], violations: &mut Vec<Violation>) {
    let mut times: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for record in truth {
        if record.what == What::Overlap {
            violations.push(Violation::Overlap { attempt: record.attempt.clone() });
        }
        let number = record.attempt.rsplit_once('.').and_then(|(_, number)| number.parse().ok());
        let time = times.entry(number.unwrap_or(0)).or_insert((record.at, record.at));
        *time = (time.0.min(record.at), time.1.max(record.at));
    }
    let pairs = times.iter().zip(times.iter().skip(1));
    for ((earlier, (_, end)), (later, (start, _))) in pairs {
        if end >= start {
            let (earlier, later) = (name(job, *earlier), name(job, *later));
            violations.push(Violation::Concurrent { earlier, later });
        }
    }
    for number in times.keys() {
        let attempt = job.attempts.iter().find(|attempt| attempt.number == *number);
        let state = attempt.map_or("unknown", |attempt| attempt.state.as_str());
        if ["unknown", "offered", "starting", "withdrawn"].contains(&state) {
            let (attempt, state) = (name(job, *number), state.to_owned());
            violations.push(Violation::NoPermission { attempt, state });
        }
    }
}

/// Each line once, in order; what is missing at the end is marked.
fn logs(job: &Job, attempt: &Attempt, truth: &[Record], violations: &mut Vec<Violation>) {
    let id = name(job, attempt.number);
    let none = Log::default();
    let mut any_torn = false;
    for (step, (done, begun)) in written(&id, truth) {
        let log = attempt.logs.get(&step).unwrap_or(&none);
        any_torn |= log.torn;
        let all: String = (1..=begun).map(|n| line(&id, step, n, job.width)).collect();
        let wrote = (1..=done).map(|n| line(&id, step, n, job.width).len()).sum();
        let same = log.bytes.iter().zip(all.as_bytes()).take_while(|(a, b)| a == b).count();
        let (attempt_id, state) = (id.clone(), attempt.state.clone());
        if same < log.bytes.len() {
            violations.push(Violation::LogDiffers { attempt: attempt_id, step, at: same });
        } else if log.bytes.len() < wrote && !log.torn {
            let have = log.bytes.len();
            let short = Violation::LogShort { attempt: attempt_id, step, state, have, wrote };
            violations.push(short);
        } else if log.torn && !was_cut_short(attempt) {
            violations.push(Violation::Torn { attempt: attempt_id, step, state });
        }
    }
    if !attempt.complete && !any_torn && is_ended(&attempt.state) {
        violations.push(Violation::LogOpen { attempt: id, state: attempt.state.clone() });
    }
}

/// Whether its supervisor may have died before it could say how the attempt ended.
fn was_cut_short(attempt: &Attempt) -> bool {
    attempt.state == "lost"
        || attempt.late.as_deref() == Some("lost")
        || attempt.state == "cancelled"
}

/// For each step of an attempt how many lines were written for certain, and how many at most.
fn written(id: &str, truth: &[Record]) -> BTreeMap<u32, (u32, u32)> {
    let mut steps: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for record in truth.iter().filter(|record| record.attempt == id) {
        let (done, begun) = steps.entry(record.step).or_default();
        match record.what {
            What::Upto(n) => (*done, *begun) = (*begun, n),
            What::Stop => *done = *begun,
            What::Start | What::Overlap => {}
        }
    }
    steps
}

fn name(job: &Job, attempt: u32) -> String {
    format!("{}.{attempt}", job.id)
}
