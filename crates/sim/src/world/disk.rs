//! A disk that keeps what was synced, and loses or tears the rest when its machine dies.

use std::{cell::RefCell, collections::BTreeMap, io, rc::Rc};

use shuntyard_agent::parts::Disk;

use super::rng::Rng;

#[derive(Debug, Default)]
struct File {
    bytes: Vec<u8>,
    synced: usize,
    /// Its name survives a crash.
    named: bool,
}

/// One journal's segments. Clones are the same disk, which outlives whoever writes to it.
#[derive(Clone, Debug, Default)]
pub(super) struct SimDisk(Rc<RefCell<BTreeMap<u64, File>>>);

impl SimDisk {
    /// The machine dies: of what was not synced any part may be gone or garbage.
    pub(super) fn crash(&self, rng: &mut Rng) {
        let mut files = self.0.borrow_mut();
        files.retain(|_, file| file.named || rng.chance(500));
        for file in files.values_mut() {
            let unsynced = file.bytes.len() - file.synced;
            let kept = file.synced + rng.size(0, unsynced);
            if kept > file.synced && rng.chance(500) {
                let from = rng.size(file.synced, kept - 1);
                file.bytes[from..kept].fill(0);
            }
            file.bytes.truncate(kept);
            file.synced = kept;
            file.named = true;
        }
    }
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<u64>> {
        Ok(self.0.borrow().keys().copied().collect())
    }

    fn append(&mut self, segment: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.borrow_mut().entry(segment).or_default().bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, segment: u64, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let files = self.0.borrow();
        let bytes = &files.get(&segment).ok_or_else(missing)?.bytes;
        let from = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
        let to = from.saturating_add(len).min(bytes.len());
        Ok(bytes[from..to].to_vec())
    }

    fn truncate(&mut self, segment: u64, len: u64) -> io::Result<()> {
        let mut files = self.0.borrow_mut();
        let file = files.get_mut(&segment).ok_or_else(missing)?;
        file.bytes.truncate(usize::try_from(len).unwrap_or(usize::MAX));
        file.synced = file.synced.min(file.bytes.len());
        Ok(())
    }

    fn sync(&mut self, segment: u64) -> io::Result<()> {
        let mut files = self.0.borrow_mut();
        let file = files.get_mut(&segment).ok_or_else(missing)?;
        file.synced = file.bytes.len();
        file.named = true;
        Ok(())
    }

    fn remove(&mut self, segment: u64) -> io::Result<()> {
        self.0.borrow_mut().remove(&segment).map(drop).ok_or_else(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_synced_survives_and_the_rest_may_not() {
        let mut lost = false;
        for seed in 0..50 {
            let mut disk = SimDisk::default();
            disk.append(1, b"safe").unwrap();
            disk.sync(1).unwrap();
            disk.append(1, b"perhaps").unwrap();
            disk.crash(&mut Rng::new(seed));
            let kept = disk.read(1, 0, 100).unwrap();
            assert!(kept.starts_with(b"safe"));
            lost |= kept != b"safeperhaps";
        }
        assert!(lost);
    }
}
