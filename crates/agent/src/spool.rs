//! The spool: an attempt's log and facts on disk until the coordinator has them.
//!
//! Two journals: the log, whose acknowledged segments are deleted, and the facts, which are few
//! and stay until the attempt is gone. A fact is sent once it and the log before it are synced; log
//! is sent without that. The log is sent in the order it was written; what is on its way
//! is bounded by a window, so that nobody between here and the coordinator holds more than that.

mod disk;
mod journal;

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    path::Path,
};

use shuntyard_core::mutant::{self, Mutant};
use shuntyard_protocol::{
    Timestamp,
    agent::{AttemptFact, Chunk, End, FACTS_PER_FRAME_MAX, Mark, NumberedFact},
    frame::LOG_PAYLOAD_BYTES_MAX,
};

pub(crate) use disk::DirDisk;
pub use disk::Disk;
use journal::{Journal, Place};

/// Log bytes that are sent and not acknowledged, per attempt.
pub(crate) const WINDOW_BYTES: u64 = 2 * LOG_PAYLOAD_BYTES_MAX as u64;
/// Longest stretch of log in one record.
pub(crate) const RECORD_LOG_BYTES_MAX: usize = 64 * 1024;
/// Most time marks in one frame: they are JSON, and must not outgrow it.
const MARKS_PER_FRAME_MAX: usize = 4096;
/// Facts of one frame together, as JSON.
const FACTS_FRAME_BYTES_MAX: usize = 2 * 1024 * 1024;

const KIND_ENDS: u8 = 0;
const KIND_LOG: u8 = 1;
/// Kind, stream, offset and time in front of a record's log bytes.
const LOG_HEADER_BYTES: usize = 21;

/// The spool could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    #[error("cannot open the {journal} journal of the spool")]
    Open {
        journal: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("cannot write the {journal} journal of the spool")]
    Write {
        journal: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("cannot read the {journal} journal of the spool")]
    Read {
        journal: &'static str,
        #[source]
        source: io::Error,
    },
}

/// One frame's worth of log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogBatch {
    pub chunks: Vec<Chunk>,
    /// The chunks' bytes, one after the other.
    pub bytes: Vec<u8>,
}

/// An attempt's spool, with where the coordinator is.
#[derive(Debug)]
pub struct Spool<D> {
    log: Journal<D>,
    facts: Journal<D>,
    quota_bytes: u64,
    /// End of each stream.
    ends: BTreeMap<u32, u64>,
    /// For each log segment, where the streams in it end.
    segment_ends: VecDeque<(u64, BTreeMap<u32, u64>)>,
    fact_places: Vec<Place>,
    /// Steps that started and did not end.
    open_steps: Vec<u32>,
    end: Option<End>,
    acked: BTreeMap<u32, u64>,
    sent: BTreeMap<u32, u64>,
    cursor: Place,
    facts_synced: u64,
    facts_acked: u64,
    facts_sent: u64,
}

impl Spool<DirDisk> {
    /// The spool in this directory, which exists.
    pub(crate) fn in_dir(dir: &Path, quota_bytes: u64) -> Result<Self, SpoolError> {
        Self::open(DirDisk::new(dir, "log"), DirDisk::new(dir, "facts"), quota_bytes)
    }
}

impl<D: Disk> Spool<D> {
    /// Opens the two journals, and cuts what the death of the machine tore.
    pub fn open(log: D, facts: D, quota_bytes: u64) -> Result<Self, SpoolError> {
        let mut ends = BTreeMap::new();
        let mut segment_ends = VecDeque::new();
        let log = Journal::open(log, |place, record| {
            note_log_record(&mut ends, &mut segment_ends, place, record)
        })
        .map_err(|source| SpoolError::Open { journal: "log", source })?;
        let mut found: Vec<(Place, AttemptFact)> = Vec::new();
        let facts = Journal::open(facts, |place, record| {
            found.push((place, serde_json::from_slice(record)?));
            Ok(())
        })
        .map_err(|source| SpoolError::Open { journal: "fact", source })?;
        let cursor = log.first();
        let mut spool = Self {
            log,
            facts,
            quota_bytes,
            ends,
            segment_ends,
            fact_places: Vec::new(),
            open_steps: Vec::new(),
            end: None,
            acked: BTreeMap::new(),
            sent: BTreeMap::new(),
            cursor,
            facts_synced: 0,
            facts_acked: 0,
            facts_sent: 0,
        };
        for (place, fact) in found {
            spool.note_fact(place, &fact);
        }
        spool.facts_synced = spool.facts_len();
        Ok(spool)
    }

