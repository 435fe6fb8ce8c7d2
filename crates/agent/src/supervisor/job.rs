//! A job's steps, in order: groups, tries, environment, outputs, and the job's result.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use serde_json::{Map, Value, json};
use shuntyard_protocol::{
    Outcome,
    agent::{AttemptFact, StepEnd},
    plan::{Action, Step},
    runner::{RunStep, ToRunner},
};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::{
    core::{Core, Halt, Why},
    engine::{Effects, Engine},
    files::{HandedOver, StepFiles, check_outputs},
    rules::{check_job_outputs, delay, groups, merge, shorten},
    step::{self, CommandStep, Failure, Stop, Surroundings, Tried, stream_of},
};
use crate::{
    checkout::Git,
    environment::{self, Parts},
    sandbox::{Spare, Unit},
};

/// How the job ended.
pub(super) struct Report {
    pub outcome: Outcome,
    pub reason: Option<String>,
    pub outputs: Option<Value>,
}

impl Report {
    fn failed(reason: String) -> Self {
        Self { outcome: Outcome::Failed, reason: Some(reason), outputs: None }
    }
}

struct Job<'a> {
    core: &'a Rc<Core>,
    unit: &'a Unit,
    facts: BTreeMap<String, String>,
    state: RefCell<State>,
    engine: OnceCell<Result<Engine, String>>,
}

/// What steps leave for later ones.
#[derive(Default)]
struct State {
    set: BTreeMap<String, String>,
    /// Latest first.
    paths: Vec<String>,
    outputs: BTreeMap<String, Value>,
    /// Main processes of the steps that run; a function step has none of its own.
    running: BTreeMap<usize, Option<i32>>,
    engine_pid: Option<i32>,
}

/// Gets the source and runs the steps, until the end or a halt.
pub(super) async fn run(core: &Rc<Core>, unit: &Unit) -> Report {
    let limit = core.spec.timeout_ms;
    let grace = Duration::from_millis(core.spec.grace_ms);
    let work = work(core, unit);
    tokio::pin!(work);
    tokio::select! {
        report = &mut work => return report,
        () = tokio::time::sleep(Duration::from_millis(limit)) => {
            core.halt(Halt::Polite { why: Why::TimedOut { limit_ms: limit }, grace });
        }
    }
    work.await
}

async fn work(core: &Rc<Core>, unit: &Unit) -> Report {
    let mut halts = core.halts();
    let source = tokio::select! {
        biased;
        _ = halts.wait_for(|halt| *halt != Halt::Run) => Ok(()),
        source = checkout(core) => source,
    };
    let halt = core.halted();
    if let Some(why) = halt.why() {
        return Report { outcome: why.outcome(), reason: Some(why.reason()), outputs: None };
    }
    if let Err(reason) = source {
        core.write(0, format!("error: {reason}\n").as_bytes()).await;
        return Report::failed(reason);
    }
    let workspace = core.dir.workspace().to_string_lossy().into_owned();
    let job = Job {
        core,
        unit,
        facts: environment::facts(&core.spec, &workspace),
        state: RefCell::default(),
        engine: OnceCell::new(),
    };
    job.run().await
}

async fn checkout(core: &Core) -> Result<(), String> {
    let spec = &core.spec;
    let Some(code) = spec.code.as_ref().filter(|_| spec.checkout.enabled) else { return Ok(()) };
    let settings = &core.settings;
    let git = Git {
        data_dir: &settings.data_dir,
        host_env: &settings.host_env,
        user: settings.user.as_ref(),
    };
    let mut lines = String::new();
    let workspace = core.dir.workspace();
    let mut log = |line: &str| lines.push_str(line);
    let result = git.checkout(code, &spec.checkout, &workspace, &mut log).await;
    core.write(0, lines.as_bytes()).await;
    result.map_err(|error| {
        let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
        format!("{error}{}", source.unwrap_or_default())
    })
}

