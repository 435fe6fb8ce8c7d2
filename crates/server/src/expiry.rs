//! What happens when nothing happens: offers, starts, renewals and releases whose time has come.

use std::time::Duration;

use shuntyard_core::apply::{Answer, Fact};
use shuntyard_protocol::agent::{AttemptId, Containment, ToAgent};
use shuntyard_store::{Due, Overdue};

use crate::app::App;

/// How often it looks.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);
/// Rows of each kind that one look handles.
const BATCH_MAX: u32 = 500;
/// A job that waited longer ends.
const QUEUE_TIMEOUT: Duration = Duration::from_hours(24);

/// One tick of the reconciler. The facts are checked again where they are applied, so a look that
/// is late or doubled changes nothing.
pub(crate) async fn tick(app: &App) -> anyhow::Result<()> {
    let now = app.env.now();
    let overdue = Overdue {
        renewed_before: now - app.config.timers.overdue,
        queued_before: Some(now - QUEUE_TIMEOUT),
    };
    let due = app.store.due(overdue, BATCH_MAX, now).await?;
    let mut facts = Vec::with_capacity(due.len());
    let mut withdrawn = Vec::new();
    for due in due {
        facts.push(match due {
            Due::Offer { id } => {
                withdrawn.push(id);
                Fact::OfferExpired { id, agent: None }
            }
            Due::Start { id, .. } => {
                withdrawn.push(id);
                Fact::StartExpired { id }
            }
            Due::Renewal { id, .. } => Fact::Overdue { id, renewed_before: overdue.renewed_before },
            Due::Release { id, containment, .. } => {
                // Whoever contains its attempts also arms the kernel's timer: at the release
                // nothing of them runs any more.
                let contained = containment == Some(Containment::Namespace);
                withdrawn.push(id);
                Fact::Lost { id, contained }
            }
            Due::Run { run, timeout_ms } => Fact::CancelRun {
                run,
                force: false,
                reason: format!("timed out: it took longer than {} s", timeout_ms / 1000),
                by: "the workflow's timeout".to_owned(),
            },
            Due::Queue { job, .. } => Fact::QueueExpired {
                job,
                reason: format!("no agent in {} h", QUEUE_TIMEOUT.as_secs() / 3600),
            },
        });
    }
    if facts.is_empty() {
        return Ok(());
    }
    let answers = app.store.apply(facts, now).await?;
    tracing::info!(count = answers.len(), "deadlines passed");
    if answers.contains(&Answer::Done) {
        for id in withdrawn {
            release(app, id);
        }
        app.pokes.dispatch.poke();
    }
    Ok(())
}

/// The attempt's old holder is told, so that it gives its slot back.
fn release(app: &App, id: AttemptId) {
    app.agents.send_to_holder(id, &ToAgent::Superseded { id });
    app.agents.ended(id);
}
