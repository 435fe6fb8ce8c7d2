//! A machine with an agent and its supervisors.
#![expect(clippy::wildcard_enum_match_arm, reason = "only some cases matter to the model")]

use std::collections::BTreeMap;

use shuntyard_agent::parts::{Mailbox, Online, Uplink};
use shuntyard_protocol::{
    AgentId, Timestamp,
    agent::{
        AttemptId, AttemptKey, Containment, FromAgent, Held, Hello, Renewal, Spec, Timers, ToAgent,
        VERSIONS, Verdict, Welcome,
    },
    frame,
};

use super::{
    Event, Wake, World,
    disk::SimDisk,
    net::{self, LinkId},
    supervisor::Supervisor,
};

mod commands;
mod exchange;

pub(super) struct Host {
    pub(super) agent: AgentId,
    pub(super) labels: Vec<String>,
    pub(super) slots: u32,
    pub(super) containment: Containment,
    pub(super) up: bool,
    /// Grows with each start of the agent.
    pub(super) life: u32,
    /// Its clock since boot, minus true time.
    pub(super) boot_ms: i64,
    /// Its wall clock, minus true time.
    pub(super) skew_ms: i64,
    /// What is on its disk.
    pub(super) dirs: BTreeMap<AttemptId, Dir>,
    pub(super) hub: Hub,
}

/// An attempt's directory, and who works in it.
pub(super) struct Dir {
    key: Option<AttemptKey>,
    log: SimDisk,
    facts: SimDisk,
    pub(super) supervisor: Option<Supervisor>,
    /// Commands outlived their supervisor.
    leftovers: bool,
}

/// What the agent's process knows.
#[derive(Default)]
pub(super) struct Hub {
    entries: BTreeMap<AttemptId, Entry>,
    reservations: BTreeMap<AttemptId, i64>,
    pub(super) link: Linked,
    renewals: BTreeMap<AttemptId, Renewal>,
    collecting: bool,
    failures: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Linked {
    #[default]
    No,
    Greeting(LinkId),
    Yes(LinkId, Timers),
}

struct Entry {
    running: bool,
    mailbox: Mailbox,
    /// Speaks for a dead supervisor.
    custodian: Option<(Uplink<SimDisk>, Mailbox)>,
}

const NO_KEY: &str = "00";

impl World {
    fn boot(&self, a: usize) -> u64 {
        u64::try_from(self.now + self.hosts[a].boot_ms).expect("boot is long ago")
    }

    /// True time of an instant by a machine's clock since boot.
    fn true_time(&self, a: usize, boot_ms: u64) -> i64 {
        i64::try_from(boot_ms).unwrap_or(i64::MAX / 2) - self.hosts[a].boot_ms
    }

    pub(super) fn wall(&self, a: usize) -> Timestamp {
        Timestamp(self.now + self.hosts[a].skew_ms)
    }

    fn wake(&mut self, after: i64, a: usize, id: AttemptId, wake: Wake) {
        let Some(serial) = self.supervisor(a, id).map(|s| s.serial) else { return };
        self.at(self.now + after, Event::Wake { agent: a, id, serial, wake });
    }

    pub(super) fn supervisor(&mut self, a: usize, id: AttemptId) -> Option<&mut Supervisor> {
        self.hosts[a].dirs.get_mut(&id)?.supervisor.as_mut()
    }

    // --- the link ---

    /// Tries the next coordinator.
    pub(super) fn connect(&mut self, a: usize, life: u32) {
        let host = &self.hosts[a];
        if !host.up || host.life != life || host.hub.link != Linked::No {
            return;
        }
        let c = self.rng.size(0, self.coordinators.len() - 1);
        if !self.coordinators[c].up || self.net.is_blocked(a, c, self.now) {
            return self.connect_later(a);
        }
        let link = self.net.open(a, c);
        let host = &mut self.hosts[a];
        host.hub.link = Linked::Greeting(link);
        let attempts = host.hub.entries.iter().map(|(&id, entry)| Held {
            id,
            key: host.dirs.get(&id).and_then(|dir| dir.key.clone()),
            alive: entry.custodian.is_none(),
        });
        let hello = FromAgent::Hello(Hello {
            versions: VERSIONS,
            public_key: NO_KEY.to_owned(),
            signature: NO_KEY.to_owned(),
            token: None,
            name: format!("agent{a}"),
            labels: host.labels.clone(),
            slots: host.slots,
            containment: host.containment,
            boot_id: "boot".to_owned(),
            software: "sim".to_owned(),
            attempts: attempts.collect(),
        });
        self.trace(format_args!("agent{a}: connects to coordinator{c} by link {link}"));
        self.send(link, net::End::Coordinator, &hello, b"");
        self.at(self.now + 15_000, Event::Greeted { link });
        self.agent_point(a, "after its hello");
    }

