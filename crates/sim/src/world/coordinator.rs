//! A coordinator: what frames mean and what is due are the server's own decisions; the store is the
//! real one; what lies between them is one call at a time, each of which may go wrong.

use std::collections::{BTreeMap, BTreeSet};

use shuntyard_core::{apply::Fact, timers::clock_offset};
use shuntyard_protocol::{
    InstanceId, Timestamp,
    agent::{AttemptId, AttemptKey, FromAgent, Hello, ToAgent, VERSIONS, Verdict, Welcome},
    frame,
};
use shuntyard_server::parts::{About, key_hash};
use shuntyard_store::{AgentSeen, Change, HeldAttempt, LogAppend, Store, StoreError};

use super::{
    Event, Tick, World,
    net::{End, LinkId},
};

mod frames;
mod reconcilers;

pub(super) use frames::forged;

/// Another coordinator may take a delivery after this.
const DELIVERY_LEASE: std::time::Duration = std::time::Duration::from_mins(1);
/// Longer than a world: what a coordinator has leased and does not work on must come back by itself.
const DELIVERY_LEASE_ALONE: std::time::Duration = std::time::Duration::from_hours(24);
/// One that has not beaten for this long is dead.
const DEAD_AFTER: std::time::Duration = std::time::Duration::from_secs(30);
const QUEUE_MAX: u32 = 10_000;

pub(super) struct Coordinator {
    pub(super) instance: InstanceId,
    pub(super) up: bool,
    /// Grows with each start.
    pub(super) life: u32,
    /// What its clock is off the database's: the error of the last measurement.
    pub(super) error_ms: i64,
    /// Everything takes seconds until then.
    pub(super) slow_until: i64,
    sessions: BTreeMap<usize, Session>,
    /// What waits for the next commit.
    batch: Vec<(LinkId, Item)>,
    flushing: bool,
    /// Reconcilers that were poked and have not looked yet.
    poked: BTreeSet<Tick>,
    /// The batch of deliveries that it plans, and how many of them are left.
    planning: Option<(u64, usize)>,
}

struct Session {
    link: LinkId,
    slots: usize,
    labels: BTreeSet<String>,
    held: BTreeSet<AttemptId>,
}

enum Item {
    Fact(About, Fact),
    Log(LogAppend),
}

/// What a store call came to that did not return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// The process is gone, before or after the commit.
    Crashed,
    /// An error; perhaps it was committed all the same.
    Unavailable,
}

impl Coordinator {
    pub(super) fn new(instance: InstanceId) -> Self {
        Self {
            instance,
            up: true,
            life: 0,
            error_ms: 0,
            slow_until: 0,
            sessions: BTreeMap::new(),
            batch: Vec::new(),
            flushing: false,
            poked: BTreeSet::new(),
            planning: None,
        }
    }
}

/// Every coordinator derives the same key.
fn attempt_key(id: AttemptId) -> AttemptKey {
    AttemptKey(format!("{id} key"))
}

impl World {
    /// The time of the database, as a coordinator knows it.
    pub(super) fn db_time(&self, c: usize) -> Timestamp {
        Timestamp(self.now + self.coordinators[c].error_ms)
    }

    /// Sets a coordinator's clock by the database's, which may take its time to answer. False: too long.
    pub(super) fn set_clock(&mut self, c: usize) -> bool {
        let late = self.now < self.clock_late_until;
        let took = if late { self.rng.range(60_000, 120_000) } else { self.rng.range(0, 300) };
        let drift = self.rng.range(-200, 200);
        let asked = Timestamp(self.now - took);
        let said = Timestamp(asked.0 + self.rng.range(0, 300.min(took)));
        let offset = clock_offset(asked, said, Timestamp(self.now));
        if let Some(offset) = offset {
            self.coordinators[c].error_ms = offset + drift;
        }
        offset.is_some()
    }

