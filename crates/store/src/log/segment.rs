//! Where log bytes lie that are too many for rows: append-only segments.
//!
//! One process life writes its own segments and nobody else appends to them. A batch is one write
//! and one sync. Bytes whose rows were never committed (the process died in between) are garbage
//! that nothing points to.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    future::Future,
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};

use aws_lc_rs::digest;
use shuntyard_protocol::{InstanceId, SegmentId, Timestamp};
use tokio::task;

use crate::error::StoreError;

/// A segment is closed when it has grown beyond this.
pub(crate) const SEGMENT_BYTES: u64 = 64 * 1024 * 1024;

/// A stretch of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub segment: SegmentId,
    pub from: u64,
    pub len: u64,
}

/// What an append or read gives, later.
pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Storage for segments. An append is durable when it returns.
pub(crate) trait Segments: Send + Sync {
    /// Appends all of `bytes` in one go; returns where they are, in order. Each piece lies in one
    /// segment.
    fn append(&self, bytes: Vec<Vec<u8>>, now: Timestamp) -> Later<'_, Vec<Place>>;

    fn read(&self, place: Place) -> Later<'_, Vec<u8>>;
}

/// Files in a folder, `<segment id>.log`.
pub(crate) struct DirSegments {
    writing: Arc<Mutex<Writing>>,
    folder: PathBuf,
}

/// What this life of the process writes.
struct Writing {
    folder: PathBuf,
    instance: InstanceId,
    /// A segment that has this many bytes is closed.
    max: u64,
    /// Segments begun; names the next one.
    begun: u64,
    current: Option<(SegmentId, File, u64)>,
}

impl DirSegments {
    /// Creates nothing before the first append.
    pub(crate) fn new(folder: PathBuf, instance: InstanceId) -> Self {
        Self::with_max(folder, instance, SEGMENT_BYTES)
    }

    fn with_max(folder: PathBuf, instance: InstanceId, max: u64) -> Self {
        let writing = Writing { folder: folder.clone(), instance, max, begun: 0, current: None };
        Self { writing: Arc::new(Mutex::new(writing)), folder }
    }
}

impl Segments for DirSegments {
    fn append(&self, bytes: Vec<Vec<u8>>, now: Timestamp) -> Later<'_, Vec<Place>> {
        let writing = self.writing.clone();
        Box::pin(run(move || {
            let mut writing = writing.lock().unwrap_or_else(PoisonError::into_inner);
            let result = writing.append(&bytes, now);
            if result.is_err() {
                // What a failed write left behind is unknown: never append to it again.
                writing.current = None;
            }
            result
        }))
    }

    fn read(&self, place: Place) -> Later<'_, Vec<u8>> {
        let path = path(&self.folder, place.segment);
        Box::pin(run(move || {
            let read = || -> io::Result<Vec<u8>> {
                let mut file = File::open(path)?;
                file.seek(SeekFrom::Start(place.from))?;
                let mut bytes = vec![0; usize::try_from(place.len).unwrap_or(usize::MAX)];
                file.read_exact(&mut bytes)?;
                Ok(bytes)
            };
            read().map_err(|source| StoreError::Segment {
                operation: "read",
                segment: place.segment,
                source,
            })
        }))
    }
}

async fn run<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    // A blocking task is not cancelled; its panic is ours.
    task::spawn_blocking(work).await.map_err(|_| StoreError::Closed)?
}

impl Writing {
    fn append(&mut self, bytes: &[Vec<u8>], now: Timestamp) -> Result<Vec<Place>, StoreError> {
        if self.current.as_ref().is_some_and(|(_, _, len)| *len >= self.max) {
            self.current = None;
        }
        if self.current.is_none() {
            let segment = segment_id(self.instance, self.begun, now);
            // Whether or not its file can be made, its name is used up.
            self.begun += 1;
            let file = create(&self.folder, segment).map_err(|source| StoreError::Segment {
                operation: "create",
                segment,
                source,
            })?;
            self.current = Some((segment, file, 0));
        }
        let (segment, file, len) = self.current.as_mut().expect("it was opened just now");
        let places = lay_out(*segment, *len, bytes);
        file.write_all(&bytes.concat()).and_then(|()| file.sync_data()).map_err(|source| {
            StoreError::Segment { operation: "write", segment: *segment, source }
        })?;
        *len += bytes.iter().map(|piece| piece.len() as u64).sum::<u64>();
        Ok(places)
    }
}

