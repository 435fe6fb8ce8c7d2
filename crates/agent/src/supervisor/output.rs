//! From a command's pipe into the spool.

use std::{io, os::fd::OwnedFd, rc::Rc, time::Duration};

use tokio::{
    net::unix::pipe,
    task::{JoinHandle, spawn_local},
};
use tokio_util::sync::CancellationToken;

use super::core::{Core, Halt};
use crate::spool::RECORD_LOG_BYTES_MAX;

/// After the kill, how long what is still in the pipe may take to get into the spool. Only an
/// attempt that is ended has this limit: any other one waits for room.
const KILLED_DRAIN: Duration = Duration::from_secs(2);

/// Reads one command's output. Nobody reads while the spool is full, so the command waits.
pub(super) struct Pump {
    stream: u32,
    task: JoinHandle<()>,
    closing: CancellationToken,
}

impl Pump {
    pub(super) fn start(core: &Rc<Core>, stream: u32, pipe: OwnedFd) -> io::Result<Self> {
        let receiver = pipe::Receiver::from_owned_fd(pipe)?;
        let closing = CancellationToken::new();
        let task = spawn_local(pump(core.clone(), stream, receiver, closing.clone()));
        Ok(Self { stream, task, closing })
    }

    /// Waits until everything that the command wrote is in the spool. Call it when the command has
    /// ended: what somebody else writes into the pipe later is not waited for. What finds no room
    /// after a kill is lost, and the stream is marked.
    pub(super) async fn drain(mut self, core: &Core) {
        self.closing.cancel();
        let mut halts = core.halts();
        let killed = async {
            halts.wait_for(|halt| matches!(halt, Halt::Now { .. })).await.ok();
            tokio::time::sleep(KILLED_DRAIN).await;
        };
        tokio::select! {
            _ = &mut self.task => {}
            () = killed => {
                self.task.abort();
                core.tear(self.stream);
            }
        }
    }
}

async fn pump(core: Rc<Core>, stream: u32, receiver: pipe::Receiver, closing: CancellationToken) {
    let mut buffer = vec![0; RECORD_LOG_BYTES_MAX];
    loop {
        let closed = tokio::select! {
            biased;
            ready = receiver.readable() => ready.is_err(),
            () = closing.cancelled() => true,
        };
        match receiver.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => core.write(stream, &buffer[..count]).await,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !closed => {}
            Err(_) => return,
        }
    }
}
