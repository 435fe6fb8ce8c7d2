use std::collections::BTreeMap;

use shuntyard_protocol::{
    Outcome,
    agent::{End, StepEnd},
};

use super::*;
use crate::state::{AttemptState, JobState, OutcomeSet, RunState};

mod batches;
mod gates;

const SUCCESS: OutcomeSet = OutcomeSet::NONE;

fn run_id() -> RunId {
    RunId::mint(Timestamp(1), [0; 10])
}

fn agent(n: u8) -> AgentId {
    AgentId::mint(Timestamp(1), [n; 10])
}

fn job_id(n: usize) -> JobId {
    JobId::mint(Timestamp(1), [u8::try_from(n).unwrap(); 10])
}

fn key(id: AttemptId) -> KeyHash {
    let mut key = [0; 32];
    key[..16].copy_from_slice(id.job.uuid().as_bytes());
    key[16] = u8::try_from(id.attempt).unwrap();
    key
}

/// A job of a test graph: its group, and the groups it needs. `NONE` stands for on-success.
struct Spec {
    group: &'static str,
    needs: Vec<(&'static str, OutcomeSet)>,
}

fn spec(group: &'static str, needs: &[(&'static str, OutcomeSet)]) -> Spec {
    Spec { group, needs: needs.to_vec() }
}

fn world(specs: &[Spec]) -> Loaded {
    let mut loaded = Loaded::default();
    let waiting = u32::try_from(specs.len()).unwrap();
    loaded.runs.insert(
        run_id(),
        Run {
            state: RunState::Pending,
            counts: Counts { waiting, ..Counts::default() },
            cancel: None,
            ticket: None,
            held: false,
            started_at: None,
            ended_at: None,
        },
    );
    for (n, spec) in specs.iter().enumerate() {
        let key = (run_id(), spec.group.to_owned());
        let group = loaded
            .groups
            .entry(key.clone())
            .or_insert(Group { open: 0, outcome: Outcome::Skipped });
        group.open += 1;
        loaded.edges.entry(key).or_default();
        for (need, when) in &spec.needs {
            let when =
                if *when == SUCCESS { OutcomeSet::NONE.with(Outcome::Success) } else { *when };
            let edges = loaded.edges.entry((run_id(), (*need).to_owned())).or_default();
            edges.push(Edge { to: job_id(n), when });
        }
        loaded.jobs.insert(job_id(n), job(spec));
    }
    loaded
}

fn job(spec: &Spec) -> Job {
    let blocked = !spec.needs.is_empty();
    Job {
        run: run_id(),
        group: spec.group.to_owned(),
        state: if blocked { JobState::Blocked } else { JobState::Queued },
        reason: None,
        attempt: 1,
        try_no: 1,
        abandoned: 0,
        waiting_for: u32::try_from(spec.needs.len()).unwrap(),
        ticket: None,
        retry: Retry { max_tries: 1, on: OutcomeSet::NONE },
        continue_on_error: false,
        refused: Vec::new(),
        cancel: None,
        queue_seq: None,
        queued_at: None,
        started_at: None,
        ended_at: None,
    }
}

/// What the claim does: it is no fact.
fn offer(loaded: &mut Loaded, n: usize, deadline: Timestamp) -> AttemptId {
    let job = loaded.jobs.get_mut(&job_id(n)).unwrap();
    job.state = job.state.to(JobState::Offered).unwrap();
    job.queue_seq = Some(i64::try_from(n).unwrap());
    let id = AttemptId { job: job_id(n), attempt: job.attempt };
    loaded.attempts.insert(id, Attempt::offered(job.try_no, deadline));
    id
}

fn apply(loaded: &mut Loaded, fact: Fact, at: i64) -> Answer {
    let decision = decide(loaded.clone(), &[fact], Timestamp(at)).unwrap();
    *loaded = decision.loaded;
    check(loaded);
    decision.answers.into_iter().next().unwrap()
}

/// Counters and rows say the same.
fn check(loaded: &Loaded) {
    let run = &loaded.runs[&run_id()];
    let mut counts = Counts::default();
    for job in loaded.jobs.values() {
        *counts.slot(job.state, job.continue_on_error) += 1;
    }
    assert_eq!(run.counts, counts);
    assert_eq!(run.state.is_ended(), counts.open() == 0, "{:?}", run.state);
    for ((_, name), group) in &loaded.groups {
        let open = loaded.jobs.values().filter(|j| j.group == *name && !j.state.is_ended());
        assert_eq!(group.open as usize, open.count(), "{name}");
    }
}

