//! What an agent and whoever speaks for an attempt say to each other.

use shuntyard_agent::parts::{FromSupervisor, Mailbox, Spool, ToSupervisor, Uplink};
use shuntyard_protocol::{
    Outcome, Timestamp,
    agent::{AttemptFact, AttemptId, End, FromAgent, Renewal},
};

use super::Linked;
use crate::world::{Event, World, disk::SimDisk, supervisor::Heard};

impl World {
    /// Carries what is new between an agent and whoever speaks for an attempt.
    pub(in crate::world) fn exchange(&mut self, a: usize, id: AttemptId) {
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
            if self.supervisor(a, id).is_none() {
                // It died over what it heard before.
                return;
            }
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
        while self.hosts[a].up
            && let Some(supervisor) = self.supervisor(a, id)
            && let Some((frame, payload)) = supervisor.next(boot_ms)
        {
            self.up(a, id, frame, &payload);
        }
        if self.hosts[a].up && self.supervisor(a, id).is_some_and(|s| s.is_done()) {
            self.forget(a, id);
        }
    }

    /// Speaks for a supervisor that is dead.
    fn custody(&mut self, a: usize, id: AttemptId) {
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
        if entry.custodian.is_none() && self.open_custody(a, id) {
            return;
        }
        let entry = self.hosts[a].hub.entries.get_mut(&id);
        let Some((uplink, told, mailbox)) = entry.and_then(|entry| {
            let (uplink, told) = entry.custodian.as_mut()?;
            Some((uplink, told, &entry.mailbox))
        }) else {
            return;
        };
        for frame in mailbox.since(told, id) {
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
        *told = mailbox.clone();
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
        if done && self.hosts[a].up {
            self.forget(a, id);
        }
    }

    /// Opens what a dead supervisor left, and ends it. True: the agent died over it.
    fn open_custody(&mut self, a: usize, id: AttemptId) -> bool {
        let at = self.wall(a);
        let Some(dir) = self.hosts[a].dirs.get(&id) else { return true };
        let spool = Spool::open(dir.log.clone(), dir.facts.clone(), u64::MAX);
        let spool = spool.expect("a simulated disk can be read");
        let mut uplink = Uplink::new(id, dir.key.clone(), spool);
        if uplink.key.is_some() && uplink.spool.end().is_none() {
            if self.agent_point(a, "before it ends a dead attempt") {
                return true;
            }
            let end = AttemptFact::Ended(lost(&uplink.spool, at));
            uplink.spool.append_fact(&end).expect("a simulated disk has room");
            if self.agent_point(a, "before the end of a dead attempt is synced") {
                return true;
            }
            uplink.spool.sync().expect("a simulated disk can be synced");
        }
        if let Some(entry) = self.hosts[a].hub.entries.get_mut(&id) {
            entry.custodian = Some((uplink, Mailbox::default()));
        }
        self.agent_point(a, "after it ended a dead attempt")
    }

    /// Removes what is no longer needed, unless the agent dies over it.
    fn forget(&mut self, a: usize, id: AttemptId) {
        if !self.agent_point(a, "before it removes an attempt") {
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
    pub(in crate::world) fn collect(&mut self, a: usize, life: u32) {
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
