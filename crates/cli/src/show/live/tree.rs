//! Runs as a tree that changes in place: a line for each job, with its step and the last thing it said.

use std::{collections::BTreeMap, time::Duration};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use shuntyard_protocol::{
    JobId,
    api::{Job, RunDetail},
};

use super::Lines;
use crate::show;

/// How often a spinner turns.
const TICK: Duration = Duration::from_millis(100);

pub(super) struct Tree {
    bars: MultiProgress,
    jobs: BTreeMap<JobId, (ProgressBar, Job)>,
    last: BTreeMap<JobId, String>,
}

impl Tree {
    pub(super) fn new(visible: bool) -> Self {
        let target =
            if visible { ProgressDrawTarget::stdout() } else { ProgressDrawTarget::hidden() };
        Self {
            bars: MultiProgress::with_draw_target(target),
            jobs: BTreeMap::new(),
            last: BTreeMap::new(),
        }
    }

    pub(super) fn say(&self, message: &str) {
        // Where the bars cannot be drawn, nothing can be shown beside them either.
        drop(self.bars.println(message));
    }

    pub(super) fn lines(&mut self, lines: &Lines) {
        let mut texts = lines.whole.iter().rev().map(|line| line.text.as_str());
        if let Some(text) = texts.find(|text| !text.trim().is_empty()) {
            self.last.insert(lines.job, anstream::adapter::strip_str(text).to_string());
            self.paint(lines.job);
        }
    }

    pub(super) fn run(&mut self, detail: &RunDetail) {
        if self.jobs.is_empty() {
            let run = &detail.run;
            self.say(&format!("{} #{}  {}", run.workflow, run.number, run.subject));
        }
        for job in &detail.jobs {
            let bars = &self.bars;
            let entry = self.jobs.entry(job.id).or_insert_with(|| {
                let bar = bars.add(ProgressBar::new_spinner());
                (bar, job.clone())
            });
            entry.1 = job.clone();
            self.paint(job.id);
        }
    }

    fn paint(&self, id: JobId) {
        let Some((bar, job)) = self.jobs.get(&id) else { return };
        let (sign, _) = show::style::of_state(&job.state);
        let running = matches!(job.state.as_str(), "running" | "recovering");
        let template =
            if running { "  {spinner:.cyan} {wide_msg}" } else { "  {prefix} {wide_msg}" };
        bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
        bar.set_prefix(sign);
        if running {
            bar.enable_steady_tick(TICK);
        } else {
            bar.disable_steady_tick();
        }
        bar.set_message(self.message(job));
        bar.tick();
    }

    fn message(&self, job: &Job) -> String {
        if job.ended_at.is_some() {
            let reason = job.reason.as_deref().unwrap_or_default();
            return format!("{}  {}  {reason}", job.title, show::time_of(job));
        }
        let step = job.steps.iter().find(|step| step.state == "running");
        let step = step.map(|step| format!(" › {}", step.name)).unwrap_or_default();
        let last = self.last.get(&job.id).map(|line| format!("  {line}")).unwrap_or_default();
        format!("{}{step}{last}", job.title)
    }

    /// The run ended: the summary takes the place of its lines.
    pub(super) fn clear(&mut self, jobs: &[Job]) {
        for job in jobs {
            if let Some((bar, _)) = self.jobs.remove(&job.id) {
                bar.finish_and_clear();
                self.bars.remove(&bar);
            }
            self.last.remove(&job.id);
        }
    }
}
