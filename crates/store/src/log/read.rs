//! Reading logs: by offset, from rows and segments alike.

use shuntyard_protocol::{
    SegmentId,
    agent::{AttemptId, End, Mark},
};

use super::{LogSlice, LogStream, segment::Place};
use crate::{
    Store,
    column::row,
    db::read,
    error::{During, StoreError},
};

/// Most bytes of one slice.
pub const SLICE_BYTES: u32 = 4 * 1024 * 1024;
/// Most chunks of one slice.
const SLICE_CHUNKS: i64 = 1024;

row! {
    struct ChunkRow {
        from_byte: u64,
        len: u64,
        body: Option<Vec<u8>>,
        segment_id: Option<SegmentId>,
        segment_from: Option<u64>,
        marks: Vec<Mark>,
    }

    struct EndRow {
        end_json: Option<End>,
    }

    struct StreamEnd {
        stream: u32,
        to_byte: u64,
    }
}

pub(crate) const CHUNKS: &str = "select from_byte, len, body, segment_id, segment_from, marks \
    from log_chunk where job_id = $1 and attempt = $2 and stream = $3 and from_byte + len > $4 \
    and from_byte < $5 order by from_byte limit $6";
pub(crate) const STREAMS: &str = "select stream, to_byte from log_stream \
    where job_id = $1 and attempt = $2 order by stream";
pub(crate) const END: &str = "select end_json from attempt where job_id = $1 and attempt = $2";

impl Store {
    /// Up to `max_bytes` of a stream from `from` on. Bytes that are not there yet are simply not in
    /// the slice; `complete` says whether more will come.
    pub async fn log_read(
        &self,
        id: AttemptId,
        stream: u32,
        from: u64,
        max_bytes: u32,
    ) -> Result<LogSlice, StoreError> {
        // The end first: what is stored after it can only be more.
        let streams = self.log_streams(id).await?;
        let state = streams.iter().find(|other| other.stream == stream);
        let until = from.saturating_add(u64::from(max_bytes.min(SLICE_BYTES)));
        let chunks: Vec<ChunkRow> = read!(&self.inner.db, Kind, c => sqlx::query_as(CHUNKS)
            .bind(id.job.uuid()).bind(i64::from(id.attempt)).bind(i64::from(stream))
            .bind(offset(from)).bind(offset(until)).bind(SLICE_CHUNKS).fetch_all(c).await)
        .during("read a log")?;
        let mut slice = LogSlice { from, ..LogSlice::default() };
        if let Some(state) = state {
            slice.to = state.to;
            slice.end = state.end;
            slice.complete = state.complete;
            slice.torn = state.torn;
        }
        for chunk in chunks {
            self.add_chunk(&mut slice, chunk, until).await?;
        }
        slice.to = slice.to.max(from + slice.bytes.len() as u64);
        Ok(slice)
    }

    /// The streams of an attempt that have bytes or a known end.
    pub async fn log_streams(&self, id: AttemptId) -> Result<Vec<LogStream>, StoreError> {
        let during = "read where a log ends";
        let (job, attempt) = (id.job.uuid(), i64::from(id.attempt));
        let end: Option<EndRow> = read!(&self.inner.db, Kind, c => {
            sqlx::query_as(END).bind(job).bind(attempt).fetch_optional(c).await
        })
        .during(during)?;
        let rows: Vec<StreamEnd> = read!(&self.inner.db, Kind, c => {
            sqlx::query_as(STREAMS).bind(job).bind(attempt).fetch_all(c).await
        })
        .during(during)?;
        Ok(streams(&rows, end.and_then(|row| row.end_json).as_ref()))
    }

    /// Adds what of a chunk lies between the end of the slice and `until`.
    async fn add_chunk(
        &self,
        slice: &mut LogSlice,
        chunk: ChunkRow,
        until: u64,
    ) -> Result<(), StoreError> {
        let start = slice.from + slice.bytes.len() as u64;
        // Chunks have no holes between them, so the next one begins at or before `start`.
        let skip = start.saturating_sub(chunk.from_byte);
        let len = (chunk.from_byte + chunk.len).min(until).saturating_sub(chunk.from_byte + skip);
        let bytes = match (chunk.body, chunk.segment_id, chunk.segment_from) {
            (Some(body), ..) => cut(&body, skip, len).to_vec(),
            (None, Some(segment), Some(at)) => {
                self.inner.segments.read(Place { segment, from: at + skip, len }).await?
            }
            (None, ..) => {
                let why = "a chunk has neither bytes nor a place".to_owned();
                return Err(StoreError::Corrupt { what: "log", why });
            }
        };
        slice.bytes.extend(bytes);
        let (from, to) = (start, start + len);
        let cover = chunk.marks.iter().rev().find(|mark| mark.0 <= from).copied();
        let inside = chunk.marks.iter().filter(|mark| mark.0 > from && mark.0 < to);
        slice.marks.extend(cover.into_iter().chain(inside.copied()));
        Ok(())
    }
}

fn cut(bytes: &[u8], skip: u64, len: u64) -> &[u8] {
    let skip = usize::try_from(skip).unwrap_or(usize::MAX).min(bytes.len());
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(bytes.len() - skip);
    &bytes[skip..skip + len]
}

fn offset(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn streams(rows: &[StreamEnd], end: Option<&End>) -> Vec<LogStream> {
    let mut numbers: Vec<u32> = rows.iter().map(|row| row.stream).collect();
    if let Some(end) = end {
        numbers.extend(end.ends.keys());
        // A stream may be torn before its first byte.
        numbers.extend(&end.torn);
    }
    numbers.sort_unstable();
    numbers.dedup();
    numbers
        .into_iter()
        .map(|stream| {
            let to = rows.iter().find(|row| row.stream == stream).map_or(0, |row| row.to_byte);
            let torn = end.is_some_and(|end| end.torn.contains(&stream));
            let known = end.and_then(|end| end.ends.get(&stream).copied()).or(torn.then_some(0));
            LogStream { stream, to, end: known, complete: known.is_some_and(|end| to >= end), torn }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use shuntyard_protocol::{Outcome, Timestamp};

    use super::*;

    #[test]
    fn a_stream_that_is_torn_before_its_first_byte_is_shown_as_torn() {
        let end = End {
            at: Timestamp(1),
            outcome: Outcome::Lost,
            reason: None,
            outputs: None,
            ends: BTreeMap::from([(1, 5)]),
            torn: vec![2],
        };
        let found = streams(&[StreamEnd { stream: 1, to_byte: 5 }], Some(&end));
        let found: Vec<_> =
            found.iter().map(|s| (s.stream, s.to, s.end, s.complete, s.torn)).collect();
        assert_eq!(found, [(1, 5, Some(5), true, false), (2, 0, Some(0), true, true)]);
    }
}
