//! How large and how hostile the world of a seed is, and the work that it has to do.

use std::{collections::BTreeMap, fmt};

use serde_json::json;
use shuntyard_core::{apply::Retry, state::OutcomeSet};
use shuntyard_protocol::{
    Outcome,
    plan::{self, Action, Concurrency, Need, RunsOn, Selector, Step},
};

use super::{faults::Kind, rng::Rng};

/// What a seed's world consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    pub coordinators: usize,
    pub agents: usize,
    pub deliveries: usize,
    /// Faults that are scheduled; those of single store calls and frames come on top.
    pub faults: usize,
    /// When faults stop, in milliseconds from the start.
    pub calm_at: i64,
    /// Store calls and frames that go wrong, per thousand.
    pub call_faults: u64,
    /// Longest usual delay of a frame, in milliseconds.
    pub delay_ms: i64,
    /// Hosts that contain their attempts, per thousand.
    pub contained: u64,
    pub pace: Pace,
    /// Every second fault is one of these kinds: what breaks one promise has to come together.
    pub(super) favourites: &'static [Kind],
}

/// What the commands of a seed are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Seconds, and now and then a minute.
    Mixed,
    /// Minutes: longer than a lease.
    Long,
    /// They write faster than a link carries it.
    Loud,
}

/// What a seed's world is hard on: its commands, how many of 1000 hosts contain their attempts, and
/// which faults it likes.
type Theme = (Pace, u64, &'static [Kind]);

const THEMES: [Theme; 6] = [
    (Pace::Mixed, 700, &Kind::ALL),
    (Pace::Mixed, 700, &[Kind::HostCrash, Kind::SlowCoordinator, Kind::Rerun, Kind::CutLink]),
    // Leases: commands that outlast them, on hosts whose attempts may be tried again.
    (Pace::Long, 1000, &[Kind::Degrade, Kind::Degrade, Kind::LateClock, Kind::StopSupervisor]),
    (
        Pace::Long,
        1000,
        &[Kind::Partition, Kind::DatabaseDown, Kind::HostCrash, Kind::StopSupervisor],
    ),
    // Commands that outlive their supervisors.
    (Pace::Long, 0, &[Kind::Orphan, Kind::Orphan, Kind::AgentCrash, Kind::KillSupervisor]),
    // Logs.
    (Pace::Loud, 700, &[Kind::CutLink, Kind::StallDown, Kind::CoordinatorCrash, Kind::AgentCrash]),
];

impl Scale {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let (pace, contained, favourites) = *rng.pick(&THEMES).expect("the list has elements");
        // Only what outlasts a lease can be lost and begun again.
        let longest = if pace == Pace::Long { 700_000 } else { 360_000 };
        let shortest = if pace == Pace::Long { 250_000 } else { 60_000 };
        Self {
            coordinators: rng.size(1, 2),
            agents: rng.size(2, 3),
            deliveries: rng.size(1, if pace == Pace::Long { 2 } else { 4 }),
            faults: rng.size(0, 14),
            calm_at: rng.range(shortest, longest),
            call_faults: *rng.pick(&[0, 2, 10, 30]).expect("the list has elements"),
            delay_ms: *rng.pick(&[5, 200, 3000]).expect("the list has elements"),
            contained,
            pace,
            favourites,
        }
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} coordinators, {} agents, {} deliveries, {} faults and {} ‰ of all calls in {} s, \
             frames take up to {} ms, {} ‰ of the hosts contain their attempts, {:?} commands",
            self.coordinators,
            self.agents,
            self.deliveries,
            self.faults,
            self.call_faults,
            self.calm_at / 1000,
            self.delay_ms,
            self.contained,
            self.pace,
        )
    }
}

/// One job of a workflow, after fan-out.
#[derive(Clone, Debug)]
pub(super) struct JobPlan {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) runs_on: RunsOn,
    pub(super) retry: Retry,
    pub(super) continue_on_error: bool,
    pub(super) needs: Vec<Need>,
    pub(super) concurrency: Option<Concurrency>,
    pub(super) spec: plan::Job,
}

/// One workflow.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) concurrency: Option<Concurrency>,
    pub(super) jobs: Vec<JobPlan>,
}

/// The workflows that one delivery starts.
pub(super) type Work = BTreeMap<String, Flow>;

