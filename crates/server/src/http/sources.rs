//! Sources: added, listed, changed, removed; their deliveries; starts by hand.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, Query, State},
    http::StatusCode,
};
use serde::Deserialize;
use shuntyard_protocol::{
    SourceId,
    api::{Delivery, NewSource, Page, Problem, Source, SourceChange, StartRequest},
};
use shuntyard_store as store;

use super::{
    audit,
    auth::{Admin, Caller, Operator, Viewer},
    error::{ApiResult, bad_request, conflict, not_found},
    page_args,
};
use crate::{
    app::App,
    git,
    inbox::{self, MANUAL},
    sources::{Kind, Settings, SourceSecrets, check_name},
    watch,
};

/// Query of a source: its org, when the caller has several.
#[derive(Deserialize, utoipa::IntoParams)]
pub struct OrgQuery {
    org: Option<String>,
}

#[derive(Deserialize, utoipa::IntoParams)]
pub struct PageQuery {
    org: Option<String>,
    cursor: Option<String>,
    limit: Option<u32>,
}

#[utoipa::path(get, path = "/api/v1/sources", tag = "sources",
    responses((status = 200, body = Page<Source>), (status = 401, body = Problem)))]
pub async fn list(
    State(app): State<Arc<App>>,
    Viewer(caller): Viewer,
) -> ApiResult<Json<Page<Source>>> {
    let sources = app.store.sources(caller.org()).await?;
    let items = sources.into_iter().map(|source| view(&app, source)).collect::<Result<_, _>>()?;
    Ok(Json(Page { items, next: None }))
}

#[utoipa::path(post, path = "/api/v1/sources", tag = "sources", request_body = NewSource,
    responses((status = 201, body = Source), (status = 409, body = Problem)))]
pub async fn create(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Json(new): Json<NewSource>,
) -> ApiResult<(StatusCode, Json<Source>)> {
    let org = caller.choose_org(new.org.as_deref())?;
    check_name(&new.name).and_then(|()| check_name(&org)).map_err(bad_request)?;
    let kind = Kind::parse(&new.kind).ok_or_else(|| {
        bad_request(format!("kind '{}' is not github, generic or local", new.kind))
    })?;
    check_url(kind, &new.url)?;
    let (now, mut settings) = (app.env.now(), Settings::default());
    settings.labels = new.labels;
    settings.work_tree = new.work_tree;
    set_forks(&mut settings, new.forks.as_deref())?;
    let id = SourceId::mint(now, app.env.random());
    let secret = new.webhook_secret.as_deref().filter(|secret| !secret.is_empty());
    let source = store::Source {
        id,
        org,
        name: new.name,
        kind: new.kind,
        url: new.url,
        settings: settings.to_json(),
        secrets: secret.map(|secret| SourceSecrets::seal(&app.key, &app.env, id, secret)),
        created_at: now,
        updated_at: now,
    };
    if !app.store.insert_source(&source).await? {
        return Err(conflict(format!(
            "there is a source '{}' in '{}' already",
            source.name, source.org
        )));
    }
    audit(&app, &caller, &source.org, "source.add", &source.name).await?;
    app.pokes.watch.poke();
    Ok((StatusCode::CREATED, Json(view(&app, source)?)))
}

#[utoipa::path(patch, path = "/api/v1/sources/{name}", tag = "sources",
    request_body = SourceChange, params(("name" = String, Path), OrgQuery),
    responses((status = 200, body = Source), (status = 404, body = Problem)))]
pub async fn change(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Path(name): Path<String>,
    Query(query): Query<OrgQuery>,
    Json(change): Json<SourceChange>,
) -> ApiResult<Json<Source>> {
    let mut source = find(&app, &caller, query.org.as_deref(), &name).await?;
    let mut settings = Settings::of(&source)?;
    if let Some(url) = change.url {
        check_url(Kind::parse(&source.kind).unwrap_or(Kind::Generic), &url)?;
        source.url = url;
    }
    set_forks(&mut settings, change.forks.as_deref())?;
    if let Some(labels) = change.labels {
        settings.labels = labels;
    }
    if let Some(secret) = change.webhook_secret {
        source.secrets = (!secret.is_empty())
            .then(|| SourceSecrets::seal(&app.key, &app.env, source.id, &secret));
    }
    source.settings = settings.to_json();
    source.updated_at = app.env.now();
    app.store.update_source(&source).await?;
    audit(&app, &caller, &source.org, "source.set", &name).await?;
    Ok(Json(view(&app, source)?))
}

#[utoipa::path(delete, path = "/api/v1/sources/{name}", tag = "sources",
    params(("name" = String, Path), OrgQuery),
    responses((status = 204), (status = 404, body = Problem)))]
