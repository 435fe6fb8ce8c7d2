//! One transaction for many facts and log chunks, and what to do when it fails.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use shuntyard_core::apply::{Answer, Decision, Fact, Loaded, decide};
use shuntyard_protocol::{Timestamp, agent::AttemptId};
use tokio::time;

use super::{
    load::{self, Scope},
    save,
};
use crate::{
    db::Tx,
    error::StoreError,
    log::{LogAnswer, LogAppend, append},
    store::{Change, Inner},
};

/// Most facts and chunks of one transaction.
pub(crate) const BATCH_MAX: usize = 500;
/// How often a batch is tried that lost against another one, or whose connection broke.
const TRIES_MAX: u32 = 5;
/// Before a broken connection is tried again; times the number of the try.
const RECONNECT: Duration = Duration::from_millis(50);

/// Facts and chunks that are committed together. Their order within each list counts.
#[derive(Clone, Default)]
pub(crate) struct Batch {
    pub(crate) facts: Vec<Fact>,
    pub(crate) logs: Vec<LogAppend>,
}

#[derive(Default)]
pub(crate) struct Answers {
    pub(crate) facts: Vec<Answer>,
    pub(crate) logs: Vec<LogAnswer>,
}

impl Batch {
    fn len(&self) -> usize {
        self.facts.len() + self.logs.len()
    }

    /// Two halves; facts before logs.
    fn split(mut self) -> (Self, Self) {
        let half = self.len() / 2;
        let facts = self.facts.split_off(half.min(self.facts.len()));
        let logs = self.logs.split_off(half - self.facts.len());
        (self, Self { facts, logs })
    }
}

pub(crate) async fn apply(
    inner: &Inner,
    facts: Vec<Fact>,
    now: Timestamp,
) -> Result<Vec<Answer>, StoreError> {
    let mut answers = Vec::with_capacity(facts.len());
    for facts in facts.chunks(BATCH_MAX) {
        let batch = Batch { facts: facts.to_vec(), logs: Vec::new() };
        answers.extend(commit(inner, batch, now).await?.facts);
    }
    Ok(answers)
}

pub(crate) async fn append(
    inner: &Inner,
    logs: Vec<LogAppend>,
    now: Timestamp,
) -> Result<Vec<LogAnswer>, StoreError> {
    let mut answers = Vec::with_capacity(logs.len());
    for logs in logs.chunks(BATCH_MAX) {
        let batch = Batch { facts: Vec::new(), logs: logs.to_vec() };
        answers.extend(commit(inner, batch, now).await?.logs);
    }
    Ok(answers)
}

/// Commits a batch so that facts do not wait for the storage of logs: when the segments fail, the
/// facts are committed alone.
pub(crate) async fn commit_apart(
    inner: &Inner,
    mut batch: Batch,
    now: Timestamp,
) -> (Result<Vec<Answer>, StoreError>, Result<Vec<LogAnswer>, StoreError>) {
    match commit(inner, batch.clone(), now).await {
        Ok(answers) => (Ok(answers.facts), Ok(answers.logs)),
        Err(error @ StoreError::Segment { .. }) => {
            batch.logs.clear();
            (commit(inner, batch, now).await.map(|answers| answers.facts), Err(error))
        }
        Err(error) => {
            let reason = error.to_string();
            (Err(error), Err(StoreError::Unavailable { reason }))
        }
    }
}

/// Commits a batch. One that a statement refuses is halved until the item that cannot be stored
/// stands alone and is answered so; the others are committed.
pub(crate) async fn commit(
    inner: &Inner,
    batch: Batch,
    now: Timestamp,
) -> Result<Answers, StoreError> {
    let mut answers = Answers::default();
    // Last in, first out: the left half is pushed last, so that order is kept.
    let mut todo = vec![batch];
    while let Some(batch) = todo.pop() {
        match commit_whole(inner, &batch, now).await {
            Ok((done, change)) => {
                answers.facts.extend(done.facts);
                answers.logs.extend(done.logs);
                inner.announce(change);
            }
            Err(error) if !error.is_poison() => return Err(error),
            Err(error) if batch.len() <= 1 => park(&batch, &error, &mut answers),
            Err(_) => {
                let (left, right) = batch.split();
                todo.push(right);
                todo.push(left);
            }
        }
    }
    Ok(answers)
}

