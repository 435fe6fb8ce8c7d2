//! The one place that starts tasks on the shared runtime.

use std::future::Future;

use tokio::task::JoinHandle;
use tracing::Instrument as _;

/// Starts a task whose name is on everything that it logs. A panic in it ends it alone, and is
/// logged by the panic hook.
#[expect(clippy::disallowed_methods, reason = "the one place that spawns")]
pub(crate) fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(future.instrument(tracing::info_span!("task", name)))
}
