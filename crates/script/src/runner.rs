//! The engine child of an attempt: runs the functions of a job's steps.
//!
//! One engine, one event loop. Frames, ended commands and due timers come in; each is handed to
//! the script, then everything that became ready runs. The loop never waits for a script that
//! waits: a step is a promise. The child is contained from outside, by the supervisor, like any
//! command; when the supervisor goes, stdin ends, and so do the commands and the child.

mod commands;
mod files;
mod host;
mod job;
mod lend;
mod link;
mod outputs;
mod tasks;

use std::{process::ExitCode, time::Duration};

use shuntyard_protocol::runner::{FromRunner, ToRunner};
use tokio::{sync::mpsc, time::timeout};

use self::{
    host::{Event, Host},
    job::Job,
    link::Link,
};

/// Memory of the engine that runs a job's functions.
pub const RUN_MEMORY_BYTES_MAX: usize = 512 * 1024 * 1024;
/// How long killed commands may take to be gone.
const KILL_WAIT: Duration = Duration::from_secs(2);
/// Ended commands and due timers that wait for the script.
const EVENTS_CAPACITY: usize = 256;

/// Entry of the runner: frames of [`shuntyard_protocol::runner`] on stdin and stdout.
pub fn runner_child_main() -> ExitCode {
    let link = match Link::open() {
        Ok(link) => link,
        Err(error) => return crash("cannot set up the link to the supervisor", &error),
    };
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(run(link)),
        Err(error) => crash("cannot start the event loop", &error),
    }
}

#[expect(clippy::print_stderr, reason = "the stderr of this child is its crash report")]
fn crash(what: &str, error: &dyn std::error::Error) -> ExitCode {
    eprintln!("{what}: {error}");
    ExitCode::FAILURE
}

async fn run(mut link: Link) -> ExitCode {
    let (events, mut due) = mpsc::channel(EVENTS_CAPACITY);
    let host = Host::new(link.output(), events);
    let job = match link.frames.recv().await {
        Some((ToRunner::Load { file, workflow, job, context, needs }, payload)) => {
            let wanted = job::Wanted { file, workflow, job, context, needs };
            match Job::load(&payload, &wanted, &host, link.stop_watch()) {
                Ok(job) => job,
                Err(message) => {
                    host.send(&FromRunner::LoadFailed { message }, &[]);
                    return link.close();
                }
            }
        }
        Some(_) => return crash("the first frame", &std::io::Error::other("is not `load`")),
        None => return link.close(),
    };
    host.send(&FromRunner::Ready {}, &[]);
    loop {
        tokio::select! {
            frame = link.frames.recv() => match frame {
                Some((ToRunner::Step(step), _)) => job.start_step(&step),
                Some((ToRunner::Stop { step, force }, _)) => {
                    link.stop_seen();
                    job.stop_step(step, force);
                }
                Some((ToRunner::Load { .. }, _)) | None => break,
            },
            // The host holds a sender, so this end never closes.
            Some(event) = due.recv() => match event {
                Event::Ended { step, id, exit } => job.command_ended(step, id, &exit),
                Event::Timer { id } => job.timer_fired(id),
            },
        }
    }
    host.kill_commands();
    while host.is_running() {
        match timeout(KILL_WAIT, due.recv()).await {
            Ok(Some(Event::Ended { id, .. })) => host.command_ended(id),
            Ok(Some(Event::Timer { .. })) => {}
            Ok(None) | Err(_) => break,
        }
    }
    link.close()
}
