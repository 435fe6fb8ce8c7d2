//! The real children, end to end: every test starts the crate's own binary.

#![expect(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::disallowed_methods,
    reason = "a test talks to real processes, and fails where anything is unexpected"
)]

mod limits;
mod mistakes;
mod options;
mod plans;
mod runner;
mod stops;
#[cfg(target_os = "linux")]
mod walls;

use std::{collections::BTreeMap, path::PathBuf};

use shuntyard_protocol::Timestamp;
use shuntyard_script::{Bundle, EvaluateError, Evaluated, Launcher, Require, evaluate};

/// The instant that planning sees: 2026-01-02T03:04:05.006Z.
const NOW: Timestamp = Timestamp(1_767_323_045_006);

fn launcher(entry: &str) -> Launcher {
    Launcher {
        program: PathBuf::from(env!("CARGO_BIN_EXE_shunt-script")),
        args: vec![entry.into()],
    }
}

fn bundle(files: &[(&str, &str)]) -> Bundle {
    let files: BTreeMap<_, _> = files
        .iter()
        .map(|(path, text)| (format!(".shuntyard/{path}"), (*text).to_owned()))
        .collect();
    Bundle::new(files).unwrap()
}

/// Evaluates these files of a workflow folder.
fn evaluate_files(files: &[(&str, &str)]) -> Result<Evaluated, EvaluateError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(evaluate(&launcher("evaluate"), &bundle(files), NOW, Require::Walls))
}

/// Evaluates one workflow file, with everything of the SDK in scope.
fn evaluate_one(body: &str) -> Result<Evaluated, EvaluateError> {
    let source = format!(
        "import * as sdk from 'shuntyard';\nconst {{ workflow, job, step, sh, parallel, push, pr, tag, manual, schedule, z }} = sdk;\n{body}"
    );
    evaluate_files(&[("workflows/w.ts", &source)])
}

/// The workflow's fields as JSON.
fn plan_of(body: &str) -> serde_json::Value {
    let evaluated = evaluate_one(body).unwrap_or_else(|error| panic!("{error}"));
    serde_json::to_value(&evaluated.plan.workflows).unwrap()
}

/// The faults as they are printed.
fn faults_of(result: Result<Evaluated, EvaluateError>) -> String {
    match result {
        Err(error @ EvaluateError::Faults(_)) => error.to_string(),
        Err(other) => panic!("not a fault of the files: {other:?}"),
        Ok(evaluated) => panic!("planned: {}", String::from_utf8_lossy(&evaluated.bytes)),
    }
}
