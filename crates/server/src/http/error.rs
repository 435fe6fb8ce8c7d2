//! What goes wrong in a request, as RFC 9457 problem documents with stable codes.
//!
//! Handlers build errors through the functions here only. Anything else that fails is logged once,
//! with its chain, and answered as a bare 500 that carries the request id.

use axum::{
    Json,
    body::to_bytes,
    extract::Request,
    http::{HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use shuntyard_protocol::api::Problem;
use shuntyard_store::StoreError;

/// Longest text of the framework that an error repeats, in bytes.
const FOREIGN_TEXT_BYTES: usize = 4096;
/// Header with the id of a request, in both directions.
pub const REQUEST_ID: &str = "x-request-id";

/// One failed request.
#[derive(Clone, Debug)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    detail: String,
    /// For the log only.
    cause: Option<String>,
}

pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), cause: None }
    }

    pub fn code(&self) -> &'static str {
        self.code
    }

    /// For a caller that is no request.
    pub fn into_detail(self) -> anyhow::Error {
        match self.cause {
            Some(cause) => anyhow::anyhow!("{}: {cause}", self.detail),
            None => anyhow::Error::msg(self.detail),
        }
    }
}

/// 400: the request itself is wrong.
pub fn bad_request(detail: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "bad-request", detail)
}

/// 401: no token, or none that is valid.
pub fn unauthorized(detail: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
}

/// 403: the token is valid but may not do this.
pub fn forbidden(needed: &str, has: &str) -> ApiError {
    let detail = format!("this needs the role {needed}; the token has the role {has}");
    ApiError::new(StatusCode::FORBIDDEN, "forbidden", detail)
}

/// 404: no such thing, or not in the caller's org.
pub fn not_found(what: &str, id: impl std::fmt::Display) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not-found", format!("there is no {what} '{id}'"))
}

/// 405 for webhooks, which are only ever posted.
pub fn post_only() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "send webhooks with POST")
}

/// 408: the body did not come in time.
pub fn too_slow(limit: std::time::Duration) -> ApiError {
    let limit = limit.as_secs();
    let detail = format!("the body took longer than {limit} s (webhook.body_timeout_secs)");
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "too-slow", detail)
}

/// 409: it exists already, or is in the wrong state.
pub fn conflict(detail: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, "conflict", detail)
}

/// 413, naming the limit.
pub fn too_large(limit: usize) -> ApiError {
    let detail = format!("the body is above the limit of {limit} bytes (webhook.max_bytes)");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
}

/// 415, saying what would be right.
pub fn unsupported_type() -> ApiError {
    let detail = "send application/json; in GitHub's form choose the content type application/json";
    ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-type", detail)
}

/// 421: the Host header names somebody else.
pub fn misdirected(host: &str) -> ApiError {
    let host: String = host.chars().take(100).collect();
    let detail = format!("this server does not answer for '{host}'; set public_url if it should");
    ApiError::new(StatusCode::MISDIRECTED_REQUEST, "misdirected", detail)
}

/// 422: understood, but it cannot be done.
pub fn unprocessable(detail: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "unprocessable", detail)
}

/// 429: come back later.
pub fn too_many(detail: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too-many", detail)
}

/// 503: a dependency does not answer.
pub fn unavailable(detail: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
}

impl From<anyhow::Error> for ApiError {
    fn from(error: anyhow::Error) -> Self {
        let detail = "something went wrong here; the server's log has the request id and the cause";
        let error500 = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail);
        Self { cause: Some(format!("{error:#}")), ..error500 }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::QueueFull { .. } => too_many(error.to_string()),
            StoreError::Invalid { .. } => unprocessable(error.to_string()),
            StoreError::Unavailable { .. } => unavailable(error.to_string()),
            StoreError::Sql { .. }
            | StoreError::Open { .. }
            | StoreError::Migrate(_)
            | StoreError::TooOld { .. }
            | StoreError::Corrupt { .. }
            | StoreError::Segment { .. }
            | StoreError::Closed => anyhow::Error::from(error).into(),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        // The body needs the request id, which only the middleware knows.
        response.extensions_mut().insert(self);
        response
    }
}

/// Gives each request an id and renders errors with it.
pub async fn render(random: impl Fn() -> [u8; 8], mut request: Request, next: Next) -> Response {
    let id = hex::encode(random());
    let value = HeaderValue::from_str(&id).expect("hex is a header value");
    request.headers_mut().insert(REQUEST_ID, value.clone());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = next.run(request).await;
    let error = match response.extensions_mut().remove::<ApiError>() {
        None if response.status().is_client_error() || response.status().is_server_error() => {
            Some(adopt(&mut response).await)
        }
        error => error,
    };
    if let Some(error) = error {
        if let Some(cause) = &error.cause {
            tracing::error!(request = id, %method, path, error = cause, "request failed");
        }
        let allow = response.headers_mut().remove(header::ALLOW);
        response = problem(&error, &id);
        if let Some(allow) = allow {
            response.headers_mut().insert(header::ALLOW, allow);
        }
    }
    response.headers_mut().insert(REQUEST_ID, value);
    response
}

/// What the framework itself refused: a body that is not JSON, a method that a route does not have.
/// Its text says why.
async fn adopt(response: &mut Response) -> ApiError {
    let status = response.status();
    let code = match status {
        StatusCode::UNAUTHORIZED => "unauthorized",
        StatusCode::FORBIDDEN => "forbidden",
        StatusCode::NOT_FOUND => "not-found",
        StatusCode::METHOD_NOT_ALLOWED => "method-not-allowed",
        StatusCode::REQUEST_TIMEOUT => "too-slow",
        StatusCode::PAYLOAD_TOO_LARGE => "too-large",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "unsupported-type",
        StatusCode::UNPROCESSABLE_ENTITY => "unprocessable",
        status if status.is_server_error() => "internal",
        _ => "bad-request",
    };
    let body = std::mem::take(response.body_mut());
    let text = to_bytes(body, FOREIGN_TEXT_BYTES).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let title = status.canonical_reason().unwrap_or("error").to_lowercase();
    ApiError::new(status, code, if text.is_empty() { title } else { text })
}

fn problem(error: &ApiError, id: &str) -> Response {
    let title = error.status.canonical_reason().unwrap_or_default().to_owned();
    let body = Problem {
        kind: format!("urn:shuntyard:error:{}", error.code),
        title,
        status: error.status.as_u16(),
        code: error.code.to_owned(),
        detail: error.detail.clone(),
        request_id: id.to_owned(),
    };
    let mut response = (error.status, Json(body)).into_response();
    let json = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    if error.status == StatusCode::UNAUTHORIZED {
        let bearer = HeaderValue::from_static("Bearer");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
    }
    response
}