    /// One store call of a coordinator, which may fail, or succeed and not return.
    pub(super) fn call<T>(
        &mut self,
        c: usize,
        what: &str,
        call: impl AsyncFnOnce(&Store) -> Result<T, StoreError>,
    ) -> Result<T, Failed> {
        let fault = self.rng.chance(self.scale.call_faults).then(|| self.rng.size(0, 3));
        if self.now < self.database_down_until || fault == Some(0) {
            self.trace(format_args!("coordinator{c}: {what}: the database does not answer"));
            return Err(Failed::Unavailable);
        }
        if fault == Some(1) {
            self.trace(format_args!("coordinator{c}: dies before: {what}"));
            self.coordinator_crash(c);
            return Err(Failed::Crashed);
        }
        let store = self.store.clone();
        let result = self.runtime.block_on(call(&store));
        let hint = self.drain_hints();
        for &run in &hint.runs {
            self.check_run(run);
        }
        if !hint.runs.is_empty() {
            self.check_gates();
        }
        match (result, fault) {
            (Ok(_), Some(2)) => {
                self.trace(format_args!("coordinator{c}: dies after: {what}"));
                self.coordinator_crash(c);
                Err(Failed::Crashed)
            }
            (Ok(_), Some(_)) => {
                self.trace(format_args!("coordinator{c}: {what}: committed, the reply is lost"));
                Err(Failed::Unavailable)
            }
            (Ok(value), None) => {
                self.hint(c, &hint);
                Ok(value)
            }
            (Err(error), _) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                self.violated(format!("{what}: {error}: {}", source.unwrap_or_default()));
                Err(Failed::Unavailable)
            }
        }
    }

    /// What the last call committed, as one hint.
    fn drain_hints(&mut self) -> Change {
        let mut all = Change::default();
        while let Ok(change) = self.changes.try_recv() {
            all.runs.extend(change.runs);
            all.cancels.extend(change.cancels);
            all.ended.extend(change.ended);
            all.queue_ready |= change.queue_ready;
            all.gates |= change.gates;
        }
        all.runs.sort_unstable();
        all.runs.dedup();
        all.cancels.sort_unstable();
        all.cancels.dedup();
        all.ended.sort_unstable();
        all
    }

    /// What a commit of this process means for what it has in memory.
    fn hint(&mut self, c: usize, change: &Change) {
        if change.queue_ready {
            self.poke_dispatch(c);
        }
        if change.gates {
            self.poke(c, Tick::Gates);
        }
        for &id in &change.ended {
            self.freed(c, id);
        }
        for &id in &change.cancels {
            let job = self.call(c, "read a cancelled job", async |store| store.job(id.job).await);
            if let Ok(Some(job)) = job
                && let (Some(force), Some(reason)) = (job.cancel_force, job.cancel_reason)
            {
                self.send_to_holder(c, id, &ToAgent::Cancel { id, force, reason });
            }
        }
    }

    fn poke_dispatch(&mut self, c: usize) {
        self.poke(c, Tick::Dispatch);
    }

    fn poke(&mut self, c: usize, tick: Tick) {
        let coordinator = &mut self.coordinators[c];
        if coordinator.up && coordinator.poked.insert(tick) {
            let life = coordinator.life;
            let after = self.think(c);
            self.at(self.now + after, Event::Tick { coordinator: c, life, tick });
        }
    }

    fn think(&mut self, c: usize) -> i64 {
        let slow = self.now < self.coordinators[c].slow_until;
        self.rng.range(0, if slow { 8000 } else { 5 })
    }

    // --- links ---

    fn session_of(&self, c: usize, link: LinkId) -> Option<usize> {
        let sessions = &self.coordinators[c].sessions;
        sessions.iter().find(|(_, session)| session.link == link).map(|(&agent, _)| agent)
    }

    /// Sends a frame, and may die over it. False: it did, or the link is gone.
    fn tell(&mut self, c: usize, link: LinkId, frame: &ToAgent, payload: &[u8]) -> bool {
        if !self.coordinators[c].up {
            return false;
        }
        self.note_acks(frame);
        self.send(link, End::Agent, frame, payload);
        if self.rng.chance(self.scale.call_faults / 5) {
            self.trace(format_args!("coordinator{c}: dies after a frame"));
            self.coordinator_crash(c);
            return false;
        }
        true
    }

    /// What an agent was told to be safe must be there at the end.
    fn note_acks(&mut self, frame: &ToAgent) {
        if let ToAgent::LogAck { id, to } = frame {
            for (&stream, &to) in to {
                let acked = self.acked_logs.entry((*id, stream)).or_default();
                *acked = to.max(*acked);
            }
        }
        if let ToAgent::FactAck { id, seq } = frame {
            let acked = self.acked_facts.entry(*id).or_default();
            *acked = (*seq).max(*acked);
        }
    }

    fn send_to_holder(&mut self, c: usize, id: AttemptId, frame: &ToAgent) {
        let sessions = &self.coordinators[c].sessions;
        let holder = sessions.values().find(|session| session.held.contains(&id));
        if let Some(link) = holder.map(|session| session.link) {
            self.tell(c, link, frame, b"");
        }
    }

    fn freed(&mut self, c: usize, id: AttemptId) {
        let sessions = self.coordinators[c].sessions.values_mut();
        if sessions.fold(false, |freed, session| freed | session.held.remove(&id)) {
            self.poke_dispatch(c);
        }
    }

    /// This side ends a link.
    fn close(&mut self, c: usize, link: LinkId) {
        if let Some(agent) = self.session_of(c, link) {
            self.coordinators[c].sessions.remove(&agent);
        }
        self.hang_up(link, End::Coordinator);
    }

    /// The coordinator learns that a link is gone.
    pub(super) fn link_gone(&mut self, c: usize, link: LinkId) {
        if let Some(agent) = self.session_of(c, link) {
            self.coordinators[c].sessions.remove(&agent);
            self.trace(format_args!("coordinator{c}: the link of agent{agent} is gone"));
        }
    }

    pub(super) fn coordinator_hears(&mut self, c: usize, a: usize, link: LinkId, bytes: &[u8]) {
        if !self.coordinators[c].up {
            return;
        }
        let (header, payload) = frame::decode::<FromAgent>(bytes).expect("the agent encoded it");
        if let FromAgent::Hello(hello) = header {
            if self.greet(c, a, link, &hello).is_err() {
                self.close(c, link);
            }
        } else if self.session_of(c, link).is_some() {
            let agent = self.hosts[a].agent;
            self.take(c, agent, link, header, payload);
        }
    }

    fn greet(&mut self, c: usize, a: usize, link: LinkId, hello: &Hello) -> Result<(), Failed> {
        let (agent, now) = (self.hosts[a].agent, self.db_time(c));
        let instance = self.coordinators[c].instance;
        let seen = AgentSeen {
            name: hello.name.clone(),
            labels: hello.labels.clone(),
            slots: hello.slots,
            containment: hello.containment,
            boot_id: hello.boot_id.clone(),
            software: hello.software.clone(),
        };
        self.call(c, "note an agent", async |store| {
            store.agent_seen(agent, &seen, instance, now).await
        })?;
        let held: Vec<_> = hello
            .attempts
            .iter()
            .map(|held| HeldAttempt { id: held.id, key_hash: held.key.as_ref().map(key_hash) })
            .collect();
        let verdicts = self.call(c, "judge an agent's attempts", async |store| {
            store.reconcile(agent, instance, &held).await
        })?;
        let kept = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Keep { .. }));
        let session = Session {
            link,
            slots: hello.slots as usize,
            labels: hello.labels.iter().cloned().collect(),
            held: kept.map(Verdict::id).collect(),
        };
        let timers = self.timers.for_agents();
        let version = VERSIONS.max;
        let welcome = ToAgent::Welcome(Welcome { version, agent, instance, now, timers, verdicts });
        if let Some(old) = self.coordinators[c].sessions.insert(a, session) {
            self.hang_up(old.link, End::Coordinator);
        }
        self.tell(c, link, &welcome, b"");
        self.poke_dispatch(c);
        Ok(())
    }

    pub(super) fn coordinator_crash(&mut self, c: usize) {
        let coordinator = &mut self.coordinators[c];
        if !coordinator.up {
            return;
        }
        coordinator.up = false;
        coordinator.life += 1;
        coordinator.batch.clear();
        coordinator.flushing = false;
        coordinator.poked.clear();
        coordinator.planning = None;
        let sessions = std::mem::take(&mut coordinator.sessions);
        for session in sessions.into_values() {
            self.hang_up(session.link, End::Coordinator);
        }
        let after = self.rng.range(100, 40_000);
        self.at(self.now + after, Event::StartCoordinator { coordinator: c });
    }

    pub(super) fn coordinator_start(&mut self, c: usize) {
        if self.coordinators[c].up {
            return;
        }
        if !self.set_clock(c) {
            self.trace(format_args!("coordinator{c}: does not start without the time"));
            return self.at(self.now + 10_000, Event::StartCoordinator { coordinator: c });
        }
        let instance = InstanceId::mint(Timestamp(self.now), self.rng.bytes());
        let coordinator = &mut self.coordinators[c];
        coordinator.up = true;
        let earlier = std::mem::replace(&mut coordinator.instance, instance);
        let life = coordinator.life;
        self.trace(format_args!("coordinator{c}: starts"));
        // It knows whom it follows. Without an answer that one's silence tells the same later.
        let removed =
            self.call(c, "remove an instance", async |store| store.remove_instance(earlier).await);
        if removed.is_err() && !self.coordinators[c].up {
            return;
        }
        self.at(self.now + 1, Event::Tick { coordinator: c, life, tick: Tick::Period });
    }
}
