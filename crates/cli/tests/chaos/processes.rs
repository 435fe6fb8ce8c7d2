//! Processes of the program, and those that it left behind.

use std::{
    fs::{self, OpenOptions},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Sends a signal; a process that has gone is fine.
pub(crate) fn signal(pid: Pid, signal: Signal) {
    kill_process(pid, signal).ok();
}

/// A process that is started again whenever it is killed. It ends when it is dropped.
pub(crate) struct Service {
    name: String,
    args: Vec<String>,
    folder: PathBuf,
    child: Option<Child>,
    /// It was told to go.
    told: bool,
    /// Lines that say how it ended when nobody had told it.
    pub(crate) surprises: Vec<String>,
}

impl Service {
    pub(crate) fn new(folder: &Path, name: &str, args: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            args,
            folder: folder.to_owned(),
            child: None,
            told: false,
            surprises: Vec::new(),
        }
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.name))
    }

    pub(crate) fn is_up(&self) -> bool {
        self.child.is_some()
    }

    pub(crate) fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs", self.name);
        let log = OpenOptions::new().create(true).append(true).open(self.log()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_shunt"));
        command.args(&self.args).env_clear().current_dir(&self.folder);
        for name in ["PATH", "HOME"] {
            command.env(name, std::env::var_os(name).unwrap());
        }
        command
            .env("XDG_DATA_HOME", self.folder.join("share"))
            .env("XDG_CONFIG_HOME", self.folder.join("config"))
            .env(shuntyard_sim::chaos::work::TRUTH, self.folder.join("truth"))
            .env("RUST_BACKTRACE", "1");
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
        self.told = false;
    }

    pub(crate) fn pid(&self) -> Option<Pid> {
        self.child.as_ref().map(Pid::from_child)
    }

    /// `kill -9`
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// SIGTERM; it has gone when [`Service::look`] says so.
    pub(crate) fn terminate(&mut self) {
        self.told = true;
        if let Some(pid) = self.pid() {
            signal(pid, Signal::CONT);
            signal(pid, Signal::TERM);
        }
    }

    /// Notes when it has ended by itself.
    pub(crate) fn look(&mut self) {
        let Some(child) = &mut self.child else { return };
        if let Some(status) = child.try_wait().unwrap() {
            if !self.told {
                let how = status.signal().map(|signal| format!("signal {signal}"));
                let how = how.unwrap_or_else(|| status.to_string());
                self.surprises.push(format!("{} ended by itself: {how}", self.name));
            }
            self.child = None;
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A supervisor that lives.
#[derive(Clone, Debug)]
pub(crate) struct Supervisor {
    pub(crate) pid: Pid,
    /// `job.attempt`
    pub(crate) attempt: String,
}

/// Folders of the attempts that an agent holds.
pub(crate) fn attempts(agent: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(agent.join("attempts")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// The supervisors of an agent, as its data folder names them.
pub(crate) fn supervisors(agent: &Path) -> Vec<Supervisor> {
    attempts(agent).iter().filter_map(|folder| supervisor(folder)).collect()
}

fn supervisor(folder: &Path) -> Option<Supervisor> {
    let bytes = fs::read(folder.join("processes.json")).ok()?;
    let processes: Value = serde_json::from_slice(&bytes).ok()?;
    let pid = Pid::from_raw(i32::try_from(processes["supervisor"]["pid"].as_i64()?).ok()?)?;
    // The number may belong to another process by now.
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).ok()?;
    let ours = String::from_utf8_lossy(&line).contains(&*folder.to_string_lossy());
    let attempt = folder.file_name()?.to_string_lossy().into_owned();
    ours.then_some(Supervisor { pid, attempt })
}
