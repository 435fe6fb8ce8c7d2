//! The coordinator from outside: its memory, and whether it answers.

use std::{fs, time::Duration};

use crate::world::World;

/// Whoever is well answers within this, whatever else goes on.
const PROMPTLY: Duration = Duration::from_secs(10);

fn status(world: &World, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", world.server.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// Memory that the coordinator has now, in bytes.
pub(crate) fn resident(world: &World) -> u64 {
    status(world, "VmRSS:")
}

/// How far the coordinator's memory grew at most while something went on.
pub(crate) struct Growth(u64);

impl Growth {
    /// From now on.
    pub(crate) fn of(world: &World) -> Self {
        // 5 makes the peak what it is now.
        fs::write(format!("/proc/{}/clear_refs", world.server.id()), "5").unwrap();
        Self(resident(world))
    }

    /// Says how much it was.
    #[track_caller]
    pub(crate) fn stays_below(&self, world: &World, bytes: u64) {
        let grown = status(world, "VmHWM:").saturating_sub(self.0);
        println!("grown by {} KiB, {} KiB are allowed", grown / 1024, bytes / 1024);
        assert!(grown < bytes, "grown by {grown} bytes");
    }
}

/// Somebody else is still served.
pub(crate) async fn is_well(world: &World) {
    let health = world.api.bare(reqwest::Method::GET, "/healthz").timeout(PROMPTLY);
    assert!(health.send().await.unwrap().status().is_success());
}
