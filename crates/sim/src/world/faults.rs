//! What goes wrong, what people do, and when all of that stops.

use shuntyard_core::apply::Fact;
use shuntyard_protocol::{
    DeliveryId, JobId, Outcome, RunId, Timestamp,
    agent::{AttemptId, End as AttemptEnd},
};
use shuntyard_store::{NewDelivery, RunFilter};

use super::{Event, START, World, coordinator, net::End};

/// Longer than any lease, in milliseconds.
const CUT_OFF: i64 = 250_000;
/// Something that goes wrong, or that somebody does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    AgentCrash {
        for_ms: i64,
        /// The supervisors die, too; what they do not contain goes on.
        with_supervisors: bool,
    },
    HostCrash {
        for_ms: i64,
    },
    KillSupervisor,
    StopSupervisor {
        for_ms: i64,
    },
    CoordinatorCrash,
    SlowCoordinator {
        for_ms: i64,
    },
    CutLink,
    StallLink {
        to: End,
        for_ms: i64,
    },
    Partition {
        for_ms: i64,
    },
    /// An agent gives its link up.
    HangUp {
        agent: usize,
    },
    /// Answers come late, then nothing gets through to the coordinator, and then the machine is cut
    /// off: the last answer is to a question of long before.
    Degrade {
        late_ms: i64,
    },
    Mute {
        agent: usize,
    },
    CutOff {
        agent: usize,
    },
    DatabaseDown {
        for_ms: i64,
    },
    /// The database takes its time to tell the time; when that is over, a machine is cut off.
    LateClock {
        for_ms: i64,
    },
    Forge,
    CancelRun {
        force: bool,
    },
    CancelJob {
        force: bool,
    },
    Rerun {
        only_failed: bool,
    },
}

/// What [`Fault::draw`] can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    AgentCrash,
    /// Nobody is there to end what a supervisor left, until long after the release.
    Orphan,
    HostCrash,
    KillSupervisor,
    StopSupervisor,
    CoordinatorCrash,
    SlowCoordinator,
    CutLink,
    StallDown,
    StallUp,
    Partition,
    Degrade,
    DatabaseDown,
    LateClock,
    Forge,
    CancelRun,
    CancelJob,
    Rerun,
}

impl Kind {
    pub(super) const ALL: [Self; 18] = [
        Self::AgentCrash,
        Self::Orphan,
        Self::HostCrash,
        Self::KillSupervisor,
        Self::StopSupervisor,
        Self::CoordinatorCrash,
        Self::SlowCoordinator,
        Self::CutLink,
        Self::StallDown,
        Self::StallUp,
        Self::Partition,
        Self::Degrade,
        Self::DatabaseDown,
        Self::LateClock,
        Self::Forge,
        Self::CancelRun,
        Self::CancelJob,
        Self::Rerun,
    ];
}

impl Fault {
    fn draw(rng: &mut super::Rng, kind: Kind) -> Self {
        let for_ms = match rng.size(0, 2) {
            0 => rng.range(100, 5000),
            1 => rng.range(5000, 60_000),
            _ => rng.range(60_000, 300_000),
        };
        match kind {
            Kind::AgentCrash => Self::AgentCrash { for_ms, with_supervisors: rng.chance(600) },
            Kind::Orphan => {
                let for_ms = rng.range(CUT_OFF, 2 * CUT_OFF);
                Self::AgentCrash { for_ms, with_supervisors: true }
            }
            Kind::HostCrash => Self::HostCrash { for_ms },
            Kind::KillSupervisor => Self::KillSupervisor,
            Kind::StopSupervisor => Self::StopSupervisor { for_ms },
            Kind::CoordinatorCrash => Self::CoordinatorCrash,
            Kind::SlowCoordinator => Self::SlowCoordinator { for_ms },
            Kind::CutLink => Self::CutLink,
            Kind::StallDown => Self::StallLink { to: End::Agent, for_ms },
            Kind::StallUp => Self::StallLink { to: End::Coordinator, for_ms },
            Kind::Partition => Self::Partition { for_ms },
            Kind::Degrade => Self::Degrade { late_ms: rng.range(34_000, 34_900) },
            Kind::DatabaseDown => Self::DatabaseDown { for_ms },
            Kind::LateClock => Self::LateClock { for_ms: rng.range(60_000, 120_000) },
            Kind::Forge => Self::Forge,
            Kind::CancelRun => Self::CancelRun { force: rng.chance(500) },
            Kind::CancelJob => Self::CancelJob { force: rng.chance(500) },
            Kind::Rerun => Self::Rerun { only_failed: rng.chance(500) },
        }
    }
}