    fn note_fact(&mut self, place: Place, fact: &AttemptFact) {
        self.fact_places.push(place);
        match fact {
            AttemptFact::StepStarted { step, .. } => self.open_steps.push(*step),
            AttemptFact::StepEnded(end) => self.open_steps.retain(|step| *step != end.step),
            AttemptFact::Ended(end) => self.end = Some(end.clone()),
        }
    }

    /// Adds to the end of a stream; after an error nothing was added. At most
    /// [`RECORD_LOG_BYTES_MAX`] bytes at a time.
    pub fn append_log(
        &mut self,
        stream: u32,
        at: Timestamp,
        bytes: &[u8],
    ) -> Result<(), SpoolError> {
        let failed = |source| SpoolError::Write { journal: "log", source };
        let from = self.ends.get(&stream).copied().unwrap_or(0);
        let mut record = Vec::with_capacity(LOG_HEADER_BYTES + bytes.len());
        record.push(KIND_LOG);
        record.extend_from_slice(&stream.to_be_bytes());
        record.extend_from_slice(&from.to_be_bytes());
        record.extend_from_slice(&at.0.to_be_bytes());
        record.extend_from_slice(bytes);
        if self.log.next_is_new_segment() {
            // Ends of streams outlive the deletion of their bytes this way.
            let mut header = vec![KIND_ENDS];
            serde_json::to_writer(&mut header, &self.ends)
                .map_err(|error| failed(io::Error::other(error)))?;
            let place = self.log.append(&header).map_err(failed)?;
            self.segment_ends.push_back((place.segment, BTreeMap::new()));
        }
        self.log.append(&record).map_err(failed)?;
        let end = from + bytes.len() as u64;
        self.ends.insert(stream, end);
        if let Some((_, ends)) = self.segment_ends.back_mut() {
            ends.insert(stream, end);
        }
        Ok(())
    }

    /// Adds a fact and returns its number. It is not sent before a [`Spool::sync`] succeeded.
    pub fn append_fact(&mut self, fact: &AttemptFact) -> Result<u64, SpoolError> {
        let failed = |source| SpoolError::Write { journal: "fact", source };
        let record = serde_json::to_vec(fact).map_err(|error| failed(io::Error::other(error)))?;
        let place = self.facts.append(&record).map_err(failed)?;
        self.note_fact(place, fact);
        Ok(self.facts_len())
    }

    /// Makes the log and then the facts durable, as far as they were added.
    pub fn sync(&mut self) -> Result<(), SpoolError> {
        if mutant::on(Mutant::SkipSpoolSync) {
            self.facts_synced = self.facts_len();
            return Ok(());
        }
        self.log.sync().map_err(|source| SpoolError::Write { journal: "log", source })?;
        self.facts.sync().map_err(|source| SpoolError::Write { journal: "fact", source })?;
        self.facts_synced = self.facts_len();
        Ok(())
    }

    /// Whether commands have to wait until something is acknowledged.
    pub fn is_full(&self) -> bool {
        self.log.bytes() >= self.quota_bytes
    }

    /// Bytes of log on disk.
    pub fn log_bytes(&self) -> u64 {
        self.log.bytes()
    }

    /// Where each stream ends.
    pub fn ends(&self) -> &BTreeMap<u32, u64> {
        &self.ends
    }

