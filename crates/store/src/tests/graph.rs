use std::collections::BTreeSet;

use serde_json::json;
use shuntyard_core::apply::{Answer, Decision, Fact, Loaded, decide};
use shuntyard_protocol::{
    DeliveryId, Outcome,
    agent::{AttemptFact, AttemptId},
};

use super::world::{World, end, ended, history};
use crate::{
    NewDelivery, RunFilter, StoreError,
    apply::{ROWS_MAX, load, save},
    claim::CLAIM_MAX,
    db::{Db, Tx},
    spec::IDS_MAX,
};

pub(super) async fn an_event_makes_its_runs_once(w: &World) {
    let delivery = NewDelivery {
        id: DeliveryId::mint(w.now(), w.random()),
        org: "default".to_owned(),
        source: w.source,
        delivery_key: "d1".to_owned(),
        body_digest: None,
        kind: "push".to_owned(),
        headers: json!({}),
        body: b"{}".to_vec(),
    };
    w.store.insert_delivery(&delivery, w.now()).await.unwrap();
    let runs = |names: &[&str]| {
        names.iter().map(|name| w.new_run(name, vec![w.new_job("a", &[])])).collect::<Vec<_>>()
    };
    let create = async |key: Option<&str>, names: &[&str], delivery: Option<DeliveryId>| {
        let event = w.event(key);
        let delivery = delivery.map(|id| (id, "2 runs"));
        w.store.create_runs(&event, runs(names), delivery, 100, w.now()).await.unwrap()
    };
    let first = create(Some("push main 1"), &["ci", "docs"], Some(delivery.id)).await;
    assert_eq!(first.fresh, 2);
    let again = create(Some("push main 1"), &["ci", "docs"], None).await;
    assert_eq!((again.fresh, &again.runs, again.event), (0, &first.runs, first.event));
    let more = create(Some("push main 1"), &["ci", "lint"], None).await;
    assert_eq!((more.fresh, more.runs[0]), (1, first.runs[0]));
    // A delivery that was done is done, even when its event had no key.
    let repeat = create(None, &["ci", "docs"], Some(delivery.id)).await;
    assert_eq!((repeat.fresh, &repeat.runs, repeat.event), (0, &first.runs, first.event));
    let row = w.store.delivery(delivery.id).await.unwrap().unwrap();
    assert_eq!((row.state.as_str(), row.outcome.as_deref()), ("done", Some("2 runs")));
    assert_eq!(row.event_id, Some(first.event));
    let other = create(Some("push main 2"), &["ci"], None).await;
    let numbers = [first.runs[0], first.runs[1], other.runs[0]];
    let mut seen = Vec::new();
    for run in numbers {
        seen.push(w.store.run(run).await.unwrap().unwrap().number);
    }
    assert_eq!(seen, [1, 1, 2], "numbers count per workflow");
}

pub(super) async fn a_full_queue_is_said_and_nothing_is_stored(w: &World) {
    w.run(&[("a", &[]), ("b", &[])]).await;
    let runs = vec![w.new_run("ci", vec![w.new_job("c", &[])])];
    let id = runs[0].id;
    let event = w.event(None);
    let full = w.store.create_runs(&event, runs.clone(), None, 2, w.now()).await.unwrap_err();
    assert!(matches!(full, StoreError::QueueFull { max: 2, .. }), "{full}");
    assert_eq!(w.store.run(id).await.unwrap(), None);
    assert_eq!(w.store.event(event.id).await.unwrap(), None);
    w.store.create_runs(&event, runs, None, 3, w.now()).await.unwrap();
}

pub(super) async fn a_run_that_needs_what_it_has_not_is_refused(w: &World) {
    let job = w.new_job("a", &[("b", &[Outcome::Success])]);
    let runs = vec![w.new_run("ci", vec![job])];
    let error = w.store.create_runs(&w.event(None), runs, None, 9, w.now()).await.unwrap_err();
    assert_eq!(error.to_string(), "a run of workflow 'ci' cannot be stored: job 'a' needs 'b'");
    let runs = vec![w.new_run("ci", Vec::new())];
    assert!(w.store.create_runs(&w.event(None), runs, None, 9, w.now()).await.is_err());
}

