//! What an agent is told by whoever starts it.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use shuntyard_protocol::{
    AgentId,
    agent::{AttemptId, Containment},
};

/// Spool of one attempt before its commands have to wait.
pub const SPOOL_QUOTA_BYTES_DEFAULT: u64 = 1024 * 1024 * 1024;

/// Least quota of a spool: below it, the segment that is being written could fill it alone, and a
/// segment is only given back once the next one is there.
pub const SPOOL_QUOTA_BYTES_MIN: u64 = 2 * 1024 * 1024;

/// A text that never shows up in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself; for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// How to start this very software again with a hidden sub-command behind `args`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Launcher {
    /// Absolute path.
    pub program: PathBuf,
    pub args: Vec<String>,
}

/// Settings of one agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The agent's own directory, absolute; one agent process at a time. Commands never see it.
    pub data_dir: PathBuf,
    /// Coordinators, `http(s)://host:port` or `ws(s)://…`; any of them will do.
    pub urls: Vec<String>,
    /// For people.
    pub name: String,
    /// Labels set by hand. Those under `shunt:` and `kici:` are derived and refused here.
    pub labels: Vec<String>,
    /// Attempts at once, 1 to 1024.
    pub slots: u32,
    /// Enrolment token, needed until the key is enrolled.
    pub token: Option<Secret>,
    /// User that commands run as; needs an agent that is root.
    pub run_as: Option<String>,
    /// The host environment that the agent was started with; commands get the part of it that the
    /// allow-list and `pass_env` name.
    pub host_env: BTreeMap<String, String>,
    /// Names of further host variables that commands may see.
    pub pass_env: Vec<String>,
    /// Further paths that commands must not see: the coordinator's data directory, say.
    pub hide: Vec<PathBuf>,
    /// The most containment to use; absent means what the host can do.
    pub containment: Option<Containment>,
    /// PEM file with further authorities for `wss`.
    pub ca_file: Option<PathBuf>,
    /// Spool of one attempt, in bytes, before its commands have to wait.
    pub spool_quota_bytes: u64,
    pub launcher: Launcher,
}

impl AgentConfig {
    /// An agent with one slot, no labels and all else at its default.
    pub fn new(data_dir: PathBuf, urls: Vec<String>, launcher: Launcher) -> Self {
        Self {
            data_dir,
            urls,
            name: "agent".into(),
            labels: Vec::new(),
            slots: 1,
            token: None,
            run_as: None,
            host_env: crate::clock::environment(),
            pass_env: Vec::new(),
            hide: Vec::new(),
            containment: None,
            ca_file: None,
            spool_quota_bytes: SPOOL_QUOTA_BYTES_DEFAULT,
            launcher,
        }
    }
}

/// What the agent is to do, as the value of a watch channel. Only ever raise it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Control {
    #[default]
    Run,
    /// Take nothing new; [`crate::run`] returns when everything has ended and is acknowledged.
    Drain,
    /// Take nothing new, ask every command to stop, kill it after `grace`; return when all have
    /// ended (and, while there is a coordinator, the results are acknowledged).
    CancelAll { grace: Duration },
    /// Return now and leave the supervisors running; the next start finds them.
    Stop,
}

/// What happens, for whoever shows it. A hint: it is dropped when nobody reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    Connecting {
        url: String,
    },
    Connected {
        url: String,
        agent: AgentId,
    },
    Disconnected {
        url: String,
        reason: String,
        retry_in: Duration,
    },
    /// The coordinator does not want this agent; the agent goes on trying.
    Rejected {
        url: String,
        code: String,
        message: String,
    },
    Started {
        id: AttemptId,
        name: String,
    },
    /// The attempt is gone from this host.
    Gone {
        id: AttemptId,
    },
}
