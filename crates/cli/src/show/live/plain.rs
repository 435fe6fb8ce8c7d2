//! Runs as prefixed lines, for pipes and files.

use std::collections::BTreeMap;

use shuntyard_protocol::{
    JobId,
    api::{Job, RunDetail},
};

use super::{Lines, Update};
use crate::show;

#[derive(Default)]
pub(super) struct Plain {
    jobs: BTreeMap<JobId, Job>,
    started: bool,
}

impl Plain {
    pub(super) fn update(&mut self, update: &Update) {
        match update {
            Update::Run(detail) => self.run(detail),
            Update::Lines(lines) => self.lines(lines),
        }
    }

    fn run(&mut self, detail: &RunDetail) {
        if !self.started {
            self.started = true;
            let run = &detail.run;
            anstream::println!("run #{} of {} ({})", run.number, run.workflow, run.id);
        }
        for job in &detail.jobs {
            let before = self.jobs.insert(job.id, job.clone());
            if before.is_none_or(|before| before.state != job.state) && noteworthy(&job.state) {
                let time = show::between(job.started_at, job.ended_at);
                let reason = job.reason.as_deref().map(|r| format!(": {r}")).unwrap_or_default();
                anstream::println!(
                    "{} {} {time}{reason}",
                    show::style::paint(&job.state),
                    job.title
                );
            }
        }
    }

    fn lines(&self, lines: &Lines) {
        let job = self.jobs.get(&lines.job);
        let title = job.map_or("job", |job| job.title.as_str());
        let step = lines.stream.checked_sub(1).and_then(|index| job?.steps.get(index as usize));
        let dim = show::style::DIM;
        for line in &lines.texts {
            match step {
                Some(step) => anstream::println!("{dim}{title} › {} │{dim:#} {line}", step.name),
                None => anstream::println!("{dim}{title} │{dim:#} {line}"),
            }
        }
    }
}

/// States that are worth a line of their own.
fn noteworthy(state: &str) -> bool {
    !matches!(state, "blocked" | "held" | "queued" | "offered" | "starting")
}
