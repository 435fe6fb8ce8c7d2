//! One command of a step: its process group, its output, its end.

use std::{
    collections::BTreeMap,
    io,
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{host::Output, tasks};

/// Most bytes of each of stdout and stderr that a script can read; all of them are logged.
pub(super) const CAPTURE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes that one read takes.
const READ_BYTES: usize = 64 * 1024;
/// How long output may still come when the command has ended: a child that it left behind may
/// hold the pipe open for good.
const DRAIN: Duration = Duration::from_millis(250);
/// Time between the polite signal and the kill, at a timeout of the command itself.
const TIMEOUT_GRACE: Duration = Duration::from_secs(5);

const BASH: [&str; 6] = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"];
const SH: [&str; 3] = ["sh", "-e", "-c"];

/// What to run.
#[derive(Debug)]
pub(super) struct Spec {
    pub(super) script: String,
    /// Relative to the workspace; empty for the workspace itself.
    pub(super) cwd: String,
    pub(super) env: BTreeMap<String, String>,
    pub(super) quiet: bool,
    pub(super) timeout: Option<Duration>,
}

/// How far a command is to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stop {
    No,
    /// The supervisor asks, and decides itself how long it waits.
    Ask,
    /// The step is over: asked now, killed a little later.
    End,
    Kill,
}

/// How a command ended.
#[derive(Debug, Default)]
pub(super) struct Exit {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    /// Some of the output was not kept.
    pub(super) truncated: bool,
    /// 128 + n for signal n.
    pub(super) code: i32,
    /// `SIGTERM`
    pub(super) signal: Option<String>,
    pub(super) timed_out: bool,
    /// It could not be run.
    pub(super) problem: Option<String>,
}

#[derive(Debug, Default)]
struct Capture {
    bytes: Vec<u8>,
    truncated: bool,
}

/// Runs a command to its end.
pub(super) async fn run(
    step: u32,
    spec: Spec,
    output: Output,
    stop: watch::Receiver<Stop>,
) -> Exit {
    let mut child = match spawn(step, &spec, &output) {
        Ok(child) => child,
        Err(error) => {
            return Exit {
                code: 127,
                problem: Some(format!("cannot run a shell: {error}")),
                ..Exit::default()
            };
        }
    };
    let log = (!spec.quiet).then_some(output);
    let (stdout, out) = pump(step, child.stdout.take(), log.clone());
    let (stderr, err) = pump(step, child.stderr.take(), log);
    let (status, timed_out) = wait(&mut child, spec.timeout, stop).await;
    // Whoever is left behind keeps writing to the log, but the script goes on.
    drop(timeout(DRAIN, async { tokio::join!(out, err) }).await);
    let (stdout, stderr) = (take(&stdout), take(&stderr));
    let truncated = stdout.truncated || stderr.truncated;
    let (stdout, stderr) = (stdout.bytes, stderr.bytes);
    match status {
        Ok(status) => {
            let signal = status.signal();
            let code = status.code().or(signal.map(|signal| 128 + signal)).unwrap_or(1);
            Exit {
                stdout,
                stderr,
                truncated,
                code,
                signal: signal.map(signal_name),
                timed_out,
                problem: None,
            }
        }
        Err(error) => Exit {
            code: 1,
            problem: Some(format!("cannot wait for the command: {error}")),
            ..Exit::default()
        },
    }
}

fn spawn(step: u32, spec: &Spec, output: &Output) -> io::Result<Child> {
    match start(&BASH, spec) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let child = start(&SH, spec)?;
            output.bytes(step, b"warning: there is no bash here; the command runs with sh -e\n");
            Ok(child)
        }
        started => started,
    }
}

fn start(shell: &[&str], spec: &Spec) -> io::Result<Child> {
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).arg(&spec.script);
    command.env_clear().envs(&spec.env).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if !spec.cwd.is_empty() {
        command.current_dir(&spec.cwd);
    }
    command.spawn()
}

/// Forwards one stream to the log and keeps what a script may read of it.
fn pump(
    step: u32,
    source: Option<impl AsyncRead + Unpin + Send + 'static>,
    log: Option<Output>,
) -> (Arc<Mutex<Capture>>, JoinHandle<()>) {
    let capture = Arc::<Mutex<Capture>>::default();
    let kept = capture.clone();
    let task = tasks::spawn(async move {
        let Some(mut source) = source else { return };
        let mut buffer = vec![0; READ_BYTES];
        while let Ok(count @ 1..) = source.read(&mut buffer).await {
            let bytes = &buffer[..count];
            if let Some(log) = &log {
                log.bytes(step, bytes);
            }
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            let room = (CAPTURE_BYTES_MAX - kept.bytes.len()).min(count);
            kept.bytes.extend_from_slice(&bytes[..room]);
            kept.truncated |= room < count;
        }
    });
    (capture, task)
}

fn take(capture: &Mutex<Capture>) -> Capture {
    std::mem::take(&mut *capture.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Waits for the end, and passes on what stops the command. True when it ran out of time.
async fn wait(
    child: &mut Child,
    limit: Option<Duration>,
    mut stop: watch::Receiver<Stop>,
) -> (io::Result<ExitStatus>, bool) {
    let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let send = |signal| {
        // A group that is gone needs no signal, so failing is fine.
        if let Some(Err(error)) = group.map(|group| kill_process_group(group, signal)) {
            tracing::debug!(%error, "signal not sent");
        }
    };
    let mut deadline = limit;
    let (mut timed_out, mut asked) = (false, false);
    loop {
        let due = async {
            match deadline {
                Some(delay) => sleep(delay).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            status = child.wait() => return (status, timed_out),
            () = due => {
                send(if asked { Signal::KILL } else { Signal::TERM });
                timed_out |= !asked;
                deadline = (!asked).then_some(TIMEOUT_GRACE);
                asked = true;
            }
            Ok(()) = stop.changed() => match *stop.borrow_and_update() {
                Stop::No => {}
                Stop::Ask => send(Signal::TERM),
                Stop::End => {
                    send(Signal::TERM);
                    deadline = Some(TIMEOUT_GRACE);
                    asked = true;
                }
                Stop::Kill => send(Signal::KILL),
            },
        }
    }
}

fn signal_name(number: i32) -> String {
    let known = [
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGQUIT, "SIGQUIT"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGALRM, "SIGALRM"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGXCPU, "SIGXCPU"),
    ];
    let name = known.iter().find(|(known, _)| *known == number);
    name.map_or_else(|| format!("signal {number}"), |(_, name)| (*name).to_owned())
}
