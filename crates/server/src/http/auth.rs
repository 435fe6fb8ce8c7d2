//! Who is calling: bearer tokens with an org and a role.

use std::sync::Arc;

use axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    http::{header, request::Parts},
};
use shuntyard_store::Token;

use super::{
    error::{ApiError, ApiResult, forbidden, unauthorized},
    signin,
};
use crate::{app::App, secrets::sha256};

/// The org of tokens that are good for every org.
pub const EVERY_ORG: &str = "*";
/// What every token's secret begins with, so that scanners find a leaked one.
pub const TOKEN_PREFIX: &str = "shunt_";

/// What a token may do; each role may do everything that those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Sees everything of its org.
    Viewer,
    /// Starts, cancels and reruns.
    Operator,
    /// Changes sources, agents and tokens.
    Admin,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Viewer, Self::Operator, Self::Admin].into_iter().find(|role| role.as_str() == text)
    }
}

/// The holder of a valid API token.
#[derive(Clone, Debug)]
pub struct Caller {
    /// For the access log: `name (id)`.
    pub name: String,
    pub role: Role,
    org: String,
}

impl Caller {
    /// The org to filter by; absent for every org.
    pub fn org(&self) -> Option<&str> {
        (self.org != EVERY_ORG).then_some(self.org.as_str())
    }

    pub fn may_see(&self, org: &str) -> bool {
        self.org().is_none_or(|own| own == org)
    }

    /// The org that a new thing belongs to.
    pub fn choose_org(&self, asked: Option<&str>) -> ApiResult<String> {
        let org = asked.or(self.org()).unwrap_or("default");
        if !self.may_see(org) {
            return Err(forbidden(
                &format!("admin of '{org}'"),
                &format!("{} of '{}'", self.role.as_str(), self.org),
            ));
        }
        Ok(org.to_owned())
    }
}

/// A caller with at least the role in its name.
pub struct Viewer(pub Caller);
/// See [`Viewer`].
pub struct Operator(pub Caller);
/// See [`Viewer`].
pub struct Admin(pub Caller);

macro_rules! at_least {
    ($($role:ident),+) => {$(
        impl FromRequestParts<Arc<App>> for $role {
            type Rejection = ApiError;
            async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> ApiResult<Self> {
                let caller = caller(parts, app).await?;
                if caller.role < Role::$role {
                    return Err(forbidden(Role::$role.as_str(), caller.role.as_str()));
                }
                Ok(Self(caller))
            }
        }
    )+};
}
at_least!(Viewer, Operator, Admin);

impl OptionalFromRequestParts<Arc<App>> for Viewer {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> ApiResult<Option<Self>> {
        // A session that has expired is no session.
        Ok(caller(parts, app).await.ok().map(Self))
    }
}

async fn caller(parts: &Parts, app: &App) -> ApiResult<Caller> {
    // A browser's session may read; it sends its cookie also when another site asks it to.
    let session = || parts.method.is_safe().then(|| signin::session(&parts.headers)).flatten();
    let secret = bearer(parts).or_else(session).ok_or_else(|| {
        unauthorized(
            "send a token: Authorization: Bearer shunt_…; `shunt admin token create` makes one",
        )
    })?;
    let found = app.store.token_by_hash(&sha256(secret.as_bytes())).await?;
    let token = found.filter(|token| token.kind == "api");
    let Some(token) = token else { return Err(unauthorized("the token is not known")) };
    let now = app.env.now();
    if !token.is_valid(now) {
        return Err(unauthorized("the token has expired or was revoked"));
    }
    app.store.touch_token(&token, now).await?;
    Ok(from_token(&token))
}

fn from_token(token: &Token) -> Caller {
    // A role that this version does not know gets the least.
    let role = token.role.as_deref().and_then(Role::parse).unwrap_or(Role::Viewer);
    Caller { name: format!("{} ({})", token.name, token.id), role, org: token.org.clone() }
}

fn bearer(parts: &Parts) -> Option<&str> {
    parts.headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ").map(str::trim)
}
