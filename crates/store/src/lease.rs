//! Leases, the only form of ownership, and the living coordinators.

use shuntyard_protocol::{InstanceId, Timestamp};

use crate::{
    Store,
    column::row,
    db::{on, read},
    error::{During, StoreError},
};

row! {
    /// A named lease. The epoch grows with every change of holder.
    pub struct Lease {
        pub name: String,
        pub holder: InstanceId,
        pub epoch: u64,
        pub until_at: Timestamp,
    }

    /// One life of a coordinator.
    pub struct Instance {
        pub id: InstanceId,
        pub name: String,
        pub url: Option<String>,
        pub software: String,
        pub started_at: Timestamp,
        pub beat_at: Timestamp,
    }
}

/// A free or expired lease is taken under the next epoch; the holder's own is prolonged.
pub(crate) const ACQUIRE: &str = "insert into lease (name, holder, epoch, until_at) \
    values ($1, $2, 1, $3) on conflict (name) do update set \
    epoch = case when lease.holder = excluded.holder and lease.until_at > $4 \
        then lease.epoch else lease.epoch + 1 end, \
    holder = excluded.holder, until_at = excluded.until_at \
    where lease.until_at <= $4 or lease.holder = excluded.holder returning *";
pub(crate) const RENEW: &str = "update lease set until_at = $4 \
    where name = $1 and holder = $2 and epoch = $3 and until_at > $5";
pub(crate) const RELEASE: &str = "update lease set until_at = 0 \
    where name = $1 and holder = $2 and epoch = $3";
pub(crate) const GET: &str = "select * from lease where name = $1";
pub(crate) const BEAT: &str = "insert into instance (id, name, url, software, started_at, beat_at) \
    values ($1, $2, $3, $4, $5, $6) on conflict (id) do update set name = excluded.name, \
    url = excluded.url, beat_at = excluded.beat_at";
pub(crate) const REMOVE: &str = "delete from instance where id = $1";
pub(crate) const LIST: &str = "select * from instance order by started_at, id";

impl Store {
    /// Takes or prolongs a lease until `until`. Absent: somebody else holds it.
    pub async fn acquire_lease(
        &self,
        name: &str,
        holder: InstanceId,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<Option<Lease>, StoreError> {
        let mut tx = self.inner.db.begin().await?;
        let lease = on!(&mut tx, Db, c => sqlx::query_as(ACQUIRE)
            .bind(name).bind(holder.uuid()).bind(until.0).bind(now.0).fetch_optional(c).await)
        .during("acquire a lease")?;
        tx.commit().await?;
        Ok(lease)
    }

    /// Prolongs a lease of this very epoch; false when it has expired or gone.
    pub async fn renew_lease(
        &self,
        lease: &Lease,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let epoch = lease.epoch.cast_signed();
        let mut tx = self.inner.db.begin().await?;
        let rows = on!(&mut tx, Db, c => sqlx::query(RENEW)
            .bind(&lease.name).bind(lease.holder.uuid()).bind(epoch).bind(until.0).bind(now.0)
            .execute(c).await.map(|done| done.rows_affected()))
        .during("renew a lease")?;
        tx.commit().await?;
        Ok(rows == 1)
    }

    /// Gives a lease back, so that another may have it at once.
    pub async fn release_lease(&self, lease: &Lease) -> Result<(), StoreError> {
        let epoch = lease.epoch.cast_signed();
        let mut tx = self.inner.db.begin().await?;
        on!(&mut tx, Db, c => sqlx::query(RELEASE)
            .bind(&lease.name).bind(lease.holder.uuid()).bind(epoch).execute(c).await.map(drop))
        .during("release a lease")?;
        tx.commit().await
    }

    pub async fn lease(&self, name: &str) -> Result<Option<Lease>, StoreError> {
        read!(&self.inner.db, Kind, c => sqlx::query_as(GET).bind(name).fetch_optional(c).await)
            .during("read a lease")
    }

    /// Says that this coordinator lives.
    pub async fn beat(&self, instance: &Instance) -> Result<(), StoreError> {
        let mut tx = self.inner.db.begin().await?;
        on!(&mut tx, Db, c => sqlx::query(BEAT)
            .bind(instance.id.uuid()).bind(&instance.name).bind(&instance.url)
            .bind(&instance.software).bind(instance.started_at.0).bind(instance.beat_at.0)
            .execute(c).await.map(drop))
        .during("beat")?;
        tx.commit().await
    }

    /// A coordinator left, or is known to be dead.
    pub async fn remove_instance(&self, id: InstanceId) -> Result<(), StoreError> {
        let mut tx = self.inner.db.begin().await?;
        on!(&mut tx, Db, c => sqlx::query(REMOVE).bind(id.uuid()).execute(c).await.map(drop))
            .during("remove an instance")?;
        tx.commit().await
    }

    /// All coordinators that have not left, dead or alive: see `beat_at`.
    pub async fn instances(&self) -> Result<Vec<Instance>, StoreError> {
        read!(&self.inner.db, Kind, c => sqlx::query_as(LIST).fetch_all(c).await)
            .during("list instances")
    }
}