pub async fn remove(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Path(name): Path<String>,
    Query(query): Query<OrgQuery>,
) -> ApiResult<StatusCode> {
    let source = find(&app, &caller, query.org.as_deref(), &name).await?;
    app.store.remove_source(source.id).await?;
    audit(&app, &caller, &source.org, "source.remove", &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(get, path = "/api/v1/sources/{name}/deliveries", tag = "sources",
    params(("name" = String, Path), PageQuery),
    responses((status = 200, body = Page<Delivery>), (status = 404, body = Problem)))]
pub async fn deliveries(
    State(app): State<Arc<App>>,
    Viewer(caller): Viewer,
    Path(name): Path<String>,
    Query(query): Query<PageQuery>,
) -> ApiResult<Json<Page<Delivery>>> {
    let source = find(&app, &caller, query.org.as_deref(), &name).await?;
    let (cursor, limit) = page_args(query.cursor.as_deref(), query.limit)?;
    let page = app.store.deliveries(Some(&source.org), Some(source.id), cursor, limit).await?;
    let items = page.items.into_iter().map(delivery).collect();
    Ok(Json(Page { items, next: page.next.map(|cursor| cursor.to_string()) }))
}

/// Makes a delivery for the head of a local source, as if it had just been pushed.
#[utoipa::path(post, path = "/api/v1/sources/{name}/push", tag = "sources",
    params(("name" = String, Path), OrgQuery),
    responses((status = 202, body = Delivery), (status = 404, body = Problem)))]
pub async fn push(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Path(name): Path<String>,
    Query(query): Query<OrgQuery>,
) -> ApiResult<(StatusCode, Json<Delivery>)> {
    let source = find(&app, &caller, query.org.as_deref(), &name).await?;
    if Kind::parse(&source.kind) != Some(Kind::Local) {
        return Err(bad_request("only a local source can be pushed by hand"));
    }
    let id = watch::push_head(&app, &source).await?;
    accepted(&app, id).await
}

/// Starts a workflow by hand.
#[utoipa::path(post, path = "/api/v1/runs", tag = "runs", request_body = StartRequest,
    responses((status = 202, body = Delivery), (status = 404, body = Problem)))]
pub async fn start(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Json(request): Json<StartRequest>,
) -> ApiResult<(StatusCode, Json<Delivery>)> {
    let source = find(&app, &caller, request.org.as_deref(), &request.source).await?;
    let id = inbox::insert_manual(&app, &source, &request).await?;
    audit(&app, &caller, &source.org, MANUAL, &request.workflow).await?;
    accepted(&app, id).await
}

#[utoipa::path(get, path = "/api/v1/deliveries/{id}", tag = "sources",
    params(("id" = String, Path)),
    responses((status = 200, body = Delivery), (status = 404, body = Problem)))]
pub async fn delivery_by_id(
    State(app): State<Arc<App>>,
    Viewer(caller): Viewer,
    Path(id): Path<String>,
) -> ApiResult<Json<Delivery>> {
    let found = app.store.delivery(super::parse_id(&id)?).await?;
    let found = found.filter(|delivery| caller.may_see(&delivery.org));
    found.map(|d| Json(full(d))).ok_or_else(|| not_found("delivery", id))
}

async fn accepted(
    app: &App,
    id: shuntyard_protocol::DeliveryId,
) -> ApiResult<(StatusCode, Json<Delivery>)> {
    let delivery = app.store.delivery(id).await?.ok_or_else(|| not_found("delivery", id))?;
    Ok((StatusCode::ACCEPTED, Json(full(delivery))))
}

/// A source of the caller's org, or of the one named.
pub async fn find(
    app: &App,
    caller: &Caller,
    org: Option<&str>,
    name: &str,
) -> ApiResult<store::Source> {
    let org = org.or(caller.org()).unwrap_or("default");
    let source = app.store.source_named(org, name).await?.filter(|s| caller.may_see(&s.org));
    source.ok_or_else(|| not_found("source", name))
}

fn set_forks(settings: &mut Settings, forks: Option<&str>) -> ApiResult<()> {
    match forks {
        None => {}
        Some("run") => settings.run_forks = true,
        Some("ignore") => settings.run_forks = false,
        Some(other) => return Err(bad_request(format!("forks '{other}' is not run or ignore"))),
    }
    Ok(())
}

fn check_url(kind: Kind, url: &str) -> ApiResult<()> {
    if kind == Kind::Local {
        let folder = std::path::Path::new(url);
        if !folder.is_absolute() {
            return Err(bad_request(format!("'{url}' must be an absolute path")));
        }
        return Ok(());
    }
    if url
        .split_once("://")
        .is_some_and(|(_, rest)| rest.split('/').next().is_some_and(|h| h.contains('@')))
        && !url.starts_with("ssh://")
    {
        return Err(bad_request("the URL must not contain a user or password"));
    }
    git::check_url(url).map_err(|error| bad_request(error.to_string()))
}

fn view(app: &App, source: store::Source) -> anyhow::Result<Source> {
    let settings = Settings::of(&source)?;
    Ok(Source {
        webhook_url: format!("{}/webhooks/{}/{}", app.url, source.org, source.name),
        id: source.id,
        org: source.org,
        name: source.name,
        kind: source.kind,
        url: source.url,
        forks: if settings.run_forks { "run" } else { "ignore" }.to_owned(),
        labels: settings.labels,
        has_webhook_secret: source.secrets.is_some(),
        created_at: source.created_at,
    })
}

fn delivery(head: store::DeliveryHead) -> Delivery {
    Delivery {
        id: head.id,
        source: head.source_id,
        key: head.delivery_key,
        kind: head.kind,
        state: head.state,
        outcome: head.outcome,
        event: head.event_id,
        tries: head.tries,
        error: head.error,
        created_at: head.created_at,
    }
}

fn full(d: store::Delivery) -> Delivery {
    Delivery {
        id: d.id,
        source: d.source_id,
        key: d.delivery_key,
        kind: d.kind,
        state: d.state,
        outcome: d.outcome,
        event: d.event_id,
        tries: d.tries,
        error: d.error,
        created_at: d.created_at,
    }
}
