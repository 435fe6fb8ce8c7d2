//! Real agents, supervisors and commands against a small coordinator.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod control;
mod coordinator;
mod life;
mod steps;
mod walls;
mod world;
