//! What the agent knows about its attempts, shared by the link and one task for each of them.
//!
//! Nothing here grows without bound: what goes down is state that newer state replaces, and what
//! goes up is one renewal, a few control frames and at most a window of log for each attempt.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use shuntyard_protocol::{
    agent::{AttemptId, FromAgent, Held, Renewal, Spec, Timers, Verdict, Welcome},
    frame::FRAME_BYTES_MAX,
};
use tokio::sync::{Notify, mpsc};
use tokio_util::{bytes::Bytes, sync::CancellationToken, task::TaskTracker};

use super::{held, host::Host, mailbox::Mailbox};
use crate::{attempt::AttemptDir, clock, config::Status, spool::WINDOW_BYTES, tasks, wire::Online};

/// Frames of one attempt besides log and facts that wait for the link.
const CONTROL_MAX: usize = 4;
/// Log bytes of one attempt that wait for the link; its window is half of it.
const WAITING_BYTES_MAX: u64 = 2 * WINDOW_BYTES + FRAME_BYTES_MAX as u64;

/// A frame for the coordinator and its payload.
pub(super) type Frame = (FromAgent, Bytes);

pub(super) struct Hub {
    pub host: Host,
    state: Mutex<State>,
    /// There is something for the coordinator.
    pub outgoing: Notify,
    /// An attempt went, or a slot became free.
    changed: Notify,
    events: Option<mpsc::Sender<Status>>,
    /// One for each attempt.
    tasks: TaskTracker,
    stopped: CancellationToken,
}

#[derive(Default)]
struct State {
    entries: BTreeMap<AttemptId, Entry>,
    /// Until when, since boot.
    reservations: BTreeMap<AttemptId, u64>,
    link: Option<Link>,
    draining: bool,
    draining_said: bool,
    cancel_grace_ms: Option<u64>,
    /// Answers to offers.
    answers: VecDeque<FromAgent>,
    renewals: BTreeMap<AttemptId, Renewal>,
    /// The attempt whose log or facts went last.
    turn: Option<AttemptId>,
}

#[derive(Clone, Copy)]
struct Link {
    number: u64,
    timers: Timers,
    offset_ms: i64,
}

/// One attempt that this host holds.
struct Entry {
    dir: AttemptDir,
    /// Holds a slot.
    running: bool,
    alive: bool,
    mailbox: Mailbox,
    /// There is something in the mailbox.
    mail: Arc<Notify>,
    control: VecDeque<FromAgent>,
    facts: VecDeque<FromAgent>,
    logs: VecDeque<Frame>,
    log_bytes: u64,
}

impl Hub {
    pub(super) fn new(host: Host, events: Option<mpsc::Sender<Status>>) -> Self {
        Self {
            host,
            state: Mutex::default(),
            outgoing: Notify::new(),
            changed: Notify::new(),
            events,
            tasks: TaskTracker::new(),
            stopped: CancellationToken::new(),
        }
    }

    /// Cancelled when nothing here is to go on.
    pub(super) fn stopped(&self) -> CancellationToken {
        self.stopped.clone()
    }

