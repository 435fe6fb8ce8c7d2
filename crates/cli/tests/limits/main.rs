//! What comes of those who send too much, too slowly, too often or never: a bounded answer, bounded
//! memory, and nobody else notices. The coordinator is a process of its own, so that its memory can
//! be looked at from outside.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "tests measure real time and fail by panicking"
)]

mod agents;
mod bodies;
mod crowd;
mod crowds;
mod link;
#[path = "../program/machine.rs"]
#[expect(dead_code, reason = "written for the tests of the program")]
mod machine;
mod measure;
mod slow;
#[path = "../program/web.rs"]
#[expect(dead_code, reason = "written for the tests of the program")]
mod web;
mod wire;
#[path = "../program/world.rs"]
#[expect(dead_code, reason = "written for the tests of the program")]
mod world;

/// 1024² bytes.
const MEBIBYTE: u64 = 1024 * 1024;
