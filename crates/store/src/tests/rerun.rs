use serde_json::json;
use shuntyard_core::apply::Fact;
use shuntyard_protocol::{Outcome, RunId, agent::AttemptFact};

use super::world::{World, end, history};
use crate::{Rerun, StoreError};

async fn rerun(w: &World, old: RunId, only_failed: bool, id: RunId) -> Result<Rerun, StoreError> {
    w.store.rerun(old, only_failed, id, || w.job_id(), w.now()).await
}

pub(super) async fn all_jobs_run_again(w: &World) {
    let run = w.run(&[("a", &[]), ("b", &["a"])]).await;
    let id = RunId::mint(w.now(), w.random());
    let error = rerun(w, run.id, false, id).await.unwrap_err();
    assert!(error.to_string().contains("it has not ended"), "{error}");
    w.play(&[]).await;
    let error = rerun(w, run.id, true, id).await.unwrap_err();
    assert!(error.to_string().contains("nothing of it failed"), "{error}");
    assert!(rerun(w, id, false, run.id).await.is_ok_and(|rerun| rerun.again == 2), "it is known");
    let expected = Rerun { run: id, again: 2, carried: 0 };
    for _ in 0..2 {
        assert_eq!(rerun(w, run.id, false, id).await.unwrap(), expected);
    }
    assert_eq!(w.states(id).await, "a queued, b blocked");
    let info = w.store.run(id).await.unwrap().unwrap();
    assert_eq!((info.number, info.rerun_of, info.event_id), (2, Some(run.id), run.event));
    w.play(&[]).await;
    assert_eq!(w.run_state(id).await, "success");
}

pub(super) async fn only_what_failed_and_what_is_behind_it_runs_again(w: &World) {
    let always = &Outcome::ALL[..];
    let success = &[Outcome::Success][..];
    let jobs = vec![
        w.new_job("a", &[]),
        w.new_job("b", &[("a", always)]),
        w.new_job("c", &[]),
        w.new_job("d", &[("b", success)]),
        w.new_job("e", &[("c", success)]),
        w.new_job("f", &[]),
        w.new_job("g", &[("f", success), ("e", always)]),
    ];
    let run = w.create("default", jobs).await;
    let outcomes = [("a", Outcome::Failed), ("c", Outcome::Cancelled)];
    let mut started = w.start_all().await;
    let f = started.remove("f").unwrap();
    let mut result = end(Outcome::Success);
    result.outputs = Some(json!({"x": 1}));
    w.apply(history(f, 1, AttemptFact::Ended(result))).await;
    for (title, outcome) in outcomes {
        w.end(started[title], outcome).await;
    }
    w.play(&[]).await;
    assert_eq!(
        w.states(run.id).await,
        "a failed, b success, c cancelled, d success, e skipped, f success, g success"
    );
    let id = RunId::mint(w.now(), w.random());
    let again = rerun(w, run.id, true, id).await.unwrap();
    assert_eq!(again, Rerun { run: id, again: 6, carried: 1 });
    assert_eq!(
        w.states(id).await,
        "a queued, b blocked, c queued, d blocked, e blocked, f success, g blocked"
    );
    w.play(&[]).await;
    assert_eq!(w.run_state(id).await, "success");
    let jobs = w.store.jobs_of(id).await.unwrap();
    let g = jobs.iter().find(|job| job.title == "g").unwrap();
    let needs = w.store.upstreams(g.id).await.unwrap();
    assert_eq!(needs["f"][0].outputs, Some(json!({"x": 1})), "outputs are taken over");
}

pub(super) async fn what_was_cancelled_is_skipped_again_when_its_edge_says_so(w: &World) {
    let failed = &[Outcome::Failed][..];
    let jobs = vec![
        w.new_job("a", &[]),
        w.new_job("b", &[("a", failed)]),
        w.new_job("c", &[("b", &[Outcome::Skipped])]),
        w.new_job("d", &[]),
    ];
    let run = w.create("default", jobs).await;
    let started = w.start_all().await;
    cancel(w, run.id).await;
    w.end(started["a"], Outcome::Success).await;
    w.end(started["d"], Outcome::Cancelled).await;
    assert_eq!(w.states(run.id).await, "a success, b cancelled, c cancelled, d cancelled");
    let id = RunId::mint(w.now(), w.random());
    rerun(w, run.id, true, id).await.unwrap();
    assert_eq!(w.states(id).await, "a success, b skipped, c queued, d queued");
    let jobs = w.store.jobs_of(id).await.unwrap();
    assert_eq!(jobs[1].reason.as_deref(), Some("'a' ended as success"));
    w.play(&[]).await;
    assert_eq!(w.run_state(id).await, "success");

    let run =
        w.create("default", vec![w.new_job("a", &[]), w.new_job("b", &[("a", failed)])]).await;
    let started = w.start_all().await;
    cancel(w, run.id).await;
    w.end(started["a"], Outcome::Success).await;
    let id = RunId::mint(w.now(), w.random());
    let refused = rerun(w, run.id, true, id).await.unwrap_err().to_string();
    assert!(refused.contains("nothing of it would run again"), "{refused}");
}

async fn cancel(w: &World, run: RunId) {
    let reason = "enough".to_owned();
    w.apply(Fact::CancelRun { run, force: false, reason, by: "ann".to_owned() }).await;
}
