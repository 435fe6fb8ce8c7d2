//! From an offer to the permission to run: compare-and-set on the attempt, so that a lost, late or
//! doubled message costs time and never a second execution.

use shuntyard_protocol::{AgentId, JobId, Outcome, Timestamp, agent::AttemptId};

use super::{Answer, KeyHash, PLACEMENTS_MAX, REFUSED_MAX, Stop, world::World};
use crate::{
    mutant::{self, Mutant},
    state::{AttemptState, JobState, RunState},
};

impl World {
    pub(super) fn reserved(
        &mut self,
        id: AttemptId,
        agent: AgentId,
        start_by: Timestamp,
    ) -> Result<Answer, Stop> {
        let Some((job, attempt)) = self.current(id) else { return Ok(Answer::Superseded) };
        match job.state {
            JobState::Offered => {
                self.move_job(id.job, JobState::Starting)?;
                self.move_attempt(id, AttemptState::Starting)?;
                let attempt = self.attempt_mut(id);
                attempt.agent = Some(agent);
                attempt.deadline = start_by;
                Ok(Answer::Committed)
            }
            // The answer was lost.
            JobState::Starting if attempt.agent == Some(agent) => Ok(Answer::Committed),
            JobState::Blocked
            | JobState::Held
            | JobState::Queued
            | JobState::Starting
            | JobState::Running
            | JobState::Recovering
            | JobState::Ended(_) => Ok(Answer::Superseded),
        }
    }

    pub(super) fn refused(
        &mut self,
        id: AttemptId,
        agent: AgentId,
        reason: &str,
    ) -> Result<Answer, Stop> {
        match self.current(id) {
            Some((job, _)) if job.state == JobState::Offered => {
                self.remember_refusal(id.job, agent);
                self.place_again(id, reason)
            }
            Some(_) | None => Ok(Answer::Stale),
        }
    }

    pub(super) fn offer_expired(
        &mut self,
        id: AttemptId,
        agent: Option<AgentId>,
    ) -> Result<Answer, Stop> {
        match self.current(id) {
            Some((job, attempt))
                if job.state == JobState::Offered && attempt.deadline <= self.now =>
            {
                if let Some(agent) = agent {
                    self.remember_refusal(id.job, agent);
                }
                self.place_again(id, "the offer was not answered")
            }
            Some(_) | None => Ok(Answer::Stale),
        }
    }

    pub(super) fn start_expired(&mut self, id: AttemptId) -> Result<Answer, Stop> {
        match self.current(id) {
            Some((job, attempt))
                if job.state == JobState::Starting && attempt.deadline <= self.now =>
            {
                if let Some(agent) = attempt.agent {
                    self.remember_refusal(id.job, agent);
                }
                self.place_again(id, "the agent did not begin")
            }
            Some(_) | None => Ok(Answer::Stale),
        }
    }

    pub(super) fn abandoned(
        &mut self,
        id: AttemptId,
        agent: AgentId,
        reason: &str,
    ) -> Result<Answer, Stop> {
        match self.current(id) {
            Some((job, attempt))
                if job.state == JobState::Starting && attempt.agent == Some(agent) =>
            {
                if job.abandoned + 1 >= PLACEMENTS_MAX {
                    self.withdraw(id, reason)?;
                    return self.end_job(id.job, Outcome::Failed, reason).map(|()| Answer::Done);
                }
                self.job_mut(id.job).abandoned += 1;
                self.remember_refusal(id.job, agent);
                self.place_again(id, reason)
            }
            Some(_) | None => Ok(Answer::Superseded),
        }
    }

    /// The permission to run. Repeated by the same agent, whose answer was lost, it is given again;
    /// once the attempt has a history it is not, because then the agent has had it.
    pub(super) fn begin(
        &mut self,
        id: AttemptId,
        agent: AgentId,
        key_hash: KeyHash,
        release_at: Timestamp,
    ) -> Result<Answer, Stop> {
        if mutant::on(Mutant::BeginSuperseded) && self.current(id).is_none() {
            return Ok(Answer::Begun { release_at, cancel: None });
        }
        let Some((job, attempt)) = self.current(id) else { return Ok(Answer::Superseded) };
        if attempt.agent != Some(agent) {
            return Ok(Answer::Superseded);
        }
        let run = job.run;
        match job.state {
            JobState::Starting => {
                self.move_job(id.job, JobState::Running)?;
                self.move_attempt(id, AttemptState::Running)?;
                let now = self.now;
                let job = self.job_mut(id.job);
                job.started_at.get_or_insert(now);
                job.reason = None;
                job.refused.clear();
                let attempt = self.attempt_mut(id);
                attempt.key_hash = Some(key_hash);
                attempt.started_at = Some(now);
                if self.loaded.runs[&run].state == RunState::Pending {
                    self.move_run(run, RunState::Running)?;
                }
            }
            // From the release on others may hold what was this attempt's.
            JobState::Running | JobState::Recovering
                if attempt.key_hash == Some(key_hash)
                    && attempt.seq == 0
                    && attempt.release_at.is_some_and(|release| self.now < release) =>
            {
                if job.state == JobState::Recovering {
                    self.move_job(id.job, JobState::Running)?;
                }
            }
            JobState::Blocked
            | JobState::Held
            | JobState::Queued
            | JobState::Offered
            | JobState::Running
            | JobState::Recovering
            | JobState::Ended(_) => return Ok(Answer::Superseded),
        }
        let release_at = self.extend(id, release_at);
        Ok(Answer::Begun { release_at, cancel: self.loaded.jobs[&id.job].cancel.clone() })
    }

    pub(super) fn queue_expired(&mut self, job: JobId, reason: &str) -> Result<Answer, Stop> {
        match self.loaded.jobs.get(&job) {
            None => Ok(Answer::Unknown),
            Some(row) if row.state == JobState::Queued => {
                self.end_job(job, Outcome::Failed, reason).map(|()| Answer::Done)
            }
            Some(_) => Ok(Answer::Stale),
        }
    }

    /// Moves the release later, never earlier.
    pub(super) fn extend(&mut self, id: AttemptId, release_at: Timestamp) -> Timestamp {
        let now = self.now;
        let attempt = self.attempt_mut(id);
        let release_at = attempt.release_at.map_or(release_at, |old| old.max(release_at));
        attempt.release_at = Some(release_at);
        attempt.renewed_at = Some(now);
        release_at
    }

    /// Ends an attempt that never ran anything.
    pub(super) fn withdraw(&mut self, id: AttemptId, reason: &str) -> Result<(), Stop> {
        self.move_attempt(id, AttemptState::Withdrawn)?;
        self.attempt_mut(id).reason = Some(reason.to_owned());
        Ok(())
    }

    /// Back to the job's old place in the queue, under the next number.
    fn place_again(&mut self, id: AttemptId, reason: &str) -> Result<Answer, Stop> {
        self.withdraw(id, reason)?;
        self.move_job(id.job, JobState::Queued)?;
        let job = self.job_mut(id.job);
        if !mutant::on(Mutant::ReuseAttemptNumber) {
            job.attempt += 1;
        }
        job.reason = Some(reason.to_owned());
        Ok(Answer::Done)
    }

    fn remember_refusal(&mut self, job: JobId, agent: AgentId) {
        let refused = &mut self.job_mut(job).refused;
        refused.retain(|&other| other != agent);
        refused.push(agent);
        if refused.len() > REFUSED_MAX {
            refused.remove(0);
        }
    }
}
