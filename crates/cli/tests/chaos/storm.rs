//! Webhooks keep coming while things go wrong; then everything is mended, comes to its end, and is
//! judged.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};
use serde_json::json;
use shuntyard_sim::{
    chaos::{
        faults::{Fault, Random, Schedule},
        history::{self, History, is_ended},
        proxy::Weather,
        work::Work,
    },
    forge::Repository,
};

use crate::{
    processes::{Service, Supervisor, signal, supervisors},
    records::{self, Sent, Widths},
    world::{AGENTS, Db, RELEASE, SOURCE, TIMERS, World, check_programs},
};

/// Jobs at once of each agent.
const SLOTS: u32 = 3;
/// Between two webhooks.
const DELIVERY_PERIOD: Duration = Duration::from_millis(1_100);
/// Every so many deliveries one is for the loud job.
const LOUD_EVERY: u64 = 6;
/// Between two looks whether something died by itself.
const LOOK_PERIOD: Duration = Duration::from_millis(250);
/// When all is mended, everything comes to its end within this.
const CALM_TIMEOUT: Duration = Duration::from_mins(1);

/// What to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orders {
    pub(crate) db: Db,
    pub(crate) seed: u64,
    /// Time of the storm.
    pub(crate) lasting: Duration,
}

const SMALL: Work = Work { lines: 24, burst: 3, pause_ms: 150, width: 20, stubborn: false };
const STUBBORN: Work = Work { stubborn: true, ..SMALL };
/// More than a spool of 2 MiB holds.
const LOUD: Work = Work { lines: 6_000, burst: 200, pause_ms: 20, width: 900, stubborn: false };

/// The workflow file. A push to `main` starts two of its workflows, one to `loud` the third.
fn workflows() -> String {
    let sh = |name: &str, work: Work| format!("sh({name:?}, {:?})", work.command());
    let (small, stubborn, loud) = (sh("small", SMALL), sh("stubborn", STUBBORN), sh("loud", LOUD));
    let again = "retry: { maxAttempts: 50, on: ['lost'] }, gracePeriod: '1s'";
    format!(
        "import {{ job, push, sh, workflow }} from 'shuntyard';\n\
         const main = push({{ branches: 'main' }});\n\
         const wide = job('wide', {{ {again}, checkout: false, matrix: [1, 2, 3], \
         steps: [{small}, {}] }});\n\
         export const w = workflow('wide', {{ on: main, jobs: [wide] }});\n\
         const a = job('a', {{ {again}, steps: [{small}] }});\n\
         const b = job('b', {{ {again}, needs: a, steps: [{stubborn}] }});\n\
         export const c = workflow('chain', {{ on: main, jobs: [a, b] }});\n\
         const loud = job('loud', {{ {again}, checkout: false, steps: [{loud}] }});\n\
         export const l = workflow('loud', {{ on: push({{ branches: 'loud' }}), jobs: [loud] }});\n",
        sh("second", SMALL),
    )
}

fn widths() -> Widths {
    Widths::from([("wide", SMALL.width), ("chain", SMALL.width), ("loud", LOUD.width)])
}

/// Something that is due.
enum Due {
    Fault,
    Look,
    Delivery,
    Resume(Pid),
    StartCoordinator,
    StartAgent(usize),
    Clear,
}

struct Storm {
    world: World,
    schedule: Schedule,
    random: Random,
    /// By time, then in the order of planning.
    due: BTreeMap<(Instant, u64), Due>,
    planned: u64,
    started: Instant,
    /// Supervisors that were killed or paused.
    touched: BTreeMap<String, Vec<String>>,
    faults: BTreeMap<&'static str, u64>,
    deliveries: tokio::task::JoinSet<()>,
    sent: Sent,
}

/// A storm, from the start to the verdict.
pub(crate) async fn weather(orders: Orders) {
    check_programs();
    let Orders { db, seed, lasting } = orders;
    eprintln!("chaos: {db:?}, seed {seed}, {lasting:?}");
    let world = World::start(db, AGENTS, SLOTS, TIMERS).await;
    let now = Instant::now();
    let mut storm = Storm {
        world,
        schedule: Schedule::new(seed, db == Db::Postgres, RELEASE),
        random: Random::new(seed ^ 1),
        due: BTreeMap::new(),
        planned: 0,
        started: now,
        touched: BTreeMap::new(),
        faults: BTreeMap::new(),
        deliveries: tokio::task::JoinSet::new(),
        sent: Sent::new(),
    };
    storm
        .world
        .repository
        .commit("main", &[(".shuntyard/workflows/all.ts", &workflows())])
        .unwrap();
    storm.blow(lasting).await;
    storm.calm().await;
    storm.judge(orders).await;
}

