//! Opening the store, its clock, and the hints that it gives.

use std::{path::PathBuf, sync::Arc};

use shuntyard_core::apply::{Answer, Fact};
use shuntyard_protocol::{InstanceId, RunId, Timestamp, agent::AttemptId};
use tokio::sync::broadcast;

use crate::{
    apply::{
        batch,
        writer::{self, Pending, Writer},
    },
    db::{Db, read},
    error::{During, StoreError},
    log::{
        LogAnswer, LogAppend,
        segment::{DirSegments, MemorySegments, Segments},
    },
};

/// Hints that a slow listener may fall behind before it loses some; then it must look for itself.
const CHANGES_CAPACITY: usize = 1024;

/// Which database.
#[derive(Clone, PartialEq, Eq)]
pub enum Database {
    /// Gone when the store is dropped; one connection serves reads and writes. For simulations.
    Memory,
    /// An embedded file, created if missing.
    Sqlite(PathBuf),
    /// `postgres://user:password@host/database`.
    Postgres(String),
}

impl Database {
    /// Where it is, without a password.
    pub fn place(&self) -> String {
        match self {
            Self::Memory => "memory".to_owned(),
            Self::Sqlite(path) => path.display().to_string(),
            Self::Postgres(url) => {
                let url = url.split_once('?').map_or(url.as_str(), |(place, _)| place);
                match (url.find("://"), url.rfind('@')) {
                    (Some(scheme), Some(at)) if scheme < at => {
                        format!("{}{}", &url[..scheme + 3], &url[at + 1..])
                    }
                    _ => url.to_owned(),
                }
            }
        }
    }
}

/// The caller's clock. With PostgreSQL it must be set by [`Store::db_now`] again and again.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What [`Store::open`] needs.
#[derive(Clone)]
pub struct Options {
    pub database: Database,
    /// Folder of the log segments; absent: in memory.
    pub segments: Option<PathBuf>,
    /// This life of the process.
    pub instance: InstanceId,
    pub clock: Clock,
}

/// What changed in a commit. Only a hint: whoever misses it finds the change in the rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub runs: Vec<RunId>,
    /// Attempts whose agents must be told to end them.
    pub cancels: Vec<AttemptId>,
    /// Jobs became ready.
    pub queue_ready: bool,
    /// Log streams and where they end now.
    pub logs: Vec<(AttemptId, u32, u64)>,
    /// Attempts that are over.
    pub ended: Vec<AttemptId>,
    /// Deliveries came in.
    pub deliveries: bool,
    /// Somebody may go through a gate, or has to make room there.
    pub gates: bool,
}

/// The database and the log segments. Clones are cheap and share everything.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
    writers: writer::Handles,
}

/// What writers need as well; they end when the last [`Store`] is dropped.
pub(crate) struct Inner {
    pub(crate) db: Db,
    pub(crate) segments: Arc<dyn Segments>,
    pub(crate) instance: InstanceId,
    pub(crate) clock: Clock,
    changes: broadcast::Sender<Change>,
}

impl Store {
    /// Opens the database, refuses one that needs a newer version, and migrates it.
    ///
    /// The caller must run each of the returned writers as a task: [`Store::submit`] and
    /// [`Store::append_log`] wait for them.
    ///
    /// # Errors
    /// When the database cannot be reached or migrated, or is too new.
    pub async fn open(options: Options) -> Result<(Self, Vec<Writer>), StoreError> {
        let db = Db::open(&options.database).await?;
        let segments: Arc<dyn Segments> = match &options.segments {
            Some(folder) => Arc::new(DirSegments::new(folder.clone(), options.instance)),
            None => Arc::new(MemorySegments::new(options.instance)),
        };
        let count = match &db {
            Db::Lite { .. } => 1,
            Db::Pg(_) => writer::PG_WRITERS,
        };
        let (writers, queues) = writer::Handles::new(count);
        let inner = Inner {
            db,
            segments,
            instance: options.instance,
            clock: options.clock,
            changes: broadcast::Sender::new(CHANGES_CAPACITY),
        };
        let inner = Arc::new(inner);
        let tasks = queues.into_iter().map(|queue| Writer::new(inner.clone(), queue)).collect();
        Ok((Self { inner, writers }, tasks))
    }

