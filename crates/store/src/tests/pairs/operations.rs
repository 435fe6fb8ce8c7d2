//! Everything that writes, once each or more often where it does different things.

use std::{collections::BTreeMap, fmt::Debug, pin::Pin, time::Duration};

use shuntyard_core::{
    apply::{Answer, Fact},
    gate::Place,
};
use shuntyard_protocol::{
    AgentId, DeliveryId, EventId, JobId, Outcome, RunId, SourceId, Timestamp,
    agent::{AttemptFact, AttemptId},
};

use super::bed::{Bed, instance, log, random, seen, token};
use crate::{
    HeldAttempt, Instance, Lease, NewAccess, StoreError, StoredPlan,
    tests::world::{agent, end, ended, history, key, step_end},
};

type Doing<'a> = Pin<Box<dyn Future<Output = String> + 'a>>;

pub(super) struct Operation {
    pub(super) name: &'static str,
    /// Does it, with ids that only this side of a pair uses, and says what was answered.
    pub(super) run: for<'a> fn(&'a Bed, u8) -> Doing<'a>,
}

macro_rules! operations {
    ($($name:ident($bed:pat_param, $side:pat_param) $body:expr;)+) => {
        pub(super) const OPERATIONS: &[Operation] =
            &[$(Operation { name: stringify!($name), run: $name }),+];
        $(fn $name($bed: &Bed, $side: u8) -> Doing<'_> {
            Box::pin(async move { said($body.await) })
        })+
    };
}

fn said<T: Debug>(result: Result<T, StoreError>) -> String {
    match result {
        Ok(answer) => format!("{answer:?}"),
        Err(error) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            format!("{error}: {}", cause.unwrap_or_default())
        }
    }
}

async fn at(bed: &Bed, now: Timestamp, fact: Fact) -> Result<Vec<Answer>, StoreError> {
    bed.w.store.apply(vec![fact], now).await
}

async fn now(bed: &Bed, fact: Fact) -> Result<Vec<Answer>, StoreError> {
    at(bed, bed.now(), fact).await
}

async fn late(bed: &Bed, fact: Fact) -> Result<Vec<Answer>, StoreError> {
    at(bed, bed.late(), fact).await
}

fn id(bed: &Bed, title: &str) -> AttemptId {
    bed.jobs[title]
}

fn job(bed: &Bed, title: &str) -> JobId {
    id(bed, title).job
}

fn renewed(bed: &Bed, title: &str, after: i64) -> Fact {
    let id = id(bed, title);
    Fact::Renewed { id, key_hash: key(id), release_at: Timestamp(bed.late().0 + after) }
}

fn why() -> String {
    "a reason".to_owned()
}

fn lease(name: &str) -> Lease {
    Lease { name: name.to_owned(), holder: instance(0), epoch: 1, until_at: Timestamp(0) }
}

fn end_with_log(to: u64) -> AttemptFact {
    let ends = BTreeMap::from([(1, to)]);
    AttemptFact::Ended(shuntyard_protocol::agent::End { ends, ..end(Outcome::Success) })
}

const SHORT: Duration = Duration::from_mins(1);

async fn claim(bed: &Bed, side: u8, limit: u32) -> Result<Vec<crate::Claimed>, StoreError> {
    let classes = bed.w.classes().await;
    bed.w.store.claim(&classes, limit, instance(side), bed.late(), bed.now()).await
}

/// What one delivery makes; both sides bring the same event.
async fn create(bed: &Bed, side: u8) -> Result<crate::Created, StoreError> {
    let mut event = bed.w.event(Some("push"));
    event.id = EventId::mint(Timestamp(1), random(side, 1));
    let mut jobs = vec![bed.w.new_job("x", &[]), bed.w.new_job("y", &[("x", &Outcome::ALL)])];
    for (n, job) in (1..).zip(&mut jobs) {
        job.id = JobId::mint(Timestamp(1), random(side, n));
    }
    let mut run = bed.w.new_run("ci", jobs);
    run.id = RunId::mint(Timestamp(1), random(side, 1));
    let delivery = Some((bed.delivery, "runs"));
    bed.w.store.create_runs(&event, vec![run], delivery, 100, bed.now()).await
}

fn stop(run: RunId) -> Fact {
    Fact::CancelRun { run, force: true, reason: why(), by: "ann".to_owned() }
}

/// A run comes to a gate.
async fn come(bed: &Bed, side: u8, group: &str) -> Result<crate::Created, StoreError> {
    let run = RunId::mint(Timestamp(1), random(side, 4));
    let job = JobId::mint(Timestamp(1), random(side, 4));
    bed.start(EventId::mint(Timestamp(1), random(side, 4)), bed.gated(run, job, group)).await
}

