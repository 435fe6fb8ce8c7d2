//! What really happened: what the commands did, whatever anybody says about it.

use std::collections::{BTreeMap, BTreeSet};

use shuntyard_protocol::{JobId, Outcome, agent::AttemptId};

/// One attempt's commands.
#[derive(Clone, Debug, Default)]
pub(super) struct Life {
    /// What they wrote, by stream.
    pub(super) written: BTreeMap<u32, Vec<u8>>,
    /// How its supervisor said that it ended, if it came to that …
    pub(super) reported: Option<Outcome>,
    /// … and had synced.
    pub(super) said: bool,
    /// Its supervisor, or the whole machine, was killed before it had said so.
    pub(super) killed: bool,
}

/// What all commands did.
#[derive(Debug, Default)]
pub(super) struct Truth {
    pub(super) lives: BTreeMap<AttemptId, Life>,
    running: BTreeMap<JobId, BTreeSet<u32>>,
}

impl Truth {
    /// The first instruction of the user runs.
    ///
    /// # Errors
    /// When another attempt of the job runs, or this one ran before.
    pub(super) fn start(&mut self, id: AttemptId) -> Result<(), String> {
        let running = self.running.entry(id.job).or_default();
        if let Some(other) = running.first() {
            return Err(format!("{id} began while attempt {other} of the job runs"));
        }
        running.insert(id.attempt);
        let job = AttemptId { attempt: 0, ..id }..=AttemptId { attempt: u32::MAX, ..id };
        let newest = self.lives.range(job).next_back().map_or(0, |(id, _)| id.attempt);
        if newest > id.attempt {
            return Err(format!("{id} began after attempt {newest} had, which replaced it"));
        }
        match self.lives.insert(id, Life::default()) {
            None => Ok(()),
            Some(_) => Err(format!("{id} began twice")),
        }
    }

    /// Nothing of the attempt runs any more.
    pub(super) fn stop(&mut self, id: AttemptId) {
        if let Some(running) = self.running.get_mut(&id.job) {
            running.remove(&id.attempt);
        }
    }

    pub(super) fn runs(&self, id: AttemptId) -> bool {
        self.running.get(&id.job).is_some_and(|running| running.contains(&id.attempt))
    }

    /// Attempts that run.
    pub(super) fn running(&self) -> Vec<AttemptId> {
        let all = self.running.iter();
        all.flat_map(|(&job, set)| set.iter().map(move |&attempt| AttemptId { job, attempt }))
            .collect()
    }

    pub(super) fn life(&mut self, id: AttemptId) -> &mut Life {
        self.lives.entry(id).or_default()
    }

    pub(super) fn wrote(&mut self, id: AttemptId, stream: u32, bytes: &[u8]) {
        self.life(id).written.entry(stream).or_default().extend_from_slice(bytes);
    }
}
