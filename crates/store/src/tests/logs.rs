use shuntyard_core::apply::Fact;
use shuntyard_protocol::{
    Outcome, Timestamp,
    agent::{AttemptFact, AttemptId, Mark},
};

use super::world::{RELEASE, World, end, history, key};
use crate::{CHUNK_BYTES_MAX, CHUNK_MARKS_MAX, INLINE_BYTES_MAX, LogAnswer, LogAppend};

fn chunk(id: AttemptId, stream: u32, from: u64, bytes: &[u8]) -> LogAppend {
    let marks = vec![Mark(from, Timestamp(from.cast_signed()))];
    LogAppend { id, key_hash: key(id), stream, from, marks, bytes: bytes.to_vec() }
}

async fn append(w: &World, chunk: LogAppend) -> LogAnswer {
    w.store.append_log(chunk).await.unwrap()
}

async fn started(w: &World) -> AttemptId {
    w.run(&[("a", &[])]).await;
    w.start_all().await["a"]
}

pub(super) async fn bytes_survive_whatever_they_are(w: &World) {
    let id = started(w).await;
    let bytes: Vec<u8> = (0..=255).chain([0, 0xff, 0xfe, b'\r', 0x1b]).collect();
    let to = bytes.len() as u64;
    assert_eq!(append(w, chunk(id, 3, 0, &bytes)).await, LogAnswer::Acked { to });
    let slice = w.store.log_read(id, 3, 0, 1000).await.unwrap();
    assert_eq!((slice.bytes, slice.to, slice.end), (bytes, to, None));
    let mut wrong = chunk(id, 3, to, b"x");
    wrong.key_hash = [0; 32];
    assert_eq!(append(w, wrong).await, LogAnswer::Superseded);
    let unknown = AttemptId { job: id.job, attempt: 9 };
    assert_eq!(append(w, chunk(unknown, 0, 0, b"x")).await, LogAnswer::Superseded);
    let long = append(w, chunk(id, 3, to, &vec![b'x'; CHUNK_BYTES_MAX + 1])).await;
    assert!(matches!(long, LogAnswer::Failed { .. }));
    let mut marked = chunk(id, 3, to, b"x");
    marked.marks = vec![Mark(to, Timestamp(1)); CHUNK_MARKS_MAX + 1];
    let answers = w.store.append_logs(vec![marked.clone()], w.now()).await.unwrap();
    assert!(matches!(answers[0], LogAnswer::Failed { .. }));
    marked.marks.pop();
    assert_eq!(append(w, marked).await, LogAnswer::Acked { to: to + 1 });
    let most = append(w, chunk(id, 4, 0, &vec![b'x'; CHUNK_BYTES_MAX])).await;
    assert_eq!(most, LogAnswer::Acked { to: CHUNK_BYTES_MAX as u64 });
}

pub(super) async fn overlap_is_trimmed_and_gaps_are_refused(w: &World) {
    let id = started(w).await;
    assert_eq!(append(w, chunk(id, 0, 1, b"x")).await, LogAnswer::Gap { have: 0 });
    let chunks = vec![
        chunk(id, 0, 0, b"hello"),
        chunk(id, 0, 3, b"lo world"),
        chunk(id, 0, 0, b"hell"),
        chunk(id, 0, 12, b"!"),
        chunk(id, 1, 0, b"other"),
        chunk(id, 0, 11, b"!"),
    ];
    let answers = w.store.append_logs(chunks, w.now()).await.unwrap();
    assert_eq!(
        answers,
        [
            LogAnswer::Acked { to: 5 },
            LogAnswer::Acked { to: 11 },
            LogAnswer::Acked { to: 11 },
            LogAnswer::Gap { have: 11 },
            LogAnswer::Acked { to: 5 },
            LogAnswer::Acked { to: 12 },
        ]
    );
    let slice = w.store.log_read(id, 0, 2, 7).await.unwrap();
    assert_eq!(slice.bytes, b"llo wor");
    assert_eq!((slice.from, slice.to), (2, 12));
    assert_eq!(slice.marks, [Mark(0, Timestamp(0)), Mark(5, Timestamp(3))]);
    let streams = w.store.log_streams(id).await.unwrap();
    let ends: Vec<_> = streams.iter().map(|s| (s.stream, s.to, s.complete)).collect();
    assert_eq!(ends, [(0, 12, false), (1, 5, false)]);
}

