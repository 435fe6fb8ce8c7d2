//! The agent: takes attempts from coordinators and runs them on this host.
//!
//! Two kinds of process. The *agent* ([`run`]) holds the link to a coordinator, offers its slots
//! and multiplexes. Each attempt has a *supervisor* of its own ([`hidden_command`]) that owns the
//! attempt's lease, spool and processes, and outlives the agent: an agent that is restarted,
//! upgraded or killed finds its supervisors again. Inside the attempt's containment unit live the
//! unit's init, the commands, and the engine child that runs the job's functions.
//!
//! What holds everywhere:
//! - no instruction of the user runs before `begun`, and none after the fence;
//! - a byte of output is in the spool before it is sent, and stays until it is acknowledged;
//! - a full queue stops whoever fills it, down to the process's pipe; nothing is dropped.

mod attempt;
mod checkout;
mod clock;
mod config;
mod entry;
mod environment;
mod files;
mod handoff;
mod identity;
mod lease;
mod link;
mod sandbox;
mod spool;
mod supervisor;
mod tasks;
mod uplink;
mod wire;

pub use config::{
    AgentConfig, Control, Launcher, SPOOL_QUOTA_BYTES_DEFAULT, SPOOL_QUOTA_BYTES_MIN, Secret,
    Status,
};
pub use entry::hidden_command;
pub use link::{RunError, run};

/// Pure parts and the spool's disk seam, for simulations.
pub mod parts {
    pub use crate::{
        handoff::{HandoffError, VARIABLE_BYTES_MAX, check_variable, parse as parse_handoff},
        lease::{Fence, Lease},
        link::mailbox::Mailbox,
        spool::{Disk, LogBatch, Spool, SpoolError},
        uplink::{Outgoing, Uplink},
        wire::{FromSupervisor, Online, ToSupervisor},
    };
}
