//! The agents that are connected to this coordinator.
//!
//! What is here is a hint: which agent has how much room, and where to send a frame. The rows decide.
//! An agent whose queue is full is cut off; it connects again and is brought up to date.

mod frames;
mod handshake;
pub(crate) mod meaning;
mod outgoing;
mod session;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

use shuntyard_protocol::{
    AgentId,
    agent::{AttemptId, ToAgent},
    frame,
};
use tokio_util::sync::CancellationToken;

use outgoing::Outgoing;
pub(crate) use session::{Handshakes, upgrade};

/// All sessions of this process.
#[derive(Default)]
pub struct Agents(Mutex<BTreeMap<AgentId, Session>>);

/// One connected agent.
struct Session {
    /// Tells this session from an older one of the same agent.
    serial: u64,
    org: String,
    labels: BTreeSet<String>,
    slots: usize,
    draining: bool,
    /// Attempts that were offered to it and are not over: each takes a slot.
    held: BTreeSet<AttemptId>,
    outgoing: Outgoing,
    close: CancellationToken,
}

/// An agent with room, as the dispatcher sees it.
#[derive(Clone, Debug)]
pub struct Room {
    pub agent: AgentId,
    pub org: String,
    pub labels: BTreeSet<String>,
    pub free: usize,
}

impl Agents {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<AgentId, Session>> {
        self.0.lock().expect("no panic while it is held")
    }

    /// Takes the place of an older session of the same agent, which is closed.
    fn register(&self, agent: AgentId, session: Session) {
        if let Some(older) = self.lock().insert(agent, session) {
            older.close.cancel();
        }
    }

    /// Whether the session was still the agent's current one.
    fn unregister(&self, agent: AgentId, serial: u64) -> bool {
        let mut sessions = self.lock();
        let current = sessions.get(&agent).is_some_and(|session| session.serial == serial);
        if current {
            sessions.remove(&agent);
        }
        current
    }

    pub fn connected(&self) -> usize {
        self.lock().len()
    }

    /// Attempts that an agent holds.
    pub fn load(&self, agent: AgentId) -> u32 {
        let held = self.lock().get(&agent).map_or(0, |session| session.held.len());
        u32::try_from(held).unwrap_or(u32::MAX)
    }

    /// Agents that can take something.
    pub fn rooms(&self) -> Vec<Room> {
        let sessions = self.lock();
        let open = sessions.iter().filter(|(_, s)| !s.draining && s.held.len() < s.slots);
        open.map(|(&agent, session)| Room {
            agent,
            org: session.org.clone(),
            labels: session.labels.clone(),
            free: session.slots - session.held.len(),
        })
        .collect()
    }

    /// The labels of each connected agent of an org, for "why is it waiting".
    pub fn labels(&self, org: &str) -> Vec<(BTreeSet<String>, bool)> {
        let sessions = self.lock();
        let of_org = sessions.values().filter(|session| session.org == org);
        of_org.map(|s| (s.labels.clone(), !s.draining && s.held.len() < s.slots)).collect()
    }

    /// Asks an agent to take an attempt. False: it is not there any more.
    pub(crate) fn offer(&self, agent: AgentId, id: AttemptId, name: &str) -> bool {
        let frame = ToAgent::Offer { id, name: name.to_owned() };
        // The slot is taken before the agent can answer, so that its answer can give it back.
        if let Some(session) = self.lock().get_mut(&agent) {
            session.held.insert(id);
        }
        let sent = self.send(agent, &frame);
        if !sent {
            self.ended(id);
        }
        sent
    }

    /// The attempt takes no slot any more. True: one became free.
    pub fn ended(&self, id: AttemptId) -> bool {
        self.lock().values_mut().fold(false, |freed, session| freed | session.held.remove(&id))
    }

    /// The connected agent that was asked to take an attempt, or has it.
    pub fn holder(&self, id: AttemptId) -> Option<AgentId> {
        let sessions = self.lock();
        sessions.iter().find(|(_, session)| session.held.contains(&id)).map(|(&agent, _)| agent)
    }

    /// Sends a frame about an attempt to whoever holds it.
    pub fn send_to_holder(&self, id: AttemptId, frame: &ToAgent) {
        if let Some(agent) = self.holder(id) {
            self.send(agent, frame);
        }
    }

    /// Queues a frame without waiting.
    fn send(&self, agent: AgentId, frame: &ToAgent) -> bool {
        let bytes = frame::encode(frame, b"").expect("control frames are short");
        let sessions = self.lock();
        let Some(session) = sessions.get(&agent) else { return false };
        let sent = session.outgoing.try_send(bytes);
        if !sent {
            session.close.cancel();
        }
        sent
    }

    /// Offers nothing more to an agent while it is connected, or something again.
    pub fn set_draining(&self, agent: AgentId, draining: bool) {
        if let Some(session) = self.lock().get_mut(&agent) {
            session.draining = draining;
        }
    }

    /// Whether a connected agent is offered nothing more.
    pub fn is_draining(&self, agent: AgentId) -> bool {
        self.lock().get(&agent).is_some_and(|session| session.draining)
    }

    /// Closes an agent's link.
    pub fn disconnect(&self, agent: AgentId) {
        if let Some(session) = self.lock().get(&agent) {
            session.close.cancel();
        }
    }
}
