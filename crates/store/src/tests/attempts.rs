use serde_json::json;
use shuntyard_core::{
    apply::{Answer, Fact, Retry},
    state::OutcomeSet,
};
use shuntyard_protocol::{
    Outcome, Timestamp,
    agent::{AttemptFact, Verdict},
};

use super::world::{RELEASE, World, agent, ended, history, key, step_end};
use crate::{Due, HeldAttempt, Overdue};

pub(super) async fn a_job_goes_from_the_queue_to_success(w: &World) {
    let run = w.run(&[("a", &[])]).await;
    assert_eq!(w.run_state(run.id).await, "pending");
    let id = w.start_all().await["a"];
    assert_eq!(w.run_state(run.id).await, "running");
    let revision = w.store.run(run.id).await.unwrap().unwrap().revision;
    w.apply(history(id, 1, AttemptFact::StepStarted { step: 0, at: Timestamp(3) })).await;
    w.apply(history(id, 2, step_end(0, Outcome::Success, Some(json!({"x": 1}))))).await;
    w.apply(history(id, 3, AttemptFact::StepStarted { step: 1, at: Timestamp(4) })).await;
    assert_eq!(w.apply(ended(id, 4, Outcome::Success)).await, Answer::Acked { seq: 4 });
    let steps = w.store.steps_of(id).await.unwrap();
    assert_eq!(steps[0].outputs, Some(json!({"x": 1})));
    assert_eq!(steps[0].error.as_deref(), Some("a\u{fffd}b"), "PostgreSQL stores no NUL in text");
    assert_eq!(steps[1].state.as_str(), "success", "a step ends with its attempt");
    let info = w.store.run(run.id).await.unwrap().unwrap();
    assert_eq!((info.state.as_str(), info.n_success, info.n_running), ("success", 1, 0));
    assert_eq!(info.revision, revision + 4);
    assert_eq!(info.number, 1);
    assert_eq!(info.title.as_deref(), Some("a\u{fffd}b"));
    let attempts = w.store.attempts_of(id.job).await.unwrap();
    assert_eq!((attempts.len(), attempts[0].seq), (1, 4));
    assert_eq!(w.store.queue(None, 10, w.now()).await.unwrap(), []);
}

pub(super) async fn facts_that_come_twice_or_late_change_nothing(w: &World) {
    let run = w.run(&[("a", &[])]).await;
    let id = w.claim(1).await[0].id;
    for _ in 0..2 {
        assert_eq!(w.apply(w.reserved(id)).await, Answer::Committed);
    }
    for _ in 0..2 {
        assert!(matches!(w.apply(w.begin(id)).await, Answer::Begun { .. }));
    }
    assert_eq!(w.apply(ended(id, 2, Outcome::Success)).await, Answer::Gap { have: 0 });
    for _ in 0..2 {
        assert_eq!(w.apply(ended(id, 1, Outcome::Success)).await, Answer::Acked { seq: 1 });
    }
    assert_eq!(w.apply(w.begin(id)).await, Answer::Superseded);
    assert_eq!(w.apply(w.reserved(id)).await, Answer::Superseded);
    assert_eq!(w.apply(Fact::Lost { id, contained: true }).await, Answer::Stale);
    let wrong = Fact::Renewed { id, key_hash: [0; 32], release_at: w.now() };
    assert_eq!(w.apply(wrong).await, Answer::Superseded);
    let unknown = Fact::QueueExpired { job: w.job_id(), reason: String::new() };
    assert_eq!(w.apply(unknown).await, Answer::Unknown);
    assert_eq!(w.states(run.id).await, "a success");
}

pub(super) async fn begin_after_the_release_of_a_start_is_refused(w: &World) {
    w.run(&[("a", &[])]).await;
    let id = w.claim(1).await[0].id;
    w.apply(w.reserved(id)).await;
    w.pass(15_000);
    assert_eq!(w.apply(Fact::StartExpired { id }).await, Answer::Done);
    assert_eq!(w.apply(w.begin(id)).await, Answer::Superseded);
    let again = &w.claim(1).await[0];
    assert_eq!((again.id.job, again.id.attempt), (id.job, 2));
    assert_eq!(again.refused, [agent(1)]);
}

