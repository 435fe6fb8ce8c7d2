//! What a server says about itself.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use shuntyard_protocol::api::{Info, Problem};

use super::{
    auth::Viewer,
    error::{ApiResult, unavailable},
};
use crate::app::App;

#[utoipa::path(get, path = "/api/v1/info", tag = "system",
    responses((status = 200, body = Info), (status = 401, body = Problem)))]
pub async fn info(State(app): State<Arc<App>>, Viewer(caller): Viewer) -> ApiResult<Json<Info>> {
    let queued = app.store.queue(caller.org(), shuntyard_store::PAGE_MAX, app.env.now()).await?;
    let running = app.store.agents(caller.org()).await?;
    let running = running.iter().map(|agent| u64::from(app.agents.load(agent.id))).sum();
    Ok(Json(Info {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cluster: app.cluster.clone(),
        url: app.url.clone(),
        jobs: BTreeMap::from([
            ("queued".to_owned(), queued.len() as u64),
            ("running".to_owned(), running),
        ]),
    }))
}

/// `GET /healthz`: the process answers.
pub async fn health() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: the database answers, too.
pub async fn ready(State(app): State<Arc<App>>) -> ApiResult<&'static str> {
    match app.store.ping().await {
        Ok(()) => Ok("ready\n"),
        Err(error) => Err(unavailable(format!("the database does not answer: {error}"))),
    }
}

/// `GET /metrics`
pub async fn metrics(State(app): State<Arc<App>>, Viewer(_): Viewer) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.metrics.render(&app)).into_response()
}

/// `GET /api/v1/openapi.json`
pub async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(super::openapi())
}
