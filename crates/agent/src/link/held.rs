//! One task for each attempt on this host: finds its supervisor, or does what is left to do for a
//! dead one, and carries frames between it and the hub.

use std::{sync::Arc, time::Duration};

use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{custodian, hub::Hub};
use crate::{
    attempt::{AttemptDir, Settings},
    config::Status,
    entry,
    files::FileError,
    identity::ProcessId,
    sandbox, tasks,
    wire::{self, FromSupervisor},
};
use shuntyard_protocol::agent::Spec;

/// Before a supervisor that cannot be reached is tried again: it has just been started, most likely.
/// Twice as long each time, up to [`RETRY_LONGEST`].
const RETRY_FIRST: Duration = Duration::from_millis(1);
const RETRY_LONGEST: Duration = Duration::from_millis(100);
/// How long a supervisor whose attempt is over may take to end, before it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(15);
/// Room of the pipe between a custodian and the hub.
const PIPE_BYTES: usize = 64 * 1024;
/// Before the removal of an attempt that failed is tried again.
const REMOVE_RETRY: Duration = Duration::from_secs(5);

/// An attempt that could not be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot start the supervisor")]
    Spawn(#[source] std::io::Error),
    #[error("somebody else holds the new attempt")]
    Locked,
}

/// Writes the attempt down and starts its supervisor, which then lives on its own.
pub(super) fn start(hub: &Hub, spec: &Spec, folder: &[u8]) -> Result<AttemptDir, StartError> {
    let config = &hub.host.config;
    let settings = Settings {
        data_dir: config.data_dir.clone(),
        agent_name: config.name.clone(),
        agent_labels: hub.host.labels.clone(),
        level: hub.host.level,
        user: hub.host.user.clone(),
        host_env: hub.host.command_env.clone(),
        hide: config.hide.clone(),
        launcher: config.launcher.clone(),
        timers: hub.timers().unwrap_or(DEFAULT_TIMERS),
        offset_ms: hub.offset_ms(),
        spool_quota_bytes: config.spool_quota_bytes,
    };
    let dir = AttemptDir::new(&config.data_dir, spec.id);
    dir.create(spec, folder, &settings)?;
    let lock = dir.try_lock()?.ok_or(StartError::Locked)?;
    let log_path = dir.log_path();
    let log = std::fs::File::create(&log_path).map_err(FileError::of("create", &log_path))?;
    let mut command = tokio::process::Command::new(&config.launcher.program);
    command.args(&config.launcher.args).arg(entry::SUPERVISE).arg(dir.root());
    command.env_clear().envs(&hub.host.command_env).current_dir("/");
    // The lock goes with the open file: as long as the supervisor lives, it is taken.
    command.stdin(lock).stdout(std::process::Stdio::null()).stderr(log);
    let mut child = command.spawn().map_err(StartError::Spawn)?;
    tasks::spawn("reap", async move {
        // Only so that no zombie stays; what became of it is read from the lock.
        child.wait().await.ok();
    });
    Ok(dir)
}

/// Used only when the link is lost between a start and its execution.
const DEFAULT_TIMERS: shuntyard_protocol::agent::Timers = shuntyard_protocol::agent::Timers {
    renew_ms: 10_000,
    fence_term_ms: 45_000,
    fence_kill_ms: 15_000,
    reservation_ms: 15_000,
};

/// Sees an attempt to its end.
pub(super) async fn run(hub: Arc<Hub>, dir: AttemptDir) {
    let id = dir.id;
    tokio::select! {
        () = see_through(&hub, &dir) => {}
        () = kill_the_unwilling(&hub, &dir) => {}
    }
    remove(dir).await;
    hub.forget(id);
}

async fn see_through(hub: &Hub, dir: &AttemptDir) {
    let id = dir.id;
    let mut pause = RETRY_FIRST;
    loop {
        match dir.try_lock() {
            Ok(None) => {
                if let Ok(stream) = wire::connect(dir.root()).await {
                    pause = RETRY_FIRST;
                    let (read, write) = stream.into_split();
                    carry(hub, dir, read, write).await;
                } else {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY_LONGEST);
                }
            }
            Ok(Some(_lock)) => {
                let wanted = hub.mailbox(id).is_some_and(|mailbox| !mailbox.is_superseded());
                if dir.is_done() || !wanted {
                    break;
                }
                hub.set_alive(id, false, false);
                let (near, far) = tokio::io::duplex(PIPE_BYTES);
                let (read, write) = tokio::io::split(near);
                // Both to their ends: the last frame is read after the custodian is done.
                let ((), served) =
                    tokio::join!(carry(hub, dir, read, write), custodian::serve(dir, far));
                if let Err(error) = served {
                    tracing::error!(attempt = %id, "spool of a dead supervisor: {error:#}");
                    tokio::time::sleep(REMOVE_RETRY).await;
                }
            }
            Err(error) => {
                tracing::error!(attempt = %id, "{error}");
                break;
            }
        }
    }
}

