//! Schemas of outputs: from `z`, as JSON in the plan, and against values at run time.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::selector;
use crate::raw::{Raw, Tree};

/// Deepest nesting of a schema.
const SCHEMA_DEPTH_MAX: usize = 16;

/// What a value has to look like. As JSON it is the `outputs` of a step in the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Schema {
    #[serde(flatten)]
    form: Form,
    #[serde(default, skip_serializing_if = "is_false")]
    optional: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    nullable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    default: Option<Value>,
    /// Of a number its value, of a string or list its length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max: Option<f64>,
    /// In the syntax of the linear engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    regex: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    int: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Form {
    String,
    Number,
    Boolean,
    Literal { value: Value },
    Enum { values: Vec<Value> },
    Array { items: Box<Schema> },
    Object { properties: Vec<(String, Schema)> },
    Record { items: Box<Schema> },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_false(value: &bool) -> bool {
    !value
}

/// The schema that a value made with `z` stands for; an object of schemas is `z.object` of it.
///
/// # Errors
/// What is wrong, beginning with the path inside the schema.
pub(crate) fn of(tree: &Tree, raw: &Raw) -> Result<Schema, String> {
    match raw {
        Raw::Object(entries) => {
            let properties = properties(tree, entries, SCHEMA_DEPTH_MAX)?;
            Ok(plain(Form::Object { properties }))
        }
        other => read(tree, other, SCHEMA_DEPTH_MAX),
    }
}

fn plain(form: Form) -> Schema {
    Schema {
        form,
        optional: false,
        nullable: false,
        default: None,
        min: None,
        max: None,
        regex: None,
        int: false,
    }
}

fn read(tree: &Tree, raw: &Raw, depth: usize) -> Result<Schema, String> {
    let node = match raw {
        Raw::Node(id) => tree.nodes.get(id).filter(|node| node.kind == "schema"),
        _ => None,
    };
    let Some(Raw::Object(entries)) = node.and_then(|node| node.args.first()) else {
        return Err(format!(" is a schema such as z.object({{ … }}), got {}", raw.kind()));
    };
    let depth = depth
        .checked_sub(1)
        .ok_or_else(|| format!(" is nested deeper than {SCHEMA_DEPTH_MAX} levels"))?;
    let get = |key: &str| entries.iter().find(|(name, _)| name == key).map(|(_, raw)| raw);
    let mut schema = plain(form(tree, &get, depth)?);
    for (key, raw) in entries {
        match (key.as_str(), raw) {
            ("optional", _) => schema.optional = true,
            ("nullable", _) => schema.nullable = true,
            ("int", _) => schema.int = true,
            ("min", Raw::Number(number)) => schema.min = Some(*number),
            ("max", Raw::Number(number)) => schema.max = Some(*number),
            ("min" | "max", other) => {
                return Err(format!(": {key}() takes a number, got {}", other.kind()));
            }
            ("regex", Raw::RegExp { source, flags }) => {
                let pattern =
                    selector::regex(source, flags).map_err(|message| format!(": {message}"))?;
                schema.regex = Some(pattern);
            }
            ("regex", other) => {
                return Err(format!(": regex() takes a regular expression, got {}", other.kind()));
            }
            ("default", raw) => {
                schema.default =
                    Some(raw.to_json().ok_or_else(|| ": default() takes a JSON value".to_owned())?);
            }
            _ => {}
        }
    }
    fits(&schema)?;
    Ok(schema)
}

/// Whether the refinements belong to the form, and the default keeps to the schema.
fn fits(schema: &Schema) -> Result<(), String> {
    let sized = matches!(schema.form, Form::String | Form::Number | Form::Array { .. });
    if (schema.min.is_some() || schema.max.is_some()) && !sized {
        return Err(": min() and max() belong to strings, numbers and arrays".to_owned());
    }
    if schema.int && schema.form != Form::Number {
        return Err(": int() belongs to numbers".to_owned());
    }
    if schema.regex.is_some() && schema.form != Form::String {
        return Err(": regex() belongs to strings".to_owned());
    }
    let strict = Schema { default: None, ..schema.clone() };
    match schema.default.clone().map(|value| strict.check(value)) {
        Some(Err(message)) => Err(format!(": default(){message}")),
        _ => Ok(()),
    }
}

