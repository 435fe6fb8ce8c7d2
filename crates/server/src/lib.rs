//! The coordinator: API, webhooks, planning, dispatch and the agents' link.
pub mod config;
pub mod env;
pub mod git;
pub mod secrets;
pub mod source;
pub mod tasks;
