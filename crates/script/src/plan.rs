//! Planning: runs the workflow files of a bundle in the engine and describes what they export.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use rquickjs::{Ctx, Function, Object, Value, object::Filter};
use shuntyard_protocol::{Timestamp, plan};

use crate::{
    bundle::Bundle,
    clock,
    describe::{self, Described, Export},
    engine::{Engine, Modules, Settled, Thrown, caught},
    fault::Fault,
    graph,
    raw::Reader,
};

/// Memory of the engine while planning.
pub const PLAN_MEMORY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Processor time for planning.
pub const PLAN_TIME_MAX: Duration = Duration::from_secs(5);
/// Most bytes that the plan, and what the files print, may have.
pub const PLAN_OUTPUT_BYTES_MAX: usize = 5 * 1024 * 1024;

/// What planning yields.
pub(crate) struct Planned {
    pub(crate) workflows: Vec<plan::Workflow>,
    /// Every file that was read.
    pub(crate) read: Vec<String>,
    /// What the files printed.
    pub(crate) console: String,
}

/// What planning sees of the world.
pub(crate) struct World {
    /// `Date` stands still at this instant.
    pub(crate) now: Timestamp,
    /// Hex digits that seed `Math.random`.
    pub(crate) seed: String,
}

/// Plans the workflows of a bundle.
///
/// # Errors
/// Every fault that was found.
pub(crate) fn plan(bundle: Bundle, world: &World) -> Result<Planned, Vec<Fault>> {
    let entries: Vec<String> = bundle.workflow_files().into_iter().map(str::to_owned).collect();
    let paths: Vec<&str> = entries.iter().map(String::as_str).collect();
    let stripped = graph::load(&bundle, &paths)?;
    let modules = Modules::new(bundle, stripped);
    let interrupt = || clock::processor_time() > PLAN_TIME_MAX;
    let engine = Engine::new(modules, PLAN_MEMORY_BYTES_MAX, Box::new(interrupt))
        .map_err(|error| vec![Fault::new(error.to_string())])?;
    let console = Rc::new(RefCell::new(Console::default()));
    let workflows = engine.with(|ctx| {
        install(ctx, &engine, world, &console)
            .map_err(|thrown| vec![Fault::new(thrown.message)])?;
        let (described, _) = run(ctx, &engine, &entries)?;
        Ok(described.into_iter().map(|described| described.workflow).collect::<Vec<_>>())
    });
    let workflows = workflows.map_err(|faults: Vec<Fault>| console.borrow().explain(faults))?;
    let read = engine.modules().read_files();
    let console = std::mem::take(&mut console.borrow_mut().text);
    Ok(Planned { workflows, read, console })
}

/// What the files print, within the limit.
#[derive(Default)]
struct Console {
    text: String,
    full: bool,
}

impl Console {
    /// Takes a line; false when there is no room for it.
    fn print(&mut self, line: &str) -> bool {
        self.full |= self.text.len() + line.len() + 1 > PLAN_OUTPUT_BYTES_MAX;
        if !self.full {
            self.text.push_str(line);
            self.text.push('\n');
        }
        !self.full
    }

    fn explain(&self, mut faults: Vec<Fault>) -> Vec<Fault> {
        if self.full {
            let limit = PLAN_OUTPUT_BYTES_MAX / (1024 * 1024);
            let message =
                format!("the workflow files printed more than {limit} MiB while they were planned");
            faults.insert(0, Fault::new(message));
        }
        faults
    }
}

fn install<'js>(
    ctx: &Ctx<'js>,
    engine: &Engine,
    world: &World,
    console: &Rc<RefCell<Console>>,
) -> Result<(), Thrown> {
    let install = engine.builtin(ctx, "shuntyard:planning", "install")?;
    let wrap = |result: rquickjs::Result<()>| result.map_err(|error| caught(ctx, error));
    let console = console.clone();
    let print = move |ctx: Ctx<'js>, _level: String, text: String| {
        if console.borrow_mut().print(&text) {
            Ok(())
        } else {
            Err(rquickjs::Exception::throw_range(&ctx, "too much output while planning"))
        }
    };
    let modules = engine.modules().clone();
    let map = move |text: String| modules.map_stack(&text);
    let function =
        |result: rquickjs::Result<Function<'js>>| result.map_err(|error| caught(ctx, error));
    let print = function(Function::new(ctx.clone(), print))?;
    let map = function(Function::new(ctx.clone(), map))?;
    #[expect(clippy::cast_precision_loss, reason = "instants are far below 2^53 ms")]
    let now = world.now.0 as f64;
    wrap(install.call((now, seed_words(&world.seed), print, map)))
}

