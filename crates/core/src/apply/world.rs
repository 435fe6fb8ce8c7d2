//! The state while a batch is being applied, and the moves that keep its counters true.

use std::collections::BTreeMap;

use shuntyard_protocol::{JobId, RunId, Timestamp, agent::AttemptId};

use super::{Answer, Attempt, Fact, Job, KeyHash, Loaded, Run, Stop, Touched};
use crate::{
    gate::Place,
    mutant::{self, Mutant},
    state::{AttemptState, JobState, RunState},
};

pub(super) struct World {
    pub(super) loaded: Loaded,
    pub(super) touched: Touched,
    pub(super) now: Timestamp,
    /// Whether a touched job was queued before the batch.
    was_queued: BTreeMap<JobId, bool>,
    /// Facts so far.
    facts: u32,
    /// Which of them put a job into the queue.
    queued_by: BTreeMap<JobId, u32>,
}

impl World {
    pub(super) fn new(loaded: Loaded, now: Timestamp) -> Self {
        let (was_queued, queued_by) = (BTreeMap::new(), BTreeMap::new());
        Self { loaded, touched: Touched::default(), now, was_queued, facts: 0, queued_by }
    }

    /// The state after the batch, and what is to be written.
    pub(super) fn finish(mut self) -> (Loaded, Touched) {
        for (id, was) in self.was_queued {
            let is = self.loaded.jobs.get(&id).is_some_and(|job| job.state == JobState::Queued);
            match (was, is) {
                (false, true) => {
                    self.touched.enqueue.insert(id, self.queued_by[&id]);
                }
                (true, false) => {
                    self.touched.dequeue.insert(id);
                }
                (true, true) | (false, false) => {}
            }
        }
        (self.loaded, self.touched)
    }

    /// Applies one fact, or changes nothing.
    pub(super) fn apply(&mut self, fact: &Fact) -> Result<Answer, Stop> {
        self.facts += 1;
        match fact {
            Fact::Reserved { id, agent, start_by } => self.reserved(*id, *agent, *start_by),
            Fact::Refused { id, agent, reason } => self.refused(*id, *agent, reason),
            Fact::OfferExpired { id, agent } => self.offer_expired(*id, *agent),
            Fact::StartExpired { id } => self.start_expired(*id),
            Fact::Abandoned { id, agent, reason } => self.abandoned(*id, *agent, reason),
            Fact::Begin { id, agent, key_hash, release_at } => {
                self.begin(*id, *agent, *key_hash, *release_at)
            }
            Fact::Renewed { id, key_hash, release_at } => self.renewed(*id, key_hash, *release_at),
            Fact::Attempt { id, key_hash, seq, fact } => self.history(*id, key_hash, *seq, fact),
            Fact::CancelRun { run, force, reason, by } => self.cancel_run(*run, *force, reason, by),
            Fact::CancelJob { job, force, reason, by } => self.cancel_job(*job, *force, reason, by),
            Fact::Overdue { id, renewed_before } => self.overdue(*id, *renewed_before),
            Fact::Lost { id, contained } => self.lost(*id, *contained),
            Fact::QueueExpired { job, reason } => self.queue_expired(*job, reason),
            Fact::Admitted { place } => self.admitted(*place),
            Fact::WaitExpired { place, reason, by } => self.wait_expired(*place, reason, by),
        }
    }

    pub(super) fn run_mut(&mut self, id: RunId) -> &mut Run {
        self.touched.runs.insert(id);
        self.loaded.runs.get_mut(&id).expect("a job is loaded together with its run")
    }

    pub(super) fn job_mut(&mut self, id: JobId) -> &mut Job {
        self.touched.jobs.insert(id);
        self.loaded.jobs.get_mut(&id).expect("the caller has just seen it")
    }

    pub(super) fn attempt_mut(&mut self, id: AttemptId) -> &mut Attempt {
        self.touched.attempts.insert(id);
        self.loaded.attempts.get_mut(&id).expect("the caller has just seen it")
    }

    /// The job and attempt, if that attempt is the job's current one.
    pub(super) fn current(&self, id: AttemptId) -> Option<(&Job, &Attempt)> {
        let job = self.loaded.jobs.get(&id.job)?;
        let attempt = self.loaded.attempts.get(&id)?;
        (job.attempt == id.attempt && !attempt.state.is_over()).then_some((job, attempt))
    }

    /// The same, if it has begun and `key` is its key.
    pub(super) fn current_with_key(
        &self,
        id: AttemptId,
        key: &KeyHash,
    ) -> Option<(&Job, &Attempt)> {
        self.current(id).filter(|(job, attempt)| {
            let fits = attempt.key_hash.as_ref() == Some(key) || mutant::on(Mutant::IgnoreKeyHash);
            job.state.is_running() && fits
        })
    }

    /// Moves a job and the run's counters with it.
    pub(super) fn move_job(&mut self, id: JobId, to: JobState) -> Result<(), Stop> {
        let job = &self.loaded.jobs[&id];
        let (from, run, tolerant) = (job.state, job.run, job.continue_on_error);
        from.to(to)?;
        self.was_queued.entry(id).or_insert(from == JobState::Queued);
        if to == JobState::Queued {
            self.queued_by.insert(id, self.facts);
        }
        self.job_mut(id).state = to;
        let counts = &mut self.run_mut(run).counts;
        *counts.slot(from, tolerant) -= 1;
        if !(to.is_ended() && mutant::on(Mutant::ForgetCount)) {
            *counts.slot(to, tolerant) += 1;
        }
        Ok(())
    }

    pub(super) fn move_attempt(&mut self, id: AttemptId, to: AttemptState) -> Result<(), Stop> {
        let now = self.now;
        let attempt = self.attempt_mut(id);
        attempt.state = attempt.state.to(to)?;
        if to.is_over() {
            attempt.ended_at = Some(now);
            self.touched.over.insert(id);
        }
        Ok(())
    }

    pub(super) fn move_run(&mut self, id: RunId, to: RunState) -> Result<(), Stop> {
        let now = self.now;
        let run = self.run_mut(id);
        run.state = run.state.to(to)?;
        match to {
            RunState::Running => run.started_at = Some(now),
            RunState::Ended(_) => {
                run.ended_at = Some(now);
                self.leave(Place::Run(id));
            }
            RunState::Pending | RunState::Cancelling => {}
        }
        self.touched.announced.insert(id);
        Ok(())
    }
}
