//! Storing log chunks, inside the batch's transaction.

use std::collections::BTreeMap;

use shuntyard_core::{
    apply::Attempt,
    mutant::{self, Mutant},
};
use shuntyard_protocol::{
    Timestamp,
    agent::{AttemptId, Mark},
};

use super::{CHUNK_BYTES_MAX, INLINE_BYTES_MAX, LogAnswer, LogAppend, segment::Place};
use crate::{
    apply::portions,
    column::row,
    db::{Statement, Tx, cells, on},
    error::{During, StoreError},
    store::Inner,
};

row! {
    struct StreamRow {
        job_id: shuntyard_protocol::JobId,
        attempt: u32,
        stream: u32,
        to_byte: u64,
    }
}

/// A row to be written.
struct Piece {
    id: AttemptId,
    stream: u32,
    from: u64,
    bytes: Vec<u8>,
    marks: Vec<Mark>,
    inline: bool,
    place: Option<Place>,
}

impl Piece {
    fn to(&self) -> u64 {
        self.from + self.bytes.len() as u64
    }
}

/// Appends `logs` in order. `attempts` are the loaded rows, `log_bytes` what they have stored.
pub(crate) async fn append(
    tx: &mut Tx,
    inner: &Inner,
    logs: &[LogAppend],
    attempts: &BTreeMap<AttemptId, Attempt>,
    log_bytes: &mut BTreeMap<AttemptId, u64>,
    now: Timestamp,
) -> Result<Vec<LogAnswer>, StoreError> {
    if logs.is_empty() {
        return Ok(Vec::new());
    }
    let mut ends = stream_ends(tx, logs).await?;
    let before = ends.clone();
    let mut pieces = Vec::new();
    let answers =
        logs.iter().map(|log| take(log, attempts, &mut ends, log_bytes, &mut pieces)).collect();
    store_segments(tx, inner, &mut pieces, now).await?;
    insert_chunks(tx, &pieces).await?;
    ends.retain(|key, to| before.get(key) != Some(to));
    write_ends(tx, &ends).await?;
    let grown: BTreeMap<_, _> =
        ends.keys().map(|&(id, _)| (id, log_bytes.get(&id).copied().unwrap_or(0))).collect();
    write_sizes(tx, &grown).await?;
    Ok(answers)
}

/// Decides about one chunk: what of it is new becomes a piece.
fn take(
    log: &LogAppend,
    attempts: &BTreeMap<AttemptId, Attempt>,
    ends: &mut BTreeMap<(AttemptId, u32), u64>,
    log_bytes: &mut BTreeMap<AttemptId, u64>,
    pieces: &mut Vec<Piece>,
) -> LogAnswer {
    let Some(attempt) =
        attempts.get(&log.id).filter(|attempt| attempt.key_hash == Some(log.key_hash))
    else {
        return LogAnswer::Superseded;
    };
    if let Some(reason) = log.fault() {
        return LogAnswer::Failed { reason };
    }
    let end = ends.entry((log.id, log.stream)).or_insert(0);
    let have = *end;
    if log.from > have {
        return LogAnswer::Gap { have };
    }
    let limit = attempt.end.as_ref().and_then(|end| end.ends.get(&log.stream).copied());
    let skip = usize::try_from(have - log.from).unwrap_or(usize::MAX);
    let skip = if mutant::on(Mutant::KeepOverlap) { 0 } else { skip };
    let room = limit.map_or(u64::MAX, |limit| limit.saturating_sub(have));
    let fresh = log.bytes.get(skip..).unwrap_or_default();
    let fresh = &fresh[..fresh.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
    if fresh.is_empty() {
        return LogAnswer::Acked { to: have };
    }
    let total = log_bytes.entry(log.id).or_insert(0);
    *total += fresh.len() as u64;
    *end = have + fresh.len() as u64;
    let piece = Piece {
        id: log.id,
        stream: log.stream,
        from: have,
        bytes: fresh.to_vec(),
        marks: marks_from(&log.marks, have, *end),
        inline: *total <= INLINE_BYTES_MAX,
        place: None,
    };
    push(pieces, piece);
    LogAnswer::Acked { to: *end }
}

/// Adds a piece, joined to the one before it where that is the same stream's.
fn push(pieces: &mut Vec<Piece>, piece: Piece) {
    match pieces.last_mut() {
        Some(last)
            if (last.id, last.stream, last.inline, last.to())
                == (piece.id, piece.stream, piece.inline, piece.from)
                && last.bytes.len() + piece.bytes.len() <= CHUNK_BYTES_MAX =>
        {
            last.bytes.extend(piece.bytes);
            last.marks.extend(piece.marks);
        }
        Some(_) | None => pieces.push(piece),
    }
}

/// The marks of the bytes [from, to); the one that covers `from` moves there.
fn marks_from(marks: &[Mark], from: u64, to: u64) -> Vec<Mark> {
    let cover = marks.iter().rev().find(|mark| mark.0 <= from).map(|mark| Mark(from, mark.1));
    let inside = marks.iter().filter(|mark| mark.0 > from && mark.0 < to);
    cover.into_iter().chain(inside.copied()).collect()
}

async fn stream_ends(
    tx: &mut Tx,
    logs: &[LogAppend],
) -> Result<BTreeMap<(AttemptId, u32), u64>, StoreError> {
    let rows: Vec<StreamRow> = on!(tx, Db, c => {
        let mut q = Statement::<Db>::new("select t.* from");
        q.push_rows(logs, |log| cells![log.id.job, log.id.attempt, log.stream]);
        q.push(" cross join log_stream t where t.job_id = v.column1 \
            and t.attempt = v.column2 and t.stream = v.column3");
        q.done_as().fetch_all(c).await
    })
    .during("read where logs end")?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let id = AttemptId { job: row.job_id, attempt: row.attempt };
            ((id, row.stream), row.to_byte)
        })
        .collect())
}

