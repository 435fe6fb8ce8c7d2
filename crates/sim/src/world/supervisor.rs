//! A supervisor: its lease, its spool and sender are the real ones; its commands are modelled.

use serde_json::Value;
use shuntyard_agent::parts::{Fence, FromSupervisor, Lease, Mailbox, Spool, ToSupervisor, Uplink};
use shuntyard_core::mutant::{self, Mutant};
use shuntyard_protocol::{
    Outcome,
    agent::{AttemptId, AttemptKey, FromAgent, Renewal, Spec, Timers, ToAgent},
    plan::Action,
};

use super::disk::SimDisk;

/// What the commands do next.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Act {
    Start { step: u32 },
    Line { stream: u32, wide: usize },
    End { step: u32, outcome: Outcome },
    Finish { outcome: Outcome },
}

/// Why the commands end before their work is done; a later reason never replaces a stronger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Halt {
    Run,
    /// Asked to stop; with the longest grace in milliseconds.
    Polite(Outcome, i64),
    Now(Outcome),
}

impl Halt {
    fn rank(self) -> u8 {
        match self {
            Self::Run => 0,
            Self::Polite(..) => 1,
            Self::Now(_) => 2,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Phase {
    Preparing,
    /// With the link that `begin` was sent on, and when.
    Asking(Option<(u64, u64)>),
    Begun,
    Abandoned(String),
}

/// What a frame from the agent led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Nothing,
    /// Permission: the key must be on disk before the first instruction.
    Begun(AttemptKey),
    Halted,
    /// The lease may have moved.
    Renewed,
    Superseded,
}

pub(super) struct Supervisor {
    /// Tells it from others on the same machine.
    pub(super) serial: u64,
    pub(super) id: AttemptId,
    pub(super) uplink: Uplink<SimDisk>,
    pub(super) phase: Phase,
    pub(super) lease: Option<Lease>,
    pub(super) halt: Halt,
    pub(super) told: Mailbox,
    pub(super) timers: Timers,
    pub(super) acts: Vec<(i64, Act)>,
    pub(super) open_step: Option<u32>,
    pub(super) beat_due: bool,
    /// The commands have ended.
    pub(super) idle: bool,
    pub(super) idle_said: bool,
    /// Stopped by SIGSTOP until then.
    pub(super) stopped_until: i64,
    grace_ms: i64,
}

impl Supervisor {
    pub(super) fn new(serial: u64, spec: &Spec, disks: (SimDisk, SimDisk), timers: Timers) -> Self {
        let spool = Spool::open(disks.0, disks.1, u64::MAX).expect("a new disk can be read");
        Self {
            serial,
            id: spec.id,
            uplink: Uplink::new(spec.id, None, spool),
            phase: Phase::Preparing,
            lease: None,
            halt: Halt::Run,
            told: Mailbox::default(),
            timers,
            acts: script(spec),
            open_step: None,
            beat_due: false,
            idle: false,
            idle_said: false,
            stopped_until: 0,
            grace_ms: i64::try_from(spec.grace_ms).unwrap_or(i64::MAX),
        }
    }

    pub(super) fn fence(&self, boot_ms: u64) -> Fence {
        self.lease.as_ref().map_or(Fence::Open, |lease| lease.fence(boot_ms))
    }

    /// When the kernel kills it, by the clock since boot.
    pub(super) fn kernel_kill_at(&self) -> Option<u64> {
        let lease = self.lease.as_ref().filter(|_| !self.idle)?;
        (!mutant::on(Mutant::DropFence)).then(|| lease.kernel_kill_at())
    }

    /// True: it is stronger than what was said before.
    pub(super) fn halt(&mut self, halt: Halt) -> bool {
        let raised = halt.rank() > self.halt.rank();
        if raised {
            self.halt = halt;
        }
        raised
    }

    pub(super) fn take(&mut self, frame: ToSupervisor, boot_ms: u64) -> Heard {
        match frame {
            ToSupervisor::Online(online) => {
                self.timers = online.timers;
                if let Some(lease) = &mut self.lease {
                    lease.set_timers(online.timers);
                }
                self.beat_due = true;
                self.uplink.online(&online).expect("a simulated disk can be read");
                if online.finish && self.halt(Halt::Now(Outcome::Cancelled)) {
                    return Heard::Halted;
                }
                Heard::Renewed
            }
            ToSupervisor::Offline {} => {
                self.uplink.offline();
                Heard::Nothing
            }
            ToSupervisor::Down { frame } => self.down(&frame, boot_ms),
            ToSupervisor::CancelAll { .. } | ToSupervisor::Unknown => Heard::Nothing,
        }
    }

    fn down(&mut self, frame: &ToAgent, boot_ms: u64) -> Heard {
        match frame {
            ToAgent::Begun { key, release_in_ms, .. } => {
                let Phase::Asking(Some((_, sent_at))) = self.phase else { return Heard::Nothing };
                let from = if mutant::on(Mutant::LeaseFromAnswer) { boot_ms } else { sent_at };
                self.lease = Some(Lease::begun(self.timers, from, *release_in_ms));
                self.uplink.key = Some(key.clone());
                self.phase = Phase::Begun;
                Heard::Begun(key.clone())
            }
            ToAgent::Superseded { .. } => Heard::Superseded,
            ToAgent::Renewed { renewals } => {
                if let Some(lease) = &mut self.lease {
                    for renewed in renewals.iter().filter(|renewed| renewed.id == self.id) {
                        lease.renewed(renewed.beat, renewed.release_in_ms);
                        if mutant::on(Mutant::LeaseFromAnswer) {
                            *lease = Lease::begun(self.timers, boot_ms, renewed.release_in_ms);
                        }
                    }
                }
                Heard::Renewed
            }
            ToAgent::Cancel { force, .. } => {
                let outcome = Outcome::Cancelled;
                let halt =
                    if *force { Halt::Now(outcome) } else { Halt::Polite(outcome, self.grace_ms) };
                if self.halt(halt) { Heard::Halted } else { Heard::Nothing }
            }
            ToAgent::LogAck { .. } | ToAgent::FactAck { .. } => {
                self.uplink.acknowledge(frame).expect("a simulated disk can be read");
                Heard::Nothing
            }
            ToAgent::Challenge { .. }
            | ToAgent::Welcome(_)
            | ToAgent::Rejected { .. }
            | ToAgent::Offer { .. }
            | ToAgent::Start(_)
            | ToAgent::Unknown => Heard::Nothing,
        }
    }

    /// What to send next, in the order of the real one.
    pub(super) fn next(&mut self, boot_ms: u64) -> Option<(FromSupervisor, Vec<u8>)> {
        if self.idle && !self.idle_said {
            self.idle_said = true;
            return Some((FromSupervisor::Idle {}, Vec::new()));
        }
        let (id, link) = (self.id, self.uplink.link?);
        match &mut self.phase {
            Phase::Asking(sent) if sent.is_none_or(|(on, _)| on != link) => {
                *sent = Some((link, boot_ms));
                return self.up(FromAgent::Begin { id });
            }
            Phase::Abandoned(reason) => {
                let reason = reason.clone();
                self.phase = Phase::Preparing;
                self.uplink.finish = true;
                return self.up(FromAgent::Abandon { id, reason });
            }
            Phase::Preparing | Phase::Asking(_) | Phase::Begun => {}
        }
        if let (Some(lease), Some(key), true) = (
            self.lease.as_mut(),
            self.uplink.key.clone(),
            std::mem::take(&mut self.beat_due) && !self.uplink.spool.end_acked(),
        ) {
            let renewal = Renewal { id, key, beat: lease.beat(boot_ms) };
            return self.up(FromAgent::Renew { renewals: vec![renewal] });
        }
        self.uplink.take().expect("a simulated disk can be read")
    }

    fn up(&self, frame: FromAgent) -> Option<(FromSupervisor, Vec<u8>)> {
        self.uplink.up(frame).map(|frame| (frame, Vec::new()))
    }

    /// Whether nothing of it is needed any more.
    pub(super) fn is_done(&self) -> bool {
        let abandoned = self.uplink.key.is_none() && self.uplink.finish;
        self.idle && (abandoned || self.uplink.is_done())
    }
}

/// What the commands of a job do, last first, each after a pause in milliseconds.
fn script(spec: &Spec) -> Vec<(i64, Act)> {
    let mut acts = vec![(50, Act::Line { stream: 0, wide: 30 })];
    let mut good = true;
    for (step, number) in spec.steps.iter().zip(0..) {
        if !good {
            acts.push((0, Act::End { step: number, outcome: Outcome::Skipped }));
            continue;
        }
        let Action::Shell { command, .. } = &step.action else { continue };
        let values: Vec<Value> = serde_json::from_str(command).expect("the plan wrote it");
        let at = |n: usize| values[n].as_i64().expect("the plan wrote a number");
        acts.push((0, Act::Start { step: number }));
        let wide = usize::try_from(at(2)).expect("the plan wrote a length");
        for _ in 0..at(0) {
            acts.push((at(1), Act::Line { stream: number + 1, wide }));
        }
        good = values[3] == Value::Bool(true);
        let outcome = if good { Outcome::Success } else { Outcome::Failed };
        acts.push((at(1), Act::End { step: number, outcome }));
    }
    let outcome = if good { Outcome::Success } else { Outcome::Failed };
    acts.push((0, Act::Finish { outcome }));
    acts.reverse();
    acts
}
