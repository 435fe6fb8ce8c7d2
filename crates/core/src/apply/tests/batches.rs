//! Random facts: a batch is only a faster way to say them one by one.

use proptest::prelude::*;

use super::*;
use crate::gate::{Gate, Place, Ticket};

fn any_fact(jobs: usize) -> impl Strategy<Value = Fact> {
    let id = (0..jobs, 1_u32..4).prop_map(|(n, attempt)| AttemptId { job: job_id(n), attempt });
    let outcome = prop::sample::select(Outcome::ALL.to_vec());
    (id, 0_u8..15, 1_u64..4, 0_u8..2, outcome, 0_i64..400).prop_map(
        |(id, kind, seq, who, outcome, time)| match kind {
            0 => reserved(id, who),
            1 => Fact::Refused { id, agent: agent(who), reason: "full".to_owned() },
            2 => Fact::OfferExpired { id, agent: Some(agent(who)) },
            3 => Fact::StartExpired { id },
            4 => Fact::Abandoned { id, agent: agent(who), reason: "broken".to_owned() },
            5 | 6 => begin(id, who),
            7 => Fact::Renewed { id, key_hash: key(id), release_at: Timestamp(time) },
            8 => Fact::Attempt {
                id,
                key_hash: key(id),
                seq,
                fact: AttemptFact::StepStarted { step: 0, at: Timestamp(time) },
            },
            9 => ended(id, seq, outcome),
            10 => Fact::Overdue { id, renewed_before: Timestamp(time) },
            11 => Fact::Lost { id, contained: who == 0 },
            12 => Fact::Admitted { place: Place::Job(id.job) },
            13 => Fact::WaitExpired {
                place: Place::Job(id.job),
                reason: "long".to_owned(),
                by: "me".to_owned(),
            },
            _ if seq == 1 => cancel(who == 0),
            _ if seq == 2 => Fact::QueueExpired { job: id.job, reason: "late".to_owned() },
            _ => Fact::CancelJob {
                job: id.job,
                force: who == 0,
                reason: "stop".to_owned(),
                by: "me".to_owned(),
            },
        },
    )
}

/// A run whose jobs stand at different places.
fn lively() -> Loaded {
    let retry =
        Retry { max_tries: 3, on: OutcomeSet::NONE.with(Outcome::Failed).with(Outcome::Lost) };
    let mut loaded = world(&[
        spec("a", &[]),
        spec("b", &[]),
        spec("b", &[]),
        spec("c", &[("a", SUCCESS), ("b", SUCCESS)]),
        spec("d", &[("c", OutcomeSet::ALL)]),
        spec("e", &[("c", SUCCESS)]),
    ]);
    loaded.jobs.get_mut(&job_id(1)).unwrap().retry = retry;
    loaded.jobs.get_mut(&job_id(2)).unwrap().continue_on_error = true;
    for n in 3..6 {
        let ticket = Ticket { gate: 7, cancels: n == 5 };
        loaded.jobs.get_mut(&job_id(n)).unwrap().ticket = Some(ticket);
    }
    loaded.gates.insert(7, Gate { slots: 1, ..Gate::default() });
    start(&mut loaded, 0);
    start(&mut loaded, 1);
    offer(&mut loaded, 2, Timestamp(100));
    loaded
}

proptest! {
    #[test]
    fn a_batch_means_what_its_facts_mean_one_by_one(
        facts in prop::collection::vec(any_fact(6), 0..40),
        now in 0_i64..400,
    ) {
        let mut singly = lively();
        let mut answers = Vec::new();
        for fact in &facts {
            answers.push(apply(&mut singly, fact.clone(), now));
        }
        let batch = decide(lively(), &facts, Timestamp(now)).unwrap();
        prop_assert_eq!(batch.answers, answers);
        prop_assert_eq!(batch.loaded, singly);
    }

    #[test]
    fn what_changed_is_touched(
        facts in prop::collection::vec(any_fact(6), 0..40),
        now in 0_i64..400,
    ) {
        let before = lively();
        let Decision { loaded, touched, .. } = decide(before.clone(), &facts, Timestamp(now)).unwrap();
        for (id, run) in &loaded.runs {
            prop_assert!(before.runs[id] == *run || touched.runs.contains(id));
        }
        for (id, job) in &loaded.jobs {
            let old = &before.jobs[id];
            prop_assert!(old == job || touched.jobs.contains(id));
            let queued = (old.state == JobState::Queued, job.state == JobState::Queued);
            prop_assert_eq!(touched.enqueue.contains_key(id), queued == (false, true));
            prop_assert_eq!(touched.dequeue.contains(id), queued == (true, false));
        }
        for (id, attempt) in &loaded.attempts {
            prop_assert!(before.attempts.get(id) == Some(attempt) || touched.attempts.contains(id));
        }
        for (key, group) in &loaded.groups {
            prop_assert!(before.groups[key] == *group || touched.groups.contains(key));
        }
    }
}
