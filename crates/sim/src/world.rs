//! A whole cluster in one thread: coordinators, agents, supervisors and a network, driven by a seed.
//!
//! The store (SQLite in memory), the decisions about facts, frames and deadlines, the spool, the
//! lease and what an attempt sends are the real ones. Processes, the network, clocks and commands
//! are modelled, and may fail at each step. Everything happens in lockstep: one event is handled to
//! its end before the next one, so a seed always gives the same story.
//!
//! - `scale`: how large and how hostile a seed's world is, and its work
//! - `coordinator`, `host`, `supervisor`: the nodes
//! - `net`, `disk`: what lies between and below them
//! - `faults`, `points`: what goes wrong, and when
//! - `truth`, `invariants`: what the commands did, and what must therefore hold

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::Arc,
};

use shuntyard_core::{
    apply::Fact,
    gate::Place,
    mutant::{self, Mutant},
    timers::Timers,
};
use shuntyard_protocol::{
    AgentId, InstanceId, JobId, RunId, SourceId, Timestamp, TokenId,
    agent::{AttemptId, Containment},
};
use shuntyard_store::{
    AgentSeen, Change, Database, Delivery, Enrolled, NewToken, Options, Source, Store,
};
use tokio::{runtime::Runtime, sync::broadcast::Receiver};

mod coordinator;
mod disk;
mod faults;
mod host;
mod invariants;
mod net;
mod points;
mod rng;
mod scale;
mod supervisor;
mod truth;

pub use scale::{Pace, Scale};

use coordinator::Coordinator;
use faults::Fault;
use host::{Host, Hub};
use net::{End, LinkId, Net};
use rng::Rng;
use scale::Work;
use truth::Truth;

/// True time at the start, in milliseconds.
const START: i64 = 1_700_000_000_000;
/// After faults have stopped everything must have ended within this, in milliseconds.
const END_WITHIN: i64 = 2 * 3600 * 1000;
/// More events than any seed needs: something goes round in circles.
const EVENTS_MAX: u64 = 400_000;

/// Which story to play.
#[derive(Clone, Copy, Debug, Default)]
pub struct Play {
    pub seed: u64,
    /// A deliberate fault in the code under test.
    pub mutant: Option<Mutant>,
    /// Commit each fact by itself, not in batches.
    pub one_by_one: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Story {
    pub seed: u64,
    pub scale: Scale,
    /// One line for each event.
    pub trace: Vec<String>,
    /// What did not hold, first of all.
    pub violation: Option<String>,
    /// Attempts that ran commands.
    pub attempts: usize,
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.scale)?;
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        match &self.violation {
            Some(why) => {
                writeln!(f, "violated: {why}\nreplay: cargo xtask sim --seed {}", self.seed)
            }
            None => writeln!(f, "everything held; {} attempts ran", self.attempts),
        }
    }
}

/// Something that will happen.
enum Event {
    Deliver { link: LinkId, to: End, bytes: Vec<u8> },
    Broken { link: LinkId, end: End },
    Greeted { link: LinkId },
    Connect { agent: usize, life: u32 },
    Collect { agent: usize, life: u32 },
    Custody { agent: usize, life: u32, id: AttemptId },
    Wake { agent: usize, id: AttemptId, serial: u64, wake: Wake },
    Flush { coordinator: usize, life: u32 },
    Tick { coordinator: usize, life: u32, tick: Tick },
    Expire { coordinator: usize, life: u32, facts: Vec<Fact> },
    Plan { coordinator: usize, batch: u64, delivery: Box<Delivery> },
    StartCoordinator { coordinator: usize },
    StartAgent { agent: usize },
    Webhook { n: usize },
    Fault(Fault),
    Calm,
}

/// What a supervisor wakes for.
#[derive(Clone, Copy, Debug)]
enum Wake {
    Prepared,
    Work,
    Beat,
    Fence,
    Stop,
    /// It was stopped, and goes on.
    Resumed,
    /// Its agent has waited long enough for it to go.
    Unwilling,
    KernelKill,
}

