//! Why is my job waiting?

use std::collections::{BTreeMap, BTreeSet};

use shuntyard_core::{
    gate::Place,
    labels::{Requirement, text},
};
use shuntyard_protocol::{RunId, api::QueueItem, plan::RunsOn};
use shuntyard_store::{PlaceInfo, QueuedJob, held_by};

use crate::{app::App, dispatch};

/// The queue of an org, in order, with the reason for each; then who waits at gates.
pub(crate) async fn queue(
    app: &App,
    org: Option<&str>,
    limit: u32,
) -> anyhow::Result<Vec<QueueItem>> {
    let queued = app.store.queue(org, limit, app.env.now()).await?;
    let mut items: Vec<QueueItem> = queued.iter().map(|job| item(app, job)).collect();
    let places = app.store.places(org).await?;
    let room = usize::try_from(limit)?.saturating_sub(items.len());
    let waiting = places.iter().filter(|place| !place.holding);
    items.extend(waiting.take(room).map(|place| gate_item(place, &places)));
    Ok(items)
}

fn gate_item(place: &PlaceInfo, places: &[PlaceInfo]) -> QueueItem {
    let title = place.title.as_ref().map(|title| format!(": {title}")).unwrap_or_default();
    QueueItem {
        job: place.job_id,
        run: place.run_id,
        title: format!("{}{title}", place.workflow),
        since: place.created_at,
        ahead: before(place, places) as u64,
        priority: 0,
        waiting: at_gate(place, places),
    }
}

/// Why a run, and jobs of it, wait at gates.
pub(crate) async fn at_gates(app: &App, run: RunId) -> anyhow::Result<BTreeMap<Place, String>> {
    let places = app.store.places_beside(run).await?;
    let own = places.iter().filter(|place| place.run_id == run && !place.holding);
    Ok(own.map(|place| (place.place(), at_gate(place, &places))).collect())
}

/// Those who wait at the same gate and go first.
fn before(place: &PlaceInfo, places: &[PlaceInfo]) -> usize {
    let waiting = places.iter().filter(|other| other.gate_id == place.gate_id && !other.holding);
    waiting.take_while(|other| other.place() != place.place()).count()
}

/// The group, its slots, who holds them, and how many go first.
fn at_gate(place: &PlaceInfo, places: &[PlaceInfo]) -> String {
    let holders = places.iter().filter(|other| other.gate_id == place.gate_id && other.holding);
    let held_by = held_by(holders.clone().map(PlaceInfo::who), holders.count());
    let slots = if place.slots == 1 { "slot" } else { "slots" };
    let first = match before(place, places) {
        0 => String::new(),
        1 => "; 1 waits before it".to_owned(),
        n => format!("; {n} wait before it"),
    };
    format!(
        "waits for concurrency group '{}' ({} {slots}), {held_by}{first}",
        place.group_name, place.slots
    )
}

fn item(app: &App, job: &QueuedJob) -> QueueItem {
    let agents = app.agents.labels(&job.org);
    QueueItem {
        waiting: reason(&job.runs_on, &job.org, &agents),
        job: Some(job.job_id),
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
    use shuntyard_protocol::{JobId, Timestamp, plan::Selector};
    use shuntyard_store::HOLDERS_MAX;

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

    fn place(n: u8, holding: bool, title: Option<&str>) -> PlaceInfo {
        PlaceInfo {
            gate_id: 1,
            org: "default".to_owned(),
            group_name: "deploy".to_owned(),
            slots: 1,
            run_id: RunId::mint(Timestamp(1), [n; 10]),
            job_id: title.map(|_| JobId::mint(Timestamp(1), [n; 10])),
            holding,
            created_at: Timestamp(1),
            workflow: "ci".to_owned(),
            number: n.into(),
            title: title.map(str::to_owned),
        }
    }

    #[test]
    fn who_waits_at_a_gate_hears_who_is_there_before() {
        let places =
            [place(1, true, Some("ship")), place(2, false, None), place(3, false, Some("ship"))];
        assert_eq!(
            at_gate(&places[1], &places),
            "waits for concurrency group 'deploy' (1 slot), held by ci #1: ship"
        );
        let item = gate_item(&places[2], &places);
        assert_eq!((item.title.as_str(), item.ahead), ("ci: ship", 1));
        assert!(item.waiting.ends_with("held by ci #1: ship; 1 waits before it"));
        assert!(at_gate(&places[1], &places[1..]).ends_with("it is about to go on"));
    }

    #[test]
    fn holders_max_bounds_a_reason() {
        let n = u8::try_from(HOLDERS_MAX).unwrap();
        let mut places: Vec<_> = (1..=n).map(|n| place(n, true, None)).collect();
        places.push(place(100, false, None));
        assert!(at_gate(&places[HOLDERS_MAX], &places).ends_with("ci #4, ci #5"));
        places.insert(0, place(101, true, None));
        let why = at_gate(&places[HOLDERS_MAX + 1], &places);
        assert!(why.ends_with("ci #3, ci #4 and 1 more"), "{why}");
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