fn reserved(id: AttemptId, n: u8) -> Fact {
    Fact::Reserved { id, agent: agent(n), start_by: Timestamp(1000) }
}

fn begin(id: AttemptId, n: u8) -> Fact {
    Fact::Begin { id, agent: agent(n), key_hash: key(id), release_at: Timestamp(200) }
}

fn ended(id: AttemptId, seq: u64, outcome: Outcome) -> Fact {
    let end = End {
        at: Timestamp(0),
        outcome,
        reason: None,
        outputs: None,
        ends: BTreeMap::new(),
        torn: Vec::new(),
    };
    Fact::Attempt { id, key_hash: key(id), seq, fact: AttemptFact::Ended(end) }
}

fn start(loaded: &mut Loaded, n: usize) -> AttemptId {
    let id = offer(loaded, n, Timestamp(100));
    assert_eq!(apply(loaded, reserved(id, 1), 1), Answer::Committed);
    let begun = Answer::Begun { release_at: Timestamp(200), cancel: None };
    assert_eq!(apply(loaded, begin(id, 1), 1), begun);
    id
}

fn finish(loaded: &mut Loaded, n: usize, outcome: Outcome) {
    let id = start(loaded, n);
    assert_eq!(apply(loaded, ended(id, 1, outcome), 2), Answer::Acked { seq: 1 });
}

fn states(loaded: &Loaded) -> Vec<&'static str> {
    loaded.jobs.values().map(|job| job.state.as_str()).collect()
}

#[test]
fn of_two_reservations_one_is_committed() {
    let mut loaded = world(&[spec("a", &[])]);
    let id = offer(&mut loaded, 0, Timestamp(100));
    assert_eq!(apply(&mut loaded, reserved(id, 1), 1), Answer::Committed);
    assert_eq!(apply(&mut loaded, reserved(id, 2), 1), Answer::Superseded);
    assert_eq!(apply(&mut loaded, reserved(id, 1), 1), Answer::Committed, "a lost answer");
    assert_eq!(apply(&mut loaded, begin(id, 2), 1), Answer::Superseded);
}

#[test]
fn begin_is_answered_again_until_the_attempt_has_a_history() {
    let mut loaded = world(&[spec("a", &[])]);
    let id = start(&mut loaded, 0);
    assert!(matches!(apply(&mut loaded, begin(id, 1), 2), Answer::Begun { .. }));
    let overdue = Fact::Overdue { id, renewed_before: Timestamp(50) };
    apply(&mut loaded, overdue, 60);
    let again = Fact::Begin { id, agent: agent(1), key_hash: key(id), release_at: Timestamp(300) };
    let begun = Answer::Begun { release_at: Timestamp(300), cancel: None };
    assert_eq!(apply(&mut loaded, again.clone(), 199), begun);
    assert_eq!(states(&loaded), ["running"]);
    assert_eq!(apply(&mut loaded.clone(), again, 300), Answer::Superseded, "released");
    let step = AttemptFact::StepStarted { step: 0, at: Timestamp(2) };
    let fact = Fact::Attempt { id, key_hash: key(id), seq: 1, fact: step };
    assert_eq!(apply(&mut loaded, fact, 2), Answer::Acked { seq: 1 });
    assert_eq!(apply(&mut loaded, begin(id, 1), 2), Answer::Superseded);
}

#[test]
fn begin_after_the_start_expired_is_refused() {
    let mut loaded = world(&[spec("a", &[])]);
    let id = offer(&mut loaded, 0, Timestamp(100));
    apply(&mut loaded, reserved(id, 1), 1);
    assert_eq!(apply(&mut loaded, Fact::StartExpired { id }, 999), Answer::Stale, "not yet");
    assert_eq!(apply(&mut loaded, Fact::StartExpired { id }, 1000), Answer::Done);
    assert_eq!(apply(&mut loaded, begin(id, 1), 1000), Answer::Superseded);
    let job = &loaded.jobs[&job_id(0)];
    assert_eq!((job.state, job.attempt, job.try_no), (JobState::Queued, 2, 1));
    assert_eq!(job.refused, [agent(1)]);
    assert_eq!(job.queue_seq, Some(0), "it keeps its place");
}

