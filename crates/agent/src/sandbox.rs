//! The containment unit: what an attempt's commands run in.
//!
//! With [`Containment::Namespace`] the supervisor's children live in a PID namespace whose init
//! dies with the supervisor, and see their own `/proc` and mounts. With `Subreaper` orphans come
//! back to the supervisor, which sweeps them. All children of one supervisor are forked by its one
//! thread: the namespace, and the signal at the parent's death, belong to that thread.

mod init;
mod sys;
mod tree;

use std::{
    collections::BTreeMap,
    ffi::CString,
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::Duration,
};

use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, getpid, getuid, kill_process, kill_process_group,
    set_child_subreaper, set_dumpable_behavior, waitpid,
};
use serde::{Deserialize, Serialize};
use shuntyard_protocol::agent::Containment;
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, Command},
};

pub(crate) use init::init_main;
pub(crate) use sys::KillTimer;
pub(crate) use tree::{has_variable, process, table};

use crate::config::Launcher;

/// Rounds of killing before a unit counts as impossible to empty.
const SWEEP_ROUNDS: u32 = 500;
/// Between two rounds.
const SWEEP_PAUSE: Duration = Duration::from_millis(5);
/// How long init may take to make the unit's view.
const INIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest error text of an init.
const INIT_ERROR_BYTES: u64 = 4096;

/// A unit that could not be made, or a command that could not be put into it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxError {
    #[error("cannot {operation}")]
    System {
        operation: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the unit's init failed: {message}")]
    Init { message: String },
    #[error("there is no user '{name}' on this host")]
    NoSuchUser { name: String },
    #[error("'{}' contains a NUL byte", text.escape_debug())]
    Nul { text: String },
}

fn system(operation: &'static str) -> impl FnOnce(io::Error) -> SandboxError {
    move |source| SandboxError::System { operation, source }
}

/// The user that commands run as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct User {
    pub name: String,
    pub home: String,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl User {
    /// Looks a user up on this host.
    pub(crate) fn find(name: &str) -> Result<Self, SandboxError> {
        let found = sys::user(name).map_err(system("read the user database"))?;
        let (ids, home) = found.ok_or_else(|| SandboxError::NoSuchUser { name: name.into() })?;
        let sys::Ids { uid, gid, groups } = ids;
        Ok(Self { name: name.into(), home, uid, gid, groups })
    }
}

/// Makes this one-threaded process ready to hold a unit of this level.
pub(crate) fn isolate(level: Containment) -> Result<(), SandboxError> {
    match level {
        Containment::Namespace => {
            let (uid, gid) = (getuid().as_raw(), rustix::process::getgid().as_raw());
            let user = uid != 0;
            sys::unshare(user).map_err(system("unshare the PID namespace"))?;
            if user {
                std::fs::write("/proc/self/setgroups", "deny")
                    .and_then(|()| std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")))
                    .and_then(|()| std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")))
                    .map_err(system("map the user into its namespace"))?;
            }
        }
        Containment::Subreaper => set_child_subreaper(Some(getpid()))
            .map_err(|error| system("become a subreaper")(error.into()))?,
        Containment::None => {}
    }
    // What this process knows is not for the commands, not even for those of its own user.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| system("protect the memory")(error.into()))
}

/// What a unit is made from.
#[derive(Clone, Debug)]
pub(crate) struct UnitSpec {
    pub level: Containment,
    pub hide: Vec<PathBuf>,
    /// Stays visible.
    pub keep: Option<PathBuf>,
    pub user: Option<User>,
    pub launcher: Launcher,
    /// `NAME=value` that every command of this unit is started with.
    pub mark: String,
}

/// A containment unit of this process. Dropping it kills what is in it.
#[derive(Debug)]
pub(crate) struct Unit {
    level: Containment,
    user: Option<User>,
    mark: String,
    init: Option<Init>,
}

#[derive(Debug)]
struct Init {
    pid: i32,
    mount_ns: OwnedFd,
    child: tokio::sync::Mutex<Child>,
}

/// Processes that a sweep leaves alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spare {
    /// Only these themselves.
    pub processes: Vec<i32>,
    /// These and everything that came out of them.
    pub trees: Vec<i32>,
    /// With this, only processes that were started with this `NAME=value` are ended.
    pub only_with: Option<String>,
}

impl Unit {
    /// Starts the unit. [`isolate`] was called with the same level, and nothing was forked since.
    pub(crate) async fn start(spec: UnitSpec) -> Result<Self, SandboxError> {
        let UnitSpec { level, hide, keep, user, launcher, mark } = spec;
        let init = match level {
            Containment::Namespace => Some(start_init(&launcher, init::View { hide, keep }).await?),
            Containment::Subreaper | Containment::None => None,
        };
        Ok(Self { level, user, mark, init })
    }

    /// Pid of the unit's init, as the host sees it.
    pub(crate) fn init_pid(&self) -> Option<i32> {
        self.init.as_ref().map(|init| init.pid)
    }

    /// A command inside the unit: own process group, this environment and no other, no input, no
    /// inherited descriptors, default signals.
    pub(crate) fn command(
        &self,
        argv: &[String],
        cwd: &Path,
        env: &BTreeMap<String, String>,
    ) -> Result<Command, SandboxError> {
        let nul = |text: &str| SandboxError::Nul { text: text.into() };
        for text in argv.iter().chain(env.values()).chain(env.keys()) {
            if text.contains('\0') {
                return Err(nul(text));
            }
        }
        let (program, args) = argv.split_first().ok_or_else(|| nul("(no program)"))?;
        let mut command = std::process::Command::new(program);
        command.args(args).env_clear().envs(env).stdin(Stdio::null());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let duplicate = |init: &Init| init.mount_ns.try_clone();
        let entry = sys::Entry {
            mount_ns: self
                .init
                .as_ref()
                .map(duplicate)
                .transpose()
                .map_err(system("keep the unit's mounts open"))?,
            cwd: Some(
                CString::new(cwd.as_os_str().as_bytes())
                    .map_err(|_| nul(&cwd.to_string_lossy()))?,
            ),
            drop_capabilities: self.init.is_some(),
            user: self.user.as_ref().map(|user| sys::Ids {
                uid: user.uid,
                gid: user.gid,
                groups: user.groups.clone(),
            }),
            keep_mounting: false,
            die_with_parent: true,
        };
        entry.apply(&mut command);
        Ok(command.into())
    }

    /// Kills everything in the unit; nothing can be started in it afterwards. Returns whether
    /// nothing is left.
    pub(crate) async fn kill(&self) -> bool {
        if let Some(init) = &self.init {
            // The kernel ends init only after everything else in its namespace has ended.
            let mut child = init.child.lock().await;
            child.start_kill().ok();
            return child.wait().await.is_ok();
        }
        self.sweep(&Spare::default()).await
    }

    /// Kills what is in the unit, except its init and what is spared. Returns whether nothing of
    /// that is left.
    pub(crate) async fn sweep(&self, spare: &Spare) -> bool {
        let me = getpid().as_raw_nonzero().get();
        for _ in 0..SWEEP_ROUNDS {
            let victims = self.victims(me, spare);
            if victims.is_empty() {
                return true;
            }
            for pid in victims {
                signal(pid, Signal::KILL);
            }
            tokio::time::sleep(SWEEP_PAUSE).await;
        }
        false
    }

    fn victims(&self, me: i32, spare: &Spare) -> Vec<i32> {
        let table = table();
        let mut victims = Vec::new();
        for (&pid, process) in &table {
            // Without a subreaper orphans leave the tree: only what they were started with tells.
            let strayed = self.level == Containment::None && has_variable(pid, &self.mark);
            let ours = pid != me && (strayed || tree::is_within(&table, pid, me));
            if !ours || self.init_pid() == Some(pid) || spare.processes.contains(&pid) {
                continue;
            }
            if spare.trees.iter().any(|&root| tree::is_within(&table, pid, root)) {
                continue;
            }
            if process.zombie {
                // Adopted ones are nobody else's to reap. Those of the runtime are spared above.
                if process.parent == me {
                    reap(pid);
                }
                continue;
            }
            if spare.only_with.as_ref().is_none_or(|variable| has_variable(pid, variable)) {
                victims.push(pid);
            }
        }
        victims
    }
}

fn reap(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        waitpid(Some(pid), WaitOptions::NOHANG).ok();
    }
}

