//! Why the store could not do what it was asked.

use shuntyard_protocol::SegmentId;

/// A failed operation. Variants name the operation and its subject; the cause is the source.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {operation}")]
    Sql {
        operation: &'static str,
        #[source]
        source: sqlx::Error,
    },
    #[error("cannot open the database at {place}")]
    Open {
        /// Without a password.
        place: String,
        #[source]
        source: sqlx::Error,
    },
    #[error("cannot bring the database to this version's schema")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    #[error(
        "the database needs a newer version of shunt: it can be read from level {min_reader} on, \
         and this is level {reader}"
    )]
    TooOld { min_reader: i64, reader: i64 },
    #[error("the queue of org '{org}' is full: it has {max} jobs; try again later")]
    QueueFull { org: String, max: u32 },
    #[error("{what} cannot be stored: {why}")]
    Invalid { what: String, why: String },
    #[error("the stored {what} cannot be understood: {why}")]
    Corrupt { what: &'static str, why: String },
    #[error("cannot {operation} log segment {segment}")]
    Segment {
        operation: &'static str,
        segment: SegmentId,
        #[source]
        source: std::io::Error,
    },
    /// The batch that this was in could not be committed; it may be tried again.
    #[error("the store does not answer: {reason}")]
    Unavailable { reason: String },
    /// The writer has stopped; the process is about to end.
    #[error("the store is shutting down")]
    Closed,
}

impl StoreError {
    /// The transaction lost against another one and would succeed if it were tried again.
    pub(crate) fn is_conflict(&self) -> bool {
        let Self::Sql { source, .. } = self else { return false };
        let Some(error) = source.as_database_error() else { return false };
        // PostgreSQL: serialisation failure, deadlock. SQLite: busy, busy snapshot, locked.
        error.code().is_some_and(|code| {
            matches!(code.as_ref(), "40001" | "40P01" | "5" | "6" | "261" | "517")
        })
    }

    /// The connection broke: nobody knows whether the transaction was committed.
    pub(crate) fn is_disconnect(&self) -> bool {
        let Self::Sql { source, .. } = self else { return false };
        matches!(
            source,
            sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::Protocol(_)
                | sqlx::Error::PoolTimedOut
                | sqlx::Error::WorkerCrashed
        ) || source.as_database_error().is_some_and(|error| {
            // The server is stopping, or was made to drop us.
            error.code().is_some_and(|code| code.starts_with("57P") || code.starts_with("08"))
        })
    }

    /// The statement refused its data; it will do so again, whatever the state of the database.
    pub fn is_poison(&self) -> bool {
        let source = match self {
            Self::Sql { source, .. } => source,
            Self::Corrupt { .. } | Self::Invalid { .. } => return true,
            Self::Open { .. }
            | Self::Migrate(_)
            | Self::TooOld { .. }
            | Self::QueueFull { .. }
            | Self::Segment { .. }
            | Self::Unavailable { .. }
            | Self::Closed => return false,
        };
        let code = source.as_database_error().and_then(sqlx::error::DatabaseError::code);
        code.is_some_and(|code| is_data_error(&code))
            || matches!(
                source,
                sqlx::Error::Encode(_) | sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. }
            )
    }

    /// The row exists already.
    pub fn is_duplicate(&self) -> bool {
        let Self::Sql { source, .. } = self else { return false };
        source.as_database_error().is_some_and(sqlx::error::DatabaseError::is_unique_violation)
    }
}

/// PostgreSQL classes 22 (data) and 23 (constraint); SQLite too big, constraint, mismatch, range.
fn is_data_error(code: &str) -> bool {
    match code.parse::<u32>() {
        Ok(lite) if code.len() < 5 => matches!(lite & 0xff, 18 | 19 | 20 | 25),
        Ok(_) | Err(_) => code.starts_with("22") || code.starts_with("23"),
    }
}

/// Names what a statement was for.
pub(crate) trait During<T> {
    fn during(self, operation: &'static str) -> Result<T, StoreError>;
}

impl<T> During<T> for Result<T, sqlx::Error> {
    fn during(self, operation: &'static str) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::Sql { operation, source })
    }
}
