//! Dispatch: queued jobs are claimed for agents that have room, and offered to them.
//!
//! Classes of jobs that the same agents can serve are claimed together, so that what is claimed can
//! always be offered, and order and fairness hold among them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use shuntyard_core::{apply::Fact, labels::Requirement};
use shuntyard_protocol::{
    AgentId,
    agent::Containment,
    plan::{RunsOn, Selector},
};
use shuntyard_store::{Claimed, LabelClass};

use crate::{app::App, link::Room};

/// Jobs that one claim takes at most.
const CLAIM_MAX: usize = 256;
/// Compiled classes that are kept in memory.
const CLASSES_MAX: usize = 10_000;

/// Compiled requirements by class. A class never changes.
#[derive(Default)]
pub struct Classes(Mutex<BTreeMap<i64, Arc<Requirement>>>);

impl Classes {
    /// Absent: it does not compile, which the plan's check rules out.
    fn get(&self, class: &LabelClass) -> Option<Arc<Requirement>> {
        let mut known = self.0.lock().expect("no panic while it is held");
        if let Some(requirement) = known.get(&class.id) {
            return Some(Arc::clone(requirement));
        }
        let requirement = Arc::new(Requirement::new(&class.runs_on).ok()?);
        if known.len() >= CLASSES_MAX {
            known.clear();
        }
        known.insert(class.id, Arc::clone(&requirement));
        Some(requirement)
    }
}

/// Label that ties a job to the agents of its org. Only the server sets it.
pub(crate) fn org_label(org: &str) -> String {
    format!("shunt:org:{org}")
}

/// Label of agents whose attempts cannot outlive or look beyond their unit.
pub(crate) const CONTAINED: &str = "shunt:contained";

/// What the server itself asks of the agents of a job.
pub(crate) fn with_server_labels(mut runs_on: RunsOn, org: &str, untrusted: bool) -> RunsOn {
    runs_on.labels.push(Selector::Exact(org_label(org)));
    if untrusted {
        runs_on.labels.push(Selector::Exact(CONTAINED.to_owned()));
    }
    runs_on
}

/// The labels that the server itself gives to an agent.
pub(crate) fn server_labels(org: &str, containment: Containment) -> Vec<String> {
    let contained = (containment == Containment::Namespace).then(|| CONTAINED.to_owned());
    contained.into_iter().chain([org_label(org)]).collect()
}

/// One tick of the reconciler: offers until nothing more can be.
pub(crate) async fn tick(app: &App) -> anyhow::Result<()> {
    while round(app).await? {}
    Ok(())
}

/// True: something was offered.
async fn round(app: &App) -> anyhow::Result<bool> {
    let mut rooms = app.agents.rooms();
    if rooms.is_empty() {
        return Ok(false);
    }
    let mut groups: BTreeMap<BTreeSet<AgentId>, Vec<i64>> = BTreeMap::new();
    for class in app.store.queued_classes().await? {
        let Some(requirement) = app.classes.get(&class) else { continue };
        let able = rooms.iter().filter(|room| requirement.admits(&room.labels));
        groups.entry(able.map(|room| room.agent).collect()).or_default().push(class.id);
    }
    groups.remove(&BTreeSet::new());
    let mut offered = false;
    for (able, classes) in groups {
        let limit = room_of(&rooms, &able);
        if limit == 0 {
            continue;
        }
        let now = app.env.now();
        let until = now + app.config.timers.offer;
        let claimed = app.store.claim(&classes, limit, app.instance, until, now).await?;
        for job in claimed {
            offered = true;
            offer(app, &mut rooms, &able, &job).await?;
        }
    }
    Ok(offered)
}

/// Jobs that these agents can take at once, in one claim.
fn room_of(rooms: &[Room], able: &BTreeSet<AgentId>) -> u32 {
    let of_group = rooms.iter().filter(|room| able.contains(&room.agent));
    let free = of_group.map(|room| room.free).sum::<usize>().min(CLAIM_MAX);
    u32::try_from(free).expect("it is at most CLAIM_MAX")
}

async fn offer(
    app: &App,
    rooms: &mut [Room],
    able: &BTreeSet<AgentId>,
    job: &Claimed,
) -> anyhow::Result<()> {
    // The freest goes first; one that turned the job down before goes last.
    let mut candidates: Vec<_> =
        rooms.iter_mut().filter(|room| room.free > 0 && able.contains(&room.agent)).collect();
    candidates.sort_by_key(|room| (job.refused.contains(&room.agent), usize::MAX - room.free));
    for room in candidates {
        if app.agents.offer(room.agent, job.id, &job.title) {
            room.free -= 1;
            return Ok(());
        }
        room.free = 0;
    }
    // Every agent left meanwhile: it goes back into the queue.
    app.store.submit(Fact::OfferExpired { id: job.id, agent: None }).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(id: i64) -> LabelClass {
        let labels = vec![Selector::Exact(format!("l{id}"))];
        LabelClass { id, runs_on: RunsOn { labels, exclude: vec![] } }
    }

    #[test]
    fn classes_max_bounds_the_memory_of_many_classes() {
        let classes = Classes::default();
        for id in 0..=i64::try_from(CLASSES_MAX).unwrap() {
            assert!(classes.get(&class(id)).is_some());
        }
        assert_eq!(classes.0.lock().unwrap().len(), 1);
    }

    #[test]
    fn the_code_of_strangers_needs_a_contained_agent_of_its_org() {
        let any = RunsOn { labels: vec![], exclude: vec![] };
        let strange = with_server_labels(any.clone(), "web", true);
        let own = with_server_labels(any, "web", false);
        let admits = |runs_on: &RunsOn, org: &str, containment| {
            let labels = server_labels(org, containment).into_iter().collect();
            Requirement::new(runs_on).unwrap().admits(&labels)
        };
        assert!(admits(&strange, "web", Containment::Namespace));
        assert!(!admits(&strange, "web", Containment::Subreaper));
        assert!(admits(&own, "web", Containment::Subreaper));
        assert!(!admits(&own, "api", Containment::Namespace));
    }

    #[test]
    fn one_claim_takes_claim_max_jobs_and_no_more() {
        let agent = |n: u8| AgentId::mint(shuntyard_protocol::Timestamp(0), [n; 10]);
        let room = |n: u8, free: usize| Room {
            agent: agent(n),
            org: "default".to_owned(),
            labels: BTreeSet::new(),
            free,
        };
        let both = BTreeSet::from([agent(1), agent(2)]);
        let free = |second| room_of(&[room(1, CLAIM_MAX - 1), room(2, second), room(3, 9)], &both);
        assert_eq!(free(0) as usize, CLAIM_MAX - 1);
        assert_eq!(free(1) as usize, CLAIM_MAX);
        assert_eq!(free(2) as usize, CLAIM_MAX);
    }
}
