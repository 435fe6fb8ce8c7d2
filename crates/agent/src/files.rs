//! Small files that survive a crash, and errors that name the path.

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

/// A file operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}", path.display())]
pub struct FileError {
    pub operation: &'static str,
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

impl FileError {
    pub(crate) fn of(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { operation, path, source }
    }
}

/// Creates the directory and its parents with this mode.
pub(crate) fn make_dir(path: &Path, mode: u32) -> Result<(), FileError> {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .map_err(FileError::of("create directory", path))
}

/// Syncs a directory, so that the names in it survive a crash.
pub(crate) fn sync_dir(path: &Path) -> Result<(), FileError> {
    fs::File::open(path).and_then(|dir| dir.sync_all()).map_err(FileError::of("sync", path))
}

/// Replaces a file so that after a crash there is the old content or the new one, never a part.
/// Readable by its owner alone.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let temporary = path.with_extension("tmp");
    let write = || {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(FileError::of("write", path))?;
    path.parent().map_or(Ok(()), sync_dir)
}

pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), FileError> {
    let bytes = serde_json::to_vec(value)
        .map_err(|error| FileError::of("encode", path)(io::Error::other(error)))?;
    write_atomic(path, &bytes)
}

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, FileError> {
    let bytes = fs::read(path).map_err(FileError::of("read", path))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| FileError::of("decode", path)(io::Error::other(error)))
}

/// Removes a tree, also one whose directories lost their permissions.
pub(crate) fn remove_tree(path: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) => open_up(path),
    }
    fs::remove_dir_all(path).map_err(FileError::of("remove", path))
}

/// Best effort: what stays closed shows up as the error of the removal that follows.
fn open_up(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).ok();
    let Ok(entries) = fs::read_dir(path) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path());
        }
    }
}
