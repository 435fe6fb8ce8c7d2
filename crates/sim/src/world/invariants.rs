//! What must hold after each step, and at the end.
#![expect(clippy::wildcard_enum_match_arm, reason = "only some cases matter to the model")]

use std::collections::{BTreeMap, BTreeSet};

use shuntyard_core::{
    apply::Counts,
    gate::Place,
    state::{AttemptState, JobState},
};
use shuntyard_protocol::{JobId, Outcome, RunId, agent::AttemptId};
use shuntyard_store::{AttemptInfo, JobInfo, RunFilter, RunInfo};

use super::{
    World,
    scale::{JobPlan, slots},
    truth::Life,
};

/// What was last seen of a job.
pub(super) type Seen = BTreeMap<JobId, (JobState, u32)>;

/// Counters are what a count of the rows gives.
pub(super) fn counters(run: &RunInfo, jobs: &[JobInfo]) -> Result<(), String> {
    let mut counts = Counts::default();
    for job in jobs {
        *counts.slot(job.state, job.continue_on_error) += 1;
    }
    let kept = Counts {
        waiting: run.n_waiting,
        running: run.n_running,
        success: run.n_success,
        failed: run.n_failed,
        timed_out: run.n_timed_out,
        cancelled: run.n_cancelled,
        skipped: run.n_skipped,
        lost: run.n_lost,
        tolerated: run.n_tolerated,
    };
    if kept != counts {
        return Err(format!("{} counts {kept:?}, its jobs are {counts:?}", run.id));
    }
    if run.state.is_ended() != (counts.open() == 0) {
        return Err(format!("{} is {} with {} open jobs", run.id, run.state, counts.open()));
    }
    Ok(())
}

/// An end is final, and the number of an attempt only grows.
pub(super) fn moves(job: &JobInfo, seen: &mut Seen) -> Result<(), String> {
    let now = (job.state, job.attempt);
    let Some((before, attempt)) = seen.insert(job.id, now) else { return Ok(()) };
    if before.is_ended() && now != (before, attempt) {
        return Err(format!("{} ended as {before} and is {} now", job.id, job.state));
    }
    if job.attempt < attempt {
        return Err(format!("{} went from attempt {attempt} to {}", job.id, job.attempt));
    }
    let placed_again =
        matches!(before, JobState::Offered | JobState::Starting) || before.is_running();
    if placed_again && job.state == JobState::Queued && job.attempt == attempt {
        return Err(format!("{} is placed again under number {attempt}", job.id));
    }
    Ok(())
}

/// A job that somebody wants to end is not placed again.
fn cancels(job: &JobInfo, cancelled: &mut BTreeMap<JobId, u32>) -> Result<(), String> {
    if job.cancel_force.is_none() {
        return Ok(());
    }
    let attempt = *cancelled.entry(job.id).or_insert(job.attempt);
    if job.attempt > attempt {
        return Err(format!("{} was cancelled, and got attempt {}", job.id, job.attempt));
    }
    Ok(())
}

/// How the children of one job of the plan ended together; nothing while one has not.
fn group(name: &str, jobs: &[JobInfo]) -> Option<Outcome> {
    let rank = [
        Outcome::Skipped,
        Outcome::Success,
        Outcome::Cancelled,
        Outcome::Lost,
        Outcome::TimedOut,
        Outcome::Failed,
    ];
    let mut worst = 0;
    for job in jobs.iter().filter(|job| job.name == name) {
        let outcome = match job.state.outcome()? {
            Outcome::Failed | Outcome::TimedOut | Outcome::Lost if job.continue_on_error => {
                Outcome::Success
            }
            outcome => outcome,
        };
        worst = worst.max(rank.iter().position(|other| *other == outcome)?);
    }
    Some(rank[worst])
}

/// A job goes on only when every edge lets it, and is skipped only when one never will.
/// A run that waits at its gate holds all its jobs.
pub(super) fn edges(
    job: &JobInfo,
    plan: &JobPlan,
    jobs: &[JobInfo],
    held: bool,
) -> Result<(), String> {
    let met = plan
        .needs
        .iter()
        .all(|need| group(&need.job, jobs).is_some_and(|outcome| need.when.contains(&outcome)));
    let doomed = plan
        .needs
        .iter()
        .any(|need| group(&need.job, jobs).is_some_and(|outcome| !need.when.contains(&outcome)));
    match job.state {
        JobState::Blocked if met && !held && !plan.needs.is_empty() => {
            Err(format!("{} is blocked although every edge lets it go", job.id))
        }
        JobState::Ended(Outcome::Skipped) if !doomed => {
            Err(format!("{} was skipped although no edge is in its way", job.id))
        }
        JobState::Blocked | JobState::Ended(Outcome::Skipped | Outcome::Cancelled) => Ok(()),
        state if !met || held => Err(format!("{} is {state} although something holds it", job.id)),
        _ => Ok(()),
    }
}

