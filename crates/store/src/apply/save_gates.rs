//! Places at gates, and what wakes their reconciler.

use std::collections::{BTreeMap, BTreeSet};

use shuntyard_core::gate::{GateId, Place};
use shuntyard_protocol::{JobId, Timestamp};
use uuid::Uuid;

use super::portions;
use crate::{
    db::{Statement, Tx, cells, on},
    error::{During, StoreError},
};

/// Gives places up. The gate need not be locked: whoever counts meanwhile finds too many at most.
pub(crate) async fn leave(tx: &mut Tx, places: &BTreeSet<Place>) -> Result<(), StoreError> {
    let (mut runs, mut jobs): (Vec<Uuid>, Vec<Uuid>) = (Vec::new(), Vec::new());
    for place in places {
        match place {
            Place::Run(run) => runs.push(run.uuid()),
            Place::Job(job) => jobs.push(job.uuid()),
        }
    }
    for (text, ids) in [
        ("delete from gate_place where job_id is null and run_id", runs),
        ("delete from gate_place where job_id", jobs),
    ] {
        for ids in portions(&ids) {
            on!(tx, Db, c => {
                let mut q = Statement::<Db>::new(text);
                q.push_in(ids);
                q.done().execute(c).await.map(drop)
            })
            .during("give up places at gates")?;
        }
    }
    Ok(())
}

/// Jobs that have come to their gates, and whether they hold a slot there.
pub(crate) async fn enter(
    tx: &mut Tx,
    jobs: &BTreeMap<JobId, bool>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let jobs: Vec<_> = jobs.iter().collect();
    for jobs in portions(&jobs) {
        on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("insert into gate_place (gate_id, run_id, job_id, \
                holding, cancels, arrived_at, created_at) \
                select j.gate_id, j.run_id, j.id, v.column2, j.gate_cancels, r.arrived_at, ");
            q.push_bind(now.0).push(" from");
            q.push_rows(jobs, |(job, holds)| cells![**job, **holds]);
            q.push(" join job j on j.id = v.column1 join run r on r.id = j.run_id \
                order by r.arrived_at, j.run_id, j.position");
            q.done().execute(c).await.map(drop)
        })
        .during("take places at gates")?;
    }
    Ok(())
}

pub(crate) async fn wake(
    tx: &mut Tx,
    gates: &BTreeSet<GateId>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let gates: Vec<GateId> = gates.iter().copied().collect();
    for gates in portions(&gates) {
        on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("insert into gate_wake (gate_id, created_at) select v.* from");
            q.push_rows(gates, |gate| cells![*gate, now]).push(" where v.column1 is not null");
            q.done().execute(c).await.map(drop)
        })
        .during("wake gates")?;
    }
    Ok(())
}
