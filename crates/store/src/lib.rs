//! Durable state: SQL on SQLite or PostgreSQL, and the bytes of logs.
//!
//! The only crate that names sqlx. One SQL text serves both databases; only claims and locking
//! reads differ by a suffix. State changes go through [`Store::submit`] or [`Store::apply`]: facts
//! are committed in batches, `shuntyard_core::apply` decides what follows from them. Everything
//! else is a plain method here. Times are database time, ids are minted by the caller, and secrets
//! are opaque bytes that the caller has sealed.

mod access;
mod agent;
mod apply;
mod claim;
mod cluster;
mod column;
mod create;
mod db;
mod delivery;
mod due;
mod error;
mod gate;
mod lease;
mod log;
mod outbox;
mod page;
mod plan;
mod queue;
mod reconcile;
mod rerun;
mod run;
mod seed;
mod source;
mod spec;
mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod token;

pub use access::{Access, NewAccess};
pub use agent::{Agent, AgentSeen, Enrolled};
pub use apply::writer::{Pending, Writer};
pub use claim::{Claimed, LabelClass};
pub use cluster::Cluster;
pub use create::{Created, NewEvent, NewJob, NewRun};
pub use delivery::{Delivery, DeliveryHead, Inserted, NewDelivery, REPLAY_WINDOW};
pub use due::{Due, Overdue};
pub use error::StoreError;
pub use gate::{GateTurn, HOLDERS_MAX, PlaceInfo, held_by};
pub use lease::{Instance, Lease};
pub use log::{
    CHUNK_BYTES_MAX, CHUNK_MARKS_MAX, INLINE_BYTES_MAX, LogAnswer, LogAppend, LogSlice, LogStream,
    read::SLICE_BYTES,
};
pub use outbox::Outgoing;
pub use page::{Cursor, PAGE_MAX, Page, ParseCursorError};
pub use plan::{PlanAt, StoredPlan};
pub use queue::QueuedJob;
pub use reconcile::{CancelWanted, HeldAttempt};
pub use rerun::Rerun;
pub use run::{AttemptInfo, EdgeInfo, EventInfo, JobInfo, OpenRun, RunFilter, RunInfo, StepInfo};
pub use source::Source;
pub use spec::{Needs, SpecParts, UpstreamParts};
pub use store::{Change, Clock, Database, Options, Store};
pub use token::{NewToken, Token, USED_AT_GRAIN};
