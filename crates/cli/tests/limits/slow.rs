//! Senders that take their time.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    MEBIBYTE,
    measure::{Growth, is_well},
    wire::{self, End, connect, dribble},
    world::{Db, World},
};

/// Between two bytes.
const PAUSE: Duration = Duration::from_millis(100);

#[tokio::test]
async fn heads_that_come_byte_by_byte_are_cut_off() {
    let world = World::configured("[http]\nhead_timeout_secs = 1").await;
    let growth = Growth::of(&world);
    let head = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: {}", "y".repeat(4096));
    let slow = (0..500).map(async |_| dribble(connect(&world).await, head.as_bytes(), PAUSE).await);
    let (ends, ()) = tokio::join!(join_all(slow), is_well(&world));
    assert!(ends.iter().all(|end| *end == End::Closed), "{ends:?}");
    growth.stays_below(&world, 40 * 1024 * 500);
}

#[tokio::test]
async fn who_connects_and_says_nothing_is_cut_off() {
    let world = World::configured("[http]\nhead_timeout_secs = 1").await;
    let silent = (0..100).map(async |_| dribble(connect(&world).await, b"", PAUSE).await);
    let (ends, ()) = tokio::join!(join_all(silent), is_well(&world));
    assert!(ends.iter().all(|end| *end == End::Closed), "{ends:?}");
}

#[tokio::test]
async fn a_connection_that_is_kept_is_closed_when_no_request_follows() {
    let world = World::configured("[http]\nhead_timeout_secs = 1").await;
    let mut stream = connect(&world).await;
    let request = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(wire::end(&mut stream).await, End::Answered(200));
    // What is left of that answer may come first.
    let mut left = Vec::new();
    let rest = stream.read_to_end(&mut left);
    drop(tokio::time::timeout(crate::machine::PATIENCE, rest).await.expect("it is closed"));
}

#[tokio::test]
async fn webhook_bodies_that_come_byte_by_byte_are_refused() {
    let world = World::configured("[webhook]\nbody_timeout_secs = 2").await;
    world.repository("web").await;
    let growth = Growth::of(&world);
    let head = "POST /webhooks/default/web HTTP/1.1\r\nhost: localhost\r\n\
        content-type: application/json\r\ncontent-length: 100000\r\n\r\n";
    let slow = (0..500).map(async |_| {
        let mut stream = connect(&world).await;
        stream.write_all(head.as_bytes()).await.unwrap();
        dribble(stream, &[b' '; 1000], PAUSE).await
    });
    let (ends, ()) = tokio::join!(join_all(slow), is_well(&world));
    assert!(ends.iter().all(|end| *end == End::Answered(408)), "{ends:?}");
    growth.stays_below(&world, 32 * MEBIBYTE);
}

#[tokio::test]
async fn a_slow_body_of_somebody_unknown_is_not_waited_for() {
    let world = World::new(Db::Sqlite).await;
    let head = "POST /api/v1/tokens HTTP/1.1\r\nhost: localhost\r\n\
        content-type: application/json\r\ncontent-length: 100000\r\n\r\n";
    assert_eq!(
        dribble(connect(&world).await, head.as_bytes(), Duration::from_millis(1)).await,
        End::Answered(401)
    );
}

#[tokio::test]
async fn a_head_above_head_bytes_max_is_refused() {
    const HEAD_BYTES_MAX: usize = 32 * 1024;
    let world = World::new(Db::Sqlite).await;
    let head = |bytes: usize| {
        let start = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ";
        format!("{start}{}\r\n\r\n", "y".repeat(bytes - start.len() - 4))
    };
    for (bytes, status) in [(HEAD_BYTES_MAX - 1, 200), (HEAD_BYTES_MAX + 1, 431)] {
        let (end, _) = wire::pour(connect(&world).await, &head(bytes), 0, false).await;
        assert_eq!(end, End::Answered(status), "{bytes}");
    }
}
