//! What the parts of a supervisor share: spool, lease, and the word to halt.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use shuntyard_protocol::{
    Timestamp,
    agent::{AttemptFact, AttemptKey, FromAgent, Renewal, Spec, Timers, ToAgent},
};
use tokio::sync::{Notify, watch};

use crate::{
    attempt::{AttemptDir, Settings},
    clock,
    lease::{Fence, Lease},
    sandbox::KillTimer,
    spool::{DirDisk, RECORD_LOG_BYTES_MAX},
    uplink::{Outgoing, Uplink},
    wire::{FromSupervisor, Online, ToSupervisor},
};

/// Before a write to a disk that failed is tried again.
const DISK_PAUSE: Duration = Duration::from_secs(1);

/// Whether the attempt goes on. It only ever moves downwards in this list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    Run,
    /// Ask the commands to stop; kill them after the grace.
    Polite {
        why: Why,
        grace: Duration,
    },
    /// Kill them.
    Now {
        why: Why,
    },
}

/// Why an attempt is ended before its work is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Cancelled {
        reason: String,
    },
    TimedOut {
        limit_ms: u64,
    },
    /// The lease ran out.
    Fenced,
    /// The coordinator has no use for it.
    Unwanted,
}

impl Halt {
    fn rank(&self) -> u8 {
        match self {
            Self::Run => 0,
            Self::Polite { .. } => 1,
            Self::Now { .. } => 2,
        }
    }

    pub(super) fn why(&self) -> Option<&Why> {
        match self {
            Self::Run => None,
            Self::Polite { why, .. } | Self::Now { why } => Some(why),
        }
    }
}

/// What a supervisor that has not begun waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Preparing,
    /// `begin` is due; with the link it was sent on, and when.
    Asking {
        sent: Option<(u64, u64)>,
    },
    Begun,
    /// Ended before it began.
    Abandoned {
        reason: String,
    },
}

pub(super) struct Core {
    pub dir: AttemptDir,
    pub spec: Spec,
    pub settings: Settings,
    uplink: RefCell<Uplink<DirDisk>>,
    phase: RefCell<Phase>,
    lease: RefCell<Option<Lease>>,
    kill_timer: KillTimer,
    /// The commands have ended: there is nothing left to fence.
    resting: Cell<bool>,
    idle: Cell<bool>,
    idle_said: Cell<bool>,
    /// Not even its log is wanted.
    superseded: Cell<bool>,
    /// Streams whose last bytes nobody could take any more.
    torn: RefCell<BTreeSet<u32>>,
    beat_due: Cell<bool>,
    offset_ms: Cell<i64>,
    timers: Cell<Timers>,
    halt: watch::Sender<Halt>,
    begun: Notify,
    finished: Notify,
    /// There may be something to send.
    pub wake: Notify,
    /// The spool may have room again.
    space: Notify,
}

impl Core {
    pub(super) fn open(dir: AttemptDir, spec: Spec, settings: Settings) -> anyhow::Result<Self> {
        let uplink = Uplink::open(&dir, settings.spool_quota_bytes)?;
        anyhow::ensure!(uplink.key.is_none(), "this attempt has begun before");
        Ok(Self {
            uplink: RefCell::new(uplink),
            phase: RefCell::new(Phase::Preparing),
            lease: RefCell::new(None),
            kill_timer: KillTimer::new()?,
            resting: Cell::new(false),
            idle: Cell::new(false),
            idle_said: Cell::new(false),
            superseded: Cell::new(false),
            torn: RefCell::default(),
            beat_due: Cell::new(false),
            offset_ms: Cell::new(settings.offset_ms),
            timers: Cell::new(settings.timers),
            halt: watch::Sender::new(Halt::Run),
            begun: Notify::new(),
            finished: Notify::new(),
            wake: Notify::new(),
            space: Notify::new(),
            dir,
            spec,
            settings,
        })
    }

    /// The coordinator's time.
    pub(super) fn now(&self) -> Timestamp {
        Timestamp(clock::wall().0.saturating_add(self.offset_ms.get()))
    }

    pub(super) fn halts(&self) -> watch::Receiver<Halt> {
        self.halt.subscribe()
    }

    pub(super) fn halted(&self) -> Halt {
        self.halt.borrow().clone()
    }

    /// Raises the halt; the first reason of each level stays.
    pub(super) fn halt(&self, halt: Halt) {
        self.halt.send_if_modified(|current| {
            let raised = halt.rank() > current.rank();
            if raised {
                *current = halt;
            }
            raised
        });
        self.space.notify_waiters();
    }

    pub(super) fn key(&self) -> Option<AttemptKey> {
        self.uplink.borrow().key.clone()
    }

    pub(super) fn ends(&self) -> BTreeMap<u32, u64> {
        self.uplink.borrow().spool.ends().clone()
    }

    /// What the commands wrote last on this stream is lost.
    pub(super) fn tear(&self, stream: u32) {
        self.torn.borrow_mut().insert(stream);
    }

    pub(super) fn torn(&self) -> Vec<u32> {
        self.torn.borrow().iter().copied().collect()
    }