impl Storm {
    fn plan(&mut self, after: Duration, due: Due) {
        self.planned += 1;
        self.due.insert((Instant::now() + after, self.planned), due);
    }

    async fn blow(&mut self, lasting: Duration) {
        let end = self.started + lasting;
        self.plan(Duration::ZERO, Due::Delivery);
        self.plan(Duration::from_secs(1), Due::Fault);
        self.plan(LOOK_PERIOD, Due::Look);
        while let Some(((at, _), due)) = self.due.pop_first() {
            if at >= end {
                return;
            }
            tokio::time::sleep_until(at.into()).await;
            match due {
                Due::Fault => self.fault().await,
                Due::Look => self.look(),
                Due::Delivery => self.deliver(),
                Due::Resume(pid) => signal(pid, Signal::CONT),
                Due::StartCoordinator => self.start_coordinator(),
                Due::StartAgent(agent) => self.start_agent(agent),
                Due::Clear => self.world.proxy.set(Weather::Clear),
            }
        }
    }

    fn start_coordinator(&mut self) {
        if !self.world.coordinator.is_up() {
            self.world.coordinator.start();
        }
    }

    fn start_agent(&mut self, agent: usize) {
        let service = &mut self.world.agents[agent];
        service.look();
        if service.is_up() {
            // It still ends after its SIGTERM.
            self.plan(LOOK_PERIOD, Due::StartAgent(agent));
        } else {
            service.start();
        }
    }

    /// What died by itself is started again, as a service manager would.
    fn look(&mut self) {
        self.world.coordinator.look();
        if !self.world.coordinator.is_up() {
            self.plan(LOOK_PERIOD, Due::StartCoordinator);
        }
        for agent in 0..self.world.agents.len() {
            self.world.agents[agent].look();
            if !self.world.agents[agent].is_up() {
                self.plan(LOOK_PERIOD, Due::StartAgent(agent));
            }
        }
        self.plan(LOOK_PERIOD, Due::Look);
    }

    fn deliver(&mut self) {
        let number = u64::try_from(self.sent.len()).unwrap();
        let loud = number % LOUD_EVERY == LOUD_EVERY - 1;
        let (key, hook, workflows) = next_push(&self.world.repository, number, loud);
        self.sent.insert(key, workflows.iter().map(|&name| name.to_owned()).collect());
        let api = self.world.api.clone();
        self.deliveries.spawn(async move { api.deliver(SOURCE, &hook).await });
        self.plan(DELIVERY_PERIOD, Due::Delivery);
    }

    fn supervisors(&self) -> Vec<Supervisor> {
        let agents = 0..self.world.agents.len();
        agents.flat_map(|agent| supervisors(&self.world.agent_data(agent))).collect()
    }

    async fn fault(&mut self) {
        let (gap, fault) = self.schedule.step();
        eprintln!("{:8.3} {fault:?}", self.started.elapsed().as_secs_f64());
        *self.faults.entry(fault.name()).or_default() += 1;
        self.plan(gap, Due::Fault);
        let agents = self.world.agents.len();
        match fault {
            Fault::KillCoordinator { down } => {
                self.world.coordinator.kill();
                self.plan(down, Due::StartCoordinator);
            }
            Fault::KillAgent { agent, down } => {
                self.world.agents[agent % agents].kill();
                self.plan(down, Due::StartAgent(agent % agents));
            }
            Fault::StopAgent { agent, down } => {
                self.world.agents[agent % agents].terminate();
                self.plan(down, Due::StartAgent(agent % agents));
            }
            Fault::KillSupervisor { which } => self.on_supervisor(which, Signal::KILL, None),
            Fault::PauseCoordinator { pause } => self.pause(self.world.coordinator.pid(), pause),
            Fault::PauseAgent { agent, pause } => {
                self.pause(self.world.agents[agent % agents].pid(), pause);
            }
            Fault::PauseSupervisor { which, pause } => {
                self.on_supervisor(which, Signal::STOP, Some(pause));
            }
            Fault::Cut => self.world.proxy.cut(),
            Fault::Delay { by, lasting } => self.weather(Weather::Slow(by), lasting),
            Fault::Silence { lasting } => self.weather(Weather::Silent, lasting),
            Fault::RestartDatabase => {
                if let Some(postgres) = &mut self.world.postgres {
                    postgres.restart();
                }
            }
            Fault::CancelRun { which, force } => self.cancel(which, force).await,
        }
    }

