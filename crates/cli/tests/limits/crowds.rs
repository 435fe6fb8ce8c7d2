//! More connections than anybody should have.

use std::time::Duration;

use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use crate::{
    crowd::{Crowd, Kind, open_files},
    link::Link,
    machine::{PATIENCE, until},
    measure::{is_well, resident},
    wire::{End, address, connect, end},
    world::{Db, World},
};

/// What an idle connection may cost, in bytes.
const IDLE: u64 = 40 * 1024;
/// Long enough to see that a connection was closed at once; if it was not, the next one is tried.
const LOOK: Duration = Duration::from_millis(200);
/// Idle connections must not be sent away while they are counted.
const PATIENT: &str = "[http]\nhead_timeout_secs = 600";

async fn token(world: &World) -> String {
    let enrol = json!({ "name": "crowd", "kind": "enrol", "org": "default", "uses": 20_000 });
    world.api.new_token(&enrol).await
}

/// Connects a few, so that what is only needed once is there, then all of them, and looks what each
/// costs.
async fn each_costs_little(kind: Kind, count: usize) {
    let count = count.min(open_files() - 2000);
    let world = World::configured(PATIENT).await;
    let (address, token) = (address(&world), token(&world).await);
    drop(Crowd::gather(kind, 50, &address, &token));
    let before = resident(&world);
    let crowd = Crowd::gather(kind, count, &address, &token);
    is_well(&world).await;
    let each = resident(&world).saturating_sub(before) / count as u64;
    println!("{count} idle connections cost {each} bytes each");
    assert!(each <= IDLE, "{each} bytes each");
    drop(crowd);
    is_well(&world).await;
}

#[tokio::test]
async fn ten_thousand_idle_connections_cost_little() {
    each_costs_little(Kind::Http, 10_000).await;
}

/// `SHUNT_CROWD_AGENTS` makes it as many as wanted; each is enrolled, which takes its time.
#[tokio::test]
async fn thousands_of_idle_agents_cost_little() {
    let wanted = std::env::var("SHUNT_CROWD_AGENTS").ok().and_then(|count| count.parse().ok());
    each_costs_little(Kind::Agent, wanted.unwrap_or(1000)).await;
}

#[tokio::test]
async fn connections_above_the_limit_are_closed_and_room_comes_back() {
    let world = World::configured("[http]\nconnections_max = 60\nhead_timeout_secs = 600").await;
    let crowd = Crowd::gather(Kind::Http, 50, &address(&world), "");
    let mut held = Vec::new();
    // The API's own client holds some of the rest.
    loop {
        let mut stream = connect(&world).await;
        let closed = timeout(LOOK, stream.read(&mut [0; 1])).await.is_ok();
        if closed {
            break;
        }
        held.push(stream);
        assert!(held.len() <= 10, "there is no limit");
    }
    drop((crowd, held));
    until("room for others", async || {
        let response = world.api.bare(reqwest::Method::GET, "/healthz").send().await.ok()?;
        response.status().is_success().then_some(())
    })
    .await;
}

#[tokio::test]
async fn agents_that_never_say_hello_do_not_keep_others_out() {
    const UNAUTHENTICATED_MAX: usize = 256;
    let world = World::new(Db::Sqlite).await;
    let address = address(&world);
    let mut strangers = Vec::new();
    for _ in 0..UNAUTHENTICATED_MAX {
        strangers.push(Link::open(&address, None).await.unwrap().0);
    }
    let upgrade = "GET /api/v1/agent/link HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n\
        upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let mut one_more = connect(&world).await;
    one_more.write_all(upgrade.as_bytes()).await.unwrap();
    assert_eq!(end(&mut one_more).await, End::Answered(429));
    is_well(&world).await;
    // They have some seconds to say who they are.
    for mut stranger in strangers {
        let ended = timeout(PATIENCE, stranger.next()).await;
        assert!(ended.expect("it is sent away").is_none());
    }
    Link::welcomed(&address, &token(&world).await, 1, None).await;
}
