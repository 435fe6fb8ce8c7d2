//! The cluster's row: who this database belongs to, and whether a master key is the right one.

use shuntyard_protocol::Timestamp;

use crate::{
    Store,
    column::row,
    db::{on, read},
    error::{During, StoreError},
};

row! {
    pub struct Cluster {
        pub id: String,
        /// A value that only the right master key explains; opaque here.
        pub key_check: Vec<u8>,
        pub created_at: Timestamp,
    }
}

pub(crate) const INSERT: &str = "insert into cluster (singleton, id, key_check, created_at) \
    values (1, $1, $2, $3) on conflict (singleton) do nothing";
pub(crate) const GET: &str = "select id, key_check, created_at from cluster";

impl Store {
    /// The cluster's row. Absent: nobody has started with this database yet.
    pub async fn known_cluster(&self) -> Result<Option<Cluster>, StoreError> {
        read!(&self.inner.db, Kind, c => sqlx::query_as(GET).fetch_optional(c).await)
            .during("read the cluster's row")
    }

    /// The cluster's row; the first caller's values make it. The caller compares the key check.
    pub async fn cluster(
        &self,
        id: &str,
        key_check: &[u8],
        now: Timestamp,
    ) -> Result<Cluster, StoreError> {
        let during = "read the cluster's row";
        let mut tx = self.inner.db.begin().await?;
        on!(&mut tx, Db, c => sqlx::query(INSERT).bind(id).bind(key_check).bind(now.0)
            .execute(c).await.map(drop))
        .during(during)?;
        let cluster =
            on!(&mut tx, Db, c => sqlx::query_as(GET).fetch_one(c).await).during(during)?;
        tx.commit().await?;
        Ok(cluster)
    }
}