/// A job's result is what its current attempt reported, or the loss of it.
pub(super) fn result(
    job: &JobInfo,
    attempts: &[AttemptInfo],
    lives: &BTreeMap<AttemptId, Life>,
) -> Result<(), String> {
    let JobState::Ended(outcome) = job.state else { return Ok(()) };
    let id = AttemptId { job: job.id, attempt: job.attempt };
    let current = attempts.iter().find(|attempt| attempt.attempt == job.attempt);
    let began = current.is_some_and(|attempt| attempt.state != AttemptState::Withdrawn);
    let reported = lives.get(&id).and_then(|life| life.reported);
    match outcome {
        Outcome::Success if reported != Some(Outcome::Success) => {
            Err(format!("{id} counts as a success, and reported {reported:?}"))
        }
        Outcome::Failed if began && reported != Some(Outcome::Failed) => {
            Err(format!("{id} counts as failed, and reported {reported:?}"))
        }
        _ => Ok(()),
    }
}

impl World {
    /// Everything that must hold of a run after a commit that touched it.
    pub(super) fn check_run(&mut self, id: RunId) {
        let store = self.store.clone();
        let read = self.runtime.block_on(async {
            let run = store.run(id).await?;
            let jobs = store.jobs_of(id).await?;
            Ok::<_, shuntyard_store::StoreError>((run, jobs))
        });
        let (Some(run), jobs) = read.expect("a database in memory answers") else { return };
        if self.named.insert(id) {
            self.trace(format_args!("run {} of delivery {:?} is {}", run.workflow, run.title, id));
        }
        let mut result = counters(&run, &jobs);
        let n: usize = run.title.as_deref().and_then(|title| title.parse().ok()).unwrap_or(0);
        for job in &jobs {
            let before = self.seen.get(&job.id).copied();
            result = result.and_then(|()| moves(job, &mut self.seen));
            result = result.and_then(|()| cancels(job, &mut self.cancelled));
            if before != Some((job.state, job.attempt)) {
                self.names.entry(job.id).or_insert_with(|| {
                    format!("{}/{}/{}", n, run.workflow, job.title)
                        + if run.rerun_of.is_some() { "'" } else { "" }
                });
                self.trace(format_args!(
                    "  {} #{} is {}",
                    self.names[&job.id], job.attempt, job.state
                ));
                result = result.and_then(|()| self.check_result(job));
            }
            let flow = self.works.get(n).and_then(|work| work.get(&run.workflow));
            let plan = flow.and_then(|flow| flow.jobs.iter().find(|plan| plan.title == job.title));
            if let (Some(plan), None) = (plan, &job.carried_from) {
                result = result.and_then(|()| edges(job, plan, &jobs, run.held));
            }
        }
        self.note_holders(n, &run, &jobs);
        if let Err(why) = result {
            self.violated(why);
        }
    }

    /// A run holds its slot until it has ended, a job from when it is queued until it has.
    fn note_holders(&mut self, n: usize, run: &RunInfo, jobs: &[JobInfo]) {
        let Some(flow) = self.works.get(n).and_then(|work| work.get(&run.workflow)) else { return };
        let of_run = flow.concurrency.iter().map(|group| {
            (group.group.clone(), Place::Run(run.id), !run.held && !run.state.is_ended())
        });
        let of_jobs = jobs.iter().filter_map(|job| {
            let plan = flow.jobs.iter().find(|plan| plan.title == job.title)?;
            let waits = matches!(job.state, JobState::Blocked | JobState::Held);
            let holds = !waits && !job.state.is_ended();
            Some((plan.concurrency.as_ref()?.group.clone(), Place::Job(job.id), holds))
        });
        for (group, place, holds) in of_run.chain(of_jobs) {
            let holders = self.holders.entry(group).or_default();
            if holds {
                holders.insert(place)
            } else {
                holders.remove(&place)
            };
        }
    }

    /// Never more holders than slots; and nobody waits for a free slot without being called.
    pub(super) fn check_gates(&mut self) {
        for (group, holders) in &self.holders {
            let slots = slots(group) as usize;
            if holders.len() > slots {
                let n = holders.len();
                return self.violated(format!("{n} hold one of {slots} slots of '{group}'"));
            }
        }
        let asleep = self.runtime.block_on(self.store.gates_asleep());
        let asleep = asleep.expect("a database in memory answers");
        if !asleep.is_empty() {
            self.violated(format!("somebody waits, and a slot of {asleep:?} is free"));
        }
    }

    fn check_result(&self, job: &JobInfo) -> Result<(), String> {
        if !job.state.is_ended() || job.carried_from.is_some() {
            return Ok(());
        }
        let attempts = self.runtime.block_on(self.store.attempts_of(job.id));
        result(job, &attempts.expect("a database in memory answers"), &self.truth.lives)
    }

