//! The walls around the evaluating child, raised before it reads the first byte of an author.
//!
//! Each layer is there for the case that the engine itself has a hole. A layer that the system
//! does not offer is reported as missing, never passed over in silence.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub(crate) mod probe;
#[cfg(target_os = "linux")]
mod seccomp;

use serde::{Deserialize, Serialize};

/// Which walls stand around an evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each layer stands or does not")]
pub struct Layers {
    /// A system call filter without open, socket, exec, fork and ptrace.
    pub seccomp: bool,
    /// Landlock denies the whole file system.
    pub landlock: bool,
    /// Not root, and no group or capability of root.
    pub uid: bool,
    /// Limits on address space, processor time, descriptors, files, core dumps and processes.
    pub rlimits: bool,
    /// Only stdin, stdout and stderr are open.
    pub descriptors: bool,
    /// The environment is empty.
    pub environment: bool,
    /// No new privileges, not dumpable, dies with its parent.
    pub process: bool,
}

impl Layers {
    /// The walls that untrusted authors need and that do not stand.
    ///
    /// The wall before the file system is Landlock *or* the system call filter: the filter has no
    /// call that opens a path, so either is enough, and kernels before 5.13 have no Landlock. The
    /// filter is needed in any case, because it alone keeps the network and other processes away.
    pub fn missing(self) -> Vec<&'static str> {
        let files = self.landlock || self.seccomp;
        [
            (self.seccomp, "seccomp (network and processes)"),
            (files, "landlock or seccomp (files)"),
            (self.uid, "own uid"),
            (self.rlimits, "resource limits"),
            (self.descriptors, "closed descriptors"),
            (self.environment, "empty environment"),
            (self.process, "process attributes"),
        ]
        .into_iter()
        .filter(|(stands, _)| !stands)
        .map(|(_, name)| name)
        .collect()
    }
}

/// Raises every wall that the system offers. There is no way back.
#[cfg(target_os = "linux")]
pub(crate) fn raise() -> Layers {
    linux::raise()
}

/// Raises every wall that the system offers: here, none.
#[cfg(not(target_os = "linux"))]
pub(crate) fn raise() -> Layers {
    Layers { environment: std::env::vars_os().next().is_none(), ..Layers::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Layers = Layers {
        seccomp: true,
        landlock: true,
        uid: true,
        rlimits: true,
        descriptors: true,
        environment: true,
        process: true,
    };

    #[test]
    fn either_wall_before_the_files_is_enough_but_the_filter_is_needed() {
        assert!(ALL.missing().is_empty());
        assert!(Layers { landlock: false, ..ALL }.missing().is_empty());
        assert_eq!(Layers { seccomp: false, ..ALL }.missing(), ["seccomp (network and processes)"]);
        assert_eq!(Layers { seccomp: false, landlock: false, ..ALL }.missing().len(), 2);
        assert_eq!(Layers { uid: false, ..ALL }.missing(), ["own uid"]);
        assert_eq!(Layers::default().missing().len(), 7);
    }
}
