//! Signing a browser in: a link that is good once becomes a session cookie.
//!
//! A session may only read. Whatever changes something needs a bearer token, so that no page elsewhere
//! can make a browser do it.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Query, State},
    http::{HeaderMap, HeaderValue, header},
    response::{Html, IntoResponse, Redirect, Response},
};
use serde::Deserialize;
use shuntyard_protocol::{TokenId, api::NewToken};
use shuntyard_store as store;

use super::{
    auth::{EVERY_ORG, TOKEN_PREFIX, Viewer},
    error::{ApiResult, unauthorized},
    tokens,
};
use crate::{app::App, secrets::sha256};

/// Kind of the tokens behind sign-in links.
const KIND: &str = "signin";
/// How long a link is good.
const LINK_TTL: Duration = Duration::from_mins(15);
/// How long a session lasts.
const SESSION_TTL: Duration = Duration::from_hours(12);
const COOKIE: &str = "shunt_session";

#[derive(Deserialize)]
pub struct SignInQuery {
    code: String,
}

/// A link that signs one browser in, once, within 15 minutes.
pub(crate) async fn link(app: &App) -> anyhow::Result<String> {
    let (now, secret) = (app.env.now(), format!("{TOKEN_PREFIX}{}", app.env.secret()));
    let token = store::NewToken {
        id: TokenId::mint(now, app.env.random()),
        org: EVERY_ORG.to_owned(),
        kind: KIND.to_owned(),
        role: Some("admin".to_owned()),
        name: "sign-in link".to_owned(),
        hash: sha256(secret.as_bytes()),
        uses: Some(1),
        created_by: "this machine".to_owned(),
        expires_at: Some(now + LINK_TTL),
    };
    app.store.insert_token(&token, now).await?;
    Ok(format!("{}/signin?code={secret}", app.url))
}

/// `GET /signin?code=…`
pub async fn sign_in(
    State(app): State<Arc<App>>,
    Query(query): Query<SignInQuery>,
) -> ApiResult<Response> {
    let hash = sha256(query.code.as_bytes());
    let link = app.store.consume_token(&hash, KIND, app.env.now()).await?;
    let link = link.ok_or_else(|| {
        unauthorized(
            "the link was used or is older than 15 minutes; only the first start of a server prints one, \
             and commands work with a token without it",
        )
    })?;
    let session = NewToken {
        name: "browser session".to_owned(),
        kind: "api".to_owned(),
        role: link.role,
        org: None,
        ttl_ms: Some(u64::try_from(SESSION_TTL.as_millis()).unwrap_or(u64::MAX)),
        uses: None,
    };
    let created = tokens::make(&app.store, &app.env, &session, (&link.org, &link.name)).await?;
    let secure = if app.url.starts_with("https://") { "; Secure" } else { "" };
    let cookie = format!(
        "{COOKIE}={}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{secure}",
        created.secret,
        SESSION_TTL.as_secs()
    );
    let cookie = HeaderValue::from_str(&cookie).map_err(anyhow::Error::from)?;
    let mut response = Redirect::to("/").into_response();
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(response)
}

/// The session's secret, if the browser sent one.
pub(super) fn session(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|cookies| cookies.split(';'));
    pairs
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, _)| *name == COOKIE)
        .map(|(_, v)| v)
}

/// `GET /`
pub async fn front(viewer: Option<Viewer>) -> Response {
    let who = match viewer {
        Some(Viewer(caller)) => format!("Signed in as {}.", caller.role.as_str()),
        None => "Not signed in: the first start of the server prints a link that is good once."
            .to_owned(),
    };
    let page = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Shuntyard</title>\
         <h1>Shuntyard {}</h1><p>{who}<p><code>shunt runs list</code> shows the runs of this server; \
         its API is described by <a href=/api/v1/openapi.json>openapi.json</a>.",
        env!("CARGO_PKG_VERSION")
    );
    let policy = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(page)).into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use axum::http::StatusCode;
    use shuntyard_protocol::Timestamp;
    use shuntyard_script::Launcher;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        StartOptions, Started,
        config::Config,
        env::{Clock, Env},
    };

    /// Stands still unless it is told to go on.
    struct Hand(AtomicI64);

    impl Clock for Hand {
        fn now(&self) -> Timestamp {
            Timestamp(self.0.load(Ordering::Relaxed))
        }
    }

    #[tokio::test]
    async fn a_link_is_good_for_link_ttl_and_no_longer() {
        let folder = tempfile::tempdir().unwrap();
        let hand = Arc::new(Hand(AtomicI64::new(1_700_000_000_000)));
        let mut config = Config { data_dir: folder.path().join("data"), ..Config::default() };
        config.listen.set_port(0);
        let started = crate::start(StartOptions {
            config,
            env: Env::new(Arc::clone(&hand) as Arc<dyn Clock>),
            launcher: Launcher { program: "/bin/false".into(), args: Vec::new() },
            stop: CancellationToken::new(),
            next_free_port: false,
        });
        let Started { running, .. } = started.await.unwrap();
        let app = &running.app;
        let open = async |link: &str| {
            let code = link.split_once("code=").unwrap().1.to_owned();
            sign_in(State(Arc::clone(app)), Query(SignInQuery { code })).await
        };
        let ttl = i64::try_from(LINK_TTL.as_millis()).unwrap();
        let (in_time, late) = (link(app).await.unwrap(), link(app).await.unwrap());
        hand.0.fetch_add(ttl - 1, Ordering::Relaxed);
        assert_eq!(open(&in_time).await.unwrap().status(), StatusCode::SEE_OTHER);
        hand.0.fetch_add(1, Ordering::Relaxed);
        let refused = open(&late).await.unwrap_err().into_response();
        assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
        running.stop().await;
    }
}
