//! Group commit without a timer: a writer commits what queued up during its last commit.

use std::{hash::Hasher, sync::Arc};

use shuntyard_core::apply::{Answer, Fact, Subject};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use uuid::Uuid;

use super::batch::{self, BATCH_MAX, Batch};
use crate::{
    error::StoreError,
    log::{LogAnswer, LogAppend},
    store::Inner,
};

/// Writers with PostgreSQL. Facts are spread over them by job, so those about one job keep their
/// order; two writers that meet in one run follow one another at its lock.
pub(crate) const PG_WRITERS: usize = 4;
/// Facts and chunks that may wait for one writer; more wait with their senders.
const QUEUE_CAPACITY: usize = 2 * BATCH_MAX;
/// Log bytes that may wait for all writers.
const LOG_BYTES_CAPACITY: usize = 64 * 1024 * 1024;

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// Something that waits in a writer's queue, in its place.
#[derive(Debug)]
pub struct Pending<T>(oneshot::Receiver<Result<T, StoreError>>);

impl<T> Pending<T> {
    /// What became of it, once the batch that it went into is committed.
    ///
    /// # Errors
    /// When the database does not answer; it may be enqueued again.
    pub async fn committed(self) -> Result<T, StoreError> {
        self.0.await.map_err(|_| StoreError::Closed)?
    }
}

/// Something to commit, and whom to tell.
pub(crate) enum Queued {
    Fact(Fact, Reply<Answer>),
    Log(LogAppend, Reply<LogAnswer>, OwnedSemaphorePermit),
}

/// The senders' side of all writers.
#[derive(Clone)]
pub(crate) struct Handles {
    queues: Arc<[mpsc::Sender<Queued>]>,
    log_bytes: Arc<Semaphore>,
}

impl Handles {
    pub(crate) fn new(count: usize) -> (Self, Vec<mpsc::Receiver<Queued>>) {
        let (queues, receivers): (Vec<_>, Vec<_>) =
            (0..count).map(|_| mpsc::channel(QUEUE_CAPACITY)).unzip();
        let log_bytes = Arc::new(Semaphore::new(LOG_BYTES_CAPACITY));
        (Self { queues: queues.into(), log_bytes }, receivers)
    }

    pub(crate) async fn enqueue(&self, fact: Fact) -> Result<Pending<Answer>, StoreError> {
        let (reply, answer) = oneshot::channel();
        let queue = self.queue(match fact.subject() {
            Subject::Attempt(id) => id.job.uuid(),
            Subject::Job(job) => job.uuid(),
            Subject::Run(run) => run.uuid(),
        });
        queue.send(Queued::Fact(fact, reply)).await.map_err(|_| StoreError::Closed)?;
        Ok(Pending(answer))
    }

    pub(crate) async fn enqueue_log(
        &self,
        chunk: LogAppend,
    ) -> Result<Pending<LogAnswer>, StoreError> {
        if let Some(reason) = chunk.fault() {
            let (reply, answer) = oneshot::channel();
            drop(reply.send(Ok(LogAnswer::Failed { reason })));
            return Ok(Pending(answer));
        }
        let bytes = u32::try_from(chunk.bytes.len()).expect("a chunk is shorter than 4 GiB");
        let permit = self.log_bytes.clone().acquire_many_owned(bytes).await;
        let permit = permit.map_err(|_| StoreError::Closed)?;
        let (reply, answer) = oneshot::channel();
        let queue = self.queue(chunk.id.job.uuid());
        queue.send(Queued::Log(chunk, reply, permit)).await.map_err(|_| StoreError::Closed)?;
        Ok(Pending(answer))
    }

    fn queue(&self, id: Uuid) -> &mpsc::Sender<Queued> {
        // The tail of a UUIDv7 is random; a hash spreads also those of simulations.
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write(id.as_bytes());
        let count = self.queues.len() as u64;
        &self.queues[usize::try_from(hasher.finish() % count).expect("an index of a list")]
    }
}

/// Commits what is submitted, until the last [`Store`](crate::Store) is dropped.
pub struct Writer {
    inner: Arc<Inner>,
    queue: mpsc::Receiver<Queued>,
}

/// Whom to tell what became of a batch, in its order.
#[derive(Default)]
struct Replies {
    facts: Vec<Reply<Answer>>,
    logs: Vec<Reply<LogAnswer>>,
    /// Given back when the bytes are no longer in memory.
    permits: Vec<OwnedSemaphorePermit>,
}

impl Writer {
    pub(crate) fn new(inner: Arc<Inner>, queue: mpsc::Receiver<Queued>) -> Self {
        Self { inner, queue }
    }

    /// Runs until the last store is dropped. A batch that cannot be committed is answered with an
    /// error, and its senders try again.
    pub async fn run(mut self) {
        let mut queued = Vec::with_capacity(BATCH_MAX);
        while self.queue.recv_many(&mut queued, BATCH_MAX).await > 0 {
            let mut batch = Batch::default();
            let mut replies = Replies::default();
            for item in queued.drain(..) {
                match item {
                    Queued::Fact(fact, reply) => {
                        batch.facts.push(fact);
                        replies.facts.push(reply);
                    }
                    Queued::Log(chunk, reply, permit) => {
                        batch.logs.push(chunk);
                        replies.logs.push(reply);
                        replies.permits.push(permit);
                    }
                }
            }
            let (facts, logs) = self.commit(batch).await;
            answer(replies.facts, facts);
            answer(replies.logs, logs);
        }
    }

    async fn commit(
        &self,
        batch: Batch,
    ) -> (Result<Vec<Answer>, StoreError>, Result<Vec<LogAnswer>, StoreError>) {
        match self.inner.now().await {
            Ok(now) => batch::commit_apart(&self.inner, batch, now).await,
            Err(error) => {
                let reason = error.to_string();
                (Err(error), Err(StoreError::Unavailable { reason }))
            }
        }
    }
}

/// Tells everybody; a sender that no longer waits will ask again.
fn answer<T>(replies: Vec<Reply<T>>, result: Result<Vec<T>, StoreError>) {
    match result {
        Ok(answers) => {
            for (reply, answer) in replies.into_iter().zip(answers) {
                drop(reply.send(Ok(answer)));
            }
        }
        Err(error) => {
            let reason = chain(&error);
            if !replies.is_empty() {
                tracing::warn!(reason, count = replies.len(), "a batch was not committed");
            }
            for reply in replies {
                drop(reply.send(Err(StoreError::Unavailable { reason: reason.clone() })));
            }
        }
    }
}

/// An error with its cause, in one line.
fn chain(error: &StoreError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
