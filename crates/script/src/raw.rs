//! The author's values as the host sees them: own properties, read once, without trust.
//!
//! Reading calls the author's getters and proxies, so it can throw; it never looks at a prototype.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use rquickjs::{Ctx, Function, Object, Value, object::Filter};

use crate::{
    engine::{Modules, Thrown, caught},
    fault::Fault,
};

/// Deepest nesting of values.
const DEPTH_MAX: usize = 32;
/// Most values that one evaluation reads.
const VALUES_MAX: usize = 100_000;

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Raw {
    Undefined,
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Raw>),
    /// Properties in the order in which they were declared; those that are undefined are left out.
    Object(Vec<(String, Raw)>),
    RegExp {
        source: String,
        flags: String,
    },
    /// Index into [`Tree::functions`]'s counterpart in the engine.
    Function {
        index: usize,
        name: String,
    },
    /// What a function of the SDK returned.
    Node(u32),
    /// Anything else, by a name for people: `a promise`, `a bigint`.
    Other(&'static str),
}

impl Raw {
    /// The value as JSON, if it is one. Whole numbers are written without a fraction.
    pub(crate) fn to_json(&self) -> Option<Json> {
        Some(match self {
            Self::Null => Json::Null,
            Self::Bool(value) => Json::Bool(*value),
            Self::Number(number) => number_to_json(*number)?,
            Self::Text(text) => Json::String(text.clone()),
            Self::List(items) => {
                Json::Array(items.iter().map(Self::to_json).collect::<Option<_>>()?)
            }
            Self::Object(entries) => {
                let entries = entries.iter().map(|(key, raw)| Some((key.clone(), raw.to_json()?)));
                Json::Object(entries.collect::<Option<_>>()?)
            }
            Self::Undefined
            | Self::RegExp { .. }
            | Self::Function { .. }
            | Self::Node(_)
            | Self::Other(_) => {
                return None;
            }
        })
    }

    /// The kind of the value, for people.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Undefined => "undefined",
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
            Self::RegExp { .. } => "a regular expression",
            Self::Function { .. } => "a function",
            Self::Node(_) => "a value of the SDK",
            Self::Other(name) => name,
        }
    }
}

/// One call of a function of the SDK.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    /// The name of the function, `schema` for `z`.
    pub(crate) kind: String,
    pub(crate) args: Vec<Raw>,
    /// Where it was called: a fault without a message.
    pub(crate) at: Fault,
}

/// Everything that was reachable from the exports.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) nodes: BTreeMap<u32, Node>,
}

/// Reads values out of the engine.
pub(crate) struct Reader<'a, 'js> {
    ctx: &'a Ctx<'js>,
    modules: &'a Modules,
    identify: Function<'js>,
    pub(crate) tree: Tree,
    /// The author's functions, by the index in [`Raw::Function`].
    pub(crate) functions: Vec<Function<'js>>,
    /// What could not be read.
    pub(crate) faults: Vec<Fault>,
    /// Calls whose arguments are still to be read.
    waiting: Vec<(u32, Object<'js>)>,
    values: usize,
}

/// Why a value could not be read.
#[derive(Debug)]
enum ReadError {
    Thrown(Thrown),
    TooDeep,
    TooMany,
}

impl<'a, 'js> Reader<'a, 'js> {
    pub(crate) fn new(ctx: &'a Ctx<'js>, modules: &'a Modules, identify: Function<'js>) -> Self {
        Self {
            ctx,
            modules,
            identify,
            tree: Tree::default(),
            functions: Vec::new(),
            faults: Vec::new(),
            waiting: Vec::new(),
            values: 0,
        }
    }

    /// Reads a value and all that hangs on it. What cannot be read is noted in `faults`, at
    /// `at` or at the call that it is an argument of.
    pub(crate) fn read(&mut self, value: &Value<'js>, at: &Fault) -> Raw {
        let raw = self.read_at(value, 0).unwrap_or_else(|error| {
            self.note(error, at);
            Raw::Undefined
        });
        while let Some((id, args)) = self.waiting.pop() {
            match self.list(&args, 0) {
                Ok(args) => {
                    if let Some(node) = self.tree.nodes.get_mut(&id) {
                        node.args = args;
                    }
                }
                Err(error) => {
                    let at =
                        self.tree.nodes.get(&id).map_or_else(|| at.clone(), |node| node.at.clone());
                    self.note(error, &at);
                }
            }
        }
        raw
    }