/// A reconciler's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tick {
    Dispatch,
    Gates,
    /// All of them.
    Period,
}

struct World {
    rng: Rng,
    scale: Scale,
    timers: Timers,
    /// True time, in milliseconds.
    now: i64,
    events: BTreeMap<(i64, u64), Event>,
    scheduled: u64,
    trace: Rc<RefCell<Vec<String>>>,
    violation: Option<String>,
    one_by_one: bool,
    runtime: Runtime,
    store: Store,
    changes: Receiver<Change>,
    database_down_until: i64,
    /// It takes more than a minute to tell the time until then.
    clock_late_until: i64,
    coordinators: Vec<Coordinator>,
    hosts: Vec<Host>,
    net: Net,
    serial: u64,
    source: SourceId,
    works: Vec<Work>,
    /// Some of them may belong to concurrency groups.
    gated: bool,
    /// Deliveries that were answered 2xx.
    accepted: BTreeSet<usize>,
    truth: Truth,
    seen: invariants::Seen,
    names: BTreeMap<JobId, String>,
    named: BTreeSet<RunId>,
    /// Who holds a slot of each group now, seen from the states of runs and jobs alone.
    holders: BTreeMap<String, BTreeSet<Place>>,
    /// What agents were told to be safe.
    acked_logs: BTreeMap<(AttemptId, u32), u64>,
    acked_facts: BTreeMap<AttemptId, u64>,
    /// The attempt that somebody wanted to end, of each such job.
    cancelled: BTreeMap<JobId, u32>,
}

/// Plays a seed's story to its end, or to the first thing that does not hold.
pub fn play(play: Play) -> Story {
    let mut rng = Rng::new(play.seed);
    let scale = Scale::draw(&mut rng);
    let trace = Rc::new(RefCell::new(Vec::new()));
    set_mutant(play.mutant);
    let kept = trace.clone();
    let played = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(rng, scale, kept, play.one_by_one);
        world.prepare();
        world.run();
        (world.violation, world.truth.lives.len())
    }));
    set_mutant(None);
    let (violation, attempts) = played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        (Some(format!("a panic: {}", text.unwrap_or_default())), 0)
    });
    let trace = trace.take();
    Story { seed: play.seed, scale, trace, violation, attempts }
}

#[cfg(debug_assertions)]
fn set_mutant(mutant: Option<Mutant>) {
    mutant::set(mutant);
}

#[cfg(not(debug_assertions))]
fn set_mutant(mutant: Option<Mutant>) {
    assert!(
        mutant.is_none() || mutant.is_some_and(mutant::on),
        "this build has no faults on purpose"
    );
}

