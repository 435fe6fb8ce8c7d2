//! The first process of a containment unit: makes the unit's view of the machine, then adopts.
//!
//! It lives as long as its supervisor: it dies by the kernel's parent-death signal, and also when
//! the pipe on its stdin ends. With it the kernel kills everything in its PID namespace.

use std::{
    ffi::OsStr,
    fs, io,
    io::{Read as _, Write as _},
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use rustix::{
    fs::{Mode, OFlags},
    mount::{
        MountFlags, MountPropagationFlags, mount, mount_bind, mount_bind_recursive, mount_change,
        mount_remount,
    },
    process::{DumpableBehavior, set_dumpable_behavior},
};
use serde::{Deserialize, Serialize};

use super::sys;

/// What the unit sees differently from the host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct View {
    /// Directories that are empty and files that read as empty in the unit.
    pub hide: Vec<PathBuf>,
    /// A directory that stays visible in spite of that.
    pub keep: Option<PathBuf>,
}

/// What init says on its stdout once the view stands.
pub(super) const READY: &[u8] = b"ready\n";

/// A step of making the view that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}: {source}", path.display())]
struct ViewError {
    operation: &'static str,
    path: PathBuf,
    source: io::Error,
}

fn failed<E: Into<io::Error>>(operation: &'static str, path: &Path) -> impl FnOnce(E) -> ViewError {
    let path = path.to_owned();
    move |source| ViewError { operation, path, source: source.into() }
}

/// Runs as the first process of a new PID namespace.
pub(crate) fn init_main(view: &OsStr) -> ExitCode {
    sys::ignore_children();
    let parsed = view.to_str().and_then(|text| serde_json::from_str::<View>(text).ok());
    let result = match parsed {
        Some(view) => make_view(&view).map_err(|error| error.to_string()),
        None => Err("the description of the view is not valid".into()),
    };
    let mut stdout = io::stdout();
    let said = match &result {
        Ok(()) => stdout.write_all(READY),
        Err(text) => stdout.write_all(text.as_bytes()),
    };
    if result.is_err() || said.and_then(|()| stdout.flush()).is_err() {
        return ExitCode::FAILURE;
    }
    // Nothing is ever written to this pipe: it only ends.
    while matches!(io::stdin().read(&mut [0]), Ok(1..)) {}
    ExitCode::SUCCESS
}

fn make_view(view: &View) -> Result<(), ViewError> {
    let root = Path::new("/");
    sys::unshare_mounts().map_err(failed("unshare the mounts of", root))?;
    mount_change(root, MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(failed("make private", root))?;
    let kept = match &view.keep {
        Some(path) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(failed("open", path))?;
            Some((path, fd))
        }
        None => None,
    };
    let mut covered = Vec::new();
    for path in &view.hide {
        covered.extend(hide(path)?);
    }
    if let Some((path, fd)) = kept {
        let source = format!("/proc/self/fd/{}", fd.as_raw_fd());
        fs::create_dir_all(path).map_err(failed("create", path))?;
        mount_bind_recursive(source, path).map_err(failed("bind", path))?;
    }
    for path in covered {
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        mount_remount(path, flags, "").map_err(failed("remount", path))?;
    }
    let proc = Path::new("/proc");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", proc, "proc", flags, None).map_err(failed("mount", proc))?;
    // Commands of the same user must not trace the one process that holds the unit together.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("protect", proc))
}

/// Covers one path; gives it back when it is a directory that now is an empty file system.
fn hide(path: &Path) -> Result<Option<&Path>, ViewError> {
    let Ok(metadata) = fs::metadata(path) else {
        // Not there, or already covered with what it lay in.
        return Ok(None);
    };
    if metadata.is_dir() {
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", path, "tmpfs", flags, Some(c"mode=0755,size=64k"))
            .map_err(failed("hide", path))?;
        return Ok(Some(path));
    }
    mount_bind("/dev/null", path).map_err(failed("hide", path))?;
    Ok(None)
}
