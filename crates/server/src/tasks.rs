//! Named background tasks. A task that panics is logged by name, and the process goes on to stop.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{sync::Notify, time};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Spawns tasks and waits for them at the end.
#[derive(Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    pub fn new(stop: CancellationToken) -> Self {
        Self { tracker: TaskTracker::new(), stop }
    }

    /// Cancelled when the process stops.
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Runs `future` until it ends or the process stops. A panic stops the process: what a task
    /// does is needed, and the next start finds every obligation in the database.
    #[expect(clippy::disallowed_methods, reason = "the one place that spawns")]
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        let (stop, task) = (self.stop.clone(), tokio::spawn(future));
        self.tracker.spawn(async move {
            let abort = task.abort_handle();
            tokio::select! {
                ended = task => if let Err(error) = ended && error.is_panic() {
                    tracing::error!(task = name, "task panicked; stopping");
                    stop.cancel();
                },
                () = stop.cancelled() => abort.abort(),
            }
        });
    }

    /// A reconciler: takes no input, is idempotent, runs at once, then whenever it is poked and
    /// at least once per `period`. A tick never overlaps another; one that fails is logged and the
    /// next one sees the same state again.
    pub fn reconcile<F, Fut>(&self, name: &'static str, period: Duration, poke: Poke, tick: F)
    where
        F: Fn() -> Fut + Send + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send,
    {
        self.spawn(name, async move {
            loop {
                if let Err(error) = tick().await {
                    tracing::warn!(task = name, error = format!("{error:#}"), "tick failed");
                }
                // A timeout is the safety net, not an error.
                drop(time::timeout(period, poke.0.notified()).await);
            }
        });
    }

    /// Asks all tasks to stop and waits until they have.
    pub async fn shut_down(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

/// Wakes one reconciler. Pokes that arrive while it runs make it run once more.
#[derive(Clone, Default)]
pub struct Poke(Arc<Notify>);

impl Poke {
    pub fn poke(&self) {
        self.0.notify_one();
    }
}