    fn connect_later(&mut self, a: usize) {
        let hub = &mut self.hosts[a].hub;
        hub.failures = (hub.failures + 1).min(10);
        let most = 1000 * (3_i64.pow(hub.failures) / 2_i64.pow(hub.failures)).min(60);
        let after = self.rng.range(500, most.max(1000));
        let life = self.hosts[a].life;
        self.at(self.now + after, Event::Connect { agent: a, life });
    }

    /// The agent learns that its link is gone.
    pub(super) fn offline(&mut self, a: usize, link: LinkId) {
        match self.hosts[a].hub.link {
            Linked::Greeting(current) | Linked::Yes(current, _) if current == link => {}
            Linked::No | Linked::Greeting(_) | Linked::Yes(..) => return,
        }
        self.trace(format_args!("agent{a}: link {link} is gone"));
        self.hang_up(link, net::End::Agent);
        let hub = &mut self.hosts[a].hub;
        hub.link = Linked::No;
        hub.reservations.clear();
        hub.renewals.clear();
        for entry in hub.entries.values_mut() {
            entry.mailbox.offline();
        }
        self.exchange_all(a);
        self.connect_later(a);
    }

    /// A welcome that did not come in time.
    pub(super) fn greeted(&mut self, link: LinkId) {
        let Some(a) = self.net.get(link).map(|link| link.agent) else { return };
        if self.hosts[a].hub.link == Linked::Greeting(link) {
            self.offline(a, link);
        }
    }

    pub(super) fn agent_hears(&mut self, a: usize, link: LinkId, bytes: &[u8]) {
        let (header, _) = frame::decode::<ToAgent>(bytes).expect("the coordinator encoded it");
        let hub = &mut self.hosts[a].hub;
        match hub.link {
            Linked::Greeting(current) if current == link => {
                if let ToAgent::Welcome(welcome) = header {
                    self.online(a, link, &welcome);
                }
                return;
            }
            Linked::Yes(current, _) if current == link => {}
            Linked::No | Linked::Greeting(_) | Linked::Yes(..) => return,
        }
        let id = match &header {
            ToAgent::Offer { id, .. } => return self.offered(a, *id),
            ToAgent::Start(_) => {
                if let ToAgent::Start(spec) = header {
                    self.start(a, &spec);
                }
                return;
            }
            ToAgent::Renewed { renewals } => {
                for renewed in renewals.clone() {
                    self.down(a, renewed.id, |mailbox| mailbox.renew(renewed));
                }
                return;
            }
            ToAgent::Begun { id, .. }
            | ToAgent::Superseded { id, .. }
            | ToAgent::Cancel { id, .. }
            | ToAgent::LogAck { id, .. }
            | ToAgent::FactAck { id, .. } => *id,
            ToAgent::Challenge { .. }
            | ToAgent::Welcome(_)
            | ToAgent::Rejected { .. }
            | ToAgent::Unknown => return,
        };
        self.down(a, id, |mailbox| match header {
            ToAgent::Begun { .. } => mailbox.begun(header),
            ToAgent::Superseded { .. } => mailbox.supersede(),
            ToAgent::Cancel { force, reason, .. } => mailbox.cancel(force, reason),
            ToAgent::LogAck { to, .. } => mailbox.ack_log(to),
            ToAgent::FactAck { seq, .. } => mailbox.ack_facts(seq),
            _ => {}
        });
    }

    fn down(&mut self, a: usize, id: AttemptId, change: impl FnOnce(&mut Mailbox)) {
        let Some(entry) = self.hosts[a].hub.entries.get_mut(&id) else { return };
        let before = entry.mailbox.is_superseded();
        change(&mut entry.mailbox);
        if entry.mailbox.is_superseded() && !before {
            self.trace(format_args!("agent{a}: {} is superseded", self.name(id)));
            // A supervisor that does not go by itself is killed.
            let after = self.rng.range(15_000, 45_000);
            self.wake(after, a, id, Wake::Unwilling);
        }
        self.exchange(a, id);
    }

