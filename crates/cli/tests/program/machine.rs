//! A user's machine: folders of its own, and the processes that were started on it.

use std::{
    fs::{self, File},
    future::Future,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longest time that anything may take to happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
/// Between two looks, since nobody tells.
const LOOK_PERIOD: Duration = Duration::from_millis(15);

/// Looks until there is an answer.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(
    what: impl std::fmt::Display,
    mut look: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    let mut looks = tokio::time::interval(LOOK_PERIOD);
    loop {
        looks.tick().await;
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
    }
}

pub(crate) struct Machine {
    temp: tempfile::TempDir,
    count: AtomicU32,
}

/// A command that has ended.
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Done {
    /// What it printed, if it went well.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self.out
    }

    #[track_caller]
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }
}

impl Machine {
    /// Puts the program on this machine, in place of one that is there and may run; commands use it
    /// from now on.
    pub(crate) fn install(&self) {
        let [new, installed] = ["shunt.new", "shunt"].map(|name| self.path(name));
        fs::copy(PROGRAM, &new).unwrap();
        fs::rename(new, installed).unwrap();
    }

    pub(crate) fn new() -> Self {
        let temp = tempfile::Builder::new().prefix("shunt-test-").tempdir().unwrap();
        let machine = Self { temp, count: AtomicU32::new(0) };
        fs::create_dir(machine.path("tmp")).unwrap();
        machine
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// Writes files into a folder of this machine, and returns it.
    pub(crate) fn folder(&self, name: &str, files: &[(&str, &str)]) -> PathBuf {
        let folder = self.path(name);
        write(&folder, files);
        folder
    }

    /// `shunt`, with nothing of the environment but what a login gives.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let copy = self.path("shunt");
        let installed = if copy.exists() { copy } else { PROGRAM.into() };
        let mut command = Command::new(installed);
        command.args(args).env_clear().current_dir(self.temp.path());
        for name in ["PATH", "HOME"] {
            command.env(name, std::env::var_os(name).unwrap());
        }
        command
            .env("XDG_DATA_HOME", self.path("share"))
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("TMPDIR", self.path("tmp"))
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn start(&self, args: &[&str]) -> Process {
        self.spawn(self.command(args), args.first().unwrap_or(&"shunt"))
    }

    pub(crate) fn spawn(&self, command: Command, name: &str) -> Process {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let out = self.path(&format!("{number}-{name}.out"));
        let stdout = Stdio::from(File::create(&out).unwrap());
        let mut process = self.spawn_into(command, name, stdout);
        process.out = out;
        process
    }

    /// The same with its output to somewhere else.
    pub(crate) fn spawn_into(&self, mut command: Command, name: &str, out: Stdio) -> Process {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let err = self.path(&format!("{number}-{name}.err"));
        let child = command.stdout(out).stderr(File::create(&err).unwrap()).spawn().unwrap();
        Process { child, out: PathBuf::from("/dev/null"), err, ended: None }
    }

    /// The supervisors of attempts on this machine that live.
    pub(crate) fn supervisors(&self) -> Vec<Pid> {
        let supervisor = |folder: &PathBuf| {
            let bytes = fs::read(folder.join("processes.json")).ok()?;
            let processes: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let pid = i32::try_from(processes["supervisor"]["pid"].as_i64()?).unwrap();
            Pid::from_raw(pid).filter(|pid| is_ours(*pid, folder))
        };
        attempts(self.temp.path(), 6).iter().filter_map(supervisor).collect()
    }

    /// Runs a command to its end.
    pub(crate) async fn run(&self, args: &[&str]) -> Done {
        self.start(args).done().await
    }
}

pub(crate) fn write(folder: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for folder in attempts(self.temp.path(), 6) {
                let log = fs::read_to_string(folder.join("supervisor.log")).unwrap_or_default();
                eprintln!("{}:\n{log}", folder.display());
            }
        }
        // Supervisors outlive everything else: those of a test end with it.
        for pid in self.supervisors() {
            kill_process(pid, Signal::KILL).ok();
        }
    }
}

/// Folders of attempts somewhere below.
fn attempts(folder: &Path, depth: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let paths: Vec<_> = folders.map(|entry| entry.path()).collect();
    if folder.ends_with("attempts") {
        return paths;
    }
    let deeper = paths.iter().filter(|path| depth > 0 && !path.ends_with("work"));
    deeper.flat_map(|path| attempts(path, depth - 1)).collect()
}

/// A number may belong to another process by now.
fn is_ours(pid: Pid, folder: &Path) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).into_owned();
    line.contains(&*folder.to_string_lossy())
}

/// A process that ends when it is dropped, at the latest.
pub(crate) struct Process {
    child: Child,
    out: PathBuf,
    err: PathBuf,
    ended: Option<ExitStatus>,
}

impl Process {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// `kill -9`
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.ended = Some(self.child.wait().unwrap());
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().unwrap();
        }
        self.ended.is_some()
    }

    pub(crate) fn out(&self) -> String {
        fs::read_to_string(&self.out).unwrap_or_default()
    }

    pub(crate) fn err(&self) -> String {
        fs::read_to_string(&self.err).unwrap_or_default()
    }

    /// Waits for a part of what it prints.
    pub(crate) async fn says(&mut self, part: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut looks = tokio::time::interval(LOOK_PERIOD);
        loop {
            looks.tick().await;
            let ended = self.has_ended();
            let out = self.out();
            if out.contains(part) {
                return out;
            }
            let late = Instant::now() > deadline;
            assert!(!ended && !late, "it never said {part:?}:\n{out}\n{}", self.err());
        }
    }

    /// Waits for its end; 128 + n for signal n.
    pub(crate) async fn end(&mut self) -> i32 {
        let deadline = Instant::now() + PATIENCE;
        let mut looks = tokio::time::interval(LOOK_PERIOD);
        while !self.has_ended() {
            looks.tick().await;
            assert!(Instant::now() < deadline, "it did not end:\n{}{}", self.out(), self.err());
        }
        let status = self.ended.unwrap();
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
    }

    pub(crate) async fn done(mut self) -> Done {
        Done { code: self.end().await, out: self.out(), err: self.err() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.kill();
        }
        if std::thread::panicking() {
            eprintln!("{}:\n{}\n{}", self.out.display(), self.out(), self.err());
        }
    }
}

/// How many processes on this machine have this argument.
pub(crate) fn running(argument: &str) -> usize {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let has = |entry: &fs::DirEntry| {
        fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| line.split(|&b| b == 0).any(|arg| arg == argument.as_bytes()))
    };
    entries.filter(has).count()
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_shunt");

/// A number of seconds to sleep that no other process has as its argument.
pub(crate) fn unique_sleep() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("8{:05}.{:07}", COUNT.fetch_add(1, Ordering::Relaxed), std::process::id())
}
