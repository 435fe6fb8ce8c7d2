use std::collections::BTreeSet;

use shuntyard_core::{
    apply::{Answer, Fact},
    gate::Place,
};
use shuntyard_protocol::{DeliveryId, Outcome, RunId, plan::Concurrency};

use super::{
    graph::somebody_waits,
    world::{TestRun, World},
};
use crate::{Due, GateTurn, NewDelivery, NewRun, Overdue, db::Db, gate, seed};

fn group(name: &str) -> Concurrency {
    Concurrency { group: name.to_owned(), cancel_in_progress: false, max: 1 }
}

/// A run of one job `a` that passes the gate as a whole.
fn gated(w: &World, group: &Concurrency) -> NewRun {
    let mut run = w.new_run("ci", vec![w.new_job("a", &[])]);
    run.concurrency = Some(group.clone());
    run
}

async fn start(w: &World, run: NewRun) -> RunId {
    let id = run.id;
    w.store.create_runs(&w.event(None), vec![run], None, 99, w.now()).await.unwrap();
    id
}

/// What the reconciler does.
async fn turn(w: &World) -> u32 {
    let mut gone = 0;
    for gate in w.store.woken_gates().await.unwrap() {
        loop {
            match w.store.turn_gate(gate, w.now()).await.unwrap() {
                GateTurn::LetGo(n) => break gone += n,
                GateTurn::Cancel(facts) => drop(w.store.apply(facts, w.now()).await.unwrap()),
            }
        }
    }
    assert_eq!(w.store.gates_asleep().await.unwrap(), Vec::<String>::new());
    gone
}

async fn cancel(w: &World, run: RunId) -> Answer {
    let (reason, by) = ("stop".to_owned(), "ann".to_owned());
    w.apply(Fact::CancelRun { run, force: false, reason, by }).await
}

async fn held(w: &World, run: RunId) -> bool {
    w.store.run(run).await.unwrap().unwrap().held
}

pub(super) async fn runs_of_a_group_go_one_after_the_other(w: &World) {
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(start(w, gated(w, &group("deploy"))).await);
    }
    assert_eq!(w.states(runs[0]).await, "a queued");
    assert_eq!(w.states(runs[1]).await, "a blocked");
    let first = w.start_all().await;
    assert_eq!((first.len(), turn(w).await), (1, 0));
    // Who waits may go before its turn comes, and frees no slot.
    assert_eq!(cancel(w, runs[1]).await, Answer::Done);
    assert_eq!((w.run_state(runs[1]).await.as_str(), turn(w).await), ("cancelled", 0));
    w.end(first["a"], Outcome::Failed).await;
    assert_eq!((held(w, runs[2]).await, turn(w).await), (true, 1));
    assert_eq!((held(w, runs[2]).await, held(w, runs[3]).await), (false, true));
    let beside = w.store.places_beside(runs[3]).await.unwrap();
    let who: Vec<_> = beside.iter().map(|place| (place.who(), place.holding)).collect();
    assert_eq!(who, [("ci #3".to_owned(), true), ("ci #4".to_owned(), false)]);
    // A slot is free only when what holds it has ended, not when that is asked for.
    let third = w.start_all().await;
    cancel(w, runs[2]).await;
    assert_eq!(turn(w).await, 0);
    w.end(third["a"], Outcome::Cancelled).await;
    assert_eq!(turn(w).await, 1);
    w.play(&[]).await;
    assert_eq!(w.run_state(runs[3]).await, "success");
    assert_eq!((turn(w).await, w.store.places(None).await.unwrap()), (0, Vec::new()));
}

pub(super) async fn woken_max_bounds_one_look(w: &World) {
    let max = usize::try_from(gate::WOKEN_MAX).unwrap();
    let mut run = w.new_run("ci", vec![]);
    for n in 0..=max {
        let mut job = w.new_job(&format!("j{n}"), &[]);
        job.concurrency = Some(group(&format!("g{n}")));
        run.jobs.push(job);
    }
    let id = start(w, run).await;
    cancel(w, id).await;
    assert_eq!(w.store.woken_gates().await.unwrap().len(), max);
    turn(w).await;
    assert_eq!(w.store.woken_gates().await.unwrap().len(), 1);
}

/// `a`, then the children `b 1` to `b 3`, which pass a gate with two slots.
async fn fan_out(w: &World, retry: bool) -> TestRun {
    let mut jobs = vec![w.new_job("a", &[])];
    for n in 1..=3 {
        let mut child = w.new_job("b", &[("a", &[Outcome::Success])]);
        child.title = format!("b {n}");
        child.concurrency = Some(Concurrency { max: 2, ..group("b") });
        if retry {
            child.retry.max_tries = 2;
            child.retry.on = child.retry.on.with(Outcome::Failed);
        }
        jobs.push(child);
    }
    w.create("default", jobs).await
}

