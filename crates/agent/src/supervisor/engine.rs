//! The engine child, which runs the job's functions: one process per attempt, treated like any
//! command. Its death fails the steps that it runs, and the next one that needs it.

use std::{cell::RefCell, collections::BTreeMap, process::Stdio, rc::Rc, time::Duration};

use rustix::process::Signal;
use shuntyard_protocol::runner::{FromRunner, RunStep, StepDone, ToRunner};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::{Mutex, mpsc},
    task::{JoinHandle, spawn_local},
};
use tokio_util::bytes::Bytes;

use super::{
    core::Core,
    step::{Failure, Stop, Tried, stream_of},
};
use crate::{sandbox, wire};

/// Frames of one step that wait for the spool.
const FRAMES_WAITING: usize = 16;
/// Of the child's stderr, the end is kept: it is a crash report.
const STDERR_BYTES_MAX: usize = 8 * 1024;
/// After the forced stop, before the child is killed as deaf.
const DEAF: Duration = Duration::from_secs(2);

type Frame = (FromRunner, Bytes);
type Routes = Rc<RefCell<BTreeMap<u32, mpsc::Sender<Frame>>>>;

/// The child after it has loaded the workflow file.
pub(super) struct Engine {
    pid: i32,
    stdin: Mutex<wire::Writer<ChildStdin>>,
    routes: Routes,
    /// Ends with the child; then says how.
    end: RefCell<Option<JoinHandle<String>>>,
    ended: RefCell<Option<String>>,
}

/// What functions do besides output.
pub(super) trait Effects {
    fn set_env(&self, name: String, value: String);
    fn add_path(&self, path: String);
}

impl Engine {
    /// Starts the child and lets it load the workflow file. The error is for people.
    pub(super) async fn start(
        mut command: Command,
        load: &ToRunner,
        folder: &[u8],
        entered: impl FnOnce(i32),
    ) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        let failed = |error: std::io::Error| {
            format!("cannot start the process that runs this job's functions: {error}")
        };
        let mut child = command.spawn().map_err(failed)?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0);
        entered(pid);
        let stdin = child.stdin.take().expect("stdin is a pipe");
        let stdout = child.stdout.take().expect("stdout is a pipe");
        let stderr = child.stderr.take().expect("stderr is a pipe");
        let mut writer = wire::writer(stdin);
        let mut reader = wire::reader(stdout);
        let tail = spawn_local(tail(stderr));
        let loaded = async {
            wire::send(&mut writer, load, folder).await?;
            wire::receive::<FromRunner, _>(&mut reader).await
        };
        match loaded.await {
            Ok(Some((FromRunner::Ready {}, _))) => {}
            Ok(Some((FromRunner::LoadFailed { message }, _))) => return Err(message),
            Ok(_) | Err(_) => return Err(obituary(child, tail).await),
        }
        let routes = Routes::default();
        let end = spawn_local(dispatch(child, reader, tail, routes.clone()));
        Ok(Self {
            pid,
            stdin: Mutex::new(writer),
            routes,
            end: RefCell::new(Some(end)),
            ended: RefCell::new(None),
        })
    }

    /// Runs one try of one function.
    pub(super) async fn run(
        &self,
        core: &Core,
        step: RunStep,
        timeout: Option<Duration>,
        stop: &mut Stop,
        effects: &impl Effects,
    ) -> Tried {
        let index = step.step;
        let (sender, mut frames) = mpsc::channel(FRAMES_WAITING);
        self.routes.borrow_mut().insert(index, sender);
        let work = async {
            if self.send(&ToRunner::Step(step)).await.is_err() {
                return None;
            }
            receive_step(core, &mut frames, effects).await
        };
        tokio::pin!(work);
        let time_out = async {
            match timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        let limit = timeout.unwrap_or_default();
        let timed_out = Failure::TimedOut(format!("it did not end within its limit of {limit:?}"));
        let (cause, grace) = tokio::select! {
            biased;
            done = &mut work => {
                self.routes.borrow_mut().remove(&index);
                return match done {
                    Some(done) => judge(done),
                    None => Tried::failed(self.why_it_ended().await),
                };
            }
            grace = stop.asked() => (Failure::Stopped, grace),
            () = time_out => (timed_out, stop.grace),
        };
        let asked = async {
            self.send(&ToRunner::Stop { step: index, force: false }).await.ok();
            tokio::select! {
                () = tokio::time::sleep(grace) => {}
                () = stop.killed() => {}
            }
            if !stop.is_kill() {
                self.send(&ToRunner::Stop { step: index, force: true }).await.ok();
                tokio::time::sleep(DEAF).await;
            }
        };
        let done = tokio::select! {
            biased;
            done = &mut work => done,
            () = asked => {
                sandbox::signal(self.pid, Signal::KILL);
                None
            }
        };
        self.routes.borrow_mut().remove(&index);
        let exit_code = done.and_then(|done| done.error?.exit_code);
        Tried { exit_code, failure: Some(cause), outputs: None }
    }

    async fn send(&self, frame: &ToRunner) -> std::io::Result<()> {
        wire::send(&mut *self.stdin.lock().await, frame, &[]).await
    }

    async fn why_it_ended(&self) -> String {
        let end = self.end.borrow_mut().take();
        if let Some(end) = end {
            let text = end.await.unwrap_or_default();
            self.ended.replace(Some(text));
        }
        self.ended.borrow().clone().unwrap_or_else(|| "the engine ended".into())
    }
}