    pub(super) fn ask_to_begin(&self) {
        self.phase.replace(Phase::Asking { sent: None });
        self.wake.notify_one();
    }

    pub(super) async fn begun(&self) {
        self.begun.notified().await;
    }

    /// The attempt came to nothing, and no instruction of the user has run.
    pub(super) fn abandon(&self, reason: String) {
        tracing::warn!(reason, "abandoned");
        self.phase.replace(Phase::Abandoned { reason });
        self.idle();
        if self.superseded.get() {
            self.finish();
        }
    }

    /// The commands have ended; from here on only the spool is left.
    pub(super) fn rest(&self) {
        self.resting.set(true);
        self.rearm();
    }

    /// The slot is free.
    pub(super) fn idle(&self) {
        self.resting.set(true);
        self.idle.set(true);
        self.rearm();
        self.wake.notify_one();
        if self.superseded.get() {
            self.finish();
        }
    }

    fn finish(&self) {
        if let Err(error) = self.dir.mark_done() {
            tracing::error!("{error}");
        }
        self.finished.notify_one();
    }

    /// Waits until this process may go.
    pub(super) async fn finished(&self) {
        self.finished.notified().await;
    }

    /// Adds output to a stream. Waits, and with it the process that wrote it, while the spool is
    /// full or the disk refuses it.
    pub(super) async fn write(&self, stream: u32, bytes: &[u8]) {
        for part in bytes.chunks(RECORD_LOG_BYTES_MAX) {
            loop {
                // Made before the look, so that an acknowledgement in between is not missed.
                let space = self.space.notified();
                if self.superseded.get() {
                    return;
                }
                if self.uplink.borrow().spool.is_full() {
                    space.await;
                    continue;
                }
                let result = self.uplink.borrow_mut().spool.append_log(stream, self.now(), part);
                let Err(error) = result else { break };
                tracing::warn!("{:#}", anyhow::Error::from(error));
                tokio::time::sleep(DISK_PAUSE).await;
            }
            self.wake.notify_one();
        }
    }

    /// Adds a fact, and returns once it is durable.
    pub(super) async fn fact(&self, fact: &AttemptFact) {
        let mut added = false;
        loop {
            let result = {
                let spool = &mut self.uplink.borrow_mut().spool;
                let append = if added { Ok(0) } else { spool.append_fact(fact) };
                added |= append.is_ok();
                append.and_then(|_| spool.sync())
            };
            let Err(error) = result else { break };
            tracing::warn!("{:#}", anyhow::Error::from(error));
            tokio::time::sleep(DISK_PAUSE).await;
        }
        self.wake.notify_one();
    }

    /// Once a second: what was written becomes durable.
    pub(super) fn sync(&self) {
        if let Err(error) = self.uplink.borrow_mut().spool.sync() {
            tracing::warn!("{:#}", anyhow::Error::from(error));
        }
    }

    pub(super) fn renew_every(&self) -> Duration {
        Duration::from_millis(self.timers.get().renew_ms.max(1))
    }

    pub(super) fn beat(&self) {
        self.beat_due.set(true);
        self.wake.notify_one();
    }

    /// Looks at the lease, and fences the attempt when it is time.
    pub(super) fn check_lease(&self) {
        if self.resting.get() {
            return;
        }
        let lease = self.lease.borrow();
        let Some(lease) = lease.as_ref() else { return };
        let now = clock::boot_ms();
        match lease.fence(now) {
            Fence::Open => {}
            Fence::Term => {
                let grace = lease.grace(now);
                self.halt(Halt::Polite { why: Why::Fenced, grace });
            }
            Fence::Kill => self.halt(Halt::Now { why: Why::Fenced }),
        }
    }

    fn rearm(&self) {
        let at = self.lease.borrow().as_ref().map(Lease::kernel_kill_at);
        if let Err(error) = self.kill_timer.arm(at.filter(|_| !self.resting.get())) {
            tracing::error!("cannot arm the kill timer: {error}");
            self.halt(Halt::Now { why: Why::Fenced });
        }
    }

    /// First frame to a new agent.
    pub(super) fn hello(&self) -> FromSupervisor {
        self.uplink.borrow_mut().offline();
        self.idle_said.set(false);
        FromSupervisor::Hello { key: self.key(), running: !self.idle.get() }
    }

