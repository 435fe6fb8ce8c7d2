//! `shunt serve`: a coordinator for people and agents elsewhere.

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
    let agent = config.with_agent.then(|| config.agent.clone());
    if agent.is_none() {
        // With an agent, commands of users would inherit it.
        shuntyard_server::raise_open_files();
    }
    let mut server = Server::start(config, false).await?;
    if let Some(agent) = agent {
        server.start_agent(LocalAgent { slots: agent.slots, run_as: agent.run_as }).await?;
    }
    anstream::println!("serving {}  data in {}", server.url(), server.data().display());
    if server.first {
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
    let mut config = Config::read(args.config.as_deref(), std::env::vars())?;
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
    config.with_agent |= args.with_agent;
    if args.slots.is_some() {
        config.agent.slots = args.slots;
    }
    if args.run_as.is_some() {
        config.agent.run_as.clone_from(&args.run_as);
    }
    if !args.behind_proxy.is_empty() {
        config.behind_proxy.clone_from(&args.behind_proxy);
    }
    Ok(config)
}