    /// Whether nothing is left to do anywhere.
    pub(super) fn is_done(&mut self) -> bool {
        let idle = self.hosts.iter().all(|host| host.dirs.is_empty());
        let open = self.runtime.block_on(self.store.open_runs(None));
        let pages = self.runtime.block_on(self.store.deliveries(None, None, None, 100));
        let (Ok(open), Ok(pages)) = (open, pages) else { return false };
        let pending = pages.items.iter().any(|delivery| delivery.state == "pending");
        idle && open.is_empty() && !pending && self.accepted.len() == self.works.len()
    }

    /// What must hold when everything has ended.
    pub(super) fn check_end(&mut self) {
        let result = self
            .check_runs_of_deliveries()
            .and_then(|()| self.check_attempts())
            .and_then(|()| self.check_logs());
        if let Err(why) = result {
            self.violated(why);
        }
    }

    /// One run for each delivery and workflow.
    fn check_runs_of_deliveries(&self) -> Result<(), String> {
        let filter = RunFilter::default();
        let runs = self.runtime.block_on(self.store.list_runs(&filter, None, 500));
        let runs = runs.expect("a database in memory answers").items;
        let mut made: BTreeMap<(usize, String), u32> = BTreeMap::new();
        for run in runs.iter().filter(|run| run.rerun_of.is_none()) {
            let n = run.title.as_deref().and_then(|title| title.parse().ok()).unwrap_or(usize::MAX);
            *made.entry((n, run.workflow.clone())).or_default() += 1;
        }
        let wanted = (0..)
            .zip(&self.works)
            .flat_map(|(n, work)| work.keys().map(move |workflow| ((n, workflow.clone()), 1)));
        let wanted: BTreeMap<(usize, String), u32> = wanted.collect();
        if made != wanted {
            return Err(format!("the deliveries made {made:?}, not {wanted:?}"));
        }
        Ok(())
    }

    /// No attempt is live when every run has ended, and acknowledged facts are there.
    fn check_attempts(&self) -> Result<(), String> {
        let live = self.runtime.block_on(self.store.next_due());
        if live.expect("a database in memory answers").is_some() {
            return Err("an attempt outlived its run".to_owned());
        }
        for (&id, &acked) in &self.acked_facts {
            let attempts = self.runtime.block_on(self.store.attempts_of(id.job));
            let attempts = attempts.expect("a database in memory answers");
            let row = attempts.iter().find(|attempt| attempt.attempt == id.attempt);
            let have = row.map_or(0, |attempt| attempt.seq);
            if have < acked {
                return Err(format!("{acked} facts of {id} were acknowledged, {have} are stored"));
            }
        }
        Ok(())
    }

    /// The log of each attempt is what its commands wrote.
    fn check_logs(&self) -> Result<(), String> {
        for (&id, life) in &self.truth.lives {
            let streams = self.runtime.block_on(self.store.log_streams(id));
            let stored = streams.expect("a database in memory answers");
            let numbers: BTreeSet<u32> = stored
                .iter()
                .map(|stream| stream.stream)
                .chain(life.written.keys().copied())
                .collect();
            for number in numbers {
                self.check_log(id, life, number)
                    .map_err(|why| format!("stream {number} of {}: {why}", self.name(id)))?;
            }
        }
        Ok(())
    }

    fn check_log(&self, id: AttemptId, life: &Life, number: u32) -> Result<(), String> {
        let written = life.written.get(&number).map_or(&[][..], Vec::as_slice);
        let (log, torn, complete) = self.read_log(id, number);
        let acked = self.acked_logs.get(&(id, number)).copied().unwrap_or(0);
        if (log.len() as u64) < acked {
            return Err(format!("{acked} bytes were acknowledged, {} are stored", log.len()));
        }
        if !written.starts_with(&log) {
            let same = log.iter().zip(written).take_while(|(a, b)| a == b).count();
            return Err(format!("it differs from what was written from byte {same} on"));
        }
        if log.len() < written.len() && !life.killed {
            let (have, all) = (log.len(), written.len());
            return Err(format!("{have} of {all} bytes are stored, and its supervisor lived"));
        }
        if log.len() < written.len() && !torn && !life.killed {
            return Err("its end is missing, and no mark says so".to_owned());
        }
        if !complete && !life.killed && !written.is_empty() {
            return Err("nobody said where it ends".to_owned());
        }
        Ok(())
    }

    fn read_log(&self, id: AttemptId, stream: u32) -> (Vec<u8>, bool, bool) {
        let mut log = Vec::new();
        loop {
            let slice = self.store.log_read(id, stream, log.len() as u64, 4 * 1024 * 1024);
            let slice = self.runtime.block_on(slice).expect("a database in memory answers");
            if slice.bytes.is_empty() {
                return (log, slice.torn, slice.complete);
            }
            log.extend(slice.bytes);
        }
    }
}
