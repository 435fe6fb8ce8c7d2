//! Writing a decision: one statement per table.

use shuntyard_core::apply::{Decision, Loaded, Touched};
use shuntyard_protocol::{AgentId, RunId, Timestamp};

use super::{portions, save_gates, save_queue};
use crate::{
    db::{Statement, Tx, cells, clean, on},
    error::{During, StoreError},
};

/// Writes everything that a decision touched.
pub(crate) async fn save(
    tx: &mut Tx,
    decision: &Decision,
    now: Timestamp,
) -> Result<(), StoreError> {
    let Decision { loaded, touched, .. } = decision;
    save_runs(tx, loaded, touched).await?;
    save_jobs(tx, loaded, touched).await?;
    save_groups(tx, loaded, touched).await?;
    save_attempts(tx, loaded, touched).await?;
    save_steps(tx, loaded, touched).await?;
    close_steps(tx, touched, now).await?;
    save_gates::leave(tx, &touched.left).await?;
    save_gates::enter(tx, &touched.entered, now).await?;
    save_gates::wake(tx, &touched.wakes, now).await?;
    save_queue::dequeue(tx, &touched.dequeue).await?;
    save_queue::enqueue(tx, &touched.enqueue, now).await?;
    save_queue::announce(tx, &touched.announced, now).await
}

/// Runs of which anything changed that a reader sees.
pub(crate) fn revised(loaded: &Loaded, touched: &Touched) -> Vec<RunId> {
    let mut runs = touched.runs.clone();
    let of_steps = touched.steps.iter().map(|(id, _)| id.job);
    let jobs = touched.jobs.iter().copied().chain(of_steps);
    runs.extend(jobs.filter_map(|job| loaded.jobs.get(&job)).map(|job| job.run));
    runs.into_iter().collect()
}

async fn save_runs(tx: &mut Tx, loaded: &Loaded, touched: &Touched) -> Result<(), StoreError> {
    let runs = revised(loaded, touched);
    for runs in portions(&runs) {
        on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("update run set revision = revision + 1, \
                state = v.column2, cancel_force = v.column3, cancel_reason = v.column4, \
                cancel_by = v.column5, n_waiting = v.column6, n_running = v.column7, \
                n_success = v.column8, n_failed = v.column9, n_timed_out = v.column10, \
                n_cancelled = v.column11, n_skipped = v.column12, n_lost = v.column13, \
                n_tolerated = v.column14, started_at = v.column15, ended_at = v.column16, held = v.column17 from");
            q.push_rows(runs, |id| {
                let run = &loaded.runs[id];
                let (cancel, n) = (run.cancel.as_ref(), run.counts);
                cells![*id, run.state.as_str(), cancel.map(|cancel| cancel.force), cancel.map(|cancel| clean(&cancel.reason)), cancel.map(|cancel| clean(&cancel.by)), n.waiting, n.running, n.success, n.failed, n.timed_out, n.cancelled, n.skipped, n.lost, n.tolerated, run.started_at, run.ended_at, run.held]});
            q.push(" where run.id = v.column1");
            q.done().execute(c).await.map(drop)
        })
        .during("write runs")?;
    }
    Ok(())
}

async fn save_jobs(tx: &mut Tx, loaded: &Loaded, touched: &Touched) -> Result<(), StoreError> {
    let jobs: Vec<_> = touched.jobs.iter().copied().collect();
    for jobs in portions(&jobs) {
        on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("update job set state = v.column2, \
                reason = v.column3, attempt = v.column4, try_no = v.column5, \
                abandoned = v.column6, waiting_for = v.column7, refused = v.column8, \
                cancel_force = v.column9, cancel_reason = v.column10, cancel_by = v.column11, \
                queue_seq = v.column12, queued_at = v.column13, started_at = v.column14, \
                ended_at = v.column15 from");
            q.push_rows(jobs, |id| {
                let job = &loaded.jobs[id];
                let cancel = job.cancel.as_ref();
                cells![*id, job.state.as_str(), job.reason.as_deref().map(clean), job.attempt, job.try_no, job.abandoned, job.waiting_for, agents(&job.refused), cancel.map(|cancel| cancel.force), cancel.map(|cancel| clean(&cancel.reason)), cancel.map(|cancel| clean(&cancel.by)), job.queue_seq, job.queued_at, job.started_at, job.ended_at]});
            q.push(" where job.id = v.column1");
            q.done().execute(c).await.map(drop)
        })
        .during("write jobs")?;
    }
    Ok(())
}