/// Makes the bytes that do not go into rows durable, with one sync.
async fn store_segments(
    tx: &mut Tx,
    inner: &Inner,
    pieces: &mut [Piece],
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut large: Vec<&mut Piece> = pieces.iter_mut().filter(|piece| !piece.inline).collect();
    if large.is_empty() {
        return Ok(());
    }
    let bytes = large.iter().map(|piece| piece.bytes.clone()).collect();
    let places = inner.segments.append(bytes, now).await?;
    let mut segments: Vec<_> = places.iter().map(|place| place.segment).collect();
    segments.dedup();
    for (piece, place) in large.iter_mut().zip(places) {
        piece.place = Some(place);
    }
    for segment in segments {
        on!(tx, Db, c => sqlx::query(INSERT_SEGMENT).bind(segment.uuid())
            .bind(inner.instance.uuid()).bind(now.0).execute(c).await.map(drop))
        .during("note a log segment")?;
    }
    Ok(())
}

pub(crate) const INSERT_SEGMENT: &str = "insert into segment (id, instance_id, created_at) \
    values ($1, $2, $3) on conflict (id) do nothing";

async fn insert_chunks(tx: &mut Tx, pieces: &[Piece]) -> Result<(), StoreError> {
    for pieces in portions(pieces) {
        on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("insert into log_chunk (job_id, attempt, stream, \
                from_byte, len, body, segment_id, segment_from, marks) select v.* from");
            q.push_rows(pieces, |piece| {
                let marks = serde_json::to_string(&piece.marks).expect("numbers are JSON");
                cells![piece.id.job, piece.id.attempt, piece.stream, piece.from.cast_signed(), (piece.bytes.len() as u64).cast_signed(), piece.inline.then(|| piece.bytes.clone()), piece.place.map(|place| place.segment), piece.place.map(|place| place.from.cast_signed()), marks]});
            q.push(" where v.column1 is not null");
            q.done().execute(c).await.map(drop)
        })
        .during("write log chunks")?;
    }
    Ok(())
}

async fn write_ends(tx: &mut Tx, ends: &BTreeMap<(AttemptId, u32), u64>) -> Result<(), StoreError> {
    if ends.is_empty() {
        return Ok(());
    }
    let ends: Vec<_> = ends.iter().collect();
    on!(tx, Db, c => {
        let mut q = Statement::<Db>::new(
            "insert into log_stream (job_id, attempt, stream, to_byte) select v.* from");
        q.push_rows(&ends, |((id, stream), to)| cells![id.job, id.attempt, *stream, to.cast_signed()]);
        q.push(" where v.column1 is not null on conflict (job_id, attempt, stream) do update set to_byte = excluded.to_byte");
        q.done().execute(c).await.map(drop)
    })
    .during("write where logs end")
}

async fn write_sizes(tx: &mut Tx, sizes: &BTreeMap<AttemptId, u64>) -> Result<(), StoreError> {
    if sizes.is_empty() {
        return Ok(());
    }
    let sizes: Vec<_> = sizes.iter().collect();
    on!(tx, Db, c => {
        let mut q = Statement::<Db>::new("update attempt set log_bytes = v.column3 from");
        q.push_rows(&sizes, |(id, bytes)| cells![id.job, id.attempt, bytes.cast_signed()]);
        q.push(" where attempt.job_id = v.column1 and attempt.attempt = v.column2");
        q.done().execute(c).await.map(drop)
    })
    .during("write the size of logs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_follow_their_bytes() {
        let marks = [Mark(10, Timestamp(1)), Mark(20, Timestamp(2)), Mark(30, Timestamp(3))];
        assert_eq!(marks_from(&marks, 10, 40), marks);
        assert_eq!(
            marks_from(&marks, 25, 30),
            [Mark(25, Timestamp(2))],
            "the covering mark moves, one at the end belongs to the next chunk"
        );
        assert_eq!(marks_from(&[], 0, 5), []);
    }
}
