//! One try of one command step: from its files to the last byte of its output.

use std::{
    collections::BTreeMap,
    os::{fd::OwnedFd, unix::process::ExitStatusExt as _},
    path::{Component, Path, PathBuf},
    process::ExitStatus,
    rc::Rc,
    time::Duration,
};

use rustix::process::{Pid, Signal, test_kill_process_group};
use serde_json::Value;
use tokio::{process::Child, sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    core::{Core, Halt},
    files::{HandedOver, StepFiles},
    output::Pump,
};
use crate::{handoff, sandbox};

/// Between two looks whether a process group that was asked to stop is empty.
const GROUP_PAUSE: Duration = Duration::from_millis(20);
/// What a shell says when it finds no such command.
const EXIT_NOT_FOUND: i32 = 127;

/// How one try ended.
#[derive(Debug, Default)]
pub(super) struct Tried {
    pub exit_code: Option<i32>,
    /// Absent: it succeeded.
    pub failure: Option<Failure>,
    pub outputs: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It said no.
    Error(String),
    TimedOut(String),
    /// Somebody ended it.
    Stopped,
}

impl Tried {
    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self { failure: Some(Failure::Error(message.into())), ..Self::default() }
    }
}

/// Who may end a step early: the job's halt, or the group that it runs in.
#[derive(Clone)]
pub(super) struct Stop {
    pub halts: watch::Receiver<Halt>,
    pub group: CancellationToken,
    pub grace: Duration,
}

impl Stop {
    pub(super) fn is_set(&self) -> bool {
        *self.halts.borrow() != Halt::Run || self.group.is_cancelled()
    }

    /// Waits until the step is to stop; returns how long it may take over that.
    pub(super) async fn asked(&mut self) -> Duration {
        let halted = async {
            match self.halts.wait_for(|halt| *halt != Halt::Run).await.as_deref() {
                Ok(Halt::Polite { grace, .. }) => *grace,
                Ok(Halt::Now { .. } | Halt::Run) | Err(_) => Duration::ZERO,
            }
        };
        tokio::select! {
            grace = halted => grace,
            () = self.group.cancelled() => self.grace,
        }
    }

    /// Whether it is to be killed without waiting.
    pub(super) fn is_kill(&self) -> bool {
        matches!(*self.halts.borrow(), Halt::Now { .. })
    }

    /// Waits until it is to be killed.
    pub(super) async fn killed(&mut self) {
        self.halts.wait_for(|halt| matches!(halt, Halt::Now { .. })).await.ok();
    }
}

/// A command that is about to run.
pub(super) struct CommandStep<'a> {
    pub index: usize,
    pub command: &'a str,
    pub shell: Option<&'a [String]>,
    pub cwd: Option<&'a str>,
    pub env: BTreeMap<String, String>,
    pub timeout: Option<Duration>,
}

/// What runs at the moment, so that a sweep leaves the others alone.
pub(super) trait Surroundings {
    fn unit(&self) -> &sandbox::Unit;
    fn entered(&self, step: usize, pid: i32);
    /// Ends what the step left behind. The step's own processes are no longer spared.
    async fn sweep(&self, step: usize);
}

/// Runs it.
pub(super) async fn run(
    core: &Rc<Core>,
    around: &impl Surroundings,
    step: CommandStep<'_>,
    stop: &mut Stop,
) -> (Tried, HandedOver) {
    let index = step.index;
    let files = match StepFiles::create(core, index, step.command) {
        Ok(files) => files,
        Err(error) => return (Tried::failed(describe(error)), HandedOver::default()),
    };
    let mut tried = match start(core, around, &step, &files).await {
        Ok((child, pump)) => {
            let (status, ended) = watch_over(around, index, child, step.timeout, stop).await;
            around.sweep(index).await;
            pump.drain(core).await;
            judge(status, ended, step.timeout)
        }
        Err(tried) => tried,
    };
    let over = files.read().unwrap_or_else(|error| {
        if tried.failure.is_none() {
            tried.failure = Some(Failure::Error(error.to_string()));
        }
        HandedOver::default()
    });
    tried.outputs.clone_from(&over.outputs);
    (tried, over)
}

fn describe(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}

async fn start(
    core: &Rc<Core>,
    around: &impl Surroundings,
    step: &CommandStep<'_>,
    files: &StepFiles,
) -> Result<(Child, Pump), Tried> {
    let mut env = step.env.clone();
    env.extend(files.variables());
    for (name, value) in &env {
        handoff::check_variable(name, value).map_err(|error| Tried::failed(error.to_string()))?;
    }
    let cwd = work_dir(&core.dir.workspace(), step.cwd).map_err(Tried::failed)?;
    let stream = stream_of(step.index);
    let mut argv = match step.shell {
        Some(shell) if !shell.is_empty() => shell.to_vec(),
        _ => default_shell(core, stream, &env).await,
    };
    argv.push(files.script().to_string_lossy().into_owned());
    let system = |error: std::io::Error| Tried::failed(format!("cannot make a pipe: {error}"));
    let (reader, writer) = std::io::pipe().map_err(system)?;
    let mut command =
        around.unit().command(&argv, &cwd, &env).map_err(|e| Tried::failed(describe(e)))?;
    command.stdout(writer.try_clone().map_err(system)?).stderr(writer);
    let child = command.spawn().map_err(|error| Tried {
        exit_code: (error.kind() == std::io::ErrorKind::NotFound).then_some(EXIT_NOT_FOUND),
        ..Tried::failed(format!("cannot start '{}': {error}", argv[0]))
    })?;
    // The command holds our ends of the pipe: with them open, the output would never end.
    drop(command);
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        around.entered(step.index, pid);
    }
    let pump = Pump::start(core, stream, OwnedFd::from(reader)).map_err(system)?;
    Ok((child, pump))
}

