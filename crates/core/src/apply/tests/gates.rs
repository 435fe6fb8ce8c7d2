//! Runs and jobs at gates.

use super::*;
use crate::gate::{Gate, Place, Ticket};

const GATE: i64 = 7;

const TICKET: Option<Ticket> = Some(Ticket { gate: GATE, cancels: false });

/// `a` runs; `b` and `c` wait for it, and have to pass a gate.
fn two_behind(slots: u32) -> (Loaded, AttemptId) {
    let mut loaded =
        world(&[spec("a", &[]), spec("b", &[("a", SUCCESS)]), spec("c", &[("a", SUCCESS)])]);
    for n in [1, 2] {
        loaded.jobs.get_mut(&job_id(n)).unwrap().ticket = TICKET;
    }
    loaded.gates.insert(GATE, Gate { slots, ..Gate::default() });
    let id = start(&mut loaded, 0);
    (loaded, id)
}

fn state(loaded: &Loaded, n: usize) -> &'static str {
    loaded.jobs[&job_id(n)].state.as_str()
}

#[test]
fn a_ready_job_takes_a_slot_or_waits_for_one() {
    let (loaded, id) = two_behind(1);
    let decision = decide(loaded, &[ended(id, 1, Outcome::Success)], Timestamp(5)).unwrap();
    let (loaded, touched) = (decision.loaded, decision.touched);
    assert_eq!([state(&loaded, 1), state(&loaded, 2)], ["queued", "held"]);
    assert_eq!(touched.entered, [(job_id(1), true), (job_id(2), false)].into());
    assert_eq!(touched.enqueue, [(job_id(1), 1)].into());
    assert_eq!(loaded.jobs[&job_id(2)].queued_at, None);
    assert_eq!((touched.left.len(), touched.wakes.len()), (0, 0));
    let facts = [Fact::Admitted { place: Place::Job(job_id(2)) }];
    let full = decide(loaded.clone(), &facts, Timestamp(6)).unwrap();
    assert_eq!(full.answers, [Answer::Stale], "the slot is taken");
    let cancel = Fact::CancelJob {
        job: job_id(1),
        force: false,
        reason: "stop".to_owned(),
        by: "me".to_owned(),
    };
    let gone = decide(loaded, &[cancel], Timestamp(7)).unwrap();
    assert_eq!(gone.touched.left, [Place::Job(job_id(1))].into());
    assert_eq!(gone.touched.wakes, [GATE].into());
    let let_go = decide(gone.loaded, &facts, Timestamp(8)).unwrap();
    assert_eq!(let_go.touched.enqueue, [(job_id(2), 1)].into());
    assert_eq!(let_go.loaded.jobs[&job_id(2)].queued_at, Some(Timestamp(8)));
}

#[test]
fn without_the_lock_of_its_gate_a_job_waits_for_the_reconciler() {
    let (mut loaded, id) = two_behind(2);
    loaded.gates.clear();
    let decision = decide(loaded, &[ended(id, 1, Outcome::Success)], Timestamp(5)).unwrap();
    assert_eq!([state(&decision.loaded, 1), state(&decision.loaded, 2)], ["held", "held"]);
    assert_eq!(decision.touched.wakes, [GATE].into());
}

#[test]
fn another_try_keeps_the_slot() {
    let (mut loaded, id) = two_behind(1);
    let retry = Retry { max_tries: 2, on: OutcomeSet::ALL };
    loaded.jobs.get_mut(&job_id(1)).unwrap().retry = retry;
    apply(&mut loaded, ended(id, 1, Outcome::Success), 5);
    let id = start(&mut loaded, 1);
    let decision = decide(loaded, &[ended(id, 1, Outcome::Failed)], Timestamp(6)).unwrap();
    assert_eq!(state(&decision.loaded, 1), "queued");
    assert_eq!((decision.touched.left.len(), decision.loaded.gates[&GATE].holding), (0, 1));
}

#[test]
fn a_run_that_waits_holds_all_its_jobs_back() {
    let mut loaded = world(&[spec("a", &[]), spec("b", &[("a", OutcomeSet::ALL)])]);
    loaded.gates.insert(GATE, Gate { slots: 1, holding: 0, waiting: 1 });
    let run = loaded.runs.get_mut(&run_id()).unwrap();
    (run.ticket, run.held) = (TICKET, true);
    for job in loaded.jobs.values_mut() {
        (job.state, job.waiting_for) = (JobState::Blocked, job.waiting_for + 1);
    }
    let cancel = |n| Fact::CancelJob {
        job: job_id(n),
        force: false,
        reason: "stop".to_owned(),
        by: "me".to_owned(),
    };
    let mut left = loaded.clone();
    apply(&mut left, cancel(0), 4);
    assert_eq!(state(&left, 1), "blocked", "its need is met, and its run still waits");
    let decision = decide(left, &[cancel(1)], Timestamp(5)).unwrap();
    assert_eq!(decision.touched.left, [Place::Run(run_id())].into());
    assert_eq!(decision.loaded.gates[&GATE].waiting, 0);

    let admitted = Fact::Admitted { place: Place::Run(run_id()) };
    assert_eq!(apply(&mut loaded, admitted.clone(), 6), Answer::Done);
    assert_eq!([state(&loaded, 0), state(&loaded, 1)], ["queued", "blocked"]);
    assert_eq!(apply(&mut loaded, admitted, 7), Answer::Stale);
    assert_eq!(loaded.gates[&GATE], Gate { slots: 1, holding: 1, waiting: 0 });
}

#[test]
fn a_wait_expires_only_while_it_lasts() {
    let (mut loaded, id) = two_behind(1);
    apply(&mut loaded, ended(id, 1, Outcome::Success), 5);
    let expired = |n| Fact::WaitExpired {
        place: Place::Job(job_id(n)),
        reason: "too long".to_owned(),
        by: "the group".to_owned(),
    };
    assert_eq!(apply(&mut loaded, expired(1), 6), Answer::Stale, "it has its slot");
    assert_eq!(apply(&mut loaded, expired(2), 6), Answer::Done);
    assert_eq!(loaded.jobs[&job_id(2)].reason.as_deref(), Some("too long"));
    assert_eq!(state(&loaded, 2), "cancelled");
}
