//! How large and how hostile the world of a seed is, and the work that it has to do.

use std::{collections::BTreeMap, fmt};

use serde_json::json;
use shuntyard_core::{apply::Retry, state::OutcomeSet};
use shuntyard_protocol::{
    Outcome,
    plan::{self, Action, Need, RunsOn, Selector, Step},
};

use super::rng::Rng;

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
}

impl Scale {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        Self {
            coordinators: rng.size(1, 2),
            agents: rng.size(2, 3),
            deliveries: rng.size(1, 4),
            faults: rng.size(0, 14),
            calm_at: rng.range(60_000, 360_000),
            call_faults: *rng.pick(&[0, 2, 10, 30]).expect("the list has elements"),
            delay_ms: *rng.pick(&[5, 200, 3000]).expect("the list has elements"),
        }
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} coordinators, {} agents, {} deliveries, {} faults and {} ‰ of all calls in {} s, \
             frames take up to {} ms",
            self.coordinators,
            self.agents,
            self.deliveries,
            self.faults,
            self.call_faults,
            self.calm_at / 1000,
            self.delay_ms
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
    pub(super) spec: plan::Job,
}

/// The workflows that one delivery starts.
pub(super) type Work = BTreeMap<String, Vec<JobPlan>>;

const WHEN: [&[Outcome]; 3] = [
    &[Outcome::Success],
    &Outcome::ALL,
    &[Outcome::Failed, Outcome::TimedOut, Outcome::Lost, Outcome::Skipped],
];

/// What a delivery asks for.
pub(super) fn work(rng: &mut Rng) -> Work {
    let mut work = Work::new();
    for n in 0..rng.size(1, 2) {
        work.insert(format!("flow{n}"), jobs(rng));
    }
    work
}

fn jobs(rng: &mut Rng) -> Vec<JobPlan> {
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
            spec: spec(rng, &name),
        };
        for child in 0..children {
            jobs.push(JobPlan { title: format!("{name}.{child}"), ..job.clone() });
        }
        names.push(name);
    }
    jobs
}

/// The command of a step says what the modelled command does: `LINES PAUSE_MS OUTCOME`.
fn spec(rng: &mut Rng, name: &str) -> plan::Job {
    let steps = (0..rng.size(1, 3)).map(|n| {
        // One long line now and then fills segments and windows.
        let wide = if rng.chance(30) { 60_000 } else { 20 };
        let lines = if wide > 100 { rng.size(10, 40) } else { rng.size(0, 12) };
        let longest = if rng.chance(200) { 30_000 } else { 4000 };
        let pause = rng.range(0, longest);
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
