//! `shunt admin`: tokens, agents and sources.

use std::{path::Path, time::Duration};

use reqwest::Method;
use serde_json::json;
use shuntyard_protocol::api::{
    Agent, CreatedToken, Delivery, NewSource, NewToken, Page, Source, SourceChange, Token,
};
use shuntyard_server::config::Config;

use crate::{
    args::{
        Admin, AdminCommand, AgentCommand, Connect, Forks, SourceCommand, SourceKind, TokenCommand,
    },
    client::{Client, read_secret},
    exit::{Result, usage},
    paths::Endpoint,
    show::{self, style, table},
};

pub(crate) async fn run(args: Admin) -> Result {
    match args.command {
        AdminCommand::Token(command) => token(command).await,
        AdminCommand::Agent(command) => agent(command).await,
        AdminCommand::Source(command) => source(command).await,
    }
}

fn print_json(value: &impl serde::Serialize) -> Result {
    anstream::println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Prints a new secret alone on standard output, and what to do with it beside.
fn print_created(created: &CreatedToken, json: bool, advice: &str) -> Result {
    if json {
        return print_json(created);
    }
    anstream::println!("{}", created.secret);
    let until = created.token.expires_at.map(show::time).unwrap_or_default();
    anstream::eprintln!("{}shown once; expires {until}. {advice}{}", style::DIM, anstyle::Reset);
    Ok(())
}

async fn token(command: TokenCommand) -> Result {
    match command {
        TokenCommand::Create { connect, config, name, role, org, days, json } => {
            let new = NewToken {
                name,
                kind: "api".to_owned(),
                role: Some(role),
                org,
                ttl_ms: Some(millis(Duration::from_hours(24 * days))),
                uses: None,
            };
            let created = match database(&connect, config.as_deref())? {
                Some(config) => shuntyard_server::create_token(&config, &new)
                    .await
                    .map_err(|error| usage(format!("{error:#}")))?,
                None => Client::connect(&connect)?.post("/tokens", &new).await?,
            };
            print_created(&created, json, "Keep it in a file for --token, or in SHUNT_TOKEN.")
        }
        TokenCommand::List { connect, json } => {
            let page: Page<Token> = Client::connect(&connect)?.get("/tokens", &[]).await?;
            if json {
                return print_json(&page);
            }
            let row = |token: &Token| {
                let used = token.used_at.map_or("never".to_owned(), show::time);
                let state = if token.revoked { "revoked" } else { "" };
                vec![
                    token.id.to_string(),
                    token.name.clone(),
                    token.kind.clone(),
                    token.role.clone().unwrap_or_default(),
                    token.expires_at.map(show::time).unwrap_or_default(),
                    used,
                    state.to_owned(),
                ]
            };
            let rows: Vec<_> = page.items.iter().map(row).collect();
            table::print(&["id", "name", "kind", "role", "expires", "last used", ""], &rows);
            Ok(())
        }
        TokenCommand::Revoke { connect, id } => {
            Client::connect(&connect)?
                .tell(Method::DELETE, &format!("/tokens/{id}"), &json!({}))
                .await
        }
    }
}

/// The server whose database a command writes to itself: one of this machine that is not to be asked
/// or does not run.
fn database(connect: &Connect, file: Option<&Path>) -> Result<Option<Config>> {
    let data = connect.credentials.data.as_ref();
    let alone = connect.server.is_none() && data.is_some_and(|data| !Endpoint::answers(data));
    if file.is_none() && !alone {
        return Ok(None);
    }
    let read = || -> anyhow::Result<Config> {
        let mut config = Config::read(file, std::env::vars())?;
        if let Some(data) = data {
            config.data_dir.clone_from(data);
        }
        Ok(config)
    };
    read().map(Some).map_err(|error| usage(format!("{error:#}")))
}

async fn agent(command: AgentCommand) -> Result {
    match command {
        AgentCommand::CreateToken { connect, name, org, uses, minutes, json } => {
            let new = NewToken {
                name,
                kind: "enrol".to_owned(),
                role: None,
                org,
                ttl_ms: Some(millis(Duration::from_mins(minutes))),
                uses: Some(uses),
            };
            let client = Client::connect(&connect)?;
            let created = client.post("/tokens", &new).await?;
            let advice = format!(
                "On the agent's machine: shunt agent --coordinator {} --data DIR --enrol-token-file -",
                client.url()
            );
            print_created(&created, json, &advice)
        }
        AgentCommand::List { connect, json } => {
            let page: Page<Agent> = Client::connect(&connect)?.get("/agents", &[]).await?;
            if json {
                return print_json(&page);
            }
            let row = |agent: &Agent| {
                let state = match (agent.revoked, agent.connected, agent.draining) {
                    (true, ..) => "revoked",
                    (_, false, _) => "away",
                    (_, true, true) => "draining",
                    (_, true, false) => "connected",
                };
                vec![
                    agent.id.to_string(),
                    agent.name.clone(),
                    state.to_owned(),
                    format!("{}/{}", agent.running, agent.slots),
                    show::time(agent.seen_at),
                    agent.labels.join(" "),
                ]
            };
            let rows: Vec<_> = page.items.iter().map(row).collect();
            table::print(&["id", "name", "state", "jobs", "last seen", "labels"], &rows);
            Ok(())
        }
        AgentCommand::Drain { connect, id } => {
            let path = format!("/agents/{id}/drain");
            Client::connect(&connect)?.tell(Method::POST, &path, &json!({})).await
        }
        AgentCommand::Resume { connect, id } => {
            let path = format!("/agents/{id}/resume");
            Client::connect(&connect)?.tell(Method::POST, &path, &json!({})).await
        }
        AgentCommand::Revoke { connect, id } => {
            Client::connect(&connect)?
                .tell(Method::DELETE, &format!("/agents/{id}"), &json!({}))
                .await
        }
    }
}

fn kind_word(kind: SourceKind) -> &'static str {
    match kind {
        SourceKind::Github => "github",
        SourceKind::Generic => "generic",
        SourceKind::Local => "local",
    }
}