impl World {
    pub(super) fn plan_faults(&mut self) {
        for _ in 0..self.scale.faults {
            let kinds = if self.rng.chance(500) { self.scale.favourites } else { &Kind::ALL };
            let kind = *self.rng.pick(kinds).expect("the list has elements");
            let fault = Fault::draw(&mut self.rng, kind);
            let after = self.rng.range(5000, self.scale.calm_at);
            self.at(START + after, Event::Fault(fault));
        }
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        self.trace(format_args!("fault: {fault:?}"));
        let a = self.rng.size(0, self.hosts.len() - 1);
        let c = self.rng.size(0, self.coordinators.len() - 1);
        match fault {
            Fault::AgentCrash { for_ms, with_supervisors } => {
                let a = self.some_supervisor().map_or(a, |(a, _)| a);
                self.agent_crash(a);
                let ids: Vec<AttemptId> = self.hosts[a].dirs.keys().copied().collect();
                for id in ids.into_iter().filter(|_| with_supervisors) {
                    self.kill(a, id, "a fault");
                }
                self.at(self.now + for_ms, Event::StartAgent { agent: a });
            }
            Fault::HostCrash { for_ms } => {
                self.host_crash(a);
                self.at(self.now + for_ms, Event::StartAgent { agent: a });
            }
            Fault::KillSupervisor => {
                if let Some((a, id)) = self.some_supervisor() {
                    self.kill(a, id, "a fault");
                }
            }
            Fault::StopSupervisor { for_ms } => {
                let until = self.now + for_ms;
                if let Some((a, id)) = self.some_supervisor() {
                    self.stop_until(a, id, until);
                }
            }
            Fault::CoordinatorCrash => {
                self.trace(format_args!("coordinator{c}: dies"));
                self.coordinator_crash(c);
            }
            Fault::SlowCoordinator { for_ms } => {
                self.coordinators[c].slow_until = self.now + for_ms;
                // Whoever gives up on it finds another before it has done what it was told.
                self.at(self.now + for_ms / 2, Event::Fault(Fault::HangUp { agent: a }));
            }
            Fault::CutLink => self.links(a, c).for_each_in(self, World::cut),
            Fault::StallLink { to, for_ms } => {
                self.links(a, c).for_each_in(self, |world, link| world.stall(link, to, for_ms));
            }
            Fault::Partition { for_ms } => {
                for c in 0..self.coordinators.len() {
                    self.net.block(a, c, self.now + for_ms);
                    self.links(a, c).for_each_in(self, World::cut);
                }
            }
            Fault::Degrade { late_ms } => self.degrade(a, late_ms),
            Fault::Mute { agent } => {
                self.on_links_of(agent, |world, link| world.lose(link, End::Coordinator));
            }
            Fault::CutOff { agent } => {
                for c in 0..self.coordinators.len() {
                    self.net.block(agent, c, self.now + CUT_OFF);
                    self.links(agent, c).for_each_in(self, World::cut);
                }
            }
            Fault::HangUp { agent } => {
                self.on_links_of(agent, |world, link| world.offline(agent, link));
            }
            Fault::DatabaseDown { for_ms } => self.database_down_until = self.now + for_ms,
            Fault::LateClock { for_ms } => {
                self.clock_late_until = self.now + for_ms;
                self.at(self.now + for_ms, Event::Fault(Fault::CutOff { agent: a }));
            }
            Fault::Forge => self.forge(c),
            Fault::CancelRun { force } => self.cancel_run(c, force),
            Fault::CancelJob { force } => self.cancel_job(c, force),
            Fault::Rerun { only_failed } => self.rerun(c, only_failed),
        }
    }

    /// First its answers come late, then nothing of it arrives, then its links break.
    fn degrade(&mut self, a: usize, late_ms: i64) {
        let a = self.some_supervisor().map_or(a, |(a, _)| a);
        self.on_links_of(a, |world, link| world.stall(link, End::Agent, late_ms));
        let mute = self.rng.range(2000, 12_000);
        self.at(self.now + mute, Event::Fault(Fault::Mute { agent: a }));
        self.at(self.now + late_ms + 20, Event::Fault(Fault::CutOff { agent: a }));
    }

    fn on_links_of(&mut self, a: usize, act: impl Fn(&mut Self, super::LinkId)) {
        for c in 0..self.coordinators.len() {
            self.links(a, c).for_each_in(self, &act);
        }
    }

    fn links(&self, a: usize, c: usize) -> Links {
        Links(self.net.between(a, c))
    }

    fn some_supervisor(&mut self) -> Option<(usize, AttemptId)> {
        let all: Vec<(usize, AttemptId)> = self
            .hosts
            .iter()
            .enumerate()
            .flat_map(|(a, host)| {
                let live = host.dirs.iter().filter(|(_, dir)| dir.supervisor.is_some());
                live.map(move |(&id, _)| (a, id))
            })
            .collect();
        self.rng.pick(&all).copied()
    }

