//! A coordinator, and perhaps an agent, in this process: what `dev`, `run` and `serve` share.

use std::{
    fs::{self, Permissions},
    num::NonZero,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    thread::available_parallelism,
    time::Duration,
};

use anyhow::Context;
use shuntyard_agent::{AgentConfig, Control, Launcher, Secret};
use shuntyard_protocol::api::{CreatedToken, NewToken};
use shuntyard_server::{Running, StartOptions, config::Config, env::Env, git::Git};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::plan;
use crate::{
    client::Client,
    exit::{Failure, INTERRUPTED, Result, USAGE},
    paths::Endpoint,
};

/// Time that running commands get at Ctrl-C before they are killed.
const INTERRUPT_GRACE: Duration = Duration::from_secs(5);

/// The local agent is not waited for longer than this.
const STOP_TIMEOUT: Duration = Duration::from_secs(40);

/// Why a server stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupt {
    /// Ctrl-C: commands are asked to stop.
    Keyboard,
    /// SIGTERM: supervisors go on, and the next start finds them.
    Terminate,
}

/// Waits for the first signal.
pub(super) async fn interrupted() -> anyhow::Result<Interrupt> {
    let mut keyboard = signal(SignalKind::interrupt()).context("wait for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    Ok(tokio::select! {
        _ = keyboard.recv() => Interrupt::Keyboard,
        _ = terminate.recv() => Interrupt::Terminate,
    })
}

/// A server in this process.
pub(super) struct Server {
    running: Running,
    pub(super) client: Client,
    endpoint: Endpoint,
    agent: Option<(JoinSet<anyhow::Result<()>>, watch::Sender<Control>)>,
    /// Whether this is the first start.
    pub(super) first: bool,
}

/// The local agent of a server.
pub(super) struct LocalAgent {
    pub(super) slots: Option<u32>,
    pub(super) run_as: Option<String>,
}

impl Server {
    pub(super) async fn start(config: Config, next_free_port: bool) -> Result<Self> {
        let data = std::path::absolute(&config.data_dir).context("find the data folder")?;
        let config = Config { data_dir: data.clone(), ..config };
        config.check().map_err(|error| Failure::Usage(format!("{error:#}")))?;
        let started = shuntyard_server::start(StartOptions {
            config,
            env: Env::system(),
            launcher: plan::launcher()?,
            stop: CancellationToken::new(),
            next_free_port,
        })
        .await
        // A taken port, a missing file, a wrong key: people can mend it, and no run has failed.
        .map_err(|error| Failure::Usage(format!("{error:#}")))?;
        let running = started.running;
        let token = shuntyard_server::machine_token(&running.app).await?;
        let local = format!("http://{}", running.address);
        let url = if running.app.config.tls.is_some() { running.app.url.clone() } else { local };
        let ca_file = running.app.config.tls.as_ref().map(|tls| std::path::absolute(&tls.cert));
        let ca_file = ca_file.transpose().context("find the certificate")?;
        let pid = std::process::id();
        let endpoint = Endpoint { url: url.clone(), pid, data, ca_file };
        endpoint.announce()?;
        let client = Client::with_authority(&url, &token, endpoint.ca_file.as_deref())?;
        Ok(Self { running, client, endpoint, agent: None, first: started.first })
    }

    pub(super) fn data(&self) -> &PathBuf {
        &self.endpoint.data
    }

    /// What reads repositories for this server.
    pub(super) fn git(&self) -> Git {
        self.running.app.git.clone()
    }

    /// A link that signs one browser in, once.
    pub(super) async fn sign_in_link(&self) -> Result<String> {
        Ok(shuntyard_server::sign_in_link(&self.running.app).await?)
    }

    /// What people should open.
    pub(super) fn url(&self) -> &str {
        &self.running.app.url
    }

    /// Starts an agent in this process. Its attempts live in processes of their own.
    pub(super) async fn start_agent(&mut self, options: LocalAgent) -> Result {
        let enrol = NewToken {
            name: "local agent".to_owned(),
            kind: "enrol".to_owned(),
            role: None,
            org: Some("default".to_owned()),
            ttl_ms: None,
            uses: None,
        };
        let token: CreatedToken = self.client.post("/tokens", &enrol).await?;
        let program = std::env::current_exe().context("find this program")?;
        let launcher = Launcher { program, args: Vec::new() };
        let data = self.data().join("agent");
        if options.run_as.is_some() {
            // The way to the workspaces; everything else in it is closed.
            fs::set_permissions(self.data(), Permissions::from_mode(0o711))
                .with_context(|| format!("open {}", self.data().display()))?;
        }
        let url = self.client.url().to_owned();
        let processors = available_parallelism().map_or(1, NonZero::get);
        let slots = options.slots.unwrap_or(u32::try_from(processors).unwrap_or(1));
        let config = AgentConfig {
            name: host_name(),
            slots,
            token: Some(Secret::new(token.secret)),
            run_as: options.run_as,
            hide: vec![self.data().clone()],
            ca_file: self.endpoint.ca_file.clone(),
            ..AgentConfig::new(data, vec![url], launcher)
        };
        let (control, receiver) = watch::channel(Control::Run);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { Ok(shuntyard_agent::run(config, receiver, None).await?) });
        self.agent = Some((tasks, control));
        Ok(())
    }

    /// Resolves when the agent could not go on.
    pub(super) async fn agent_failed(&mut self) -> anyhow::Error {
        let Some((tasks, _)) = &mut self.agent else { return std::future::pending().await };
        match tasks.join_next().await {
            Some(Ok(Ok(()))) => anyhow::anyhow!("the local agent ended"),
            Some(Ok(Err(error))) => error.context("local agent"),
            Some(Err(error)) => anyhow::Error::from(error).context("local agent"),
            None => std::future::pending().await,
        }
    }

    /// Stops in the way that `interrupt` asks for; without one commands have ended already.
    pub(super) async fn stop(mut self, interrupt: Option<Interrupt>) -> Result {
        if let Some((mut tasks, control)) = self.agent.take() {
            let how = match interrupt {
                Some(Interrupt::Keyboard) => Control::CancelAll { grace: INTERRUPT_GRACE },
                Some(Interrupt::Terminate) => Control::Stop,
                // What has ended is acknowledged before the supervisors lose their coordinator.
                None => Control::Drain,
            };
            control.send_replace(how);
            // A second Ctrl-C does not wait.
            tokio::select! {
                _ = tasks.join_next() => {}
                second = interrupted() => {
                    second?;
                    anstream::eprintln!(
                        "ending at once: what has not ended is left to its supervisor"
                    );
                }
                () = tokio::time::sleep(STOP_TIMEOUT) => {}
            }
        }
        self.endpoint.withdraw();
        self.running.stop().await;
        match interrupt {
            Some(Interrupt::Keyboard) => Err(Failure::Said(INTERRUPTED)),
            Some(Interrupt::Terminate) | None => Ok(()),
        }
    }
}

/// The host's name, for people.
pub(super) fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "local".to_owned() } else { name }
}

/// The exit code for a plan or usage error that was said.
pub(super) fn plan_error() -> Failure {
    Failure::Said(USAGE)
}
