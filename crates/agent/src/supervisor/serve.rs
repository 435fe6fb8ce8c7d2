//! The supervisor's socket: one agent at a time, the latest one to come.

use std::{rc::Rc, time::Duration};

use tokio::{
    net::{UnixListener, UnixStream},
    task::{JoinHandle, spawn_local},
    time::{MissedTickBehavior, interval},
};

use super::core::Core;
use crate::wire::{self, FromSupervisor};

/// Between two syncs of the spool.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Between two looks at the lease, at most.
const LEASE_CHECK_MAX: Duration = Duration::from_secs(1);
/// Before the socket is tried again after an error.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts agents for ever.
pub(super) async fn serve(core: Rc<Core>, listener: std::os::unix::net::UnixListener) {
    let listener = match UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!("cannot listen: {error}"),
    };
    let mut current: Option<JoinHandle<()>> = None;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Some(old) = current.take() {
                    old.abort();
                }
                current = Some(spawn_local(connection(core.clone(), stream)));
            }
            Err(error) => {
                tracing::warn!("cannot accept: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(core: Rc<Core>, stream: UnixStream) {
    let hello = core.hello();
    let (read, write) = stream.into_split();
    let mut reader = wire::reader(read);
    let mut writer = wire::writer(write);
    let listen = async {
        while let Some((frame, _)) = wire::receive(&mut reader).await? {
            core.take(frame)?;
        }
        anyhow::Ok(())
    };
    let talk = async {
        wire::send(&mut writer, &hello, &[]).await?;
        loop {
            // Registered before the look: what comes in between is not missed.
            let woken = core.wake.notified();
            if let Some((frame, payload)) = core.next() {
                wire::send(&mut writer, &frame, &payload).await?;
            } else if core.is_done() {
                wire::send(&mut writer, &FromSupervisor::Done {}, &[]).await?;
                core.leave();
                return anyhow::Ok(());
            } else {
                woken.await;
            }
        }
    };
    let result = tokio::select! {
        result = listen => result,
        result = talk => result,
    };
    if let Err(error) = result {
        tracing::warn!("link to the agent: {error:#}");
    }
    core.disconnected();
}

/// Between two looks at the lease.
fn check_every(renew: Duration) -> Duration {
    (renew / 4).clamp(Duration::from_millis(10), LEASE_CHECK_MAX)
}

/// Beats, looks at the lease, and syncs.
pub(super) async fn tick(core: Rc<Core>) {
    let beats = async {
        loop {
            tokio::time::sleep(core.renew_every()).await;
            core.beat();
        }
    };
    let checks = async {
        loop {
            tokio::time::sleep(check_every(core.renew_every())).await;
            core.check_lease();
        }
    };
    let syncs = async {
        let mut interval = interval(SYNC_EVERY);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            core.sync();
        }
    };
    tokio::join!(beats, checks, syncs);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_is_looked_at_often_enough_for_any_fence() {
        assert_eq!(check_every(Duration::from_secs(2)), Duration::from_millis(500));
        assert_eq!(check_every(Duration::from_secs(4)), LEASE_CHECK_MAX);
        assert_eq!(check_every(Duration::from_mins(1)), LEASE_CHECK_MAX);
    }
}
