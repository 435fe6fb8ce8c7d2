//! What a supervisor is to be told: state that newer state replaces, never a queue.

use std::collections::BTreeMap;

use shuntyard_protocol::agent::{AttemptId, Renewed, ToAgent};

use crate::wire::{Online, ToSupervisor};

/// For a supervisor: the latest of everything, so that it can be sent again after any break.
#[derive(Clone, Default)]
pub struct Mailbox {
    online: Option<Online>,
    begun: Option<ToAgent>,
    superseded: bool,
    renewed: Option<Renewed>,
    cancel: Option<(bool, String)>,
    log_ack: BTreeMap<u32, u64>,
    fact_ack: u64,
    cancel_grace_ms: Option<u64>,
}

impl Mailbox {
    /// What of this the supervisor has not been told, after it was told `told`.
    pub fn since(&self, told: &Self, id: AttemptId) -> Vec<ToSupervisor> {
        let mut frames = Vec::new();
        match (&self.online, &told.online) {
            (Some(online), before) if before.as_ref() != Some(online) => {
                frames.push(ToSupervisor::Online(online.clone()));
            }
            (None, Some(_)) => frames.push(ToSupervisor::Offline {}),
            _ => {}
        }
        let mut down = |frame| frames.push(ToSupervisor::Down { frame });
        if self.superseded && !told.superseded {
            down(ToAgent::Superseded { id });
        }
        if let Some(begun) = self.begun.as_ref().filter(|begun| told.begun.as_ref() != Some(begun))
        {
            down(begun.clone());
        }
        if let Some(renewed) = self.renewed.filter(|renewed| told.renewed != Some(*renewed)) {
            down(ToAgent::Renewed { renewals: vec![renewed] });
        }
        if let Some((force, reason)) =
            self.cancel.as_ref().filter(|c| told.cancel.as_ref() != Some(c))
        {
            down(ToAgent::Cancel { id, force: *force, reason: reason.clone() });
        }
        if self.log_ack != told.log_ack {
            down(ToAgent::LogAck { id, to: self.log_ack.clone() });
        }
        if self.fact_ack != told.fact_ack {
            down(ToAgent::FactAck { id, seq: self.fact_ack });
        }
        if let Some(grace_ms) = self.cancel_grace_ms.filter(|_| told.cancel_grace_ms.is_none()) {
            frames.push(ToSupervisor::CancelAll { grace_ms });
        }
        frames
    }

    /// Whether the attempt is over.
    pub fn is_superseded(&self) -> bool {
        self.superseded
    }

    /// The link is lost.
    pub fn offline(&mut self) {
        self.online = None;
        // An answer counts from the question on the same link, and from no later one.
        self.begun = None;
    }

    /// There is a link, and the coordinator has this much.
    pub fn online(&mut self, online: Online) {
        self.log_ack.clone_from(&online.log);
        self.fact_ack = online.facts;
        self.online = Some(online);
    }

    /// The permission to run came.
    pub fn begun(&mut self, frame: ToAgent) {
        self.begun = Some(frame);
    }

    /// Everything on this host is to end.
    pub fn cancel_all(&mut self, grace_ms: u64) {
        self.cancel_grace_ms = Some(grace_ms);
    }

    /// The attempt is over.
    pub fn supersede(&mut self) {
        self.superseded = true;
    }

    /// The coordinator committed a renewal.
    pub fn renew(&mut self, renewed: Renewed) {
        self.renewed = Some(renewed);
    }

    /// Somebody wants the attempt to end.
    pub fn cancel(&mut self, force: bool, reason: String) {
        let force = force || self.cancel.as_ref().is_some_and(|(forced, _)| *forced);
        self.cancel = Some((force, reason));
    }

    /// Everything before these offsets is durable.
    pub fn ack_log(&mut self, to: BTreeMap<u32, u64>) {
        for (stream, offset) in to {
            let acked = self.log_ack.entry(stream).or_default();
            *acked = offset.max(*acked);
        }
    }

    /// Everything up to this fact is committed.
    pub fn ack_facts(&mut self, seq: u64) {
        self.fact_ack = self.fact_ack.max(seq);
    }
}

#[cfg(test)]
mod tests {
    use shuntyard_protocol::{JobId, Timestamp, agent::Timers};

    use super::*;

    fn id() -> AttemptId {
        AttemptId { job: JobId::mint(Timestamp(1), [1; 10]), attempt: 1 }
    }

    fn online(link: u64) -> Online {
        let timers = Timers { renew_ms: 1, fence_term_ms: 3, fence_kill_ms: 2, reservation_ms: 9 };
        let log = BTreeMap::from([(0, link)]);
        Online { link, timers, offset_ms: 0, log, facts: 0, finish: false }
    }

    #[test]
    fn only_what_is_new_is_told_and_a_new_supervisor_link_hears_all_of_it() {
        let mut mailbox = Mailbox::default();
        mailbox.online(online(1));
        mailbox.ack_log(BTreeMap::from([(0, 5)]));
        let all = mailbox.since(&Mailbox::default(), id());
        assert_eq!(all.len(), 2);
        assert_eq!(all[0], ToSupervisor::Online(online(1)));
        assert!(mailbox.since(&mailbox.clone(), id()).is_empty());
        let told = mailbox.clone();
        mailbox.ack_facts(3);
        mailbox.ack_facts(2);
        let news = mailbox.since(&told, id());
        assert_eq!(news, [ToSupervisor::Down { frame: ToAgent::FactAck { id: id(), seq: 3 } }]);
    }

    #[test]
    fn a_permission_does_not_outlive_its_link() {
        let mut mailbox = Mailbox::default();
        mailbox.online(online(1));
        mailbox.begun(ToAgent::Superseded { id: id() });
        mailbox.offline();
        mailbox.online(online(2));
        let told = mailbox.since(&Mailbox::default(), id());
        assert_eq!(told[0], ToSupervisor::Online(online(2)));
        let frame = ToAgent::Superseded { id: id() };
        assert!(!told.contains(&ToSupervisor::Down { frame }));
    }

    #[test]
    fn a_forced_cancel_stays_forced() {
        let mut mailbox = Mailbox::default();
        mailbox.cancel(true, "now".into());
        mailbox.cancel(false, "please".into());
        assert_eq!(mailbox.cancel, Some((true, "please".into())));
    }
}
