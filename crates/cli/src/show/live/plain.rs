//! Runs as prefixed lines, for pipes and files.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use shuntyard_protocol::{
    JobId, RunId,
    api::{Job, RunDetail},
};

use super::Lines;
use crate::show;

#[derive(Default)]
pub(super) struct Plain {
    jobs: BTreeMap<JobId, Job>,
    /// The run that was announced last.
    run: Option<RunId>,
    /// Lines of logs begin with their time.
    times: bool,
}

impl Plain {
    pub(super) fn new(times: bool) -> Self {
        Self { times, ..Self::default() }
    }

    pub(super) fn run(&mut self, detail: &RunDetail) -> io::Result<()> {
        let mut out = anstream::stdout().lock();
        let run = &detail.run;
        if self.run.replace(run.id) != Some(run.id) {
            writeln!(out, "run #{} of {} ({})", run.number, run.workflow, run.id)?;
        }
        for job in &detail.jobs {
            let before = self.jobs.insert(job.id, job.clone());
            if before.is_none_or(|before| before.state != job.state) && noteworthy(&job.state) {
                let time = show::time_of(job);
                let reason = job.reason.as_deref().map(|r| format!(": {r}")).unwrap_or_default();
                writeln!(out, "{} {} {time}{reason}", show::style::paint(&job.state), job.title)?;
            }
        }
        Ok(())
    }

    pub(super) fn lines(&self, lines: &Lines) -> io::Result<()> {
        let mut out = anstream::stdout().lock();
        let job = self.jobs.get(&lines.job);
        let title = job.map_or("job", |job| job.title.as_str());
        let step = lines.stream.checked_sub(1).and_then(|index| job?.steps.get(index as usize));
        let step = step.map(|step| format!(" › {}", step.name)).unwrap_or_default();
        let dim = show::style::DIM;
        for line in &lines.whole {
            let time = if self.times { show::time(line.at) + " " } else { String::new() };
            writeln!(out, "{dim}{time}{title}{step} │{dim:#} {}", line.text)?;
        }
        Ok(())
    }
}

/// States that are worth a line of their own.
fn noteworthy(state: &str) -> bool {
    !matches!(state, "blocked" | "held" | "queued" | "offered" | "starting")
}