pub(super) async fn a_late_result_is_kept_on_its_attempt_only(w: &World) {
    let run = w.run(&[("a", &[]), ("b", &["a"])]).await;
    let id = w.start_all().await["a"];
    let lost = Fact::Lost { id, contained: true };
    assert_eq!(w.apply(lost.clone()).await, Answer::Stale);
    w.pass(RELEASE);
    assert_eq!(w.apply(lost).await, Answer::Done);
    assert_eq!(w.states(run.id).await, "a lost, b skipped");
    assert_eq!(w.end(id, Outcome::Success).await, Answer::Acked { seq: 1 });
    assert_eq!(w.states(run.id).await, "a lost, b skipped");
    let attempt = &w.store.attempts_of(id.job).await.unwrap()[0];
    assert_eq!((attempt.state.as_str(), attempt.late), ("lost", Some(Outcome::Success)));
    assert_eq!(w.run_state(run.id).await, "lost");
}

pub(super) async fn a_try_that_failed_is_made_again_at_the_end_of_the_queue(w: &World) {
    let mut job = w.new_job("a", &[]);
    job.retry = Retry { max_tries: 2, on: OutcomeSet::NONE.with(Outcome::Failed) };
    let run = w.create("default", vec![job, w.new_job("b", &[])]).await;
    let first = w.claim(1).await[0].id;
    assert_eq!(first.job, run.jobs["a"]);
    w.apply(w.reserved(first)).await;
    w.apply(w.begin(first)).await;
    w.end(first, Outcome::Failed).await;
    let claimed = w.claim(5).await;
    let titles: Vec<_> = claimed.iter().map(|claim| claim.title.as_str()).collect();
    assert_eq!(titles, ["b", "a"]);
    assert_eq!(claimed[1].id.attempt, 2);
    let job = w.store.job(first.job).await.unwrap().unwrap();
    assert_eq!((job.try_no, job.reason.as_deref()), (2, Some("try 1 ended: failed")));
}

pub(super) async fn what_one_batch_queues_stands_in_the_order_of_its_facts(w: &World) {
    let retry = Retry { max_tries: 2, on: OutcomeSet::NONE.with(Outcome::Failed) };
    let jobs = ["a", "b", "c"].map(|name| {
        let mut job = w.new_job(name, &[]);
        job.retry = retry;
        job
    });
    w.create("default", jobs.into()).await;
    let ids = w.start_all().await;
    let facts = ["b", "c", "a"].map(|name| ended(ids[name], 1, Outcome::Failed));
    w.store.apply(facts.into(), w.now()).await.unwrap();
    let titles: Vec<_> = w.claim(5).await.into_iter().map(|claim| claim.title).collect();
    assert_eq!(titles, ["b", "c", "a"]);
}

pub(super) async fn a_cancelled_run_ends_when_its_attempts_have(w: &World) {
    let run = w.run(&[("a", &[]), ("b", &[]), ("c", &["a"])]).await;
    let running = w.claim(1).await[0].id;
    w.apply(w.reserved(running)).await;
    w.apply(w.begin(running)).await;
    let cancel = Fact::CancelRun {
        run: run.id,
        force: false,
        reason: "not needed".to_owned(),
        by: "ann".to_owned(),
    };
    assert_eq!(w.apply(cancel.clone()).await, Answer::Done);
    assert_eq!(w.states(run.id).await, "a running, b cancelled, c cancelled");
    assert_eq!(w.run_state(run.id).await, "cancelling");
    assert_eq!(w.store.queue(None, 10, w.now()).await.unwrap(), []);
    let cancels = w.store.cancels_for(agent(1)).await.unwrap();
    assert_eq!((cancels[0].id, cancels[0].reason.as_str()), (running, "not needed"));
    w.end(running, Outcome::Cancelled).await;
    assert_eq!(w.run_state(run.id).await, "cancelled");
    assert_eq!(w.store.cancels_for(agent(1)).await.unwrap(), []);
    assert_eq!(w.apply(cancel).await, Answer::Stale);
}

