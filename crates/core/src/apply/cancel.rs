//! Cancelling: what has no permission to run ends at once, what runs is asked until it has ended.

use shuntyard_protocol::{JobId, Outcome, RunId, agent::AttemptId};

use super::{Answer, Cancel, Stop, world::World};
use crate::state::{JobState, RunState};

impl World {
    pub(super) fn cancel_run(
        &mut self,
        id: RunId,
        force: bool,
        reason: &str,
        by: &str,
    ) -> Result<Answer, Stop> {
        let Some(run) = self.loaded.runs.get(&id) else { return Ok(Answer::Unknown) };
        let wish = Cancel { force, reason: reason.to_owned(), by: by.to_owned() };
        match run.state {
            RunState::Ended(_) => return Ok(Answer::Stale),
            RunState::Cancelling => {}
            RunState::Pending | RunState::Running => self.move_run(id, RunState::Cancelling)?,
        }
        merge(&mut self.run_mut(id).cancel, &wish);
        let open: Vec<JobId> = self
            .loaded
            .jobs
            .iter()
            .filter(|(_, job)| job.run == id && !job.state.is_ended())
            .map(|(&job, _)| job)
            .collect();
        for job in open {
            self.cancel_open_job(job, &wish)?;
        }
        Ok(Answer::Done)
    }

    pub(super) fn cancel_job(
        &mut self,
        id: JobId,
        force: bool,
        reason: &str,
        by: &str,
    ) -> Result<Answer, Stop> {
        let Some(job) = self.loaded.jobs.get(&id) else { return Ok(Answer::Unknown) };
        if job.state.is_ended() {
            return Ok(Answer::Stale);
        }
        let wish = Cancel { force, reason: reason.to_owned(), by: by.to_owned() };
        self.cancel_open_job(id, &wish).map(|()| Answer::Done)
    }

    fn cancel_open_job(&mut self, id: JobId, wish: &Cancel) -> Result<(), Stop> {
        let job = &self.loaded.jobs[&id];
        let current = AttemptId { job: id, attempt: job.attempt };
        match job.state {
            // A skip may have ended it while its neighbours were cancelled.
            JobState::Ended(_) => Ok(()),
            JobState::Blocked | JobState::Queued => {
                merge(&mut self.job_mut(id).cancel, wish);
                self.end_job(id, Outcome::Cancelled, &wish.reason)
            }
            // Without `begin` nothing of it runs, and from now on `begin` is refused.
            JobState::Offered | JobState::Starting => {
                merge(&mut self.job_mut(id).cancel, wish);
                self.withdraw(current, &wish.reason)?;
                self.touched.cancels.insert(current);
                self.end_job(id, Outcome::Cancelled, &wish.reason)
            }
            JobState::Running | JobState::Recovering => {
                merge(&mut self.job_mut(id).cancel, wish);
                self.touched.cancels.insert(current);
                Ok(())
            }
        }
    }
}

/// The first wish is kept; a later one can only add force.
fn merge(cancel: &mut Option<Cancel>, wish: &Cancel) {
    match cancel {
        Some(cancel) => cancel.force |= wish.force,
        None => *cancel = Some(wish.clone()),
    }
}