    fn pause(&mut self, pid: Option<Pid>, pause: Duration) {
        if let Some(pid) = pid {
            signal(pid, Signal::STOP);
            self.plan(pause, Due::Resume(pid));
        }
    }

    fn on_supervisor(&mut self, which: usize, what: Signal, resume: Option<Duration>) {
        let all = self.supervisors();
        if all.is_empty() {
            return;
        }
        let Supervisor { pid, attempt } = all[which % all.len()].clone();
        eprintln!("         {attempt} {what:?}");
        self.touched.entry(attempt).or_default().push(format!("{what:?} {resume:?}"));
        signal(pid, what);
        if let Some(pause) = resume {
            self.plan(pause, Due::Resume(pid));
        }
    }

    fn weather(&mut self, weather: Weather, lasting: Duration) {
        self.world.proxy.set(weather);
        self.plan(lasting, Due::Clear);
    }

    async fn cancel(&mut self, which: usize, force: bool) {
        // Without waiting for a coordinator that is down or stopped.
        let patience = Duration::from_millis(300);
        let runs = self.world.api.try_get("/runs?limit=20&state=running");
        let Ok(Some(runs)) = tokio::time::timeout(patience, runs).await else { return };
        let runs = runs["items"].as_array().unwrap();
        if runs.is_empty() {
            return;
        }
        let run = &runs[which % runs.len()]["id"];
        let path = format!("/runs/{}/cancel", run.as_str().unwrap());
        let body = json!({ "force": force });
        tokio::time::timeout(patience, self.world.api.try_post(&path, &body)).await.ok();
    }

    /// Mends everything, and waits until all has come to its end.
    async fn calm(&mut self) {
        eprintln!("{:8.3} calm", self.started.elapsed().as_secs_f64());
        self.world.proxy.set(Weather::Clear);
        for supervisor in self.supervisors() {
            signal(supervisor.pid, Signal::CONT);
        }
        for pid in
            self.world.agents.iter().chain([&self.world.coordinator]).filter_map(Service::pid)
        {
            signal(pid, Signal::CONT);
        }
        let deadline = Instant::now() + CALM_TIMEOUT;
        loop {
            for service in self.world.agents.iter_mut().chain([&mut self.world.coordinator]) {
                service.look();
                if !service.is_up() {
                    service.start();
                }
            }
            while self.deliveries.try_join_next().transpose().unwrap().is_some() {}
            if self.deliveries.is_empty() && self.is_quiet().await {
                break;
            }
            if Instant::now() > deadline {
                let kept = self.world.keep();
                panic!(
                    "not quiet after {CALM_TIMEOUT:?}: {:?} still held; everything is in {}",
                    self.world.held(),
                    kept.display()
                );
            }
            let jitter = self.random.within(200..300);
            tokio::time::sleep(Duration::from_millis(jitter)).await;
        }
        eprintln!("{:8.3} quiet", self.started.elapsed().as_secs_f64());
    }

    async fn is_quiet(&self) -> bool {
        let Some(info) = self.world.api.try_get("/info").await else { return false };
        let open = info["jobs"].as_object().is_some_and(|jobs| {
            jobs.iter().any(|(state, count)| !is_ended(state) && count.as_u64() != Some(0))
        });
        if open || !self.world.held().is_empty() {
            return false;
        }
        let path = format!("/sources/{SOURCE}/deliveries?limit=100");
        let Some(deliveries) = self.world.api.try_get(&path).await else { return false };
        deliveries["items"].as_array().unwrap().iter().all(|d| d["state"] != "pending")
    }

