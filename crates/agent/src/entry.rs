//! The hidden sub-commands: how this software starts itself again in another part.

use std::{ffi::OsString, path::Path, process::ExitCode};

use crate::{sandbox, supervisor};

pub(crate) const SUPERVISE: &str = "__supervise";
pub(crate) const INIT: &str = "__init";
pub(crate) const RUNNER: &str = "__runner";
pub(crate) const PROBE: &str = "__probe";

/// Runs a hidden sub-command, when `args` (without the program's name) names one. Call it first
/// thing in `main`, before any thread and any runtime exists.
pub fn hidden_command(args: &[OsString]) -> Option<ExitCode> {
    let (command, rest) = args.split_first()?;
    match (command.to_str()?, rest) {
        (SUPERVISE, [dir]) => Some(supervisor::main(Path::new(dir))),
        (INIT, [spec]) => Some(sandbox::init_main(spec)),
        (PROBE, []) => Some(sandbox::probe_main()),
        (RUNNER, []) => Some(shuntyard_script::runner_child_main()),
        _ => None,
    }
}
