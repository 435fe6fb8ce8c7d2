//! What people see: logs of this process, times, tables and runs.

pub(crate) mod live;
pub(crate) mod style;
pub(crate) mod table;

use std::{
    io::{self, ErrorKind, IsTerminal},
    time::Duration,
};

use shuntyard_protocol::{Timestamp, api::Job};
use tracing_subscriber::EnvFilter;

use crate::exit::{Failure, Result};

/// Sends this process's own messages to stderr: warnings, or more with `-v`.
pub(crate) fn log(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("SHUNT_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let colour = io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colour)
        .with_writer(io::stderr)
        // It could only be said where nothing can be said.
        .log_internal_errors(false)
        .init();
}

/// What was printed, or that nobody reads it any more: that ends nothing by itself.
pub(crate) fn unread(printed: io::Result<()>) -> io::Result<()> {
    match printed {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// What was printed for somebody alone. When they read no more, the command ends.
pub(crate) fn printed(printed: io::Result<()>) -> Result {
    printed.map_err(|error| {
        if error.kind() == ErrorKind::BrokenPipe {
            return Failure::Unread;
        }
        Failure::Error(anyhow::Error::from(error).context("print"))
    })
}

/// `850ms`, `12.3s`, `4m 05s`, `2h 07m`.
pub(crate) fn duration(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{:.1}s", duration.as_secs_f64()),
        seconds @ 60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        seconds => format!("{}h {:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Time between two optional instants.
pub(crate) fn between(from: Option<Timestamp>, to: Option<Timestamp>) -> String {
    match (from, to) {
        (Some(from), Some(to)) => duration(to.since(from)),
        (None, _) | (_, None) => String::new(),
    }
}

/// How long a job took, unless its result was there before.
pub(crate) fn time_of(job: &Job) -> String {
    match job.carried_from {
        Some(_) => "as before".to_owned(),
        None => between(job.started_at, job.ended_at),
    }
}

/// A time in the reader's zone.
pub(crate) fn time(at: Timestamp) -> String {
    let Ok(at) = jiff::Timestamp::from_millisecond(at.0) else { return String::new() };
    at.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        for (millis, text) in
            [(5, "5ms"), (1234, "1.2s"), (65_000, "1m 05s"), (7_620_000, "2h 07m")]
        {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }
}
