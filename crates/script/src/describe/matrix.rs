//! `matrix`, `include`, `exclude`, `maxParallel`, `failFast`.

use std::collections::BTreeMap;

use serde_json::Value;
use shuntyard_protocol::plan::{Axes, Matrix};

use super::{Describer, options::Options};
use crate::raw::Raw;

/// Most values of one axis; `core` bounds the product.
const AXIS_VALUES_MAX: usize = 256;
const BESIDE: [&str; 4] = ["include", "exclude", "maxParallel", "failFast"];

impl<'a> Describer<'a> {
    pub(super) fn matrix(&mut self, options: &Options<'a>) -> Option<Matrix> {
        let Some(raw) = options.get("matrix") else {
            for key in BESIDE.iter().filter(|key| options.get(key).is_some()) {
                self.fault(
                    options.at,
                    format!("{}: \"{key}\" belongs to a \"matrix\", and there is none", options.of),
                );
            }
            return None;
        };
        let axes = self.axes(options, raw)?;
        Some(Matrix {
            include: self.combinations(options, "include", None),
            exclude: self.combinations(options, "exclude", Some(&axes)),
            axes,
            max_parallel: self.integer(options, "maxParallel", (1, 256)).map(i32::unsigned_abs),
            fail_fast: self.flag(options, "failFast").unwrap_or(false),
        })
    }

    fn axes(&mut self, options: &Options<'a>, raw: &'a Raw) -> Option<Axes> {
        match raw {
            Raw::List(_) => Some(Axes::List(self.values(options, "matrix", raw))),
            Raw::Function { .. } => {
                self.fault(
                    options.at,
                    format!("{}: a matrix that is a function is not supported yet", options.of),
                );
                None
            }
            Raw::Object(entries) if !entries.is_empty() => {
                let mut axes = Vec::new();
                for (name, values) in entries {
                    if BESIDE.contains(&name.as_str()) {
                        let message = format!(
                            "{}: write \"{name}\" beside \"matrix\", not inside it",
                            options.of
                        );
                        self.fault(options.at, message);
                        continue;
                    }
                    axes.push((
                        name.clone(),
                        self.values(options, &format!("matrix.{name}"), values),
                    ));
                }
                Some(Axes::Product(axes))
            }
            other => {
                self.wrong(options, "matrix", "a list of values or an object of such lists", other);
                None
            }
        }
    }

    fn values(&mut self, options: &Options<'a>, key: &str, raw: &'a Raw) -> Vec<Value> {
        let Raw::List(items) = raw else {
            self.wrong(options, key, "a list of values", raw);
            return Vec::new();
        };
        if items.is_empty() || items.len() > AXIS_VALUES_MAX {
            let count = items.len();
            self.fault(
                options.at,
                format!(
                    "{}: \"{key}\" holds 1 to {AXIS_VALUES_MAX} values, got {count}",
                    options.of
                ),
            );
        }
        items.iter().filter_map(|item| self.value(options, key, item)).collect()
    }

    fn value(&mut self, options: &Options<'a>, key: &str, raw: &'a Raw) -> Option<Value> {
        let value = match raw {
            Raw::Text(_) | Raw::Bool(_) | Raw::Number(_) => raw.to_json(),
            _ => None,
        };
        if value.is_none() {
            self.wrong(options, key, "made of strings, numbers and booleans", raw);
        }
        value
    }

    fn combinations(
        &mut self,
        options: &Options<'a>,
        key: &str,
        axes: Option<&Axes>,
    ) -> Vec<BTreeMap<String, Value>> {
        let items = match options.get(key) {
            None => return Vec::new(),
            Some(Raw::List(items)) => items,
            Some(other) => {
                self.wrong(options, key, "a list of objects", other);
                return Vec::new();
            }
        };
        items.iter().filter_map(|item| self.combination(options, key, item, axes)).collect()
    }

    fn combination(
        &mut self,
        options: &Options<'a>,
        key: &str,
        raw: &'a Raw,
        axes: Option<&Axes>,
    ) -> Option<BTreeMap<String, Value>> {
        let entries = match raw {
            Raw::Object(entries) if !entries.is_empty() => entries,
            other => {
                self.wrong(options, key, "a list of objects such as { os: \"linux\" }", other);
                return None;
            }
        };
        for (name, _) in entries {
            let known = match axes {
                None => true,
                Some(Axes::List(_)) => name == "value",
                Some(Axes::Product(axes)) => axes.iter().any(|(axis, _)| axis == name),
            };
            if !known {
                self.fault(
                    options.at,
                    format!(
                        "{}: \"{key}\" names \"{name}\", which is no axis of the matrix",
                        options.of
                    ),
                );
            }
        }
        let values =
            entries.iter().map(|(name, raw)| Some((name.clone(), self.value(options, key, raw)?)));
        values.collect()
    }
}
