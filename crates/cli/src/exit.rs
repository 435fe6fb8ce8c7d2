//! How commands end: 0 ok, 1 failed, 2 usage or plan error, 130 interrupted.

use std::{fmt, process::ExitCode};

/// A command's end that is not success.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was said already, a failed run for example.
    Said(u8),
    /// Nobody reads the output any more, which is all that the command was for. Exit code 0.
    Unread,
    /// The user can mend it: shown without a chain. Exit code 2.
    Usage(String),
    Error(anyhow::Error),
}

pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

/// The result was not success.
pub(crate) const FAILED: u8 = 1;
/// Usage or plan error.
pub(crate) const USAGE: u8 = 2;
/// Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

/// A mistake of the caller.
pub(crate) fn usage(message: impl fmt::Display) -> Failure {
    Failure::Usage(message.to_string())
}

/// Prints what is left to say.
pub(crate) fn code(result: Result) -> ExitCode {
    let (code, message) = match result {
        Ok(()) | Err(Failure::Unread) => return ExitCode::SUCCESS,
        Err(Failure::Said(code)) => return ExitCode::from(code),
        Err(Failure::Usage(message)) => (USAGE, message),
        Err(Failure::Error(error)) => (FAILED, format!("{error:#}")),
    };
    anstream::eprintln!("{}error:{} {message}", crate::show::style::ERROR, anstyle::Reset);
    ExitCode::from(code)
}
