//! Evaluation as the host sees it: a bundle goes into a walled child, a plan comes out.
//!
//! The child is the current program again, started through a [`Launcher`]. Nothing it says is
//! trusted: its answer is bounded, parsed, and written anew.

pub(crate) mod child;
mod wire;

#[cfg(unix)]
use std::os::unix::process::ExitStatusExt;
use std::{
    ffi::OsString,
    io,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use serde_json::Value;
use shuntyard_protocol::{
    Timestamp,
    plan::{PLAN_VERSION, Plan},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    time::timeout,
};

use self::wire::{ANSWER_BACKSTOP_BYTES, Answer, Request, Verdict};
use crate::{
    bundle::{Bundle, plan_key},
    digest,
    fault::Fault,
    walls::Layers,
};

/// How long the child may take in all before it is killed. Its own limits come first.
pub const EVALUATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Most of the child's stderr that is kept.
const STDERR_BYTES_MAX: u64 = 16 * 1024;

/// How to start the child: the program and the arguments that lead to
/// [`evaluate_child_main`](crate::evaluate_child_main).
#[derive(Clone, Debug)]
pub struct Launcher {
    pub program: PathBuf,
    pub args: Vec<OsString>,
}

/// Who wrote the workflow files, and so which walls have to stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Require {
    /// The author may run code on this machine anyhow; missing walls are only reported.
    Nothing,
    /// The author is not trusted: without every wall of [`Layers::missing`] nothing is evaluated.
    Walls,
}

