//! Commits of this process, as hints to the parts that wait for them.

use shuntyard_protocol::agent::ToAgent;
use shuntyard_store::Change;
use tokio::sync::broadcast::{Receiver, error::RecvError};

use crate::app::Shared;

/// Passes hints on until the process stops.
pub(crate) async fn forward(app: Shared, mut changes: Receiver<Change>) {
    loop {
        match changes.recv().await {
            Ok(change) => pass_on(&app, &change).await,
            Err(RecvError::Lagged(_)) => {
                app.pokes.dispatch.poke();
                app.pokes.inbox.poke();
                app.pokes.gates.poke();
            }
            Err(RecvError::Closed) => return,
        }
    }
}

async fn pass_on(app: &Shared, change: &Change) {
    if change.queue_ready {
        app.pokes.dispatch.poke();
    }
    if change.deliveries {
        app.pokes.inbox.poke();
    }
    if change.gates {
        app.pokes.gates.poke();
    }
    for &id in &change.ended {
        if app.agents.ended(id) {
            app.pokes.dispatch.poke();
        }
    }
    for &id in &change.cancels {
        // The row says how; whoever misses this frame hears it with the next renewal.
        if let Ok(Some(job)) = app.store.job(id.job).await
            && let (Some(force), Some(reason)) = (job.cancel_force, job.cancel_reason)
        {
            app.agents.send_to_holder(id, &ToAgent::Cancel { id, force, reason });
        }
    }
}
