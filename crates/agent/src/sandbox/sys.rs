//! The raw system calls behind the sandbox: the only unsafe code of this crate.
//!
//! What runs between `fork` and `exec` makes system calls on prepared values and nothing else: no
//! allocation, no lock, no path that is not already a C string.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::Command,
};

use rustix::thread::{
    CapabilitySet, capabilities, configure_capability_in_ambient_set, set_capabilities,
};

/// What a forked child becomes before it runs its program.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// Mount namespace to enter.
    pub mount_ns: Option<OwnedFd>,
    /// Directory to start in, seen from that namespace.
    pub cwd: Option<CString>,
    /// Drop the capabilities that would let root undo the unit.
    pub drop_capabilities: bool,
    pub user: Option<Ids>,
    /// Keep the right to mount over `exec`, in a user namespace of our own.
    pub keep_mounting: bool,
    /// SIGKILL for the child when the thread that forks it ends.
    pub die_with_parent: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ids {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// What root in a unit does without: mounting, tracing, raw devices, modules, opening by handle,
/// rebooting, and whatever else reaches around the unit's walls.
const DROPPED_CAPABILITIES: [libc::c_ulong; 15] = [
    2,  // DAC_READ_SEARCH
    16, // SYS_MODULE
    17, // SYS_RAWIO
    19, // SYS_PTRACE
    20, // SYS_PACCT
    21, // SYS_ADMIN
    22, // SYS_BOOT
    25, // SYS_TIME
    27, // MKNOD
    32, // MAC_OVERRIDE
    33, // MAC_ADMIN
    34, // SYSLOG
    38, // PERFMON
    39, // BPF
    40, // CHECKPOINT_RESTORE
];

/// As the C library's wrapper takes it.
const CLOSE_ON_EXEC: libc::c_int = 1 << 2;

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Without root the capabilities of a new user namespace end at `exec`, except ambient ones.
fn keep_mounting() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable |= CapabilitySet::SYS_ADMIN;
    set_capabilities(None, sets)?;
    Ok(configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)?)
}

impl Entry {
    fn enter(&self) -> io::Result<()> {
        if self.keep_mounting {
            keep_mounting()?;
        }
        // SAFETY: plain system calls on values that live as long as `self`; none of them touches
        // memory other than what the pointers here name, and all are async-signal-safe.
        #[expect(unsafe_code, reason = "system calls without a safe wrapper after fork")]
        unsafe {
            for signal in 1..=libc::SIGRTMAX() {
                // Fails for SIGKILL, SIGSTOP and those the C library keeps; nothing to do there.
                libc::signal(signal, libc::SIG_DFL);
            }
            libc::umask(0o022);
            if let Some(ns) = &self.mount_ns {
                check(libc::setns(ns.as_raw_fd(), libc::CLONE_NEWNS))?;
            }
            if self.drop_capabilities {
                for capability in DROPPED_CAPABILITIES {
                    // A kernel that does not know one cannot grant it either.
                    libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
                }
            }
            if let Some(Ids { uid, gid, groups }) = &self.user {
                check(libc::setgroups(groups.len(), groups.as_ptr()))?;
                check(libc::setresgid(*gid, *gid, *gid))?;
                check(libc::setresuid(*uid, *uid, *uid))?;
            }
            // A change of user clears this, so it comes after.
            if self.die_with_parent {
                check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            }
            if let Some(cwd) = &self.cwd {
                check(libc::chdir(cwd.as_ptr()))?;
            }
            // Whatever is open beyond the three streams ends at exec, the runtime's own too.
            check(libc::close_range(3, libc::c_uint::MAX, CLOSE_ON_EXEC))
        }
    }

    /// Makes the command's child become this first.
    pub(super) fn apply(self, command: &mut Command) {
        // SAFETY: `enter` keeps to what is allowed between fork and exec, see there.
        #[expect(unsafe_code, reason = "runs between fork and exec")]
        unsafe {
            command.pre_exec(move || self.enter());
        }
    }
}

