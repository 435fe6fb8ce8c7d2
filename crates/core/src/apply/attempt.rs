//! The life of a begun attempt: renewals, its history, its end, its loss.

use shuntyard_protocol::{
    JobId, Outcome, Timestamp,
    agent::{AttemptFact, AttemptId, End, StepEnd},
};

use super::{Answer, KeyHash, Step, Stop, world::World};
use crate::{
    mutant::{self, Mutant},
    state::{AttemptState, JobState, RunState, StepState},
};

impl World {
    pub(super) fn renewed(
        &mut self,
        id: AttemptId,
        key: &KeyHash,
        release_at: Timestamp,
    ) -> Result<Answer, Stop> {
        let Some((job, attempt)) = self.current_with_key(id, key) else {
            // A renewal may be overtaken by the attempt's own end: the rest of its log is wanted.
            let attempt = self.loaded.attempts.get(&id);
            let known = attempt.is_some_and(|attempt| attempt.key_hash.as_ref() == Some(key))
                && !mutant::on(Mutant::SupersedeEnded);
            return Ok(if known { Answer::Expired } else { Answer::Superseded });
        };
        // From the release on others may hold what was this attempt's.
        if attempt.release_at.is_some_and(|release| release <= self.now) {
            return Ok(Answer::Expired);
        }
        let cancel = job.cancel.clone();
        if job.state == JobState::Recovering {
            self.move_job(id.job, JobState::Running)?;
        }
        Ok(Answer::Renewed { release_at: self.extend(id, release_at), cancel })
    }

    pub(super) fn overdue(
        &mut self,
        id: AttemptId,
        renewed_before: Timestamp,
    ) -> Result<Answer, Stop> {
        if mutant::on(Mutant::LostWhenOverdue) {
            return self.lost(id, true);
        }
        match self.current(id) {
            Some((job, attempt))
                if job.state == JobState::Running
                    && attempt.renewed_at.is_none_or(|at| at < renewed_before) =>
            {
                self.move_job(id.job, JobState::Recovering).map(|()| Answer::Done)
            }
            Some(_) | None => Ok(Answer::Stale),
        }
    }

    pub(super) fn lost(&mut self, id: AttemptId, contained: bool) -> Result<Answer, Stop> {
        match self.current(id) {
            Some((job, attempt))
                if job.state.is_running()
                    && (attempt.release_at.is_some_and(|at| at <= self.now)
                        || mutant::on(Mutant::LostWhenOverdue)) =>
            {
                let reason = "its agent was lost";
                self.attempt_mut(id).reason = Some(reason.to_owned());
                self.end_attempt(id, Outcome::Lost, Some(reason), contained)?;
                Ok(Answer::Done)
            }
            Some(_) | None => Ok(Answer::Stale),
        }
    }

    /// The next fact of an attempt's history, in order and once each. An attempt that is no longer
    /// current completes its own record and changes nothing else.
    pub(super) fn history(
        &mut self,
        id: AttemptId,
        key: &KeyHash,
        seq: u64,
        fact: &AttemptFact,
    ) -> Result<Answer, Stop> {
        let Some(attempt) = self.loaded.attempts.get(&id) else { return Ok(Answer::Superseded) };
        if attempt.key_hash.as_ref() != Some(key) && !mutant::on(Mutant::IgnoreKeyHash) {
            return Ok(Answer::Superseded);
        }
        let have = attempt.seq;
        if seq <= have {
            return Ok(Answer::Acked { seq: have });
        }
        if seq > have + 1 {
            return Ok(Answer::Gap { have });
        }
        let current = self.current_with_key(id, key).is_some();
        match fact {
            AttemptFact::StepStarted { step, at } if current => {
                self.step_started(id, *step, *at)?;
            }
            AttemptFact::StepEnded(end) if current => self.step_ended(id, end)?,
            AttemptFact::Ended(end) if current => {
                let attempt = self.attempt_mut(id);
                attempt.end = Some(end.clone());
                attempt.reason.clone_from(&end.reason);
                self.end_attempt(id, end.outcome, end.reason.as_deref(), true)?;
            }
            // The first word about its end is the last.
            AttemptFact::Ended(end) if attempt.end.is_none() => self.late_end(id, end),
            AttemptFact::Ended(_) | AttemptFact::StepStarted { .. } | AttemptFact::StepEnded(_) => {
            }
        }
        self.attempt_mut(id).seq = seq;
        Ok(Answer::Acked { seq })
    }

