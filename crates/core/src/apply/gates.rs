//! Gates: who takes a slot, who waits for one, and who gives it back.

use shuntyard_protocol::{JobId, Outcome, RunId};

use super::{Answer, Stop, world::World};
use crate::{
    gate::{Place, Ticket},
    mutant::{self, Mutant},
    state::{JobState, RunState},
};

impl World {
    /// Everything that a job needed is there: it goes through its gate into the queue, or waits.
    pub(super) fn ready(&mut self, id: JobId) -> Result<(), Stop> {
        let Some(ticket) = self.loaded.jobs[&id].ticket else { return self.queue(id) };
        // Without the lock of the gate nobody may take a slot; the gate's reconciler has it.
        let holds = match self.loaded.gates.get_mut(&ticket.gate) {
            Some(gate) => gate.enter(),
            None => self.wake(ticket),
        };
        if ticket.cancels {
            self.wake(ticket);
        }
        self.touched.entered.insert(id, holds);
        if holds { self.queue(id) } else { self.move_job(id, JobState::Held) }
    }

    /// Whoever waited gets a slot.
    pub(super) fn admitted(&mut self, place: Place) -> Result<Answer, Stop> {
        let Some(ticket) = self.waits(place) else { return Ok(Answer::Stale) };
        if self.loaded.gates.get_mut(&ticket.gate).is_some_and(|gate| !gate.admit()) {
            return Ok(Answer::Stale);
        }
        match place {
            Place::Job(job) => self.queue(job)?,
            Place::Run(run) => self.release(run)?,
        }
        Ok(Answer::Done)
    }

    pub(super) fn wait_expired(
        &mut self,
        place: Place,
        reason: &str,
        by: &str,
    ) -> Result<Answer, Stop> {
        if self.waits(place).is_none() {
            return Ok(Answer::Stale);
        }
        match place {
            Place::Run(run) => self.cancel_run(run, false, reason, by),
            Place::Job(job) => self.end_job(job, Outcome::Cancelled, reason).map(|()| Answer::Done),
        }
    }

    /// Gives a place up, if there is one, and wakes the gate.
    pub(super) fn leave(&mut self, place: Place) {
        let Some((ticket, held)) = self.standing(place) else { return };
        if let Some(gate) = self.loaded.gates.get_mut(&ticket.gate) {
            gate.leave(held);
        }
        if let Place::Job(job) = place {
            self.touched.entered.remove(&job);
        }
        self.touched.left.insert(place);
        if !mutant::on(Mutant::ForgetWake) {
            self.wake(ticket);
        }
    }

    /// The gate at which somebody stands, and whether it holds a slot.
    fn standing(&self, place: Place) -> Option<(Ticket, bool)> {
        match place {
            Place::Run(run) => {
                let run = self.loaded.runs.get(&run)?;
                Some((run.ticket?, !run.held))
            }
            Place::Job(job) => {
                let job = self.loaded.jobs.get(&job)?;
                let came = job.state != JobState::Blocked && !job.state.is_ended();
                job.ticket.filter(|_| came).map(|ticket| (ticket, job.state != JobState::Held))
            }
        }
    }

    /// The gate at which somebody waits.
    fn waits(&self, place: Place) -> Option<Ticket> {
        let ended = match place {
            Place::Run(run) => self.loaded.runs.get(&run)?.state != RunState::Pending,
            Place::Job(job) => self.loaded.jobs.get(&job)?.state.is_ended(),
        };
        self.standing(place).filter(|(_, holds)| !holds && !ended).map(|(ticket, _)| ticket)
    }

    /// Nothing holds the run back any more: each of its jobs waits for one thing less.
    fn release(&mut self, id: RunId) -> Result<(), Stop> {
        self.run_mut(id).held = false;
        let jobs = self.loaded.jobs.iter();
        let blocked: Vec<JobId> = jobs
            .filter(|(_, job)| job.run == id && job.state == JobState::Blocked)
            .map(|(&job, _)| job)
            .collect();
        blocked.into_iter().try_for_each(|job| self.satisfy(job))
    }

    fn queue(&mut self, id: JobId) -> Result<(), Stop> {
        self.move_job(id, JobState::Queued)?;
        let now = self.now;
        self.job_mut(id).queued_at = Some(now);
        Ok(())
    }

    /// Never a slot: whoever wakes a gate leaves the rest to its reconciler.
    fn wake(&mut self, ticket: Ticket) -> bool {
        self.touched.wakes.insert(ticket.gate);
        false
    }
}
