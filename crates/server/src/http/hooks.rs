//! Inbound webhooks: verified, then stored, then answered 2xx. Nothing else happens here; a
//! reconciler turns deliveries into runs.

mod budget;

use std::{
    io::{Read, Seek, Write},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use axum::{
    Json,
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::StreamExt;
use serde_json::json;
use shuntyard_protocol::DeliveryId;
use shuntyard_store::{Inserted, NewDelivery, Source};
use tempfile::SpooledTempFile;
use tokio::time;

pub use self::budget::Unverified;
use self::budget::{Limits, Share};
use super::error::{
    ApiError, ApiResult, bad_request, not_found, too_large, too_many, too_slow, unauthorized,
    unsupported_type,
};
use crate::{
    app::App,
    secrets::{hmac_matches, same_secret, sha256},
    sources::{Kind, SourceSecrets},
};

/// Above this a body waits on disk instead of in memory for its signature to be checked.
const MEMORY_BYTES_MAX: usize = 256 * 1024;
/// Longest delivery id or event name that a sender may choose.
const HEADER_BYTES_MAX: usize = 200;

/// `POST /webhooks/{org}/{source}`
pub async fn receive(
    State(app): State<Arc<App>>,
    Path((org, name)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Response> {
    match accept(&app, &org, &name, &headers, body).await {
        Ok(response) => {
            app.metrics.deliveries.inc();
            Ok(response)
        }
        Err(error) => {
            app.metrics.deliveries_refused.inc();
            Err(error)
        }
    }
}

async fn accept(
    app: &Arc<App>,
    org: &str,
    name: &str,
    headers: &HeaderMap,
    body: Body,
) -> ApiResult<Response> {
    let source = app.store.source_named(org, name).await?;
    let source = source.ok_or_else(|| not_found("source", format!("{org}/{name}")))?;
    let kind = Kind::parse(&source.kind).filter(|kind| *kind != Kind::Local);
    let kind = kind.ok_or_else(|| not_found("webhook of source", format!("{org}/{name}")))?;
    let is_json = headers.get(header::CONTENT_TYPE).is_some_and(|value| {
        value
            .to_str()
            .is_ok_and(|v| v.split(';').next().is_some_and(|v| v.trim() == "application/json"))
    });
    if !is_json {
        return Err(unsupported_type());
    }
    let secrets = app.source_secrets(&source)?;
    // Who sends byte by byte must not keep the room that others need.
    let patience = Duration::from_secs(app.config.webhook.body_timeout_secs);
    let body = time::timeout(patience, read_body(app, &source, headers, body)).await;
    let body = body.unwrap_or_else(|_| Err(too_slow(patience)))?;
    verify(kind, headers, &secrets, &body)?;
    let delivery = delivery(app, &source, kind, headers, body)?;
    let (id, now) = (delivery.id, app.env.now());
    let (status, id) = match app.store.insert_delivery(&delivery, now).await? {
        Inserted::New => {
            app.pokes.inbox.poke();
            (StatusCode::ACCEPTED, id)
        }
        Inserted::Duplicate(first) => (StatusCode::OK, first),
    };
    Ok((status, Json(json!({ "delivery": id, "duplicate": status == StatusCode::OK })))
        .into_response())
}

/// Any other method.
pub async fn wrong_method() -> ApiError {
    super::error::post_only()
}

async fn read_body(
    app: &App,
    source: &Source,
    headers: &HeaderMap,
    body: Body,
) -> ApiResult<Vec<u8>> {
    let webhook = &app.config.webhook;
    let max = webhook.max_bytes;
    let limits =
        Limits { total: webhook.unverified_bytes, per_source: webhook.unverified_bytes_per_source };
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: usize| length > max) {
        return Err(too_large(max));
    }
    let mut share = Share::new(&app.unverified, source.id, limits);
    let mut spool = SpooledTempFile::new(MEMORY_BYTES_MAX);
    let mut stream = body.into_data_stream();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| bad_request(format!("the body ended early: {error}")))?;
        if share.bytes() + chunk.len() > max {
            return Err(too_large(max));
        }
        if !share.grow(chunk.len()) {
            return Err(too_many(
                "too many unverified webhook bodies at once; send it again later",
            ));
        }
        spool.write_all(&chunk).context("keep a webhook body")?;
    }
    let mut bytes = Vec::with_capacity(share.bytes());
    let read = spool.rewind().and_then(|()| spool.read_to_end(&mut bytes));
    read.context("read a webhook body back")?;
    Ok(bytes)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().filter(|text| text.len() <= HEADER_BYTES_MAX)
}

fn verify(kind: Kind, headers: &HeaderMap, secrets: &SourceSecrets, body: &[u8]) -> ApiResult<()> {
    if secrets.webhook.is_empty() {
        return Err(unauthorized(
            "this source has no webhook secret: shunt admin source set NAME --webhook-secret-file F",
        ));
    }
    let signature = match kind {
        Kind::Github | Kind::Local => text(headers, "x-hub-signature-256"),
        Kind::Generic => {
            text(headers, "x-signature-256").or_else(|| text(headers, "x-hub-signature-256"))
        }
    };
    let signed = signature
        .and_then(|value| value.strip_prefix("sha256="))
        .is_some_and(|hex| hmac_matches(&secrets.webhook, body, hex));
    let bearer = text(headers, "authorization").and_then(|value| value.strip_prefix("Bearer "));
    let known = |token: &str| {
        secrets.webhook.iter().fold(false, |found, s| found | same_secret(s, token.as_bytes()))
    };
    let vouched = signed || kind == Kind::Generic && bearer.is_some_and(known);
    match (vouched, signature.or(bearer)) {
        (true, _) => Ok(()),
        (false, None) => {
            Err(unauthorized("the request has no signature: set the webhook's secret"))
        }
        (false, Some(_)) => {
            Err(unauthorized("the signature does not fit the source's webhook secret"))
        }
    }
}

fn delivery(
    app: &App,
    source: &Source,
    kind: Kind,
    headers: &HeaderMap,
    body: Vec<u8>,
) -> ApiResult<NewDelivery> {
    let id = DeliveryId::mint(app.env.now(), app.env.random());
    let (key, event) = match kind {
        Kind::Github | Kind::Local => {
            let key = text(headers, "x-github-delivery");
            let event = text(headers, "x-github-event");
            let missing = |name: &str| bad_request(format!("the header {name} is missing"));
            (
                key.ok_or_else(|| missing("X-GitHub-Delivery"))?.to_owned(),
                event.ok_or_else(|| missing("X-GitHub-Event"))?.to_owned(),
            )
        }
        Kind::Generic => {
            let key = text(headers, "idempotency-key").or_else(|| text(headers, "x-delivery-id"));
            (key.map_or_else(|| id.to_string(), str::to_owned), "generic".to_owned())
        }
    };
    Ok(NewDelivery {
        id,
        org: source.org.clone(),
        source: source.id,
        delivery_key: key,
        // GitHub does not sign the delivery id, so a repeated body is what gives a replay away.
        body_digest: (kind == Kind::Github).then(|| sha256(&body)),
        kind: event,
        headers: json!({ "user-agent": text(headers, "user-agent") }),
        body,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_longer_than_header_bytes_max_is_no_header() {
        let header = |length: usize| {
            let mut headers = HeaderMap::new();
            headers.insert("x-github-delivery", "d".repeat(length).parse().unwrap());
            text(&headers, "x-github-delivery").map(str::len)
        };
        assert_eq!(header(HEADER_BYTES_MAX), Some(HEADER_BYTES_MAX));
        assert_eq!(header(HEADER_BYTES_MAX + 1), None);
    }

    #[test]
    fn a_body_above_memory_bytes_max_waits_on_disk() {
        let mut spool = SpooledTempFile::new(MEMORY_BYTES_MAX);
        spool.write_all(&vec![0; MEMORY_BYTES_MAX]).unwrap();
        assert!(!spool.is_rolled());
        spool.write_all(&[0]).unwrap();
        assert!(spool.is_rolled());
    }
}
