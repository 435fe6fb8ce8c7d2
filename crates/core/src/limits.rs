//! Every limit that more than one place must agree on, with its unit in its name.
//!
//! A limit that belongs to one parser or one protocol stands beside it. `cargo xtask tidy` checks
//! that each constant here is named by a test, which tries the limit itself and one more.

use std::time::Duration;

/// Longest name of a workflow, job or step, in characters.
pub const NAME_CHARS_MAX: usize = 100;
/// Most jobs of one matrix.
pub const MATRIX_JOBS_MAX: usize = 256;
/// Most jobs of one run, after fan-out.
pub const RUN_JOBS_MAX: usize = 4096;
/// Most steps of one job.
pub const JOB_STEPS_MAX: usize = 1000;
/// Most workflows of one plan.
pub const PLAN_WORKFLOWS_MAX: usize = 500;
/// Longest timeout.
pub const TIMEOUT_MAX: Duration = Duration::from_hours(24 * 24);
/// Lowest and highest priority of a job.
pub const PRIORITY_RANGE: std::ops::RangeInclusive<i32> = -100..=100;
/// Most tries of a job or step.
pub const TRIES_MAX: u32 = 100;
/// Most slots of a concurrency group.
pub const GROUP_SLOTS_MAX: u32 = 1000;
/// Time limit of a job that sets none.
pub const JOB_TIMEOUT_DEFAULT: Duration = Duration::from_hours(6);
/// Time between SIGTERM and the kill at a cancel, for a job that sets none.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(30);
