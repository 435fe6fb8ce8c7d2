//! The job in the engine: loading it, and everything that is handed to its script.

use std::collections::BTreeMap;

use rquickjs::{Ctx, Function, Object, Persistent, Value as JsValue};
use serde_json::{Value, json};
use shuntyard_protocol::{agent::Upstream, plan::Workflow, runner::RunStep};

use super::{RUN_MEMORY_BYTES_MAX, commands::Exit, host::Host, lend};
use crate::{
    bundle::Bundle,
    describe::{Described, JobCode, schema::Schema},
    engine::{Engine, Interrupt, Modules, Thrown, caught},
    fault::Fault,
    graph, plan,
};

/// Which job of which file, and what it may know.
pub(super) struct Wanted {
    pub(super) file: String,
    pub(super) workflow: String,
    pub(super) job: String,
    pub(super) context: Value,
    pub(super) needs: BTreeMap<String, Upstream>,
}

/// A loaded job.
pub(super) struct Job {
    engine: Engine,
    host: Host,
    start_step: Persistent<Function<'static>>,
    stop_step: Persistent<Function<'static>>,
    command_ended: Persistent<Function<'static>>,
    timer_fired: Persistent<Function<'static>>,
    /// Whether there is a function behind each step.
    is_function: Vec<bool>,
}

impl Job {
    /// Loads the workflow file and finds the job in it.
    ///
    /// # Errors
    /// What to tell the author.
    pub(super) fn load(
        payload: &[u8],
        wanted: &Wanted,
        host: &Host,
        stop: Interrupt,
    ) -> Result<Self, String> {
        let bundle = Bundle::from_json(payload).map_err(|error| error.to_string())?;
        if bundle.get(&wanted.file).is_none() {
            return Err(format!(
                "{} is not in the workflow folder that came with the job",
                wanted.file
            ));
        }
        let stripped = graph::load(&bundle, &[&wanted.file]).map_err(|faults| list(&faults))?;
        let modules = Modules::new(bundle, stripped);
        let engine =
            Engine::new(modules, RUN_MEMORY_BYTES_MAX, stop).map_err(|error| error.to_string())?;
        let host = host.clone();
        let loaded = engine.with(|ctx| Loaded::new(ctx, &engine, &host, wanted))?;
        let Loaded { start_step, stop_step, command_ended, timer_fired, is_function } = loaded;
        Ok(Self { engine, host, start_step, stop_step, command_ended, timer_fired, is_function })
    }

    pub(super) fn start_step(&self, step: &RunStep) {
        let index = step.step;
        if !self.is_function.get(index as usize).copied().unwrap_or(false) {
            return self.host.failed(index, "the job has no function for this step", None);
        }
        if let Err(error) = std::env::set_current_dir(&step.workspace) {
            let message = format!("cannot enter the workspace {}: {error}", step.workspace);
            return self.host.failed(index, &message, None);
        }
        let started = self.call(&self.start_step, |ctx, start| {
            let (env, earlier) = (to_js(ctx, &json!(step.env))?, to_js(ctx, &json!(step.outputs))?);
            start.call((index, step.try_no, env, earlier))
        });
        if let Err(thrown) = started {
            self.host.failed(index, &thrown.message, None);
        }
    }

    pub(super) fn stop_step(&self, step: u32, force: bool) {
        let stopped = self.call(&self.stop_step, |_, stop| stop.call((step, force)));
        if let Err(thrown) = stopped {
            self.host.failed(step, &thrown.message, None);
        }
    }

    pub(super) fn command_ended(&self, step: u32, id: u32, exit: &Exit) {
        self.host.command_ended(id);
        let ended = self.call(&self.command_ended, |ctx, ended| {
            let object = Object::new(ctx.clone())?;
            object.set("stdout", String::from_utf8_lossy(&exit.stdout).as_ref())?;
            object.set("stderr", String::from_utf8_lossy(&exit.stderr).as_ref())?;
            object.set("truncated", exit.truncated)?;
            object.set("exitCode", exit.code)?;
            match &exit.signal {
                Some(signal) => object.set("signal", signal.as_str())?,
                None => object.set("signal", JsValue::new_null(ctx.clone()))?,
            }
            object.set("timedOut", exit.timed_out)?;
            object.set("problem", exit.problem.as_deref().unwrap_or_default())?;
            ended.call((step, id, object))
        });
        if let Err(thrown) = ended {
            self.host.failed(
                step,
                &format!("the result of a command is lost: {}", thrown.message),
                None,
            );
        }
    }

    pub(super) fn timer_fired(&self, id: u32) {
        self.host.timer_fired(id);
        // The script reports what a timer throws by itself; only an interrupt ends up here.
        drop(self.call(&self.timer_fired, |_, fired| fired.call((id,))));
    }

