//! The agent process: start-up, the link to a coordinator, and everything it holds.

mod backoff;
mod custodian;
mod held;
mod host;
mod hub;
pub(crate) mod mailbox;
mod session;
mod tls;

use std::{io, sync::Arc, time::Duration};

use tokio::sync::{mpsc, watch};

use crate::{
    attempt::AttemptDir,
    clock,
    config::{AgentConfig, Control, Status},
    files::FileError,
    identity::KeyError,
    sandbox::SandboxError,
};
use backoff::Backoff;
use host::Host;
use hub::Hub;

/// After everything was cancelled and has ended, how long results may still be sent.
const FAREWELL: Duration = Duration::from_secs(3);

/// Why an agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("cannot use '{name}' as the user for commands")]
    User {
        name: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("another agent already uses {}", path.display())]
    DataDirInUse { path: std::path::PathBuf },
    #[error(
        "this agent is root, and this host can make no PID namespaces: set `run_as` to a user for the commands, or do not run the agent as root"
    )]
    RootUncontained,
    #[error(
        "the user '{user}' for commands cannot get into {}: open it with chmod o+x, or keep the data of the agent elsewhere", path.display()
    )]
    Unreachable { user: String, path: std::path::PathBuf },
    #[error("`run_as` needs an agent that is root")]
    RunAsNeedsRoot,
    #[error("the setting '{setting}' is not valid: {problem}")]
    Setting { setting: &'static str, problem: String },
    #[error("cannot start the program {}", program.display())]
    Launcher {
        program: std::path::PathBuf,
        #[source]
        source: io::Error,
    },
}

impl RunError {
    fn user(name: &str) -> impl FnOnce(SandboxError) -> Self {
        let name = name.to_owned();
        move |source| Self::User { name, source: source.into() }
    }
}

/// Runs an agent until `control` says otherwise; a sender that is gone means [`Control::Stop`].
/// Supervisors of an earlier life are found again.
///
/// `events` gets what happens, as far as there is room in it.
pub async fn run(
    config: AgentConfig,
    mut control: watch::Receiver<Control>,
    events: Option<mpsc::Sender<Status>>,
) -> Result<(), RunError> {
    let host = Host::prepare(config).await?;
    let hub = Arc::new(Hub::new(host, events));
    // Also when this future is dropped half way.
    let stop = hub.stopped().drop_guard();
    let result = serve(&hub, &mut control).await;
    drop(stop);
    hub.settled().await;
    result
}

async fn serve(hub: &Arc<Hub>, control: &mut watch::Receiver<Control>) -> Result<(), RunError> {
    for dir in AttemptDir::all(&hub.host.config.data_dir)? {
        Hub::hold(hub, dir);
    }
    // Dropped with this future, and with it the link.
    let mut link = tokio::task::JoinSet::new();
    link.spawn(keep_linked(hub.clone()));
    loop {
        let wanted = *control.borrow_and_update();
        match wanted {
            Control::Run => {}
            Control::Stop => return Ok(()),
            Control::Drain => hub.drain(),
            Control::CancelAll { grace } => hub.cancel_all(grace),
        }
        let over = async {
            match wanted {
                Control::Run | Control::Stop => std::future::pending().await,
                Control::Drain => hub.empty().await,
                Control::CancelAll { .. } => {
                    hub.idle().await;
                    tokio::time::timeout(FAREWELL, hub.empty()).await.ok();
                }
            }
        };
        tokio::select! {
            () = over => return Ok(()),
            changed = control.changed() => if changed.is_err() {
                // Nobody is left to say anything: the supervisors go on by themselves.
                return Ok(());
            },
        }
    }
}

/// Connects, and connects again, to whichever coordinator there is.
async fn keep_linked(hub: Arc<Hub>) {
    let urls = hub.host.config.urls.clone();
    let mut backoff = Backoff::default();
    for url in urls.iter().cycle() {
        hub.tell(Status::Connecting { url: url.clone() });
        let (welcomed, reason) = session::run(&hub, url).await;
        hub.offline();
        if welcomed {
            backoff = Backoff::default();
        }
        let retry_in = backoff.next(clock::random());
        tracing::warn!(url, reason, retry_in_ms = retry_in.as_millis(), "no link");
        hub.tell(Status::Disconnected { url: url.clone(), reason, retry_in });
        tokio::time::sleep(retry_in).await;
    }
}
