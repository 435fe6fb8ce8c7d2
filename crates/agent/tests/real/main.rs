//! Real agents, supervisors and commands against a small coordinator.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "tests measure real time, start tasks, and fail by panicking"
)]

mod control;
mod coordinator;
mod life;
mod steps;
mod walls;
mod world;
