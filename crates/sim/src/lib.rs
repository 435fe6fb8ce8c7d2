//! What tests need: a deterministic world, a forge, and servers and agents to drive.

pub mod bench;
pub mod chaos;
pub mod forge;
pub mod fuzz;
pub mod world;