    /// Somebody without the key speaks for an attempt that runs, over a link of another agent.
    fn forge(&mut self, c: usize) {
        let running = self.truth.running();
        let Some(&id) = self.rng.pick(&running) else { return };
        let other = self.hosts.iter().position(|host| !host.dirs.contains_key(&id));
        let Some(a) = other.filter(|_| self.coordinators[c].up) else { return };
        let attempts = self.runtime.block_on(self.store.attempts_of(id.job)).unwrap_or_default();
        let seq = attempts.iter().find(|attempt| attempt.attempt == id.attempt);
        let seq = seq.map_or(1, |attempt| attempt.seq + 1);
        let end = AttemptEnd {
            at: Timestamp(self.now),
            outcome: Outcome::Success,
            reason: None,
            outputs: None,
            ends: std::collections::BTreeMap::new(),
            torn: Vec::new(),
        };
        let link = self.net.open(a, c);
        let agent = self.hosts[a].agent;
        self.take(c, agent, link, coordinator::forged(id, seq, end), b"");
    }

    fn cancel_run(&mut self, c: usize, force: bool) {
        let open = self.runtime.block_on(self.store.open_runs(None)).unwrap_or_default();
        let Some(run) = self.rng.pick(&open).map(|run| run.id) else { return };
        let reason = "somebody wants it to end".to_owned();
        self.operate(c, Fact::CancelRun { run, force, reason, by: "ann".to_owned() });
    }

    fn cancel_job(&mut self, c: usize, force: bool) {
        let jobs: Vec<JobId> = self.seen.keys().copied().collect();
        let Some(&job) = self.rng.pick(&jobs) else { return };
        let reason = "somebody wants it to end".to_owned();
        self.operate(c, Fact::CancelJob { job, force, reason, by: "ann".to_owned() });
    }

    fn operate(&mut self, c: usize, fact: Fact) {
        if !self.coordinators[c].up {
            return;
        }
        let now = self.db_time(c);
        let answer = self
            .call(c, "do what a person wants", async |store| store.apply(vec![fact], now).await);
        self.trace(format_args!("coordinator{c}: a person's wish → {answer:?}"));
    }

    fn rerun(&mut self, c: usize, only_failed: bool) {
        let filter = RunFilter::default();
        let runs = self.runtime.block_on(self.store.list_runs(&filter, None, 100));
        let ended: Vec<RunId> = runs
            .expect("a database in memory answers")
            .items
            .into_iter()
            .filter(|run| run.state.is_ended())
            .filter(|run| {
                !only_failed || run.n_failed + run.n_lost + run.n_cancelled + run.n_timed_out > 0
            })
            .map(|run| run.id)
            .collect();
        let Some(&old) = self.rng.pick(&ended) else { return };
        if !self.coordinators[c].up {
            return;
        }
        let now = self.db_time(c);
        let id = RunId::mint(now, self.rng.bytes());
        let mut ids = self.rng.clone();
        self.rng.next();
        let mint = || JobId::mint_in(id, now, ids.bytes());
        let result = self.call(c, "run a run again", async |store| {
            store.rerun(old, only_failed, id, mint, now).await
        });
        self.trace(format_args!("coordinator{c}: rerun → {result:?}"));
    }

    /// A forge delivers, until it is answered 2xx; and sometimes once more.
    pub(super) fn webhook(&mut self, n: usize) {
        let c = self.rng.size(0, self.coordinators.len() - 1);
        let again = self.rng.range(1000, 20_000);
        if !self.coordinators[c].up {
            return self.at(self.now + again, Event::Webhook { n });
        }
        let now = self.db_time(c);
        let number = u8::try_from(n).expect("there are few deliveries");
        let delivery = NewDelivery {
            id: DeliveryId::mint(now, self.rng.bytes()),
            org: "default".to_owned(),
            source: self.source,
            delivery_key: format!("delivery {n}"),
            body_digest: n.is_multiple_of(3).then_some([number; 32]),
            kind: "push".to_owned(),
            headers: serde_json::json!({}),
            body: vec![number],
        };
        let stored = self
            .call(c, "store a delivery", async |store| store.insert_delivery(&delivery, now).await);
        self.trace(format_args!("coordinator{c}: delivery {n} → {:?}", stored.is_ok()));
        if stored.is_ok() {
            self.accepted.insert(n);
        }
        if stored.is_err() || self.rng.chance(300) {
            self.at(self.now + again, Event::Webhook { n });
        }
    }

    /// Faults stop, and everything that is down comes back.
    pub(super) fn calm(&mut self) {
        self.trace(format_args!("faults stop"));
        self.scale.call_faults = 0;
        self.database_down_until = 0;
        self.clock_late_until = 0;
        self.net.calm();
        for c in 0..self.coordinators.len() {
            self.coordinators[c].slow_until = 0;
            self.coordinator_start(c);
        }
        for a in 0..self.hosts.len() {
            self.agent_start(a);
            let ids: Vec<AttemptId> = self.hosts[a].dirs.keys().copied().collect();
            for id in ids {
                self.stop_until(a, id, self.now);
            }
        }
    }
}

struct Links(Vec<super::LinkId>);

impl Links {
    fn for_each_in(self, world: &mut World, act: impl Fn(&mut World, super::LinkId)) {
        for link in self.0 {
            act(world, link);
        }
    }
}
