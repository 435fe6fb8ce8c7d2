//! Sources: configured origins of events and code.

use serde_json::Value;
use shuntyard_protocol::{SourceId, Timestamp};

use crate::{
    Store,
    column::row,
    db::{on, read},
    error::{During, StoreError},
};

row! {
    /// One source. What its settings mean is the server's business.
    pub struct Source {
        pub id: SourceId,
        pub org: String,
        pub name: String,
        /// github, generic, local …
        pub kind: String,
        /// The only place code is fetched from.
        pub url: String,
        pub settings: Value,
        /// Sealed by the server.
        pub secrets: Option<Vec<u8>>,
        pub created_at: Timestamp,
        pub updated_at: Timestamp,
    }
}

pub(crate) const INSERT: &str = "insert into source \
    (id, org, name, kind, url, settings, secrets, created_at, updated_at) \
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict (org, name) do nothing";
pub(crate) const UPDATE: &str = "update source set kind = $2, url = $3, settings = $4, \
    secrets = $5, updated_at = $6 where id = $1";
pub(crate) const BY_NAME: &str = "select * from source where org = $1 and name = $2";
pub(crate) const BY_ID: &str = "select * from source where id = $1";
pub(crate) const LIST: &str =
    "select * from source where (org = $1 or $1 is null) order by org, name";
pub(crate) const REMOVE: &str = "delete from source where id = $1";

impl Store {
    /// Adds a source; false when the org has one of that name.
    pub async fn insert_source(&self, source: &Source) -> Result<bool, StoreError> {
        let mut tx = self.inner.db.begin().await?;
        let rows = on!(&mut tx, Db, c => sqlx::query(INSERT)
            .bind(source.id.uuid()).bind(&source.org).bind(&source.name).bind(&source.kind)
            .bind(&source.url).bind(source.settings.to_string()).bind(&source.secrets)
            .bind(source.created_at.0).bind(source.updated_at.0)
            .execute(c).await.map(|done| done.rows_affected()))
        .during("add a source")?;
        tx.commit().await?;
        Ok(rows == 1)
    }

    /// Replaces everything but id, org, name and creation; false when it is gone.
    pub async fn update_source(&self, source: &Source) -> Result<bool, StoreError> {
        let mut tx = self.inner.db.begin().await?;
        let rows = on!(&mut tx, Db, c => sqlx::query(UPDATE)
            .bind(source.id.uuid()).bind(&source.kind).bind(&source.url)
            .bind(source.settings.to_string()).bind(&source.secrets).bind(source.updated_at.0)
            .execute(c).await.map(|done| done.rows_affected()))
        .during("change a source")?;
        tx.commit().await?;
        Ok(rows == 1)
    }

    pub async fn source_named(&self, org: &str, name: &str) -> Result<Option<Source>, StoreError> {
        read!(&self.inner.db, Kind, c => {
            sqlx::query_as(BY_NAME).bind(org).bind(name).fetch_optional(c).await
        })
        .during("read a source")
    }

    pub async fn source(&self, id: SourceId) -> Result<Option<Source>, StoreError> {
        read!(&self.inner.db, Kind, c => {
            sqlx::query_as(BY_ID).bind(id.uuid()).fetch_optional(c).await
        })
        .during("read a source")
    }

    /// All sources of one org, or of all.
    pub async fn sources(&self, org: Option<&str>) -> Result<Vec<Source>, StoreError> {
        read!(&self.inner.db, Kind, c => sqlx::query_as(LIST).bind(org).fetch_all(c).await)
            .during("list sources")
    }

    /// Removes a source; its runs stay. False when it is gone already.
    pub async fn remove_source(&self, id: SourceId) -> Result<bool, StoreError> {
        let mut tx = self.inner.db.begin().await?;
        let rows = on!(&mut tx, Db, c => sqlx::query(REMOVE).bind(id.uuid())
            .execute(c).await.map(|done| done.rows_affected()))
        .during("remove a source")?;
        tx.commit().await?;
        Ok(rows == 1)
    }
}
