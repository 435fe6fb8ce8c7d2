//! The pipes to the supervisor.
//!
//! Reading and writing have a thread each, so that a script which blocks the loop does not keep a
//! stop from being seen, and a full pipe blocks only what wants to write. The descriptors 0 and 1
//! are taken away from everything else in the process.

use std::{
    fs::File,
    io::{self, Read, Write},
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use shuntyard_protocol::{
    frame::{self, FRAME_BYTES_MAX},
    runner::ToRunner,
};
use tokio::sync::mpsc;

use crate::{clock, engine::Interrupt};

/// Frames that wait to be handled.
const FRAMES_CAPACITY: usize = 16;
/// Frames that wait to be written; with the longest output frame this is 4 MiB.
const WRITES_CAPACITY: usize = 64;
/// How long a script may go on without yielding once a stop has arrived.
const STOP_PATIENCE: Duration = Duration::from_secs(1);

/// What no frame looks like: the writer ends. Host functions hold senders as long as the process
/// lives, so the queue never closes by itself.
const END: Vec<u8> = Vec::new();

/// When the oldest stop arrived that the loop has not seen yet.
type StopAt = Arc<Mutex<Option<Instant>>>;

pub(super) struct Link {
    pub(super) frames: mpsc::Receiver<(ToRunner, Vec<u8>)>,
    writes: SyncSender<Vec<u8>>,
    writer: JoinHandle<()>,
    stop_at: StopAt,
}

impl Link {
    pub(super) fn open() -> io::Result<Self> {
        let input = File::from(rustix::io::dup(io::stdin())?);
        let output = File::from(rustix::io::dup(io::stdout())?);
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        rustix::stdio::dup2_stdout(io::stderr())?;
        for file in [&input, &output] {
            rustix::io::fcntl_setfd(file, rustix::io::FdFlags::CLOEXEC)?;
        }
        let (sender, frames) = mpsc::channel(FRAMES_CAPACITY);
        let (writes, queue) = sync_channel(WRITES_CAPACITY);
        let stop_at = StopAt::default();
        let seen = stop_at.clone();
        thread::Builder::new()
            .name("frames in".to_owned())
            .spawn(move || read(input, &sender, &seen))?;
        let writer = thread::Builder::new()
            .name("frames out".to_owned())
            .spawn(move || write(output, &queue))?;
        Ok(Self { frames, writes, writer, stop_at })
    }

    pub(super) fn output(&self) -> SyncSender<Vec<u8>> {
        self.writes.clone()
    }

    /// Interrupts a script that does not yield although a stop waits.
    pub(super) fn stop_watch(&self) -> Interrupt {
        let stop_at = self.stop_at.clone();
        Box::new(move || {
            let since = *stop_at.lock().unwrap_or_else(PoisonError::into_inner);
            since.is_some_and(|since| clock::now().duration_since(since) > STOP_PATIENCE)
        })
    }

    pub(super) fn stop_seen(&self) {
        *self.stop_at.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Writes what is queued and ends.
    pub(super) fn close(self) -> ExitCode {
        // The writer is gone already when nobody reads any more.
        drop(self.writes.send(END));
        if self.writer.join().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn read(mut input: File, frames: &mpsc::Sender<(ToRunner, Vec<u8>)>, stop_at: &StopAt) {
    while let Ok(bytes) = read_frame(&mut input) {
        let Ok((header, payload)) = frame::decode::<ToRunner>(&bytes) else { break };
        if let ToRunner::Stop { .. } = header {
            let mut at = stop_at.lock().unwrap_or_else(PoisonError::into_inner);
            at.get_or_insert_with(clock::now);
        }
        if frames.blocking_send((header, payload.to_vec())).is_err() {
            break;
        }
    }
}

fn read_frame(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other("frame is too long"));
    }
    let mut bytes = vec![0; length];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn write(mut output: File, queue: &Receiver<Vec<u8>>) {
    for bytes in queue {
        if bytes.is_empty() || output.write_all(&bytes).is_err() {
            break;
        }
    }
}