/// What the evaluation yields.
#[derive(Clone, Debug)]
pub struct Evaluated {
    pub plan: Plan,
    /// The plan as canonical JSON: the same source gives the same bytes.
    pub bytes: Vec<u8>,
    /// SHA-256 of `bytes`, hex.
    pub digest: String,
    /// The walls that stood.
    pub layers: Layers,
    /// What the files printed while they were planned.
    pub console: String,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
    /// The author's affair; each fault says where.
    #[error("{}", list(.0))]
    Faults(Vec<Fault>),
    #[error("the workflow files come from an untrusted author, and walls are missing around their evaluation: {}", .0.join(", "))]
    MissingLayers(Vec<&'static str>),
    #[error("cannot start {program} to evaluate the workflow files")]
    Spawn {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot talk to the process that evaluates the workflow files")]
    Link(#[source] io::Error),
    #[error("evaluating the workflow files took longer than {} s", EVALUATION_TIMEOUT.as_secs())]
    TimedOut,
    /// A limit of the operating system or a fault in the engine.
    #[error(
        "the process that evaluates the workflow files ended without an answer ({status}){hint}{stderr}"
    )]
    Died { status: String, hint: &'static str, stderr: String },
    #[error("the process that evaluates the workflow files gave no valid answer")]
    Answer(#[source] serde_json::Error),
}

fn list(faults: &[Fault]) -> String {
    let texts: Vec<_> = faults.iter().map(ToString::to_string).collect();
    texts.join("\n")
}

/// Evaluates the workflow files of a bundle at the instant `now`, which is what their clocks show.
///
/// # Errors
/// [`EvaluateError::Faults`] for mistakes in the files, anything else for this machine's.
pub async fn evaluate(
    launcher: &Launcher,
    bundle: &Bundle,
    now: Timestamp,
    require: Require,
) -> Result<Evaluated, EvaluateError> {
    let request = Request {
        bundle: bundle.clone(),
        now,
        seed: plan_key(bundle),
        need_walls: require == Require::Walls,
    };
    let answer = ask(launcher, &request).await?;
    let missing = answer.layers.missing();
    if require == Require::Walls && !missing.is_empty() {
        return Err(EvaluateError::MissingLayers(missing));
    }
    match answer.verdict {
        Verdict::Faults { faults } => Err(EvaluateError::Faults(faults)),
        Verdict::Refused {} => Err(EvaluateError::MissingLayers(missing)),
        Verdict::Planned { workflows, read, console } => {
            let known = read.into_iter().filter_map(|path| {
                let digest = digest::of(bundle.get(&path)?.as_bytes());
                Some((path, digest))
            });
            let plan = Plan {
                version: PLAN_VERSION,
                workflows,
                files: known.collect(),
                warnings: Vec::new(),
            };
            let bytes = canonical(&plan);
            let digest = digest::of(&bytes);
            Ok(Evaluated { plan, bytes, digest, layers: answer.layers, console })
        }
    }
}

/// The plan's one form as bytes. Fields keep their order, free values have sorted keys.
fn canonical(plan: &Plan) -> Vec<u8> {
    let value = serde_json::to_value(plan).expect("a plan is JSON");
    serde_json::to_vec(&sorted(value)).expect("JSON is writable")
}

/// The same value with the keys of every object in order, whatever map `serde_json` is built with.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> =
                map.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(entries.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        scalar @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => scalar,
    }
}

async fn ask(launcher: &Launcher, request: &Request) -> Result<Answer, EvaluateError> {
    let mut child = Command::new(&launcher.program)
        .args(&launcher.args)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| EvaluateError::Spawn { program: launcher.program.clone(), source })?;
    let bytes = serde_json::to_vec(request).expect("a request is JSON");
    // Dropping the child at the end of time kills it.
    match timeout(EVALUATION_TIMEOUT, talk(&mut child, &bytes)).await {
        Ok(answer) => answer,
        Err(_) => Err(EvaluateError::TimedOut),
    }
}

async fn talk(child: &mut Child, request: &[u8]) -> Result<Answer, EvaluateError> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        let mut stdin = stdin.expect("stdin is piped");
        // A child that does not read its request says why by how it ends.
        drop(stdin.write_all(request).await);
    };
    let read = read_up_to(stdout.expect("stdout is piped"), ANSWER_BACKSTOP_BYTES + 1);
    let complain = read_up_to(stderr.expect("stderr is piped"), STDERR_BYTES_MAX);
    let ((), answer, stderr) = tokio::join!(write, read, complain);
    let answer = answer.map_err(EvaluateError::Link)?;
    let too_long = answer.len() as u64 > ANSWER_BACKSTOP_BYTES;
    if too_long {
        drop(child.start_kill());
    }
    let status = child.wait().await.map_err(EvaluateError::Link)?;
    if !status.success() || answer.is_empty() || too_long {
        let stderr =
            String::from_utf8_lossy(&stderr.map_err(EvaluateError::Link)?).trim().to_owned();
        let stderr = if stderr.is_empty() { stderr } else { format!(": {stderr}") };
        return Err(EvaluateError::Died { status: status.to_string(), hint: hint(status), stderr });
    }
    serde_json::from_slice(&answer).map_err(EvaluateError::Answer)
}

/// What an author can do about the way the child ended.
#[cfg(unix)]
fn hint(status: ExitStatus) -> &'static str {
    match status.signal() {
        Some(libc::SIGXCPU | libc::SIGKILL) => "; it ran out of processor time or memory",
        Some(libc::SIGSEGV | libc::SIGBUS) => "; is something in the files nested very deeply?",
        Some(libc::SIGABRT) => "; it ran out of memory",
        _ => "",
    }
}

#[cfg(not(unix))]
fn hint(_status: ExitStatus) -> &'static str {
    ""
}

/// Reads at most `limit` bytes; what is beyond stays unread, and its writer will notice.
async fn read_up_to(source: impl AsyncRead + Unpin, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(limit).read_to_end(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stderr_bytes_max_bytes_of_complaints_are_kept() {
        let most = usize::try_from(STDERR_BYTES_MAX).unwrap();
        for (said, kept) in [(most - 1, most - 1), (most, most), (most + 1, most)] {
            let said = vec![b'x'; said];
            assert_eq!(read_up_to(&said[..], STDERR_BYTES_MAX).await.unwrap().len(), kept);
        }
    }
}