pub(super) async fn jobs_wait_at_a_gate_once_they_are_ready(w: &World) {
    let run = fan_out(w, true).await;
    let a = w.start_all().await["a"];
    assert_eq!(w.states(run.id).await, "a running, b 1 blocked, b 2 blocked, b 3 blocked");
    w.end(a, Outcome::Success).await;
    assert_eq!(w.states(run.id).await, "a success, b 1 queued, b 2 queued, b 3 held");
    let started = w.start_all().await;
    // Another try keeps the slot; an end gives it back.
    w.end(started["b 1"], Outcome::Failed).await;
    assert_eq!(turn(w).await, 0);
    w.end(started["b 2"], Outcome::Success).await;
    assert_eq!(
        (turn(w).await, w.states(run.id).await),
        (1, "a success, b 1 queued, b 2 success, b 3 queued".to_owned(),)
    );
    w.play(&[]).await;
    assert_eq!(w.run_state(run.id).await, "success");
}

pub(super) async fn a_run_that_goes_on_brings_its_jobs_to_their_gates(w: &World) {
    let with_job = |w: &World| {
        let mut run = gated(w, &group("outer"));
        run.jobs[0].concurrency = Some(group("inner"));
        run.jobs.push(w.new_job("b", &[]));
        run
    };
    let other = {
        let mut run = w.new_run("other", vec![w.new_job("a", &[])]);
        run.jobs[0].concurrency = Some(group("inner"));
        start(w, run).await
    };
    let first = start(w, with_job(w)).await;
    let second = start(w, with_job(w)).await;
    assert_eq!(w.states(first).await, "a held, b queued");
    assert_eq!(w.states(second).await, "a blocked, b blocked");
    cancel(w, first).await;
    assert_eq!((turn(w).await, w.states(second).await), (1, "a held, b queued".to_owned()));
    cancel(w, other).await;
    assert_eq!((turn(w).await, w.states(second).await), (1, "a queued, b queued".to_owned()));
}

pub(super) async fn the_newest_of_a_group_may_cancel_the_others(w: &World) {
    let group = Concurrency { cancel_in_progress: true, max: 2, ..group("preview") };
    let mut runs = Vec::new();
    for n in 0..3 {
        runs.push(start(w, gated(w, &group)).await);
        // The first has room beside the second; it goes when the third comes.
        assert_eq!(turn(w).await, u32::from(n == 2), "{n}");
    }
    let first = w.store.run(runs[0]).await.unwrap().unwrap();
    assert_eq!(first.state.as_str(), "cancelled");
    let reason = "concurrency group 'preview' makes room for ci #3";
    assert_eq!(first.cancel_reason.as_deref(), Some(reason));
    assert_eq!(w.store.jobs_of(runs[0]).await.unwrap()[0].reason.as_deref(), Some(reason));
    let started = w.start_all().await;
    assert_eq!(started.len(), 1, "they have the same title");
    // What runs is asked to end, and keeps its slot until it has.
    let fourth = start(w, gated(w, &group)).await;
    assert_eq!((turn(w).await, w.run_state(runs[1]).await.as_str()), (0, "cancelling"));
    assert!(held(w, fourth).await);
    assert_eq!((turn(w).await, w.run_state(runs[2]).await.as_str()), (0, "running"));
}

pub(super) async fn deliveries_go_in_the_order_of_their_arrival(w: &World) {
    let mut deliveries = Vec::new();
    for key in ["d1", "d2", "d3"] {
        let delivery = NewDelivery {
            id: DeliveryId::mint(w.now(), w.random()),
            org: "default".to_owned(),
            source: w.source,
            delivery_key: key.to_owned(),
            body_digest: None,
            kind: "push".to_owned(),
            headers: serde_json::json!({}),
            body: Vec::new(),
        };
        w.store.insert_delivery(&delivery, w.now()).await.unwrap();
        deliveries.push(delivery.id);
        w.pass(10);
    }
    let mut runs = Vec::new();
    // The second one takes long to plan.
    for n in [0, 2, 1] {
        let run = gated(w, &group("deploy"));
        runs.push(run.id);
        let delivery = Some((deliveries[n], "a run"));
        w.store.create_runs(&w.event(None), vec![run], delivery, 99, w.now()).await.unwrap();
    }
    cancel(w, runs[0]).await;
    assert_eq!(turn(w).await, 1);
    assert_eq!((held(w, runs[1]).await, held(w, runs[2]).await), (true, false));
}

pub(super) async fn a_group_belongs_to_its_source_unless_the_org_shares_it(w: &World) {
    let shared = group("org:deploy");
    for (group, waits) in [(group("deploy"), false), (shared, true)] {
        start(w, gated(w, &group)).await;
        let mut event = w.event(None);
        event.source = shuntyard_protocol::SourceId::mint(w.now(), [9; 10]);
        let run = gated(w, &group);
        let id = run.id;
        w.store.create_runs(&event, vec![run], None, 99, w.now()).await.unwrap();
        assert_eq!(held(w, id).await, waits, "{}", group.group);
    }
}

