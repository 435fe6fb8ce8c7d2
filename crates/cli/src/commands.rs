//! One module for each command.

pub(crate) mod admin;
pub(crate) mod agent;
pub(crate) mod compile;
pub(crate) mod dev;
pub(crate) mod init;
pub(crate) mod login;
pub(crate) mod plan;
pub(crate) mod preview;
pub(crate) mod queue;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod serve;
mod server;
