//! The agent alone, for hosts that run nothing else of Shuntyard.

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::Parser;
use shuntyard_agent::{AgentConfig, Control, Launcher, Secret, hidden_command};
use shuntyard_protocol::agent::Containment;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// Runs jobs for Shuntyard coordinators.
#[derive(Debug, Parser)]
#[command(name = "shunt-agent", version)]
struct Args {
    /// Coordinators, for example `https://ci.example.org`; any of them will do.
    #[arg(long = "url", required = true)]
    urls: Vec<String>,
    /// The agent's own directory.
    #[arg(long, default_value = "/var/lib/shunt-agent")]
    data: PathBuf,
    /// Name for people.
    #[arg(long, default_value = "agent")]
    name: String,
    /// Labels that jobs ask for.
    #[arg(long = "label")]
    labels: Vec<String>,
    /// Jobs at once.
    #[arg(long, default_value_t = 1)]
    slots: u32,
    /// File with the enrolment token; needed once.
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// User that commands run as.
    #[arg(long)]
    run_as: Option<String>,
    /// The most containment to use: namespace, subreaper or none. Default: what the host can do.
    #[arg(long, value_parser = containment)]
    containment: Option<Containment>,
    /// Further host variables that commands may see.
    #[arg(long = "pass-env")]
    pass_env: Vec<String>,
    /// PEM file with the authority of the coordinators' certificates.
    #[arg(long)]
    ca_file: Option<PathBuf>,
}

fn containment(text: &str) -> Result<Containment, String> {
    match text {
        "namespace" => Ok(Containment::Namespace),
        "subreaper" => Ok(Containment::Subreaper),
        "none" => Ok(Containment::None),
        _ => Err("expected namespace, subreaper or none".into()),
    }
}

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(code) = hidden_command(&args) {
        return code;
    }
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    match start(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn start(args: Args) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find the own program")?;
    let data = std::path::absolute(&args.data).context("cannot resolve the data directory")?;
    let mut config = AgentConfig::new(data, args.urls, Launcher { program, args: Vec::new() });
    if let Some(path) = args.token_file {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read the token in {}", path.display()))?;
        config.token = Some(Secret::new(text.trim()));
    }
    config.name = args.name;
    config.labels = args.labels;
    config.slots = args.slots;
    config.run_as = args.run_as;
    config.containment = args.containment;
    config.pass_env = args.pass_env;
    config.ca_file = args.ca_file;
    let (control, receiver) = watch::channel(Control::Run);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let running = shuntyard_agent::run(config, receiver, None);
    tokio::pin!(running);
    loop {
        tokio::select! {
            result = &mut running => return result.map_err(Into::into),
            // A restart of the service: the jobs go on.
            _ = terminate.recv() => control.send_replace(Control::Stop),
            _ = interrupt.recv() => control.send_replace(Control::Stop),
        };
    }
}