async fn save_groups(tx: &mut Tx, loaded: &Loaded, touched: &Touched) -> Result<(), StoreError> {
    let groups: Vec<_> = touched.groups.iter().collect();
    for groups in portions(&groups) {
        on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("update job_group set open_jobs = v.column3, \
                outcome = v.column4 from");
            q.push_rows(groups, |&key| {
                let group = &loaded.groups[key];
                cells![key.0, &key.1, group.open, group.outcome.as_str()]});
            q.push(" where job_group.run_id = v.column1 and job_group.name = v.column2");
            q.done().execute(c).await.map(drop)
        })
        .during("write groups")?;
    }
    Ok(())
}

async fn save_attempts(tx: &mut Tx, loaded: &Loaded, touched: &Touched) -> Result<(), StoreError> {
    let attempts: Vec<_> = touched.attempts.iter().copied().collect();
    for attempts in portions(&attempts) {
        on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("update attempt set state = v.column3, \
                agent_id = v.column4, key_hash = v.column5, deadline = v.column6, \
                release_at = v.column7, renewed_at = v.column8, seq = v.column9, \
                reason = v.column10, late = v.column11, end_json = v.column12, \
                started_at = v.column13, ended_at = v.column14 from");
            q.push_rows(attempts, |id| {
                let attempt = &loaded.attempts[id];
                cells![id.job, id.attempt, attempt.state.as_str(), attempt.agent, attempt.key_hash.map(|hash| hash.to_vec()), attempt.deadline, attempt.release_at, attempt.renewed_at, attempt.seq.cast_signed(), attempt.reason.as_deref().map(clean), attempt.late.map(shuntyard_protocol::Outcome::as_str), attempt.end.as_ref().map(json), attempt.started_at, attempt.ended_at]});
            q.push(" where attempt.job_id = v.column1 and attempt.attempt = v.column2");
            q.done().execute(c).await.map(drop)
        })
        .during("write attempts")?;
    }
    Ok(())
}

async fn save_steps(tx: &mut Tx, loaded: &Loaded, touched: &Touched) -> Result<(), StoreError> {
    let steps: Vec<_> = touched.steps.iter().copied().collect();
    for steps in portions(&steps) {
        on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("insert into step (job_id, attempt, idx, state, \
                started_at, ended_at, exit_code, error, outputs, tries) select v.* from");
            q.push_rows(steps, |key| {
                let (id, step) = (key.0, &loaded.steps[key]);
                cells![id.job, id.attempt, key.1, step.state.as_str(), step.started_at, step.ended_at, step.exit_code, step.error.as_deref().map(clean), step.outputs.as_ref().map(json), step.tries]});
            q.push(" where v.column1 is not null on conflict (job_id, attempt, idx) do update set state = excluded.state, \
                started_at = excluded.started_at, ended_at = excluded.ended_at, \
                exit_code = excluded.exit_code, error = excluded.error, \
                outputs = excluded.outputs, tries = excluded.tries");
            q.done().execute(c).await.map(drop)
        })
        .during("write steps")?;
    }
    Ok(())
}

/// Steps that still ran when their attempt ended ended with it.
async fn close_steps(tx: &mut Tx, touched: &Touched, now: Timestamp) -> Result<(), StoreError> {
    let attempts: Vec<_> = touched.close_steps.iter().collect();
    for attempts in portions(&attempts) {
        on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("update step set state = v.column3, ended_at = ");
            q.push_bind(now.0).push(" from");
            q.push_rows(attempts, |(id, outcome)| cells![id.job, id.attempt, outcome.as_str()]);
            q.push(" where step.job_id = v.column1 and step.attempt = v.column2 \
                and step.state in ('pending', 'running')");
            q.done().execute(c).await.map(drop)
        })
        .during("end steps")?;
    }
    Ok(())
}

fn agents(ids: &[AgentId]) -> String {
    json(&ids)
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("ids, outputs and ends have only text keys")
}