fn form<'a>(
    tree: &Tree,
    get: &impl Fn(&str) -> Option<&'a Raw>,
    depth: usize,
) -> Result<Form, String> {
    let items = || -> Result<Box<Schema>, String> {
        let inner = get("items").unwrap_or(&Raw::Undefined);
        Ok(Box::new(read(tree, inner, depth).map_err(|message| format!("[]{message}"))?))
    };
    let kind = match get("type") {
        Some(Raw::Text(kind)) => kind.as_str(),
        _ => "",
    };
    let form = match kind {
        "string" => Form::String,
        "number" => Form::Number,
        "boolean" => Form::Boolean,
        "literal" => {
            let value = get("value").and_then(Raw::to_json).filter(is_scalar);
            Form::Literal {
                value: value.ok_or(": z.literal() takes a string, a number or a boolean")?,
            }
        }
        "enum" => {
            let values = match get("values") {
                Some(Raw::List(items)) if !items.is_empty() => {
                    items.iter().map(|item| item.to_json().filter(is_scalar)).collect()
                }
                _ => None,
            };
            Form::Enum { values: values.ok_or(": z.enum() takes a list of strings or numbers")? }
        }
        "array" => Form::Array { items: items()? },
        "record" => Form::Record { items: items()? },
        _ => match get("properties") {
            Some(Raw::Object(entries)) => {
                Form::Object { properties: properties(tree, entries, depth)? }
            }
            _ => return Err(": z.object() takes an object of schemas".to_owned()),
        },
    };
    Ok(form)
}

fn properties(
    tree: &Tree,
    entries: &[(String, Raw)],
    depth: usize,
) -> Result<Vec<(String, Schema)>, String> {
    let read = |(name, raw): &(String, Raw)| {
        let schema = read(tree, raw, depth).map_err(|message| format!(".{name}{message}"))?;
        Ok((name.clone(), schema))
    };
    entries.iter().map(read).collect()
}

fn is_scalar(value: &Value) -> bool {
    value.is_string() || value.is_number() || value.is_boolean()
}

impl Schema {
    /// The form in the plan.
    pub(crate) fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("a schema is made of JSON values and finite numbers")
    }

    /// Checks a value and fills in defaults.
    ///
    /// # Errors
    /// What is wrong, beginning with the path inside the value: `.version is a string, got 7`.
    pub(crate) fn check(&self, value: Value) -> Result<Value, String> {
        if value.is_null() && self.nullable {
            return Ok(value);
        }
        match &self.form {
            Form::String => self.check_string(value),
            Form::Number => self.check_number(value),
            Form::Boolean if value.is_boolean() => Ok(value),
            Form::Boolean => Err(wrong("a boolean", &value)),
            Form::Literal { value: only } if same(only, &value) => Ok(value),
            Form::Literal { value: only } => Err(wrong(&only.to_string(), &value)),
            Form::Enum { values } if values.iter().any(|known| same(known, &value)) => Ok(value),
            Form::Enum { values } => {
                let known: Vec<_> = values.iter().map(ToString::to_string).collect();
                Err(wrong(&format!("one of {}", known.join(", ")), &value))
            }
            Form::Array { items } => self.check_array(items, value),
            Form::Object { properties } => check_object(properties, value),
            Form::Record { items } => check_record(items, value),
        }
    }

    fn check_string(&self, value: Value) -> Result<Value, String> {
        let Value::String(text) = &value else { return Err(wrong("a string", &value)) };
        self.check_size(text.chars().count(), "characters")?;
        let matches = self.regex.as_ref().is_none_or(|pattern| {
            regex::Regex::new(pattern).is_ok_and(|regex| regex.is_match(text))
        });
        if matches {
            Ok(value)
        } else {
            Err(wrong(&format!("text like /{}/", self.regex.as_deref().unwrap_or("")), &value))
        }
    }

    fn check_number(&self, value: Value) -> Result<Value, String> {
        let Some(number) = value.as_f64() else { return Err(wrong("a number", &value)) };
        if self.int && number.fract() != 0.0 {
            return Err(wrong("a whole number", &value));
        }
        if let Some(min) = self.min.filter(|min| number < *min) {
            return Err(wrong(&format!("at least {min}"), &value));
        }
        if let Some(max) = self.max.filter(|max| number > *max) {
            return Err(wrong(&format!("at most {max}"), &value));
        }
        Ok(value)
    }

    fn check_array(&self, items: &Schema, value: Value) -> Result<Value, String> {
        let Value::Array(list) = value else { return Err(wrong("a list", &value)) };
        self.check_size(list.len(), "items")?;
        let checked = list.into_iter().enumerate().map(|(index, item)| {
            items.check(item).map_err(|message| format!("[{index}]{message}"))
        });
        Ok(Value::Array(checked.collect::<Result<_, _>>()?))
    }

    fn check_size(&self, size: usize, unit: &str) -> Result<(), String> {
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
        let size = size as f64;
        match (self.min, self.max) {
            (Some(min), _) if size < min => Err(format!(" has at least {min} {unit}, got {size}")),
            (_, Some(max)) if size > max => Err(format!(" has at most {max} {unit}, got {size}")),
            _ => Ok(()),
        }
    }
}