async fn rerun(bed: &Bed, side: u8) -> Result<crate::Rerun, StoreError> {
    let mut n = 10;
    let mint = || {
        n += 1;
        JobId::mint(Timestamp(1), random(side, n))
    };
    let new = RunId::mint(Timestamp(1), random(side, 2));
    bed.w.store.rerun(bed.ended, true, new, mint, bed.now()).await
}

async fn hello(bed: &Bed, side: u8) -> Result<Vec<shuntyard_protocol::agent::Verdict>, StoreError> {
    let held: Vec<HeldAttempt> = ["a", "b", "s"]
        .into_iter()
        .map(|title| {
            let id = id(bed, title);
            HeldAttempt { id, key_hash: (title != "s").then(|| key(id)) }
        })
        .collect();
    bed.w.store.reconcile(agent(1), instance(side), &held).await
}

fn access(side: u8) -> NewAccess {
    NewAccess {
        org: "default".to_owned(),
        actor: format!("p{side}"),
        action: "run.cancel".to_owned(),
        subject: "x".to_owned(),
        detail: None,
        address: None,
    }
}

fn beat(bed: &Bed, side: u8) -> Instance {
    Instance {
        id: instance(0),
        name: format!("c{side}"),
        url: None,
        software: "test".to_owned(),
        started_at: bed.now(),
        beat_at: bed.late(),
    }
}

fn plan(side: u8) -> StoredPlan {
    StoredPlan { key: format!("k{side}"), body: "{}".to_owned(), folder: "{}".to_owned() }
}

