//! Decisions, and nothing else: pure functions of (state, input, now).
//!
//! No clock, socket, database or randomness is reachable from here, which is what lets the
//! simulation drive the very code that runs in production. IO happens in the crates above; they
//! load, ask this crate, and store the answer in one transaction.

pub mod apply;
pub mod event;
pub mod fanout;
pub mod gate;
pub mod glob;
pub mod graph;
pub mod labels;
pub mod limits;
pub mod mutant;
pub mod plan;
pub mod schedule;
pub mod state;
pub mod timers;
pub mod trigger;
