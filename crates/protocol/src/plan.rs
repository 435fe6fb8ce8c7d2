//! The plan: what evaluating the workflow files at one commit yields.
//!
//! A plan is plain JSON with sorted maps, so the same source always gives the same bytes and its
//! digest is its name. It is what the sandboxed child hands to the coordinator; nothing in it has
//! been checked yet (`core::plan` does that).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Outcome;

/// The version that this build writes.
pub const PLAN_VERSION: u32 = 1;

/// All workflows of one commit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub version: u32,
    /// In order of file name, then of export.
    pub workflows: Vec<Workflow>,
    /// SHA-256 (hex) of every file that the evaluation read, by path in the repository.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// What the author should know but what stops nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Workflow {
    pub name: String,
    /// Path in the repository, for errors and for running functions.
    pub file: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Any of them starts a run; none means that it is only started by hand.
    #[serde(default)]
    pub on: Vec<Trigger>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Limit for the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The whole run waits for a slot, and keeps it until it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    pub jobs: Vec<Job>,
}

/// A concurrency group and how its members get along.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Concurrency {
    /// Belongs to the repository; `org:` before the name shares it within the org.
    pub group: String,
    /// A newcomer cancels the older members that it has no room beside.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cancel_in_progress: bool,
    /// Members at the same time.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub max: u32,
}

/// What starts a run. Patterns are globs, evaluated in order; `!p` takes away.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Trigger {
    Push {
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        branches: Vec<String>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tags: Vec<String>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        paths: Vec<String>,
    },
    Pr {
        /// Patterns for the branch that the pull request wants to change.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        target: Vec<String>,
        /// Patterns for the branch that it comes from.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        source: Vec<String>,
        /// Actions; empty means opened, synchronize, reopened.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        events: Vec<String>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        paths: Vec<String>,
    },
    Tag {
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        patterns: Vec<String>,
    },
    Manual {},
    Schedule {
        cron: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timezone: Option<String>,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs_on: Option<RunsOn>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<Need>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matrix: Option<Matrix>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub checkout: Checkout,
    /// Per try. Absent: six hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Time between SIGTERM and the kill at a cancel. Absent: 30 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<JobRetry>,
    /// Each instance of the job waits for a slot once it is ready, and keeps it until it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub continue_on_error: bool,
    /// −100…100; higher goes first within an org.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i32,
    pub steps: Vec<Step>,
    /// `parallel` blocks that steps refer to by index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parallels: Vec<Parallel>,
    /// Written as `run`: outputs are flat instead of by step name.
    #[serde(default, skip_serializing_if = "is_false")]
    pub single: bool,
}

/// Which agents may take a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunsOn {
    /// All of them must match a label of the agent.
    pub labels: Vec<Selector>,
    /// None of them may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<Selector>,
}

/// One condition on a label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    Exact(String),
    Glob(String),
    Regex(String),
}

/// One upstream of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    pub job: String,
    /// The outcomes of the upstream that let this job go on.
    pub when: Vec<Outcome>,
}

/// A static matrix as the author wrote it; `core::fanout` expands it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Matrix {
    pub axes: Axes,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<BTreeMap<String, Value>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<BTreeMap<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_parallel: Option<u32>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub fail_fast: bool,
}

/// The values of a matrix: a plain list, or named axes in the order they were declared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axes {
    List(Vec<Value>),
    Product(Vec<(String, Vec<Value>)>),
}

/// What of the repository is in the workspace when the first step starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkout {
    pub enabled: bool,
    /// Commits of history; 0 means all.
    #[serde(default)]
    pub depth: u32,
    #[serde(default, skip_serializing_if = "is_false")]
    pub submodules: bool,
}

impl Default for Checkout {
    fn default() -> Self {
        Self { enabled: true, depth: 1, submodules: false }
    }
}

/// When another try of a job is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRetry {
    /// Tries in all, the first one included.
    pub max_attempts: u32,
    /// Outcomes that are tried again.
    pub on: Vec<Outcome>,
}

/// Steps run in order; those that share a `parallel` run at the same time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub name: String,
    pub action: Action,
    /// Index into the job's `parallels`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel: Option<u32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Per try. Absent: no limit of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<StepRetry>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub continue_on_error: bool,
    /// JSON schema of the outputs, in the SDK's own form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Action {
    /// A command line: needs no JavaScript at run time.
    Shell {
        command: String,
        /// Program and arguments before the script. Absent: bash, else sh.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shell: Option<Vec<String>>,
        /// Relative to the workspace.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cwd: Option<String>,
    },
    /// A function of the workflow file, found again by job name and step index.
    Function {},
}

impl Default for Action {
    fn default() -> Self {
        Self::Function {}
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parallel {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub fail_fast: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_parallel: Option<u32>,
}

/// Waiting time after try n is `min(delay · 2^(n−1), max_delay)`, or `delay` when fixed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRetry {
    /// Tries in all, the first one included.
    pub max_attempts: u32,
    pub delay_ms: u64,
    pub max_delay_ms: u64,
    pub exponential: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_false(value: &bool) -> bool {
    !value
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_one(value: &u32) -> bool {
    *value == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_zero(value: &i32) -> bool {
    *value == 0
}