/// Removes the attempt once nothing of it runs.
async fn remove(dir: AttemptDir) {
    loop {
        let dir = dir.clone();
        let removal = tokio::task::spawn_blocking(move || {
            custodian::end_leftovers(&dir);
            dir.remove()
        });
        match removal.await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => tracing::error!("{error}: {}", root_cause(&error)),
            Err(error) => tracing::error!("removing an attempt: {error}"),
        }
        tokio::time::sleep(REMOVE_RETRY).await;
    }
}

fn root_cause(error: &FileError) -> &std::io::Error {
    &error.source
}

/// Carries frames until the stream ends.
async fn carry<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    hub: &Hub,
    dir: &AttemptDir,
    read: R,
    write: W,
) {
    let id = dir.id;
    let mut reader = wire::reader(read);
    let mut writer = wire::writer(write);
    let up = async {
        while let Some((frame, payload)) = wire::receive(&mut reader).await? {
            match frame {
                FromSupervisor::Hello { running, .. } => hub.set_alive(id, true, running),
                FromSupervisor::Up { link, frame } => {
                    anyhow::ensure!(hub.up(id, link, frame, payload), "more than it may send");
                }
                FromSupervisor::Idle {} => hub.set_alive(id, true, false),
                FromSupervisor::Done {} | FromSupervisor::Unknown => {}
            }
        }
        anyhow::Ok(())
    };
    let down = async {
        let mut told = super::mailbox::Mailbox::default();
        let Some(mail) = hub.mail(id) else { return anyhow::Ok(()) };
        loop {
            let came = mail.notified();
            let Some(mailbox) = hub.mailbox(id) else { return Ok(()) };
            for frame in mailbox.since(&told, id) {
                wire::send(&mut writer, &frame, &[]).await?;
            }
            told = mailbox;
            came.await;
        }
    };
    let down = async {
        if let Err(error) = down.await {
            tracing::debug!(attempt = %id, "to the supervisor: {error:#}");
        }
        // What it said before it went is still to be read.
        std::future::pending().await
    };
    let result: anyhow::Result<()> = tokio::select! {
        result = up => result,
        result = down => result,
    };
    if let Err(error) = result {
        // It is tried again; a supervisor that ended closes its side while something is on its way.
        tracing::info!(attempt = %id, "link to the supervisor: {error:#}");
    }
}

/// A supervisor that was told that its attempt is over, and does not go, is stuck or stopped.
async fn kill_the_unwilling(hub: &Hub, dir: &AttemptDir) {
    loop {
        tokio::time::sleep(END_TIMEOUT).await;
        if !hub.mailbox(dir.id).is_some_and(|mailbox| mailbox.is_superseded()) {
            continue;
        }
        tokio::time::sleep(END_TIMEOUT).await;
        let supervisor = dir.processes().map(|processes| processes.supervisor);
        if let Some(supervisor) = supervisor.filter(ProcessId::lives) {
            tracing::warn!(attempt = %dir.id, "killing a supervisor that does not end");
            sandbox::signal(supervisor.pid, Signal::KILL);
        }
    }
}

/// Follows a start: the answer is in the hub when this returns.
pub(super) async fn follow_start(hub: &Arc<Hub>, spec: Spec, folder: Vec<u8>) {
    if !hub.accept(&spec) {
        return;
    }
    let (id, name) = (spec.id, spec.title.clone());
    let starter = hub.clone();
    let handle = tokio::runtime::Handle::current();
    // In one piece: this future may be dropped with the link, and a supervisor that was started
    // and is not held would run on unseen.
    let following = tokio::task::spawn_blocking(move || {
        let _entered = handle.enter();
        match start(&starter, &spec, &folder) {
            Ok(dir) => {
                Hub::hold(&starter, dir);
                starter.tell(Status::Started { id, name });
            }
            Err(error) => {
                let error = anyhow::Error::from(error);
                tracing::error!(attempt = %id, "cannot start: {error:#}");
                starter.refuse(id, format!("{error:#}"));
            }
        }
    });
    if let Err(error) = following.await {
        hub.refuse(id, format!("the start failed: {error}"));
    }
}