#[test]
fn a_try_fails_after_placements_max_abandoned_placements() {
    let mut loaded = world(&[spec("a", &[])]);
    for n in 1..=PLACEMENTS_MAX {
        let id = offer(&mut loaded, 0, Timestamp(100));
        apply(&mut loaded, reserved(id, 1), 1);
        let reason = format!("no disk {n}");
        let fact = Fact::Abandoned { id, agent: agent(1), reason };
        assert_eq!(apply(&mut loaded, fact, 1), Answer::Done);
        let queued = loaded.jobs[&job_id(0)].state == JobState::Queued;
        assert_eq!(queued, n < PLACEMENTS_MAX);
    }
    let job = &loaded.jobs[&job_id(0)];
    assert_eq!(job.state, JobState::Ended(Outcome::Failed));
    assert_eq!(job.reason.as_deref(), Some("no disk 3"));
    assert_eq!(loaded.runs[&run_id()].state, RunState::Ended(Outcome::Failed));
}

#[test]
fn refused_max_agents_are_remembered() {
    let mut loaded = world(&[spec("a", &[])]);
    for n in 0..=REFUSED_MAX {
        let id = offer(&mut loaded, 0, Timestamp(100));
        let agent = agent(u8::try_from(n).unwrap());
        let fact = Fact::Refused { id, agent, reason: "full".to_owned() };
        assert_eq!(apply(&mut loaded, fact, 1), Answer::Done);
    }
    let refused = &loaded.jobs[&job_id(0)].refused;
    assert_eq!(refused.len(), REFUSED_MAX);
    assert_eq!(refused[0], agent(1), "the oldest is forgotten");
}

#[test]
fn history_is_applied_once_and_in_order() {
    let mut loaded = world(&[spec("a", &[])]);
    let id = start(&mut loaded, 0);
    assert_eq!(apply(&mut loaded, ended(id, 2, Outcome::Success), 2), Answer::Gap { have: 0 });
    let end = AttemptFact::StepEnded(StepEnd {
        step: 0,
        at: Timestamp(2),
        outcome: Outcome::Success,
        exit_code: Some(0),
        error: None,
        outputs: None,
        tries: 1,
    });
    for fact in [AttemptFact::StepStarted { step: 0, at: Timestamp(1) }, end] {
        let seq = loaded.attempts[&id].seq + 1;
        let fact = Fact::Attempt { id, key_hash: key(id), seq, fact };
        for _ in 0..2 {
            assert_eq!(apply(&mut loaded, fact.clone(), 2), Answer::Acked { seq });
        }
    }
    assert_eq!(apply(&mut loaded, ended(id, 3, Outcome::Success), 3), Answer::Acked { seq: 3 });
    assert_eq!(apply(&mut loaded, ended(id, 1, Outcome::Failed), 3), Answer::Acked { seq: 3 });
    assert_eq!(loaded.jobs[&job_id(0)].state, JobState::Ended(Outcome::Success));
    assert_eq!(apply(&mut loaded, ended(id, 4, Outcome::Failed), 3), Answer::Acked { seq: 4 });
    let attempt = &loaded.attempts[&id];
    assert_eq!((attempt.late, attempt.end.as_ref().unwrap().outcome), (None, Outcome::Success));
    let wrong = Fact::Attempt {
        id,
        key_hash: [9; 32],
        seq: 5,
        fact: AttemptFact::StepStarted { step: 1, at: Timestamp(3) },
    };
    assert_eq!(apply(&mut loaded, wrong, 3), Answer::Superseded);
}

#[test]
fn an_illegal_step_is_named_and_changes_nothing() {
    let mut loaded = world(&[spec("a", &[])]);
    let id = start(&mut loaded, 0);
    let started = |seq| Fact::Attempt {
        id,
        key_hash: key(id),
        seq,
        fact: AttemptFact::StepStarted { step: 0, at: Timestamp(2) },
    };
    apply(&mut loaded, started(1), 2);
    let before = loaded.clone();
    let reason = "a step cannot go from running to running".to_owned();
    assert_eq!(apply(&mut loaded, started(2), 2), Answer::Failed { reason });
    assert_eq!(loaded, before);
}

