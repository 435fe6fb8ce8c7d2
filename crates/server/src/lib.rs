//! The coordinator: API, webhooks, planning, dispatch and the agents' link.
//!
//! [`start`] opens the store, starts the reconcilers and serves. Everything that must happen is a row;
//! what is in memory here only makes it happen sooner.

pub mod app;
pub mod config;
mod connections;
mod data;
mod dispatch;
pub mod env;
mod expiry;
mod gates;
pub mod git;
mod hints;
pub mod http;
mod inbox;
mod link;
mod local;
mod metrics;
mod planner;
mod secrets;
mod source;
mod sources;
mod start;
mod starts;
pub mod tasks;
mod waiting;
mod watch;

/// Pure decisions, for simulations and for tests that send anything.
pub mod parts {
    pub use crate::{
        expiry::{fact, look, withdrawn},
        gates::turn,
        link::meaning::{About, Ask, Breach, Reply, Sender, asks, key_hash, log_reply, replies},
        source::asked_for,
    };
}

pub use connections::raise_open_files;
pub use local::{ADMIN_TOKEN_FILE, create_token, machine_token};
pub use start::{Running, StartOptions, Started, sign_in_link, start};
