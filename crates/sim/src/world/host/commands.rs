//! What the commands of an attempt do, and how they, their supervisor and their machine die.

use shuntyard_agent::parts::{Fence, Lease, Mailbox};
use shuntyard_protocol::{
    Outcome, Timestamp,
    agent::{AttemptFact, AttemptId, AttemptKey, Containment, End, StepEnd},
};

use super::{Entry, Hub, Linked};
use crate::world::{
    Event, Wake, World, net,
    supervisor::{Act, Halt, Phase},
};

impl World {
    pub(super) fn begun(&mut self, a: usize, id: AttemptId, key: AttemptKey) {
        if self.supervisor_point(a, id, "before its key is on the disk") {
            return;
        }
        if let Some(dir) = self.hosts[a].dirs.get_mut(&id) {
            dir.key = Some(key);
        }
        if self.supervisor_point(a, id, "before its first command") {
            return;
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

    pub(super) fn watch_lease(&mut self, a: usize, id: AttemptId) {
        let Some(supervisor) = self.supervisor(a, id) else { return };
        let kernel = supervisor.kernel_kill_at();
        let Some(term) = supervisor.lease.as_ref().map(Lease::term_at) else {
            return;
        };
        let jitter = self.rng.range(0, 1000);
        self.wake(self.true_time(a, term) - self.now + jitter, a, id, Wake::Fence);
        if let Some(kernel) = kernel {
            self.wake(self.true_time(a, kernel) - self.now, a, id, Wake::KernelKill);
        }
    }

    pub(in crate::world) fn woken(&mut self, a: usize, id: AttemptId, serial: u64, wake: Wake) {
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

    pub(super) fn halted(&mut self, a: usize, id: AttemptId) {
        let Some(supervisor) = self.supervisor(a, id) else { return };
        let after = match supervisor.halt {
            Halt::Run => return,
            Halt::Polite(_, grace) => grace,
            Halt::Now(_) => 0,
        };
        // Some commands do not listen, and have to be killed.
        let after = if self.rng.chance(300) { after } else { self.rng.range(0, after) };
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
        if let Some(step) = supervisor.open_step.take()
            && self.record(a, id, &step_end(step, at, Outcome::Cancelled))
        {
            return;
        }
        self.finish(a, id, outcome);
    }

    /// The next thing that the commands do.
    fn work(&mut self, a: usize, id: AttemptId) {
        let at = self.wall(a);
        let Some(supervisor) = self.supervisor(a, id) else { return };
        if supervisor.idle || matches!(supervisor.halt, Halt::Now(_)) {
            return;
        }
        let Some((_, act)) = supervisor.acts.pop() else { return };
        let next = supervisor.acts.last().map_or(0, |(pause, _)| *pause);
        let died = match act {
            Act::Start { step } => {
                supervisor.open_step = Some(step);
                self.record(a, id, &AttemptFact::StepStarted { step, at })
            }
            Act::Line { stream, wide } => {
                let mut line = format!("{id} {stream} {} ", supervisor.acts.len());
                line.extend(std::iter::repeat_n('x', wide));
                line.push('\n');
                self.record_log(a, id, stream, line.as_bytes())
            }
            Act::End { step, outcome } => {
                supervisor.open_step = None;
                self.record(a, id, &step_end(step, at, outcome))
            }
            Act::Finish { outcome } => return self.finish(a, id, outcome),
        };
        if !died {
            self.wake(next, a, id, Wake::Work);
        }
    }

    fn finish(&mut self, a: usize, id: AttemptId, outcome: Outcome) {
        self.truth.stop(id);
        let at = self.wall(a);
        let Some(supervisor) = self.supervisor(a, id) else { return };
        let ends = supervisor.uplink.spool.ends().clone();
        let end = End { at, outcome, reason: None, outputs: None, ends, torn: Vec::new() };
        // From here on this may become known; until it is synced the machine may forget it.
        self.truth.life(id).reported = Some(outcome);
        if self.record(a, id, &AttemptFact::Ended(end)) {
            return;
        }
        self.truth.life(id).said = true;
        if let Some(supervisor) = self.supervisor(a, id) {
            supervisor.idle = true;
        }
        self.trace(format_args!("agent{a}: {} ends as {outcome}", self.name(id)));
    }

    /// A supervisor is stopped (SIGSTOP) until then; its commands and the kernel's timer are not.
    pub(in crate::world) fn stop_until(&mut self, a: usize, id: AttemptId, until: i64) {
        let now = self.now;
        let Some(supervisor) = self.supervisor(a, id) else { return };
        supervisor.stopped_until = until;
        if until > now {
            self.trace(format_args!("agent{a}: the supervisor of {} is stopped", self.name(id)));
        }
        self.wake(until - now, a, id, Wake::Resumed);
    }

    /// A supervisor is killed, and with it what it contains.
    pub(in crate::world) fn kill(&mut self, a: usize, id: AttemptId, by: &str) {
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
            life.killed |= !life.said;
            if let (true, true, Some(step)) = (ran, unread, supervisor.open_step) {
                self.truth.wrote(id, step + 1, b"nobody has read this\n");
            }
        }
        let life = self.hosts[a].life;
        self.at(self.now + 100, Event::Custody { agent: a, life, id });
    }

    pub(in crate::world) fn custody_due(&mut self, a: usize, life: u32, id: AttemptId) {
        if self.hosts[a].life == life {
            self.exchange(a, id);
        }
    }

    /// The agent's process dies; its supervisors go on.
    pub(in crate::world) fn agent_crash(&mut self, a: usize) {
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
    pub(in crate::world) fn host_crash(&mut self, a: usize) {
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

    pub(in crate::world) fn agent_start(&mut self, a: usize) {
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
