//! A coordinator: what frames mean and what is due are the server's own decisions; the store is the
//! real one; what lies between them is one call at a time, each of which may go wrong.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use shuntyard_core::{
    apply::{Answer, Fact},
    labels::Requirement,
    mutant::{self, Mutant},
};
use shuntyard_protocol::{
    AgentId, EventId, InstanceId, Timestamp,
    agent::{
        AttemptFact, AttemptId, AttemptKey, FromAgent, Hello, Spec, ToAgent, VERSIONS, Verdict,
        Welcome,
    },
    frame,
    plan::Job,
};
use shuntyard_server::parts::{
    About, Ask, Reply, Sender, asks, fact, key_hash, log_reply, look, replies, withdrawn,
};
use shuntyard_store::{
    AgentSeen, Change, Claimed, Delivery, HeldAttempt, LogAnswer, LogAppend, NewEvent, NewJob,
    NewRun, Store, StoreError,
};

use super::{
    Event, Tick, World,
    net::{End, LinkId},
};

/// Another coordinator may take a delivery after this.
const DELIVERY_LEASE: std::time::Duration = std::time::Duration::from_secs(60);
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
    dispatching: bool,
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
    pub(super) fn new(instance: InstanceId, error_ms: i64) -> Self {
        Self {
            instance,
            up: true,
            life: 0,
            error_ms,
            slow_until: 0,
            sessions: BTreeMap::new(),
            batch: Vec::new(),
            flushing: false,
            dispatching: false,
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
        let coordinator = &mut self.coordinators[c];
        if coordinator.up && !coordinator.dispatching {
            coordinator.dispatching = true;
            let life = coordinator.life;
            let after = self.think(c);
            self.at(self.now + after, Event::Tick { coordinator: c, life, tick: Tick::Dispatch });
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
        self.send(link, End::Agent, frame, payload);
        if self.rng.chance(self.scale.call_faults / 5) {
            self.trace(format_args!("coordinator{c}: dies after a frame"));
            self.coordinator_crash(c);
            return false;
        }
        true
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

    // --- frames ---

    fn with_sender<T>(&self, c: usize, agent: AgentId, f: impl FnOnce(&Sender<'_>) -> T) -> T {
        let now = self.db_time(c);
        f(&Sender { agent, now, timers: &self.timers, key: &attempt_key })
    }

    /// Queues what a frame says.
    pub(super) fn take(
        &mut self,
        c: usize,
        agent: AgentId,
        link: LinkId,
        frame: FromAgent,
        payload: &[u8],
    ) {
        let asked = match self.with_sender(c, agent, |by| asks(frame, payload, by)) {
            Ok(asked) => asked,
            Err(breach) => return self.violated(format!("a frame is refused: {breach}")),
        };
        for ask in asked {
            let item = match ask {
                Ask::Fact(about, fact) => Item::Fact(about, fact),
                Ask::Log(log) => Item::Log(log),
                Ask::Drain => continue,
            };
            if mutant::on(Mutant::AckBeforeCommit) {
                self.ack_early(c, link, &item);
            }
            self.coordinators[c].batch.push((link, item));
        }
        let coordinator = &mut self.coordinators[c];
        if !coordinator.batch.is_empty() && !coordinator.flushing {
            coordinator.flushing = true;
            let life = coordinator.life;
            let after = self.think(c);
            self.at(self.now + after, Event::Flush { coordinator: c, life });
        }
    }

    fn ack_early(&mut self, c: usize, link: LinkId, item: &Item) {
        let frame = match item {
            Item::Fact(About::Fact(id, _), Fact::Attempt { seq, .. }) => {
                ToAgent::FactAck { id: *id, seq: *seq }
            }
            Item::Fact(..) => return,
            Item::Log(log) => {
                let to = log.from + log.bytes.len() as u64;
                ToAgent::LogAck { id: log.id, to: BTreeMap::from([(log.stream, to)]) }
            }
        };
        self.tell(c, link, &frame, b"");
    }

    /// Commits what has queued up.
    pub(super) fn flush(&mut self, c: usize, life: u32) {
        let coordinator = &mut self.coordinators[c];
        if !coordinator.up || coordinator.life != life {
            return;
        }
        coordinator.flushing = false;
        let batch = std::mem::take(&mut coordinator.batch);
        let links: BTreeSet<LinkId> = batch.iter().map(|(link, _)| *link).collect();
        let (mut facts, mut logs) = (Vec::new(), Vec::new());
        let (mut asked, mut streams) = (Vec::new(), Vec::new());
        for (link, item) in batch {
            match item {
                Item::Fact(about, fact) => {
                    asked.push((link, about));
                    facts.push(fact);
                }
                Item::Log(log) => {
                    streams.push((link, log.id, log.stream));
                    logs.push(log);
                }
            }
        }
        let (now, apart) = (self.db_time(c), self.one_by_one);
        let what = format!("commit {} facts and {} chunks", facts.len(), logs.len());
        let done = self.call(c, &what, async |store| {
            if apart {
                return commit_apart(store, facts, logs, now).await;
            }
            let (facts, logs) = store.commit(facts, logs, now).await;
            Ok((facts?, logs?))
        });
        let (answers, ends) = match done {
            Ok(done) => done,
            Err(Failed::Crashed) => return,
            Err(Failed::Unavailable) => {
                // Nobody knows what was committed: the agents must ask again.
                return links.into_iter().for_each(|link| self.close(c, link));
            }
        };
        for ((link, about), answer) in asked.into_iter().zip(answers) {
            self.trace_reply(c, about, &answer);
            let agent = self.net.get(link).map_or(0, |link| link.agent);
            let agent = self.hosts[agent].agent;
            match self.with_sender(c, agent, |by| replies(about, answer, by)) {
                Ok(replies) => replies.into_iter().for_each(|reply| self.reply(c, link, reply)),
                Err(breach) => return self.violated(format!("an answer does not fit: {breach}")),
            }
        }
        for ((link, id, stream), answer) in streams.into_iter().zip(ends) {
            self.trace(format_args!(
                "coordinator{c}: log {} stream {stream} → {answer:?}",
                self.name(id)
            ));
            if let LogAnswer::Acked { to } = answer {
                let acked = self.acked_logs.entry((id, stream)).or_default();
                *acked = to.max(*acked);
            }
            match log_reply(id, stream, answer) {
                Ok(frame) => {
                    self.tell(c, link, &frame, b"");
                }
                Err(breach) => return self.violated(format!("a log is refused: {breach}")),
            }
        }
    }

    fn reply(&mut self, c: usize, link: LinkId, reply: Reply) {
        match reply {
            Reply::Send(frame) => {
                self.tell(c, link, &frame, b"");
            }
            Reply::Freed(id) => self.freed(c, id),
            Reply::Start(id) => {
                let parts = self
                    .call(c, "read what a start needs", async |store| store.spec_for(id.job).await);
                let frame = match parts {
                    Err(Failed::Crashed) => return,
                    Err(Failed::Unavailable) => return self.close(c, link),
                    Ok(parts) => match parts.filter(|parts| parts.job.attempt == id.attempt) {
                        Some(parts) => ToAgent::Start(Box::new(spec(id, &parts))),
                        None => {
                            self.freed(c, id);
                            ToAgent::Superseded { id }
                        }
                    },
                };
                self.tell(c, link, &frame, b"");
            }
        }
    }

    // --- reconcilers ---

    pub(super) fn tick(&mut self, c: usize, life: u32, tick: Tick) {
        let coordinator = &mut self.coordinators[c];
        if !coordinator.up || coordinator.life != life {
            return;
        }
        let result = match tick {
            Tick::Dispatch => {
                coordinator.dispatching = false;
                self.dispatch(c)
            }
            Tick::Period => {
                let after = self.rng.range(2000, 8000);
                self.at(self.now + after, Event::Tick { coordinator: c, life, tick });
                self.poke_dispatch(c);
                self.expire(c).and_then(|()| self.inbox(c))
            }
        };
        // A failed tick is tried again with the next period.
        if let Err(failed) = result {
            self.trace(format_args!("coordinator{c}: a tick ends early: {failed:?}"));
        }
    }

    fn dispatch(&mut self, c: usize) -> Result<(), Failed> {
        loop {
            let rooms = |session: &Session| session.slots.saturating_sub(session.held.len());
            let sessions = &self.coordinators[c].sessions;
            if sessions.values().all(|session| rooms(session) == 0) {
                return Ok(());
            }
            let classes =
                self.call(c, "list queued classes", async |store| store.queued_classes().await)?;
            let mut offered = false;
            for class in classes {
                let requirement =
                    Requirement::new(&class.runs_on).expect("the labels of a plan compile");
                let able = self.coordinators[c].sessions.iter();
                let able: Vec<usize> = able
                    .filter(|(_, session)| {
                        rooms(session) > 0 && requirement.admits(&session.labels)
                    })
                    .map(|(&agent, _)| agent)
                    .collect();
                let free: usize =
                    able.iter().map(|agent| rooms(&self.coordinators[c].sessions[agent])).sum();
                let Ok(limit @ 1..) = u32::try_from(free) else { continue };
                let (now, instance) = (self.db_time(c), self.coordinators[c].instance);
                let until = now + self.timers.offer;
                let claimed = self.call(c, "claim jobs", async |store| {
                    store.claim(&[class.id], limit, instance, until, now).await
                })?;
                for job in claimed {
                    offered = true;
                    self.offer(c, &able, &job)?;
                }
            }
            if !offered {
                return Ok(());
            }
        }
    }

    fn offer(&mut self, c: usize, able: &[usize], job: &Claimed) -> Result<(), Failed> {
        let hosts = &self.hosts;
        let sessions = &mut self.coordinators[c].sessions;
        let mut rooms: Vec<(bool, usize, usize)> = able
            .iter()
            .filter_map(|&agent| {
                let session = sessions.get(&agent)?;
                let free = session.slots.checked_sub(session.held.len()).filter(|n| *n > 0)?;
                Some((job.refused.contains(&hosts[agent].agent), usize::MAX - free, agent))
            })
            .collect();
        rooms.sort_unstable();
        if let Some(&(_, _, agent)) = rooms.first()
            && let Some(session) = sessions.get_mut(&agent)
        {
            session.held.insert(job.id);
            let link = session.link;
            self.trace(format_args!(
                "coordinator{c}: offers {} to agent{agent}",
                self.name(job.id)
            ));
            let frame = ToAgent::Offer { id: job.id, name: job.title.clone() };
            return if self.tell(c, link, &frame, b"") { Ok(()) } else { Err(Failed::Crashed) };
        }
        let now = self.db_time(c);
        let fact = Fact::OfferExpired { id: job.id, agent: None };
        self.call(c, "put a job back", async |store| store.apply(vec![fact], now).await).map(drop)
    }

    fn expire(&mut self, c: usize) -> Result<(), Failed> {
        let now = self.db_time(c);
        let overdue = look(&self.timers, now);
        let due =
            self.call(c, "look for what is due", async |store| store.due(overdue, 500, now).await)?;
        let facts: Vec<Fact> = due.iter().map(|due| fact(due, overdue)).collect();
        if facts.is_empty() {
            return Ok(());
        }
        let life = self.coordinators[c].life;
        // Between the look and the commit anything may happen.
        let after = self.think(c);
        self.at(self.now + after, Event::Expire { coordinator: c, life, facts });
        Ok(())
    }

    pub(super) fn expired(&mut self, c: usize, life: u32, facts: Vec<Fact>) {
        if !self.coordinators[c].up || self.coordinators[c].life != life {
            return;
        }
        let (now, sent) = (self.db_time(c), facts.clone());
        let done = self.call(c, "apply what is due", async |store| store.apply(sent, now).await);
        for (fact, answer) in facts.into_iter().zip(done.unwrap_or_default()) {
            self.trace_answer(c, &fact, &answer);
            if answer != Answer::Done {
                continue;
            }
            if let Some(id) = withdrawn(&fact) {
                self.send_to_holder(c, id, &ToAgent::Superseded { id });
                self.freed(c, id);
            }
        }
        self.poke_dispatch(c);
    }

    fn inbox(&mut self, c: usize) -> Result<(), Failed> {
        let (now, instance) = (self.db_time(c), self.coordinators[c].instance);
        let taken = self.call(c, "take deliveries", async |store| {
            store.lease_deliveries(instance, 16, DELIVERY_LEASE, now).await
        })?;
        for delivery in taken {
            // Planning takes its time, sometimes more than the lease.
            let long = if self.rng.chance(100) { 100_000 } else { 2000 };
            let after = self.rng.range(0, long);
            let life = self.coordinators[c].life;
            let delivery = Box::new(delivery);
            self.at(self.now + after, Event::Plan { coordinator: c, life, delivery });
        }
        Ok(())
    }

    pub(super) fn plan(&mut self, c: usize, life: u32, delivery: &Delivery) {
        if !self.coordinators[c].up || self.coordinators[c].life != life {
            return;
        }
        let now = self.db_time(c);
        let n = usize::from(delivery.body[0]);
        let work = self.works[n].clone();
        let event = NewEvent {
            id: EventId::mint(now, self.rng.bytes()),
            org: delivery.org.clone(),
            source: delivery.source_id,
            kind: "push".to_owned(),
            event_key: (n % 2 == 0).then(|| format!("push {n}")),
            ref_name: None,
            branch: None,
            commit: None,
            actor: None,
            title: Some(n.to_string()),
            body: json!({}),
        };
        let mut runs = Vec::new();
        for (workflow, jobs) in work {
            let jobs = jobs.into_iter().map(|job| NewJob {
                id: shuntyard_protocol::JobId::mint(now, self.rng.bytes()),
                name: job.name,
                title: job.title,
                matrix: None,
                spec: serde_json::to_value(&job.spec).expect("a plan is JSON"),
                runs_on: job.runs_on,
                priority: 0,
                retry: job.retry,
                continue_on_error: job.continue_on_error,
                needs: job.needs,
            });
            let jobs: Vec<NewJob> = jobs.collect();
            runs.push(NewRun {
                id: shuntyard_protocol::RunId::mint(now, self.rng.bytes()),
                workflow: workflow.clone(),
                file: format!("{workflow}.ts"),
                plan_key: None,
                timeout_ms: None,
                env: BTreeMap::new(),
                jobs,
            });
        }
        let of = delivery.id;
        let created = self.call(c, "create runs", async |store| {
            store.create_runs(&event, runs, Some((of, "runs")), QUEUE_MAX, now).await
        });
        if let Ok(created) = created {
            let fresh = created.fresh;
            self.trace(format_args!("coordinator{c}: delivery {n} made {fresh} runs"));
        }
    }

    fn trace_reply(&self, c: usize, about: About, answer: &Answer) {
        let (what, id) = match about {
            About::Reserve(id) => ("reserve", id),
            About::Withdraw(id) => ("withdraw", id),
            About::Begin(id) => ("begin", id),
            About::Renew(id, _) => ("renew", id),
            About::Fact(id, true) => ("end", id),
            About::Fact(id, false) => ("fact", id),
        };
        self.trace(format_args!("coordinator{c}: {what} {} → {answer:?}", self.name(id)));
    }

    fn trace_answer(&self, c: usize, fact: &Fact, answer: &Answer) {
        let (what, id) = match fact {
            Fact::OfferExpired { id, .. } => ("offer expired", id),
            Fact::StartExpired { id } => ("start expired", id),
            Fact::Overdue { id, .. } => ("overdue", id),
            Fact::Lost { id, .. } => ("lost", id),
            _ => return,
        };
        self.trace(format_args!("coordinator{c}: {what} {} → {answer:?}", self.name(*id)));
    }

    // --- deaths ---

    pub(super) fn coordinator_crash(&mut self, c: usize) {
        let coordinator = &mut self.coordinators[c];
        if !coordinator.up {
            return;
        }
        coordinator.up = false;
        coordinator.life += 1;
        coordinator.batch.clear();
        coordinator.flushing = false;
        coordinator.dispatching = false;
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
        let instance = InstanceId::mint(Timestamp(self.now), self.rng.bytes());
        let error_ms = self.rng.range(-200, 200);
        let coordinator = &mut self.coordinators[c];
        coordinator.up = true;
        coordinator.instance = instance;
        coordinator.error_ms = error_ms;
        let life = coordinator.life;
        self.trace(format_args!("coordinator{c}: starts"));
        self.at(self.now + 1, Event::Tick { coordinator: c, life, tick: Tick::Period });
    }
}

/// One transaction for each fact and chunk.
async fn commit_apart(
    store: &Store,
    facts: Vec<Fact>,
    logs: Vec<LogAppend>,
    now: Timestamp,
) -> Result<(Vec<Answer>, Vec<LogAnswer>), StoreError> {
    let (mut answers, mut ends) = (Vec::new(), Vec::new());
    for fact in facts {
        answers.extend(store.apply(vec![fact], now).await?);
    }
    for log in logs {
        ends.extend(store.append_logs(vec![log], now).await?);
    }
    Ok((answers, ends))
}

fn spec(id: AttemptId, parts: &shuntyard_store::SpecParts) -> Spec {
    let job: Job = serde_json::from_value(parts.job.spec.clone()).expect("a plan was stored");
    Spec {
        id,
        run: parts.run.id,
        org: parts.run.org.clone(),
        source: parts.run.source.clone(),
        workflow: parts.run.workflow.clone(),
        file: parts.run.file.clone(),
        job: parts.job.name.clone(),
        title: parts.job.title.clone(),
        try_no: parts.job.try_no,
        run_number: parts.run.number,
        matrix: None,
        event: json!({}),
        code: None,
        checkout: job.checkout,
        env: BTreeMap::new(),
        timeout_ms: 6 * 3600 * 1000,
        grace_ms: 10_000,
        steps: job.steps,
        parallels: Vec::new(),
        single: false,
        needs: BTreeMap::new(),
        run_url: None,
    }
}

/// The frame of somebody who knows an attempt's id, but not its key.
pub(super) fn forged(id: AttemptId, seq: u64, end: shuntyard_protocol::agent::End) -> FromAgent {
    let facts =
        vec![shuntyard_protocol::agent::NumberedFact { seq, fact: AttemptFact::Ended(end) }];
    FromAgent::Facts { id, key: AttemptKey("forged".to_owned()), facts }
}
