//! A coordinator, a data directory, and agents as real processes.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use serde_json::Value;
use shuntyard_protocol::{
    JobId, RunId, Timestamp,
    agent::{AttemptId, Spec},
    plan::{Action, Checkout, Step},
};

use crate::coordinator::{Coordinator, Manners};

pub(crate) struct World {
    pub(crate) coordinator: Coordinator,
    pub(crate) temp: tempfile::TempDir,
    pub(crate) agent: Option<Child>,
    user: Option<u32>,
    extra: Vec<String>,
}

impl World {
    pub(crate) async fn new(manners: Manners) -> Self {
        let mut world = Self::without_agent(manners).await;
        world.start_agent();
        world
    }

    pub(crate) async fn without_agent(manners: Manners) -> Self {
        let coordinator = Coordinator::start(manners).await;
        let temp = tempfile::tempdir().unwrap();
        Self { coordinator, temp, agent: None, user: None, extra: Vec::new() }
    }

    /// An agent that is not root.
    pub(crate) async fn as_user(manners: Manners, uid: u32) -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let mut world = Self::without_agent(manners).await;
        fs::create_dir(world.data()).unwrap();
        std::os::unix::fs::chown(world.data(), Some(uid), Some(uid)).unwrap();
        fs::set_permissions(world.temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        world.user = Some(uid);
        world.start_agent();
        world
    }

    pub(crate) async fn with_args(manners: Manners, extra: &[&str]) -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let mut world = Self::without_agent(manners).await;
        fs::set_permissions(world.temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        world.extra = extra.iter().map(|&arg| arg.to_owned()).collect();
        world.start_agent();
        world
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.temp.path().join("data")
    }

    pub(crate) fn start_agent(&mut self) {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.temp.path().join("agent.log"))
            .unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_shunt-agent"));
        command.args(["--url", &format!("http://127.0.0.1:{}", self.coordinator.port)]);
        command.arg("--data").arg(self.data()).args(["--slots", "4"]).args(&self.extra);
        command.env("SECRET_OF_THE_AGENT", "s3cret").env("RUST_LOG", "info");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        if let Some(uid) = self.user {
            command.uid(uid).gid(uid);
        }
        self.agent = Some(command.spawn().unwrap());
    }

    pub(crate) fn kill_agent(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    pub(crate) fn submit(&self, steps: Vec<Step>) -> AttemptId {
        self.coordinator.submit(spec(steps), b"{}")
    }

    /// Pid of an attempt's supervisor, once it has begun.
    pub(crate) fn supervisor(&self, id: AttemptId) -> i32 {
        let path = self.data().join("attempts").join(id.to_string()).join("processes.json");
        let processes: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        i32::try_from(processes["supervisor"]["pid"].as_i64().unwrap()).unwrap()
    }

    pub(crate) async fn gone(&self, id: AttemptId) {
        let path = self.data().join("attempts").join(id.to_string());
        until("the attempt's directory to go", || !path.exists()).await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.kill().ok();
            agent.wait().ok();
        }
        if std::thread::panicking() {
            let log = fs::read_to_string(self.temp.path().join("agent.log")).unwrap_or_default();
            let tail: Vec<_> = log.lines().rev().take(40).collect();
            eprintln!("agent's log, latest first:\n{}", tail.join("\n"));
            for entry in fs::read_dir(self.data().join("attempts")).into_iter().flatten().flatten()
            {
                let log = fs::read_to_string(entry.path().join("supervisor.log"));
                eprintln!("{}: {}", entry.path().display(), log.unwrap_or_default());
            }
        }
        // Supervisors outlive their agents: those of a test end with it.
        for entry in fs::read_dir(self.data().join("attempts")).into_iter().flatten().flatten() {
            let Ok(bytes) = fs::read(entry.path().join("processes.json")) else { continue };
            let processes: Value = serde_json::from_slice(&bytes).unwrap();
            let pid = processes["supervisor"]["pid"].as_i64().and_then(|p| i32::try_from(p).ok());
            kill(pid.unwrap(), 9);
        }
    }
}

pub(crate) fn kill(pid: i32, signal: i32) {
    let signal = format!("-{signal}");
    Command::new("kill").args([&signal, &pid.to_string()]).stderr(Stdio::null()).status().unwrap();
}

/// Looks again and again, since nobody tells.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let mut looks = tokio::time::interval(Duration::from_millis(20));
    for _ in 0..1500 {
        looks.tick().await;
        if condition() {
            return;
        }
    }
    panic!("waited in vain for {what}");
}

/// Whether any process on this machine has this argument.
pub(crate) fn runs(argument: &str) -> bool {
    fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| line.split(|&b| b == 0).any(|arg| arg == argument.as_bytes()))
    })
}

/// A number of seconds to sleep that no other process has as its argument.
pub(crate) fn unique_sleep() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("6{:05}.{:07}", COUNT.fetch_add(1, Ordering::Relaxed), std::process::id())
}

pub(crate) fn sh(command: &str) -> Step {
    let action = Action::Shell { command: command.into(), shell: None, cwd: None };
    Step { name: format!("step {}", command.len()), action, ..Step::default() }
}

pub(crate) fn spec(steps: Vec<Step>) -> Spec {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let random = [0, 0, 0, 0, 0, 0, number[0], number[1], number[2], number[3]];
    let now = Timestamp(i64::from(std::process::id()));
    Spec {
        id: AttemptId { job: JobId::mint(now, random), attempt: 1 },
        run: RunId::mint(now, random),
        org: "default".into(),
        source: "here".into(),
        workflow: "ci".into(),
        file: ".shuntyard/workflows/ci.ts".into(),
        job: "build".into(),
        title: "build".into(),
        try_no: 1,
        run_number: 7,
        matrix: None,
        event: Value::Null,
        code: None,
        checkout: Checkout::default(),
        env: BTreeMap::new(),
        timeout_ms: 60_000,
        grace_ms: 2_000,
        steps,
        parallels: Vec::new(),
        single: false,
        needs: BTreeMap::new(),
        run_url: None,
    }
}
