//! Frames on pipes and Unix sockets, and what a supervisor and its agent say to each other.
//!
//! A supervisor may be older or younger than its agent by one release: fields are only added, and
//! only as optional ones, and an unknown frame is skipped.

use std::{collections::BTreeMap, io, os::unix::net::UnixListener, path::Path};

use futures_util::{SinkExt as _, StreamExt as _};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use shuntyard_protocol::{
    agent::{AttemptKey, FromAgent, Timers, ToAgent},
    frame::{self, FRAME_BYTES_MAX},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};
use tokio_util::{
    bytes::{Bytes, BytesMut},
    codec::{FramedRead, FramedWrite, LengthDelimitedCodec},
};

/// From a supervisor (or whoever sends a dead one's spool) to the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromSupervisor {
    /// First frame.
    Hello {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<AttemptKey>,
        /// Holds a slot.
        running: bool,
    },
    /// For the coordinator; dropped when `link` is not the current one. Log bytes are the payload.
    Up { link: u64, frame: FromAgent },
    /// The commands have ended: the slot is free.
    Idle {},
    /// Nothing is left to send: this is the last frame.
    Done {},
    #[serde(other)]
    Unknown,
}

/// From the agent to a supervisor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToSupervisor {
    /// There is a link to a coordinator, which has this much.
    Online(Online),
    Offline {},
    /// From the coordinator.
    Down {
        frame: ToAgent,
    },
    /// The agent's user wants everything to end.
    CancelAll {
        grace_ms: u64,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Online {
    /// Counts the agent's links; unique over the agent's restarts.
    pub link: u64,
    pub timers: Timers,
    /// Coordinator's time minus this host's.
    pub offset_ms: i64,
    #[serde(deserialize_with = "shuntyard_protocol::offsets::deserialize")]
    pub log: BTreeMap<u32, u64>,
    pub facts: u64,
    /// Only what is in the spool is still wanted.
    #[serde(default)]
    pub finish: bool,
}

pub(crate) type Reader<R> = FramedRead<R, LengthDelimitedCodec>;
pub(crate) type Writer<W> = FramedWrite<W, LengthDelimitedCodec>;

fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(FRAME_BYTES_MAX).new_codec()
}

pub(crate) fn reader<R: AsyncRead>(inner: R) -> Reader<R> {
    FramedRead::new(inner, codec())
}

pub(crate) fn writer<W: AsyncWrite>(inner: W) -> Writer<W> {
    FramedWrite::new(inner, codec())
}

fn invalid(error: frame::FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The next frame, or nothing at the end of the stream. Safe to drop half way.
pub(crate) async fn receive<H: DeserializeOwned, R: AsyncRead + Unpin>(
    reader: &mut Reader<R>,
) -> io::Result<Option<(H, Bytes)>> {
    let Some(bytes) = reader.next().await.transpose()? else { return Ok(None) };
    let (header, payload) = frame::decode(&bytes).map_err(invalid)?;
    let at = bytes.len() - payload.len();
    Ok(Some((header, BytesMut::freeze(bytes).slice(at..))))
}

/// Sends a frame and flushes.
pub(crate) async fn send<H: Serialize, W: AsyncWrite + Unpin>(
    writer: &mut Writer<W>,
    header: &H,
    payload: &[u8],
) -> io::Result<()> {
    let bytes = frame::encode(header, payload).map_err(invalid)?;
    writer.send(Bytes::from(bytes)).await
}

/// Name of a supervisor's socket in its directory.
const SOCKET: &str = "s";

/// A path to `dir` that fits into a socket address, however long the real one is.
fn short_path(dir: &std::fs::File) -> std::path::PathBuf {
    use std::os::fd::AsRawFd as _;
    format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd()).into()
}

/// Listens in an attempt's directory; the listener does not block.
pub(crate) fn listen(dir: &Path) -> io::Result<UnixListener> {
    let opened = std::fs::File::open(dir)?;
    match std::fs::remove_file(dir.join(SOCKET)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(short_path(&opened))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Connects to the supervisor of an attempt's directory.
pub(crate) async fn connect(dir: &Path) -> io::Result<UnixStream> {
    let opened = std::fs::File::open(dir)?;
    UnixStream::connect(short_path(&opened)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded with the first release: they must be read for ever.
    #[test]
    fn frames_of_the_first_release_are_read() {
        let from = [
            r#"{"type":"hello","key":"aa","running":true}"#,
            r#"{"type":"up","link":7,"frame":{"type":"renew","renewals":[]}}"#,
            r#"{"type":"idle"}"#,
            r#"{"type":"done"}"#,
        ];
        for text in from {
            let frame: FromSupervisor = serde_json::from_str(text).unwrap();
            assert_ne!(frame, FromSupervisor::Unknown);
            assert_eq!(serde_json::to_string(&frame).unwrap(), text);
        }
        let to = [
            r#"{"type":"online","link":7,"timers":{"renew_ms":1,"fence_term_ms":2,"fence_kill_ms":1,"reservation_ms":9},"offset_ms":-3,"log":{"0":5},"facts":2,"finish":false}"#,
            r#"{"type":"offline"}"#,
            r#"{"type":"cancel_all","grace_ms":5000}"#,
        ];
        for text in to {
            let frame: ToSupervisor = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&frame).unwrap(), text);
        }
    }

    #[test]
    fn a_frame_of_a_later_release_is_skipped() {
        let frame: FromSupervisor = serde_json::from_str(r#"{"type":"new","x":1}"#).unwrap();
        assert_eq!(frame, FromSupervisor::Unknown);
    }
}