#[test]
fn lost_waits_for_the_release_and_a_late_result_changes_nothing() {
    let mut loaded = world(&[spec("a", &[])]);
    let id = start(&mut loaded, 0);
    let lost = Fact::Lost { id, contained: true };
    assert_eq!(apply(&mut loaded, lost.clone(), 199), Answer::Stale);
    let overdue = Fact::Overdue { id, renewed_before: Timestamp(50) };
    assert_eq!(apply(&mut loaded, overdue, 60), Answer::Done);
    assert_eq!(states(&loaded), ["recovering"]);
    let renewed = Fact::Renewed { id, key_hash: key(id), release_at: Timestamp(300) };
    let answer = Answer::Renewed { release_at: Timestamp(300), cancel: None };
    assert_eq!(apply(&mut loaded, renewed.clone(), 199), answer);
    assert_eq!(states(&loaded), ["running"]);
    assert_eq!(apply(&mut loaded, lost.clone(), 299), Answer::Stale, "it was renewed");
    assert_eq!(apply(&mut loaded, renewed.clone(), 300), Answer::Expired);
    assert_eq!(apply(&mut loaded, lost.clone(), 300), Answer::Done);
    assert_eq!(apply(&mut loaded, lost, 300), Answer::Stale);
    assert_eq!(apply(&mut loaded, renewed, 301), Answer::Expired, "its log is still wanted");
    let late = ended(id, 1, Outcome::Success);
    assert_eq!(apply(&mut loaded, late, 301), Answer::Acked { seq: 1 });
    assert_eq!(states(&loaded), ["lost"]);
    let attempt = &loaded.attempts[&id];
    assert_eq!(attempt.state, AttemptState::Ended(Outcome::Lost));
    assert_eq!(attempt.late, Some(Outcome::Success));
    assert_eq!(loaded.runs[&run_id()].state, RunState::Ended(Outcome::Lost));
}

#[test]
fn a_lost_attempt_is_tried_again_only_when_nothing_of_it_can_run() {
    for contained in [true, false] {
        let mut loaded = world(&[spec("a", &[])]);
        let on = OutcomeSet::NONE.with(Outcome::Lost);
        loaded.jobs.get_mut(&job_id(0)).unwrap().retry = Retry { max_tries: 2, on };
        let id = start(&mut loaded, 0);
        apply(&mut loaded, Fact::Lost { id, contained }, 200);
        assert_eq!(states(&loaded), [if contained { "queued" } else { "lost" }]);
    }
}

#[test]
fn tries_are_counted_and_start_at_the_end_of_the_queue() {
    let mut loaded = world(&[spec("a", &[])]);
    let on = OutcomeSet::NONE.with(Outcome::Failed);
    loaded.jobs.get_mut(&job_id(0)).unwrap().retry = Retry { max_tries: 2, on };
    finish(&mut loaded, 0, Outcome::Failed);
    let job = &loaded.jobs[&job_id(0)];
    assert_eq!((job.state, job.attempt, job.try_no), (JobState::Queued, 2, 2));
    assert_eq!(job.queue_seq, None);
    assert_eq!(job.reason.as_deref(), Some("try 1 ended: failed"));
    finish(&mut loaded, 0, Outcome::Failed);
    assert_eq!(states(&loaded), ["failed"]);
}

#[test]
fn skips_cascade_and_always_runs() {
    let mut loaded = world(&[
        spec("a", &[]),
        spec("b", &[("a", SUCCESS)]),
        spec("c", &[("b", SUCCESS)]),
        spec("d", &[("b", OutcomeSet::ALL)]),
        spec("e", &[("d", SUCCESS)]),
    ]);
    finish(&mut loaded, 0, Outcome::Failed);
    assert_eq!(states(&loaded), ["failed", "skipped", "skipped", "queued", "blocked"]);
    let reason = loaded.jobs[&job_id(2)].reason.as_deref();
    assert_eq!(reason, Some("'b' ended as skipped"));
    finish(&mut loaded, 3, Outcome::Success);
    finish(&mut loaded, 4, Outcome::Success);
    assert_eq!(loaded.runs[&run_id()].state, RunState::Ended(Outcome::Failed));
}

