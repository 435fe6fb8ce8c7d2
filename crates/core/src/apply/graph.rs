//! What the end of a job means for those behind it and for its run.

use std::collections::VecDeque;

use shuntyard_protocol::{JobId, Outcome, RunId};

use super::{Edge, GroupKey, Stop, world::World};
use crate::{
    gate::Place,
    mutant::{self, Mutant},
    state::{JobState, RunState},
};

impl World {
    /// Ends a job, lets go or skips what waited for it, and ends the run after its last job.
    ///
    /// A job of a fan-out counts only when all its siblings have ended, and skips cascade.
    pub(super) fn end_job(
        &mut self,
        id: JobId,
        outcome: Outcome,
        reason: &str,
    ) -> Result<(), Stop> {
        let run = self.loaded.jobs[&id].run;
        let mut finished = VecDeque::from_iter(self.end_one(id, outcome, reason)?);
        while let Some(group) = finished.pop_front() {
            let outcome = self.loaded.groups[&group].outcome;
            let edges = self.edges(&group)?;
            for edge in edges {
                if self.loaded.jobs[&edge.to].state != JobState::Blocked {
                    continue;
                }
                if edge.when.contains(outcome) {
                    self.satisfy(edge.to)?;
                } else {
                    let reason = format!("'{}' ended as {outcome}", group.1);
                    finished.extend(self.end_one(edge.to, Outcome::Skipped, &reason)?);
                }
            }
        }
        self.end_run_if_done(run)
    }

    /// Ends one job; returns its group if this was the last child.
    pub(super) fn end_one(
        &mut self,
        id: JobId,
        outcome: Outcome,
        reason: &str,
    ) -> Result<Option<GroupKey>, Stop> {
        self.leave(Place::Job(id));
        self.move_job(id, JobState::Ended(outcome))?;
        let now = self.now;
        let job = self.job_mut(id);
        job.ended_at = Some(now);
        job.reason = (!reason.is_empty()).then(|| reason.to_owned());
        let key = job.group_key();
        let effective = job.effective(outcome);
        let group = self.loaded.groups.get_mut(&key).expect("a job is loaded with its group");
        group.open -= 1;
        group.outcome = worst(group.outcome, effective);
        let last = group.open == 0;
        self.touched.groups.insert(key.clone());
        Ok(last.then_some(key))
    }

    /// One of the things that a blocked job waits for has come.
    pub(super) fn satisfy(&mut self, id: JobId) -> Result<(), Stop> {
        let job = self.job_mut(id);
        job.waiting_for -= 1;
        if mutant::on(Mutant::DoubleEdge) {
            job.waiting_for = job.waiting_for.saturating_sub(1);
        }
        if job.waiting_for == 0 {
            return self.ready(id);
        }
        Ok(())
    }

    fn edges(&self, group: &GroupKey) -> Result<Vec<Edge>, Stop> {
        self.loaded.edges.get(group).cloned().ok_or_else(|| Stop::Missing(group.clone()))
    }

    pub(super) fn end_run_if_done(&mut self, id: RunId) -> Result<(), Stop> {
        let run = &self.loaded.runs[&id];
        if run.counts.open() > 0 || run.state.is_ended() {
            return Ok(());
        }
        let outcome = run.counts.outcome(run.state == RunState::Cancelling);
        self.move_run(id, RunState::Ended(outcome))
    }
}

/// The worse of two ends of a fan-out's children; one that was skipped counts only when all were.
pub(super) fn worst(a: Outcome, b: Outcome) -> Outcome {
    fn rank(outcome: Outcome) -> u8 {
        match outcome {
            Outcome::Skipped => 0,
            Outcome::Success => 1,
            Outcome::Cancelled => 2,
            Outcome::Lost => 3,
            Outcome::TimedOut => 4,
            Outcome::Failed => 5,
        }
    }
    if rank(a) >= rank(b) { a } else { b }
}
