//! Gates whose turn it is: who has to make room is cancelled, who is next goes through.

use std::time::Duration;

use shuntyard_protocol::Timestamp;
use shuntyard_store::{GateTurn, Store, StoreError};

use crate::app::App;

/// How often it looks without being poked.
pub(crate) const PERIOD: Duration = Duration::from_secs(2);
/// Turns of a gate in one tick: who was cancelled once is going, and only somebody newer makes
/// another one necessary.
const ROUNDS: u32 = 3;

/// One tick of the reconciler: until no gate is woken.
pub(crate) async fn tick(app: &App) -> anyhow::Result<()> {
    loop {
        let woken = app.store.woken_gates().await?;
        if woken.is_empty() {
            return Ok(());
        }
        let mut done = true;
        for gate in woken {
            // One that cannot be turned is tried again with the next tick; the others go on.
            let turned = turn(&app.store, gate, app.env.now()).await;
            done &= turned.unwrap_or_else(|error| {
                tracing::warn!(gate, %error, "a gate cannot be turned");
                false
            });
        }
        if !done {
            // A gate stays woken; the next tick sees it again.
            return Ok(());
        }
    }
}

/// Turns one gate. False: it has to be turned again, later.
pub async fn turn(store: &Store, gate: i64, now: Timestamp) -> Result<bool, StoreError> {
    for _ in 0..ROUNDS {
        match store.turn_gate(gate, now).await? {
            GateTurn::LetGo(_) => return Ok(true),
            // Each of them is cancelled as its own run, and its end wakes the gate again.
            GateTurn::Cancel(facts) => drop(store.apply(facts, now).await?),
        }
    }
    Ok(false)
}