/// Groups of runs and of jobs, so that no run waits for itself; and their slots.
const GROUPS: [&str; 2] = ["runs", "jobs"];
pub(super) fn slots(group: &str) -> u32 {
    if group == GROUPS[0] { 1 } else { 2 }
}

const WHEN: [&[Outcome]; 3] = [
    &[Outcome::Success],
    &Outcome::ALL,
    &[Outcome::Failed, Outcome::TimedOut, Outcome::Lost, Outcome::Skipped],
];

/// What a delivery asks for. `groups` says who belongs to which concurrency group; absent: nobody.
pub(super) fn work(rng: &mut Rng, pace: Pace, mut groups: Option<&mut Rng>) -> Work {
    let mut work = Work::new();
    for n in 0..rng.size(1, 2) {
        let mut flow = Flow { concurrency: None, jobs: jobs(rng, pace) };
        if let Some(rng) = &mut groups {
            flow.concurrency = group(rng, GROUPS[0]);
            for job in &mut flow.jobs {
                job.concurrency = group(rng, GROUPS[1]);
            }
        }
        work.insert(format!("flow{n}"), flow);
    }
    work
}

fn group(rng: &mut Rng, name: &str) -> Option<Concurrency> {
    rng.chance(400).then(|| Concurrency {
        group: name.to_owned(),
        cancel_in_progress: rng.chance(150),
        max: slots(name),
    })
}

fn jobs(rng: &mut Rng, pace: Pace) -> Vec<JobPlan> {
    let mut jobs: Vec<JobPlan> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for n in 0..rng.size(1, 4) {
        let mut needs: Vec<Need> = Vec::new();
        for upstream in &names {
            if rng.chance(450) {
                let when = if rng.chance(700) { WHEN[0] } else { WHEN[rng.size(0, 2)] };
                needs.push(Need { job: upstream.clone(), when: when.to_vec() });
            }
        }
        let name = format!("j{n}");
        let children = if rng.chance(200) { 2 } else { 1 };
        let retry = match rng.size(0, 2) {
            0 => Retry { max_tries: 1, on: OutcomeSet::NONE },
            1 => Retry { max_tries: 3, on: [Outcome::Lost].into_iter().collect() },
            _ => Retry { max_tries: 2, on: [Outcome::Lost, Outcome::Failed].into_iter().collect() },
        };
        let big = rng.chance(200).then(|| Selector::Exact("big".to_owned()));
        let job = JobPlan {
            title: name.clone(),
            name: name.clone(),
            runs_on: RunsOn { labels: big.into_iter().collect(), exclude: Vec::new() },
            retry,
            continue_on_error: rng.chance(150),
            needs,
            concurrency: None,
            spec: spec(rng, &name, pace),
        };
        for child in 0..children {
            jobs.push(JobPlan { title: format!("{name}.{child}"), ..job.clone() });
        }
        names.push(name);
    }
    jobs
}

/// How many lines a command writes, the pause after each, and their length.
fn output(rng: &mut Rng, pace: Pace) -> (usize, i64, usize) {
    match pace {
        Pace::Long => (rng.size(6, 14), rng.range(15_000, 30_000), 20),
        // Long lines fill segments of the spool and the window of a link.
        Pace::Loud if rng.chance(250) => (rng.size(20, 60), rng.range(0, 100), 60_000),
        Pace::Mixed | Pace::Loud => {
            let longest = if rng.chance(200) { 30_000 } else { 4000 };
            (rng.size(0, 12), rng.range(0, longest), 20)
        }
    }
}

/// The command of a step says what the modelled command does: `LINES PAUSE_MS OUTCOME`.
fn spec(rng: &mut Rng, name: &str, pace: Pace) -> plan::Job {
    let most = if pace == Pace::Long { 2 } else { 3 };
    let steps = (0..rng.size(1, most)).map(|n| {
        let (lines, pause, wide) = output(rng, pace);
        let good = !rng.chance(150);
        Step {
            name: format!("s{n}"),
            action: Action::Shell {
                command: json!([lines, pause, wide, good]).to_string(),
                shell: None,
                cwd: None,
            },
            ..Step::default()
        }
    });
    plan::Job { name: name.to_owned(), steps: steps.collect(), ..plan::Job::default() }
}
