//! TypeScript → plan, and running a job's functions.
//!
//! Two children do the work, both the current program under another entry:
//! [`evaluate_child_main`] plans untrusted files behind walls, [`runner_child_main`] runs the
//! functions of one attempt's job like any other command of the user. C code (the engine) lives in
//! this crate alone.
//!
//! Invariant: no byte of an author is parsed or run in the process of the host.

mod bundle;
mod clock;
mod describe;
mod digest;
mod engine;
mod evaluate;
mod fault;
mod graph;
mod plan;
mod raw;
mod runner;
mod sdk;
mod strip;
mod sys;
mod walls;

pub use self::{
    bundle::{
        BUNDLE_BYTES_MAX, BUNDLE_FILES_MAX, BUNDLE_JSON_BYTES_MAX, Bundle, BundleError, FOLDERS,
        plan_key,
    },
    evaluate::{
        EVALUATION_TIMEOUT, EvaluateError, Evaluated, Launcher, Require,
        child::evaluate_child_main, evaluate,
    },
    fault::{FAULTS_MAX, Fault, Place},
    plan::{PLAN_MEMORY_BYTES_MAX, PLAN_OUTPUT_BYTES_MAX, PLAN_TIME_MAX},
    runner::{RUN_MEMORY_BYTES_MAX, runner_child_main},
    sdk::TYPES,
    walls::Layers,
};
#[cfg(target_os = "linux")]
pub use self::{evaluate::child::probe_child_main, walls::probe::Probe};
