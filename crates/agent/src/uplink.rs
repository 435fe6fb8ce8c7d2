//! What an attempt has to say to the coordinator, whoever says it: its supervisor, or the agent
//! for a supervisor that died.

use shuntyard_protocol::agent::{AttemptId, AttemptKey, FromAgent, ToAgent};

use crate::{
    attempt::AttemptDir,
    spool::{DirDisk, Disk, Spool, SpoolError},
    wire::{FromSupervisor, Online},
};

/// A frame for the agent and its payload.
pub type Outgoing = (FromSupervisor, Vec<u8>);

/// The spool of an attempt that has begun, and its link.
#[derive(Debug)]
pub struct Uplink<D> {
    pub id: AttemptId,
    pub key: Option<AttemptKey>,
    pub spool: Spool<D>,
    /// The agent's current link to a coordinator.
    pub link: Option<u64>,
    /// Only the spool's content is wanted.
    pub finish: bool,
}

impl Uplink<DirDisk> {
    pub(crate) fn open(dir: &AttemptDir, quota_bytes: u64) -> Result<Self, SpoolError> {
        Ok(Self::new(dir.id, dir.key(), Spool::in_dir(&dir.spool(), quota_bytes)?))
    }
}

impl<D: Disk> Uplink<D> {
    /// Without a link yet.
    pub fn new(id: AttemptId, key: Option<AttemptKey>, spool: Spool<D>) -> Self {
        Self { id, key, spool, link: None, finish: false }
    }

    /// There is a link to a coordinator.
    pub fn online(&mut self, online: &Online) -> Result<(), SpoolError> {
        self.link = Some(online.link);
        self.finish |= online.finish;
        self.spool.online(&online.log, online.facts)
    }

    /// The link is lost.
    pub fn offline(&mut self) {
        self.link = None;
    }

    /// Takes an acknowledgement.
    pub fn acknowledge(&mut self, frame: &ToAgent) -> Result<(), SpoolError> {
        if let ToAgent::LogAck { to, .. } = frame {
            self.spool.ack_log(to)?;
        }
        if let ToAgent::FactAck { seq, .. } = frame {
            self.spool.ack_facts(*seq);
        }
        Ok(())
    }

    /// Wraps a frame for the current link.
    pub fn up(&self, frame: FromAgent) -> Option<FromSupervisor> {
        self.link.map(|link| FromSupervisor::Up { link, frame })
    }

    /// The next facts or the next log, facts first.
    pub fn take(&mut self) -> Result<Option<Outgoing>, SpoolError> {
        let (Some(_), Some(key)) = (self.link, self.key.clone()) else { return Ok(None) };
        let id = self.id;
        let facts = self.spool.next_facts()?;
        if !facts.is_empty() {
            let frame = FromAgent::Facts { id, key, facts };
            return Ok(self.up(frame).map(|frame| (frame, Vec::new())));
        }
        let Some(batch) = self.spool.next_log()? else { return Ok(None) };
        let frame = FromAgent::Log { id, key, chunks: batch.chunks };
        Ok(self.up(frame).map(|frame| (frame, batch.bytes)))
    }

    /// Whether nothing of this attempt is needed here any more. Also when only its log is wanted, the
    /// last fact must arrive: it says where the log ends, and where it is torn.
    pub fn is_done(&self) -> bool {
        self.spool.is_complete()
    }
}
