//! Where a journal's segments are: a directory in production, anything in a simulation.

use std::{
    collections::BTreeMap,
    fs, io,
    io::Write as _,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// The operations that a journal needs. Bytes that were appended but not synced may be lost or
/// torn when the machine dies; everything synced survives.
pub trait Disk {
    /// Numbers of the segments that exist, ascending.
    fn list(&self) -> io::Result<Vec<u64>>;
    /// Adds to the end of a segment, creating it when it is new. May fail half way.
    fn append(&mut self, segment: u64, bytes: &[u8]) -> io::Result<()>;
    /// Up to `len` bytes from `at` on; fewer only at the segment's end.
    fn read(&mut self, segment: u64, at: u64, len: usize) -> io::Result<Vec<u8>>;
    /// Cuts a segment to `len` bytes.
    fn truncate(&mut self, segment: u64, len: u64) -> io::Result<()>;
    /// Makes everything appended to this segment, and its existence, durable.
    fn sync(&mut self, segment: u64) -> io::Result<()>;
    /// Deletes a segment.
    fn remove(&mut self, segment: u64) -> io::Result<()>;
}

/// Files of one open handle each that are kept open: the one written and the one read.
const OPEN_FILES_MAX: usize = 2;

/// Segments as files `PREFIX-0000000001` of one directory.
#[derive(Debug)]
pub(crate) struct DirDisk {
    dir: PathBuf,
    prefix: &'static str,
    open: BTreeMap<u64, fs::File>,
}

impl DirDisk {
    /// The directory must exist.
    pub(crate) fn new(dir: &Path, prefix: &'static str) -> Self {
        Self { dir: dir.to_owned(), prefix, open: BTreeMap::new() }
    }

    fn path(&self, segment: u64) -> PathBuf {
        self.dir.join(format!("{}-{segment:010}", self.prefix))
    }

    fn file(&mut self, segment: u64, create: bool) -> io::Result<&mut fs::File> {
        if !self.open.contains_key(&segment) {
            // Writing goes to the last segment and reading sweeps upwards, so that the middle one
            // is the one done with; which one goes only costs an open.
            while self.open.len() >= OPEN_FILES_MAX {
                self.open.pop_first();
            }
            let file = fs::OpenOptions::new()
                .read(true)
                .append(true)
                .create(create)
                .mode(0o600)
                .open(self.path(segment))?;
            self.open.insert(segment, file);
        }
        self.open.get_mut(&segment).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for DirDisk {
    fn list(&self) -> io::Result<Vec<u64>> {
        let mut segments = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            let number: Option<u64> = name
                .to_str()
                .and_then(|name| name.strip_prefix(self.prefix)?.strip_prefix('-')?.parse().ok());
            segments.extend(number);
        }
        segments.sort_unstable();
        Ok(segments)
    }

    fn append(&mut self, segment: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(segment, true)?.write_all(bytes)
    }

    fn read(&mut self, segment: u64, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let file = self.file(segment, false)?;
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while filled < len {
            match file.read_at(&mut bytes[filled..], at + filled as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn truncate(&mut self, segment: u64, len: u64) -> io::Result<()> {
        self.file(segment, false)?.set_len(len)
    }

    fn sync(&mut self, segment: u64) -> io::Result<()> {
        self.file(segment, false)?.sync_data()?;
        fs::File::open(&self.dir)?.sync_all()
    }

    fn remove(&mut self, segment: u64) -> io::Result<()> {
        self.open.remove(&segment);
        fs::remove_file(self.path(segment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_segments_need_few_open_files() {
        let temp = tempfile::tempdir().unwrap();
        let mut disk = DirDisk::new(temp.path(), "log");
        for segment in 1..=2 * OPEN_FILES_MAX as u64 {
            disk.append(segment, b"abc").unwrap();
            disk.sync(segment).unwrap();
            assert_eq!(disk.read(1, 1, 9).unwrap(), b"bc");
            assert!(disk.open.len() <= OPEN_FILES_MAX);
        }
        disk.truncate(2, 1).unwrap();
        disk.append(2, b"z").unwrap();
        assert_eq!(disk.read(2, 0, 9).unwrap(), b"az");
        disk.remove(1).unwrap();
        assert_eq!(disk.list().unwrap(), [2, 3, 4]);
    }
}