pub(super) async fn skips_cascade_through_the_whole_graph(w: &World) {
    let success = &[Outcome::Success][..];
    let names: Vec<String> = (0..40).map(|n| format!("j{n}")).collect();
    let mut jobs = vec![w.new_job(&names[0], &[])];
    for pair in names.windows(2) {
        jobs.push(w.new_job(&pair[1], &[(&pair[0], success)]));
    }
    // Beside the chain: it must not be taken for a group without edges.
    jobs.push(w.new_job("x", &[("j0", success)]));
    jobs.push(w.new_job("y", &[("x", success)]));
    jobs.push(w.new_job("last", &[("j39", &Outcome::ALL), ("y", &Outcome::ALL)]));
    let run = w.create("default", jobs).await;
    let id = w.start_all().await["j0"];
    w.end(id, Outcome::Failed).await;
    let info = w.store.run(run.id).await.unwrap().unwrap();
    assert_eq!((info.n_failed, info.n_skipped, info.n_waiting), (1, 41, 1));
    let last = w.store.job(run.jobs["last"]).await.unwrap().unwrap();
    assert_eq!(last.state.as_str(), "queued");
    w.play(&[]).await;
    assert_eq!(w.run_state(run.id).await, "failed");
}

pub(super) async fn a_fan_out_counts_as_one(w: &World) {
    let matrix = |n: i64| {
        let mut job = w.new_job("m", &[]);
        job.title = format!("m {n}");
        job.matrix = Some(json!({"n": n}));
        job
    };
    let after = |name| w.new_job(name, &[("m", &[Outcome::Success])]);
    let run = w.create("default", vec![matrix(1), matrix(2), after("z")]).await;
    let started = w.start_all().await;
    w.end(started["m 1"], Outcome::Success).await;
    assert_eq!(w.states(run.id).await, "m 1 success, m 2 running, z blocked");
    w.end(started["m 2"], Outcome::Success).await;
    assert_eq!(w.states(run.id).await, "m 1 success, m 2 success, z queued");
    let run = w.create("default", vec![matrix(1), matrix(2), after("z")]).await;
    w.play(&[("m 1", Outcome::Failed)]).await;
    assert_eq!(w.states(run.id).await, "m 1 failed, m 2 success, z skipped");
}

/// One commit, statement by statement.
struct Steps {
    tx: Tx,
    fact: Fact,
}

impl Steps {
    async fn lock(&mut self) -> Loaded {
        let scope = load::Scope::of(std::slice::from_ref(&self.fact));
        load::load(&mut self.tx, &scope, &BTreeSet::new()).await.unwrap().0
    }

    async fn finish(mut self, loaded: Loaded, w: &World) -> Decision {
        let facts = [self.fact.clone()];
        let decision = decide(loaded, &facts, w.now()).unwrap();
        save::save(&mut self.tx, &decision, w.now()).await.unwrap();
        self.tx.commit().await.unwrap();
        decision
    }
}

