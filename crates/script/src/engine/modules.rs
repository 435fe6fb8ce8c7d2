//! The modules that the engine may load, and the way back from its positions to the sources.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use rquickjs::{
    Ctx, Exception, Module, Result,
    loader::{ImportAttributes, Loader, Resolver},
    module::Declared,
};

use crate::{
    bundle::Bundle,
    fault::Fault,
    graph::{self, Target},
    sdk,
    strip::Stripped,
};

/// A bundle and what of it has been stripped so far. Clones share it.
#[derive(Clone)]
pub(crate) struct Modules {
    bundle: Rc<Bundle>,
    stripped: Rc<RefCell<BTreeMap<String, Stripped>>>,
}

impl Modules {
    pub(crate) fn new(bundle: Bundle, stripped: BTreeMap<String, Stripped>) -> Self {
        Self { bundle: Rc::new(bundle), stripped: Rc::new(RefCell::new(stripped)) }
    }

    /// Every file that was read so far.
    pub(crate) fn read_files(&self) -> Vec<String> {
        self.stripped.borrow().keys().cloned().collect()
    }

    /// A fault at the innermost frame of `stack` that is in a file of the bundle.
    pub(crate) fn fault_at(&self, stack: &str, message: impl Into<String>) -> Fault {
        let frame = stack
            .lines()
            .filter_map(parse_frame)
            .find_map(|frame| Some((frame.path, self.source_position(&frame)?)));
        match frame {
            Some((path, at)) => {
                Fault::at(path, self.bundle.get(path).unwrap_or_default(), at, message)
            }
            None => Fault::new(message),
        }
    }

    /// A fault, without words yet, at the call of `function` whose stack this is.
    pub(crate) fn call_at(&self, stack: &str, function: &str) -> Fault {
        let stripped = self.stripped.borrow();
        let frame = stack.lines().filter_map(parse_frame).find_map(|frame| {
            let module = stripped.get(frame.path)?;
            let at = module.source_position(frame.line, frame.column)?;
            Some((frame.path, module.call_around(function, at).unwrap_or(at)))
        });
        match frame {
            Some((path, at)) => Fault::at(path, self.bundle.get(path).unwrap_or_default(), at, ""),
            None => Fault::default(),
        }
    }

    /// A stack with the positions of the sources, without the frames of built-in modules.
    pub(crate) fn map_stack(&self, stack: &str) -> String {
        let mut lines = Vec::new();
        for line in stack.lines() {
            match parse_frame(line) {
                Some(frame) if sdk::find(frame.path).is_some() => {}
                Some(frame) => match self.source_position(&frame) {
                    Some((row, column)) => {
                        let at = format!("{}:{row}:{column}", frame.path);
                        lines.push(line.replace(frame.text, &at));
                    }
                    None => lines.push(line.to_owned()),
                },
                None if line.trim_end().ends_with("(native)") => {}
                None => lines.push(line.to_owned()),
            }
        }
        lines.join("\n")
    }

    fn source_position(&self, frame: &Frame<'_>) -> Option<(u32, u32)> {
        self.stripped.borrow().get(frame.path)?.source_position(frame.line, frame.column)
    }

    fn strip(&self, path: &str) -> std::result::Result<String, Vec<Fault>> {
        if let Some(known) = self.stripped.borrow().get(path) {
            return Ok(known.code.clone());
        }
        let stripped = graph::strip_file(&self.bundle, path)?;
        let code = stripped.code.clone();
        self.stripped.borrow_mut().insert(path.to_owned(), stripped);
        Ok(code)
    }
}

impl Resolver for Modules {
    fn resolve<'js>(
        &mut self,
        ctx: &Ctx<'js>,
        base: &str,
        name: &str,
        _attributes: Option<ImportAttributes<'js>>,
    ) -> Result<String> {
        // The host imports by canonical names, without a base.
        if (base.is_empty() || sdk::find(base).is_some()) && sdk::find(name).is_some() {
            return Ok(name.to_owned());
        }
        if self.bundle.get(name).is_some() && !name.starts_with("./") {
            return Ok(name.to_owned());
        }
        match graph::resolve(&self.bundle, base, name) {
            Ok(Target::File(path)) => Ok(path),
            Ok(Target::Builtin(module)) => Ok(module.name.to_owned()),
            Err(message) => Err(Exception::throw_type(ctx, &message)),
        }
    }
}

impl Loader for Modules {
    fn load<'js>(
        &mut self,
        ctx: &Ctx<'js>,
        name: &str,
        _attributes: Option<ImportAttributes<'js>>,
    ) -> Result<Module<'js, Declared>> {
        if let Some(module) = sdk::find(name) {
            return Module::declare(ctx.clone(), name, module.source);
        }
        match self.strip(name) {
            Ok(code) => Module::declare(ctx.clone(), name, code),
            Err(faults) => {
                let text: Vec<_> = faults.iter().map(ToString::to_string).collect();
                Err(Exception::throw_syntax(ctx, &text.join("\n")))
            }
        }
    }
}

/// `at name (path:line:column)` of the engine's stacks.
struct Frame<'a> {
    path: &'a str,
    line: u32,
    column: u32,
    /// The part to replace.
    text: &'a str,
}

fn parse_frame(line: &str) -> Option<Frame<'_>> {
    let line = line.trim();
    let rest = line.strip_prefix("at ")?;
    let text = match rest.rsplit_once('(') {
        Some((_, inside)) => inside.strip_suffix(')')?,
        None => rest,
    };
    let mut parts = text.rsplitn(3, ':');
    let (column, row, path) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Frame { path, line: row.parse().ok()?, column: column.parse().ok()?, text })
}