/// Four words of 32 bits out of the hex digits of the seed.
fn seed_words(seed: &str) -> Vec<i32> {
    const WORDS: usize = 4;
    const DIGITS: usize = 8;
    let word = |index: usize| {
        let digits = seed.get(index * DIGITS..(index + 1) * DIGITS).unwrap_or("1");
        u32::from_str_radix(digits, 16).unwrap_or(1).cast_signed()
    };
    (0..WORDS).map(word).collect()
}

/// Runs the workflow files and describes their workflows. The functions are those that steps name
/// by index.
///
/// # Errors
/// Every fault; a file that throws does not hide those of the others.
pub(crate) fn run<'js>(
    ctx: &Ctx<'js>,
    engine: &Engine,
    entries: &[String],
) -> Result<(Vec<Described>, Vec<Function<'js>>), Vec<Fault>> {
    let identify = engine
        .builtin(ctx, "shuntyard:nodes", "identify")
        .map_err(|thrown| vec![Fault::new(thrown.message)])?;
    let mut reader = Reader::new(ctx, engine.modules(), identify);
    let mut exports = Vec::new();
    let mut faults = Vec::new();
    for file in entries {
        match run_file(ctx, engine, file) {
            Ok(namespace) => exports.extend(read_exports(&mut reader, ctx, file, &namespace)),
            Err(fault) => faults.push(fault),
        }
        if engine.was_interrupted() {
            break;
        }
    }
    faults.append(&mut reader.faults);
    if engine.was_interrupted() {
        // Whatever else went wrong is a consequence.
        let place = faults.pop().unwrap_or_default();
        faults = vec![Fault { message: out_of_time(), ..place }];
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let described = describe::describe(&reader.tree, &exports)?;
    Ok((described, reader.functions))
}

fn run_file<'js>(ctx: &Ctx<'js>, engine: &Engine, file: &str) -> Result<Object<'js>, Fault> {
    match engine.import(ctx, file) {
        Settled::Value(namespace) => Ok(namespace),
        Settled::Never if engine.was_interrupted() => Err(Fault::in_file(file, out_of_time())),
        Settled::Never => Err(Fault::in_file(
            file,
            "a top-level await waits for something that never happens; nothing outside the file can \
             settle a promise while it is planned",
        )),
        Settled::Thrown(thrown) => Err(explain(engine, file, &thrown)),
    }
}

/// The fault that a thrown value stands for.
fn explain(engine: &Engine, file: &str, thrown: &Thrown) -> Fault {
    let message = if engine.was_interrupted() {
        out_of_time()
    } else if thrown.out_of_memory {
        let limit = PLAN_MEMORY_BYTES_MAX / (1024 * 1024);
        format!("planning needs more than {limit} MiB of memory")
    } else {
        thrown.message.clone()
    };
    let fault = engine.modules().fault_at(&thrown.stack, message.as_str());
    if fault.file.is_some() { fault } else { Fault::in_file(file, message) }
}

fn out_of_time() -> String {
    let limit = PLAN_TIME_MAX.as_secs();
    format!(
        "planning took longer than {limit} s of processor time; is there an endless loop here or below?"
    )
}

/// The workflows among the exports of a file, by name of export.
fn read_exports<'js>(
    reader: &mut Reader<'_, 'js>,
    ctx: &Ctx<'js>,
    file: &str,
    namespace: &Object<'js>,
) -> Vec<Export> {
    let mut values = BTreeMap::new();
    for export in namespace.own_props::<String, Value<'js>>(Filter::new().string()) {
        match export {
            Ok((name, value)) => drop(values.insert(name, value)),
            Err(error) => {
                let message = format!("an export cannot be read: {}", caught(ctx, error).message);
                reader.faults.push(Fault::in_file(file, message));
            }
        }
    }
    let at = Fault::in_file(file, "");
    let mut exports = Vec::new();
    for (name, value) in values {
        match reader.kind_of(&value).as_deref() {
            Some("workflow") => {
                if let crate::raw::Raw::Node(node) = reader.read(&value, &at) {
                    exports.push(Export { file: file.to_owned(), node });
                }
            }
            Some("unsupported") => {
                let message = format!("export \"{name}\" is something that is not supported yet");
                reader.faults.push(Fault::in_file(file, message));
            }
            _ => {}
        }
    }
    exports
}