    fn online(&mut self, a: usize, link: LinkId, welcome: &Welcome) {
        self.trace(format_args!("agent{a}: welcomed on link {link}"));
        let offset_ms = welcome.now.0 - self.wall(a).0;
        let timers = welcome.timers;
        let hub = &mut self.hosts[a].hub;
        hub.link = Linked::Yes(link, timers);
        hub.failures = 0;
        let verdicts: BTreeMap<AttemptId, &Verdict> =
            welcome.verdicts.iter().map(|verdict| (verdict.id(), verdict)).collect();
        for (id, entry) in &mut hub.entries {
            let (log, facts, finish) = match verdicts.get(id) {
                Some(Verdict::Keep { log, facts, .. }) => (log.clone(), *facts, false),
                Some(Verdict::Finish { log, facts, .. }) => (log.clone(), *facts, true),
                Some(Verdict::Kill { .. }) => {
                    entry.mailbox.supersede();
                    (BTreeMap::new(), 0, true)
                }
                None => continue,
            };
            entry.mailbox.online(Online { link, timers, offset_ms, log, facts, finish });
        }
        for verdict in &welcome.verdicts {
            self.trace(format_args!("agent{a}: verdict {}", self.verdict_name(verdict)));
        }
        self.exchange_all(a);
    }

    fn verdict_name(&self, verdict: &Verdict) -> String {
        let word = match verdict {
            Verdict::Keep { .. } => "keep",
            Verdict::Finish { .. } => "finish",
            Verdict::Kill { .. } => "kill",
        };
        format!("{word} {}", self.name(verdict.id()))
    }

    fn exchange_all(&mut self, a: usize) {
        let ids: Vec<_> = self.hosts[a].hub.entries.keys().copied().collect();
        for id in ids {
            self.exchange(a, id);
        }
    }

    // --- offers and starts ---

    fn may_take(&mut self, a: usize, id: AttemptId) -> Result<(), String> {
        let now = self.now;
        let host = &mut self.hosts[a];
        host.hub.reservations.retain(|other, until| *until > now && *other != id);
        if host.hub.entries.contains_key(&id) {
            return Err("the agent has this attempt already".to_owned());
        }
        let busy = host.hub.entries.values().filter(|entry| entry.running).count();
        if busy + host.hub.reservations.len() >= host.slots as usize {
            return Err("no slot is free".to_owned());
        }
        Ok(())
    }

    fn say(&mut self, a: usize, frame: &FromAgent, payload: &[u8]) {
        if self.agent_point(a, "before a frame") {
            return;
        }
        if let Linked::Yes(link, _) = self.hosts[a].hub.link {
            self.send(link, net::End::Coordinator, frame, payload);
            self.agent_point(a, "after a frame");
        }
    }

    fn offered(&mut self, a: usize, id: AttemptId) {
        let answer = match self.may_take(a, id) {
            Ok(()) => {
                let Linked::Yes(_, timers) = self.hosts[a].hub.link else { return };
                let kept = i64::try_from(timers.reservation_ms).unwrap_or(i64::MAX);
                self.hosts[a].hub.reservations.insert(id, self.now + kept);
                FromAgent::Reserve { id }
            }
            Err(reason) => FromAgent::Refuse { id, reason },
        };
        self.say(a, &answer, b"");
    }

    fn start(&mut self, a: usize, spec: &Spec) {
        let id = spec.id;
        if self.hosts[a].hub.entries.contains_key(&id) {
            return;
        }
        let reserved = self.hosts[a].hub.reservations.remove(&id).is_some();
        if !reserved && let Err(reason) = self.may_take(a, id) {
            return self.say(a, &FromAgent::Refuse { id, reason }, b"");
        }
        let Linked::Yes(link, timers) = self.hosts[a].hub.link else { return };
        self.trace(format_args!("agent{a}: starts {}", self.name(id)));
        let (log, facts) = (SimDisk::default(), SimDisk::default());
        self.serial += 1;
        let disks = (log.clone(), facts.clone());
        let supervisor = Some(Supervisor::new(self.serial, spec, disks, timers));
        let dir = Dir { key: None, log, facts, supervisor, leftovers: false };
        let host = &mut self.hosts[a];
        host.dirs.insert(id, dir);
        let mut mailbox = Mailbox::default();
        let log = BTreeMap::new();
        let online = Online { link, timers, offset_ms: 0, log, facts: 0, finish: false };
        mailbox.online(online);
        host.hub.entries.insert(id, Entry { running: true, mailbox, custodian: None });
        let after = if self.rng.chance(150) { 20_000 } else { 300 };
        let after = self.rng.range(1, after);
        self.wake(after, a, id, Wake::Prepared);
        self.exchange(a, id);
    }
}
