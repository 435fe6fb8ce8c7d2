//! Tests hold a transaction between two of its statements, and leave its locks out.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Semaphore;

use super::Lock;

tokio::task_local! {
    static GATE: Arc<Gate>;
}

/// Counts the statements of one operation, commits included, and holds it up before one of them.
pub(crate) struct Gate {
    passed: AtomicUsize,
    /// So many pass, then one waits; only once, so that what is tried again goes through.
    stop_after: usize,
    reached: Semaphore,
    open: Semaphore,
    unlocked: Option<Lock>,
}

impl Gate {
    pub(crate) fn new(stop_after: usize, unlocked: Option<Lock>) -> Arc<Self> {
        let [reached, open] = [Semaphore::new(0), Semaphore::new(0)];
        Arc::new(Self { passed: AtomicUsize::new(0), stop_after, reached, open, unlocked })
    }

    /// Runs an operation behind this gate.
    pub(crate) async fn hold<T>(self: Arc<Self>, operation: impl Future<Output = T>) -> T {
        GATE.scope(self, operation).await
    }

    /// Waits until the operation waits.
    pub(crate) async fn reached(&self) {
        self.reached.acquire().await.expect("it is never closed").forget();
    }

    pub(crate) fn open(&self) {
        self.open.add_permits(1);
    }

    /// Statements so far.
    pub(crate) fn passed(&self) -> usize {
        self.passed.load(Ordering::Relaxed)
    }
}

/// A statement is about to be sent.
pub(crate) async fn pass() {
    let Ok(gate) = GATE.try_with(Arc::clone) else { return };
    if gate.passed.fetch_add(1, Ordering::Relaxed) == gate.stop_after {
        gate.reached.add_permits(1);
        gate.open.acquire().await.expect("it is never closed").forget();
    }
}

/// Whether a test wants this lock left out.
pub(crate) fn unlocked(lock: Lock) -> bool {
    GATE.try_with(|gate| gate.unlocked == Some(lock)).unwrap_or(false)
}