    /// Waits for the attempts' tasks, which end once this agent is stopped.
    pub(super) async fn settled(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell(&self, status: Status) {
        if let Some(events) = &self.events {
            // A hint: who does not read misses it.
            events.try_send(status).ok();
        }
    }

    /// Holds an attempt that is on disk, with a task of its own.
    pub(super) fn hold(hub: &Arc<Self>, dir: AttemptDir) {
        let id = dir.id;
        {
            let mut state = hub.state();
            let online = state.link.map(|link| Online {
                link: link.number,
                timers: link.timers,
                offset_ms: link.offset_ms,
                log: BTreeMap::new(),
                facts: 0,
                finish: false,
            });
            // After a start: one that a link brings along gets what the welcome says.
            let mut mailbox = Mailbox::default();
            if let Some(grace_ms) = state.cancel_grace_ms {
                mailbox.cancel_all(grace_ms);
            }
            if let Some(online) = online {
                mailbox.online(online);
            }
            state.entries.insert(id, Entry::new(dir.clone(), mailbox));
        }
        let task = held::run(hub.clone(), dir);
        let (tracker, stopped) = (hub.tasks.clone(), hub.stopped());
        tasks::spawn(
            "attempt",
            tracker.track_future(async move {
                stopped.run_until_cancelled(task).await;
            }),
        );
    }

    /// The attempt is gone from this host.
    pub(super) fn forget(&self, id: AttemptId) {
        let mut state = self.state();
        state.entries.remove(&id);
        state.renewals.remove(&id);
        drop(state);
        self.changed.notify_waiters();
        self.tell(Status::Gone { id });
    }

    pub(super) fn mail(&self, id: AttemptId) -> Option<Arc<Notify>> {
        self.state().entries.get(&id).map(|entry| entry.mail.clone())
    }

    pub(super) fn mailbox(&self, id: AttemptId) -> Option<Mailbox> {
        self.state().entries.get(&id).map(|entry| entry.mailbox.clone())
    }

    pub(super) fn set_alive(&self, id: AttemptId, alive: bool, running: bool) {
        if let Some(entry) = self.state().entries.get_mut(&id) {
            entry.alive = alive;
            entry.running = running;
        }
        self.changed.notify_waiters();
    }

    /// Takes a frame of an attempt; false when it says more than it may.
    pub(super) fn up(&self, id: AttemptId, link: u64, frame: FromAgent, payload: Bytes) -> bool {
        let wakes = !matches!(frame, FromAgent::Renew { .. });
        let fine = self.state().up(id, link, frame, payload);
        if wakes {
            self.outgoing.notify_one();
        }
        fine
    }

    /// The next frame: answers, permission and renewals first, then facts and log of one attempt
    /// after the other.
    pub(super) fn next(&self) -> Option<Frame> {
        self.state().next()
    }

    /// Everything that this host holds, for `hello`.
    pub(super) fn held(&self) -> Vec<Held> {
        let state = self.state();
        let entry = |(id, entry): (&AttemptId, &Entry)| Held {
            id: *id,
            key: entry.dir.key(),
            alive: entry.alive,
        };
        state.entries.iter().map(entry).collect()
    }

    /// A coordinator has welcomed this agent; returns the attempts that it wants ended.
    pub(super) fn online(&self, welcome: &Welcome) {
        let mut state = self.state();
        let number = u64::from_be_bytes(clock::random());
        let offset_ms = welcome.now.0.saturating_sub(clock::wall().0);
        let timers = welcome.timers;
        state.link = Some(Link { number, timers, offset_ms });
        state.draining_said = false;
        let mut verdicts: BTreeMap<AttemptId, &Verdict> =
            welcome.verdicts.iter().map(|verdict| (verdict.id(), verdict)).collect();
        for (id, entry) in &mut state.entries {
            let (log, facts, finish) = match verdicts.remove(id) {
                Some(Verdict::Keep { log, facts, .. }) => (log.clone(), *facts, false),
                Some(Verdict::Finish { log, facts, .. }) => (log.clone(), *facts, true),
                Some(Verdict::Kill { .. }) => {
                    entry.mailbox.supersede();
                    (BTreeMap::new(), 0, true)
                }
                // It was started while this link was made, so the hello did not name it. It asks to
                // begin like after any start, and the answer decides.
                None => (BTreeMap::new(), 0, false),
            };
            let link = number;
            entry.mailbox.online(Online { link, timers, offset_ms, log, facts, finish });
            entry.mail.notify_one();
        }
        drop(state);
        self.outgoing.notify_one();
    }

    pub(super) fn offline(&self) {
        let mut state = self.state();
        state.link = None;
        state.reservations.clear();
        state.answers.clear();
        state.renewals.clear();
        for entry in state.entries.values_mut() {
            entry.mailbox.offline();
            entry.control.clear();
            entry.facts.clear();
            entry.logs.clear();
            entry.log_bytes = 0;
            entry.mail.notify_one();
        }
    }

    pub(super) fn timers(&self) -> Option<Timers> {
        self.state().link.map(|link| link.timers)
    }

    pub(super) fn offset_ms(&self) -> i64 {
        self.state().link.map_or(0, |link| link.offset_ms)
    }

    /// Answers an offer: a slot is kept, or there is none.
    pub(super) fn offer(&self, id: AttemptId) {
        let now = clock::boot_ms();
        let mut state = self.state();
        let answer = match state.may_take(id, now, self.host.config.slots) {
            Ok(()) => {
                let kept = state.link.map_or(0, |link| link.timers.reservation_ms);
                state.reservations.insert(id, now.saturating_add(kept));
                FromAgent::Reserve { id }
            }
            Err(reason) => FromAgent::Refuse { id, reason },
        };
        state.answers.push_back(answer);
        drop(state);
        self.outgoing.notify_one();
    }

    /// Whether a start can be followed; if not, that is answered. A repeated start is ignored.
    pub(super) fn accept(&self, spec: &Spec) -> bool {
        let mut state = self.state();
        if state.entries.contains_key(&spec.id) {
            return false;
        }
        let reserved = state.reservations.remove(&spec.id).is_some();
        let fits = if reserved && !state.draining {
            Ok(())
        } else {
            state.may_take(spec.id, clock::boot_ms(), self.host.config.slots)
        };
        if let Err(reason) = fits {
            state.answers.push_back(FromAgent::Refuse { id: spec.id, reason });
            drop(state);
            self.outgoing.notify_one();
            return false;
        }
        true
    }

    pub(super) fn refuse(&self, id: AttemptId, reason: String) {
        self.state().answers.push_back(FromAgent::Refuse { id, reason });
        self.outgoing.notify_one();
    }

    /// Puts a coordinator's frame about one attempt into its mailbox.
    pub(super) fn down(&self, id: AttemptId, change: impl FnOnce(&mut Mailbox)) {
        if let Some(entry) = self.state().entries.get_mut(&id) {
            change(&mut entry.mailbox);
            entry.mail.notify_one();
        }
    }

    pub(super) fn drain(&self) {
        self.state().draining = true;
        self.outgoing.notify_one();
    }

    pub(super) fn cancel_all(&self, grace: Duration) {
        self.drain();
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let mut state = self.state();
        state.cancel_grace_ms = Some(grace_ms);
        for entry in state.entries.values_mut() {
            entry.mailbox.cancel_all(grace_ms);
            entry.mail.notify_one();
        }
    }

    /// Waits until no attempt is left on this host.
    pub(super) async fn empty(&self) {
        self.until(|state| state.entries.is_empty()).await;
    }

    /// Waits until no command runs any more.
    pub(super) async fn idle(&self) {
        self.until(|state| state.entries.values().all(|entry| !entry.running)).await;
    }

    async fn until(&self, condition: impl Fn(&State) -> bool) {
        loop {
            let changed = self.changed.notified();
            if condition(&self.state()) {
                return;
            }
            changed.await;
        }
    }
}

impl State {
    fn up(&mut self, id: AttemptId, link: u64, frame: FromAgent, payload: Bytes) -> bool {
        if self.link.is_none_or(|current| current.number != link) {
            return true;
        }
        let State { entries, renewals, answers, .. } = self;
        let Some(entry) = entries.get_mut(&id) else { return true };
        match frame {
            FromAgent::Renew { renewals: mine } => {
                // The link collects them for a moment, so that one frame carries those of all.
                renewals.extend(mine.into_iter().filter(|r| r.id == id).map(|r| (id, r)));
                true
            }
            FromAgent::Log { id: of, .. } => {
                entry.log_bytes += payload.len() as u64;
                entry.logs.push_back((frame, payload));
                of == id && entry.log_bytes <= WAITING_BYTES_MAX
            }
            FromAgent::Facts { id: of, .. } => {
                entry.facts.push_back(frame);
                // The facts of an attempt are few, and each is sent once for each link.
                of == id
            }
            FromAgent::Begin { id: of } => {
                entry.control.push_back(frame);
                of == id && entry.control.len() <= CONTROL_MAX
            }
            FromAgent::Abandon { id: of, .. } => {
                // Among the agent's own: the attempt may be forgotten before this is sent.
                answers.push_back(frame);
                of == id
            }
            FromAgent::Hello(_)
            | FromAgent::Reserve { .. }
            | FromAgent::Refuse { .. }
            | FromAgent::Draining {}
            | FromAgent::Unknown => false,
        }
    }

