//! The files that a step hands over, and how they are read without following the job's tricks.

use std::{
    collections::BTreeMap,
    fs, io,
    io::Read as _,
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use serde_json::Value;

use super::core::Core;
use crate::{
    files::{self as disk, FileError},
    handoff::{self, HandoffError},
};

/// Longest hand-off file.
const HANDOFF_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Longest outputs of a step, as JSON.
pub(super) const STEP_OUTPUT_BYTES_MAX: usize = 256 * 1024;

/// A hand-off that cannot be used; it fails the step.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepFileError {
    #[error("cannot read ${variable}: {source}")]
    Read { variable: &'static str, source: io::Error },
    #[error("${variable}: {source}")]
    Parse { variable: &'static str, source: HandoffError },
    #[error("the outputs have {bytes} bytes as JSON: the limit is {STEP_OUTPUT_BYTES_MAX}")]
    TooLong { bytes: usize },
}

/// The files of one try of one step.
pub(super) struct StepFiles {
    dir: PathBuf,
}

/// What a step handed over.
#[derive(Debug, Default)]
pub(super) struct HandedOver {
    pub env: Vec<(String, String)>,
    /// In the order written.
    pub paths: Vec<String>,
    pub outputs: Option<Value>,
}

const FILES: [(&str, &str); 4] =
    [("ENV", "env"), ("PATH", "path"), ("OUTPUT", "output"), ("SUMMARY", "summary")];

impl StepFiles {
    /// Makes them, empty, for the job's user to write.
    pub(super) fn create(core: &Core, step: usize, script: &str) -> Result<Self, FileError> {
        let dir = core.dir.step_files(step);
        disk::remove_tree(&dir)?;
        disk::make_dir(&dir, 0o755)?;
        let files = Self { dir };
        files.write(&files.script(), script.as_bytes())?;
        for (_, name) in FILES {
            let path = files.dir.join(name);
            files.write(&path, b"")?;
            if let Some(user) = &core.settings.user {
                std::os::unix::fs::chown(&path, Some(user.uid), Some(user.gid))
                    .map_err(FileError::of("change owner of", &path))?;
            }
        }
        Ok(files)
    }

    #[expect(clippy::unused_self, reason = "only for files of this directory")]
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), FileError> {
        fs::write(path, bytes).map_err(FileError::of("write", path))
    }

    pub(super) fn script(&self) -> PathBuf {
        self.dir.join("script")
    }

    /// The variables that name them, under both prefixes.
    pub(super) fn variables(&self) -> BTreeMap<String, String> {
        FILES
            .iter()
            .flat_map(|(variable, name)| {
                let path = self.dir.join(name).to_string_lossy().into_owned();
                [(format!("SHUNT_{variable}"), path.clone()), (format!("KICI_{variable}"), path)]
            })
            .collect()
    }

    /// Reads what the step left.
    pub(super) fn read(&self) -> Result<HandedOver, StepFileError> {
        let env = self.pairs("SHUNT_ENV", "env")?;
        for (name, value) in &env {
            handoff::check_variable(name, value)
                .map_err(|source| StepFileError::Parse { variable: "SHUNT_ENV", source })?;
        }
        let read = |source| StepFileError::Read { variable: "SHUNT_PATH", source };
        let paths = String::from_utf8(self.bytes("path").map_err(read)?)
            .map_err(|error| read(io::Error::new(io::ErrorKind::InvalidData, error)))?;
        let paths = paths.trim_start_matches('\u{feff}').lines().map(str::trim);
        let paths = paths.filter(|path| !path.is_empty()).map(str::to_owned).collect();
        let outputs = self.pairs("SHUNT_OUTPUT", "output")?;
        let outputs: serde_json::Map<String, Value> =
            outputs.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
        let outputs = (!outputs.is_empty()).then_some(Value::Object(outputs));
        check_outputs(outputs.as_ref())?;
        Ok(HandedOver { env, paths, outputs })
    }

    fn pairs(
        &self,
        variable: &'static str,
        name: &str,
    ) -> Result<Vec<(String, String)>, StepFileError> {
        let bytes = self.bytes(name).map_err(|source| StepFileError::Read { variable, source })?;
        handoff::parse(&bytes).map_err(|source| StepFileError::Parse { variable, source })
    }

    /// The supervisor sees more than the job does: a link, a pipe or a device that the job put
    /// here is refused, so that it cannot make us read for it. A removed file is empty.
    fn bytes(&self, name: &str) -> io::Result<Vec<u8>> {
        let path = self.dir.join(name);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat2(CWD, &path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            Ok(file) => fs::File::from(file),
            Err(rustix::io::Errno::NOENT) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no longer a file"));
        }
        let mut bytes = Vec::new();
        file.take(HANDOFF_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > HANDOFF_BYTES_MAX {
            let text = format!("it is longer than {HANDOFF_BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        Ok(bytes)
    }
}

/// Refuses outputs that are too long to keep.
pub(super) fn check_outputs(outputs: Option<&Value>) -> Result<(), StepFileError> {
    let bytes = outputs.map_or(0, |outputs| outputs.to_string().len());
    if bytes > STEP_OUTPUT_BYTES_MAX {
        return Err(StepFileError::TooLong { bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> (tempfile::TempDir, StepFiles) {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().canonicalize().unwrap();
        for (_, name) in FILES {
            fs::write(dir.join(name), "").unwrap();
        }
        (temp, StepFiles { dir })
    }

    #[test]
    fn what_a_step_writes_is_handed_over() {
        let (_temp, files) = files();
        fs::write(files.dir.join("env"), "A=1\nB<<E\nx\ny\nE").unwrap();
        fs::write(files.dir.join("path"), "/one\n\n/two\n").unwrap();
        fs::write(files.dir.join("output"), "v=1.2").unwrap();
        let over = files.read().unwrap();
        assert_eq!(over.env, [("A".into(), "1".into()), ("B".into(), "x\ny".into())]);
        assert_eq!(over.paths, ["/one", "/two"]);
        assert_eq!(over.outputs, Some(serde_json::json!({"v": "1.2"})));
    }

    #[test]
    fn a_link_or_a_pipe_in_place_of_a_file_is_refused() {
        let (_temp, files) = files();
        let path = files.dir.join("env");
        fs::remove_file(&path).unwrap();
        assert!(files.read().unwrap().env.is_empty());
        std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
        assert!(files.read().is_err());
        fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(CWD, &path, Mode::RUSR).unwrap();
        assert!(files.read().is_err());
    }

    #[test]
    fn a_file_at_the_limit_is_read_and_one_byte_more_is_refused() {
        let (_temp, files) = files();
        let path = files.dir.join("path");
        let bytes = usize::try_from(HANDOFF_BYTES_MAX).unwrap();
        fs::write(&path, vec![b'x'; bytes]).unwrap();
        assert!(files.read().is_ok());
        fs::write(&path, vec![b'x'; bytes + 1]).unwrap();
        assert!(files.read().is_err());
    }

    #[test]
    fn outputs_at_the_limit_pass_and_one_byte_more_is_refused() {
        let of = |bytes: usize| Value::String("x".repeat(bytes - 2));
        assert!(check_outputs(Some(&of(STEP_OUTPUT_BYTES_MAX))).is_ok());
        assert!(check_outputs(Some(&of(STEP_OUTPUT_BYTES_MAX + 1))).is_err());
    }
}
