//! What must hold of a plan before anything runs, and the jobs that a workflow becomes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use shuntyard_protocol::{
    Outcome,
    plan::{Concurrency, Job, Plan, StepRetry, Trigger, Workflow},
};

use crate::{
    fanout::{self, MatrixError},
    gate::SHARED_PREFIX,
    glob::Patterns,
    graph,
    labels::Requirement,
    limits::{
        GROUP_SLOTS_MAX, JOB_STEPS_MAX, NAME_CHARS_MAX, PLAN_WORKFLOWS_MAX, PRIORITY_RANGE,
        RUN_JOBS_MAX, TIMEOUT_MAX, TRIES_MAX,
    },
    schedule,
};

/// Most faults that are told; what is behind them is not looked at.
pub const FAULTS_MAX: usize = 100;

/// What is wrong with a plan, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct Fault {
    /// `.shuntyard/workflows/ci.ts, job 'build'`.
    pub place: String,
    pub message: String,
}

/// All faults of a plan; none means that every workflow can be instantiated.
pub fn check(plan: &Plan) -> Vec<Fault> {
    let mut faults = Faults::default();
    if plan.workflows.len() > PLAN_WORKFLOWS_MAX {
        let message = format!(
            "{} workflows are above the limit of {PLAN_WORKFLOWS_MAX}",
            plan.workflows.len()
        );
        faults.add("plan", message);
    }
    let mut names = BTreeSet::new();
    for workflow in &plan.workflows {
        if faults.full() {
            break;
        }
        let place = format!("{}, workflow '{}'", workflow.file, workflow.name);
        if !names.insert(workflow.name.as_str()) {
            faults.add(&place, "another workflow has the same name");
        }
        faults.workflow(&place, workflow);
    }
    faults.groups(&plan.workflows);
    faults.0
}

#[derive(Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn full(&self) -> bool {
        self.0.len() >= FAULTS_MAX
    }

    fn add(&mut self, place: &str, message: impl Into<String>) {
        if self.full() {
            return;
        }
        self.0.push(Fault { place: place.to_owned(), message: message.into() });
    }

    fn note<T, E: ToString>(&mut self, place: &str, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.add(place, error.to_string())).ok()
    }

    fn name(&mut self, place: &str, name: &str) {
        let chars = name.chars().count();
        if !(1..=NAME_CHARS_MAX).contains(&chars) || name.chars().any(char::is_control) {
            self.add(
                place,
                format!("name must be 1 to {NAME_CHARS_MAX} characters without control characters"),
            );
        }
    }

    fn timeout(&mut self, place: &str, millis: Option<u64>) {
        let max = u64::try_from(TIMEOUT_MAX.as_millis()).unwrap_or(u64::MAX);
        if millis.is_some_and(|millis| millis == 0 || millis > max) {
            self.add(place, "timeout must be more than 0 and at most 24 days");
        }
    }

    fn workflow(&mut self, place: &str, workflow: &Workflow) {
        self.name(place, &workflow.name);
        self.timeout(place, workflow.timeout_ms);
        self.concurrency(place, workflow.concurrency.as_ref());
        for trigger in &workflow.on {
            self.trigger(place, trigger);
        }
        if workflow.jobs.is_empty() {
            self.add(place, "it has no jobs");
        }
        let mut names = BTreeSet::new();
        for job in &workflow.jobs {
            if self.full() {
                return;
            }
            let place = format!("{}, job '{}'", workflow.file, job.name);
            if !names.insert(job.name.as_str()) {
                self.add(&place, "another job has the same name");
            }
            self.job(&place, job);
        }
        self.note(place, graph::check(&workflow.jobs));
        let count: usize =
            workflow.jobs.iter().map(|job| instances(job).map_or(1, |i| i.len())).sum();
        if count > RUN_JOBS_MAX {
            self.add(place, format!("{count} jobs are above the limit of {RUN_JOBS_MAX}"));
        }
    }

    fn concurrency(&mut self, place: &str, concurrency: Option<&Concurrency>) {
        let Some(Concurrency { group, max, .. }) = concurrency else { return };
        let place = format!("{place}, concurrency group '{group}'");
        self.name(&place, group.strip_prefix(SHARED_PREFIX).unwrap_or(group));
        if !(1..=GROUP_SLOTS_MAX).contains(max) {
            self.add(&place, format!("max must be 1 to {GROUP_SLOTS_MAX}"));
        }
    }

    /// A run that holds a slot of one group while its jobs wait for another's must never wait for
    /// itself, be it through others: then none of them would ever go on.
    fn groups(&mut self, workflows: &[Workflow]) {
        let mut names: Vec<&str> = Vec::new();
        let mut index = BTreeMap::new();
        let mut waits: Vec<Vec<usize>> = Vec::new();
        for workflow in workflows {
            let Some(own) = &workflow.concurrency else { continue };
            let of_jobs = workflow.jobs.iter().filter_map(|job| job.concurrency.as_ref());
            for group in [own].into_iter().chain(of_jobs) {
                index.entry(group.group.as_str()).or_insert_with(|| {
                    names.push(&group.group);
                    waits.push(Vec::new());
                    names.len() - 1
                });
            }
            let jobs = workflow.jobs.iter().filter_map(|job| job.concurrency.as_ref());
            waits[index[own.group.as_str()]].extend(jobs.map(|group| index[group.group.as_str()]));
        }
        if let Some(circle) = graph::cycle(&waits) {
            let circle: Vec<_> = circle.into_iter().map(|n| format!("'{}'", names[n])).collect();
            let message = format!(
                "runs that hold a slot of one concurrency group wait for the next one: {}",
                circle.join(" → ")
            );
            self.add("plan", message);
        }
    }

    fn trigger(&mut self, place: &str, trigger: &Trigger) {
        let lists: &[&[String]] = match trigger {
            Trigger::Push { branches, tags, paths } => &[branches, tags, paths],
            Trigger::Pr { target, source, paths, .. } => &[target, source, paths],
            Trigger::Tag { patterns } => &[patterns],
            Trigger::Manual {} => &[],
            Trigger::Schedule { cron, timezone } => {
                self.note(place, schedule::check(cron, timezone.as_deref()));
                &[]
            }
        };
        for list in lists {
            self.note(place, Patterns::new(list));
        }
    }

    fn job(&mut self, place: &str, job: &Job) {
        self.name(place, &job.name);
        self.timeout(place, job.timeout_ms);
        self.concurrency(place, job.concurrency.as_ref());
        if let Some(runs_on) = &job.runs_on {
            self.note(place, Requirement::new(runs_on));
        }
        self.note(place, instances(job));
        if let Some(matrix) = &job.matrix {
            if matrix.max_parallel.is_some() {
                self.add(place, "matrix maxParallel is not supported yet");
            }
            if matrix.fail_fast {
                self.add(place, "matrix failFast is not supported yet");
            }
        }
        if !PRIORITY_RANGE.contains(&job.priority) {
            self.add(place, "priority must be −100 to 100");
        }
        if job.retry.as_ref().is_some_and(|retry| !(1..=TRIES_MAX).contains(&retry.max_attempts)) {
            self.add(place, format!("retry must be 1 to {TRIES_MAX} tries"));
        }
        if !(1..=JOB_STEPS_MAX).contains(&job.steps.len()) {
            self.add(
                place,
                format!("a job has 1 to {JOB_STEPS_MAX} steps, this one has {}", job.steps.len()),
            );
        }
        let mut names = BTreeSet::new();
        for step in &job.steps {
            let place = format!("{place}, step '{}'", step.name);
            self.name(&place, &step.name);
            if !names.insert(step.name.as_str()) {
                self.add(&place, "another step of this job has the same name");
            }
            self.timeout(&place, step.timeout_ms);
            let tries = |retry: &StepRetry| !(1..=TRIES_MAX).contains(&retry.max_attempts);
            if step.retry.as_ref().is_some_and(tries) {
                self.add(&place, format!("retry must be 1 to {TRIES_MAX} tries"));
            }
            if step.parallel.is_some_and(|index| index as usize >= job.parallels.len()) {
                self.add(&place, "it belongs to a parallel block that does not exist");
            }
        }
    }
}

