use std::collections::BTreeSet;

use shuntyard_core::apply::{Answer, Fact};
use shuntyard_protocol::{
    JobId,
    plan::{RunsOn, Selector},
};

use super::world::{World, agent};
use crate::claim::CLAIM_MAX;

pub(super) async fn orgs_share_by_weight_and_priority_rules_within(w: &World) {
    let jobs = |names: &[(&str, i32)]| {
        let jobs = names.iter().map(|&(name, priority)| {
            let mut job = w.new_job(name, &[]);
            job.priority = priority;
            job
        });
        jobs.collect::<Vec<_>>()
    };
    w.create("default", jobs(&[("a1", 0), ("a2", 5), ("a3", 0), ("a4", 0)])).await;
    w.create("other", jobs(&[("b1", 0), ("b2", 0)])).await;
    let first: BTreeSet<_> = w.claim(2).await.into_iter().map(|claim| claim.title).collect();
    assert_eq!(first, BTreeSet::from(["a2".to_owned(), "b1".to_owned()]));
    let rest: Vec<_> = w.claim(9).await.into_iter().map(|claim| claim.title).collect();
    assert_eq!(rest.len(), 4);
    assert!(rest[..2].contains(&"a1".to_owned()) && rest[..2].contains(&"b2".to_owned()));
    assert_eq!(rest[2..], ["a3", "a4"]);
    assert_eq!(w.claim(9).await, []);
}

pub(super) async fn one_claim_takes_so_many_jobs(w: &World) {
    let most = usize::try_from(CLAIM_MAX).unwrap();
    let jobs = (0..=most).map(|n| w.new_job(&format!("j{n}"), &[])).collect();
    w.create("default", jobs).await;
    assert_eq!(w.claim(CLAIM_MAX + 1).await.len(), most);
    assert_eq!(w.claim(CLAIM_MAX + 1).await.len(), 1);
}

pub(super) async fn age_lifts_a_job(w: &World) {
    w.create("default", vec![w.new_job("old", &[])]).await;
    w.pass(10 * 60 * 1000);
    let mut urgent = w.new_job("urgent", &[]);
    urgent.priority = 1;
    let mut gpu = w.new_job("gpu", &[]);
    gpu.runs_on = RunsOn { labels: vec![Selector::Exact("gpu".to_owned())], exclude: Vec::new() };
    w.create("default", vec![urgent, gpu]).await;
    let classes = w.store.queued_classes().await.unwrap();
    assert_eq!(classes.len(), 3, "one for each priority and set of labels");
    assert_eq!(classes[1].runs_on.labels, [Selector::Exact("gpu".to_owned())]);
    let queue = w.store.queue(Some("default"), 10, w.now()).await.unwrap();
    let places: Vec<_> = queue.iter().map(|row| (row.title.as_str(), row.place)).collect();
    assert_eq!(places, [("old", 1), ("urgent", 2), ("gpu", 3)]);
    let any = [classes[0].id, classes[2].id];
    let claimed = w.store.claim(&any, 9, w.instance, w.now(), w.now()).await.unwrap();
    let titles: Vec<_> = claimed.iter().map(|claim| claim.title.as_str()).collect();
    assert_eq!(titles, ["old", "urgent"]);
}

pub(super) async fn a_claim_finds_the_oldest_of_every_class(w: &World) {
    let jobs = |names: [&str; 3], priority| {
        names.map(|name| {
            let mut job = w.new_job(name, &[]);
            job.priority = priority;
            job
        })
    };
    w.create("default", [jobs(["a", "b", "c"], 0), jobs(["x", "y", "z"], 3)].concat()).await;
    let titles = async |limit| -> Vec<_> {
        w.claim(limit).await.into_iter().map(|claim| claim.title).collect()
    };
    assert_eq!(titles(2).await, ["x", "y"]);
    assert_eq!(titles(2).await, ["z", "a"]);
    assert_eq!(titles(9).await, ["b", "c"]);
}

pub(super) async fn a_refused_job_keeps_its_place(w: &World) {
    w.run(&[("a", &[]), ("b", &[])]).await;
    let id = w.claim(1).await[0].id;
    let fact = Fact::Refused { id, agent: agent(3), reason: "no disk".to_owned() };
    assert_eq!(w.apply(fact.clone()).await, Answer::Done);
    assert_eq!(w.apply(fact).await, Answer::Stale);
    let queue = w.store.queue(None, 10, w.now()).await.unwrap();
    assert_eq!((queue[0].title.as_str(), queue[0].reason.as_deref()), ("a", Some("no disk")));
    let again = &w.claim(1).await[0];
    assert_eq!((again.title.as_str(), again.id.attempt), ("a", 2));
    assert_eq!(again.refused, [agent(3)]);
    w.pass(5000);
    let expired = Fact::OfferExpired { id: again.id, agent: None };
    assert_eq!(w.apply(expired).await, Answer::Done);
    assert_eq!(w.apply(w.reserved(again.id)).await, Answer::Superseded);
}

pub(super) async fn claims_at_the_same_time_share_the_queue(w: &World) {
    let names: Vec<String> = (0..40).map(|n| format!("j{n}")).collect();
    let jobs: Vec<(&str, &[&str])> = names.iter().map(|name| (name.as_str(), &[][..])).collect();
    w.run(&jobs).await;
    let claims = tokio::join!(w.claim(15), w.claim(15), w.claim(15), w.claim(15));
    let claimed = [claims.0, claims.1, claims.2, claims.3];
    let claimed: Vec<JobId> = claimed.iter().flatten().map(|claim| claim.id.job).collect();
    let distinct: BTreeSet<_> = claimed.iter().collect();
    assert_eq!(distinct.len(), claimed.len(), "no job is claimed twice");
    assert_eq!(claimed.len() + w.claim(40).await.len(), 40, "and none is lost");
}
