//! What anybody may send, tried with anything: one function for each place where bytes of strangers
//! are read. Each panics when it finds something that must never be.
//!
//! `fuzz/` drives them with cargo-fuzz; the ordinary tests replay its corpus and add random input.

use std::collections::BTreeMap;

use serde::{Serialize, de::DeserializeOwned};
use shuntyard_agent::parts::{check_variable, parse_handoff};
use shuntyard_core::{glob::Patterns, plan as rules, timers::Timers};
use shuntyard_protocol::{
    AgentId, Timestamp,
    agent::{AttemptKey, FromAgent, ToAgent},
    frame,
    plan::Plan,
};
use shuntyard_server::parts::{Ask, Sender, asked_for, asks};

/// A target: its name and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All of them; each has a folder of its name in `fuzz/corpus`.
pub const TARGETS: [Target; 5] = [
    ("agent_frame", agent_frame),
    ("webhook", webhook),
    ("plan", plan),
    ("globs", globs),
    ("handoff", handoff),
];

/// A frame of the agents' link, in both directions, and what a session makes of it.
///
/// # Panics
/// When a frame does not survive being sent again, or asks for more bytes than it brought.
pub fn agent_frame(bytes: &[u8]) {
    if let Ok((header, payload)) = frame::decode::<FromAgent>(bytes) {
        survives(&header, payload);
        let key = |_| AttemptKey(String::new());
        let timers = Timers::default();
        let agent = AgentId::mint(Timestamp(0), [0; 10]);
        let by = Sender { agent, now: Timestamp(0), timers: &timers, key: &key };
        let asked = asks(header, payload, &by).unwrap_or_default();
        let len = |ask: &Ask| match ask {
            Ask::Log(chunk) => chunk.bytes.len(),
            Ask::Fact(..) | Ask::Drain => 0,
        };
        assert!(asked.iter().map(len).sum::<usize>() <= payload.len());
    }
    if let Ok((header, payload)) = frame::decode::<ToAgent>(bytes) {
        survives(&header, payload);
    }
}

fn survives<H: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
    header: &H,
    payload: &[u8],
) {
    // Written out, defaults may make it longer than it came.
    let Ok(again) = frame::encode(header, payload) else { return };
    let (read, rest) = frame::decode::<H>(&again).expect("what was written can be read");
    assert_eq!((&read, rest), (header, payload));
}

/// The body of a webhook after its signature was found right: any source's.
///
/// # Panics
/// When something that is no commit, or no full name of a ref, would be given to git.
pub fn webhook(bytes: &[u8]) {
    for event in [Some("push"), Some("pull_request"), Some("ping"), None] {
        let Ok((commits, ref_name)) = asked_for(event, bytes) else { continue };
        for commit in commits {
            let hex = commit.bytes().all(|b| b.is_ascii_hexdigit());
            assert!(hex && [40, 64].contains(&commit.len()), "{commit:?}");
        }
        assert!(ref_name.is_none_or(|name| name.starts_with("refs/")));
    }
}

/// A plan, as the walled child hands it over.
///
/// # Panics
/// When a plan without faults cannot become jobs, or does not survive being stored.
pub fn plan(bytes: &[u8]) {
    let Ok(plan) = serde_json::from_slice::<Plan>(bytes) else { return };
    let text = serde_json::to_vec(&plan).expect("a plan is JSON");
    let again: Plan = serde_json::from_slice(&text).expect("what was written can be read");
    assert_eq!(again, plan);
    if !rules::check(&plan).is_empty() {
        return;
    }
    for job in plan.workflows.iter().flat_map(|workflow| &workflow.jobs) {
        let instances = rules::instances(job).expect("a plan without faults can be run");
        assert!(!instances.is_empty());
    }
}

/// A list of globs, one a line, and a text to match in the last line.
///
/// # Panics
/// When the last pattern that matches alone does not decide.
pub fn globs(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut lines: Vec<_> = text.split('\n').collect();
    let name = lines.pop().unwrap_or_default();
    let Ok(all) = Patterns::new(&lines) else { return };
    let alone = |line: &&str| {
        let pattern = line.strip_prefix('!').unwrap_or(line);
        // Behind one "!" another one is a character.
        let escape = if pattern.starts_with('!') { "\\" } else { "" };
        Patterns::new(&[format!("{escape}{pattern}")]).is_ok_and(|one| one.matches(name))
    };
    let decides = lines.iter().rev().find(|line| alone(line)).map(|line| !line.starts_with('!'));
    let otherwise = lines.iter().all(|line| line.starts_with('!'));
    assert_eq!(all.matches(name), decides.unwrap_or(otherwise), "{lines:?} ~ {name:?}");
}

/// A hand-off file of a step.
///
/// # Panics
/// When it yields more than is in it.
pub fn handoff(bytes: &[u8]) {
    let Ok(pairs) = parse_handoff(bytes) else { return };
    let len: usize = pairs.iter().map(|(name, value)| name.len() + value.len() + 1).sum();
    assert!(len <= bytes.len());
    let last: BTreeMap<_, _> = pairs.into_iter().collect();
    for (name, value) in last {
        assert!(!name.is_empty() && !name.contains(char::is_whitespace));
        drop(check_variable(&name, &value));
    }
}
