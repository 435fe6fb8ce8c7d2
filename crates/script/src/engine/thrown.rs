//! What a script threw, as text.

use rquickjs::{CatchResultExt, CaughtError, Ctx, Error, Object, Value};

/// Longest message that is kept of a thrown value, in bytes.
const MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// A thrown value: its words and where it came from.
#[derive(Clone, Debug)]
pub(crate) struct Thrown {
    /// `TypeError: x is not a function`
    pub(crate) message: String,
    /// The engine's stack, positions not mapped; may be empty.
    pub(crate) stack: String,
    /// The engine ran out of memory.
    pub(crate) out_of_memory: bool,
}

impl Thrown {
    pub(crate) fn message(text: &str) -> Self {
        Self { message: text.to_owned(), stack: String::new(), out_of_memory: false }
    }
}

/// Takes the pending exception out of the engine. Whatever was thrown (a proxy, an object whose
/// getters throw), this neither fails nor throws.
pub(crate) fn caught(ctx: &Ctx<'_>, error: Error) -> Thrown {
    match CaughtError::from_error(ctx, error) {
        CaughtError::Error(Error::Allocation) => {
            Thrown { out_of_memory: true, ..Thrown::message("out of memory") }
        }
        CaughtError::Error(error) => Thrown::message(&error.to_string()),
        CaughtError::Exception(exception) => {
            let object = exception.as_object();
            let name = text_of(ctx, object, "name").unwrap_or_else(|| "Error".to_owned());
            let message = text_of(ctx, object, "message").unwrap_or_default();
            Thrown {
                out_of_memory: name == "InternalError" && message == "out of memory",
                message: shorten(format!("{name}: {message}")),
                stack: text_of(ctx, object, "stack").unwrap_or_default(),
            }
        }
        // An engine without memory for an error object throws null.
        CaughtError::Value(value) if value.is_null() => {
            Thrown { out_of_memory: true, ..Thrown::message("null was thrown") }
        }
        CaughtError::Value(value) => Thrown::message(&shorten(format!(
            "{} was thrown instead of an Error",
            describe(&value)
        ))),
    }
}

fn text_of<'js>(ctx: &Ctx<'js>, object: &Object<'js>, key: &str) -> Option<String> {
    let value: Value<'js> = object.get(key).catch(ctx).ok()?;
    value.as_string()?.to_string().catch(ctx).ok()
}

fn describe(value: &Value<'_>) -> String {
    match value.as_string().map(rquickjs::String::to_string) {
        Some(Ok(text)) => format!("the string {text:?}"),
        _ => format!("a value of type {}", value.type_of()),
    }
}

fn shorten(mut text: String) -> String {
    if text.len() > MESSAGE_BYTES_MAX {
        let mut end = MESSAGE_BYTES_MAX;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}
