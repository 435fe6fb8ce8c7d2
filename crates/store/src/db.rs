//! The two databases behind one set of texts.

use std::time::Duration;

use sqlx::{
    PgPool, Postgres, Sqlite, SqlitePool, Transaction,
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use crate::{
    Database,
    error::{During, StoreError},
};

#[cfg(test)]
pub(crate) mod gate;
pub(crate) mod statement;

/// The level of reading that this build understands; a database names the lowest that it needs.
const READER: i64 = 1;
/// How long a SQLite connection waits for another process's lock.
const BUSY: Duration = Duration::from_secs(5);
/// How long anything waits for a connection.
const ACQUIRE: Duration = Duration::from_secs(10);
const LITE_READERS: u32 = 4;
/// Rows that SQLite's thread may be ahead of whoever reads them; by default it waits for every 50th.
const ROW_BUFFER: usize = 1000;
/// Pages that the writing connection keeps in memory: 16 MiB, as a negative number of KiB. It touches
/// the same hot rows in every batch.
const WRITE_CACHE: &str = "-16384";
const PG_CONNECTIONS: u32 = 16;
/// Statements that a connection keeps prepared. SQLite has each in as many forms as its lists have lengths.
const STATEMENTS: usize = 512;

/// Open connections.
#[derive(Clone)]
pub(crate) enum Db {
    /// One connection writes; the others only read. In memory they are the same one.
    Lite {
        write: SqlitePool,
        read: SqlitePool,
    },
    Pg(PgPool),
}

/// An open transaction. Dropped without `commit`, it is rolled back.
pub(crate) enum Tx {
    Lite(Transaction<'static, Sqlite>),
    Pg(Transaction<'static, Postgres>),
}

/// What a statement locks, until the transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    Gates,
    Runs,
    Jobs,
    Attempts,
    /// Jobs and their places in the queue; what somebody else has locked is passed over.
    Claimed,
    /// What an agent brings along.
    Held,
}

/// Runs one body against either database: text and binds are written once.
macro_rules! on {
    ($tx:expr, $db:ident, $c:ident => $body:expr) => {{
        #[cfg(test)]
        $crate::db::gate::pass().await;
        match $tx {
            $crate::db::Tx::Lite(tx) => {
                #[expect(clippy::allow_attributes, reason = "not every body names the type")]
                #[allow(dead_code, reason = "not every body names the type")]
                type $db = sqlx::Sqlite;
                let $c = &mut **tx;
                $body
            }
            $crate::db::Tx::Pg(tx) => {
                #[expect(clippy::allow_attributes, reason = "not every body names the type")]
                #[allow(dead_code, reason = "not every body names the type")]
                type $db = sqlx::Postgres;
                let $c = &mut **tx;
                $body
            }
        }
    }};
}

/// The same for one statement that writes and is a transaction of its own.
macro_rules! alone {
    ($db:expr, $c:ident => $body:expr) => {{
        #[cfg(test)]
        $crate::db::gate::pass().await;
        match $db {
            $crate::db::Db::Lite { write: $c, .. } => $body,
            $crate::db::Db::Pg($c) => $body,
        }
    }};
}

/// The same for reads outside a transaction.
macro_rules! read {
    ($db:expr, $kind:ident, $c:ident => $body:expr) => {
        match $db {
            $crate::db::Db::Lite { read: $c, .. } => {
                #[expect(clippy::allow_attributes, reason = "not every body names the type")]
                #[allow(dead_code, reason = "not every body names the type")]
                type $kind = sqlx::Sqlite;
                $body
            }
            $crate::db::Db::Pg($c) => {
                #[expect(clippy::allow_attributes, reason = "not every body names the type")]
                #[allow(dead_code, reason = "not every body names the type")]
                type $kind = sqlx::Postgres;
                $body
            }
        }
    };
}

/// How often an operation is tried that lost against another transaction.
pub(crate) const CONFLICT_TRIES: u32 = 5;

/// Repeats an operation that a deadlock or serialisation failure ended; nothing of it was kept.
macro_rules! again {
    ($operation:expr) => {{
        let mut tries = 1;
        loop {
            match $operation.await {
                Err(error) if error.is_conflict() && tries < $crate::db::CONFLICT_TRIES => {
                    tries += 1;
                }
                result => break result,
            }
        }
    }};
}

pub(crate) use statement::{Statement, cells};
pub(crate) use {again, alone, on, read};

impl Db {
    pub(crate) async fn open(database: &Database) -> Result<Self, StoreError> {
        let place = database.place();
        let open = |source| StoreError::Open { place: place.clone(), source };
        let db = match database {
            Database::Memory => {
                let pool = memory_pool().await.map_err(open)?;
                Self::Lite { write: pool.clone(), read: pool }
            }
            Database::Sqlite(path) => {
                let options = SqliteConnectOptions::new()
                    .filename(path)
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    .synchronous(SqliteSynchronous::Full)
                    .row_buffer_size(ROW_BUFFER)
                    .statement_cache_capacity(STATEMENTS)
                    .busy_timeout(BUSY);
                let writer = options.clone().pragma("cache_size", WRITE_CACHE);
                let write = lite_pool(1).connect_with(writer).await.map_err(open)?;
                let read = lite_pool(LITE_READERS).connect_with(options.read_only(true));
                Self::Lite { write, read: read.await.map_err(open)? }
            }
            Database::Postgres(url) => {
                let options: PgConnectOptions = url.parse().map_err(open)?;
                let options = options.statement_cache_capacity(STATEMENTS);
                let pool = PgPoolOptions::new()
                    .max_connections(PG_CONNECTIONS)
                    .acquire_timeout(ACQUIRE)
                    .connect_with(options);
                Self::Pg(pool.await.map_err(open)?)
            }
        };
        db.migrate().await?;
        Ok(db)
    }

    /// Refuses a database that needs a newer reader; then brings it up to date.
    async fn migrate(&self) -> Result<(), StoreError> {
        const EXISTS_LITE: &str = "select count(*) from sqlite_master where name = 'meta'";
        const EXISTS_PG: &str = "select count(*) from pg_tables \
            where tablename = 'meta' and schemaname = current_schema()";
        const MIN_READER: &str = "select cast(value as bigint) from meta where key = 'min_reader'";
        let during = "read the schema's level";
        let exists: i64 = match self {
            Self::Lite { write, .. } => sqlx::query_scalar(EXISTS_LITE).fetch_one(write).await,
            Self::Pg(pool) => sqlx::query_scalar(EXISTS_PG).fetch_one(pool).await,
        }
        .during(during)?;
        if exists > 0 {
            let min_reader: i64 = match self {
                Self::Lite { write, .. } => sqlx::query_scalar(MIN_READER).fetch_one(write).await,
                Self::Pg(pool) => sqlx::query_scalar(MIN_READER).fetch_one(pool).await,
            }
            .during(during)?;
            if min_reader > READER {
                return Err(StoreError::TooOld { min_reader, reader: READER });
            }
        }
        // A database that a later version has migrated is fine as long as we may read it.
        match self {
            Self::Lite { write, .. } => {
                let mut migrator = sqlx::migrate!("migrations/sqlite");
                migrator.set_ignore_missing(true).run(write).await
            }
            Self::Pg(pool) => {
                let mut migrator = sqlx::migrate!("migrations/postgres");
                migrator.set_ignore_missing(true).run(pool).await
            }
        }
        .map_err(StoreError::Migrate)
    }

    /// Begins a write transaction. With SQLite it has the write lock from here on.
    pub(crate) async fn begin(&self) -> Result<Tx, StoreError> {
        match self {
            Self::Lite { write, .. } => write.begin_with("begin immediate").await.map(Tx::Lite),
            Self::Pg(pool) => pool.begin().await.map(Tx::Pg),
        }
        .during("begin a transaction")
    }

    pub(crate) async fn close(&self) {
        match self {
            Self::Lite { write, read } => {
                read.close().await;
                write.close().await;
            }
            Self::Pg(pool) => pool.close().await,
        }
    }
}

impl Tx {
    pub(crate) async fn commit(self) -> Result<(), StoreError> {
        #[cfg(test)]
        gate::pass().await;
        match self {
            Self::Lite(tx) => tx.commit().await,
            Self::Pg(tx) => tx.commit().await,
        }
        .during("commit")
    }

    /// The suffix of a statement that locks what it reads; with SQLite everything is locked already.
    pub(crate) fn lock(&self, lock: Lock) -> &'static str {
        #[cfg(test)]
        if gate::unlocked(lock) {
            return "";
        }
        match (self, lock) {
            (Self::Lite(_), _) => "",
            (Self::Pg(_), Lock::Gates | Lock::Runs | Lock::Jobs) => " for update",
            (Self::Pg(_), Lock::Attempts) => " for update of t",
            // What is read of a row that is not locked may be older than what is read of one that is.
            (Self::Pg(_), Lock::Held) => " for update of j, a",
            // The job's row is locked as well: `apply` locks it before it takes a job out of the
            // queue.
            (Self::Pg(_), Lock::Claimed) => " for update of j, q skip locked",
        }
    }

    pub(crate) fn is_pg(&self) -> bool {
        matches!(self, Self::Pg(_))
    }
}

fn lite_pool(connections: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(connections)
        .min_connections(1)
        .acquire_timeout(ACQUIRE)
        .idle_timeout(None)
        .max_lifetime(None)
}

/// The database lives as long as its only connection.
async fn memory_pool() -> sqlx::Result<SqlitePool> {
    lite_pool(1).connect_with(SqliteConnectOptions::new().in_memory(true)).await
}

/// A text from outside, without the one character that PostgreSQL cannot store in a text.
pub(crate) fn clean(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
