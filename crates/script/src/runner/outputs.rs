//! The outputs of a step: read, checked against their schema, sent.

use rquickjs::{Ctx, Exception, Function, Result, Value as JsValue};
use serde_json::Value;

use super::{
    host::Host,
    lend::{Lent, Schemas},
};
use crate::{
    describe::schema::Schema,
    engine::Engine,
    fault::Fault,
    raw::{Raw, Reader},
};

/// Most bytes of a step's outputs, as JSON.
pub(super) const OUTPUT_BYTES_MAX: usize = 256 * 1024;

/// Lends `succeed(step, outputs)`, which returns the outputs as they are kept.
pub(super) fn lend<'js>(
    lent: &Lent<'_, 'js>,
    host: &Host,
    engine: &Engine,
    schemas: &Schemas,
    identify: Function<'js>,
) -> Result<()> {
    let (host, schemas, modules) = (host.clone(), schemas.clone(), engine.modules().clone());
    lent.add("succeed", move |ctx: Ctx<'js>, step: u32, value: JsValue<'js>| {
        let mut reader = Reader::new(&ctx, &modules, identify.clone());
        let raw = reader.read(&value, &Fault::default());
        let unreadable = reader.faults.pop().map(|fault| fault.message);
        let schema = schemas.borrow().get(step as usize).cloned().flatten();
        let outputs = unreadable.map_or_else(|| outputs(&raw, schema.as_ref()), Err);
        let outputs = outputs.map_err(|message| Exception::throw_type(&ctx, &message))?;
        host.succeeded(step, outputs.clone());
        match outputs {
            None => Ok(JsValue::new_undefined(ctx)),
            Some(outputs) => ctx.json_parse(outputs.to_string()),
        }
    })
}

/// The outputs that a value gives.
///
/// # Errors
/// What is wrong and where: `outputs.version is a string, got 7`.
fn outputs(raw: &Raw, schema: Option<&Schema>) -> std::result::Result<Option<Value>, String> {
    let value = match (raw, schema) {
        (Raw::Undefined, None) => return Ok(None),
        (Raw::Undefined, Some(_)) => Value::Object(serde_json::Map::new()),
        (raw, _) => to_json(raw, "outputs")?,
    };
    let value = match schema {
        Some(schema) => schema.check(value).map_err(|message| format!("outputs{message}"))?,
        None => value,
    };
    let bytes = value.to_string().len();
    if bytes > OUTPUT_BYTES_MAX {
        return Err(format!(
            "the outputs of a step have at most {OUTPUT_BYTES_MAX} bytes as JSON, these have {bytes}"
        ));
    }
    Ok(Some(value))
}

fn to_json(raw: &Raw, path: &str) -> std::result::Result<Value, String> {
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other kinds are alike here")]
    match raw {
        Raw::List(items) => {
            let items = items.iter().enumerate();
            items.map(|(index, item)| to_json(item, &format!("{path}[{index}]"))).collect()
        }
        Raw::Object(entries) => entries
            .iter()
            .map(|(key, value)| Ok((key.clone(), to_json(value, &format!("{path}.{key}"))?)))
            .collect::<std::result::Result<serde_json::Map<_, _>, String>>()
            .map(Value::Object),
        Raw::Number(number) if !number.is_finite() => {
            Err(format!("{path} is {number}, which JSON cannot say"))
        }
        other => {
            other.to_json().ok_or_else(|| format!("{path} is {}; outputs are JSON", other.kind()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized(bytes: usize) -> Raw {
        let frame = r#"{"a":""}"#.len();
        Raw::Object(vec![("a".to_owned(), Raw::Text("x".repeat(bytes - frame)))])
    }

    #[test]
    fn outputs_at_the_limit_pass_and_one_byte_more_is_refused() {
        assert!(outputs(&sized(OUTPUT_BYTES_MAX), None).is_ok());
        let message = outputs(&sized(OUTPUT_BYTES_MAX + 1), None).unwrap_err();
        assert_eq!(
            message,
            "the outputs of a step have at most 262144 bytes as JSON, these have 262145"
        );
    }

    #[test]
    fn what_is_no_json_is_named_by_its_path() {
        let nested = Raw::Object(vec![("a".to_owned(), Raw::List(vec![Raw::Number(f64::NAN)]))]);
        assert_eq!(
            outputs(&nested, None).unwrap_err(),
            "outputs.a[0] is NaN, which JSON cannot say"
        );
        let function =
            Raw::Object(vec![("f".to_owned(), Raw::Function { index: 0, name: String::new() })]);
        assert_eq!(
            outputs(&function, None).unwrap_err(),
            "outputs.f is a function; outputs are JSON"
        );
    }
}