/// One job of a run, before it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// `build (linux, 22)`.
    pub title: String,
    pub matrix: Option<Value>,
}

/// What a job of the plan becomes: one instance, or one for each combination of its matrix.
pub fn instances(job: &Job) -> Result<Vec<Instance>, MatrixError> {
    let Some(matrix) = &job.matrix else {
        return Ok(vec![Instance { title: job.name.clone(), matrix: None }]);
    };
    let instance = |combination: fanout::Combination| Instance {
        title: format!("{} ({})", job.name, combination.title),
        matrix: Some(combination.values),
    };
    Ok(fanout::expand(matrix)?.into_iter().map(instance).collect())
}

/// Outcomes that a retry without `on` tries again.
pub const RETRY_ON_DEFAULT: [Outcome; 3] = [Outcome::Failed, Outcome::TimedOut, Outcome::Lost];

#[cfg(test)]
mod tests {
    use shuntyard_protocol::plan::{JobRetry, Step};

    use super::*;

    fn plan(edit: impl FnOnce(&mut Job)) -> Plan {
        let step = Step { name: "one".into(), ..Step::default() };
        let mut job = Job { name: "build".into(), steps: vec![step], ..Job::default() };
        edit(&mut job);
        let workflow = Workflow {
            name: "ci".into(),
            file: "ci.ts".into(),
            jobs: vec![job],
            ..Workflow::default()
        };
        Plan { version: 1, workflows: vec![workflow], ..Plan::default() }
    }