/// Reads a step's frames until it is done; nothing when the child ends first.
async fn receive_step(
    core: &Core,
    frames: &mut mpsc::Receiver<Frame>,
    effects: &impl Effects,
) -> Option<StepDone> {
    while let Some((frame, payload)) = frames.recv().await {
        match frame {
            FromRunner::Output { step } => {
                let step = usize::try_from(step).unwrap_or(usize::MAX - 1);
                core.write(stream_of(step), &payload).await;
            }
            FromRunner::SetEnv { name, value, .. } => effects.set_env(name, value),
            FromRunner::AddPath { path, .. } => effects.add_path(path),
            FromRunner::Done(done) => return Some(done),
            FromRunner::Ready {} | FromRunner::LoadFailed { .. } => {}
        }
    }
    None
}

fn judge(done: StepDone) -> Tried {
    match done.error {
        Some(error) => Tried {
            exit_code: error.exit_code,
            failure: Some(Failure::Error(error.message)),
            outputs: done.outputs,
        },
        None => Tried { outputs: done.outputs, ..Tried::default() },
    }
}

/// Hands the child's frames to the steps they belong to. A step that waits for the spool makes
/// the child wait, and with it the others: it is one process.
async fn dispatch(
    child: Child,
    mut reader: wire::Reader<ChildStdout>,
    stderr: JoinHandle<Vec<u8>>,
    routes: Routes,
) -> String {
    while let Ok(Some((frame, payload))) = wire::receive::<FromRunner, _>(&mut reader).await {
        let step = match &frame {
            FromRunner::Output { step }
            | FromRunner::SetEnv { step, .. }
            | FromRunner::AddPath { step, .. } => *step,
            FromRunner::Done(done) => done.step,
            FromRunner::Ready {} | FromRunner::LoadFailed { .. } => continue,
        };
        let route = routes.borrow().get(&step).cloned();
        if let Some(route) = route {
            // Fails when the step was given up meanwhile.
            route.send((frame, payload)).await.ok();
        }
    }
    routes.borrow_mut().clear();
    obituary(child, stderr).await
}

async fn obituary(mut child: Child, stderr: JoinHandle<Vec<u8>>) -> String {
    child.start_kill().ok();
    let status = child.wait().await.map_or_else(|_| "it was killed".into(), |s| s.to_string());
    // Whoever inherited the stream may keep it open.
    let report = tokio::time::timeout(DEAF, stderr).await.ok().and_then(Result::ok);
    let report = report.unwrap_or_default();
    let report = String::from_utf8_lossy(&report);
    format!("the process that runs this job's functions ended ({status})\n{}", report.trim())
        .trim_end()
        .to_owned()
}

async fn tail(mut stderr: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        kept.extend_from_slice(&buffer[..count]);
        kept.drain(..kept.len().saturating_sub(STDERR_BYTES_MAX));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn of_a_long_crash_report_the_end_is_kept() {
        let end = vec![b'x'; STDERR_BYTES_MAX];
        let report = [b"early".as_slice(), &end].concat();
        assert_eq!(tail(report.as_slice()).await, end);
        assert_eq!(tail(b"short".as_slice()).await, b"short");
    }
}
