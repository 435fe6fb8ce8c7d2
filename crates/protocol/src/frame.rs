//! Framing: a JSON header and raw bytes behind it.
//!
//! `[header length, u32 big endian][header, JSON][payload]`. Log bytes travel as the payload, so
//! they are neither escaped nor copied into text. On a WebSocket one binary message is one frame;
//! on a pipe or Unix socket a u32 with the frame's length goes before it.

use serde::{Serialize, de::DeserializeOwned};

/// Largest frame, header and payload together. Both sides refuse a longer one unread.
pub const FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most log bytes that one frame carries.
pub const LOG_PAYLOAD_BYTES_MAX: usize = 256 * 1024;

const LENGTH_BYTES: usize = 4;

/// What is wrong with a frame. Whoever sent it is not to be trusted further.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("frame of {bytes} bytes is above the limit of {FRAME_BYTES_MAX}")]
    TooLong { bytes: usize },
    #[error("frame ends inside its header")]
    Truncated,
    #[error("frame header is not valid")]
    Header(#[source] serde_json::Error),
}

/// The bytes of one frame.
pub fn encode<H: Serialize>(header: &H, payload: &[u8]) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut bytes, header).map_err(FrameError::Header)?;
    let header_len = bytes.len() - LENGTH_BYTES;
    let total = bytes.len() + payload.len();
    if total > FRAME_BYTES_MAX {
        return Err(FrameError::TooLong { bytes: total });
    }
    let header_len = u32::try_from(header_len).map_err(|_| FrameError::TooLong { bytes: total })?;
    bytes[..LENGTH_BYTES].copy_from_slice(&header_len.to_be_bytes());
    bytes.extend_from_slice(payload);
    Ok(bytes)
}

/// Header and payload of one frame.
pub fn decode<H: DeserializeOwned>(bytes: &[u8]) -> Result<(H, &[u8]), FrameError> {
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(FrameError::TooLong { bytes: bytes.len() });
    }
    let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>().ok_or(FrameError::Truncated)?;
    let length = u32::from_be_bytes(*length) as usize;
    if length > rest.len() {
        return Err(FrameError::Truncated);
    }
    let (header, payload) = rest.split_at(length);
    Ok((serde_json::from_slice(header).map_err(FrameError::Header)?, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_bytes_survive_untouched() {
        let bytes = encode(&7u8, b"\xff\0\r\n").unwrap();
        assert_eq!(decode::<u8>(&bytes).unwrap(), (7, &b"\xff\0\r\n"[..]));
    }

    #[test]
    fn a_frame_at_the_limit_passes_and_one_byte_more_is_refused() {
        let room = FRAME_BYTES_MAX - LENGTH_BYTES - 1;
        let bytes = encode(&7u8, &vec![0; room]).unwrap();
        assert_eq!(bytes.len(), FRAME_BYTES_MAX);
        assert!(decode::<u8>(&bytes).is_ok());
        assert!(matches!(encode(&7u8, &vec![0; room + 1]), Err(FrameError::TooLong { .. })));
        let longer = [bytes, vec![0]].concat();
        assert!(matches!(decode::<u8>(&longer), Err(FrameError::TooLong { .. })));
    }

    #[test]
    fn cut_and_garbled_frames_are_errors() {
        let bytes = encode(&"text", b"").unwrap();
        for end in 0..bytes.len() {
            assert!(decode::<String>(&bytes[..end]).is_err(), "{end}");
        }
        assert!(decode::<u8>(&[0xff; 64]).is_err());
        assert!(decode::<u8>(&[0, 0, 0, 1, b'{']).is_err());
    }
}
