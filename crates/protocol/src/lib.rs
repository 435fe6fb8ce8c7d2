//! What crosses a process boundary: ids, the plan, the agent link and the HTTP API.
//!
//! Only serde lives below this crate, so that a third party can speak to Shuntyard with nothing
//! else. Every struct that is sent or stored tolerates unknown fields, and every field added after
//! the first release is optional: a node reads what the version before it wrote, and the other way
//! round. `golden/` keeps one recorded example of each frame.

pub mod agent;
pub mod api;
pub mod frame;
pub mod ids;
pub mod offsets;
pub mod outcome;
pub mod plan;
pub mod runner;
pub mod time;

pub use ids::{
    AgentId, DeliveryId, EventId, InstanceId, JobId, RunId, SegmentId, SourceId, TokenId,
};
pub use outcome::Outcome;
pub use time::Timestamp;
