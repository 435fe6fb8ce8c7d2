//! The walled child.

use std::{
    io::{self, Read, Write},
    process::ExitCode,
};

use super::wire::{Answer, REQUEST_BACKSTOP_BYTES, Request, Verdict};
use crate::{
    fault::Fault,
    plan::{self, PLAN_OUTPUT_BYTES_MAX, World},
    walls,
};

/// Entry of the evaluating child: raises the walls, reads the request from stdin, answers on stdout.
///
/// Call it first thing in `main`, before any thread is started: the walls stand around threads
/// that exist, but the user id is a matter of each thread.
pub fn evaluate_child_main() -> ExitCode {
    let layers = walls::raise();
    let mut bytes = Vec::new();
    let read = io::stdin().lock().take(REQUEST_BACKSTOP_BYTES).read_to_end(&mut bytes);
    let request: Request =
        match read.map_err(serde_json::Error::io).and_then(|_| serde_json::from_slice(&bytes)) {
            Ok(request) => request,
            Err(_) => return ExitCode::FAILURE,
        };
    let verdict = if request.need_walls && !layers.missing().is_empty() {
        Verdict::Refused {}
    } else {
        verdict(request)
    };
    match serde_json::to_vec(&Answer { layers, verdict }) {
        Ok(answer) if write(&answer).is_ok() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn write(answer: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(answer)?;
    stdout.flush()
}

fn verdict(request: Request) -> Verdict {
    let Request { bundle, now, seed, .. } = request;
    match plan::plan(bundle, &World { now, seed }) {
        Err(faults) => Verdict::Faults { faults },
        Ok(planned) => {
            let size =
                serde_json::to_vec(&planned.workflows).map_or(usize::MAX, |bytes| bytes.len());
            if size > PLAN_OUTPUT_BYTES_MAX {
                let limit = PLAN_OUTPUT_BYTES_MAX / (1024 * 1024);
                let message = format!("the plan is larger than {limit} MiB ({size} bytes)");
                return Verdict::Faults { faults: vec![Fault::new(message)] };
            }
            Verdict::Planned {
                workflows: planned.workflows,
                read: planned.read,
                console: planned.console,
            }
        }
    }
}

/// Entry of the probe: raises the walls, tries what they deny, and prints what happened as JSON.
/// Fails when something was possible.
#[cfg(target_os = "linux")]
pub fn probe_child_main() -> ExitCode {
    let probe = walls::probe::run();
    let denied = probe.denied.values().all(|denied| *denied);
    let written = serde_json::to_vec(&probe).is_ok_and(|bytes| write(&bytes).is_ok());
    if denied && written { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
