//! The one place where the runner starts tasks. All of them end with the child at the latest.

use std::future::Future;

use tokio::task::JoinHandle;

#[expect(clippy::disallowed_methods, reason = "the one place that spawns")]
pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(task)
}
