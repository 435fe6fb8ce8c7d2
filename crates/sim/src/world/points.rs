//! Crash points on a machine: before and after each call of the spool, of an attempt's folder and of
//! the link, whoever makes it may die. Those of coordinators are in their store calls and frames.

use shuntyard_protocol::agent::{AttemptFact, AttemptId};

use super::{Event, World};

impl World {
    /// A supervisor is about to do something, or has done it. True: it is dead, perhaps with its
    /// agent or its machine.
    pub(super) fn supervisor_point(&mut self, a: usize, id: AttemptId, when: &str) -> bool {
        if !self.rng.chance(self.scale.call_faults / 5) {
            return false;
        }
        match self.rng.size(0, 3) {
            0 => self.machine_dies(a, when),
            1 => {
                self.kill(a, id, when);
                self.agent_dies(a, when);
            }
            _ => self.kill(a, id, when),
        }
        true
    }

    /// The same for an agent.
    pub(super) fn agent_point(&mut self, a: usize, when: &str) -> bool {
        if !self.rng.chance(self.scale.call_faults / 5) {
            return false;
        }
        if self.rng.chance(300) {
            self.machine_dies(a, when);
        } else {
            self.agent_dies(a, when);
        }
        true
    }

    fn agent_dies(&mut self, a: usize, when: &str) {
        self.trace(format_args!("agent{a}: dies {when}"));
        self.agent_crash(a);
        let after = self.rng.range(100, 40_000);
        self.at(self.now + after, Event::StartAgent { agent: a });
    }

    fn machine_dies(&mut self, a: usize, when: &str) {
        self.host_crash(a);
        self.agent_dies(a, when);
    }

    /// A supervisor adds a fact and makes it durable. True: it died over it.
    pub(super) fn record(&mut self, a: usize, id: AttemptId, fact: &AttemptFact) -> bool {
        if self.supervisor_point(a, id, "before a fact") {
            return true;
        }
        let Some(supervisor) = self.supervisor(a, id) else { return true };
        supervisor.uplink.spool.append_fact(fact).expect("a simulated disk has room");
        if self.supervisor_point(a, id, "before a fact is synced") {
            return true;
        }
        let Some(supervisor) = self.supervisor(a, id) else { return true };
        supervisor.uplink.spool.sync().expect("a simulated disk can be synced");
        self.supervisor_point(a, id, "after a fact")
    }

    /// A supervisor adds what a command wrote. True: it died over it.
    pub(super) fn record_log(&mut self, a: usize, id: AttemptId, stream: u32, line: &[u8]) -> bool {
        let (at, sync) = (self.wall(a), self.rng.chance(300));
        self.truth.wrote(id, stream, line);
        if self.supervisor_point(a, id, "before a line") {
            return true;
        }
        let Some(supervisor) = self.supervisor(a, id) else { return true };
        let spool = &mut supervisor.uplink.spool;
        spool.append_log(stream, at, line).expect("a simulated disk has room");
        if sync {
            if self.supervisor_point(a, id, "before a line is synced") {
                return true;
            }
            let Some(supervisor) = self.supervisor(a, id) else { return true };
            supervisor.uplink.spool.sync().expect("a simulated disk can be synced");
        }
        self.supervisor_point(a, id, "after a line")
    }
}