/// Gives this process own namespaces: for its next children a PID namespace, and for itself a
/// user namespace when asked. Must be called while there is one thread.
pub(super) fn unshare(user: bool) -> io::Result<()> {
    let flags = libc::CLONE_NEWPID | if user { libc::CLONE_NEWUSER } else { 0 };
    // SAFETY: `unshare` with these flags changes no memory and no descriptors of this process.
    #[expect(unsafe_code, reason = "no safe wrapper")]
    check(unsafe { libc::unshare(flags) })
}

/// Gives this process its own mount namespace.
pub(super) fn unshare_mounts() -> io::Result<()> {
    // SAFETY: as above; the working directory and root of this one-threaded process are unshared.
    #[expect(unsafe_code, reason = "no safe wrapper")]
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) })
}

/// Lets the kernel reap this process's children by itself, adopted ones included.
pub(super) fn ignore_children() {
    // SAFETY: SIG_IGN installs no handler.
    #[expect(unsafe_code, reason = "no safe wrapper")]
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
    }
}

/// A kernel timer that kills this very process, even while it is stopped.
#[derive(Debug)]
pub(crate) struct KillTimer(libc::timer_t);

impl KillTimer {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: `event` and `timer` are live locals of the types that `timer_create` expects; an
        // all-zero `sigevent` is valid.
        #[expect(unsafe_code, reason = "no safe wrapper")]
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_SIGNAL;
            event.sigev_signo = libc::SIGKILL;
            let mut timer: libc::timer_t = std::ptr::null_mut();
            check(libc::timer_create(libc::CLOCK_BOOTTIME, &raw mut event, &raw mut timer))?;
            Ok(Self(timer))
        }
    }

    /// Fires at this time since boot, in milliseconds; absent means never.
    pub(crate) fn arm(&self, at_ms: Option<u64>) -> io::Result<()> {
        // A time of zero would disarm it.
        let at_ms = at_ms.map_or(0, |at| at.max(1));
        let value = libc::timespec {
            tv_sec: libc::time_t::try_from(at_ms / 1000).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::try_from(at_ms % 1000 * 1_000_000).unwrap_or(0),
        };
        let spec = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: value,
        };
        // SAFETY: the timer belongs to `self`, `spec` is a live local.
        #[expect(unsafe_code, reason = "no safe wrapper")]
        check(unsafe {
            libc::timer_settime(self.0, libc::TIMER_ABSTIME, &raw const spec, std::ptr::null_mut())
        })
    }
}

/// Name, home directory and ids of a user, from the system's user database.
pub(super) fn user(name: &str) -> io::Result<Option<(Ids, String)>> {
    let c_name = CString::new(name)?;
    let mut buffer = vec![0; 64 * 1024];
    // SAFETY: all pointers are to live locals, the length is the buffer's, and the strings that the
    // result points to lie in the buffer, which is read before it goes.
    #[expect(unsafe_code, reason = "no safe wrapper")]
    unsafe {
        let mut entry: libc::passwd = std::mem::zeroed();
        let mut found = std::ptr::null_mut();
        let code = libc::getpwnam_r(
            c_name.as_ptr(),
            &raw mut entry,
            buffer.as_mut_ptr(),
            buffer.len(),
            &raw mut found,
        );
        if found.is_null() {
            return if code == 0 { Ok(None) } else { Err(io::Error::from_raw_os_error(code)) };
        }
        let home = std::ffi::CStr::from_ptr(entry.pw_dir).to_string_lossy().into_owned();
        let mut groups = vec![0; 256];
        let mut count = 256;
        if libc::getgrouplist(c_name.as_ptr(), entry.pw_gid, groups.as_mut_ptr(), &raw mut count)
            < 0
        {
            return Err(io::Error::other("the user is in more than 256 groups"));
        }
        groups.truncate(usize::try_from(count).unwrap_or(0));
        Ok(Some((Ids { uid: entry.pw_uid, gid: entry.pw_gid, groups }, home)))
    }
}