/// Answers the item that cannot be stored.
fn park(batch: &Batch, error: &StoreError, answers: &mut Answers) {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    let reason = format!("{error}: {cause}");
    if let Some(fact) = batch.facts.first() {
        tracing::error!(subject = ?fact.subject(), reason, "a fact cannot be stored");
        answers.facts.push(Answer::Failed { reason });
    } else if let Some(log) = batch.logs.first() {
        tracing::error!(attempt = %log.id, stream = log.stream, reason, "a log cannot be stored");
        answers.logs.push(LogAnswer::Failed { reason });
    }
}

/// Commits a batch as one transaction. After a lost connection nobody knows whether it was
/// committed; it is then decided again from what the rows say, and a fact that holds already is
/// answered like the first time.
async fn commit_whole(
    inner: &Inner,
    batch: &Batch,
    now: Timestamp,
) -> Result<(Answers, Change), StoreError> {
    let mut tries = 1;
    loop {
        match commit_once(inner, batch, now).await {
            Err(error) => match wait_after(tries, &error) {
                Some(Duration::ZERO) => {}
                Some(wait) => time::sleep(wait).await,
                None => return Err(error),
            },
            result => return result,
        }
        tries += 1;
    }
}

/// How long to wait before a batch that failed so often is tried again. None: not at all.
fn wait_after(tries: u32, error: &StoreError) -> Option<Duration> {
    if tries >= TRIES_MAX {
        None
    } else if error.is_conflict() {
        Some(Duration::ZERO)
    } else {
        error.is_disconnect().then_some(RECONNECT * tries)
    }
}

async fn commit_once(
    inner: &Inner,
    batch: &Batch,
    now: Timestamp,
) -> Result<(Answers, Change), StoreError> {
    let mut tx = inner.db.begin().await?;
    let logged: BTreeSet<AttemptId> = batch.logs.iter().map(|log| log.id).collect();
    let scope = Scope::of(&batch.facts);
    let (loaded, mut log_bytes) = load::load(&mut tx, &scope, &logged).await?;
    let decision = decide_all(&mut tx, loaded, &batch.facts, now).await?;
    save::save(&mut tx, &decision, now).await?;
    let logs =
        append::append(&mut tx, inner, &batch.logs, &decision.loaded.attempts, &mut log_bytes, now)
            .await?;
    tx.commit().await?;
    let change = change(&decision, &batch.logs, &logs);
    Ok((Answers { facts: decision.answers, logs }, change))
}

/// Decides; loads more when a cascade of skips leaves what was loaded.
pub(crate) async fn decide_all(
    tx: &mut Tx,
    mut loaded: Loaded,
    facts: &[Fact],
    now: Timestamp,
) -> Result<Decision, StoreError> {
    loop {
        match decide(loaded.clone(), facts, now) {
            Ok(decision) => return Ok(decision),
            // Each round loads at least the groups that were missing, so this ends.
            Err(missing) => load::load_behind(tx, &missing.groups, &mut loaded).await?,
        }
    }
}

/// The hint that a decision gives.
pub(crate) fn change(decision: &Decision, logs: &[LogAppend], answers: &[LogAnswer]) -> Change {
    let touched = &decision.touched;
    let mut ends = BTreeMap::new();
    for (log, answer) in logs.iter().zip(answers) {
        if let LogAnswer::Acked { to } = answer {
            let end = ends.entry((log.id, log.stream)).or_insert(*to);
            *end = (*end).max(*to);
        }
    }
    Change {
        runs: save::revised(&decision.loaded, touched),
        cancels: touched.cancels.iter().copied().collect(),
        queue_ready: !touched.enqueue.is_empty(),
        logs: ends.into_iter().map(|((id, stream), to)| (id, stream, to)).collect(),
        ended: touched.over.iter().copied().collect(),
        deliveries: false,
        gates: !touched.wakes.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_whose_connection_breaks_is_tried_tries_max_times() {
        let broken = StoreError::Sql { operation: "test", source: sqlx::Error::WorkerCrashed };
        assert_eq!(wait_after(1, &broken), Some(RECONNECT));
        assert_eq!(wait_after(TRIES_MAX - 1, &broken), Some(RECONNECT * (TRIES_MAX - 1)));
        assert_eq!(wait_after(TRIES_MAX, &broken), None);
        assert_eq!(wait_after(1, &StoreError::Closed), None);
    }
}
