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
            if self.stop(job, &wish)? {
                // Nothing behind it is let go or skipped: all of that is cancelled here, too.
                self.end_one(job, Outcome::Cancelled, &wish.reason)?;
            }
        }
        self.end_run_if_done(id)?;
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
        if self.stop(id, &wish)? {
            self.end_job(id, Outcome::Cancelled, &wish.reason)?;
        }
        Ok(Answer::Done)
    }

    /// Notes the wish on an open job; true when nothing of it runs, so that it may end now.
    fn stop(&mut self, id: JobId, wish: &Cancel) -> Result<bool, Stop> {
        let job = self.job_mut(id);
        merge(&mut job.cancel, wish);
        let current = AttemptId { job: id, attempt: job.attempt };
        match job.state {
            JobState::Blocked | JobState::Held | JobState::Queued => Ok(true),
            // Without `begin` nothing of it runs, and from now on `begin` is refused.
            JobState::Offered | JobState::Starting => {
                self.withdraw(current, &wish.reason)?;
                self.touched.cancels.insert(current);
                Ok(true)
            }
            JobState::Running | JobState::Recovering => {
                self.touched.cancels.insert(current);
                Ok(false)
            }
            JobState::Ended(_) => Ok(false),
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