    /// Steps that started and have not ended.
    pub fn open_steps(&self) -> &[u32] {
        &self.open_steps
    }

    /// The attempt's last fact, once it is there.
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    fn facts_len(&self) -> u64 {
        self.fact_places.len() as u64
    }

    /// A link is there, and the coordinator has this much: send from there on.
    pub fn online(&mut self, log: &BTreeMap<u32, u64>, facts: u64) -> Result<(), SpoolError> {
        if !mutant::on(Mutant::ForgetResend) {
            self.sent.clone_from(log);
            self.cursor = self.log.first();
            self.facts_sent = facts.min(self.facts_len());
        }
        self.ack_facts(facts);
        self.ack_log(log)
    }

    /// Everything before these offsets is durable elsewhere.
    pub fn ack_log(&mut self, to: &BTreeMap<u32, u64>) -> Result<(), SpoolError> {
        for (&stream, &offset) in to {
            let acked = self.acked.entry(stream).or_default();
            *acked = offset.max(*acked);
        }
        while let Some(oldest) = self.log.oldest_closed() {
            let Some((segment, ends)) = self.segment_ends.front() else { break };
            let acked = reached(&self.acked, ends) || mutant::on(Mutant::TrimUnacked);
            if *segment != oldest || !acked {
                break;
            }
            self.log
                .remove_oldest()
                .map_err(|source| SpoolError::Write { journal: "log", source })?;
            self.segment_ends.pop_front();
        }
        self.cursor = self.cursor.max(self.log.first());
        Ok(())
    }

    /// Everything up to this fact is committed.
    pub fn ack_facts(&mut self, seq: u64) {
        self.facts_acked = self.facts_acked.max(seq.min(self.facts_len()));
    }

    /// Whether the log is complete at the coordinator.
    pub fn log_acked(&self) -> bool {
        reached(&self.acked, self.end.as_ref().map_or(&self.ends, |end| &end.ends))
    }

    /// Whether the coordinator has the attempt's last fact.
    pub fn end_acked(&self) -> bool {
        self.end.is_some() && self.facts_acked == self.facts_len()
    }

    /// Whether the attempt ended and the coordinator has everything.
    pub fn is_complete(&self) -> bool {
        self.end_acked() && self.log_acked()
    }

    /// Log bytes that are sent and not acknowledged.
    fn in_flight(&self) -> u64 {
        let acked = |stream| self.acked.get(stream).copied().unwrap_or(0);
        self.sent.iter().map(|(stream, sent)| sent.saturating_sub(acked(stream))).sum()
    }

    /// The facts to send next, which then count as sent.
    pub fn next_facts(&mut self) -> Result<Vec<NumberedFact>, SpoolError> {
        let failed = |source| SpoolError::Read { journal: "fact", source };
        let mut facts = Vec::new();
        let mut bytes = 0;
        let first = usize::try_from(self.facts_sent).unwrap_or(usize::MAX);
        let durable = usize::try_from(self.facts_synced).unwrap_or(usize::MAX);
        let due = self.fact_places.iter().zip(1..).take(durable).skip(first);
        for (&place, seq) in due.take(FACTS_PER_FRAME_MAX) {
            let damaged = || failed(io::Error::other("a record is damaged"));
            let record = self.facts.read(place).map_err(failed)?.ok_or_else(damaged)?;
            bytes += record.len();
            if bytes > FACTS_FRAME_BYTES_MAX && !facts.is_empty() {
                break;
            }
            let fact = serde_json::from_slice(&record).map_err(|e| failed(e.into()))?;
            facts.push(NumberedFact { seq, fact });
        }
        self.facts_sent += facts.len() as u64;
        Ok(facts)
    }