impl World {
    fn new(mut rng: Rng, scale: Scale, trace: Rc<RefCell<Vec<String>>>, one_by_one: bool) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime without IO needs nothing");
        let instance = InstanceId::mint(Timestamp(START), rng.bytes());
        let options = Options {
            database: Database::Memory,
            segments: None,
            instance,
            clock: Arc::new(|| Timestamp(START)),
        };
        let (store, _) =
            runtime.block_on(Store::open(options)).expect("a database in memory opens");
        let changes = store.changes();
        // Another source of randomness, so that groups change nothing else of a seed's story.
        let mut groups = Rng::new(rng.clone().next());
        let mut groups = groups.chance(500).then_some(groups);
        let works: Vec<Work> = (0..scale.deliveries)
            .map(|_| scale::work(&mut rng, scale.pace, groups.as_mut()))
            .collect();
        let gated = groups.is_some();
        let source = SourceId::mint(Timestamp(START), rng.bytes());
        Self {
            rng,
            scale,
            timers: Timers::default(),
            now: START,
            events: BTreeMap::new(),
            scheduled: 0,
            trace,
            violation: None,
            one_by_one,
            runtime,
            store,
            changes,
            database_down_until: 0,
            clock_late_until: 0,
            coordinators: Vec::new(),
            hosts: Vec::new(),
            net: Net::default(),
            serial: 0,
            source,
            works,
            gated,
            accepted: BTreeSet::new(),
            truth: Truth::default(),
            seen: BTreeMap::new(),
            names: BTreeMap::new(),
            named: BTreeSet::new(),
            holders: BTreeMap::new(),
            acked_logs: BTreeMap::new(),
            acked_facts: BTreeMap::new(),
            cancelled: BTreeMap::new(),
        }
    }

    fn prepare(&mut self) {
        let source = Source {
            id: self.source,
            org: "default".to_owned(),
            name: "repo".to_owned(),
            kind: "github".to_owned(),
            url: "https://example.org/a.git".to_owned(),
            settings: serde_json::json!({}),
            secrets: None,
            created_at: Timestamp(START),
            updated_at: Timestamp(START),
        };
        self.runtime.block_on(self.store.insert_source(&source)).expect("the store is new");
        for _ in 0..self.scale.coordinators {
            let instance = InstanceId::mint(Timestamp(START), self.rng.bytes());
            let mut coordinator = Coordinator::new(instance);
            coordinator.up = false;
            self.coordinators.push(coordinator);
        }
        for a in 0..self.scale.agents {
            let host = self.host(a);
            self.hosts.push(host);
        }
        for c in 0..self.scale.coordinators {
            self.coordinator_start(c);
        }
        for a in 0..self.scale.agents {
            let after = self.rng.range(0, 5000);
            self.at(START + after, Event::StartAgent { agent: a });
        }
        for n in 0..self.works.len() {
            let after = self.rng.range(0, self.scale.calm_at / 2);
            self.at(START + after, Event::Webhook { n });
        }
        self.plan_faults();
        self.at(START + self.scale.calm_at, Event::Calm);
    }

    /// An enrolled agent on a machine of its own.
    fn host(&mut self, a: usize) -> Host {
        // The first one can do everything, so that nothing waits for ever.
        let big = a == 0 || self.rng.chance(300);
        let contained = self.rng.chance(self.scale.contained);
        let containment = if contained { Containment::Namespace } else { Containment::None };
        // What is lost has to find room elsewhere while its commands may still run.
        let few = if self.scale.pace == Pace::Long { 2 } else { 1 };
        let slots = u32::try_from(self.rng.size(few, few + 2)).expect("it is small");
        let labels: Vec<String> = big.then(|| "big".to_owned()).into_iter().collect();
        let hash = [u8::try_from(a).expect("there are few agents"); 32];
        let now = Timestamp(START);
        let token = NewToken {
            id: TokenId::mint(now, self.rng.bytes()),
            org: "default".to_owned(),
            kind: "enrol".to_owned(),
            role: None,
            name: format!("agent{a}"),
            hash,
            uses: None,
            created_by: "sim".to_owned(),
            expires_at: None,
        };
        let seen = AgentSeen {
            name: format!("agent{a}"),
            labels: labels.clone(),
            slots,
            containment,
            boot_id: "boot".to_owned(),
            software: "sim".to_owned(),
        };
        let id = AgentId::mint(now, self.rng.bytes());
        let store = &self.store;
        let enrolled = self.runtime.block_on(async {
            store.insert_token(&token, now).await?;
            store.enrol_agent(id, &format!("key{a}"), &hash, &seen, now).await
        });
        let Ok(Enrolled::Agent(agent)) = enrolled else { panic!("an agent cannot be enrolled") };
        Host {
            agent: agent.id,
            labels,
            slots,
            containment,
            up: false,
            life: 0,
            boot_ms: self.rng.range(0, 1_000_000_000) - START + 1_000_000,
            skew_ms: self.rng.range(-30_000, 30_000),
            dirs: BTreeMap::new(),
            hub: Hub::default(),
        }
    }

    fn at(&mut self, time: i64, event: Event) {
        self.scheduled += 1;
        self.events.insert((time.max(self.now), self.scheduled), event);
    }

    fn trace(&self, line: fmt::Arguments<'_>) {
        let ms = self.now - START;
        let line = format!("{:>5}.{:03} {line}", ms / 1000, ms % 1000);
        self.trace.borrow_mut().push(line);
    }

    /// Short name of an attempt, for people.
    fn name(&self, id: AttemptId) -> String {
        let job = self.names.get(&id.job).cloned().unwrap_or_else(|| id.job.to_string());
        format!("{job}#{}", id.attempt)
    }

    fn violated(&mut self, why: String) {
        if self.violation.is_none() {
            self.trace(format_args!("VIOLATED: {why}"));
            self.violation = Some(why);
        }
    }

    fn run(&mut self) {
        let mut handled = 0;
        let calm = START + self.scale.calm_at;
        let mut look_at = calm;
        while self.violation.is_none() {
            let Some(((time, _), event)) = self.events.pop_first() else {
                return self.violated("nothing happens any more".to_owned());
            };
            self.now = time;
            self.handle(event);
            handled += 1;
            if self.now > look_at {
                look_at = self.now + 5000;
                if self.is_done() {
                    return self.check_end();
                }
            }
            if self.now > calm + END_WITHIN || handled > EVENTS_MAX {
                return self.violated(format!("it does not end: {}", self.open_ends()));
            }
        }
    }

    /// What keeps the world from its end.
    fn open_ends(&self) -> String {
        let jobs = self.seen.iter().filter(|(_, (state, _))| !state.is_ended());
        let jobs = jobs.map(|(job, (state, n))| {
            format!("{} is {state}", self.name(AttemptId { job: *job, attempt: *n }))
        });
        let dirs = self.hosts.iter().enumerate().flat_map(|(a, host)| {
            host.dirs.keys().map(move |id| format!("agent{a} holds {}", self.name(*id)))
        });
        let open: Vec<String> = jobs.chain(dirs).collect();
        open.join(", ")
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Deliver { link, to, bytes } => self.delivered(link, to, &bytes),
            Event::Broken { link, end } => self.broken(link, end),
            Event::Greeted { link } => self.greeted(link),
            Event::Connect { agent, life } => self.connect(agent, life),
            Event::Collect { agent, life } => self.collect(agent, life),
            Event::Custody { agent, life, id } => self.custody_due(agent, life, id),
            Event::Wake { agent, id, serial, wake } => self.woken(agent, id, serial, wake),
            Event::Flush { coordinator, life } => self.flush(coordinator, life),
            Event::Tick { coordinator, life, tick } => self.tick(coordinator, life, tick),
            Event::Expire { coordinator, life, facts } => self.expired(coordinator, life, facts),
            Event::Plan { coordinator, batch, delivery } => {
                self.plan(coordinator, batch, &delivery);
            }
            Event::StartCoordinator { coordinator } => self.coordinator_start(coordinator),
            Event::StartAgent { agent } => self.agent_start(agent),
            Event::Webhook { n } => self.webhook(n),
            Event::Fault(fault) => self.fault(fault),
            Event::Calm => self.calm(),
        }
    }

    fn delivered(&mut self, link: LinkId, to: End, bytes: &[u8]) {
        let Some(ends) = self.net.get(link).cloned().filter(|_| self.arrives(link, to)) else {
            return;
        };
        match to {
            End::Agent => self.agent_hears(ends.agent, link, bytes),
            End::Coordinator => {
                self.coordinator_hears(ends.coordinator, ends.agent, link, bytes);
            }
        }
    }

    fn broken(&mut self, link: LinkId, end: End) {
        let Some(ends) = self.net.get(link).cloned() else { return };
        match end {
            End::Agent => self.offline(ends.agent, link),
            End::Coordinator => self.link_gone(ends.coordinator, link),
        }
    }
}
