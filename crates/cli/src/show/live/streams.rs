//! Log streams as they come in pieces, put together to lines.

use std::collections::BTreeMap;

use shuntyard_protocol::{JobId, Timestamp, agent::Mark};

use super::{Chunk, Line, Lines, text::visible};

/// Longest line that is put together for display, in bytes.
const LINE_BYTES_MAX: usize = 16 * 1024;

/// The ends of streams that are no whole lines yet, by job, attempt and stream.
#[derive(Default)]
pub(super) struct Streams(BTreeMap<(JobId, u32, u32), Partial>);

#[derive(Default)]
struct Partial {
    bytes: Vec<u8>,
    /// When the first of them was read.
    at: Timestamp,
}

impl Streams {
    /// The whole lines that a chunk completes.
    pub(super) fn add(&mut self, chunk: &Chunk) -> Lines {
        let partial = self.0.entry((chunk.job, chunk.attempt, chunk.stream)).or_default();
        Lines { job: chunk.job, stream: chunk.stream, whole: partial.add(chunk) }
    }

    /// What was left without a line feed.
    pub(super) fn take_rest(&mut self) -> Vec<Lines> {
        let rest = std::mem::take(&mut self.0).into_iter();
        let rest = rest.filter(|(_, partial)| !partial.bytes.is_empty());
        rest.map(|((job, _, stream), Partial { bytes, at })| {
            let lines = vec![Line { at, text: visible(&bytes) }];
            Lines { job, stream, whole: lines }
        })
        .collect()
    }
}

impl Partial {
    /// A very long line is cut into pieces.
    fn add(&mut self, chunk: &Chunk) -> Vec<Line> {
        let known = self.bytes.len();
        if known == 0 {
            self.at = time_at(&chunk.marks, chunk.from);
        }
        self.bytes.extend_from_slice(&chunk.bytes);
        let mut lines = Vec::new();
        let mut start = 0;
        while let Some((len, end)) = next_line(&self.bytes[start..]) {
            lines.push(Line { at: self.at, text: visible(&self.bytes[start..start + len]) });
            start += end;
            let fresh = start.saturating_sub(known) as u64;
            self.at = time_at(&chunk.marks, chunk.from + fresh);
        }
        self.bytes.drain(..start);
        lines
    }
}

/// Length of the first line, and where the one after it begins.
fn next_line(bytes: &[u8]) -> Option<(usize, usize)> {
    match bytes.iter().position(|&b| b == b'\n') {
        Some(end) => Some((end, end + 1)),
        None => (bytes.len() > LINE_BYTES_MAX).then_some((LINE_BYTES_MAX, LINE_BYTES_MAX)),
    }
}

/// When a byte was read: each mark holds until the next one.
fn time_at(marks: &[Mark], offset: u64) -> Timestamp {
    let after = marks.partition_point(|mark| mark.0 <= offset);
    marks.get(after.saturating_sub(1)).map_or(Timestamp::default(), |mark| mark.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(from: u64, bytes: &[u8], marks: &[(u64, i64)]) -> Chunk {
        let marks = marks.iter().map(|&(from, at)| Mark(from, Timestamp(at))).collect();
        let job = JobId::mint(Timestamp(0), [0; 10]);
        Chunk { job, attempt: 1, stream: 1, from, bytes: bytes.to_vec(), marks }
    }

    fn texts(lines: &[Line]) -> Vec<(i64, &str)> {
        lines.iter().map(|line| (line.at.0, line.text.as_str())).collect()
    }

    #[test]
    fn lines_are_put_together_across_chunks_and_have_the_time_of_their_first_byte() {
        let mut streams = Streams::default();
        assert!(streams.add(&chunk(0, b"ab", &[(0, 1)])).whole.is_empty());
        let lines = streams.add(&chunk(2, b"c\r\nd\xff\n10%\r20%\nx", &[(2, 2), (8, 3), (16, 4)]));
        assert_eq!(texts(&lines.whole), [(1, "abc"), (2, "d\u{fffd}"), (3, "20%")]);
        let rest = streams.take_rest();
        assert_eq!(texts(&rest[0].whole), [(4, "x")]);
        assert!(streams.take_rest().is_empty());
    }

    #[test]
    fn a_line_above_line_bytes_max_is_cut() {
        let mut streams = Streams::default();
        let longest = vec![b'x'; LINE_BYTES_MAX];
        assert!(streams.add(&chunk(0, &longest, &[(0, 1)])).whole.is_empty());
        let lines = streams.add(&chunk(LINE_BYTES_MAX as u64, b"y", &[(0, 1)]));
        assert_eq!(texts(&lines.whole), [(1, "x".repeat(LINE_BYTES_MAX).as_str())]);
        assert_eq!(texts(&streams.take_rest()[0].whole), [(1, "y")]);
    }
}
