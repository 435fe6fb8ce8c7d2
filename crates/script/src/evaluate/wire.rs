//! What the host and the evaluating child say to each other: one JSON document each way.

use serde::{Deserialize, Serialize};
use shuntyard_protocol::{Timestamp, plan};

use crate::{bundle::Bundle, fault::Fault, plan::PLAN_OUTPUT_BYTES_MAX, walls::Layers};

/// Longest request: a full bundle, every byte of it escaped.
pub(crate) const REQUEST_BACKSTOP_BYTES: u64 = 16 * 1024 * 1024;
/// Longest answer: a plan and a console at their limits, and room for the rest.
pub(crate) const ANSWER_BACKSTOP_BYTES: u64 = 2 * PLAN_OUTPUT_BYTES_MAX as u64 + 1024 * 1024;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) bundle: Bundle,
    pub(crate) now: Timestamp,
    pub(crate) seed: String,
    /// Evaluate nothing unless every wall stands.
    pub(crate) need_walls: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) layers: Layers,
    pub(crate) verdict: Verdict,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub(crate) enum Verdict {
    Planned {
        workflows: Vec<plan::Workflow>,
        read: Vec<String>,
        console: String,
    },
    Faults {
        faults: Vec<Fault>,
    },
    /// A wall is missing; nothing ran.
    Refused {},
}