impl Job<'_> {
    async fn run(self) -> Report {
        let mut failure: Option<(Outcome, String)> = None;
        for (block, group) in groups(&self.core.spec.steps) {
            if failure.is_some() || self.core.halted() != Halt::Run {
                for index in group {
                    self.skip(index).await;
                }
                // Halted between two groups, with all before them successful, it is no success.
                failure.get_or_insert_with(|| (Outcome::Cancelled, "not started".to_owned()));
                continue;
            }
            failure = self.run_group(block, &group).await;
            if self.state.borrow().running.is_empty() {
                self.unit.sweep(&self.spare(None)).await;
            }
        }
        let outputs = self.outputs();
        let halt = self.core.halted();
        match (failure, halt.why(), outputs) {
            // A halt that came when everything had succeeded already changes nothing.
            (Some(_), Some(why), _) => {
                Report { outcome: why.outcome(), reason: Some(why.reason()), outputs: None }
            }
            (Some((outcome, reason)), None, outputs) => {
                Report { outcome, reason: Some(reason), outputs: outputs.ok().flatten() }
            }
            (None, _, Ok(outputs)) => Report { outcome: Outcome::Success, reason: None, outputs },
            (None, _, Err(reason)) => Report::failed(reason),
        }
    }

    /// Runs a group to its end; returns what fails the job.
    async fn run_group(&self, block: Option<u32>, group: &[usize]) -> Option<(Outcome, String)> {
        let block = block.and_then(|block| {
            self.core.spec.parallels.get(usize::try_from(block).unwrap_or(usize::MAX))
        });
        let fail_fast = block.is_some_and(|block| block.fail_fast);
        let width = block
            .and_then(|block| block.max_parallel)
            .map_or(group.len(), |max| usize::try_from(max).unwrap_or(usize::MAX).max(1));
        let stop = Stop {
            halts: self.core.halts(),
            group: CancellationToken::new(),
            grace: Duration::from_millis(self.core.spec.grace_ms),
        };
        let mut waiting = group.iter().copied();
        let mut running = FuturesUnordered::new();
        let mut failure = None;
        loop {
            while running.len() < width
                && let Some(index) = waiting.next()
            {
                if stop.is_set() {
                    self.skip(index).await;
                    failure.get_or_insert_with(|| (Outcome::Cancelled, "not started".to_owned()));
                } else {
                    running.push(self.step(index, stop.clone()));
                }
            }
            let Some(failed) = running.next().await else { break };
            if let Some(failed) = failed {
                failure.get_or_insert(failed);
                if fail_fast {
                    stop.group.cancel();
                }
            }
        }
        failure
    }

    async fn skip(&self, step: usize) {
        let outcome =
            if self.core.halted() == Halt::Run { Outcome::Skipped } else { Outcome::Cancelled };
        let end = StepEnd {
            step: u32::try_from(step).unwrap_or(u32::MAX),
            at: self.core.now(),
            outcome,
            exit_code: None,
            error: None,
            outputs: None,
            tries: 0,
        };
        self.core.fact(&AttemptFact::StepEnded(end)).await;
    }

    /// Runs a step with all its tries; returns what fails the job.
    async fn step(&self, index: usize, mut stop: Stop) -> Option<(Outcome, String)> {
        let step = &self.core.spec.steps[index];
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        let at = self.core.now();
        self.core.fact(&AttemptFact::StepStarted { step: number, at }).await;
        let tries_max = step.retry.as_ref().map_or(1, |retry| retry.max_attempts.max(1));
        let mut try_no = 1;
        let tried = loop {
            self.state.borrow_mut().running.insert(index, None);
            let tried = self.try_step(index, try_no, &mut stop).await;
            self.state.borrow_mut().running.remove(&index);
            let again = matches!(tried.failure, Some(Failure::Error(_) | Failure::TimedOut(_)));
            if !again || try_no >= tries_max || !self.wait(step, index, try_no, &mut stop).await {
                break tried;
            }
            try_no += 1;
        };
        let (outcome, error) = match &tried.failure {
            None => (Outcome::Success, None),
            Some(Failure::Error(text)) => (Outcome::Failed, Some(text.clone())),
            Some(Failure::TimedOut(text)) => (Outcome::TimedOut, Some(text.clone())),
            Some(Failure::Stopped) => (Outcome::Cancelled, None),
        };
        if let (Some(outputs), None) = (&tried.outputs, &tried.failure) {
            self.state.borrow_mut().outputs.insert(step.name.clone(), outputs.clone());
        }
        let failure = match &tried.failure {
            None => None,
            Some(Failure::Stopped) => Some((outcome, format!("step '{}' was stopped", step.name))),
            Some(_) if step.continue_on_error => None,
            Some(Failure::Error(text) | Failure::TimedOut(text)) => {
                Some((outcome, format!("step '{}': {text}", step.name)))
            }
        };
        let (error, failure) =
            (error.map(shorten), failure.map(|(outcome, reason)| (outcome, shorten(reason))));
        let at = self.core.now();
        let Tried { exit_code, outputs, .. } = tried;
        let end = StepEnd { step: number, at, outcome, exit_code, error, outputs, tries: try_no };
        self.core.fact(&AttemptFact::StepEnded(end)).await;
        failure
    }

    /// Waits before the next try; returns whether there is to be one.
    async fn wait(&self, step: &Step, index: usize, try_no: u32, stop: &mut Stop) -> bool {
        let Some(retry) = &step.retry else { return false };
        let delay = delay(retry, try_no);
        let line =
            format!("try {try_no} of {} failed; next one in {delay:?}\n", retry.max_attempts);
        self.core.write(stream_of(index), line.as_bytes()).await;
        tokio::select! {
            _ = stop.asked() => false,
            () = tokio::time::sleep(delay) => true,
        }
    }

    async fn try_step(&self, index: usize, try_no: u32, stop: &mut Stop) -> Tried {
        let step = &self.core.spec.steps[index];
        let env = self.env(index, try_no).await;
        let timeout = step.timeout_ms.map(Duration::from_millis);
        let tried = match &step.action {
            Action::Shell { command, shell, cwd } => {
                let command = CommandStep {
                    index,
                    command,
                    shell: shell.as_deref(),
                    cwd: cwd.as_deref(),
                    env,
                    timeout,
                };
                let (tried, over) = step::run(self.core, self, command, stop).await;
                self.take_over(over);
                tried
            }
            Action::Function {} => self.function(index, try_no, env, timeout, stop).await,
        };
        match check_outputs(tried.outputs.as_ref()) {
            Err(error) if tried.failure.is_none() => Tried::failed(error.to_string()),
            _ => tried,
        }
    }

    async fn env(&self, index: usize, try_no: u32) -> BTreeMap<String, String> {
        let step = &self.core.spec.steps[index];
        let (mut env, refused) = {
            let state = self.state.borrow();
            environment::build(&Parts {
                host: &self.core.settings.host_env,
                facts: &self.facts,
                job: &self.core.spec.env,
                step: &step.env,
                set: &state.set,
                paths: &state.paths,
            })
        };
        if let Some(user) = &self.core.settings.user {
            env.insert("HOME".into(), user.home.clone());
            env.insert("USER".into(), user.name.clone());
            env.insert("LOGNAME".into(), user.name.clone());
        }
        env.insert("SHUNT_STEP".into(), index.to_string());
        env.insert("SHUNT_STEP_TRY".into(), try_no.to_string());
        for name in refused {
            let line = format!("warning: '{name}' is set by the agent and cannot be overridden\n");
            self.core.write(stream_of(index), line.as_bytes()).await;
        }
        env
    }

    fn take_over(&self, over: HandedOver) {
        let mut state = self.state.borrow_mut();
        state.set.extend(over.env);
        for path in over.paths {
            state.paths.insert(0, path);
        }
    }

    async fn function(
        &self,
        index: usize,
        try_no: u32,
        mut env: BTreeMap<String, String>,
        timeout: Option<Duration>,
        stop: &mut Stop,
    ) -> Tried {
        let start = self.engine.get_or_init(|| self.start_engine());
        let engine = tokio::select! {
            engine = start => engine,
            _ = stop.asked() => return Tried { failure: Some(Failure::Stopped), ..Tried::default() },
        };
        let engine = match engine {
            Ok(engine) => engine,
            Err(message) => return Tried::failed(message.clone()),
        };
        let files = match StepFiles::create(self.core, index, "") {
            Ok(files) => files,
            Err(error) => return Tried::failed(format!("{:#}", anyhow::Error::from(error))),
        };
        env.extend(files.variables());
        let step = RunStep {
            step: u32::try_from(index).unwrap_or(u32::MAX),
            try_no,
            env,
            workspace: self.core.dir.workspace().to_string_lossy().into_owned(),
            outputs: self.state.borrow().outputs.clone(),
        };
        let mut tried = engine.run(self.core, step, timeout, stop, self).await;
        self.sweep(index).await;
        match files.read() {
            Ok(over) => {
                tried.outputs = merge(over.outputs.clone(), tried.outputs);
                self.take_over(over);
            }
            Err(error) if tried.failure.is_none() => return Tried::failed(error.to_string()),
            Err(_) => {}
        }
        tried
    }

    async fn start_engine(&self) -> Result<Engine, String> {
        let core = self.core;
        let launcher = &core.settings.launcher;
        let mut argv = vec![launcher.program.to_string_lossy().into_owned()];
        argv.extend(launcher.args.iter().cloned());
        argv.push(crate::entry::RUNNER.into());
        let (env, _) = environment::build(&Parts {
            host: &core.settings.host_env,
            facts: &self.facts,
            job: &core.spec.env,
            step: &BTreeMap::new(),
            set: &BTreeMap::new(),
            paths: &[],
        });
        let command = self
            .unit
            .command(&argv, &core.dir.workspace(), &env)
            .map_err(|error| format!("{:#}", anyhow::Error::from(error)))?;
        let folder = core.dir.folder().map_err(|error| error.to_string())?;
        let load = ToRunner::Load {
            file: core.spec.file.clone(),
            workflow: core.spec.workflow.clone(),
            job: core.spec.job.clone(),
            context: self.context(),
            needs: core.spec.needs.clone(),
        };
        let entered = |pid| self.state.borrow_mut().engine_pid = Some(pid);
        Engine::start(command, &load, &folder, entered).await
    }

    /// What `ctx` says besides the step.
    fn context(&self) -> Value {
        let Core { spec, settings, .. } = &**self.core;
        json!({
            "event": spec.event,
            "matrix": spec.matrix,
            "run": {
                "id": spec.run,
                "number": spec.run_number,
                "url": spec.run_url,
                "org": spec.org,
                "source": spec.source,
                "commit": spec.code.as_ref().map(|code| &code.commit),
                "ref": spec.code.as_ref().and_then(|code| code.ref_name.as_ref()),
            },
            "workflow": { "name": spec.workflow, "file": spec.file },
            "job": { "id": spec.id.job, "name": spec.job, "title": spec.title },
            "attempt": spec.try_no,
            "agent": { "name": settings.agent_name, "labels": settings.agent_labels },
        })
    }

    fn outputs(&self) -> Result<Option<Value>, String> {
        let outputs = &self.state.borrow().outputs;
        let value = if self.core.spec.single {
            outputs.values().next().cloned()
        } else {
            let map: Map<String, Value> =
                outputs.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            (!map.is_empty()).then_some(Value::Object(map))
        };
        check_job_outputs(value.as_ref())?;
        Ok(value)
    }

    /// What a sweep leaves alone, for a step that ended or, without one, for everything at rest.
    fn spare(&self, ended: Option<usize>) -> Spare {
        let state = self.state.borrow();
        let others: Vec<_> =
            state.running.iter().filter(|(step, _)| Some(**step) != ended).collect();
        Spare {
            processes: state.engine_pid.into_iter().collect(),
            trees: others.iter().filter_map(|(_, pid)| **pid).collect(),
            only_with: ended
                .filter(|_| !others.is_empty())
                .map(|step| format!("SHUNT_STEP={step}")),
        }
    }
}

impl Surroundings for Job<'_> {
    fn unit(&self) -> &Unit {
        self.unit
    }

    fn entered(&self, step: usize, pid: i32) {
        self.state.borrow_mut().running.insert(step, Some(pid));
    }

    async fn sweep(&self, step: usize) {
        if !self.unit.sweep(&self.spare(Some(step))).await {
            let line = b"warning: a process that this step left behind cannot be killed\n";
            self.core.write(stream_of(step), line).await;
        }
    }
}

impl Effects for Job<'_> {
    fn set_env(&self, name: String, value: String) {
        self.state.borrow_mut().set.insert(name, value);
    }

    fn add_path(&self, path: String) {
        self.state.borrow_mut().paths.insert(0, path);
    }
}
