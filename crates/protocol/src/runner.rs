//! Between a supervisor and the engine child that runs a job's functions.
//!
//! The child is one process per attempt, so the steps of a job share module state. It gets frames
//! on stdin and answers on stdout (each with a u32 big-endian length before it); nothing that it
//! says is trusted beyond its own attempt. Its own stderr is a crash report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agent::Upstream;

/// Frames to the child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToRunner {
    /// First frame; its payload is the workflow folder, a JSON map from path to text.
    Load {
        /// Path of the workflow file in that map.
        file: String,
        workflow: String,
        job: String,
        /// What `ctx` says besides the step: event, matrix, run, job, workflow, attempt, agent.
        context: Value,
        needs: BTreeMap<String, Upstream>,
    },
    Step(RunStep),
    /// A step is out of time or the job is cancelled: reject its promise, kill its commands.
    Stop {
        step: u32,
        force: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunStep {
    /// Index in the plan's list of steps.
    pub step: u32,
    /// From 1.
    pub try_no: u32,
    /// The whole environment of its commands.
    pub env: BTreeMap<String, String>,
    pub workspace: String,
    /// Outputs of earlier steps, by name.
    pub outputs: BTreeMap<String, Value>,
}

/// Frames from the child. `Output` carries the bytes as its payload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromRunner {
    /// The workflow file is loaded.
    Ready {},
    /// It could not be loaded: no step will run.
    LoadFailed {
        message: String,
    },
    Output {
        step: u32,
    },
    SetEnv {
        step: u32,
        name: String,
        value: String,
    },
    AddPath {
        step: u32,
        path: String,
    },
    Done(StepDone),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepDone {
    pub step: u32,
    /// Absent: it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<StepError>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepError {
    /// Message and stack, with positions in the TypeScript file.
    pub message: String,
    /// Exit code of the command that failed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}