    fn note(&mut self, error: ReadError, at: &Fault) {
        let fault = match error {
            ReadError::Thrown(thrown) => {
                let message = format!("reading an option failed: {}", thrown.message);
                let inner = self.modules.fault_at(&thrown.stack, message.as_str());
                if inner.file.is_some() { inner } else { Fault { message, ..at.clone() } }
            }
            ReadError::TooDeep => Fault {
                message: format!(
                    "options are nested deeper than {DEPTH_MAX} levels, or contain themselves"
                ),
                ..at.clone()
            },
            ReadError::TooMany => Fault {
                message: format!("the workflows consist of more than {VALUES_MAX} values"),
                ..at.clone()
            },
        };
        self.faults.push(fault);
    }

    /// The name of the SDK function that made the value, if one did.
    pub(crate) fn kind_of(&self, value: &Value<'js>) -> Option<String> {
        let object = value.as_object()?;
        let identity: Value<'js> = self.wrap(self.identify.call((object.clone(),))).ok()?;
        identity.as_object()?.get("kind").ok()
    }

    fn read_at(&mut self, value: &Value<'js>, depth: usize) -> Result<Raw, ReadError> {
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(ReadError::TooMany);
        }
        if depth > DEPTH_MAX {
            return Err(ReadError::TooDeep);
        }
        if let Some(text) = value.as_string() {
            return Ok(Raw::Text(self.wrap(text.to_string())?));
        }
        if let Some(function) = value.as_function() {
            let name: Value<'js> = self.wrap(function.get("name"))?;
            let name = name.as_string().and_then(|name| name.to_string().ok()).unwrap_or_default();
            self.functions.push(function.clone());
            return Ok(Raw::Function { index: self.functions.len() - 1, name });
        }
        if value.is_promise() {
            return Ok(Raw::Other("a promise (await it first)"));
        }
        match value.as_object() {
            Some(object) => self.object(object, depth),
            None => Ok(scalar(value)),
        }
    }

    fn object(&mut self, object: &Object<'js>, depth: usize) -> Result<Raw, ReadError> {
        let identity: Value<'js> = self.wrap(self.identify.call((object.clone(),)))?;
        if let Some(identity) = identity.as_object() {
            let kind: String = self.wrap(identity.get("kind"))?;
            if kind == "regexp" {
                let source = self.wrap(identity.get("source"))?;
                return Ok(Raw::RegExp { source, flags: self.wrap(identity.get("flags"))? });
            }
            return self.node(identity, kind);
        }
        if object.is_array() {
            return Ok(Raw::List(self.list(object, depth)?));
        }
        let mut properties = Vec::new();
        for property in object.own_props::<String, Value<'js>>(Filter::new().string().enum_only()) {
            let (key, value) = self.wrap(property)?;
            let raw = self.read_at(&value, depth + 1)?;
            if raw != Raw::Undefined {
                properties.push((key, raw));
            }
        }
        Ok(Raw::Object(properties))
    }

    fn list(&mut self, array: &Object<'js>, depth: usize) -> Result<Vec<Raw>, ReadError> {
        let length: u32 = self.wrap(array.get("length"))?;
        let mut items = Vec::new();
        for index in 0..length {
            let item: Value<'js> = self.wrap(array.get(index))?;
            items.push(self.read_at(&item, depth + 1)?);
        }
        Ok(items)
    }

    fn node(&mut self, data: &Object<'js>, kind: String) -> Result<Raw, ReadError> {
        let id: u32 = self.wrap(data.get("id"))?;
        if !self.tree.nodes.contains_key(&id) {
            let stack: Value<'js> = self.wrap(data.get("stack"))?;
            let stack = stack.as_string().and_then(|stack| stack.to_string().ok());
            let at = self.modules.call_at(&stack.unwrap_or_default(), &kind);
            // Arguments are read later: they may lead back here, or through a long chain of jobs.
            self.tree.nodes.insert(id, Node { kind, args: Vec::new(), at });
            let args: Object<'js> = self.wrap(data.get("args"))?;
            self.waiting.push((id, args));
        }
        Ok(Raw::Node(id))
    }

    fn wrap<T>(&self, result: rquickjs::Result<T>) -> Result<T, ReadError> {
        result.map_err(|error| ReadError::Thrown(caught(self.ctx, error)))
    }
}

fn scalar(value: &Value<'_>) -> Raw {
    if value.is_undefined() {
        Raw::Undefined
    } else if value.is_null() {
        Raw::Null
    } else if let Some(boolean) = value.as_bool() {
        Raw::Bool(boolean)
    } else if let Some(number) = value.as_number() {
        Raw::Number(number)
    } else if value.is_symbol() {
        Raw::Other("a symbol")
    } else {
        Raw::Other("a bigint")
    }
}

/// A number as JSON; what is not finite has no such form.
#[expect(clippy::cast_possible_truncation, reason = "only whole numbers in the exact range of f64")]
fn number_to_json(number: f64) -> Option<Json> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= EXACT {
        return Some(Json::from(number as i64));
    }
    serde_json::Number::from_f64(number).map(Json::Number)
}
