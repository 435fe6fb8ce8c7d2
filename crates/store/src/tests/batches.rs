use std::fmt::Write as _;

use proptest::{
    collection,
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, TestRunner},
};
use shuntyard_core::apply::{Answer, Counts, Fact};
use shuntyard_protocol::{Outcome, RunId, Timestamp, agent::AttemptId};

use super::world::{TestRun, World, agent, ended, key};
use crate::{
    Change,
    apply::batch::BATCH_MAX,
    db::{Db, on},
};

pub(super) async fn many_submitters_share_commits(w: &World) {
    let names: Vec<String> = (0..60).map(|n| format!("j{n}")).collect();
    let jobs: Vec<(&str, &[&str])> = names.iter().map(|name| (name.as_str(), &[][..])).collect();
    let run = w.run(&jobs).await;
    let mut tasks = tokio::task::JoinSet::new();
    for claim in w.claim(500).await {
        let (reserved, begin) = (w.reserved(claim.id), w.begin(claim.id));
        let store = w.store.clone();
        tasks.spawn(async move {
            assert_eq!(store.submit(reserved).await.unwrap(), Answer::Committed);
            assert!(matches!(store.submit(begin).await.unwrap(), Answer::Begun { .. }));
            let end = ended(claim.id, 1, Outcome::Success);
            assert_eq!(store.submit(end).await.unwrap(), Answer::Acked { seq: 1 });
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let info = w.store.run(run.id).await.unwrap().unwrap();
    assert_eq!((info.state.as_str(), info.n_success), ("success", 60));
}

/// Counters and rows say the same.
async fn check_counters(w: &World, run: RunId) {
    let info = w.store.run(run).await.unwrap().unwrap();
    let mut counts = Counts::default();
    for job in w.store.jobs_of(run).await.unwrap() {
        *counts.slot(job.state, job.continue_on_error) += 1;
    }
    let stored = Counts {
        waiting: info.n_waiting,
        running: info.n_running,
        success: info.n_success,
        failed: info.n_failed,
        timed_out: info.n_timed_out,
        cancelled: info.n_cancelled,
        skipped: info.n_skipped,
        lost: info.n_lost,
        tolerated: info.n_tolerated,
    };
    assert_eq!(stored, counts);
    assert_eq!(info.state.is_ended(), counts.open() == 0);
}

/// Claims and plays jobs until the queue stays empty; every third fails.
async fn player(w: &World) {
    loop {
        let claimed = w.claim(3).await;
        if claimed.is_empty() {
            return;
        }
        for claim in claimed {
            let id = claim.id;
            if w.store.submit(w.reserved(id)).await.unwrap() != Answer::Committed {
                continue;
            }
            let Answer::Begun { .. } = w.store.submit(w.begin(id)).await.unwrap() else { continue };
            let outcome =
                if id.job.uuid().as_u128() % 3 == 0 { Outcome::Failed } else { Outcome::Success };
            let answer = w.store.submit(ended(id, 1, outcome)).await.unwrap();
            assert_eq!(answer, Answer::Acked { seq: 1 });
        }
    }
}

pub(super) async fn a_crowd_of_writers_keeps_the_counters_true(w: &World) {
    let mut runs = Vec::new();
    for _ in 0..12 {
        runs.push(w.run(&[("a", &[]), ("b", &["a"]), ("c", &["a"]), ("d", &["b", "c"])]).await.id);
    }
    let canceller = async {
        for &run in runs.iter().step_by(4) {
            let text = "stop".to_owned();
            let fact = Fact::CancelRun { run, force: false, reason: text.clone(), by: text };
            w.store.submit(fact).await.unwrap();
        }
    };
    tokio::join!(player(w), player(w), player(w), player(w), canceller);
    player(w).await;
    for run in runs {
        check_counters(w, run).await;
        assert_eq!(w.store.run(run).await.unwrap().unwrap().n_waiting, 0);
    }
}

/// Makes the database refuse jobs with the reason "poison".
async fn poison(w: &World) {
    const LITE: &str = "create trigger poison before update on job when new.reason = 'poison' \
        begin select raise(abort, 'poison'); end";
    const PG: &str = "alter table job add constraint poison check (reason <> 'poison')";
    let mut tx = w.store.inner.db.begin().await.unwrap();
    let text = if tx.is_pg() { PG } else { LITE };
    on!(&mut tx, Db, c => sqlx::query(text).execute(c).await.map(drop)).unwrap();
    tx.commit().await.unwrap();
}

pub(super) async fn a_fact_that_cannot_be_stored_is_parked_alone(w: &World) {
    let run = w.run(&[("a", &[]), ("b", &[]), ("c", &[]), ("d", &[]), ("e", &[])]).await;
    poison(w).await;
    let expire = |title: &str, reason: &str| Fact::QueueExpired {
        job: run.jobs[title],
        reason: reason.to_owned(),
    };
    let facts = vec![
        expire("a", "late"),
        expire("b", "late"),
        expire("c", "poison"),
        expire("d", "late"),
        expire("d", "late"),
    ];
    let answers = w.store.apply(facts, w.now()).await.unwrap();
    assert!(matches!(&answers[2], Answer::Failed { reason } if reason.contains("poison")));
    let others = [&answers[0], &answers[1], &answers[3], &answers[4]];
    assert_eq!(others, [&Answer::Done, &Answer::Done, &Answer::Done, &Answer::Stale]);
    assert_eq!(w.states(run.id).await, "a failed, b failed, c queued, d failed, e queued");
}

pub(super) async fn more_than_batch_max_facts_are_several_transactions(w: &World) {
    let run = w.run(&[("a", &[])]).await;
    let fact = Fact::QueueExpired { job: run.jobs["a"], reason: "late".to_owned() };
    let answers = w.store.apply(vec![fact; BATCH_MAX + 1], w.now()).await.unwrap();
    assert_eq!(answers.len(), BATCH_MAX + 1);
    assert_eq!(answers.iter().filter(|answer| **answer == Answer::Done).count(), 1);
    assert_eq!(answers[0], Answer::Done);
}

pub(super) async fn changes_are_hinted(w: &World) {
    let mut changes = w.store.changes();
    let run = w.run(&[("a", &[])]).await;
    let created = Change { runs: vec![run.id], queue_ready: true, ..Change::default() };
    assert_eq!(changes.recv().await.unwrap(), created);
    let id = w.start_all().await["a"];
    while !changes.is_empty() {
        changes.recv().await.unwrap();
    }
    w.end(id, Outcome::Success).await;
    let ended = Change { runs: vec![run.id], ended: vec![id], ..Change::default() };
    assert_eq!(changes.recv().await.unwrap(), ended);
}

/// Facts about the four jobs of a run, by place.
#[derive(Clone, Debug)]
struct Pick {
    job: usize,
    attempt: u32,
    kind: u8,
    seq: u64,
    outcome: Outcome,
}

fn picks() -> impl Strategy<Value = Vec<Pick>> {
    let outcome = prop::sample::select(Outcome::ALL.to_vec());
    let pick = (0_usize..4, 1_u32..3, 0_u8..9, 1_u64..3, outcome)
        .prop_map(|(job, attempt, kind, seq, outcome)| Pick { job, attempt, kind, seq, outcome });
    collection::vec(pick, 1..25)
}

fn fact(w: &World, run: &TestRun, pick: &Pick) -> Fact {
    let job = *run.jobs.values().nth(pick.job).unwrap();
    let id = AttemptId { job, attempt: pick.attempt };
    let text = "r".to_owned();
    match pick.kind {
        0 => w.reserved(id),
        1 | 2 => w.begin(id),
        3 => Fact::Refused { id, agent: agent(2), reason: text },
        4 => Fact::Abandoned { id, agent: agent(1), reason: text },
        5 | 6 => ended(id, pick.seq, pick.outcome),
        7 => Fact::Renewed { id, key_hash: key(id), release_at: Timestamp(w.now().0 + 9) },
        _ if pick.seq == 1 => Fact::CancelJob { job, force: false, reason: text.clone(), by: text },
        _ => Fact::QueueExpired { job, reason: text },
    }
}

/// Everything about a run that does not name its ids.
async fn dump(w: &World, run: &TestRun) -> String {
    let mut text = String::new();
    let info = w.store.run(run.id).await.unwrap().unwrap();
    write!(text, "{} {} {} ", info.state, info.n_waiting, info.n_running).unwrap();
    write!(text, "{} {} {}", info.n_success, info.n_failed, info.n_skipped).unwrap();
    for job in w.store.jobs_of(run.id).await.unwrap() {
        write!(text, "\n{} {} {:?} ", job.title, job.state, job.reason).unwrap();
        write!(text, "{} {} {}", job.attempt, job.try_no, job.waiting_for).unwrap();
        for attempt in w.store.attempts_of(job.id).await.unwrap() {
            write!(text, "\n  {} {} {:?}", attempt.state, attempt.seq, attempt.late).unwrap();
        }
    }
    let queued = w.store.queue(None, 100, w.now()).await.unwrap();
    let titles: Vec<_> =
        queued.iter().filter(|row| row.run_id == run.id).map(|row| &row.title).collect();
    write!(text, "\nqueue {titles:?}").unwrap();
    text
}

async fn fresh_run(w: &World) -> TestRun {
    let run = w.run(&[("a", &[]), ("b", &[]), ("c", &["a", "b"]), ("d", &["c"])]).await;
    w.claim(500).await;
    run
}

pub(super) async fn a_batch_means_what_its_facts_mean_one_by_one(w: &World) {
    let rounds = if matches!(w.store.inner.db, Db::Pg(_)) { 12 } else { 40 };
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    );
    for _ in 0..rounds {
        let picks = picks().new_tree(&mut runner).unwrap().current();
        let (batch, singly) = (fresh_run(w).await, fresh_run(w).await);
        let facts = picks.iter().map(|pick| fact(w, &batch, pick)).collect();
        let together = w.store.apply(facts, w.now()).await.unwrap();
        let mut alone = Vec::new();
        for pick in &picks {
            alone.push(w.apply(fact(w, &singly, pick)).await);
        }
        assert_eq!(together, alone, "{picks:#?}");
        assert_eq!(dump(w, &batch).await, dump(w, &singly).await, "{picks:#?}");
    }
}