    fn faults(edit: impl FnOnce(&mut Job)) -> Vec<String> {
        check(&plan(edit)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_have_one_to_a_hundred_characters() {
        assert!(faults(|job| job.name = "ü".repeat(NAME_CHARS_MAX)).is_empty());
        assert_eq!(faults(|job| job.name = "ü".repeat(NAME_CHARS_MAX + 1)).len(), 1);
        assert_eq!(faults(|job| job.name = String::new()).len(), 1);
        assert_eq!(faults(|job| job.name = "a\nb".into()).len(), 1);
    }

    #[test]
    fn limits_hold_at_their_edges() {
        let day = 24 * 3600 * 1000;
        assert!(TIMEOUT_MAX.as_millis() == 24 * u128::from(day));
        assert!(faults(|job| job.timeout_ms = Some(24 * day)).is_empty());
        assert_eq!(faults(|job| job.timeout_ms = Some(24 * day + 1)).len(), 1);
        assert_eq!(faults(|job| job.timeout_ms = Some(0)).len(), 1);
        assert!(faults(|job| job.priority = *PRIORITY_RANGE.end()).is_empty());
        assert_eq!(faults(|job| job.priority = 101).len(), 1);
        let retry = |n| Some(JobRetry { max_attempts: n, on: vec![] });
        assert!(faults(|job| job.retry = retry(TRIES_MAX)).is_empty());
        assert_eq!(faults(|job| job.retry = retry(TRIES_MAX + 1)).len(), 1);
        let steps = |n| (0..n).map(|i| Step { name: format!("s{i}"), ..Step::default() }).collect();
        assert!(faults(|job| job.steps = steps(JOB_STEPS_MAX)).is_empty());
        assert_eq!(faults(|job| job.steps = steps(JOB_STEPS_MAX + 1)).len(), 1);
    }

    #[test]
    fn a_concurrency_group_has_a_name_and_slots() {
        let group = |name: &str, max| {
            faults(|job| {
                job.concurrency =
                    Some(Concurrency { group: name.to_owned(), cancel_in_progress: false, max });
            })
        };
        assert!(group("deploy", GROUP_SLOTS_MAX).is_empty());
        assert!(group(&format!("org:{}", "x".repeat(NAME_CHARS_MAX)), 1).is_empty());
        assert_eq!(
            group("deploy", GROUP_SLOTS_MAX + 1),
            ["ci.ts, job 'build', concurrency group 'deploy': max must be 1 to 1000"]
        );
        assert_eq!(group("deploy", 0).len(), 1);
        assert_eq!(group("org:", 1).len(), 1);
    }

    #[test]
    fn groups_that_wait_for_each_other_in_a_circle_are_a_fault() {
        let group = |name: &str| {
            Some(Concurrency { group: name.to_owned(), cancel_in_progress: false, max: 1 })
        };
        let with = |groups: &[(&str, &str)]| {
            let mut all = plan(|_| {});
            let one = all.workflows[0].clone();
            all.workflows.clear();
            for (n, (own, of_job)) in groups.iter().enumerate() {
                let mut workflow = Workflow { name: format!("w{n}"), ..one.clone() };
                workflow.concurrency = group(own);
                workflow.jobs[0].concurrency = group(of_job);
                all.workflows.push(workflow);
            }
            check(&all).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(with(&[("a", "b"), ("c", "b"), ("b", "d")]).is_empty());
        let why = "plan: runs that hold a slot of one concurrency group wait for the next one";
        assert_eq!(with(&[("a", "a")]), [format!("{why}: 'a' → 'a'")]);
        assert_eq!(with(&[("a", "b"), ("b", "a")]), [format!("{why}: 'a' → 'b' → 'a'")]);
    }

    #[test]
    fn workflows_and_jobs_are_counted() {
        let one = plan(|_| {});
        let many = |n: usize| Plan {
            workflows: (0..n)
                .map(|i| Workflow { name: format!("w{i}"), ..one.workflows[0].clone() })
                .collect(),
            ..one.clone()
        };
        assert!(check(&many(PLAN_WORKFLOWS_MAX)).is_empty());
        assert_eq!(check(&many(PLAN_WORKFLOWS_MAX + 1)).len(), 1);
        let wide = |n: usize| {
            let mut wide = one.clone();
            let job = one.workflows[0].jobs[0].clone();
            wide.workflows[0].jobs =
                (0..n).map(|i| Job { name: format!("j{i}"), ..job.clone() }).collect();
            check(&wide).len()
        };
        assert_eq!(wide(RUN_JOBS_MAX), 0);
        assert_eq!(wide(RUN_JOBS_MAX + 1), 1);
    }

    #[test]
    fn faults_max_faults_are_told() {
        let broken = |n: usize| {
            let steps = (0..n).map(|i| Step { name: format!("\n{i}"), ..Step::default() });
            faults(|job| job.steps = steps.collect()).len()
        };
        assert_eq!(broken(FAULTS_MAX - 1), FAULTS_MAX - 1);
        assert_eq!(broken(FAULTS_MAX), FAULTS_MAX);
        assert_eq!(broken(FAULTS_MAX + 1), FAULTS_MAX);
    }

    #[test]
    fn several_faults_are_reported_together_with_their_places() {
        let found = faults(|job| {
            job.priority = 200;
            job.steps.push(job.steps[0].clone());
        });
        assert_eq!(
            found,
            [
                "ci.ts, job 'build': priority must be −100 to 100",
                "ci.ts, job 'build', step 'one': another step of this job has the same name",
            ]
        );
    }
}
