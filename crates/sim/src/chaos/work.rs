//! What the commands do: they write numbered lines, and write down elsewhere that they do.
//!
//! A command holds an exclusive lock on its job's file for as long as it lives, and appends to the
//! job's *truth*, a file outside the workspace: when it started, how far its output is about to go,
//! when it was done. A record is one `write` and survives any `kill -9`.

use std::fmt::Write as _;

use anyhow::{Context, bail};

/// Variable with the folder of the truths.
pub const TRUTH: &str = "CHAOS_TRUTH";

/// One step's command.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub lines: u32,
    /// Lines between two records in the truth.
    pub burst: u32,
    pub pause_ms: u32,
    /// Letters at the end of each line.
    pub width: usize,
    /// Ignores SIGTERM.
    pub stubborn: bool,
}

impl Work {
    /// The command, for `bash`.
    pub fn command(&self) -> String {
        let Self { lines, burst, pause_ms, width, stubborn } = *self;
        let trap = if stubborn { "trap '' TERM\n" } else { "" };
        let (pause, pad) = (f64::from(pause_ms) / 1000.0, "x".repeat(width));
        let mut text = String::new();
        write!(
            text,
            "say() {{ printf '%s %s %s %s\\n' \"$EPOCHREALTIME\" \"$SHUNT_ATTEMPT_ID\" \"$SHUNT_STEP\" \"$*\" \
             >> \"${TRUTH}/$SHUNT_JOB_ID.truth\"; }}\n\
             exec 9>> \"${TRUTH}/$SHUNT_JOB_ID.lock\"\n\
             flock -n 9 || {{ say overlap; exit 9; }}\n\
             {trap}say start\n\
             for ((n = 0; n < {lines}; n += {burst})); do\n\
             say upto $((n + {burst}))\n\
             for ((i = n + 1; i <= n + {burst}; i++)); do \
             printf '%s %s %06d %s\\n' \"$SHUNT_ATTEMPT_ID\" \"$SHUNT_STEP\" \"$i\" {pad}; done\n\
             sleep {pause}\n\
             done\n\
             say stop\n\
             echo \"attempt=$SHUNT_ATTEMPT_ID\" >> \"$SHUNT_OUTPUT\"\n"
        )
        .expect("a String takes everything");
        text
    }
}

/// Line `n`, from 1, of a step of an attempt.
pub fn line(attempt: &str, step: u32, n: u32, width: usize) -> String {
    format!("{attempt} {step} {n:06} {}\n", "x".repeat(width))
}

/// One record of a truth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Microseconds since 1970.
    pub at: u64,
    /// `job.attempt`
    pub attempt: String,
    pub step: u32,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Start,
    /// Lines up to this one are about to be written; those of the record before it have been.
    Upto(u32),
    Stop,
    /// Somebody else held the job's lock.
    Overlap,
}

/// Reads a truth.
///
/// # Errors
/// When a record is not one.
pub fn parse(text: &str) -> anyhow::Result<Vec<Record>> {
    text.lines().map(|line| record(line).with_context(|| format!("record '{line}'"))).collect()
}

fn record(line: &str) -> anyhow::Result<Record> {
    let words: Vec<_> = line.split(' ').collect();
    let [at, attempt, step, what @ ..] = words.as_slice() else { bail!("too short") };
    let what = match *what {
        ["start"] => What::Start,
        ["upto", n] => What::Upto(n.parse()?),
        ["stop"] => What::Stop,
        ["overlap"] => What::Overlap,
        _ => bail!("not a record"),
    };
    let at = at.replace(['.', ','], "").parse()?;
    Ok(Record { at, attempt: (*attempt).to_owned(), step: step.parse()?, what })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_command_writes_its_lines_and_its_truth() {
        let temp = tempfile::tempdir().unwrap();
        let work = Work { lines: 5, burst: 2, pause_ms: 1, width: 3, stubborn: true };
        let output = Command::new("bash")
            .args(["-eo", "pipefail", "-c", &work.command()])
            .env(TRUTH, temp.path())
            .env("SHUNT_JOB_ID", "job_1")
            .env("SHUNT_ATTEMPT_ID", "job_1.2")
            .env("SHUNT_STEP", "0")
            .env("SHUNT_OUTPUT", temp.path().join("output"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let expected: String = (1..=6).map(|n| line("job_1.2", 0, n, 3)).collect();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        let truth = std::fs::read_to_string(temp.path().join("job_1.truth")).unwrap();
        let whats: Vec<_> = parse(&truth).unwrap().into_iter().map(|record| record.what).collect();
        let upto = [What::Upto(2), What::Upto(4), What::Upto(6)];
        assert_eq!(whats, [&[What::Start][..], &upto, &[What::Stop]].concat());
        let handed = std::fs::read_to_string(temp.path().join("output")).unwrap();
        assert_eq!(handed, "attempt=job_1.2\n");
    }
}
