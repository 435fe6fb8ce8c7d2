//! Tokens: made, listed, revoked. A secret is shown once, when it is made.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use shuntyard_protocol::{
    TokenId,
    api::{CreatedToken, NewToken, Page, Problem, Token},
};
use shuntyard_store::{self as rows, Store};

use super::{
    audit,
    auth::{Admin, Role, TOKEN_PREFIX},
    error::{ApiResult, bad_request, not_found},
    parse_id,
};
use crate::{app::App, env::Env, secrets::sha256};

/// Life of a token that names none.
const API_TTL: Duration = Duration::from_hours(24 * 90);
const ENROL_TTL: Duration = Duration::from_hours(1);
/// Longest life that can be asked for.
const TTL_MAX: Duration = Duration::from_hours(24 * 3650);

#[utoipa::path(get, path = "/api/v1/tokens", tag = "tokens",
    responses((status = 200, body = Page<Token>), (status = 401, body = Problem)))]
pub async fn list(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
) -> ApiResult<Json<Page<Token>>> {
    let tokens = app.store.tokens(caller.org()).await?;
    Ok(Json(Page { items: tokens.iter().map(view).collect(), next: None }))
}

#[utoipa::path(post, path = "/api/v1/tokens", tag = "tokens", request_body = NewToken,
    responses((status = 201, body = CreatedToken), (status = 403, body = Problem)))]
pub async fn create(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Json(new): Json<NewToken>,
) -> ApiResult<(StatusCode, Json<CreatedToken>)> {
    let org = caller.choose_org(new.org.as_deref())?;
    let created = make(&app.store, &app.env, &new, (&org, &caller.name)).await?;
    audit(&app, &caller, &org, "token.create", &created.token.id.to_string()).await?;
    Ok((StatusCode::CREATED, Json(created)))
}

#[utoipa::path(delete, path = "/api/v1/tokens/{id}", tag = "tokens",
    params(("id" = String, Path)), responses((status = 204), (status = 404, body = Problem)))]
pub async fn revoke(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    let token: TokenId = parse_id(&id)?;
    let tokens = app.store.tokens(caller.org()).await?;
    let found = tokens.iter().find(|t| t.id == token).ok_or_else(|| not_found("token", &id))?;
    app.store.revoke_token(token, app.env.now()).await?;
    audit(&app, &caller, &found.org, "token.revoke", &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes a token of an org, and the one copy of its secret.
pub async fn make(
    store: &Store,
    env: &Env,
    new: &NewToken,
    (org, by): (&str, &str),
) -> ApiResult<CreatedToken> {
    let (default_ttl, role, uses) = match new.kind.as_str() {
        "api" => {
            let role = new.role.as_deref().unwrap_or("viewer");
            let role = Role::parse(role).ok_or_else(|| {
                bad_request(format!("role '{role}' is not viewer, operator or admin"))
            })?;
            (API_TTL, Some(role.as_str().to_owned()), None)
        }
        "enrol" => (ENROL_TTL, None, Some(new.uses.unwrap_or(1))),
        other => return Err(bad_request(format!("kind '{other}' is not api or enrol"))),
    };
    if new.name.is_empty()
        || new.name.chars().count() > 100
        || new.name.chars().any(char::is_control)
    {
        return Err(bad_request("the name must be 1 to 100 characters"));
    }
    let ttl =
        new.ttl_ms.map_or(Ok(default_ttl), |millis| check_ttl(Duration::from_millis(millis)))?;
    let (now, secret) = (env.now(), format!("{TOKEN_PREFIX}{}", env.secret()));
    let row = rows::NewToken {
        id: TokenId::mint(now, env.random()),
        org: org.to_owned(),
        kind: new.kind.clone(),
        role,
        name: new.name.clone(),
        hash: sha256(secret.as_bytes()),
        uses,
        created_by: by.to_owned(),
        expires_at: Some(now + ttl),
    };
    store.insert_token(&row, now).await?;
    let token = Token {
        id: row.id,
        org: row.org,
        kind: row.kind,
        role: row.role,
        name: row.name,
        created_at: now,
        expires_at: row.expires_at,
        used_at: None,
        revoked: false,
    };
    Ok(CreatedToken { token, secret })
}

fn check_ttl(ttl: Duration) -> ApiResult<Duration> {
    if ttl.is_zero() || ttl > TTL_MAX {
        return Err(bad_request("a token lives for more than 0 and at most 3650 days"));
    }
    Ok(ttl)
}

fn view(token: &rows::Token) -> Token {
    Token {
        id: token.id,
        org: token.org.clone(),
        kind: token.kind.clone(),
        role: token.role.clone(),
        name: token.name.clone(),
        created_at: token.created_at,
        expires_at: token.expires_at,
        used_at: token.used_at,
        revoked: token.revoked_at.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_lives_for_at_most_ttl_max() {
        assert!(check_ttl(TTL_MAX).is_ok());
        assert!(check_ttl(TTL_MAX + Duration::from_millis(1)).is_err());
        assert!(check_ttl(Duration::ZERO).is_err());
    }
}
