//! The JavaScript engine within its limits: one runtime, one context, the modules of one bundle.
//!
//! It does no input or output. Whoever owns it lends host functions and drives its job queue.

mod modules;
mod thrown;

use std::{cell::Cell, mem::ManuallyDrop, rc::Rc};

use rquickjs::{Context, Ctx, Function, Module, Object, Promise, Runtime, promise::PromiseState};

pub(crate) use self::{
    modules::Modules,
    thrown::{Thrown, caught},
};

/// Deepest use of the native stack.
const STACK_BYTES_MAX: usize = 1024 * 1024;

/// Jobs that still run when the time is over.
const LATE_JOBS_MAX: usize = 1000;

/// Answers whether the script that runs right now has to stop.
pub(crate) type Interrupt = Box<dyn Fn() -> bool + Send>;

/// One engine of a child. It is never torn down: the child ends with it, and values of the script
/// that host functions hold would keep it from being freed.
pub(crate) struct Engine {
    runtime: ManuallyDrop<Runtime>,
    context: ManuallyDrop<Context>,
    modules: Modules,
    watch: Rc<Watch>,
}

/// Asks whether to stop, and remembers that the answer was once yes.
struct Watch {
    interrupt: Interrupt,
    interrupted: Cell<bool>,
}

impl Watch {
    fn must_stop(&self) -> bool {
        let stop = (self.interrupt)();
        self.interrupted.set(self.interrupted.get() || stop);
        stop
    }
}

/// The engine could not be made: memory is below what an empty context needs.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the JavaScript engine")]
pub(crate) struct StartError(#[source] rquickjs::Error);

/// What became of a promise when the job queue ran dry.
pub(crate) enum Settled<T> {
    Value(T),
    Thrown(Thrown),
    /// Nothing is left that could settle it.
    Never,
}

impl Engine {
    /// An engine with at most `memory` bytes that asks `interrupt` now and then.
    ///
    /// # Errors
    /// When the memory does not hold an empty context.
    pub(crate) fn new(
        modules: Modules,
        memory: usize,
        interrupt: Interrupt,
    ) -> Result<Self, StartError> {
        let runtime = Runtime::new().map_err(StartError)?;
        runtime.set_memory_limit(memory);
        runtime.set_max_stack_size(STACK_BYTES_MAX);
        runtime.set_loader(modules.clone(), modules.clone());
        let watch = Rc::new(Watch { interrupt, interrupted: Cell::new(false) });
        let asked = watch.clone();
        runtime.set_interrupt_handler(Some(Box::new(move || asked.must_stop())));
        let context = Context::full(&runtime).map_err(StartError)?;
        let (runtime, context) = (ManuallyDrop::new(runtime), ManuallyDrop::new(context));
        Ok(Self { runtime, context, modules, watch })
    }

    pub(crate) fn modules(&self) -> &Modules {
        &self.modules
    }

    /// Whether a script was stopped from outside.
    pub(crate) fn was_interrupted(&self) -> bool {
        self.watch.interrupted.get()
    }

    /// Runs `f` inside the engine.
    pub(crate) fn with<R>(&self, f: impl for<'js> FnOnce(&Ctx<'js>) -> R) -> R {
        self.context.with(|ctx| f(&ctx))
    }

    /// Runs everything that is ready to run. What a job throws belongs to the promise that it
    /// rejects, so it is not lost here.
    pub(crate) fn run_jobs(&self) {
        while self.runtime.is_job_pending() {
            if self.runtime.execute_pending_job().is_err() && self.was_interrupted() {
                break;
            }
        }
    }

    /// Imports a module and runs it to its end.
    pub(crate) fn import<'js>(&self, ctx: &Ctx<'js>, path: &str) -> Settled<Object<'js>> {
        match Module::import(ctx, path) {
            Ok(promise) => self.settle(ctx, &promise),
            Err(error) => Settled::Thrown(caught(ctx, error)),
        }
    }

    /// Runs jobs until the promise settles, nothing is left to run or the time is over. The engine
    /// asks by itself only now and then, and a job that it stops may have queued the next one; but
    /// a few jobs more carry the news from the place that was stopped to whoever awaits it.
    fn settle<'js>(&self, ctx: &Ctx<'js>, promise: &Promise<'js>) -> Settled<Object<'js>> {
        let mut late = 0;
        while promise.state() == PromiseState::Pending
            && late < LATE_JOBS_MAX
            && ctx.execute_pending_job()
        {
            late += usize::from(self.watch.must_stop());
        }
        match promise.result::<Object<'js>>() {
            None => Settled::Never,
            Some(Ok(value)) => Settled::Value(value),
            Some(Err(error)) => Settled::Thrown(caught(ctx, error)),
        }
    }

    /// A function that a built-in module exports.
    pub(crate) fn builtin<'js>(
        &self,
        ctx: &Ctx<'js>,
        module: &str,
        export: &str,
    ) -> Result<Function<'js>, Thrown> {
        match self.import(ctx, module) {
            Settled::Value(namespace) => namespace.get(export).map_err(|error| caught(ctx, error)),
            Settled::Thrown(thrown) => Err(thrown),
            Settled::Never => {
                Err(Thrown::message(&format!("the built-in module {module} does not load")))
            }
        }
    }
}
