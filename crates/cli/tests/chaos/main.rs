//! Real processes that are killed, paused and cut off while they work, and the proof from what they
//! recorded that nothing was lost. `docs/testing.md` says how to run it for hours and repeat a seed.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "tests measure real time and fail by panicking"
)]

mod api;
mod kills;
mod processes;
mod records;
mod storm;
mod world;

use std::time::Duration;

use storm::Orders;
use world::Db;

/// Time of the storm in the ordinary tests.
const SHORT: Duration = Duration::from_mins(1);

/// What `cargo xtask chaos` asks for; else a short storm with a new seed.
fn orders(db: Db) -> Orders {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let clock = || u64::from(std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos());
    Orders {
        db,
        seed: number("SHUNT_CHAOS_SEED").unwrap_or_else(clock),
        lasting: number("SHUNT_CHAOS_MINUTES").map_or(SHORT, Duration::from_mins),
    }
}

#[tokio::test]
async fn storm_sqlite() {
    storm::weather(orders(Db::Sqlite)).await;
}

#[tokio::test]
async fn storm_postgres() {
    storm::weather(orders(Db::Postgres)).await;
}

#[tokio::test]
async fn a_hundred_kills_in_one_run_end_in_one_right_log() {
    kills::hundred().await;
}