pub(super) async fn what_is_overdue_is_found(w: &World) {
    w.run(&[("a", &[]), ("b", &[]), ("c", &[]), ("d", &[])]).await;
    let started = w.claim(3).await;
    let [offered, starting, running] = [0, 1, 2].map(|n: usize| started[n].id);
    w.apply(w.reserved(starting)).await;
    w.apply(w.reserved(running)).await;
    w.apply(w.begin(running)).await;
    let due = async |renewed: i64, queued: Option<i64>| {
        let overdue = Overdue {
            renewed_before: Timestamp(w.now().0 - renewed),
            queued_before: queued.map(|ms| Timestamp(w.now().0 - ms)),
            waits_before: None,
        };
        w.store.due(overdue, 100, w.now()).await.unwrap()
    };
    assert_eq!(due(45_000, Some(1000)).await, []);
    assert_eq!(w.store.next_due().await.unwrap(), Some(Timestamp(w.now().0 + 5000)));
    w.pass(46_000);
    let found = due(45_000, Some(46_001)).await;
    let by = Some(agent(1));
    assert!(found.contains(&Due::Offer { id: offered }));
    assert!(found.contains(&Due::Start { id: starting, agent: by }));
    assert!(found.contains(&Due::Renewal { id: running, agent: by }));
    assert_eq!(found.len(), 3);
    let overdue = Fact::Overdue { id: running, renewed_before: Timestamp(w.now().0 - 45_000) };
    assert_eq!(w.apply(overdue).await, Answer::Done);
    assert_eq!(due(45_000, None).await.len(), 2, "it is recovering now");
    assert!(matches!(due(45_000, Some(0)).await[2], Due::Queue { .. }));
    w.pass(RELEASE);
    let release = Due::Release { id: running, agent: by, containment: None };
    assert!(due(45_000, None).await.contains(&release));
}

pub(super) async fn a_run_that_takes_too_long_is_found_until_it_is_cancelled(w: &World) {
    let mut limited = w.new_run("ci", vec![w.new_job("a", &[])]);
    limited.timeout_ms = Some(60_000);
    let run = limited.id;
    w.store.create_runs(&w.event(None), vec![limited], None, 10_000, w.now()).await.unwrap();
    let overdue = Overdue { renewed_before: Timestamp(0), queued_before: None, waits_before: None };
    let due = async || w.store.due(overdue, 100, w.now()).await.unwrap();
    let wanted = Due::Run { run, timeout_ms: 60_000 };
    w.pass(600_000);
    assert!(!due().await.contains(&wanted), "waiting does not count");
    w.start_all().await;
    w.pass(59_000);
    assert!(!due().await.contains(&wanted));
    w.pass(1_000);
    assert!(due().await.contains(&wanted));
    let (reason, by) = ("timed out".to_owned(), "limit".to_owned());
    w.apply(Fact::CancelRun { run, force: false, reason, by }).await;
    assert!(!due().await.contains(&wanted));
}

pub(super) async fn an_agent_gets_its_attempts_back(w: &World) {
    w.run(&[("a", &[]), ("b", &[]), ("c", &[])]).await;
    let started = w.start_all().await;
    let [a, b, c] = ["a", "b", "c"].map(|title| started[title]);
    w.end(b, Outcome::Success).await;
    w.pass(RELEASE);
    w.apply(Fact::Lost { id: c, contained: true }).await;
    let held = |id, key_hash| HeldAttempt { id, key_hash };
    let list = [held(a, Some(key(a))), held(b, Some(key(b))), held(c, Some(key(c)))];
    let verdicts = w.store.reconcile(agent(1), w.instance, &list).await.unwrap();
    let log = std::collections::BTreeMap::new();
    assert_eq!(
        verdicts,
        [
            Verdict::Keep { id: a, log: log.clone(), facts: 0 },
            Verdict::Finish { id: b, log: log.clone(), facts: 1 },
            Verdict::Finish { id: c, log: log.clone(), facts: 0 },
        ]
    );
    let kill = |id| vec![Verdict::Kill { id }];
    let judge = async |by, held| w.store.reconcile(by, w.instance, &[held]).await.unwrap();
    assert_eq!(judge(agent(2), held(a, Some(key(a)))).await, kill(a), "not its own");
    assert_eq!(judge(agent(1), held(a, Some([0; 32]))).await, kill(a), "a wrong key");
    assert_eq!(judge(agent(1), held(b, None)).await, kill(b), "it began long ago");
    assert!(matches!(judge(agent(1), held(a, None)).await[..], [Verdict::Keep { .. }]));
}