/// The stream that a step writes to; stream 0 is the attempt's own.
pub(super) fn stream_of(step: usize) -> u32 {
    u32::try_from(step + 1).unwrap_or(u32::MAX)
}

async fn default_shell(core: &Core, stream: u32, env: &BTreeMap<String, String>) -> Vec<String> {
    let path = env.get("PATH").map(String::as_str).unwrap_or_default();
    let has_bash = std::env::split_paths(path).any(|dir| dir.join("bash").is_file());
    let argv: &[&str] = if has_bash {
        &["bash", "--noprofile", "--norc", "-eo", "pipefail"]
    } else {
        let line = "warning: there is no bash on this host: the command runs with 'sh -e', and a failure inside a pipeline goes unnoticed\n";
        core.write(stream, line.as_bytes()).await;
        &["sh", "-e"]
    };
    argv.iter().map(|&arg| arg.to_owned()).collect()
}

/// The directory that a step starts in, which is one of the workspace.
fn work_dir(workspace: &Path, cwd: Option<&str>) -> Result<PathBuf, String> {
    let Some(cwd) = cwd else { return Ok(workspace.to_owned()) };
    let inside = Path::new(cwd)
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !inside {
        return Err(format!("cwd '{cwd}' does not stay inside the workspace"));
    }
    let dir = workspace.join(cwd);
    if dir.is_dir() {
        Ok(dir)
    } else {
        Err(format!("cwd '{cwd}' is no directory of the workspace"))
    }
}

/// Why a step was ended before it ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    ByItself,
    TimedOut,
    Stopped,
}

/// Waits for the main process, and asks and then makes it stop when it has to.
async fn watch_over(
    around: &impl Surroundings,
    index: usize,
    mut child: Child,
    timeout: Option<Duration>,
    stop: &mut Stop,
) -> (Option<ExitStatus>, Ended) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0);
    let started = Instant::now();
    let timed_out = async {
        match timeout {
            Some(timeout) => tokio::time::sleep_until(started + timeout).await,
            None => std::future::pending().await,
        }
    };
    let (ended, grace) = tokio::select! {
        biased;
        status = child.wait() => return (status.ok(), Ended::ByItself),
        grace = stop.asked() => (Ended::Stopped, grace),
        () = timed_out => (Ended::TimedOut, stop.grace),
    };
    let mut status = None;
    if !grace.is_zero() {
        sandbox::signal_group(pid, Signal::TERM);
        // The whole group gets its grace, also when a shell at its head ends at once.
        let gone = async {
            status = child.wait().await.ok();
            while Pid::from_raw(pid).is_some_and(|pid| test_kill_process_group(pid).is_ok()) {
                tokio::time::sleep(GROUP_PAUSE).await;
            }
        };
        tokio::select! {
            () = gone => {}
            () = tokio::time::sleep(grace) => {}
            () = stop.killed() => {}
        }
    }
    sandbox::signal_group(pid, Signal::KILL);
    around.sweep(index).await;
    if status.is_none() {
        status = child.wait().await.ok();
    }
    (status, ended)
}

fn judge(status: Option<ExitStatus>, ended: Ended, timeout: Option<Duration>) -> Tried {
    // Without a status the process was swept away under the runtime: it was killed.
    let killed = 128 + Signal::KILL.as_raw();
    let code = status.map_or(killed, |status| {
        status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(killed)
    });
    let failure = match ended {
        Ended::Stopped => Some(Failure::Stopped),
        Ended::TimedOut => {
            let limit = timeout.unwrap_or_default();
            Some(Failure::TimedOut(format!("it did not end within its limit of {limit:?}")))
        }
        Ended::ByItself if code == 0 => None,
        Ended::ByItself => Some(Failure::Error(match status.and_then(|status| status.signal()) {
            Some(signal) => format!("ended by signal {signal} (exit code {code})"),
            None => format!("exit code {code}"),
        })),
    };
    Tried { exit_code: Some(code), failure, outputs: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_128_and_its_number() {
        let tried = judge(Some(ExitStatus::from_raw(9)), Ended::ByItself, None);
        assert_eq!(tried.exit_code, Some(137));
        let tried = judge(Some(ExitStatus::from_raw(3 << 8)), Ended::ByItself, None);
        assert_eq!(
            (tried.exit_code, tried.failure),
            (Some(3), Some(Failure::Error("exit code 3".into())))
        );
    }

    #[test]
    fn a_step_starts_inside_the_workspace() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        assert_eq!(work_dir(dir.path(), Some("./a")), Ok(dir.path().join("./a")));
        for cwd in ["../a", "/etc", "a/../..", "missing"] {
            assert!(work_dir(dir.path(), Some(cwd)).is_err(), "{cwd}");
        }
    }
}
