//! `shunt agent`: runs jobs for a coordinator elsewhere.

use anyhow::Context;
use shuntyard_agent::{AgentConfig, Control, Launcher, Secret, Status};
use tokio::sync::{mpsc, watch};

use super::server::{Interrupt, host_name, interrupted};
use crate::{args::Agent, client::read_secret, exit::Result};

/// Status messages that wait to be printed.
const STATUS_CAPACITY: usize = 64;

pub(crate) async fn run(args: Agent) -> Result {
    let token = args.enrol_token_file.as_deref().map(read_secret).transpose()?;
    let program = std::env::current_exe().context("find this program")?;
    let data = std::path::absolute(&args.data).context("find the data folder")?;
    let launcher = Launcher { program, args: Vec::new() };
    let config = AgentConfig {
        name: args.name.unwrap_or_else(host_name),
        labels: args.label,
        slots: args.slots,
        token: token.map(Secret::new),
        run_as: args.run_as,
        pass_env: args.pass_env,
        ca_file: args.ca_file,
        spool_quota_bytes: args.spool_mib * 1024 * 1024,
        ..AgentConfig::new(data, args.coordinator, launcher)
    };
    let (control, receiver) = watch::channel(Control::Run);
    let (events, mut statuses) = mpsc::channel(STATUS_CAPACITY);
    let agent = shuntyard_agent::run(config, receiver, Some(events));
    tokio::pin!(agent);
    loop {
        tokio::select! {
            ended = &mut agent => return Ok(ended?),
            status = statuses.recv() => if let Some(status) = status { say(&status) },
            // SIGTERM leaves the supervisors running for the next start; Ctrl-C waits for them.
            signal = interrupted() => match signal? {
                Interrupt::Terminate => {
                    control.send_replace(Control::Stop);
                }
                Interrupt::Keyboard => {
                    let again = matches!(*control.borrow(), Control::Drain);
                    let next = if again { Control::Stop } else { Control::Drain };
                    if !again {
                        anstream::eprintln!("draining; Ctrl-C again leaves what runs to the next start");
                    }
                    control.send_replace(next);
                }
            },
        }
    }
}

fn say(status: &Status) {
    match status {
        Status::Connecting { .. } => {}
        Status::Connected { url, agent } => anstream::println!("connected to {url} as {agent}"),
        Status::Disconnected { url, reason, retry_in } => anstream::println!(
            "no link to {url}: {reason}; again in {}",
            crate::show::duration(*retry_in)
        ),
        Status::Rejected { url, code, message } => {
            anstream::eprintln!("{url} turned this agent away: {code}: {message}");
        }
        Status::Started { id, name } => anstream::println!("started {name} ({id})"),
        Status::Gone { id } => anstream::println!("finished {id}"),
    }
}
