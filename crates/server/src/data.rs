//! The data folder: one server at a time, and closed to other users.

use std::{
    fs::{self, DirBuilder, File, Permissions, TryLockError},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use anyhow::{Context, bail};
use shuntyard_store::Database;

/// Two servers on one folder would write the same segments, and the first one to end would take the
/// other's address away.
pub(crate) fn lock(data: &Path) -> anyhow::Result<File> {
    let path = data.join("server.lock");
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = file.with_context(|| format!("open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!(
            "the data folder {} is in use by another server: stop that one, or choose another folder \
             with --data",
            data.display()
        ),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("lock {}", path.display()))
        }
    }
}

pub(crate) fn make_private_dir(path: &Path) -> anyhow::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("make the folder {}", path.display()))
}

/// Closes everything in the data folder to other users. The folder itself is open to some of them
/// when they run the commands of an agent in it.
pub(crate) fn close(data: &Path, database: &Database) -> anyhow::Result<()> {
    for name in ["segments", "mirrors"] {
        let path = data.join(name);
        make_private_dir(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o700))
            .with_context(|| format!("close {}", path.display()))?;
    }
    let Database::Sqlite(path) = database else { return Ok(()) };
    // SQLite gives the files that belong to this one the same mode.
    let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(path);
    let closed = file.and_then(|file| file.set_permissions(Permissions::from_mode(0o600)));
    closed.with_context(|| format!("close {}", path.display()))
}
