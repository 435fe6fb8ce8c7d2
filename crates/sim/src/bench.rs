//! The load generator: simulated agents over real links, against a real coordinator process.
//!
//! Everything is durable: what is measured is a full life per job, from the event to the acknowledged
//! result. Figures are only comparable within one run, so each run also measures what the database
//! alone can take.

mod agent;
mod coordinator;
pub mod dispatch;
pub mod echo;
pub mod logs;
pub mod webhooks;

use std::{path::PathBuf, time::Instant};

use serde::Serialize;

/// What every benchmark needs.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The `shunt` program, built for release.
    pub program: PathBuf,
    pub postgres: bool,
}

/// Percentiles of a list of milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub p50: f64,
    pub p99: f64,
}

impl Spread {
    /// Zero for an empty list.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| {
            #[expect(clippy::cast_precision_loss, reason = "a count of measurements")]
            let place = share * values.len().saturating_sub(1) as f64;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
            values.get(place.round() as usize).copied().unwrap_or(0.0)
        };
        Self { p50: at(0.5), p99: at(0.99) }
    }
}

/// Resident memory of a process, in megabytes.
fn rss_mb(process: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kb: f64 = line.and_then(|l| l.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0.0);
    kb / 1024.0
}

/// Time since a start, in seconds.
fn seconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64()
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}

/// Whether the machine was quiet when the run started: its load, and the verdict.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quiet {
    pub load_1m: f64,
    pub quiet: bool,
}

impl Quiet {
    pub fn look() -> Self {
        let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load_1m = text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(f64::NAN);
        Self { load_1m, quiet: load_1m < 0.5 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_taken_from_the_sorted_list() {
        let values = (0..=100).rev().map(f64::from).collect();
        assert_eq!(Spread::of(values), Spread { p50: 50.0, p99: 99.0 });
        assert_eq!(Spread::of(vec![]), Spread { p50: 0.0, p99: 0.0 });
    }
}