    fn late_end(&mut self, id: AttemptId, end: &End) {
        let attempt = self.attempt_mut(id);
        attempt.late = Some(end.outcome);
        attempt.end = Some(end.clone());
        if mutant::on(Mutant::AcceptLateResult)
            && self.loaded.jobs.get(&id.job).is_some_and(|job| job.state.is_ended())
        {
            self.job_mut(id.job).state = JobState::Ended(end.outcome);
        }
    }

    fn step_started(&mut self, id: AttemptId, step: u32, at: Timestamp) -> Result<(), Stop> {
        let row = self.step_mut(id, step);
        row.state = row.state.to(StepState::Running)?;
        row.started_at = Some(at);
        self.touched.steps.insert((id, step));
        Ok(())
    }

    fn step_ended(&mut self, id: AttemptId, end: &StepEnd) -> Result<(), Stop> {
        let row = self.step_mut(id, end.step);
        row.state = row.state.to(StepState::Ended(end.outcome))?;
        row.ended_at = Some(end.at);
        row.exit_code = end.exit_code;
        row.error.clone_from(&end.error);
        row.outputs.clone_from(&end.outputs);
        row.tries = end.tries;
        self.touched.steps.insert((id, end.step));
        Ok(())
    }

    /// A step has a row from its first fact on.
    fn step_mut(&mut self, id: AttemptId, step: u32) -> &mut Step {
        self.loaded.steps.entry((id, step)).or_insert(Step {
            state: StepState::Pending,
            started_at: None,
            ended_at: None,
            exit_code: None,
            error: None,
            outputs: None,
            tries: 0,
        })
    }

    /// Ends a running attempt, and with it the job or this try of it. `safe`: nothing of the
    /// attempt can still run.
    fn end_attempt(
        &mut self,
        id: AttemptId,
        outcome: Outcome,
        reason: Option<&str>,
        safe: bool,
    ) -> Result<(), Stop> {
        self.move_attempt(id, AttemptState::Ended(outcome))?;
        self.touched.close_steps.insert(id, outcome);
        for (_, step) in self.loaded.steps.range_mut((id, 0)..=(id, u32::MAX)) {
            if !matches!(step.state, StepState::Ended(_)) {
                step.state = StepState::Ended(outcome);
                step.ended_at = Some(self.now);
            }
        }
        let safe = safe || mutant::on(Mutant::RetryUncontained);
        if safe && self.may_retry(id.job, outcome) {
            return self.try_again(id.job, outcome, reason);
        }
        if outcome == Outcome::Lost && self.loaded.jobs[&id.job].cancel.is_some() {
            return self.end_job(id.job, Outcome::Cancelled, "cancelled (unconfirmed)");
        }
        self.end_job(id.job, outcome, reason.unwrap_or_default())
    }

    fn may_retry(&self, job: JobId, outcome: Outcome) -> bool {
        let job = &self.loaded.jobs[&job];
        job.cancel.is_none()
            && self.loaded.runs[&job.run].state != RunState::Cancelling
            && job.retry.on.contains(outcome)
            && job.try_no < job.retry.max_tries
    }

    /// Another try starts at the end of the queue.
    fn try_again(&mut self, id: JobId, outcome: Outcome, reason: Option<&str>) -> Result<(), Stop> {
        self.move_job(id, JobState::Queued)?;
        let now = self.now;
        let job = self.job_mut(id);
        let why =
            reason.map_or_else(|| outcome.to_string(), |reason| format!("{outcome}: {reason}"));
        job.reason = Some(format!("try {} ended: {why}", job.try_no));
        job.attempt += 1;
        job.try_no += 1;
        job.abandoned = 0;
        job.queue_seq = None;
        job.queued_at = Some(now);
        Ok(())
    }
}