    /// Calls into the script, then runs everything that became ready.
    fn call(
        &self,
        function: &Persistent<Function<'static>>,
        call: impl for<'js> FnOnce(&Ctx<'js>, Function<'js>) -> rquickjs::Result<()>,
    ) -> Result<(), Thrown> {
        let result = self.engine.with(|ctx| {
            let function = function.clone().restore(ctx);
            function.and_then(|function| call(ctx, function)).map_err(|error| caught(ctx, error))
        });
        self.engine.run_jobs();
        result
    }
}

struct Loaded {
    start_step: Persistent<Function<'static>>,
    stop_step: Persistent<Function<'static>>,
    command_ended: Persistent<Function<'static>>,
    timer_fired: Persistent<Function<'static>>,
    is_function: Vec<bool>,
}

impl Loaded {
    fn new(ctx: &Ctx<'_>, engine: &Engine, host: &Host, wanted: &Wanted) -> Result<Self, String> {
        let export = |name: &str| {
            engine.builtin(ctx, "shuntyard:runtime", name).map_err(|thrown| thrown.message)
        };
        let text = |error| caught(ctx, error).message;
        let schemas = lend::Schemas::default();
        let lent = lend::functions(ctx, engine, host, &schemas)?;
        export("install")?.call::<_, ()>((lent,)).map_err(text)?;
        let (described, functions) = plan::run(ctx, engine, std::slice::from_ref(&wanted.file))
            .map_err(|faults| list(&faults))?;
        let (workflow, code, index) = find(&described, wanted)?;
        schemas.replace(outputs_schemas(workflow, index)?);
        let description =
            description(ctx, wanted, workflow, code, index, &functions).map_err(text)?;
        export("load")?.call::<_, ()>((description,)).map_err(text)?;
        let save = |name: &str| Ok::<_, String>(Persistent::save(ctx, export(name)?));
        let is_function = code[index].steps.iter().map(|step| step.function.is_some()).collect();
        Ok(Self {
            start_step: save("startStep")?,
            stop_step: save("stopStep")?,
            command_ended: save("commandEnded")?,
            timer_fired: save("timerFired")?,
            is_function,
        })
    }
}

fn find<'a>(
    described: &'a [Described],
    wanted: &Wanted,
) -> Result<(&'a Workflow, &'a [JobCode], usize), String> {
    let Wanted { file, workflow, job, .. } = wanted;
    let drift = "does the file decide by something that differs here?";
    let found =
        described.iter().find(|described| described.workflow.name == *workflow).ok_or_else(
            || format!("{file} no longer has the workflow \"{workflow}\" of the plan; {drift}"),
        )?;
    let index = found.workflow.jobs.iter().position(|other| other.name == *job);
    let index = index.ok_or_else(|| {
        format!("workflow \"{workflow}\" no longer has the job \"{job}\" of the plan; {drift}")
    })?;
    Ok((&found.workflow, &found.jobs, index))
}

fn outputs_schemas(workflow: &Workflow, index: usize) -> Result<Vec<Option<Schema>>, String> {
    let parse = |value: &Value| {
        serde_json::from_value(value.clone())
            .map_err(|error| format!("a schema of outputs is not valid: {error}"))
    };
    workflow.jobs[index]
        .steps
        .iter()
        .map(|step| step.outputs.as_ref().map(parse).transpose())
        .collect()
}

/// What `load` of the runtime module takes.
fn description<'js>(
    ctx: &Ctx<'js>,
    wanted: &Wanted,
    workflow: &Workflow,
    code: &[JobCode],
    index: usize,
    functions: &[Function<'js>],
) -> rquickjs::Result<Object<'js>> {
    let description = Object::new(ctx.clone())?;
    description.set("name", wanted.job.as_str())?;
    description.set("context", to_js(ctx, &wanted.context)?)?;
    description.set("needs", to_js(ctx, &json!(wanted.needs))?)?;
    let jobs: Vec<Value> = workflow
        .jobs
        .iter()
        .zip(code)
        .map(|(job, code)| json!({"name": job.name, "node": code.node, "single": job.single}))
        .collect();
    description.set("jobs", to_js(ctx, &json!(jobs))?)?;
    let steps = rquickjs::Array::new(ctx.clone())?;
    for (place, (step, code)) in
        workflow.jobs[index].steps.iter().zip(&code[index].steps).enumerate()
    {
        let object = Object::new(ctx.clone())?;
        object.set("name", step.name.as_str())?;
        object.set("node", code.node)?;
        object.set("run", code.function.and_then(|function| functions.get(function)).cloned())?;
        steps.set(place, object)?;
    }
    description.set("steps", steps)?;
    Ok(description)
}

fn to_js<'js>(ctx: &Ctx<'js>, value: &Value) -> rquickjs::Result<JsValue<'js>> {
    if value.is_null() {
        return Ok(JsValue::new_null(ctx.clone()));
    }
    ctx.json_parse(value.to_string())
}

fn list(faults: &[Fault]) -> String {
    let texts: Vec<_> = faults.iter().map(ToString::to_string).collect();
    texts.join("\n")
}
