//! Group commit without a timer: a writer commits what queued up during its last commit.

use std::sync::Arc;

use shuntyard_core::apply::{Answer, Fact, Subject};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::batch::{self, BATCH_MAX, Batch};
use crate::{
    error::StoreError,
    log::{LogAnswer, LogAppend},
    store::Inner,
};

/// Writers with PostgreSQL. Facts are spread over them by run: those about one job keep their order,
/// and no writer waits for another one's lock.
pub(crate) const PG_WRITERS: usize = 4;
/// Facts and chunks that may wait for one writer; more wait with their senders.
const QUEUE_CAPACITY: usize = 2 * BATCH_MAX;
/// Bytes of logs and of heavy facts that may wait for all writers.
const BYTES_CAPACITY: usize = 64 * 1024 * 1024;
/// Below this a fact is not counted: a renewal must never wait behind somebody's log.
const LIGHT_BYTES: usize = 16 * 1024;

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
    Fact(Fact, Reply<Answer>, Option<OwnedSemaphorePermit>),
    Log(LogAppend, Reply<LogAnswer>, OwnedSemaphorePermit),
}

/// The senders' side of all writers.
#[derive(Clone)]
pub(crate) struct Handles {
    queues: Arc<[mpsc::Sender<Queued>]>,
    bytes: Arc<Semaphore>,
}

impl Handles {
    pub(crate) fn new(count: usize) -> (Self, Vec<mpsc::Receiver<Queued>>) {
        let (queues, receivers): (Vec<_>, Vec<_>) =
            (0..count).map(|_| mpsc::channel(QUEUE_CAPACITY)).unzip();
        let bytes = Arc::new(Semaphore::new(BYTES_CAPACITY));
        (Self { queues: queues.into(), bytes }, receivers)
    }

    pub(crate) async fn enqueue(&self, fact: Fact) -> Result<Pending<Answer>, StoreError> {
        let permit = match fact.weight() {
            ..LIGHT_BYTES => None,
            weight => Some(self.room_for(weight).await?),
        };
        let (reply, answer) = oneshot::channel();
        let queue = self.queue(match fact.subject() {
            Subject::Attempt(id) => id.job.spread(),
            Subject::Job(job) => job.spread(),
            Subject::Run(run) => run.spread(),
        });
        queue.send(Queued::Fact(fact, reply, permit)).await.map_err(|_| StoreError::Closed)?;
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
        let permit = self.room_for(chunk.bytes.len()).await?;
        let (reply, answer) = oneshot::channel();
        let queue = self.queue(chunk.id.job.spread());
        queue.send(Queued::Log(chunk, reply, permit)).await.map_err(|_| StoreError::Closed)?;
        Ok(Pending(answer))
    }

    /// Waits until so many bytes more may wait. What is more than all that may is alone.
    async fn room_for(&self, bytes: usize) -> Result<OwnedSemaphorePermit, StoreError> {
        let bytes = u32::try_from(bytes.min(BYTES_CAPACITY)).expect("64 MiB");
        let permit = self.bytes.clone().acquire_many_owned(bytes).await;
        permit.map_err(|_| StoreError::Closed)
    }

    fn queue(&self, spread: u8) -> &mpsc::Sender<Queued> {
        &self.queues[usize::from(spread) % self.queues.len()]
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
                    Queued::Fact(fact, reply, permit) => {
                        batch.facts.push(fact);
                        replies.facts.push(reply);
                        replies.permits.extend(permit);
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
        batch::commit_apart(&self.inner, batch, (self.inner.clock)()).await
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

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use shuntyard_protocol::{
        JobId, RunId, Timestamp,
        agent::{AttemptFact, AttemptId, End},
    };

    use super::*;

    fn ended(outputs: usize) -> Fact {
        let end = End {
            at: Timestamp(0),
            outcome: shuntyard_protocol::Outcome::Success,
            reason: None,
            outputs: Some(serde_json::Value::String("x".repeat(outputs))),
            ends: std::collections::BTreeMap::new(),
            torn: Vec::new(),
        };
        let id = AttemptId { job: JobId::mint(Timestamp(0), [0; 10]), attempt: 1 };
        Fact::Attempt { id, key_hash: [0; 32], seq: 1, fact: AttemptFact::Ended(end) }
    }

    #[tokio::test]
    async fn whatever_touches_a_run_goes_to_one_writer() {
        let (handles, queues) = Handles::new(PG_WRITERS);
        for n in 0..u8::try_from(PG_WRITERS).unwrap() {
            let run = RunId::mint(Timestamp(0), [n; 10]);
            let id =
                AttemptId { job: JobId::mint_in(run, Timestamp(1), [n + 100; 10]), attempt: 1 };
            let (reason, by) = (String::new, String::new);
            let job = id.job;
            for fact in [
                Fact::Lost { id, contained: true },
                Fact::CancelJob { job, force: false, reason: reason(), by: by() },
                Fact::CancelRun { run, force: false, reason: reason(), by: by() },
            ] {
                handles.enqueue(fact).await.unwrap();
            }
            let (bytes, key_hash) = (vec![b'x'], [0; 32]);
            let chunk = LogAppend { id, key_hash, stream: 0, from: 0, bytes, marks: Vec::new() };
            handles.enqueue_log(chunk).await.unwrap();
        }
        assert!(queues.iter().all(|queue| queue.len() == 4));
    }

    #[tokio::test]
    async fn heavy_facts_wait_for_room_and_light_ones_never_do() {
        let (handles, mut queues) = Handles::new(1);
        let quarter = ended(BYTES_CAPACITY / 4 - size_of::<serde_json::Value>());
        for _ in 0..4 {
            handles.enqueue(quarter.clone()).await.unwrap();
        }
        handles.enqueue(ended(LIGHT_BYTES / 2)).await.unwrap();
        let mut more = Box::pin(handles.enqueue(ended(LIGHT_BYTES)));
        let mut once = Context::from_waker(Waker::noop());
        assert!(more.as_mut().poll(&mut once).is_pending());
        drop(queues[0].recv().await.unwrap());
        more.await.unwrap();
    }
}