/// Waits until some connection waits for a row.
pub(super) async fn somebody_waits(w: &World) {
    let Db::Pg(pool) = &w.store.inner.db else { return };
    loop {
        let waiting: i64 = sqlx::query_scalar("select count(*) from pg_locks where not granted")
            .fetch_one(pool)
            .await
            .unwrap();
        if waiting > 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
}

pub(super) async fn two_upstreams_in_two_transactions_never_leave_the_third_blocked(w: &World) {
    let run = w.run(&[("a", &[]), ("b", &[]), ("c", &["a", "b"])]).await;
    let started = w.start_all().await;
    let fact = |title: &str| ended(started[title], 1, Outcome::Success);
    if matches!(w.store.inner.db, Db::Lite { .. }) {
        // A SQLite transaction has the write lock from its first instant: there is nothing to
        // interleave, but both may be begun at once.
        let (a, b) = tokio::join!(w.apply(fact("a")), w.apply(fact("b")));
        assert_eq!(a, b);
    } else {
        let begin = async || w.store.inner.db.begin().await.unwrap();
        let mut a = Steps { tx: begin().await, fact: fact("a") };
        let mut b = Steps { tx: begin().await, fact: fact("b") };
        let loaded_a = a.lock().await;
        let second = async {
            let loaded = b.lock().await;
            b.finish(loaded, w).await
        };
        let first = async {
            somebody_waits(w).await;
            a.finish(loaded_a, w).await
        };
        let (b, a) = tokio::join!(second, first);
        assert!(a.touched.enqueue.is_empty());
        assert_eq!(b.touched.enqueue, [(run.jobs["c"], 1)].into());
    }
    assert_eq!(w.states(run.id).await, "a success, b success, c queued");
}

pub(super) async fn a_run_may_have_more_than_rows_max_jobs(w: &World) {
    let jobs = (0..=ROWS_MAX).map(|n| w.new_job(&format!("j{n}"), &[])).collect();
    let run = w.create("default", jobs).await;
    let mut claimed = w.claim(CLAIM_MAX).await;
    claimed.extend(w.claim(CLAIM_MAX).await);
    let names: Vec<_> = claimed.iter().map(|claim| claim.name.clone()).collect();
    let wanted: Vec<_> = (0..=ROWS_MAX).map(|n| format!("j{n}")).collect();
    assert_eq!(names, wanted);
    let reserved = claimed.iter().map(|claim| w.reserved(claim.id)).collect();
    let answers = w.store.apply(reserved, w.now()).await.unwrap();
    assert!(answers.iter().all(|answer| *answer == Answer::Committed));
    let cancel = Fact::CancelRun {
        run: run.id,
        force: false,
        reason: "too much".to_owned(),
        by: "ann".to_owned(),
    };
    assert_eq!(w.apply(cancel).await, Answer::Done);
}

pub(super) async fn upstream_outputs_reach_a_start(w: &World) {
    let mut child = w.new_job("m", &[]);
    child.matrix = Some(json!({"n": 1}));
    let run = w.create("default", vec![child, w.new_job("z", &[("m", &Outcome::ALL)])]).await;
    let id = w.start_all().await["m"];
    let mut end = end(Outcome::Failed);
    end.outputs = Some(json!({"step": {"x": 1}}));
    w.apply(history(id, 1, AttemptFact::Ended(end))).await;
    let z: AttemptId = w.start_all().await["z"];
    let spec = {
        let mut ids: Vec<_> = (0..IDS_MAX).map(|_| w.job_id()).collect();
        ids.push(z.job);
        w.store.specs_for(&ids).await.unwrap()
    };
    assert_eq!(spec.keys().collect::<Vec<_>>(), [&z.job], "jobs that do not exist are left out");
    let spec = &spec[&z.job];
    let upstream = &spec.needs["m"][0];
    assert_eq!(upstream.outcome, Some(Outcome::Failed));
    assert_eq!(upstream.outputs, Some(json!({"step": {"x": 1}})));
    assert_eq!(upstream.matrix, Some(json!({"n": 1})));
    assert_eq!((spec.run.id, spec.event.id), (run.id, run.event));
    assert_eq!(spec.run.env["A"], "b");
    assert_eq!(spec.job.spec["name"], "z");
    let edges = w.store.edges_of(run.id).await.unwrap();
    assert_eq!((edges.len(), edges[0].upstream.as_str()), (1, "m"));
}

pub(super) async fn runs_are_listed_by_page(w: &World) {
    let mut ids = Vec::new();
    for (n, name) in (0..).zip(["a", "b", "c", "d", "e"]) {
        ids.push(w.run(&[(name, &[])]).await.id);
        w.pass(n % 2);
    }
    ids.reverse();
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = w.store.list_runs(&RunFilter::default(), after, 2).await.unwrap();
        seen.extend(page.items.iter().map(|run| run.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, ids);
    let open = w.store.open_runs(None).await.unwrap();
    ids.reverse();
    assert_eq!(open.iter().map(|run| run.id).collect::<Vec<_>>(), ids);
    let rest = w.store.open_runs(Some(ids[3])).await.unwrap();
    assert_eq!((rest.len(), rest[0].id, rest[0].started_at), (1, ids[4], None));
    w.play(&[]).await;
    assert_eq!(w.store.open_runs(None).await.unwrap(), []);
    let branch = |name: &str| RunFilter { branch: Some(name.to_owned()), ..RunFilter::default() };
    assert_eq!(w.store.list_runs(&branch("dev"), None, 9).await.unwrap().items, []);
    assert_eq!(w.store.list_runs(&branch("main"), None, 9).await.unwrap().items.len(), 5);
}