/// Creates a segment's file so that it is found after a crash.
fn create(folder: &Path, segment: SegmentId) -> io::Result<File> {
    fs::create_dir_all(folder)?;
    let file = OpenOptions::new().append(true).create_new(true).open(path(folder, segment))?;
    File::open(folder)?.sync_all()?;
    Ok(file)
}

fn path(folder: &Path, segment: SegmentId) -> PathBuf {
    folder.join(format!("{segment}.log"))
}

fn lay_out(segment: SegmentId, start: u64, bytes: &[Vec<u8>]) -> Vec<Place> {
    let mut from = start;
    bytes
        .iter()
        .map(|piece| {
            let place = Place { segment, from, len: piece.len() as u64 };
            from += place.len;
            place
        })
        .collect()
}

/// Instances are unique, so their numbered segments are; nothing random is needed.
fn segment_id(instance: InstanceId, number: u64, now: Timestamp) -> SegmentId {
    let name = format!("{instance} {number}");
    let digest = digest::digest(&digest::SHA256, name.as_bytes());
    let mut random = [0; 10];
    random.copy_from_slice(&digest.as_ref()[..10]);
    SegmentId::mint(now, random)
}

/// Segments in memory, for simulations.
pub(crate) struct MemorySegments {
    instance: InstanceId,
    segments: Mutex<BTreeMap<SegmentId, Vec<u8>>>,
}

impl MemorySegments {
    pub(crate) fn new(instance: InstanceId) -> Self {
        Self { instance, segments: Mutex::default() }
    }
}

impl Segments for MemorySegments {
    fn append(&self, bytes: Vec<Vec<u8>>, _now: Timestamp) -> Later<'_, Vec<Place>> {
        Box::pin(async move {
            let mut segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
            let segment = segment_id(self.instance, 0, Timestamp(0));
            let body = segments.entry(segment).or_default();
            let places = lay_out(segment, body.len() as u64, &bytes);
            body.extend(bytes.concat());
            Ok(places)
        })
    }

    fn read(&self, place: Place) -> Later<'_, Vec<u8>> {
        Box::pin(async move {
            let segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
            let from = usize::try_from(place.from).unwrap_or(usize::MAX);
            let to = from.saturating_add(usize::try_from(place.len).unwrap_or(usize::MAX));
            segments
                .get(&place.segment)
                .and_then(|body| body.get(from..to))
                .map(<[u8]>::to_vec)
                .ok_or_else(|| StoreError::Segment {
                    operation: "read",
                    segment: place.segment,
                    source: io::ErrorKind::UnexpectedEof.into(),
                })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(n: u8) -> InstanceId {
        InstanceId::mint(Timestamp(1), [n; 10])
    }

    #[tokio::test]
    async fn a_full_segment_is_closed_and_a_new_life_writes_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("segments");
        let first = DirSegments::with_max(place.clone(), instance(1), 6);
        let pieces = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect();
        let mut places = first.append(pieces(&["abc", "de"]), Timestamp(1)).await.unwrap();
        places.extend(first.append(pieces(&["fgh"]), Timestamp(1)).await.unwrap());
        places.extend(first.append(pieces(&["ijk"]), Timestamp(1)).await.unwrap());
        let second = DirSegments::new(place.clone(), instance(2));
        places.extend(second.append(pieces(&["lm"]), Timestamp(1)).await.unwrap());
        let offsets: Vec<_> = places.iter().map(|place| place.from).collect();
        assert_eq!(offsets, [0, 3, 5, 0, 0]);
        assert_eq!(places[0].segment, places[2].segment);
        assert_eq!(fs::read_dir(&place).unwrap().count(), 3);
        let mut read = Vec::new();
        for place in places {
            read.extend(second.read(place).await.unwrap());
        }
        assert_eq!(read, b"abcdefghijklm");
    }

    #[tokio::test]
    async fn bytes_that_are_not_there_are_an_error_that_names_the_segment() {
        let folder = tempfile::tempdir().unwrap();
        let segments = DirSegments::new(folder.path().to_owned(), instance(1));
        let mut place = segments.append(vec![vec![1, 2]], Timestamp(1)).await.unwrap()[0];
        place.len = 3;
        let error = segments.read(place).await.unwrap_err();
        assert_eq!(error.to_string(), format!("cannot read log segment {}", place.segment));
    }
}
