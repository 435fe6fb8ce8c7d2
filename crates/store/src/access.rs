//! The access log: everything that an operator does.

use shuntyard_protocol::Timestamp;

use crate::{
    Store,
    column::row,
    db::{clean, on, read},
    error::{During, StoreError},
    page::PAGE_MAX,
};

/// What somebody did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAccess {
    pub org: String,
    /// A token's name, or `system`.
    pub actor: String,
    /// Verb and noun, `run.cancel`.
    pub action: String,
    /// What it was done to.
    pub subject: String,
    pub detail: Option<String>,
    /// From where.
    pub address: Option<String>,
}

row! {
    pub struct Access {
        /// Order of the log.
        pub seq: i64,
        pub at: Timestamp,
        pub org: String,
        pub actor: String,
        pub action: String,
        pub subject: String,
        pub detail: Option<String>,
        pub address: Option<String>,
    }
}

pub(crate) const INSERT: &str = "insert into access_log \
    (at, org, actor, action, subject, detail, address) values ($1, $2, $3, $4, $5, $6, $7)";
pub(crate) const LIST: &str = "select * from access_log \
    where (org = $1 or $1 is null) and seq < $2 order by seq desc limit $3";

impl Store {
    pub async fn insert_access(&self, new: &NewAccess, now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.inner.db.begin().await?;
        on!(&mut tx, Db, c => sqlx::query(INSERT)
            .bind(now.0).bind(&new.org).bind(clean(&new.actor)).bind(&new.action)
            .bind(clean(&new.subject)).bind(new.detail.as_deref().map(clean)).bind(&new.address).execute(c).await.map(drop))
        .during("write the access log")?;
        tx.commit().await
    }

    /// Newest first, older than `before`.
    pub async fn access_log(
        &self,
        org: Option<&str>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Access>, StoreError> {
        let limit = i64::from(limit.clamp(1, PAGE_MAX));
        read!(&self.inner.db, Kind, c => sqlx::query_as(LIST)
            .bind(org).bind(before.unwrap_or(i64::MAX)).bind(limit).fetch_all(c).await)
        .during("read the access log")
    }
}
