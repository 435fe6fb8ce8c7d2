//! Agents: seen, drained and resumed, revoked.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use shuntyard_protocol::{
    AgentId,
    api::{Agent, Page, Problem},
};

use super::{
    audit,
    auth::{Admin, Caller, Viewer},
    error::{ApiResult, not_found},
    parse_id,
};
use crate::app::App;

#[utoipa::path(get, path = "/api/v1/agents", tag = "agents",
    responses((status = 200, body = Page<Agent>), (status = 401, body = Problem)))]
pub async fn list(
    State(app): State<Arc<App>>,
    Viewer(caller): Viewer,
) -> ApiResult<Json<Page<Agent>>> {
    let agents = app.store.agents(caller.org()).await?;
    let items = agents.into_iter().map(|agent| Agent {
        id: agent.id,
        connected: agent.instance_id.is_some(),
        running: app.agents.load(agent.id),
        org: agent.org,
        name: agent.name,
        labels: agent.labels,
        slots: agent.slots,
        containment: agent.containment,
        software: agent.software,
        draining: agent.draining || app.agents.is_draining(agent.id),
        seen_at: agent.seen_at,
        revoked: agent.revoked_at.is_some(),
    });
    Ok(Json(Page { items: items.collect(), next: None }))
}

#[utoipa::path(post, path = "/api/v1/agents/{id}/drain", tag = "agents",
    params(("id" = String, Path)), responses((status = 204), (status = 404, body = Problem)))]
pub async fn drain(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    let agent = find(&app, &caller, &id).await?;
    app.store.set_agent_draining(agent, true).await?;
    app.agents.set_draining(agent, true);
    audit(&app, &caller, caller.org().unwrap_or("*"), "agent.drain", &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Offers jobs to a drained agent again.
#[utoipa::path(post, path = "/api/v1/agents/{id}/resume", tag = "agents",
    params(("id" = String, Path)), responses((status = 204), (status = 404, body = Problem)))]
pub async fn resume(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    let agent = find(&app, &caller, &id).await?;
    app.store.set_agent_draining(agent, false).await?;
    app.agents.set_draining(agent, false);
    app.pokes.dispatch.poke();
    audit(&app, &caller, caller.org().unwrap_or("*"), "agent.resume", &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(delete, path = "/api/v1/agents/{id}", tag = "agents",
    params(("id" = String, Path)), responses((status = 204), (status = 404, body = Problem)))]
pub async fn revoke(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    let agent = find(&app, &caller, &id).await?;
    app.store.revoke_agent(agent, &caller.name, app.env.now()).await?;
    app.agents.disconnect(agent);
    audit(&app, &caller, caller.org().unwrap_or("*"), "agent.revoke", &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn find(app: &App, caller: &Caller, id: &str) -> ApiResult<AgentId> {
    let agent = app.store.agent(parse_id(id)?).await?;
    let agent = agent.filter(|agent| caller.may_see(&agent.org));
    agent.map(|agent| agent.id).ok_or_else(|| not_found("agent", id))
}
