//! What an agent finds out about itself and its host before it links.

use std::{
    collections::BTreeMap, fs, os::unix::fs::MetadataExt as _, path::Path, process::Stdio,
    time::Duration,
};

use rustix::process::getuid;
use shuntyard_protocol::agent::{Containment, LABEL_BYTES_MAX, LABELS_MAX, SLOTS_MAX};

use super::RunError;
use crate::{
    attempt, checkout,
    config::{AgentConfig, SPOOL_QUOTA_BYTES_MIN},
    entry, environment,
    files::{self, FileError},
    identity::{AgentKey, boot_id},
    sandbox::User,
};

/// How long the trial of a containment unit may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) struct Host {
    pub config: AgentConfig,
    pub key: AgentKey,
    pub boot_id: String,
    pub level: Containment,
    pub user: Option<User>,
    /// Set by hand and derived.
    pub labels: Vec<String>,
    /// Host variables for the commands.
    pub command_env: BTreeMap<String, String>,
    /// Held as long as this agent runs.
    _lock: fs::File,
}

impl Host {
    pub(super) async fn prepare(mut config: AgentConfig) -> Result<Self, RunError> {
        check(&config)?;
        files::make_dir(&config.data_dir, 0o700)?;
        let data_dir = &config.data_dir;
        config.data_dir =
            data_dir.canonicalize().map_err(FileError::of("resolve the path of", data_dir))?;
        for path in &mut config.hide {
            if let Ok(resolved) = path.canonicalize() {
                *path = resolved;
            }
        }
        let lock = lock(&config)?;
        let level = level(&config).await?;
        let root = getuid().is_root();
        let user = config.run_as.as_deref();
        let user = user.map(|name| User::find(name).map_err(RunError::user(name))).transpose()?;
        if user.is_some() && !root {
            return Err(RunError::RunAsNeedsRoot);
        }
        if root && user.is_none() && level < Containment::Namespace {
            return Err(RunError::RootUncontained);
        }
        if let Some(user) = &user {
            // Its own directories stay closed; only the way to the workspace opens.
            files::make_dir(&config.data_dir, 0o711)?;
            reachable(&config.data_dir, user)?;
        }
        files::make_dir(&attempt::attempts(&config.data_dir), 0o700)?;
        files::make_dir(&attempt::work(&config.data_dir), 0o711)?;
        checkout::prepare(&config.data_dir)?;
        Ok(Self {
            key: AgentKey::load(&config.data_dir.join("agent.key"))?,
            boot_id: boot_id(),
            level,
            user,
            labels: labels(&config),
            command_env: environment::allowed(&config.host_env, &config.pass_env),
            config,
            _lock: lock,
        })
    }
}

/// Refuses a data directory that the user of the commands cannot get to.
fn reachable(data_dir: &Path, user: &User) -> Result<(), RunError> {
    for path in data_dir.ancestors().filter(|_| user.uid != 0) {
        let entry = fs::metadata(path).map_err(FileError::of("look at", path))?;
        let enter = if entry.uid() == user.uid {
            0o100
        } else if entry.gid() == user.gid || user.groups.contains(&entry.gid()) {
            0o010
        } else {
            0o001
        };
        if entry.mode() & enter == 0 {
            return Err(RunError::Unreachable { user: user.name.clone(), path: path.to_owned() });
        }
    }
    Ok(())
}

fn check(config: &AgentConfig) -> Result<(), RunError> {
    let bad = |setting, problem: String| Err(RunError::Setting { setting, problem });
    if config.urls.is_empty() {
        return bad("urls", "there is no coordinator to connect to".into());
    }
    for url in &config.urls {
        super::session::endpoint(url)
            .map_err(|problem| RunError::Setting { setting: "urls", problem })?;
    }
    if config.slots == 0 || config.slots > SLOTS_MAX {
        return bad("slots", format!("{} is not between 1 and {SLOTS_MAX}", config.slots));
    }
    if config.labels.len() > LABELS_MAX {
        return bad("labels", format!("there are more than {LABELS_MAX}"));
    }
    for label in &config.labels {
        if label.is_empty() || label.len() > LABEL_BYTES_MAX {
            return bad("labels", format!("'{label}' has not 1 to {LABEL_BYTES_MAX} bytes"));
        }
        if label.starts_with("shunt:") || label.starts_with("kici:") {
            return bad("labels", format!("'{label}': labels of this prefix are derived"));
        }
    }
    if config.spool_quota_bytes < SPOOL_QUOTA_BYTES_MIN {
        let bytes = config.spool_quota_bytes;
        let problem = format!("{bytes} bytes are less than {SPOOL_QUOTA_BYTES_MIN}");
        return bad("spool_quota_bytes", problem);
    }
    if !config.data_dir.is_absolute() {
        return bad("data_dir", format!("{} is not absolute", config.data_dir.display()));
    }
    Ok(())
}

/// Two agents on one directory would run the same attempts twice.
fn lock(config: &AgentConfig) -> Result<fs::File, RunError> {
    let path = config.data_dir.join("agent.lock");
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(FileError::of("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => {
            Err(RunError::DataDirInUse { path: config.data_dir.clone() })
        }
        Err(fs::TryLockError::Error(error)) => Err(FileError::of("lock", &path)(error).into()),
    }
}

/// The highest level that this host can do, found out by doing it.
async fn level(config: &AgentConfig) -> Result<Containment, RunError> {
    let most = config.containment.unwrap_or(Containment::Namespace);
    if most < Containment::Namespace {
        return Ok(most);
    }
    let launcher = &config.launcher;
    let mut command = tokio::process::Command::new(&launcher.program);
    command.args(&launcher.args).arg(entry::PROBE).env_clear();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let status = tokio::time::timeout(PROBE_TIMEOUT, command.status()).await;
    match status {
        Ok(Ok(status)) if status.success() => Ok(Containment::Namespace),
        Ok(Ok(_)) | Err(_) => {
            tracing::warn!("this host can make no PID namespace for commands: orphans are swept");
            Ok(Containment::Subreaper)
        }
        Ok(Err(source)) => Err(RunError::Launcher { program: launcher.program.clone(), source }),
    }
}

fn labels(config: &AgentConfig) -> Vec<String> {
    let os = std::env::consts::OS;
    let arch = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    };
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    let mut labels = config.labels.clone();
    labels.extend([os.to_owned(), arch.to_owned()]);
    for prefix in ["shunt", "kici"] {
        labels.extend([
            format!("{prefix}:os:{os}"),
            format!("{prefix}:arch:{arch}"),
            format!("{prefix}:host:{host}"),
        ]);
    }
    labels.sort();
    labels.dedup();
    labels
}
