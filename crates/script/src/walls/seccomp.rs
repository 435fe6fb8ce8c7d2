//! The system call filter: what computing and answering need, and nothing else.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter_all_threads,
};

/// Calls that are allowed with any arguments: memory, time, chance, waiting, ending.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
];

/// Installs the filter on every thread; true when it stands. A call outside the list fails with
/// EPERM, so that libraries which try and fall back go on.
pub(super) fn install() -> bool {
    program().is_ok_and(|program| apply_filter_all_threads(&program).is_ok())
}

fn program() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().map(|&call| (call, Vec::new())).collect();
    let up_to = |descriptor: u64| {
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Le, descriptor)
    };
    // Only the three standard descriptors.
    for call in [libc::SYS_read, libc::SYS_write, libc::SYS_writev] {
        rules.insert(call, vec![SeccompRule::new(vec![up_to(2)?])?]);
    }
    // Memory, but never executable memory.
    let executable = u64::from(libc::PROT_EXEC.unsigned_abs());
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        let condition = SeccompCondition::new(
            2,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::MaskedEq(executable),
            0,
        )?;
        rules.insert(call, vec![SeccompRule::new(vec![condition])?]);
    }
    let denied = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, denied, SeccompAction::Allow, arch)?.try_into()
}
