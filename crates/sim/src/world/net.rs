//! The network: links that delay, stall and break, as TCP does it.
//!
//! A link delivers each direction in order or not at all. What is on its way when it is cut is lost;
//! each end learns of that in its own time. Doubled and reordered frames come from what the ends do
//! after a break, as they do in reality.

use std::collections::BTreeMap;

use shuntyard_protocol::frame;

use super::{Event, World};

pub(super) type LinkId = u64;

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Agent,
    Coordinator,
}

impl End {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Agent => Self::Coordinator,
            Self::Coordinator => Self::Agent,
        }
    }
}

/// One direction.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    /// Nothing overtakes what was sent before.
    last: i64,
    /// Nothing arrives before.
    stalled_until: i64,
    lost: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) agent: usize,
    pub(super) coordinator: usize,
    up: Way,
    down: Way,
}

impl Link {
    fn way(&mut self, to: End) -> &mut Way {
        match to {
            End::Agent => &mut self.down,
            End::Coordinator => &mut self.up,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Net {
    links: BTreeMap<LinkId, Link>,
    next: LinkId,
    /// Agent and coordinator that cannot connect until then.
    blocked: BTreeMap<(usize, usize), i64>,
}

/// A silent link counts as dead after this, by the agent and by the coordinator.
const AGENT_SILENCE: i64 = 35_000;
const COORDINATOR_SILENCE: i64 = 60_000;

impl Net {
    pub(super) fn open(&mut self, agent: usize, coordinator: usize) -> LinkId {
        self.next += 1;
        let link = Link { agent, coordinator, up: Way::default(), down: Way::default() };
        self.links.insert(self.next, link);
        self.next
    }

    pub(super) fn get(&self, id: LinkId) -> Option<&Link> {
        self.links.get(&id)
    }

    pub(super) fn is_blocked(&self, agent: usize, coordinator: usize, now: i64) -> bool {
        self.blocked.get(&(agent, coordinator)).is_some_and(|until| now < *until)
    }

    pub(super) fn block(&mut self, agent: usize, coordinator: usize, until: i64) {
        self.blocked.insert((agent, coordinator), until);
    }

    pub(super) fn calm(&mut self) {
        self.blocked.clear();
    }

    pub(super) fn between(&self, agent: usize, coordinator: usize) -> Vec<LinkId> {
        let of = |link: &Link| link.agent == agent && link.coordinator == coordinator;
        self.links.iter().filter(|(_, link)| of(link)).map(|(&id, _)| id).collect()
    }
}

impl World {
    /// Sends a frame; nobody learns here whether it arrives.
    pub(super) fn send<H: serde::Serialize>(
        &mut self,
        id: LinkId,
        to: End,
        header: &H,
        payload: &[u8],
    ) {
        let delay = self.rng.range(0, self.scale.delay_ms);
        let now = self.now;
        let Some(link) = self.net.links.get_mut(&id) else { return };
        let way = link.way(to);
        if way.lost {
            return;
        }
        way.last = way.last.max(now + delay).max(way.stalled_until);
        let at = way.last;
        let bytes = frame::encode(header, payload).expect("frames of a simulation are short");
        self.at(at, Event::Deliver { link: id, to, bytes });
    }

    /// Whether a frame that is due now arrives.
    pub(super) fn arrives(&self, id: LinkId, to: End) -> bool {
        self.net.links.get(&id).is_some_and(|link| match to {
            End::Agent => !link.down.lost,
            End::Coordinator => !link.up.lost,
        })
    }

    /// Everything on the way is lost; each end learns of it by and by.
    pub(super) fn cut(&mut self, id: LinkId) {
        self.trace(format_args!("net: link {id} is cut"));
        for (end, silence) in [(End::Agent, AGENT_SILENCE), (End::Coordinator, COORDINATOR_SILENCE)]
        {
            self.lose(id, end);
            let after = self.rng.range(0, silence);
            self.at(self.now + after, Event::Broken { link: id, end });
        }
    }

    pub(super) fn lose(&mut self, id: LinkId, to: End) {
        if let Some(link) = self.net.links.get_mut(&id) {
            link.way(to).lost = true;
        }
    }

    /// One end is gone: what it had sent may still arrive, and then the other one learns of it.
    pub(super) fn hang_up(&mut self, id: LinkId, end: End) {
        self.lose(id, end);
        let after = self.rng.range(0, 2000);
        let now = self.now;
        let Some(link) = self.net.links.get_mut(&id) else { return };
        let at = link.way(end.other()).last.max(now) + after;
        self.at(at, Event::Broken { link: id, end: end.other() });
    }

    /// Frames to one end wait; when that takes too long, both ends give the link up.
    pub(super) fn stall(&mut self, id: LinkId, to: End, ms: i64) {
        self.trace(format_args!("net: link {id} stalls towards the {to:?} for {ms} ms"));
        let now = self.now;
        let silence = match to {
            End::Agent => AGENT_SILENCE,
            End::Coordinator => COORDINATOR_SILENCE,
        };
        let Some(link) = self.net.links.get_mut(&id) else { return };
        if ms < silence {
            link.way(to).stalled_until = now + ms;
            return;
        }
        link.way(to).lost = true;
        self.at(now + silence, Event::Broken { link: id, end: to });
        self.at(now + silence + 2000, Event::Broken { link: id, end: to.other() });
    }
}
