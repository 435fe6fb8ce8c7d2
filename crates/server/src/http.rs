//! The HTTP side: routes, and what every request passes through.

pub mod agents;
pub mod auth;
pub mod error;
pub mod hooks;
pub mod logs;
pub mod runs;
pub mod signin;
pub mod sources;
pub mod system;
pub mod tokens;

use std::{net::IpAddr, str::FromStr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    http::{HeaderValue, header, uri::Authority},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use shuntyard_store::{Cursor, NewAccess, PAGE_MAX};
use utoipa::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

use self::{
    auth::Caller,
    error::{ApiResult, bad_request, misdirected, not_found},
};
use crate::app::{App, Shared};

/// Longest JSON body of an API request, in bytes.
const API_BODY_BYTES_MAX: usize = 1024 * 1024;
/// Rows of a page when the request does not say.
const PAGE_DEFAULT: u32 = 50;
/// A request without a live answer must end within this.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(2);

/// The document at `/api/v1/openapi.json`, before the routes are added.
#[derive(OpenApi)]
#[openapi(info(
    title = "Shuntyard",
    description = "The API of a Shuntyard coordinator. Send `Authorization: Bearer <token>`.",
    license(name = "MIT OR Apache-2.0")
))]
struct Document;

fn api() -> OpenApiRouter<Shared> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(runs::list, sources::start))
        .routes(routes!(runs::show))
        .routes(routes!(runs::cancel))
        .routes(routes!(runs::rerun))
        .routes(routes!(logs::events))
        .routes(routes!(runs::job))
        .routes(routes!(runs::cancel_job))
        .routes(routes!(logs::as_lines))
        .routes(routes!(logs::raw))
        .routes(routes!(runs::queue))
        .routes(routes!(agents::list))
        .routes(routes!(agents::drain))
        .routes(routes!(agents::resume))
        .routes(routes!(agents::revoke))
        .routes(routes!(sources::list, sources::create))
        .routes(routes!(sources::change, sources::remove))
        .routes(routes!(sources::deliveries))
        .routes(routes!(sources::push))
        .routes(routes!(sources::delivery_by_id))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::revoke))
        .routes(routes!(system::info))
}

/// The API as an OpenAPI document.
pub fn openapi() -> utoipa::openapi::OpenApi {
    api().into_openapi()
}

/// All routes of a coordinator.
pub fn router(app: Shared) -> Router {
    let (api, _) = api().split_for_parts();
    let limits = (
        DefaultBodyLimit::max(API_BODY_BYTES_MAX),
        tower_http::timeout::TimeoutLayer::with_status_code(
            axum::http::StatusCode::REQUEST_TIMEOUT,
            REQUEST_TIMEOUT,
        ),
    );
    // Webhooks have a limit of their own.
    let hooks = Router::new().route(
        "/webhooks/{org}/{source}",
        post(hooks::receive).fallback(hooks::wrong_method).layer(DefaultBodyLimit::disable()),
    );
    let env = app.env.clone();
    Router::new()
        .merge(api)
        .route("/api/v1/openapi.json", get(system::openapi))
        .route("/api/v1/agent/link", any(crate::link::upgrade))
        .route("/", get(signin::front))
        .route("/signin", get(signin::sign_in))
        .route("/healthz", get(system::health))
        .route("/readyz", get(system::ready))
        .route("/metrics", get(system::metrics))
        .layer(limits)
        .merge(hooks)
        .fallback(unknown)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), check_host))
        .layer(middleware::from_fn(move |request: Request, next: Next| {
            let env = env.clone();
            async move { error::render(|| env.random(), request, next).await }
        }))
        .with_state(app)
}

async fn unknown(request: Request) -> error::ApiError {
    not_found("page", request.uri().path())
}

