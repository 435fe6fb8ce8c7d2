//! An append-only sequence of records in segments, which survives a torn tail.
//!
//! A record is `[length, u32][CRC-32 of the payload, u32][payload]`, big endian. A segment is
//! synced before the next one starts, so that only the last one can be torn.

use std::{collections::VecDeque, io};

use super::Disk;

/// A segment this long is closed.
pub(super) const SEGMENT_BYTES: u64 = 1024 * 1024;
/// Longest payload of a record. A longer length on disk is damage.
pub(super) const RECORD_BYTES_MAX: usize = 2 * 1024 * 1024;

const HEADER_BYTES: usize = 8;

/// The place of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub segment: u64,
    pub at: u64,
}

#[derive(Debug)]
pub(super) struct Journal<D> {
    disk: D,
    /// Number and length of each segment, ascending.
    segments: VecDeque<(u64, u64)>,
    dirty: bool,
    /// A failed append left bytes behind that could not be cut yet.
    torn: bool,
}

impl<D: Disk> Journal<D> {
    /// Opens what is there, cuts a torn tail, and hands every record that is whole to `visit`.
    pub(super) fn open(
        disk: D,
        mut visit: impl FnMut(Place, &[u8]) -> io::Result<()>,
    ) -> io::Result<Self> {
        let mut journal = Self { disk, segments: VecDeque::new(), dirty: false, torn: false };
        let mut damaged = false;
        for segment in journal.disk.list()? {
            if damaged {
                journal.disk.remove(segment)?;
                continue;
            }
            let mut at = 0;
            journal.segments.push_back((segment, u64::MAX));
            while let Some(payload) = journal.read(Place { segment, at })? {
                visit(Place { segment, at }, &payload)?;
                at += (HEADER_BYTES + payload.len()) as u64;
            }
            if !journal.disk.read(segment, at, 1)?.is_empty() {
                journal.disk.truncate(segment, at)?;
                damaged = true;
            }
            if let Some(last) = journal.segments.back_mut() {
                last.1 = at;
            }
        }
        // Whoever wrote this may have died before its sync: what follows must not be more durable.
        journal.dirty = !journal.segments.is_empty();
        Ok(journal)
    }

    /// Adds a record, which is not empty; after an error it is not there.
    pub(super) fn append(&mut self, payload: &[u8]) -> io::Result<Place> {
        if payload.len() > RECORD_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "record above the limit"));
        }
        if payload.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an empty record"));
        }
        self.mend()?;
        if self.next_is_new_segment() {
            self.sync()?;
            // An empty last one is what a failed append or a torn tail left.
            if self.segments.back().is_none_or(|&(_, len)| len > 0) {
                let number = self.segments.back().map_or(1, |&(number, _)| number + 1);
                self.segments.push_back((number, 0));
            }
        }
        let &(segment, at) = self.segments.back().expect("one was pushed if there was none");
        let mut record = Vec::with_capacity(HEADER_BYTES + payload.len());
        record.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes());
        record.extend_from_slice(&crc32(payload).to_be_bytes());
        record.extend_from_slice(payload);
        self.dirty = true;
        if let Err(error) = self.disk.append(segment, &record) {
            self.torn = true;
            self.mend().ok();
            return Err(error);
        }
        if let Some(last) = self.segments.back_mut() {
            last.1 += record.len() as u64;
        }
        Ok(Place { segment, at })
    }

    /// Whether the next record starts a segment.
    pub(super) fn next_is_new_segment(&self) -> bool {
        self.segments.back().is_none_or(|&(_, len)| len == 0 || len >= SEGMENT_BYTES)
    }

    fn mend(&mut self) -> io::Result<()> {
        if let (true, Some(&(segment, len))) = (self.torn, self.segments.back()) {
            if self.disk.list()?.contains(&segment) {
                self.disk.truncate(segment, len)?;
            }
            self.torn = false;
        }
        Ok(())
    }

    /// Makes everything appended so far durable.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if let (true, Some(&(segment, len))) = (self.dirty, self.segments.back())
            && len > 0
        {
            self.disk.sync(segment)?;
        }
        self.dirty = false;
        Ok(())
    }

    /// The record at a place, or nothing at the journal's end or where it is damaged.
    pub(super) fn read(&mut self, place: Place) -> io::Result<Option<Vec<u8>>> {
        let end = self.segments.iter().find(|(number, _)| *number == place.segment);
        if end.is_none_or(|&(_, len)| place.at >= len) {
            return Ok(None);
        }
        let header = self.disk.read(place.segment, place.at, HEADER_BYTES)?;
        let Some((length, crc)) = header.split_first_chunk::<4>() else { return Ok(None) };
        let Ok(crc) = <[u8; 4]>::try_from(crc) else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        // No record is empty: the checksum of nothing is zero, so zeros that a crash left would be one.
        if length == 0 || length > RECORD_BYTES_MAX {
            return Ok(None);
        }
        let payload = self.disk.read(place.segment, place.at + HEADER_BYTES as u64, length)?;
        let whole = payload.len() == length && crc32(&payload) == u32::from_be_bytes(crc);
        Ok(whole.then_some(payload))
    }

    /// Where the record behind this one is, or will be.
    pub(super) fn after(&self, place: Place, payload_len: usize) -> Place {
        self.settle(Place { at: place.at + (HEADER_BYTES + payload_len) as u64, ..place })
    }

    /// The same place, or the start of the next segment when this one has ended there.
    pub(super) fn settle(&self, place: Place) -> Place {
        let mut later = self.segments.iter().filter(|(number, _)| *number >= place.segment);
        match (later.next(), later.next()) {
            (Some(&(_, len)), Some(&(next, _))) if place.at >= len => {
                Place { segment: next, at: 0 }
            }
            _ => place,
        }
    }

    /// The first record that is kept.
    pub(super) fn first(&self) -> Place {
        Place { segment: self.segments.front().map_or(1, |&(number, _)| number), at: 0 }
    }

    /// The first segment, unless it is the one being written.
    pub(super) fn oldest_closed(&self) -> Option<u64> {
        (self.segments.len() > 1).then(|| self.segments.front().map(|&(number, _)| number))?
    }

    /// Deletes the first segment.
    pub(super) fn remove_oldest(&mut self) -> io::Result<()> {
        if let Some(&(segment, _)) = self.segments.front() {
            self.disk.remove(segment)?;
            self.segments.pop_front();
        }
        Ok(())
    }

    /// Bytes on disk.
    pub(super) fn bytes(&self) -> u64 {
        self.segments.iter().map(|&(_, len)| len).sum()
    }
}

const CRC_TABLE: [u32; 256] = crc_table();

const fn crc_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "index is below 256")]
        let mut value = index as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { 0xedb8_8320 ^ (value >> 1) } else { value >> 1 };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
}

/// CRC-32 (IEEE): finds what a crash tore, not what an attacker wrote.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes
        .iter()
        .fold(!0, |crc, &byte| CRC_TABLE[usize::from(crc.to_le_bytes()[0] ^ byte)] ^ (crc >> 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_standard_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