    /// What to send next: permission and renewals before facts, facts before logs.
    pub(super) fn next(&self) -> Option<Outgoing> {
        if self.idle.get() && !self.idle_said.replace(true) {
            return Some((FromSupervisor::Idle {}, Vec::new()));
        }
        let mut uplink = self.uplink.borrow_mut();
        let id = self.spec.id;
        let mut phase = self.phase.borrow_mut();
        match (&mut *phase, uplink.link) {
            (Phase::Asking { sent }, Some(link)) if sent.is_none_or(|(on, _)| on != link) => {
                *sent = Some((link, clock::boot_ms()));
                return uplink.up(FromAgent::Begin { id }).map(|frame| (frame, Vec::new()));
            }
            (Phase::Abandoned { reason }, Some(_)) => {
                let reason = reason.clone();
                *phase = Phase::Preparing;
                // The next round says that this is done.
                uplink.finish = true;
                let frame = uplink.up(FromAgent::Abandon { id, reason });
                return frame.map(|frame| (frame, Vec::new()));
            }
            _ => {}
        }
        if let (Some(lease), Some(_), Some(key), true) = (
            self.lease.borrow_mut().as_mut(),
            uplink.link,
            uplink.key.clone(),
            // An attempt whose end is committed has no lease any more.
            self.beat_due.replace(false) && !uplink.spool.end_acked() && !uplink.finish,
        ) {
            let renewal = Renewal { id, key, beat: lease.beat(clock::boot_ms()) };
            let frame = FromAgent::Renew { renewals: vec![renewal] };
            return uplink.up(frame).map(|frame| (frame, Vec::new()));
        }
        uplink.take().unwrap_or_else(|error| {
            tracing::error!("{:#}", anyhow::Error::from(error));
            None
        })
    }

    /// Whether the last frame was sent; the mark of that is on disk when this returns.
    pub(super) fn is_done(&self) -> bool {
        let uplink = self.uplink.borrow();
        let abandoned = uplink.key.is_none() && uplink.finish && self.idle.get();
        let done = self.idle.get() && (abandoned || uplink.is_done());
        done && self.dir.mark_done().is_ok()
    }

    /// The last frame is out.
    pub(super) fn leave(&self) {
        self.finished.notify_one();
    }

    pub(super) fn disconnected(&self) {
        self.uplink.borrow_mut().offline();
    }

    pub(super) fn take(&self, frame: ToSupervisor) -> anyhow::Result<()> {
        match frame {
            ToSupervisor::Online(online) => self.online(&online)?,
            ToSupervisor::Offline {} => self.uplink.borrow_mut().offline(),
            ToSupervisor::Down { frame } => self.down(&frame)?,
            ToSupervisor::CancelAll { grace_ms } => {
                let why = Why::Cancelled { reason: "the agent was stopped".into() };
                self.halt(Halt::Polite { why, grace: Duration::from_millis(grace_ms) });
            }
            ToSupervisor::Unknown => {}
        }
        self.wake.notify_one();
        Ok(())
    }

    fn online(&self, online: &Online) -> anyhow::Result<()> {
        self.offset_ms.set(online.offset_ms);
        self.timers.set(online.timers);
        if let Some(lease) = self.lease.borrow_mut().as_mut() {
            lease.set_timers(online.timers);
        }
        self.rearm();
        self.beat_due.set(true);
        self.uplink.borrow_mut().online(online)?;
        self.space.notify_waiters();
        if online.finish {
            self.halt(Halt::Now { why: Why::Unwanted });
        }
        Ok(())
    }

    fn down(&self, frame: &ToAgent) -> anyhow::Result<()> {
        match frame {
            ToAgent::Begun { key, release_in_ms, .. } => self.take_begun(key, *release_in_ms)?,
            ToAgent::Superseded { .. } => {
                self.superseded.set(true);
                self.halt(Halt::Now { why: Why::Unwanted });
                if self.idle.get() {
                    self.finish();
                }
            }
            ToAgent::Renewed { renewals } => {
                if let Some(lease) = self.lease.borrow_mut().as_mut() {
                    for renewed in renewals.iter().filter(|renewed| renewed.id == self.spec.id) {
                        lease.renewed(renewed.beat, renewed.release_in_ms);
                    }
                }
                self.rearm();
            }
            ToAgent::Cancel { force, reason, .. } => {
                let why = Why::Cancelled { reason: reason.clone() };
                let grace = Duration::from_millis(self.spec.grace_ms);
                self.halt(if *force { Halt::Now { why } } else { Halt::Polite { why, grace } });
            }
            ToAgent::LogAck { .. } | ToAgent::FactAck { .. } => {
                self.uplink.borrow_mut().acknowledge(frame)?;
                self.space.notify_waiters();
            }
            ToAgent::Challenge { .. }
            | ToAgent::Welcome(_)
            | ToAgent::Rejected { .. }
            | ToAgent::Offer { .. }
            | ToAgent::Start(_)
            | ToAgent::Unknown => {}
        }
        Ok(())
    }

    fn take_begun(&self, key: &AttemptKey, release_in_ms: u64) -> anyhow::Result<()> {
        let Phase::Asking { sent: Some((_, sent_at)) } = *self.phase.borrow() else {
            return Ok(());
        };
        // Before the first instruction: an agent that comes after us must be able to speak for it.
        self.dir.write_key(key)?;
        let lease = Lease::begun(self.timers.get(), sent_at, release_in_ms);
        self.lease.replace(Some(lease));
        self.rearm();
        self.uplink.borrow_mut().key = Some(key.clone());
        self.phase.replace(Phase::Begun);
        // After a long stop the lease may be over before it is known.
        self.check_lease();
        self.begun.notify_one();
        Ok(())
    }
}
