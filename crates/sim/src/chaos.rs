//! Chaos: real processes that are killed, paused and cut off, and the proof that nothing was lost.
//!
//! The tests that start the processes are `crates/cli/tests/chaos`. Here is what they share that
//! needs no process: what goes wrong when ([`faults`]), what the commands do and write down about it
//! ([`work`]), the connections between them ([`proxy`]), and what must hold of everything that was
//! recorded ([`history`]).

pub mod faults;
pub mod history;
pub mod proxy;
pub mod work;