fn check_object(properties: &[(String, Schema)], value: Value) -> Result<Value, String> {
    let Value::Object(mut given) = value else { return Err(wrong("an object", &value)) };
    let mut checked = Map::new();
    for (name, schema) in properties {
        let value = match (given.remove(name), &schema.default) {
            (Some(value), _) => schema.check(value),
            (None, Some(default)) => Ok(default.clone()),
            (None, None) if schema.optional => continue,
            (None, None) => Err(" is missing".to_owned()),
        };
        checked.insert(name.clone(), value.map_err(|message| format!(".{name}{message}"))?);
    }
    match given.keys().next() {
        Some(unknown) => Err(format!(".{unknown} is not in the schema of the outputs")),
        None => Ok(Value::Object(checked)),
    }
}

fn check_record(items: &Schema, value: Value) -> Result<Value, String> {
    let Value::Object(given) = value else { return Err(wrong("an object", &value)) };
    let checked = given.into_iter().map(|(name, value)| {
        let value = items.check(value).map_err(|message| format!(".{name}{message}"))?;
        Ok((name, value))
    });
    Ok(Value::Object(checked.collect::<Result<_, String>>()?))
}

/// Equal, where 1 and 1.0 are one number.
fn same(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().zip(b.as_f64()).is_some_and(|(a, b)| a.total_cmp(&b).is_eq())
}

fn wrong(expected: &str, got: &Value) -> String {
    const SHOWN_CHARS: usize = 60;
    let text = got.to_string();
    let short: String = text.chars().take(SHOWN_CHARS).collect();
    let dots = if short.len() < text.len() { "…" } else { "" };
    format!(" is {expected}, got {short}{dots}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: &Value, value: Value, expected: Result<Value, &str>) {
        let schema: Schema = serde_json::from_value(schema.clone()).unwrap();
        assert_eq!(schema.to_json(), serde_json::to_value(&schema).unwrap());
        assert_eq!(schema.check(value), expected.map_err(str::to_owned));
    }

    #[test]
    fn values_are_checked_with_their_path() {
        let schema = json!({"type": "object", "properties": [
            ["version", {"type": "string", "regex": "^v", "min": 2.0}],
            ["count", {"type": "number", "int": true, "default": 3}],
            ["tags", {"type": "array", "optional": true, "items": {"type": "enum", "values": ["a", 1]}}],
            ["note", {"type": "literal", "value": true, "nullable": true, "optional": true}],
            ["map", {"type": "record", "optional": true, "items": {"type": "boolean"}}],
        ]});
        check(&schema, json!({"version": "v1"}), Ok(json!({"version": "v1", "count": 3})));
        check(&schema, json!({"version": "1.0"}), Err(".version is text like /^v/, got \"1.0\""));
        check(&schema, json!({"version": "v"}), Err(".version has at least 2 characters, got 1"));
        check(&schema, json!({}), Err(".version is missing"));
        check(
            &schema,
            json!({"version": "v1", "count": 1.5}),
            Err(".count is a whole number, got 1.5"),
        );
        check(
            &schema,
            json!({"version": "v1", "tags": ["a", 2]}),
            Err(".tags[1] is one of \"a\", 1, got 2"),
        );
        check(
            &schema,
            json!({"version": "v1", "x": 1}),
            Err(".x is not in the schema of the outputs"),
        );
        check(
            &schema,
            json!({"version": "v1", "map": {"k": 1}}),
            Err(".map.k is a boolean, got 1"),
        );
        let full = json!({"version": "v1", "count": 1, "tags": ["a", 1], "note": null, "map": {"k": true}});
        check(&schema, full.clone(), Ok(full));
        check(&schema, json!([]), Err(" is an object, got []"));
    }
}