#[test]
fn a_fan_out_counts_as_one() {
    let specs = [spec("m", &[]), spec("m", &[]), spec("z", &[("m", SUCCESS)])];
    let mut loaded = world(&specs);
    finish(&mut loaded, 0, Outcome::Success);
    assert_eq!(states(&loaded)[2], "blocked");
    finish(&mut loaded, 1, Outcome::Success);
    assert_eq!(states(&loaded)[2], "queued");
    let mut loaded = world(&specs);
    finish(&mut loaded, 0, Outcome::TimedOut);
    assert_eq!(states(&loaded)[2], "blocked", "it waits for all children");
    finish(&mut loaded, 1, Outcome::Success);
    assert_eq!(states(&loaded)[2], "skipped");
}

#[test]
fn continue_on_error_satisfies_and_does_not_fail_the_run() {
    let mut loaded = world(&[spec("a", &[]), spec("b", &[("a", SUCCESS)])]);
    loaded.jobs.get_mut(&job_id(0)).unwrap().continue_on_error = true;
    finish(&mut loaded, 0, Outcome::Failed);
    assert_eq!(states(&loaded), ["failed", "queued"]);
    finish(&mut loaded, 1, Outcome::Success);
    assert_eq!(loaded.runs[&run_id()].state, RunState::Ended(Outcome::Success));
}

fn cancel(force: bool) -> Fact {
    Fact::CancelRun { run: run_id(), force, reason: "stop".to_owned(), by: "me".to_owned() }
}

#[test]
fn a_cancelled_run_starts_nothing_and_waits_for_what_runs() {
    let mut loaded = world(&[
        spec("a", &[]),
        spec("b", &[]),
        spec("c", &[]),
        spec("d", &[("a", OutcomeSet::ALL)]),
    ]);
    let running = start(&mut loaded, 0);
    let committed = offer(&mut loaded, 1, Timestamp(100));
    apply(&mut loaded, reserved(committed, 2), 1);
    assert_eq!(apply(&mut loaded, cancel(false), 2), Answer::Done);
    assert_eq!(states(&loaded), ["running", "cancelled", "cancelled", "cancelled"]);
    assert_eq!(apply(&mut loaded, begin(committed, 2), 2), Answer::Superseded);
    assert_eq!(apply(&mut loaded, cancel(true), 3), Answer::Done);
    assert!(loaded.jobs[&job_id(0)].cancel.as_ref().unwrap().force);
    apply(&mut loaded, ended(running, 1, Outcome::Cancelled), 4);
    assert_eq!(loaded.runs[&run_id()].state, RunState::Ended(Outcome::Cancelled));
    assert_eq!(apply(&mut loaded, cancel(true), 5), Answer::Stale);
}

#[test]
fn a_cancelled_attempt_whose_agent_is_lost_is_cancelled_unconfirmed() {
    let mut loaded = world(&[spec("a", &[])]);
    let id = start(&mut loaded, 0);
    let renewed = Fact::Renewed { id, key_hash: key(id), release_at: Timestamp(200) };
    apply(&mut loaded, cancel(false), 2);
    let answer = apply(&mut loaded, renewed, 3);
    let Answer::Renewed { cancel: Some(cancel), .. } = answer else { panic!("{answer:?}") };
    assert_eq!(cancel.reason, "stop");
    apply(&mut loaded, Fact::Lost { id, contained: true }, 200);
    let job = &loaded.jobs[&job_id(0)];
    assert_eq!(job.state, JobState::Ended(Outcome::Cancelled));
    assert_eq!(job.reason.as_deref(), Some("cancelled (unconfirmed)"));
}

#[test]
fn what_was_not_loaded_is_asked_for() {
    let mut loaded = world(&[spec("a", &[]), spec("b", &[("a", SUCCESS)])]);
    let id = start(&mut loaded, 0);
    loaded.edges.remove(&(run_id(), "b".to_owned()));
    let facts = [ended(id, 1, Outcome::Failed)];
    let missing = decide(loaded, &facts, Timestamp(2)).unwrap_err();
    assert_eq!(missing.groups, [(run_id(), "b".to_owned())]);
}
