//! A machine with an agent and its supervisors.

use std::collections::BTreeMap;

use shuntyard_agent::parts::{Fence, FromSupervisor, Mailbox, Online, Spool, Uplink};
use shuntyard_protocol::{
    AgentId, Outcome, Timestamp,
    agent::{
        AttemptFact, AttemptId, AttemptKey, Containment, End, FromAgent, Held, Hello, Renewal,
        Spec, StepEnd, Timers, ToAgent, VERSIONS, Verdict, Welcome,
    },
    frame,
};

use super::{
    Event, Wake, World,
    disk::SimDisk,
    net::{self, LinkId},
    supervisor::{Act, Halt, Heard, Phase, Supervisor},
};

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

    fn wall(&self, a: usize) -> Timestamp {
        Timestamp(self.now + self.hosts[a].skew_ms)
    }

    fn wake(&mut self, after: i64, a: usize, id: AttemptId, wake: Wake) {
        let Some(serial) = self.supervisor(a, id).map(|s| s.serial) else { return };
        self.at(self.now + after, Event::Wake { agent: a, id, serial, wake });
    }

    fn supervisor(&mut self, a: usize, id: AttemptId) -> Option<&mut Supervisor> {
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
                    self.start(a, *spec);
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
            | ToAgent::Superseded { id }
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
        if let Linked::Yes(link, _) = self.hosts[a].hub.link {
            self.send(link, net::End::Coordinator, frame, payload);
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

    fn start(&mut self, a: usize, spec: Spec) {
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
        let supervisor = Some(Supervisor::new(self.serial, &spec, disks, timers));
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

    // --- between agent and supervisor ---

    /// Carries what is new between an agent and whoever speaks for an attempt.
    pub(super) fn exchange(&mut self, a: usize, id: AttemptId) {
        let (now, boot_ms) = (self.now, self.boot(a));
        let host = &mut self.hosts[a];
        if !host.up {
            return;
        }
        let Some(entry) = host.hub.entries.get_mut(&id) else { return };
        let Some(supervisor) = host.dirs.get_mut(&id).and_then(|dir| dir.supervisor.as_mut())
        else {
            return self.custody(a, id);
        };
        if supervisor.stopped_until > now {
            return;
        }
        let frames = entry.mailbox.since(&supervisor.told, id);
        supervisor.told = entry.mailbox.clone();
        let heard: Vec<Heard> =
            frames.into_iter().map(|frame| supervisor.take(frame, boot_ms)).collect();
        for heard in heard {
            match heard {
                Heard::Nothing => {}
                Heard::Begun(key) => self.begun(a, id, key),
                Heard::Halted => self.halted(a, id),
                Heard::Renewed => self.watch_lease(a, id),
                Heard::Superseded => {
                    self.truth.stop(id);
                    return self.gone(a, id);
                }
            }
        }
        while let Some(supervisor) = self.supervisor(a, id)
            && let Some((frame, payload)) = supervisor.next(boot_ms)
        {
            self.up(a, id, frame, &payload);
        }
        if self.supervisor(a, id).is_some_and(|supervisor| supervisor.is_done()) {
            self.gone(a, id);
        }
    }

    /// Speaks for a supervisor that is dead.
    fn custody(&mut self, a: usize, id: AttemptId) {
        let at = self.wall(a);
        let host = &mut self.hosts[a];
        let (Some(entry), Some(dir)) = (host.hub.entries.get_mut(&id), host.dirs.get_mut(&id))
        else {
            return;
        };
        if entry.mailbox.is_superseded() {
            self.truth.stop(id);
            return self.gone(a, id);
        }
        if dir.leftovers {
            dir.leftovers = false;
            self.truth.stop(id);
        }
        entry.running = false;
        let (uplink, told) = entry.custodian.get_or_insert_with(|| {
            let spool = Spool::open(dir.log.clone(), dir.facts.clone(), u64::MAX)
                .expect("a simulated disk can be read");
            let mut uplink = Uplink::new(id, dir.key.clone(), spool);
            if uplink.key.is_some() && uplink.spool.end().is_none() {
                let end = AttemptFact::Ended(lost(&uplink.spool, at));
                uplink.spool.append_fact(&end).expect("a simulated disk has room");
                uplink.spool.sync().expect("a simulated disk can be synced");
            }
            (uplink, Mailbox::default())
        });
        for frame in entry.mailbox.since(told, id) {
            use shuntyard_agent::parts::ToSupervisor;
            match frame {
                ToSupervisor::Online(online) => uplink.online(&online),
                ToSupervisor::Offline {} => {
                    uplink.offline();
                    Ok(())
                }
                ToSupervisor::Down { frame } => uplink.acknowledge(&frame),
                ToSupervisor::CancelAll { .. } | ToSupervisor::Unknown => Ok(()),
            }
            .expect("a simulated disk can be read");
        }
        *told = entry.mailbox.clone();
        let mut frames = Vec::new();
        if uplink.key.is_none() && uplink.link.is_some() {
            let reason = "its supervisor ended before it began".to_owned();
            let frame = uplink.up(FromAgent::Abandon { id, reason });
            frames.extend(frame.map(|frame| (frame, Vec::new())));
            uplink.finish = true;
        }
        while let Some(frame) = uplink.take().expect("a simulated disk can be read") {
            frames.push(frame);
        }
        let abandoned = uplink.key.is_none() && uplink.finish;
        let done = abandoned || uplink.is_done();
        for (frame, payload) in frames {
            self.up(a, id, frame, &payload);
        }
        if done {
            self.gone(a, id);
        }
    }

    fn up(&mut self, a: usize, id: AttemptId, frame: FromSupervisor, payload: &[u8]) {
        let host = &mut self.hosts[a];
        match frame {
            FromSupervisor::Up { link, frame } => {
                let Linked::Yes(current, _) = host.hub.link else { return };
                if current != link {
                    return;
                }
                let FromAgent::Renew { renewals } = frame else {
                    return self.say(a, &frame, payload);
                };
                host.hub.renewals.extend(renewals.into_iter().map(|renewal| (renewal.id, renewal)));
                if !host.hub.collecting {
                    host.hub.collecting = true;
                    let life = host.life;
                    let after = self.rng.range(0, 1000);
                    self.at(self.now + after, Event::Collect { agent: a, life });
                }
            }
            FromSupervisor::Idle {} => {
                if let Some(entry) = host.hub.entries.get_mut(&id) {
                    entry.running = false;
                }
            }
            FromSupervisor::Hello { .. } | FromSupervisor::Done {} | FromSupervisor::Unknown => {}
        }
    }

    /// Renewals that came together go as one frame.
    pub(super) fn collect(&mut self, a: usize, life: u32) {
        let host = &mut self.hosts[a];
        if host.life != life {
            return;
        }
        host.hub.collecting = false;
        let renewals: Vec<Renewal> = std::mem::take(&mut host.hub.renewals).into_values().collect();
        if !renewals.is_empty() {
            self.say(a, &FromAgent::Renew { renewals }, b"");
        }
    }

    /// Nothing of the attempt is left on this machine.
    fn gone(&mut self, a: usize, id: AttemptId) {
        self.trace(format_args!("agent{a}: {} is gone", self.name(id)));
        let host = &mut self.hosts[a];
        host.hub.entries.remove(&id);
        host.hub.renewals.remove(&id);
        host.dirs.remove(&id);
    }

    // --- the commands ---

    fn begun(&mut self, a: usize, id: AttemptId, key: AttemptKey) {
        if let Some(dir) = self.hosts[a].dirs.get_mut(&id) {
            dir.key = Some(key);
        }
        let boot_ms = self.boot(a);
        let fenced = self.supervisor(a, id).is_some_and(|s| s.fence(boot_ms) != Fence::Open);
        if fenced {
            // Permission that came too late: after a long stop, say.
            self.watch_lease(a, id);
            return self.fence(a, id, boot_ms);
        }
        self.trace(format_args!("agent{a}: {} begins", self.name(id)));
        if let Err(why) = self.truth.start(id) {
            return self.violated(why);
        }
        self.watch_lease(a, id);
        self.wake(0, a, id, Wake::Work);
        let beat = self.supervisor(a, id).map_or(0, |s| s.timers.renew_ms.cast_signed());
        self.wake(beat, a, id, Wake::Beat);
    }

    fn watch_lease(&mut self, a: usize, id: AttemptId) {
        let Some(supervisor) = self.supervisor(a, id) else { return };
        let kernel = supervisor.kernel_kill_at();
        let Some(term) = supervisor.lease.as_ref().map(shuntyard_agent::parts::Lease::term_at)
        else {
            return;
        };
        let jitter = self.rng.range(0, 1000);
        self.wake(self.true_time(a, term) - self.now + jitter, a, id, Wake::Fence);
        if let Some(kernel) = kernel {
            self.wake(self.true_time(a, kernel) - self.now, a, id, Wake::KernelKill);
        }
    }

    pub(super) fn woken(&mut self, a: usize, id: AttemptId, serial: u64, wake: Wake) {
        let (now, boot_ms) = (self.now, self.boot(a));
        let Some(supervisor) = self.supervisor(a, id).filter(|s| s.serial == serial) else {
            return;
        };
        match wake {
            Wake::KernelKill => {
                if supervisor.kernel_kill_at().is_some_and(|at| at <= boot_ms) {
                    self.kill(a, id, "the kernel's timer");
                }
                return;
            }
            Wake::Unwilling => return self.kill(a, id, "its agent"),
            Wake::Prepared | Wake::Work | Wake::Beat | Wake::Fence | Wake::Stop | Wake::Resumed => {
            }
        }
        if supervisor.stopped_until > now {
            let after = supervisor.stopped_until - now;
            return self.wake(after, a, id, wake);
        }
        match wake {
            Wake::Prepared if supervisor.halt == Halt::Run => {
                supervisor.phase = Phase::Asking(None);
            }
            Wake::Work => self.work(a, id),
            Wake::Beat => {
                supervisor.beat_due = true;
                let after = supervisor.timers.renew_ms.cast_signed();
                self.wake(after, a, id, Wake::Beat);
            }
            Wake::Fence => self.fence(a, id, boot_ms),
            Wake::Stop => self.stop(a, id),
            Wake::Prepared | Wake::Resumed | Wake::KernelKill | Wake::Unwilling => {}
        }
        self.exchange(a, id);
    }

    fn fence(&mut self, a: usize, id: AttemptId, boot_ms: u64) {
        let Some(supervisor) = self.supervisor(a, id).filter(|s| !s.idle) else { return };
        let (fence, Some(lease)) = (supervisor.fence(boot_ms), supervisor.lease.as_ref()) else {
            return;
        };
        let kill_at = lease.kill_at();
        let grace = i64::try_from(lease.grace(boot_ms).as_millis()).unwrap_or(0);
        let raised = match fence {
            Fence::Open => false,
            Fence::Term => supervisor.halt(Halt::Polite(Outcome::Lost, grace)),
            Fence::Kill => supervisor.halt(Halt::Now(Outcome::Lost)),
        };
        if fence == Fence::Term {
            let jitter = self.rng.range(0, 1000);
            self.wake(self.true_time(a, kill_at) - self.now + jitter, a, id, Wake::Fence);
        }
        if raised {
            self.trace(format_args!("agent{a}: {} is fenced: {fence:?}", self.name(id)));
            self.halted(a, id);
        }
    }

    fn halted(&mut self, a: usize, id: AttemptId) {
        let Some(supervisor) = self.supervisor(a, id) else { return };
        let after = match supervisor.halt {
            Halt::Run => return,
            Halt::Polite(_, grace) => grace,
            Halt::Now(_) => 0,
        };
        let after = self.rng.range(0, after);
        self.wake(after, a, id, Wake::Stop);
    }

    /// The commands have been stopped.
    fn stop(&mut self, a: usize, id: AttemptId) {
        let at = self.wall(a);
        let Some(supervisor) = self.supervisor(a, id).filter(|s| !s.idle) else { return };
        if supervisor.phase != Phase::Begun {
            supervisor.phase = Phase::Abandoned("it was ended before it began".to_owned());
            supervisor.idle = true;
            return;
        }
        let outcome = match supervisor.halt {
            Halt::Run => return,
            Halt::Polite(outcome, _) | Halt::Now(outcome) => outcome,
        };
        if let Some(step) = supervisor.open_step.take() {
            supervisor.fact(&step_end(step, at, Outcome::Cancelled));
        }
        self.finish(a, id, outcome);
    }

    /// The next thing that the commands do.
    fn work(&mut self, a: usize, id: AttemptId) {
        let at = self.wall(a);
        let sync = self.rng.chance(300);
        let host = &mut self.hosts[a];
        let Some(supervisor) = host.dirs.get_mut(&id).and_then(|dir| dir.supervisor.as_mut())
        else {
            return;
        };
        if supervisor.idle || matches!(supervisor.halt, Halt::Now(_)) {
            return;
        }
        let Some((_, act)) = supervisor.acts.pop() else { return };
        match act {
            Act::Start { step } => {
                supervisor.open_step = Some(step);
                supervisor.fact(&AttemptFact::StepStarted { step, at });
            }
            Act::Line { stream, wide } => {
                let mut line = format!("{id} {stream} {} ", supervisor.acts.len());
                line.extend(std::iter::repeat_n('x', wide));
                line.push('\n');
                let spool = &mut supervisor.uplink.spool;
                spool.append_log(stream, at, line.as_bytes()).expect("a simulated disk has room");
                if sync {
                    spool.sync().expect("a simulated disk can be synced");
                }
                self.truth.wrote(id, stream, line.as_bytes());
            }
            Act::End { step, outcome } => {
                supervisor.open_step = None;
                supervisor.fact(&step_end(step, at, outcome));
            }
            Act::Finish { outcome } => return self.finish(a, id, outcome),
        }
        let next = supervisor.acts.last().map_or(0, |(pause, _)| *pause);
        self.wake(next, a, id, Wake::Work);
    }

    fn finish(&mut self, a: usize, id: AttemptId, outcome: Outcome) {
        self.truth.stop(id);
        let at = self.wall(a);
        let Some(supervisor) = self.supervisor(a, id) else { return };
        let ends = supervisor.uplink.spool.ends().clone();
        let end = End { at, outcome, reason: None, outputs: None, ends, torn: Vec::new() };
        supervisor.fact(&AttemptFact::Ended(end));
        supervisor.idle = true;
        self.truth.life(id).reported = Some(outcome);
        self.trace(format_args!("agent{a}: {} ends as {outcome}", self.name(id)));
    }

    /// A supervisor is stopped (SIGSTOP) until then; its commands and the kernel's timer are not.
    pub(super) fn stop_until(&mut self, a: usize, id: AttemptId, until: i64) {
        let now = self.now;
        let Some(supervisor) = self.supervisor(a, id) else { return };
        supervisor.stopped_until = until;
        if until > now {
            self.trace(format_args!("agent{a}: the supervisor of {} is stopped", self.name(id)));
        }
        self.wake(until - now, a, id, Wake::Resumed);
    }

    // --- deaths ---

    /// A supervisor is killed, and with it what it contains.
    pub(super) fn kill(&mut self, a: usize, id: AttemptId, by: &str) {
        let host = &mut self.hosts[a];
        let contained = host.containment == Containment::Namespace;
        let Some(dir) = host.dirs.get_mut(&id) else { return };
        let Some(supervisor) = dir.supervisor.take() else { return };
        let ran = self.truth.runs(id);
        if ran && contained {
            self.truth.stop(id);
        }
        dir.leftovers = ran && !contained;
        self.trace(format_args!("agent{a}: the supervisor of {} is killed by {by}", self.name(id)));
        if self.truth.lives.contains_key(&id) {
            let unread = self.rng.chance(500);
            let life = self.truth.life(id);
            life.killed |= life.reported.is_none();
            if let (true, true, Some(step)) = (ran, unread, supervisor.open_step) {
                self.truth.wrote(id, step + 1, b"nobody has read this\n");
            }
        }
        let life = self.hosts[a].life;
        self.at(self.now + 100, Event::Custody { agent: a, life, id });
    }

    pub(super) fn custody_due(&mut self, a: usize, life: u32, id: AttemptId) {
        if self.hosts[a].life == life {
            self.exchange(a, id);
        }
    }

    /// The agent's process dies; its supervisors go on.
    pub(super) fn agent_crash(&mut self, a: usize) {
        let host = &mut self.hosts[a];
        if !host.up {
            return;
        }
        let link = host.hub.link;
        host.up = false;
        host.life += 1;
        host.hub = Hub::default();
        for supervisor in host.dirs.values_mut().filter_map(|dir| dir.supervisor.as_mut()) {
            supervisor.uplink.offline();
            supervisor.told = Mailbox::default();
            supervisor.idle_said = false;
        }
        self.trace(format_args!("agent{a}: dies"));
        if let Linked::Yes(link, _) | Linked::Greeting(link) = link {
            self.hang_up(link, net::End::Agent);
        }
    }

    /// The machine dies, and everything on it.
    pub(super) fn host_crash(&mut self, a: usize) {
        self.agent_crash(a);
        self.trace(format_args!("agent{a}: the machine dies"));
        let ids: Vec<_> = self.hosts[a].dirs.keys().copied().collect();
        for id in ids {
            self.kill(a, id, "the machine's end");
            self.truth.stop(id);
            if let Some(dir) = self.hosts[a].dirs.get_mut(&id) {
                dir.leftovers = false;
                dir.log.crash(&mut self.rng);
                dir.facts.crash(&mut self.rng);
            }
        }
    }

    pub(super) fn agent_start(&mut self, a: usize) {
        let host = &mut self.hosts[a];
        if host.up {
            return;
        }
        host.up = true;
        let life = host.life;
        for &id in host.dirs.keys() {
            let entry = Entry { running: true, mailbox: Mailbox::default(), custodian: None };
            host.hub.entries.insert(id, entry);
        }
        self.trace(format_args!("agent{a}: starts"));
        self.exchange_all(a);
        self.at(self.now + 10, Event::Connect { agent: a, life });
    }
}

fn step_end(step: u32, at: Timestamp, outcome: Outcome) -> AttemptFact {
    AttemptFact::StepEnded(StepEnd {
        step,
        at,
        outcome,
        exit_code: None,
        error: None,
        outputs: None,
        tries: 1,
    })
}

/// What a custodian says for a supervisor that could not.
fn lost(spool: &Spool<SimDisk>, at: Timestamp) -> End {
    let mut torn: Vec<u32> = spool.open_steps().iter().map(|step| step + 1).collect();
    if torn.is_empty() {
        torn.push(0);
    }
    End {
        at,
        outcome: Outcome::Lost,
        reason: Some("its supervisor ended".to_owned()),
        outputs: None,
        ends: spool.ends().clone(),
        torn,
    }
}
