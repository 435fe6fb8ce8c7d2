//! Why is my job waiting?

use std::collections::BTreeSet;

use shuntyard_core::labels::{Requirement, text};
use shuntyard_protocol::{api::QueueItem, plan::RunsOn};
use shuntyard_store::QueuedJob;

use crate::{app::App, dispatch};

/// The queue of an org, in order, with the reason for each.
pub(crate) async fn queue(
    app: &App,
    org: Option<&str>,
    limit: u32,
) -> anyhow::Result<Vec<QueueItem>> {
    let queued = app.store.queue(org, limit, app.env.now()).await?;
    Ok(queued.iter().map(|job| item(app, job)).collect())
}

fn item(app: &App, job: &QueuedJob) -> QueueItem {
    let agents = app.agents.labels(&job.org);
    QueueItem {
        waiting: reason(&job.runs_on, &job.org, &agents),
        job: job.job_id,
        run: job.run_id,
        title: format!("{}: {}", job.workflow, job.title),
        since: job.queued_at,
        ahead: u64::from(job.place.saturating_sub(1)),
        priority: job.priority,
    }
}

/// "Nobody has these labels" and "all who have them are full" are different answers. `agents` are
/// the labels of those that are connected, and whether they have room.
fn reason(runs_on: &RunsOn, org: &str, agents: &[(BTreeSet<String>, bool)]) -> String {
    let Ok(requirement) = Requirement::new(runs_on) else {
        return "its labels cannot be read".to_owned();
    };
    let wanted: Vec<_> =
        runs_on.labels.iter().map(text).filter(|l| *l != dispatch::org_label(org)).collect();
    if agents.is_empty() {
        return "no agent is connected: start one with `shunt agent`".to_owned();
    }
    let able: Vec<_> = agents.iter().filter(|(labels, _)| requirement.admits(labels)).collect();
    match able.len() {
        0 => {
            // The agent that comes closest tells which labels are really missing.
            let unmet = agents.iter().map(|(labels, _)| requirement.unmet(labels));
            let missing = unmet.min_by_key(Vec::len).unwrap_or(wanted);
            match missing.as_slice() {
                [] => "every agent with its labels has one that it excludes".to_owned(),
                missing => format!("no connected agent has {}", missing.join(", ")),
            }
        }
        n if able.iter().any(|(_, room)| *room) => {
            format!("an agent has room ({n} can run it); it is about to be offered")
        }
        1 => "the one agent that can run it is full".to_owned(),
        n => format!("all {n} agents that can run it are full"),
    }
}

#[cfg(test)]
mod tests {
    use shuntyard_protocol::plan::Selector;

    use super::*;

    fn why(wanted: &[&str], agents: &[(&[&str], bool)]) -> String {
        let labels = wanted.iter().map(|l| Selector::Exact((*l).to_owned())).collect();
        let runs_on = RunsOn { labels, exclude: vec![] };
        let agents: Vec<_> = agents
            .iter()
            .map(|(labels, room)| (labels.iter().map(|l| (*l).to_owned()).collect(), *room))
            .collect();
        reason(&runs_on, "default", &agents)
    }

    #[test]
    fn missing_labels_and_full_agents_are_told_apart() {
        assert_eq!(why(&["gpu"], &[]), "no agent is connected: start one with `shunt agent`");
        assert_eq!(
            why(&["gpu", "big"], &[(&["big"], true), (&[], true)]),
            "no connected agent has gpu"
        );
        assert_eq!(why(&["gpu"], &[(&["gpu"], false)]), "the one agent that can run it is full");
        assert_eq!(
            why(&["gpu"], &[(&["gpu"], false), (&["gpu"], false)]),
            "all 2 agents that can run it are full"
        );
        assert!(why(&[], &[(&[], true)]).starts_with("an agent has room"));
    }
}
