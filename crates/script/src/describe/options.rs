//! Options objects: known, not yet supported and unknown keys, and their common types.

use std::collections::BTreeMap;

use super::{Describer, duration};
use crate::{
    fault::{Fault, hint},
    raw::Raw,
};

/// The options of one call.
pub(super) struct Options<'a> {
    /// Whose they are, for people: `job "build"`.
    pub(super) of: String,
    pub(super) at: &'a Fault,
    entries: &'a [(String, Raw)],
}

impl<'a> Options<'a> {
    pub(super) fn get(&self, key: &str) -> Option<&'a Raw> {
        self.entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}

impl<'a> Describer<'a> {
    /// The options object `raw`, whose keys must be among `known`; those of `later` are documented
    /// but not here yet. A missing object is an empty one.
    pub(super) fn options(
        &mut self,
        of: String,
        at: &'a Fault,
        raw: Option<&'a Raw>,
        known: &[&str],
        later: &[&str],
    ) -> Options<'a> {
        let entries: &[(String, Raw)] = match raw {
            Some(Raw::Object(entries)) => entries,
            None | Some(Raw::Undefined) => &[],
            Some(other) => {
                let kind = self.kind(other);
                self.fault(at, format!("{of}: options are an object, got {kind}"));
                &[]
            }
        };
        for (key, _) in entries {
            if later.contains(&key.as_str()) {
                self.fault(at, format!("{of}: \"{key}\" is not supported yet"));
            } else if !known.contains(&key.as_str()) {
                let near = hint(key, known.iter().chain(later).copied());
                self.fault(at, format!("{of} has no option \"{key}\"{near}"));
            }
        }
        Options { of, at, entries }
    }

    /// Notes that the value of `key` is of the wrong kind.
    pub(super) fn wrong(&mut self, options: &Options<'a>, key: &str, expected: &str, got: &Raw) {
        let got = match (got, self.unsupported(got)) {
            (_, Some(call)) => {
                return self
                    .fault(options.at, format!("{}: {call} is not supported yet", options.of));
            }
            (Raw::Text(text), None) => format!("\"{text}\""),
            (Raw::Number(number), None) => number.to_string(),
            (other, None) => self.kind(other),
        };
        self.fault(options.at, format!("{}: \"{key}\" is {expected}, got {got}", options.of));
    }

    pub(super) fn text(&mut self, options: &Options<'a>, key: &str) -> Option<String> {
        match options.get(key)? {
            Raw::Text(text) => Some(text.clone()),
            other => {
                self.wrong(options, key, "a string", other);
                None
            }
        }
    }

    /// Absent means false.
    pub(super) fn flag(&mut self, options: &Options<'a>, key: &str) -> Option<bool> {
        match options.get(key)? {
            Raw::Bool(value) => Some(*value),
            other => {
                self.wrong(options, key, "true or false", other);
                None
            }
        }
    }

    pub(super) fn integer(
        &mut self,
        options: &Options<'a>,
        key: &str,
        (min, max): (i32, i32),
    ) -> Option<i32> {
        let raw = options.get(key)?;
        let value = as_integer(raw).filter(|value| (min..=max).contains(value));
        if value.is_none() {
            self.wrong(options, key, &format!("a whole number from {min} to {max}"), raw);
        }
        value
    }

    pub(super) fn timeout(&mut self, options: &Options<'a>, key: &str) -> Option<u64> {
        self.duration(options, key, duration::timeout)
    }

    pub(super) fn grace(&mut self, options: &Options<'a>, key: &str) -> Option<u64> {
        self.duration(options, key, duration::grace)
    }

    pub(super) fn delay(&mut self, options: &Options<'a>, key: &str) -> Option<u64> {
        self.duration(options, key, duration::delay)
    }

    fn duration(
        &mut self,
        options: &Options<'a>,
        key: &str,
        parse: fn(&Raw) -> Result<u64, String>,
    ) -> Option<u64> {
        match parse(options.get(key)?) {
            Ok(millis) => Some(millis),
            Err(message) => {
                self.fault(options.at, format!("{}: \"{key}\": {message}", options.of));
                None
            }
        }
    }

    /// One string or a list of them.
    pub(super) fn texts(&mut self, options: &Options<'a>, key: &str) -> Vec<String> {
        let Some(raw) = options.get(key) else { return Vec::new() };
        let texts = match raw {
            Raw::Text(text) => Some(vec![text.clone()]),
            Raw::List(items) => items.iter().map(as_text).collect(),
            _ => None,
        };
        if texts.as_ref().is_some_and(|texts| texts.iter().any(String::is_empty)) {
            self.fault(options.at, format!("{}: \"{key}\" holds an empty string", options.of));
        }
        texts.unwrap_or_else(|| {
            self.wrong(options, key, "a string or a list of strings", raw);
            Vec::new()
        })
    }

    /// Variables; numbers and booleans are written out.
    pub(super) fn env(&mut self, options: &Options<'a>) -> BTreeMap<String, String> {
        let entries = match options.get("env") {
            None => return BTreeMap::new(),
            Some(Raw::Object(entries)) => entries,
            Some(Raw::Function { .. }) => {
                self.fault(
                    options.at,
                    format!("{}: \"env\" as a function is not supported yet", options.of),
                );
                return BTreeMap::new();
            }
            Some(other) => {
                self.wrong(options, "env", "an object of strings", other);
                return BTreeMap::new();
            }
        };
        let mut env = BTreeMap::new();
        for (name, raw) in entries {
            if !is_variable(name) {
                let rule = "letters, digits and _, and no digit first";
                self.fault(
                    options.at,
                    format!("{}: \"{name}\" is no name for a variable: {rule}", options.of),
                );
            }
            match raw {
                Raw::Text(text) if text.contains('\0') => {
                    self.fault(
                        options.at,
                        format!("{}: variable {name} contains a NUL character", options.of),
                    );
                }
                Raw::Text(text) => drop(env.insert(name.clone(), text.clone())),
                Raw::Number(number) => drop(env.insert(name.clone(), number.to_string())),
                Raw::Bool(value) => drop(env.insert(name.clone(), value.to_string())),
                other => self.wrong(
                    options,
                    &format!("env.{name}"),
                    "a string, a number or a boolean",
                    other,
                ),
            }
        }
        env
    }
}

/// The whole number that a value is, if it is one that fits.
pub(super) fn as_integer(raw: &Raw) -> Option<i32> {
    match raw {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the range and the fraction are checked"
        )]
        Raw::Number(number) if number.fract() == 0.0 && number.abs() <= f64::from(i32::MAX) => {
            Some(*number as i32)
        }
        _ => None,
    }
}

fn as_text(raw: &Raw) -> Option<String> {
    match raw {
        Raw::Text(text) => Some(text.clone()),
        _ => None,
    }
}

fn is_variable(name: &str) -> bool {
    let first_is_digit = name.starts_with(|c: char| c.is_ascii_digit());
    !name.is_empty()
        && !first_is_digit
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