/// Sends a signal to a process; one that is gone is fine.
pub(crate) fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        kill_process(pid, signal).ok();
    }
}

/// Sends a signal to a process group; one that is gone is fine.
pub(crate) fn signal_group(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        kill_process_group(pid, signal).ok();
    }
}

async fn start_init(launcher: &Launcher, view: init::View) -> Result<Init, SandboxError> {
    let view = serde_json::to_string(&view)
        .map_err(|error| system("describe the unit's view")(error.into()))?;
    let mut command = std::process::Command::new(&launcher.program);
    command.args(&launcher.args).arg(crate::entry::INIT).arg(view).env_clear();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    // Out of reach of a terminal's signals, like everything below it.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let keep_mounting = !getuid().is_root();
    sys::Entry { die_with_parent: true, keep_mounting, ..sys::Entry::default() }
        .apply(&mut command);
    let mut command = Command::from(command);
    command.kill_on_drop(true);
    let mut child = command.spawn().map_err(system("start the unit's init"))?;
    let stdout = child.stdout.take().expect("stdout is a pipe");
    let mut said = Vec::new();
    let mut limited = stdout.take(INIT_ERROR_BYTES);
    let reading = async {
        while said != init::READY && limited.read_buf(&mut said).await? > 0 {}
        io::Result::Ok(())
    };
    match tokio::time::timeout(INIT_TIMEOUT, reading).await {
        Ok(result) => result.map_err(system("listen to the unit's init"))?,
        Err(_) => return Err(SandboxError::Init { message: "it did not answer in time".into() }),
    }
    if said != init::READY {
        return Err(SandboxError::Init { message: String::from_utf8_lossy(&said).into_owned() });
    }
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.ok_or_else(|| SandboxError::Init { message: "it ended at once".into() })?;
    let mount_ns = std::fs::File::open(format!("/proc/{pid}/ns/mnt"))
        .map_err(system("open the unit's mounts"))?;
    Ok(Init { pid, mount_ns: mount_ns.into(), child: tokio::sync::Mutex::new(child) })
}

/// Tries out whether this host can make a unit of the highest level: exit code 0 if so.
pub(crate) fn probe_main() -> ExitCode {
    let probe = || -> Result<bool, SandboxError> {
        let program = std::env::current_exe().map_err(system("find the own program"))?;
        isolate(Containment::Namespace)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(system("start the runtime"))?;
        runtime.block_on(async {
            let spec = UnitSpec {
                level: Containment::Namespace,
                hide: Vec::new(),
                keep: None,
                user: None,
                launcher: Launcher { program, args: Vec::new() },
                mark: String::new(),
            };
            let unit = Unit::start(spec).await?;
            let argv = ["sh".to_owned(), "-c".to_owned(), "test $$ -lt 100".to_owned()];
            let env = BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]);
            let status = unit.command(&argv, Path::new("/"), &env)?.status().await;
            unit.kill().await;
            Ok(status.is_ok_and(|status| status.success()))
        })
    };
    match probe() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) | Err(_) => ExitCode::FAILURE,
    }
}
