//! Bodies that are far too long.

use crate::{
    MEBIBYTE,
    measure::{Growth, is_well},
    wire::{End, connect, pour},
    world::{Db, World},
};

const GIBIBYTE: u64 = 1024 * MEBIBYTE;

/// The head of a POST whose body has a gibibyte.
fn head(path: &str, chunked: bool, more: &str) -> String {
    let length = format!("content-length: {GIBIBYTE}");
    let length = if chunked { "transfer-encoding: chunked" } else { &length };
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{length}\r\n\
         {more}\r\n"
    )
}

#[tokio::test]
async fn a_gibibyte_is_refused_wherever_it_is_sent() {
    let world = World::new(Db::Sqlite).await;
    world.repository("web").await;
    let token = format!("authorization: Bearer {}\r\n", world.api.token);
    let guessed = format!("x-hub-signature-256: sha256={}\r\n", hex::encode([7; 32]));
    let hook = "x-github-event: push\r\nx-github-delivery: d\r\n";
    let growth = Growth::of(&world);
    // Path, further headers, the answer, and the bytes that the server takes before it gives one: what
    // sockets hold comes on top.
    let sockets = 12 * MEBIBYTE;
    let cases = [
        ("/webhooks/default/web", hook.to_owned(), 413, 25 * MEBIBYTE),
        ("/webhooks/default/web", format!("{hook}{guessed}"), 413, 25 * MEBIBYTE),
        ("/webhooks/default/nobody", guessed.clone(), 404, 0),
        ("/api/v1/tokens", token, 413, MEBIBYTE),
        ("/api/v1/tokens", String::new(), 401, 0),
        ("/healthz", String::new(), 405, 0),
    ];
    for (path, more, status, taken) in cases {
        for chunked in [false, true] {
            let head = head(path, chunked, &more);
            let pouring = pour(connect(&world).await, &head, GIBIBYTE, chunked);
            let ((end, sent), ()) = tokio::join!(pouring, is_well(&world));
            assert_eq!(end, End::Answered(status), "{path} {chunked}");
            assert!(sent <= taken + sockets, "{path} {chunked}: {sent} bytes were taken");
        }
    }
    growth.stays_below(&world, 48 * MEBIBYTE);
}

#[tokio::test]
async fn many_gibibytes_at_once_take_no_more_than_the_budget() {
    let world = World::new(Db::Sqlite).await;
    world.repository("web").await;
    let growth = Growth::of(&world);
    let head = head("/webhooks/default/web", true, "");
    let pouring = (0..40).map(async |_| pour(connect(&world).await, &head, GIBIBYTE, true).await.0);
    let (ends, ()) = tokio::join!(futures_util::future::join_all(pouring), is_well(&world));
    let refused = [End::Answered(413), End::Answered(429)];
    assert!(ends.iter().all(|end| refused.contains(end)), "{ends:?}");
    growth.stays_below(&world, 64 * MEBIBYTE);
}