operations! {
    claim_one(bed, side) claim(bed, side, 1);
    claim_all(bed, side) claim(bed, side, 10);
    reserve(bed, side) now(bed, Fact::Reserved {
        id: id(bed, "o"),
        agent: AgentId::mint(Timestamp(1), [1 + side; 10]),
        start_by: bed.late(),
    });
    refuse(bed, _) now(bed, Fact::Refused { id: id(bed, "o"), agent: agent(1), reason: why() });
    offer_expired(bed, _) late(bed, Fact::OfferExpired { id: id(bed, "o"), agent: None });
    start_expired(bed, _) late(bed, Fact::StartExpired { id: id(bed, "s") });
    abandon(bed, _) now(bed, Fact::Abandoned {
        id: id(bed, "s"), agent: agent(1), reason: why(),
    });
    begin(bed, _) now(bed, bed.w.begin(id(bed, "s")));
    renew(bed, side) now(bed, renewed(bed, "a", i64::from(side)));
    overdue(bed, _) late(bed, Fact::Overdue { id: id(bed, "a"), renewed_before: bed.late() });
    lost(bed, _) late(bed, Fact::Lost { id: id(bed, "a"), contained: true });
    lost_uncontained(bed, _) late(bed, Fact::Lost { id: id(bed, "b"), contained: false });
    step_start(bed, _) now(bed, history(id(bed, "a"), 2, AttemptFact::StepStarted {
        step: 1, at: bed.now(),
    }));
    step_end_of(bed, _) now(bed, history(id(bed, "b"), 2, step_end(0, Outcome::Success, None)));
    end_well(bed, _) now(bed, history(id(bed, "a"), 2, end_with_log(8)));
    end_badly(bed, _) now(bed, ended(id(bed, "a"), 2, Outcome::Failed));
    end_sibling(bed, _) now(bed, ended(id(bed, "b"), 2, Outcome::Success));
    end_sibling_badly(bed, _) now(bed, ended(id(bed, "b"), 2, Outcome::Failed));
    cancel_run(bed, side) now(bed, Fact::CancelRun {
        run: bed.run, force: side == 1, reason: why(), by: "ann".to_owned(),
    });
    cancel_running(bed, _) now(bed, Fact::CancelJob {
        job: job(bed, "a"), force: true, reason: why(), by: "ann".to_owned(),
    });
    cancel_queued(bed, _) now(bed, Fact::CancelJob {
        job: job(bed, "q1"), force: false, reason: why(), by: "ann".to_owned(),
    });
    queue_expired(bed, _) late(bed, Fact::QueueExpired { job: job(bed, "q1"), reason: why() });
    several_facts(bed, _) bed.w.store.apply(
        vec![
            ended(id(bed, "b"), 2, Outcome::Success),
            renewed(bed, "a", 7),
            Fact::QueueExpired { job: job(bed, "q2"), reason: why() },
        ],
        bed.now(),
    );
    append_log(bed, _) bed.w.store.append_logs(
        vec![log(id(bed, "a"), 5, b" world"), log(id(bed, "b"), 0, b"x")],
        bed.now(),
    );
    append_other(bed, _) bed.w.store.append_logs(
        vec![crate::LogAppend { stream: 2, ..log(id(bed, "a"), 0, b"other") }],
        bed.now(),
    );
    commit_both(bed, _) async {
        let started = AttemptFact::StepStarted { step: 1, at: bed.now() };
        let fact = history(id(bed, "a"), 2, started);
        let logs = vec![log(id(bed, "a"), 5, b" all")];
        let (facts, logs) = bed.w.store.commit(vec![fact], logs, bed.now()).await;
        Ok((facts?, logs?))
    };
    reconcile(bed, side) hello(bed, side);
    create_runs(bed, side) create(bed, side);
    rerun_failed(bed, side) rerun(bed, side);
    turn_gate(bed, _) bed.w.store.turn_gate(bed.gate, bed.now());
    leave_gate(bed, _) now(bed, stop(bed.holder));
    leave_line(bed, _) now(bed, stop(bed.waiter));
    wait_expires(bed, _) late(bed, Fact::WaitExpired {
        place: Place::Run(bed.waiter), reason: why(), by: "ann".to_owned(),
    });
    join_line(bed, side) come(bed, side, "deploy");
    take_last_slot(bed, side) come(bed, side, "free");
    insert_delivery(bed, side) bed.w.store.insert_delivery(
        &bed.delivery(DeliveryId::mint(Timestamp(1), random(side, 3)), 3), bed.now(),
    );
    lease_deliveries(bed, side) bed.w.store.lease_deliveries(instance(side), 5, SHORT, bed.now());
    adopt_deliveries(bed, _) bed.w.store.adopt_deliveries(bed.now(), bed.now());
    finish_delivery(bed, _) bed.w.store.finish_delivery(
        bed.delivery, "ignored", "nothing", None, bed.now(),
    );
    retry_delivery(bed, _) bed.w.store.retry_delivery(bed.delivery, bed.late(), "later");
    lease_outbox(bed, side) bed.w.store.lease_outbox(instance(side), 1, SHORT, bed.now());
    outbox_done(bed, _) bed.w.store.outbox_done(1, bed.now());
    outbox_retry(bed, _) bed.w.store.outbox_retry(1, bed.late(), "later");
    enrol_new(bed, side) bed.w.store.enrol_agent(
        AgentId::mint(Timestamp(1), random(side, 1)), "key2", &[2; 32], &seen("two"), bed.now(),
    );
    enrol_other(bed, side) bed.w.store.enrol_agent(
        AgentId::mint(Timestamp(1), random(side, 2)), "key3", &[2; 32], &seen("three"), bed.now(),
    );
    consume_token(bed, _) bed.w.store.consume_token(&[2; 32], "enrol", bed.now());
    revoke_token(bed, _) bed.w.store.revoke_token(token(2, None).id, bed.now());
    insert_token(bed, side) bed.w.store.insert_token(&token(10 + side, None), bed.now());
    agent_seen(bed, side) bed.w.store.agent_seen(
        agent(1), &seen("again"), instance(side), bed.late(),
    );
    agent_beat(bed, side) bed.w.store.agent_beat(
        agent(1), Timestamp(bed.late().0 + i64::from(side)),
    );
    agent_gone(bed, _) bed.w.store.agent_gone(agent(1), instance(0), bed.now());
    agent_drains(bed, side) bed.w.store.set_agent_draining(agent(1), side == 0);
    revoke_agent(bed, _) bed.w.store.revoke_agent(agent(1), "ann", bed.now());
    acquire_lease(bed, side) bed.w.store.acquire_lease(
        "leader", instance(side), Timestamp(bed.late().0 + 9), bed.late(),
    );
    acquire_new_lease(bed, side) bed.w.store.acquire_lease(
        "other", instance(side), bed.late(), bed.now(),
    );
    renew_lease(bed, _) bed.w.store.renew_lease(&lease("leader"), bed.late(), bed.now());
    release_lease(bed, _) bed.w.store.release_lease(&lease("leader"));
    beat_instance(bed, side) bed.w.store.beat(&beat(bed, side));
    remove_instance(bed, _) bed.w.store.remove_instance(instance(0));
    put_plan(bed, side) bed.w.store.put_plan(bed.w.source, "c1", &plan(side), bed.now());
    put_plan_error(bed, _) bed.w.store.put_plan_error(bed.w.source, "c1", "why", bed.now());
    insert_source(bed, side) bed.w.store.insert_source(
        &Bed::source(SourceId::mint(Timestamp(1), random(side, 1)), "new"),
    );
    update_source(bed, _) bed.w.store.update_source(&Bed::source(bed.w.source, "repo"));
    remove_source(bed, _) bed.w.store.remove_source(bed.w.source);
    insert_access(bed, side) bed.w.store.insert_access(&access(side), bed.now());
    cluster(bed, side) bed.w.store.cluster(&format!("c{side}"), &[side], bed.now());
}
