//! An attempt's place on disk.
//!
//! `DATA/attempts/ID` is the attempt as agent and supervisor see it; its presence means that the
//! agent holds the attempt. `DATA/work/ID` is what its commands see: the workspace and the files
//! of each step. The supervisor holds a lock that its agent took for it before it was started, so
//! that "does it live?" has one answer, at any moment and after any crash.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use shuntyard_protocol::agent::{AttemptId, AttemptKey, Containment, Spec, Timers};

use crate::{
    config::Launcher,
    files::{self, FileError},
    identity::ProcessId,
    sandbox::User,
};

/// What a supervisor is told besides the spec.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub data_dir: PathBuf,
    pub agent_name: String,
    pub agent_labels: Vec<String>,
    pub level: Containment,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    /// Host variables for the commands.
    pub host_env: BTreeMap<String, String>,
    pub hide: Vec<PathBuf>,
    pub launcher: Launcher,
    pub timers: Timers,
    pub offset_ms: i64,
    pub spool_quota_bytes: u64,
}

/// The processes of an attempt, for whoever has to end what is left of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Processes {
    pub supervisor: ProcessId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<ProcessId>,
}

/// The directories of one attempt.
#[derive(Clone, Debug)]
pub(crate) struct AttemptDir {
    pub id: AttemptId,
    root: PathBuf,
    work: PathBuf,
}

impl AttemptDir {
    pub(crate) fn new(data_dir: &Path, id: AttemptId) -> Self {
        let name = id.to_string();
        Self { id, root: attempts(data_dir).join(&name), work: work(data_dir).join(name) }
    }

    /// The attempt that a supervisor's argument names.
    pub(crate) fn from_root(root: &Path) -> Option<Self> {
        let id = parse_id(root.file_name()?.to_str()?)?;
        Some(Self::new(root.parent()?.parent()?, id))
    }

    /// Every attempt in the data directory.
    pub(crate) fn all(data_dir: &Path) -> Result<Vec<Self>, FileError> {
        let path = attempts(data_dir);
        let entries = fs::read_dir(&path).map_err(FileError::of("list", &path))?;
        let mut dirs = Vec::new();
        for entry in entries.flatten() {
            let root = entry.path();
            match Self::from_root(&root) {
                // Without settings the start had not come far enough for anything to run.
                Some(dir) if dir.settings_path().exists() => dirs.push(dir),
                _ => files::remove_tree(&root)?,
            }
        }
        Ok(dirs)
    }

    /// Writes everything that a supervisor needs; durable when this returns.
    pub(crate) fn create(
        &self,
        spec: &Spec,
        folder: &[u8],
        settings: &Settings,
    ) -> Result<(), FileError> {
        files::remove_tree(&self.root)?;
        files::make_dir(&self.root, 0o700)?;
        files::make_dir(&self.spool(), 0o700)?;
        files::write_json(&self.root.join("spec.json"), spec)?;
        files::write_atomic(&self.root.join("folder.json"), folder)?;
        let lock = self.root.join("lock");
        fs::File::create(&lock).map_err(FileError::of("create", &lock))?;
        // Last: its presence says that the rest is there.
        files::write_json(&self.settings_path(), settings)?;
        self.root.parent().map_or(Ok(()), files::sync_dir)
    }

    fn settings_path(&self) -> PathBuf {
        self.root.join("settings.json")
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// What the commands may see of the agent's data directory.
    pub(crate) fn work(&self) -> &Path {
        &self.work
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.work.join("workspace")
    }

    pub(crate) fn step_files(&self, step: usize) -> PathBuf {
        self.work.join("steps").join(step.to_string())
    }

    pub(crate) fn spool(&self) -> PathBuf {
        self.root.join("spool")
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.root.join("supervisor.log")
    }

    pub(crate) fn spec(&self) -> Result<Spec, FileError> {
        files::read_json(&self.root.join("spec.json"))
    }

    pub(crate) fn settings(&self) -> Result<Settings, FileError> {
        files::read_json(&self.settings_path())
    }

    pub(crate) fn folder(&self) -> Result<Vec<u8>, FileError> {
        let path = self.root.join("folder.json");
        fs::read(&path).map_err(FileError::of("read", &path))
    }

    /// The lock, taken, for a supervisor to inherit; nothing when somebody has it: it lives.
    pub(crate) fn try_lock(&self) -> Result<Option<fs::File>, FileError> {
        let path = self.root.join("lock");
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(FileError::of("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(FileError::of("lock", &path)(error)),
        }
    }

    pub(crate) fn write_processes(&self, processes: &Processes) -> Result<(), FileError> {
        files::write_json(&self.root.join("processes.json"), processes)
    }

    pub(crate) fn processes(&self) -> Option<Processes> {
        files::read_json(&self.root.join("processes.json")).ok()
    }

    pub(crate) fn write_key(&self, key: &AttemptKey) -> Result<(), FileError> {
        files::write_json(&self.root.join("key.json"), key)
    }

    /// Absent until `begun`.
    pub(crate) fn key(&self) -> Option<AttemptKey> {
        files::read_json(&self.root.join("key.json")).ok()
    }

    /// Says that nothing of this attempt is needed any more.
    pub(crate) fn mark_done(&self) -> Result<(), FileError> {
        files::write_atomic(&self.root.join("done"), b"")
    }

    pub(crate) fn is_done(&self) -> bool {
        self.root.join("done").exists()
    }

    /// Removes everything, the attempt's own directory last.
    pub(crate) fn remove(&self) -> Result<(), FileError> {
        files::remove_tree(&self.work)?;
        files::remove_tree(&self.root)
    }

    /// The variable that marks every process of this attempt.
    pub(crate) fn mark(&self) -> String {
        format!("{MARK}={}", self.id)
    }
}

/// Name of the variable that says which attempt a process belongs to.
pub(crate) const MARK: &str = "SHUNT_ATTEMPT_ID";

pub(crate) fn attempts(data_dir: &Path) -> PathBuf {
    data_dir.join("attempts")
}

pub(crate) fn work(data_dir: &Path) -> PathBuf {
    data_dir.join("work")
}

fn parse_id(name: &str) -> Option<AttemptId> {
    let (job, attempt) = name.split_once('.')?;
    Some(AttemptId { job: job.parse().ok()?, attempt: attempt.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use shuntyard_protocol::{JobId, Timestamp};

    use super::*;

    #[test]
    fn the_name_of_an_attempt_is_read_back() {
        let id = AttemptId { job: JobId::mint(Timestamp(5), [7; 10]), attempt: 3 };
        assert_eq!(parse_id(&id.to_string()), Some(id));
        let dir = AttemptDir::new(Path::new("/data"), id);
        assert_eq!(AttemptDir::from_root(dir.root()).unwrap().work(), dir.work());
        assert_eq!(parse_id("job_x.1"), None);
    }
}
