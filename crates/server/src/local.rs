//! What this machine may do without a token: whoever can read the data folder owns the server.

use std::{fs, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use shuntyard_protocol::{
    InstanceId,
    api::{CreatedToken, NewToken},
};
use shuntyard_store::{Database, NewAccess, Options, Store};

use crate::{
    app::App,
    config::Config,
    env::Env,
    http::{self, auth::EVERY_ORG},
    secrets::{sha256, write_private},
    start::database,
};

/// File in the data folder with a token of this machine.
pub const ADMIN_TOKEN_FILE: &str = "admin-token";
/// Life of the token in it.
const ADMIN_TTL: Duration = Duration::from_hours(24 * 3650);
/// Who made it.
const MACHINE: &str = "this machine";

/// The token in [`ADMIN_TOKEN_FILE`]; a new one if there is none, or none that is valid.
pub async fn machine_token(app: &App) -> anyhow::Result<String> {
    let path = app.config.data_dir.join(ADMIN_TOKEN_FILE);
    if let Ok(text) = fs::read_to_string(&path) {
        let secret = text.trim();
        let known = app.store.token_by_hash(&sha256(secret.as_bytes())).await?;
        if known.is_some_and(|token| token.is_valid(app.env.now())) {
            return Ok(secret.to_owned());
        }
    }
    let new = NewToken {
        name: MACHINE.to_owned(),
        kind: "api".to_owned(),
        role: Some("admin".to_owned()),
        org: None,
        ttl_ms: Some(u64::try_from(ADMIN_TTL.as_millis())?),
        uses: None,
    };
    let made = http::tokens::make(&app.store, &app.env, &new, (EVERY_ORG, MACHINE)).await;
    let secret = made.map_err(http::error::ApiError::into_detail)?.secret;
    write_private(&path, secret.as_bytes())?;
    Ok(secret)
}

/// Makes a token in the database itself, whether or not a server runs with it.
///
/// # Errors
/// When no server has ever started with this data folder, or the token cannot be what `new` says.
pub async fn create_token(config: &Config, new: &NewToken) -> anyhow::Result<CreatedToken> {
    let database = database(config)?;
    if let Database::Sqlite(path) = &database
        && !path.exists()
    {
        bail!("no server has started with the data folder {} yet", config.data_dir.display());
    }
    let env = Env::system();
    let (instance, clock) = (InstanceId::mint(env.now(), env.random()), env.clone());
    let clock = Arc::new(move || clock.now());
    let options = Options { database, segments: None, instance, clock };
    let (store, _) = Store::open(options).await.context("open the database")?;
    let org = new.org.as_deref().unwrap_or("default");
    let made = http::tokens::make(&store, &env, new, (org, MACHINE)).await;
    let made = made.map_err(http::error::ApiError::into_detail)?;
    let entry = NewAccess {
        org: org.to_owned(),
        actor: MACHINE.to_owned(),
        action: "token.create".to_owned(),
        subject: made.token.id.to_string(),
        detail: None,
        address: None,
    };
    store.insert_access(&entry, env.now()).await?;
    store.close().await;
    Ok(made)
}
