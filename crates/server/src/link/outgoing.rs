//! Frames that wait for one agent: so many, and so many bytes.

use std::sync::Arc;

use shuntyard_protocol::frame::FRAME_BYTES_MAX;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Frames that may wait.
const FRAMES_MAX: usize = 1024;
/// Bytes that may wait of frames whose senders wait for room. A frame always fits when nothing else
/// waits.
const BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;

/// The senders' side.
#[derive(Clone)]
pub(super) struct Outgoing {
    frames: mpsc::Sender<(Vec<u8>, Option<OwnedSemaphorePermit>)>,
    bytes: Arc<Semaphore>,
}

/// The side of whoever writes to the agent.
pub(super) struct Queue(mpsc::Receiver<(Vec<u8>, Option<OwnedSemaphorePermit>)>);

/// The link is closing.
#[derive(Debug, thiserror::Error)]
#[error("the link is closing")]
pub(super) struct Closed;

impl Outgoing {
    pub(super) fn new() -> (Self, Queue) {
        let (frames, queue) = mpsc::channel(FRAMES_MAX);
        (Self { frames, bytes: Arc::new(Semaphore::new(BYTES_MAX)) }, Queue(queue))
    }

    /// Waits for room.
    pub(super) async fn send(&self, frame: Vec<u8>) -> Result<(), Closed> {
        // A slot comes first, so that nobody holds bytes without being able to send them.
        let slot = self.frames.reserve().await.map_err(|_| Closed)?;
        let permit = Arc::clone(&self.bytes).acquire_many_owned(len(&frame)).await;
        slot.send((frame, Some(permit.map_err(|_| Closed)?)));
        Ok(())
    }

    /// Whether there was room for a control frame. These are short, so only their number counts: a
    /// long frame that waits for its bytes must not keep them out.
    pub(super) fn try_send(&self, frame: Vec<u8>) -> bool {
        self.frames.try_send((frame, None)).is_ok()
    }
}

fn len(frame: &[u8]) -> u32 {
    u32::try_from(frame.len()).expect("a frame is shorter than 4 GiB")
}

impl Queue {
    /// The next frame. None: nobody is left to send one.
    pub(super) async fn next(&mut self) -> Option<Vec<u8>> {
        self.0.recv().await.map(|(frame, _)| frame)
    }

    /// A frame that is there already.
    pub(super) fn waiting(&mut self) -> Option<Vec<u8>> {
        self.0.try_recv().ok().map(|(frame, _)| frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_max_frames_wait_and_no_more() {
        let (outgoing, mut queue) = Outgoing::new();
        assert!((0..FRAMES_MAX).all(|_| outgoing.try_send(vec![0])));
        assert!(!outgoing.try_send(vec![0]));
        queue.next().await.unwrap();
        assert!(outgoing.try_send(vec![0]));
    }

    #[tokio::test]
    async fn bytes_max_bytes_wait_and_no_more() {
        let (outgoing, mut queue) = Outgoing::new();
        outgoing.send(vec![0; FRAME_BYTES_MAX]).await.unwrap();
        outgoing.send(vec![0; FRAME_BYTES_MAX - 1]).await.unwrap();
        assert!(futures_util::poll!(Box::pin(outgoing.send(vec![0; 2]))).is_pending());
        let edge = futures_util::poll!(Box::pin(outgoing.send(vec![0])));
        assert!(edge.is_ready(), "BYTES_MAX is the edge");
        assert!(futures_util::poll!(Box::pin(outgoing.send(vec![0]))).is_pending());
        let mut waiting = Box::pin(outgoing.send(vec![0; FRAME_BYTES_MAX]));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        assert!(outgoing.try_send(vec![0]), "a control frame does not wait for bytes");
        assert_eq!(queue.next().await.unwrap().len(), FRAME_BYTES_MAX);
        waiting.await.unwrap();
        drop(queue);
        assert!(outgoing.send(vec![0]).await.is_err());
    }
}
