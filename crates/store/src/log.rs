//! Logs: byte streams of attempts, durable before they are acknowledged.
//!
//! A chunk is [from, to) of its stream. What is already there is trimmed away, what would leave a
//! hole is refused, so a stream never has one. The chunks of an attempt that is no longer current
//! complete its own log and touch nothing else. The first [`INLINE_BYTES_MAX`] of an attempt are
//! rows, in the same transaction as the facts of its job; the rest goes to append-only segments,
//! synced before the rows that point into them are committed.

use shuntyard_core::apply::KeyHash;
use shuntyard_protocol::agent::{AttemptId, Mark};

pub(crate) mod append;
pub(crate) mod read;
pub(crate) mod segment;

/// An attempt's logs are rows until they are longer than this, all streams together.
pub const INLINE_BYTES_MAX: u64 = 16 * 1024;
/// Longest chunk; a longer one must be cut by its sender.
pub const CHUNK_BYTES_MAX: usize = 256 * 1024;
/// Most marks of one chunk.
pub const CHUNK_MARKS_MAX: usize = 4096;

/// A stretch of a log stream to be stored.
#[derive(Clone, PartialEq, Eq)]
pub struct LogAppend {
    pub id: AttemptId,
    pub key_hash: KeyHash,
    pub stream: u32,
    /// Offset of the first byte.
    pub from: u64,
    /// When the bytes from each offset on were read.
    pub marks: Vec<Mark>,
    pub bytes: Vec<u8>,
}

impl LogAppend {
    /// Why it can never be stored, if it is too large.
    pub(crate) fn fault(&self) -> Option<String> {
        let (bytes, marks) = (self.bytes.len(), self.marks.len());
        (bytes > CHUNK_BYTES_MAX || marks > CHUNK_MARKS_MAX).then(|| {
            format!(
                "a chunk may have {CHUNK_BYTES_MAX} bytes and {CHUNK_MARKS_MAX} marks; \
                 this one has {bytes} and {marks}"
            )
        })
    }
}

/// What became of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogAnswer {
    /// Everything before `to` is durable.
    Acked { to: u64 },
    /// Bytes are missing; send again from `have`.
    Gap { have: u64 },
    /// The key is not the attempt's.
    Superseded,
    /// It cannot be stored; it changed nothing.
    Failed { reason: String },
}

/// A stretch of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSlice {
    pub from: u64,
    pub bytes: Vec<u8>,
    /// Marks that apply to these bytes; the first may lie before `from`.
    pub marks: Vec<Mark>,
    /// Everything before it is stored now.
    pub to: u64,
    /// Where the stream ends, once its attempt has said so.
    pub end: Option<u64>,
    /// All of it is stored.
    pub complete: bool,
    /// Its true end is unknown, because the supervisor died.
    pub torn: bool,
}

/// One stream of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogStream {
    pub stream: u32,
    /// Everything before it is stored.
    pub to: u64,
    pub end: Option<u64>,
    pub complete: bool,
    pub torn: bool,
}
