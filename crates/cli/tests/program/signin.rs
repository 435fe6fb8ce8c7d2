//! Signing a browser in.

use reqwest::{Client, Response, header, redirect::Policy};

use crate::world::{Db, World};

/// What a server said at its start behind some words.
fn said<'a>(out: &'a str, words: &str) -> Option<&'a str> {
    out.lines().find_map(|line| line.strip_prefix(words))
}

#[tokio::test]
async fn the_link_of_a_first_start_signs_one_browser_in_once() {
    const WORDS: &str = "sign in once within 15 minutes: ";
    let mut world = World::new(Db::Sqlite).await;
    let out = world.server.says(WORDS).await;
    let link = said(&out, WORDS).unwrap();
    let browser = Client::builder().redirect(Policy::none()).build().unwrap();
    let open = async |url: &str, cookie: Option<&str>| -> Response {
        let mut request = browser.get(url);
        if let Some(cookie) = cookie {
            request = request.header(header::COOKIE, cookie);
        }
        request.send().await.unwrap()
    };
    let front = format!("{}/", world.api.url);
    assert!(open(&front, None).await.text().await.unwrap().contains("Not signed in"));

    let first = open(link, None).await;
    assert_eq!(first.status().as_u16(), 303);
    assert_eq!(first.headers()[header::LOCATION], "/");
    let cookie = first.headers()[header::SET_COOKIE].to_str().unwrap();
    let (session, attributes) = cookie.split_once("; ").unwrap();
    let attributes: Vec<_> = attributes.split("; ").collect();
    for wanted in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(attributes.contains(&wanted), "{cookie}");
    }
    let page = open(&front, Some(session)).await.text().await.unwrap();
    assert!(page.contains("Signed in as admin"), "{page}");

    let second = open(link, None).await;
    assert_eq!(second.status().as_u16(), 401);
    assert!(second.headers().get(header::SET_COOKIE).is_none());
    let why = second.text().await.unwrap();
    assert!(why.contains("only the first start of a server prints one"), "{why}");
    // Which is true.
    world.server.kill();
    world.start_again().await;
    let status = open(&format!("{front}healthz"), None).await.status();
    assert!(status.is_success() && said(&world.server.out(), WORDS).is_none());
}
