//! `job(name, options)`.

use std::collections::BTreeMap;

use shuntyard_protocol::{
    Outcome,
    plan::{self, Checkout, JobRetry},
};

use super::{
    Describer, JobCode,
    options::{Options, as_integer},
};
use crate::raw::Raw;

/// Most tries of a job or a step.
pub(super) const TRIES_MAX: i32 = 100;
const PRIORITY: (i32, i32) = (-100, 100);
/// Most commits that a shallow checkout asks for.
const CHECKOUT_DEPTH_MAX: i32 = 1_000_000;

const KNOWN: [&str; 19] = [
    "runsOn",
    "steps",
    "run",
    "needs",
    "matrix",
    "include",
    "exclude",
    "maxParallel",
    "failFast",
    "env",
    "checkout",
    "timeout",
    "gracePeriod",
    "retry",
    "concurrency",
    "concurrencyGroup",
    "continueOnError",
    "priority",
    "name",
];
const LATER: [&str; 18] = [
    "runsOnAll",
    "onUnreachable",
    "rules",
    "environment",
    "environments",
    "container",
    "services",
    "init",
    "cache",
    "artifacts",
    "resources",
    "approval",
    "onSuccess",
    "onFailure",
    "onCancel",
    "cleanup",
    "beforeStep",
    "afterStep",
];
const LATER_TOO: [&str; 2] = ["runOnCancel", "secrets"];

impl<'a> Describer<'a> {
    /// `names` are all jobs of the workflow by node.
    pub(super) fn job(&mut self, id: u32, names: &BTreeMap<u32, String>) -> (plan::Job, JobCode) {
        let node = self.node(id);
        let name = names.get(&id).cloned().unwrap_or_default();
        let raw = match node.args.first() {
            Some(Raw::Object(_)) => node.args.first(),
            _ => node.args.get(1),
        };
        let later = [LATER.as_slice(), LATER_TOO.as_slice()].concat();
        let options = self.options(format!("job \"{name}\""), &node.at, raw, &KNOWN, &later);
        if options.get("name").is_some() {
            self.fault(&node.at, "the name of a job is the first argument: job(\"build\", { … })");
        }
        let body = self.body(&options);
        let job = plan::Job {
            name,
            runs_on: self.runs_on(&options),
            needs: self.needs(&options, id, names),
            matrix: self.matrix(&options),
            env: self.env(&options),
            checkout: self.checkout(&options),
            timeout_ms: self.timeout(&options, "timeout"),
            grace_ms: self.grace(&options, "gracePeriod"),
            retry: self.job_retry(&options),
            concurrency: self.job_concurrency(&options),
            continue_on_error: self.flag(&options, "continueOnError").unwrap_or(false),
            priority: self.integer(&options, "priority", PRIORITY).unwrap_or(0),
            single: options.get("run").is_some(),
            steps: body.steps,
            parallels: body.parallels,
        };
        (job, JobCode { node: id, steps: body.code })
    }

    fn checkout(&mut self, options: &Options<'a>) -> Checkout {
        match options.get("checkout") {
            None => Checkout::default(),
            Some(Raw::Bool(enabled)) => Checkout { enabled: *enabled, ..Checkout::default() },
            Some(raw @ Raw::Object(_)) => {
                let of = format!("{}: \"checkout\"", options.of);
                let known = ["depth", "submodules"];
                let inner =
                    self.options(of, options.at, Some(raw), &known, &["lfs", "ref", "path"]);
                let depth = self.integer(&inner, "depth", (0, CHECKOUT_DEPTH_MAX));
                Checkout {
                    enabled: true,
                    depth: depth.map_or(Checkout::default().depth, i32::unsigned_abs),
                    submodules: self.flag(&inner, "submodules").unwrap_or(false),
                }
            }
            Some(other) => {
                self.wrong(options, "checkout", "true, false or { depth, submodules }", other);
                Checkout::default()
            }
        }
    }

    fn job_retry(&mut self, options: &Options<'a>) -> Option<JobRetry> {
        let raw = options.get("retry")?;
        let default = vec![Outcome::Failed, Outcome::TimedOut, Outcome::Lost];
        if let Raw::Object(_) = raw {
            let of = format!("{}: \"retry\"", options.of);
            let inner = self.options(of, options.at, Some(raw), &["maxAttempts", "on"], &[]);
            let max_attempts = self.integer(&inner, "maxAttempts", (1, TRIES_MAX));
            if inner.get("maxAttempts").is_none() {
                self.fault(
                    options.at,
                    format!("{}: \"retry\" says how often: {{ maxAttempts: 3 }}", options.of),
                );
            }
            let on = self.retry_outcomes(&inner).unwrap_or(default);
            return Some(JobRetry { max_attempts: max_attempts?.unsigned_abs(), on });
        }
        let tries = self.integer(options, "retry", (1, TRIES_MAX))?;
        Some(JobRetry { max_attempts: tries.unsigned_abs(), on: default })
    }

    fn retry_outcomes(&mut self, options: &Options<'a>) -> Option<Vec<Outcome>> {
        options.get("on")?;
        let words = self.texts(options, "on");
        let mut outcomes = Vec::new();
        for word in &words {
            let outcome = Outcome::parse(word);
            if let Some(outcome @ (Outcome::Failed | Outcome::TimedOut | Outcome::Lost)) = outcome {
                outcomes.push(outcome);
            } else {
                let rule = "lists failed, timed_out and lost";
                self.fault(options.at, format!("{}: \"on\" {rule}, got \"{word}\"", options.of));
            }
        }
        outcomes.sort_unstable();
        outcomes.dedup();
        Some(outcomes)
    }

    /// Tries in all, as a number; an object is the caller's affair.
    pub(super) fn tries(&mut self, options: &Options<'a>, raw: &'a Raw) -> Option<u32> {
        let tries = as_integer(raw).filter(|tries| (1..=TRIES_MAX).contains(tries));
        if tries.is_none() {
            self.wrong(
                options,
                "retry",
                &format!("a number of tries from 1 to {TRIES_MAX}, or an object"),
                raw,
            );
        }
        tries.map(i32::unsigned_abs)
    }
}
