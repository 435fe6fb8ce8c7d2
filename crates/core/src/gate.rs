//! Gates: whatever holds a run or job back that is ready otherwise. The first kind is the
//! concurrency group, which has slots.
//!
//! Whoever comes to a gate gets a *place* there: it holds a slot or waits for one. A slot is taken
//! by whoever has locked the gate; it is given back without that lock, by deleting the place in the
//! same transaction as its run or job ends. So a count of the places may find too many holders, and
//! never too few. Each place that goes leaves a wake: a row that makes the gate's reconciler look
//! for whom to let go next. A transaction never writes another run.
//!
//! A run's place covers the run from its creation to its end; a job's, from when the job is ready
//! until it ends, all its tries included. A job ends only when nothing of it runs any more or its
//! release has passed, so a slot is never free while its holder may still be at work.

use shuntyard_protocol::{JobId, RunId};

#[cfg(test)]
mod tests;

/// Row id of a gate.
pub type GateId = i64;

/// Before the name of a group that the whole org shares.
pub const SHARED_PREFIX: &str = "org:";

/// Who stands at a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Run(RunId),
    Job(JobId),
}

/// Which gate a run or job has to pass, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub gate: GateId,
    /// It cancels older ones that it has no room beside.
    pub cancels: bool,
}

/// A locked gate, with its places counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    pub slots: u32,
    pub holding: u32,
    pub waiting: u32,
}

impl Gate {
    /// Slots that nobody holds.
    pub fn free(self) -> u32 {
        self.slots.saturating_sub(self.holding)
    }

    /// Somebody comes: true when it holds a slot now, false when it waits behind the others.
    pub fn enter(&mut self) -> bool {
        let full = self.free() == 0 && !crate::mutant::on(crate::mutant::Mutant::OverfillGate);
        let holds = !full && self.waiting == 0;
        *(if holds { &mut self.holding } else { &mut self.waiting }) += 1;
        holds
    }

    /// The first of those who wait goes on: false when there is no slot for it.
    pub fn admit(&mut self) -> bool {
        let may = self.free() > 0;
        if may {
            self.holding += 1;
            self.waiting = self.waiting.saturating_sub(1);
        }
        may
    }

    /// Somebody goes, who held a slot or waited.
    pub fn leave(&mut self, held: bool) {
        let left = if held { &mut self.holding } else { &mut self.waiting };
        *left = left.saturating_sub(1);
    }
}

/// A place, as far as it matters for who has to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub run: RunId,
    pub place: Place,
    /// It came to cancel older ones.
    pub cancels: bool,
}

/// The places that must be cancelled, and the one for which. `members` are all at one gate, the
/// newest first. The newest one that cancels has room for `slots − 1` older ones beside it; those
/// beyond have to go, unless they are of its own run.
pub fn superseded(members: &[Member], slots: u32) -> Option<(Place, Vec<Place>)> {
    let newest = members.iter().position(|member| member.cancels)?;
    let (run, place) = (members[newest].run, members[newest].place);
    let kept = newest.saturating_add(usize::try_from(slots).unwrap_or(usize::MAX));
    let beyond = members.iter().skip(kept).filter(|member| member.run != run);
    Some((place, beyond.map(|member| member.place).collect()))
}