    /// The log to send next, which then counts as sent; nothing at the end or while the window is
    /// full.
    pub fn next_log(&mut self) -> Result<Option<LogBatch>, SpoolError> {
        let failed = |source| SpoolError::Read { journal: "log", source };
        let room = WINDOW_BYTES.saturating_sub(self.in_flight());
        let limit = usize::try_from(room).unwrap_or(usize::MAX).min(LOG_PAYLOAD_BYTES_MAX);
        let mut batch = LogBatch::default();
        let mut marks = 0;
        // A segment may have been started since the end was reached.
        self.cursor = self.log.settle(self.cursor);
        while marks < MARKS_PER_FRAME_MAX
            && let Some(record) = self.log.read(self.cursor).map_err(failed)?
        {
            if let Some(log) = LogRecord::parse(&record) {
                let sent = self.sent.get(&log.stream).copied().unwrap_or(0);
                let skip = usize::try_from(sent.saturating_sub(log.from)).unwrap_or(usize::MAX);
                if let Some(rest) = log.bytes.get(skip..).filter(|rest| !rest.is_empty()) {
                    let fits = rest.len().min(limit - batch.bytes.len());
                    if fits == 0 {
                        break;
                    }
                    let from = log.from + skip as u64;
                    marks += batch.push(log.stream, from, log.at, &rest[..fits]);
                    self.sent.insert(log.stream, from + fits as u64);
                    if fits < rest.len() {
                        break;
                    }
                }
            }
            self.cursor = self.log.after(self.cursor, record.len());
        }
        Ok((!batch.bytes.is_empty()).then_some(batch))
    }
}

fn reached(acked: &BTreeMap<u32, u64>, ends: &BTreeMap<u32, u64>) -> bool {
    ends.iter().all(|(stream, end)| acked.get(stream).copied().unwrap_or(0) >= *end)
}

fn note_log_record(
    ends: &mut BTreeMap<u32, u64>,
    segment_ends: &mut VecDeque<(u64, BTreeMap<u32, u64>)>,
    place: Place,
    record: &[u8],
) -> io::Result<()> {
    if segment_ends.back().is_none_or(|(segment, _)| *segment != place.segment) {
        segment_ends.push_back((place.segment, BTreeMap::new()));
    }
    if let Some(log) = LogRecord::parse(record) {
        let end = log.from + log.bytes.len() as u64;
        ends.insert(log.stream, end);
        if let Some((_, in_segment)) = segment_ends.back_mut() {
            in_segment.insert(log.stream, end);
        }
    } else if record.first() == Some(&KIND_ENDS) {
        let known: BTreeMap<u32, u64> = serde_json::from_slice(&record[1..])?;
        ends.extend(known);
    }
    Ok(())
}

struct LogRecord<'a> {
    stream: u32,
    from: u64,
    at: Timestamp,
    bytes: &'a [u8],
}

impl<'a> LogRecord<'a> {
    fn parse(record: &'a [u8]) -> Option<Self> {
        let (&kind, rest) = record.split_first()?;
        let (stream, rest) = rest.split_first_chunk()?;
        let (from, rest) = rest.split_first_chunk()?;
        let (at, bytes) = rest.split_first_chunk()?;
        (kind == KIND_LOG).then(|| Self {
            stream: u32::from_be_bytes(*stream),
            from: u64::from_be_bytes(*from),
            at: Timestamp(i64::from_be_bytes(*at)),
            bytes,
        })
    }
}

impl LogBatch {
    /// Adds a stretch, to the last chunk where it goes on; returns how many marks that took.
    fn push(&mut self, stream: u32, from: u64, at: Timestamp, bytes: &[u8]) -> usize {
        self.bytes.extend_from_slice(bytes);
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let last = self
            .chunks
            .last_mut()
            .filter(|last| last.stream == stream && last.from + u64::from(last.len) == from);
        match last {
            Some(last) => {
                last.len += len;
                if last.marks.last().is_some_and(|mark| mark.1 == at) {
                    return 0;
                }
                last.marks.push(Mark(from, at));
            }
            None => self.chunks.push(Chunk { stream, from, len, marks: vec![Mark(from, at)] }),
        }
        1
    }
}

#[cfg(test)]
mod tests;