/// Only names that belong to this server reach a handler: a page elsewhere cannot point its own
/// name at this address and talk to it (DNS rebinding).
async fn check_host(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    app.metrics.requests.inc();
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or(request.uri().authority().map(Authority::as_str)).unwrap_or_default();
    if !is_ours(host, app.config.public_url.as_deref()) {
        return misdirected(host).into_response();
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn is_ours(host: &str, public_url: Option<&str>) -> bool {
    let Ok(authority) = Authority::from_str(host) else { return false };
    let name = authority.host().trim_matches(['[', ']']).to_ascii_lowercase();
    // A rebinding attack needs a name; an address cannot be pointed anywhere.
    let address = IpAddr::from_str(&name).is_ok();
    let public = public_url
        .and_then(|url| url.split_once("://")?.1.split('/').next())
        .and_then(|authority| Authority::from_str(authority).ok())
        .is_some_and(|authority| authority.host().eq_ignore_ascii_case(&name));
    address || public || name == "localhost" || name.ends_with(".localhost")
}

/// The cursor and size of a page.
fn page_args(cursor: Option<&str>, limit: Option<u32>) -> ApiResult<(Option<Cursor>, u32)> {
    let cursor = cursor.map(str::parse).transpose();
    let cursor = cursor.map_err(|error| bad_request(format!("cursor: {error}")))?;
    match limit.unwrap_or(PAGE_DEFAULT) {
        limit @ 1..=PAGE_MAX => Ok((cursor, limit)),
        _ => Err(bad_request(format!("limit must be 1 to {PAGE_MAX}"))),
    }
}

fn parse_id<T: FromStr<Err = shuntyard_protocol::ids::ParseIdError>>(id: &str) -> ApiResult<T> {
    id.parse()
        .map_err(|error: shuntyard_protocol::ids::ParseIdError| bad_request(error.to_string()))
}

/// Writes what an operator did into the access log.
async fn audit(
    app: &App,
    caller: &Caller,
    org: &str,
    action: &str,
    subject: &str,
) -> ApiResult<()> {
    let entry = NewAccess {
        org: org.to_owned(),
        actor: caller.name.clone(),
        action: action.to_owned(),
        subject: subject.to_owned(),
        detail: None,
        address: None,
    };
    Ok(app.store.insert_access(&entry, app.env.now()).await?)
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::StatusCode};
    use tokio_util::sync::CancellationToken;
    use tower::ServiceExt;

    use super::*;
    use crate::{StartOptions, config::Config, env::Env};

    #[test]
    fn only_our_own_names_are_answered() {
        let public = Some("https://ci.example.org");
        for host in [
            "localhost:8484",
            "127.0.0.1:8484",
            "[::1]:8484",
            "ci.example.org",
            "CI.example.org:443",
        ] {
            assert!(is_ours(host, public), "{host}");
        }
        for host in
            ["evil.example", "", "ci.example.org.evil.example", "localhost.evil.example", "a b"]
        {
            assert!(!is_ours(host, public), "{host}");
        }
        assert!(!is_ours("ci.example.org", None));
    }

    #[tokio::test]
    async fn a_body_above_api_body_bytes_max_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config { data_dir: folder.path().to_path_buf(), ..Config::default() };
        config.listen.set_port(0);
        let options = StartOptions {
            config,
            env: Env::system(),
            launcher: shuntyard_script::Launcher { program: "shunt".into(), args: vec![] },
            stop: CancellationToken::new(),
            next_free_port: false,
        };
        let started = crate::start(options).await.unwrap();
        let token = crate::machine_token(&started.running.app).await.unwrap();
        let app = Arc::clone(&started.running.app);
        let status = async |bytes: usize| {
            let mut body = br#"{"name":"t","kind":"api"}"#.to_vec();
            body.resize(bytes, b' ');
            let request = Request::post("/api/v1/tokens")
                .header(header::HOST, "localhost")
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::AUTHORIZATION, format!("Bearer {token}"))
                .body(Body::from(body))
                .unwrap();
            router(Arc::clone(&app)).oneshot(request).await.unwrap().status()
        };
        assert_eq!(status(API_BODY_BYTES_MAX).await, StatusCode::CREATED);
        assert_eq!(status(API_BODY_BYTES_MAX + 1).await, StatusCode::PAYLOAD_TOO_LARGE);
        started.running.stop().await;
    }

    #[test]
    fn page_args_hold_their_edges() {
        assert!(page_args(None, Some(PAGE_MAX)).is_ok());
        assert!(page_args(None, Some(PAGE_MAX + 1)).is_err());
        assert!(page_args(None, Some(0)).is_err());
        assert!(page_args(Some("x"), None).is_err());
    }
}
