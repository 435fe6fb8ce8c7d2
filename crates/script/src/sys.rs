//! The system calls for which no safe wrapper exists.

#![expect(unsafe_code, reason = "raw system calls, each with plain arguments")]

/// A copy of the bytes of a script's array; none when it is detached.
pub(crate) fn copy_bytes(array: &rquickjs::TypedArray<'_, u8>) -> Vec<u8> {
    // SAFETY: the bytes are copied before the script, which could shrink the buffer, runs again.
    unsafe { array.as_bytes() }.map(<[u8]>::to_vec).unwrap_or_default()
}

/// Closes every descriptor from `first` on; true when the kernel did it.
#[cfg(target_os = "linux")]
pub(crate) fn close_from(first: libc::c_uint) -> bool {
    // SAFETY: takes integers only. Nothing in the calling child uses a descriptor above 2.
    unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) == 0 }
}

/// Whether the kernel refuses `fork`.
#[cfg(target_os = "linux")]
pub(crate) fn fork_is_denied() -> bool {
    // SAFETY: if there is a child after all, it ends at once without touching any state.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::_exit(0);
        }
        pid < 0
    }
}

/// Whether the kernel refuses `execve`, for a path that does not exist.
#[cfg(target_os = "linux")]
pub(crate) fn exec_is_denied() -> bool {
    let argv = [std::ptr::null()];
    // SAFETY: the path and the empty argument list are valid, null-terminated and outlive the call.
    unsafe { libc::execve(c"/nonexistent".as_ptr(), argv.as_ptr(), argv.as_ptr()) };
    last_is_denial()
}

/// Whether the kernel refuses `ptrace`.
#[cfg(target_os = "linux")]
pub(crate) fn trace_is_denied() -> bool {
    // SAFETY: takes integers only; `PTRACE_TRACEME` has no pointer arguments.
    unsafe {
        libc::syscall(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0) == -1 && last_is_denial()
    }
}

/// Whether the kernel refuses even the empty signal to the own process.
#[cfg(target_os = "linux")]
pub(crate) fn kill_is_denied() -> bool {
    // SAFETY: takes integers only; signal 0 does nothing.
    unsafe { libc::kill(libc::getpid(), 0) == -1 && last_is_denial() }
}

/// Whether the kernel refuses memory that can be executed.
#[cfg(target_os = "linux")]
pub(crate) fn executable_memory_is_denied() -> bool {
    const BYTES: usize = 4096;
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, -1, 0) };
    at == libc::MAP_FAILED
}

/// Whether writing to a descriptor is refused, other than because it is closed.
#[cfg(target_os = "linux")]
pub(crate) fn write_is_denied(descriptor: libc::c_int) -> bool {
    // SAFETY: no bytes are read from the pointer, the length is 0.
    unsafe { libc::write(descriptor, std::ptr::null(), 0) == -1 && last_is_denial() }
}

#[cfg(target_os = "linux")]
fn last_is_denial() -> bool {
    std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}