    /// Hints about what is committed from now on, by this process.
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.inner.changes.subscribe()
    }

    /// Applies facts in order, in as few transactions as they allow, without a writer.
    ///
    /// A fact that cannot be stored is answered [`Answer::Failed`]; the others are not held up.
    ///
    /// # Errors
    /// When the database does not answer; nobody knows then which facts hold. All of them may be
    /// applied again.
    pub async fn apply(&self, facts: Vec<Fact>, now: Timestamp) -> Result<Vec<Answer>, StoreError> {
        batch::apply(&self.inner, facts, now).await
    }

    /// The same for log chunks.
    ///
    /// # Errors
    /// When the database or the segments do not answer. All chunks may be appended again.
    pub async fn append_logs(
        &self,
        logs: Vec<LogAppend>,
        now: Timestamp,
    ) -> Result<Vec<LogAnswer>, StoreError> {
        batch::append(&self.inner, logs, now).await
    }

    /// Facts and log chunks in one transaction, as a writer commits them, without a writer. Facts
    /// do not wait for the storage of logs: each list has its own result.
    pub async fn commit(
        &self,
        facts: Vec<Fact>,
        logs: Vec<LogAppend>,
        now: Timestamp,
    ) -> (Result<Vec<Answer>, StoreError>, Result<Vec<LogAnswer>, StoreError>) {
        batch::commit_apart(&self.inner, batch::Batch { facts, logs }, now).await
    }

    /// Hands a fact to a writer, which commits it with whatever came in meanwhile. Waits when the
    /// writer is far behind. Facts about one job are applied in the order of submission.
    ///
    /// # Errors
    /// When the database does not answer; the fact may be submitted again.
    pub async fn submit(&self, fact: Fact) -> Result<Answer, StoreError> {
        self.enqueue(fact).await?.committed().await
    }

    /// Hands a fact to a writer and returns when it has its place in the queue, so that a sender can
    /// keep the order of many without waiting for a commit each. Waits when the writer is far behind.
    ///
    /// # Errors
    /// When the writer has stopped.
    pub async fn enqueue(&self, fact: Fact) -> Result<Pending<Answer>, StoreError> {
        self.writers.enqueue(fact).await
    }

    /// The same for a log chunk.
    ///
    /// # Errors
    /// When the writer has stopped.
    pub async fn enqueue_log(&self, chunk: LogAppend) -> Result<Pending<LogAnswer>, StoreError> {
        self.writers.enqueue_log(chunk).await
    }

    /// The same for a log chunk: durable when this returns [`LogAnswer::Acked`].
    ///
    /// # Errors
    /// When the database or the segments do not answer; the chunk may be appended again.
    pub async fn append_log(&self, chunk: LogAppend) -> Result<LogAnswer, StoreError> {
        self.enqueue_log(chunk).await?.committed().await
    }

    pub(crate) fn announce(&self, change: Change) {
        self.inner.announce(change);
    }

    /// Database time: what leases, deadlines and order are measured by. With SQLite that is the
    /// clock of the one process.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn db_now(&self) -> Result<Timestamp, StoreError> {
        const NOW: &str = "select (extract(epoch from clock_timestamp()) * 1000)::bigint";
        match &self.inner.db {
            Db::Lite { .. } => Ok((self.inner.clock)()),
            Db::Pg(pool) => sqlx::query_scalar(NOW)
                .fetch_one(pool)
                .await
                .map(Timestamp)
                .during("read the database's clock"),
        }
    }

    /// Answers when the database does.
    ///
    /// # Errors
    /// When it does not.
    pub async fn ping(&self) -> Result<(), StoreError> {
        read!(&self.inner.db, Kind, c => {
            sqlx::query("select 1").execute(c).await.map(drop).during("reach the database")
        })
    }

    /// Closes all connections; waits for those in use.
    pub async fn close(&self) {
        self.inner.db.close().await;
    }
}

impl Inner {
    pub(crate) fn announce(&self, change: Change) {
        if change != Change::default() {
            // Nobody listening is fine.
            drop(self.changes.send(change));
        }
    }
}