pub(super) async fn long_logs_go_to_segments_and_read_back(w: &World) {
    let id = started(w).await;
    let piece = usize::try_from(INLINE_BYTES_MAX / 2).unwrap();
    let body: Vec<u8> = (0..piece * 7).map(|n| u8::try_from(n * 31 % 251).unwrap()).collect();
    for (n, bytes) in body.chunks(piece).enumerate() {
        let from = (n * piece) as u64;
        let to = from + bytes.len() as u64;
        assert_eq!(append(w, chunk(id, 1, from, bytes)).await, LogAnswer::Acked { to });
    }
    let all = w.store.log_read(id, 1, 0, u32::MAX).await.unwrap();
    assert_eq!(all.bytes, body);
    assert_eq!(all.marks.len(), 7);
    for (from, len) in [(0, 10), (piece - 3, 6), (2 * piece - 3, 6), (3 * piece - 1, piece + 2)] {
        let slice =
            w.store.log_read(id, 1, from as u64, u32::try_from(len).unwrap()).await.unwrap();
        assert_eq!(slice.bytes, body[from..from + len], "{from} {len}");
    }
    let after = w.store.log_read(id, 1, body.len() as u64, 10).await.unwrap();
    assert_eq!((after.bytes.len(), after.to), (0, body.len() as u64));
    let attempt = &w.store.attempts_of(id.job).await.unwrap()[0];
    assert_eq!(attempt.log_bytes, body.len() as u64);
}

/// Numbers that look random and are the same in every run.
fn numbers() -> impl FnMut(usize) -> usize {
    let mut state = 12_345_u64;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(state >> 33).unwrap() % below
    }
}

pub(super) async fn whatever_is_sent_how_often_the_log_is_whole(w: &World) {
    let id = started(w).await;
    let mut number = numbers();
    let body: Vec<u8> = (0..40_000).map(|n| u8::try_from(n * 7 % 256).unwrap()).collect();
    let mut acked = 0;
    while acked < body.len() {
        // Stretches begin somewhere near the acknowledged end, and come in batches.
        let chunks: Vec<LogAppend> = (0..=number(5))
            .map(|_| {
                let from = (acked + number(1500)).saturating_sub(number(1500)).min(body.len());
                let to = (from + number(3000)).min(body.len());
                chunk(id, 0, from as u64, &body[from..to])
            })
            .collect();
        for answer in w.store.append_logs(chunks, w.now()).await.unwrap() {
            if let LogAnswer::Acked { to } = answer {
                let to = usize::try_from(to).unwrap();
                assert!(to >= acked, "an acknowledgement never goes back");
                acked = to;
            }
        }
    }
    let mut read = Vec::new();
    while read.len() < body.len() {
        let len = u32::try_from(1 + number(5000)).unwrap();
        let slice = w.store.log_read(id, 0, read.len() as u64, len).await.unwrap();
        assert!(!slice.marks.is_empty() && slice.marks[0].0 <= slice.from);
        read.extend(slice.bytes);
    }
    assert_eq!(read, body);
}

pub(super) async fn an_old_attempt_completes_its_own_log(w: &World) {
    let id = started(w).await;
    append(w, chunk(id, 0, 0, b"one ")).await;
    w.pass(RELEASE);
    w.apply(Fact::Lost { id, contained: true }).await;
    assert_eq!(append(w, chunk(id, 0, 4, b"two")).await, LogAnswer::Acked { to: 7 });
    let job = w.store.job(id.job).await.unwrap().unwrap();
    assert_eq!(job.state.as_str(), "lost");
    assert_eq!(w.store.log_read(id, 0, 0, 100).await.unwrap().bytes, b"one two");
}

pub(super) async fn the_end_of_a_stream_is_known(w: &World) {
    let id = started(w).await;
    append(w, chunk(id, 1, 0, b"abc")).await;
    let mut end = end(Outcome::Success);
    end.ends.extend([(1, 5), (2, 0)]);
    end.torn.push(2);
    w.apply(history(id, 1, AttemptFact::Ended(end))).await;
    let slice = w.store.log_read(id, 1, 0, 100).await.unwrap();
    assert_eq!((slice.to, slice.end, slice.complete), (3, Some(5), false));
    assert_eq!(append(w, chunk(id, 1, 3, b"defg")).await, LogAnswer::Acked { to: 5 });
    let slice = w.store.log_read(id, 1, 0, 100).await.unwrap();
    assert_eq!((&slice.bytes[..], slice.complete, slice.torn), (&b"abcde"[..], true, false));
    let streams = w.store.log_streams(id).await.unwrap();
    assert_eq!((streams[1].stream, streams[1].complete, streams[1].torn), (2, true, true));
}