    fn next(&mut self) -> Option<Frame> {
        if self.draining && !self.draining_said {
            self.draining_said = true;
            return Some((FromAgent::Draining {}, Bytes::new()));
        }
        if let Some(answer) = self.answers.pop_front() {
            return Some((answer, Bytes::new()));
        }
        if let Some(frame) = self.entries.values_mut().find_map(|entry| entry.control.pop_front()) {
            return Some((frame, Bytes::new()));
        }
        if !self.renewals.is_empty() {
            let renewals = std::mem::take(&mut self.renewals).into_values().collect();
            return Some((FromAgent::Renew { renewals }, Bytes::new()));
        }
        let turn = self.turn;
        let after = self.entries.keys().copied().filter(|id| turn.is_none_or(|turn| *id > turn));
        let order: Vec<_> = after.chain(self.entries.keys().copied()).collect();
        for id in order {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            let frame = entry.take();
            if frame.is_some() {
                self.turn = Some(id);
                return frame;
            }
        }
        None
    }

    fn may_take(&mut self, id: AttemptId, now: u64, slots: u32) -> Result<(), String> {
        self.reservations.retain(|other, until| *until > now && *other != id);
        if self.draining {
            return Err("the agent is draining".into());
        }
        if self.entries.contains_key(&id) {
            return Err("the agent has this attempt already".into());
        }
        let busy = self.entries.values().filter(|entry| entry.running).count();
        if busy + self.reservations.len() >= usize::try_from(slots).unwrap_or(usize::MAX) {
            return Err("no slot is free".into());
        }
        Ok(())
    }
}

impl Entry {
    fn new(dir: AttemptDir, mailbox: Mailbox) -> Self {
        Self {
            dir,
            running: true,
            alive: true,
            mailbox,
            mail: Arc::default(),
            control: VecDeque::new(),
            facts: VecDeque::new(),
            logs: VecDeque::new(),
            log_bytes: 0,
        }
    }

    fn take(&mut self) -> Option<Frame> {
        if let Some(frame) = self.facts.pop_front() {
            return Some((frame, Bytes::new()));
        }
        let (frame, payload) = self.logs.pop_front()?;
        self.log_bytes -= payload.len() as u64;
        Some((frame, payload))
    }
}

#[cfg(test)]
mod tests;