    async fn judge(mut self, orders: Orders) {
        let history = records::collect(&self.world, &self.sent, &widths()).await;
        let mut problems: Vec<_> =
            history::check(&history).iter().map(ToString::to_string).collect();
        for service in self.world.agents.iter().chain([&self.world.coordinator]) {
            problems.extend(service.surprises.iter().cloned());
        }
        eprintln!("{}", summary(&history, &self.faults));
        if problems.is_empty() {
            return;
        }
        for job in &history.jobs {
            let named = |problem: &String| problem.contains(&job.id);
            if problems.iter().any(named) {
                eprintln!("{}", story(&history, job, &self.touched));
            }
        }
        let kept = self.world.keep();
        panic!(
            "{} promises broken (cargo xtask chaos --db {} --seed {}); everything is in {}:\n{}",
            problems.len(),
            if orders.db == Db::Sqlite { "sqlite" } else { "postgres" },
            orders.seed,
            kept.display(),
            problems.join("\n")
        );
    }
}

/// A commit, and the webhook of its push.
fn next_push(
    repository: &Repository,
    number: u64,
    loud: bool,
) -> (String, shuntyard_sim::forge::github::Webhook, &'static [&'static str]) {
    let branch = if loud { "loud" } else { "main" };
    let text = workflows();
    let files = [("number", number.to_string()), (".shuntyard/workflows/all.ts", text)];
    let files = files.each_ref().map(|(path, text)| (*path, text.as_str()));
    let commit = repository.commit(branch, &files).unwrap();
    let key = format!("delivery-{number}");
    let hook = repository.push(&key, &format!("refs/heads/{branch}"), None, &commit);
    (key, hook, if loud { &["loud"] } else { &["chain", "wide"] })
}

fn summary(history: &History, faults: &BTreeMap<&'static str, u64>) -> String {
    let mut jobs: BTreeMap<&str, u64> = BTreeMap::new();
    let mut attempts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut bytes = 0;
    for job in &history.jobs {
        *jobs.entry(&job.state).or_default() += 1;
        for attempt in &job.attempts {
            *attempts.entry(&attempt.state).or_default() += 1;
            bytes += attempt.logs.values().map(|log| log.bytes.len()).sum::<usize>();
        }
    }
    let mut text = String::new();
    writeln!(text, "faults    {faults:?}").unwrap();
    writeln!(text, "deliveries {}, runs {}", history.deliveries.len(), history.runs.len()).unwrap();
    writeln!(text, "jobs      {} {jobs:?}", history.jobs.len()).unwrap();
    write!(text, "attempts  {attempts:?}, {} KiB of log", bytes / 1024).unwrap();
    text
}

/// What is known of a job, for whoever looks for what went wrong.
fn story(history: &History, job: &history::Job, touched: &BTreeMap<String, Vec<String>>) -> String {
    let mut text = format!("{} {} {:?}\n", job.id, job.state, job.steps);
    for attempt in &job.attempts {
        let id = format!("{}.{}", job.id, attempt.number);
        let logs: BTreeMap<_, _> =
            attempt.logs.iter().map(|(step, log)| (step, (log.bytes.len(), log.torn))).collect();
        writeln!(
            text,
            "  {id} {} late {:?} complete {} logs {logs:?} reason {:?} touched {:?}",
            attempt.state,
            attempt.late,
            attempt.complete,
            attempt.reason,
            touched.get(&id)
        )
        .unwrap();
        let truth = history.truths.get(&job.id).into_iter().flatten();
        let mine: Vec<_> = truth.filter(|record| record.attempt == id).collect();
        if let (Some(first), Some(last)) = (mine.first(), mine.last()) {
            writeln!(
                text,
                "    truth: {} records from {} to {}, the last {:?} of step {}",
                mine.len(),
                first.at,
                last.at,
                last.what,
                last.step
            )
            .unwrap();
        }
    }
    text
}

/// So that the workflow file says what it should.
#[test]
fn the_workflows_start_what_the_history_expects() {
    let text = workflows();
    let names: BTreeSet<_> = ["wide", "chain", "loud"]
        .into_iter()
        .filter(|name| text.contains(&format!("workflow('{name}'")))
        .collect();
    assert_eq!(names, widths().into_keys().collect());
}
