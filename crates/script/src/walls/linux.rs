//! The walls of Linux, from the outside in.

use std::fs;

use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetStatus, Scope};
use rustix::{
    process::{
        DumpableBehavior, Gid, Resource, Rlimit, Signal, Uid, getgid, getuid,
        set_dumpable_behavior, set_parent_process_death_signal, setrlimit,
    },
    thread::{set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

use super::{Layers, seccomp};
use crate::sys;

/// Address space of the child: the engine's memory, the parser's, and the program itself.
const ADDRESS_SPACE_BACKSTOP_BYTES: u64 = 512 * 1024 * 1024;
/// Processor time of the child; the engine's own limit comes first.
const PROCESSOR_BACKSTOP_SECONDS: u64 = 10;
/// The main thread's stack: the parser recurses.
const STACK_BYTES: u64 = 16 * 1024 * 1024;
/// One more than the last descriptor that may be open.
const DESCRIPTORS: u64 = 3;
/// Nobody, by long custom.
const NOBODY: u32 = 65534;

pub(super) fn raise() -> Layers {
    let environment = std::env::vars_os().next().is_none();
    let threads = fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    let descriptors = sys::close_from(3);
    let privileges = set_no_new_privs(true).is_ok();
    // Landlock opens a descriptor for its rules, so it goes before the limits.
    let landlock = landlock().unwrap_or(false);
    let uid = leave_root() && threads == 1;
    let process = privileges
        && set_dumpable_behavior(DumpableBehavior::NotDumpable).is_ok()
        && set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    let rlimits = limits();
    let seccomp = seccomp::install();
    Layers { seccomp, landlock, uid, rlimits, descriptors, environment, process }
}

fn landlock() -> Result<bool, landlock::RulesetError> {
    let abi = ABI::V6;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?
        .restrict_self()?;
    Ok(!matches!(status.ruleset, RulesetStatus::NotEnforced))
}

/// Gives up root; true when the process is not root afterwards.
fn leave_root() -> bool {
    if getuid().is_root() {
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        let left = set_thread_groups(&[]).is_ok()
            && set_thread_res_gid(gid, gid, gid).is_ok()
            && set_thread_res_uid(uid, uid, uid).is_ok();
        return left && !getuid().is_root() && !getgid().is_root();
    }
    true
}

fn limits() -> bool {
    let set = |resource, value| {
        setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) }).is_ok()
    };
    // The soft limit's signal says what happened; the hard one's would not.
    let cpu = Rlimit {
        current: Some(PROCESSOR_BACKSTOP_SECONDS),
        maximum: Some(PROCESSOR_BACKSTOP_SECONDS + 1),
    };
    set(Resource::Core, 0)
        & set(Resource::Fsize, 0)
        & set(Resource::Nproc, 0)
        & set(Resource::Nofile, DESCRIPTORS)
        & setrlimit(Resource::Cpu, cpu).is_ok()
        & set(Resource::Stack, STACK_BYTES)
        & set(Resource::As, ADDRESS_SPACE_BACKSTOP_BYTES)
}