pub(super) async fn a_group_has_as_many_slots_as_was_said_last(w: &World) {
    let mut runs = Vec::new();
    for max in [1, 1, 3] {
        runs.push(start(w, gated(w, &Concurrency { max, ..group("deploy") })).await);
    }
    assert!(held(w, runs[2]).await, "another one waits before it");
    assert_eq!(turn(w).await, 2);
    runs.push(start(w, gated(w, &group("deploy"))).await);
    for run in &runs[..2] {
        cancel(w, *run).await;
    }
    assert_eq!((turn(w).await, held(w, runs[3]).await), (0, true));
    cancel(w, runs[2]).await;
    assert_eq!((turn(w).await, held(w, runs[3]).await), (1, false));
}

pub(super) async fn a_rerun_stands_at_the_end_of_the_line(w: &World) {
    let first = start(w, gated(w, &group("deploy"))).await;
    w.play(&[("a", Outcome::Failed)]).await;
    let second = start(w, gated(w, &group("deploy"))).await;
    let again = RunId::mint(w.now(), w.random());
    w.store.rerun(first, true, again, || w.job_id(), w.now()).await.unwrap();
    assert_eq!((held(w, second).await, held(w, again).await), (false, true));
    w.play(&[]).await;
    assert_eq!(turn(w).await, 1);
    w.play(&[]).await;
    assert_eq!(w.run_state(again).await, "success");
    // Jobs that are taken over need no slot.
    let run = fan_out(w, false).await;
    w.play(&[("b 1", Outcome::Failed)]).await;
    turn(w).await;
    w.play(&[]).await;
    let again = RunId::mint(w.now(), w.random());
    w.store.rerun(run.id, true, again, || w.job_id(), w.now()).await.unwrap();
    assert_eq!(w.states(again).await, "a success, b 1 queued, b 2 success, b 3 success");
}

pub(super) async fn who_waits_too_long_is_found(w: &World) {
    let runs = [start(w, gated(w, &group("x"))).await, start(w, gated(w, &group("x"))).await];
    w.pass(1000);
    let overdue = |ms: i64| Overdue {
        renewed_before: w.now(),
        queued_before: None,
        waits_before: Some(shuntyard_protocol::Timestamp(w.now().0 - ms)),
    };
    assert_eq!(w.store.due(overdue(1000), 9, w.now()).await.unwrap(), []);
    let place = Place::Run(runs[1]);
    let wait = Due::Wait { place, group: "x".to_owned(), holders: "held by ci #1".to_owned() };
    assert_eq!(w.store.due(overdue(999), 9, w.now()).await.unwrap(), [wait]);
    let (reason, by) = ("too long".to_owned(), "the limit".to_owned());
    let expired = Fact::WaitExpired { place, reason, by };
    assert_eq!(w.apply(expired.clone()).await, Answer::Done);
    assert_eq!(w.apply(expired).await, Answer::Stale);
    assert_eq!(w.run_state(runs[1]).await, "cancelled");
}

pub(super) async fn two_runs_in_two_transactions_never_share_the_last_slot(w: &World) {
    let runs = [gated(w, &group("deploy")), gated(w, &group("deploy"))];
    let ids = [runs[0].id, runs[1].id];
    if matches!(w.store.inner.db, Db::Lite { .. }) {
        // A SQLite transaction has the write lock from its first instant: both may only be begun
        // at once.
        let [a, b] = runs.map(|run| start(w, run));
        tokio::join!(a, b);
    } else {
        let [run, other] = runs;
        let mut tx = w.store.inner.db.begin().await.unwrap();
        let of_run = run.concurrency.iter();
        let mut gates = gate::open(&mut tx, "default", w.source, of_run, w.now()).await.unwrap();
        let first = async {
            somebody_waits(w).await;
            let event = w.event(None);
            let seed = crate::create::seed(&event, event.id, &run, &gates, w.now());
            seed::insert(&mut tx, seed, &mut gates.locked, w.now()).await.unwrap();
            tx.commit().await.unwrap();
        };
        tokio::join!(start(w, other), first);
    }
    let mut waiting = BTreeSet::new();
    for id in ids {
        waiting.insert(w.store.jobs_of(id).await.unwrap()[0].state.as_str().to_owned());
    }
    assert_eq!(waiting, BTreeSet::from(["blocked".to_owned(), "queued".to_owned()]));
}

pub(super) async fn two_upstreams_in_two_transactions_never_share_the_last_slot(w: &World) {
    let run = async || {
        let mut behind = w.new_job("b", &[("a", &[Outcome::Success])]);
        behind.concurrency = Some(group("b"));
        let run = w.create("default", vec![w.new_job("a", &[]), behind]).await;
        (run.id, w.start_all().await["a"])
    };
    let [first, second] = [run().await, run().await];
    // Whichever is first, the other one comes to a gate that is full.
    let (a, b) = tokio::join!(w.end(first.1, Outcome::Success), w.end(second.1, Outcome::Success));
    assert_eq!(a, b);
    let mut states = [w.states(first.0).await, w.states(second.0).await];
    states.sort_unstable();
    assert_eq!(states, ["a success, b held", "a success, b queued"]);
}
