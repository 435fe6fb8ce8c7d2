//! The host functions as the script sees them.

#![expect(clippy::needless_pass_by_value, reason = "host functions own their arguments")]

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use rquickjs::{
    Ctx, Exception, Function, Object, Result, TypedArray, Value,
    function::{IntoJsFunc, Opt},
};

use super::{
    commands::{Spec, Stop},
    files,
    host::Host,
    outputs,
};
use crate::{
    describe::schema::Schema,
    engine::{Engine, caught},
    sys,
};

/// The schema of each step's outputs; filled when the job is known.
pub(super) type Schemas = Rc<RefCell<Vec<Option<Schema>>>>;

/// The object that the built-in modules call.
///
/// # Errors
/// When the engine has no memory for it.
pub(super) fn functions<'js>(
    ctx: &Ctx<'js>,
    engine: &Engine,
    host: &Host,
    schemas: &Schemas,
) -> std::result::Result<Object<'js>, String> {
    let identify =
        engine.builtin(ctx, "shuntyard:nodes", "identify").map_err(|thrown| thrown.message)?;
    let lent =
        Lent { ctx, object: Object::new(ctx.clone()).map_err(|error| caught(ctx, error).message)? };
    let modules = engine.modules().clone();
    let all = || -> Result<()> {
        lent.object.set("platform", platform())?;
        lent.object.set("arch", arch())?;
        lent.object
            .set("parallelism", std::thread::available_parallelism().map_or(1, usize::from))?;
        lent.add("mapStack", move |text: String| modules.map_stack(&text))?;
        lend_steps(&lent, host)?;
        lend_commands(&lent, host)?;
        outputs::lend(&lent, host, engine, schemas, identify)?;
        lend_machine(&lent)?;
        files::lend(&lent)
    };
    all().map_err(|error| caught(ctx, error).message)?;
    Ok(lent.object)
}

/// The object under construction.
pub(super) struct Lent<'a, 'js> {
    pub(super) ctx: &'a Ctx<'js>,
    pub(super) object: Object<'js>,
}

impl<'js> Lent<'_, 'js> {
    pub(super) fn add<P, F: IntoJsFunc<'js, P> + 'js>(
        &self,
        name: &str,
        function: F,
    ) -> Result<()> {
        self.object.set(name, Function::new(self.ctx.clone(), function)?)
    }
}

fn lend_steps(lent: &Lent<'_, '_>, host: &Host) -> Result<()> {
    use shuntyard_protocol::runner::FromRunner;
    let print = host.clone();
    lent.add("print", move |step: u32, text: String| print.print(step, &text))?;
    let to = host.clone();
    lent.add("setEnv", move |step: u32, name: String, value: String| {
        to.send(&FromRunner::SetEnv { step, name, value }, &[]);
    })?;
    let to = host.clone();
    lent.add("addPath", move |step: u32, path: String| {
        to.send(&FromRunner::AddPath { step, path }, &[]);
    })?;
    let to = host.clone();
    lent.add("fail", move |step: u32, message: String, code: Opt<Option<i32>>| {
        to.failed(step, &message, code.0.flatten());
    })
}

fn lend_commands(lent: &Lent<'_, '_>, host: &Host) -> Result<()> {
    let to = host.clone();
    lent.add(
        "spawn",
        move |ctx: Ctx<'_>,
              step: u32,
              script: String,
              cwd: String,
              env: BTreeMap<String, String>,
              quiet: bool,
              timeout: f64| {
            let timeout = (timeout > 0.0).then(|| duration(timeout));
            let spec = Spec { script, cwd, env, quiet, timeout };
            to.spawn(step, spec).map_err(|message| Exception::throw_range(&ctx, &message))
        },
    )?;
    let to = host.clone();
    lent.add("stopCommands", move |step: u32, level: String| {
        let level = match level.as_str() {
            "kill" => Stop::Kill,
            "end" => Stop::End,
            _ => Stop::Ask,
        };
        to.stop_commands(step, level);
    })?;
    let to = host.clone();
    lent.add("startTimer", move |ctx: Ctx<'_>, id: u32, delay: f64| {
        to.start_timer(id, duration(delay))
            .map_err(|message| Exception::throw_range(&ctx, &message))
    })?;
    let to = host.clone();
    lent.add("stopTimer", move |id: u32| to.stop_timer(id))
}

fn lend_machine(lent: &Lent<'_, '_>) -> Result<()> {
    lent.add("cwd", || {
        std::env::current_dir().map_or_else(|_| "/".to_owned(), |dir| dir.display().to_string())
    })?;
    lent.add("hostname", || rustix::system::uname().nodename().to_string_lossy().into_owned())?;
    lent.add("encodeUtf8", encode)?;
    lent.add("decodeUtf8", |view: TypedArray<'_, u8>| {
        String::from_utf8_lossy(&sys::copy_bytes(&view)).into_owned()
    })
}

fn encode(ctx: Ctx<'_>, text: String) -> Result<Value<'_>> {
    bytes(&ctx, text.into_bytes())
}

pub(super) fn bytes<'js>(ctx: &Ctx<'js>, bytes: Vec<u8>) -> Result<Value<'js>> {
    Ok(TypedArray::new(ctx.clone(), bytes)?.into_value())
}

/// Milliseconds of a script; what is negative or no number is nothing.
fn duration(millis: f64) -> Duration {
    Duration::try_from_secs_f64(millis / 1000.0).unwrap_or_default()
}

/// The name that Node gives this system.
fn platform() -> &'static str {
    match std::env::consts::OS {
        "macos" => "darwin",
        "windows" => "win32",
        other => other,
    }
}

/// The name that Node gives this processor.
fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    }
}