async fn source(command: SourceCommand) -> Result {
    match command {
        SourceCommand::Add { connect, kind, name, url, webhook_secret_file, org, label } => {
            let new = NewSource {
                url: code_url(kind, url)?,
                name,
                kind: kind_word(kind).to_owned(),
                org,
                webhook_secret: webhook_secret_file.as_deref().map(read_secret).transpose()?,
                forks: None,
                labels: label,
                work_tree: false,
            };
            let source: Source = Client::connect(&connect.into())?.post("/sources", &new).await?;
            anstream::println!("added {}", source.name);
            if kind != SourceKind::Local {
                let url = source.webhook_url;
                anstream::println!("send its webhooks (application/json) to {url}");
            }
            Ok(())
        }
        SourceCommand::List { connect, json } => {
            list_sources(&Client::connect(&connect)?, json).await
        }
        SourceCommand::Set { connect, name, org, forks, webhook_secret_file } => {
            let change = SourceChange {
                url: None,
                webhook_secret: webhook_secret_file.as_deref().map(read_secret).transpose()?,
                forks: forks.map(|forks| match forks {
                    Forks::Run => "run".to_owned(),
                    Forks::Ignore => "ignore".to_owned(),
                }),
                labels: None,
            };
            let path = with_org(&format!("/sources/{name}"), org.as_deref());
            Client::connect(&connect)?.tell(Method::PATCH, &path, &change).await
        }
        SourceCommand::Remove { connect, name, org } => {
            let path = with_org(&format!("/sources/{name}"), org.as_deref());
            Client::connect(&connect)?.tell(Method::DELETE, &path, &json!({})).await
        }
        SourceCommand::Deliveries { connect, name, org, json } => {
            let path = with_org(&format!("/sources/{name}/deliveries"), org.as_deref());
            list_deliveries(&Client::connect(&connect)?, &path, json).await
        }
    }
}

/// A local source is named by an absolute path.
fn code_url(kind: SourceKind, url: String) -> Result<String> {
    match kind {
        SourceKind::Local => {
            let path = Path::new(&url).canonicalize();
            let path = path.map_err(|error| usage(format!("{url}: {error}")))?;
            Ok(path.to_string_lossy().into_owned())
        }
        SourceKind::Github | SourceKind::Generic => Ok(url),
    }
}

async fn list_sources(client: &Client, json: bool) -> Result {
    let page: Page<Source> = client.get("/sources", &[]).await?;
    if json {
        return print_json(&page);
    }
    let row = |source: &Source| {
        let secret = if source.has_webhook_secret { "set" } else { "" };
        let Source { name, org, kind, url, forks, .. } = source.clone();
        vec![name, org, kind, url, forks, secret.to_owned()]
    };
    let rows: Vec<_> = page.items.iter().map(row).collect();
    table::print(&["name", "org", "kind", "url", "forks", "webhook secret"], &rows);
    Ok(())
}

async fn list_deliveries(client: &Client, path: &str, json: bool) -> Result {
    let page: Page<Delivery> = client.get(path, &[]).await?;
    if json {
        return print_json(&page);
    }
    let row = |delivery: &Delivery| {
        let outcome = delivery.outcome.as_deref().or(delivery.error.as_deref()).unwrap_or_default();
        vec![
            show::time(delivery.created_at),
            delivery.kind.clone(),
            delivery.state.clone(),
            outcome.lines().next().unwrap_or_default().to_owned(),
        ]
    };
    let rows: Vec<_> = page.items.iter().map(row).collect();
    table::print(&["received", "event", "state", "outcome"], &rows);
    Ok(())
}

fn with_org(path: &str, org: Option<&str>) -> String {
    org.map_or_else(|| path.to_owned(), |org| format!("{path}?org={org}"))
}
