//! What happens when nothing happens: offers, starts, renewals and releases whose time has come.

use std::time::Duration;

use shuntyard_core::{
    apply::{Answer, Fact},
    timers::Timers,
};
use shuntyard_protocol::{
    Timestamp,
    agent::{AttemptId, Containment, ToAgent},
};
use shuntyard_store::{Due, Overdue};

use crate::app::App;

/// How often it looks.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);
/// Rows of each kind that one look handles.
const BATCH_ROWS: u32 = 500;
/// A job that waited longer ends.
const QUEUE_TIMEOUT: Duration = Duration::from_hours(24);

/// Whoever waited longer for a slot is cancelled.
const WAIT_TIMEOUT: Duration = Duration::from_hours(1);

/// One tick of the reconciler. The facts are checked again where they are applied, so a look that
/// is late or doubled changes nothing.
pub(crate) async fn tick(app: &App) -> anyhow::Result<()> {
    let now = app.env.now();
    let overdue = look(&app.config.timers, now);
    let due = app.store.due(overdue, BATCH_ROWS, now).await?;
    if due.is_empty() {
        return Ok(());
    }
    let mut facts: Vec<Fact> = due.iter().map(|due| fact(due, overdue)).collect();
    for fact in &mut facts {
        if let Fact::OfferExpired { id, agent } = fact {
            // Who was asked is asked last from now on: else whoever never answers, and so always
            // has room, would be asked again and again.
            *agent = app.agents.holder(*id);
        }
    }
    let answers = app.store.apply(facts.clone(), now).await?;
    tracing::info!(count = answers.len(), "deadlines passed");
    if answers.contains(&Answer::Done) {
        // Only those whose time had really come: another one may just have been answered.
        for (fact, _) in facts.iter().zip(&answers).filter(|(_, answer)| **answer == Answer::Done) {
            if let Some(id) = withdrawn(fact) {
                app.agents.send_to_holder(id, &ToAgent::Superseded { id });
                app.agents.ended(id);
            }
        }
        app.pokes.dispatch.poke();
    }
    Ok(())
}

/// From when on things are overdue, seen at `now`.
pub fn look(timers: &Timers, now: Timestamp) -> Overdue {
    Overdue {
        renewed_before: now - timers.overdue,
        queued_before: Some(now - QUEUE_TIMEOUT),
        waits_before: Some(now - WAIT_TIMEOUT),
    }
}

/// What it means that something's time has come.
pub fn fact(due: &Due, overdue: Overdue) -> Fact {
    match due.clone() {
        Due::Offer { id } => Fact::OfferExpired { id, agent: None },
        Due::Start { id, .. } => Fact::StartExpired { id },
        Due::Renewal { id, .. } => Fact::Overdue { id, renewed_before: overdue.renewed_before },
        // Whoever contains its attempts also arms the kernel's timer: at the release nothing of
        // them runs any more.
        Due::Release { id, containment, .. } => {
            Fact::Lost { id, contained: containment == Some(Containment::Namespace) }
        }
        Due::Run { run, timeout_ms } => Fact::CancelRun {
            run,
            force: false,
            reason: format!("timed out: it took longer than {} s", timeout_ms / 1000),
            by: "the workflow's timeout".to_owned(),
        },
        Due::Wait { place, group, holders } => Fact::WaitExpired {
            place,
            reason: format!(
                "waited {} min for concurrency group '{group}', {holders}",
                WAIT_TIMEOUT.as_secs() / 60
            ),
            by: "the limit of waiting".to_owned(),
        },
        Due::Queue { job, .. } => Fact::QueueExpired {
            job,
            reason: format!("no agent in {} h", QUEUE_TIMEOUT.as_secs() / 3600),
        },
    }
}

/// The attempt whose holder must be told to give its slot back. A lost one is not told: its own
/// fence ends it, and what is left of its log is still wanted.
pub fn withdrawn(fact: &Fact) -> Option<AttemptId> {
    if let Fact::OfferExpired { id, .. } | Fact::StartExpired { id } = fact {
        return Some(*id);
    }
    None
}
