//! `shunt serve`: a coordinator for people and agents elsewhere.

use std::fs;

use anyhow::Context;
use shuntyard_server::{
    ADMIN_TOKEN_FILE,
    config::{Config, Tls},
};

use super::server::{LocalAgent, Server, interrupted};
use crate::{
    args::Serve,
    exit::{Failure, Result},
};

pub(crate) async fn run(args: Serve) -> Result {
    let config = config(&args).map_err(|error| Failure::Usage(format!("{error:#}")))?;
    if !args.with_agent {
        // With an agent, commands of users would inherit it.
        shuntyard_server::raise_open_files();
    }
    let mut server = Server::start(config, false).await?;
    if args.with_agent {
        server.start_agent(LocalAgent { slots: args.slots, run_as: args.run_as }).await?;
    }
    anstream::println!("serving {}  data in {}", server.url(), server.data().display());
    if server.first_admin_token {
        let file = server.data().join(ADMIN_TOKEN_FILE);
        anstream::println!("first start: the admin token is in {}", file.display());
        let link = server.sign_in_link().await?;
        anstream::println!("sign in once within 15 minutes: {link}");
    }
    let interrupt = tokio::select! {
        interrupt = interrupted() => interrupt?,
        error = server.agent_failed() => {
            server.stop(None).await?;
            return Err(Failure::Error(error));
        }
    };
    server.stop(Some(interrupt)).await
}

/// File, then environment, then flags.
fn config(args: &Serve) -> anyhow::Result<Config> {
    let text = match &args.config {
        Some(path) => {
            let text = fs::read_to_string(path);
            Some((
                path.display().to_string(),
                text.with_context(|| format!("read {}", path.display()))?,
            ))
        }
        None => None,
    };
    let file = text.as_ref().map(|(name, text)| (name.as_str(), text.as_str()));
    let mut config = Config::load(file, std::env::vars())?;
    if let Some(data) = &args.data {
        config.data_dir.clone_from(data);
    }
    if let Some(listen) = args.listen {
        config.listen = listen;
    }
    if args.database_url_file.is_some() {
        config.database.url_file.clone_from(&args.database_url_file);
    }
    if args.public_url.is_some() {
        config.public_url.clone_from(&args.public_url);
    }
    if let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) {
        config.tls = Some(Tls { cert: cert.clone(), key: key.clone() });
    }
    if !args.behind_proxy.is_empty() {
        config.behind_proxy.clone_from(&args.behind_proxy);
    }
    Ok(config)
}
