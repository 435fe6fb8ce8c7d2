//! The outbox: a run changed its state, and others may have to be told.
//!
//! `apply` and `create_runs` write the rows in their own transactions. A sender leases them, drives
//! the other side to the state the run has by then, and marks them done.

use std::time::Duration;

use shuntyard_core::state::RunState;
use shuntyard_protocol::{InstanceId, RunId, Timestamp};

use crate::{
    Store,
    column::row,
    db::on,
    error::{During, StoreError},
};

row! {
    pub struct Outgoing {
        pub seq: i64,
        pub org: String,
        pub run_id: RunId,
        /// The state to tell; a later row of the run may overtake it.
        pub state: RunState,
        pub tries: u32,
        pub created_at: Timestamp,
    }
}

pub(crate) const LEASE: &str = "update outbox set owner = $1, next_at = $2, tries = tries + 1 \
    where seq in (select seq from outbox where done_at is null and next_at <= $3 \
    order by seq limit $4) returning seq, org, run_id, state, tries, created_at";
pub(crate) const LEASE_PG: &str = "update outbox set owner = $1, next_at = $2, \
    tries = tries + 1 where seq in (select seq from outbox where done_at is null \
    and next_at <= $3 order by seq limit $4 for update skip locked) \
    returning seq, org, run_id, state, tries, created_at";
pub(crate) const DONE: &str =
    "update outbox set done_at = $2, error = null where seq = $1 and done_at is null";
pub(crate) const RETRY: &str =
    "update outbox set next_at = $2, error = $3 where seq = $1 and done_at is null";

impl Store {
    /// Takes up to `limit` due rows until `now + lease`, in order.
    pub async fn lease_outbox(
        &self,
        owner: InstanceId,
        limit: u32,
        lease: Duration,
        now: Timestamp,
    ) -> Result<Vec<Outgoing>, StoreError> {
        let (until, limit) = ((now + lease).0, i64::from(limit));
        let mut tx = self.inner.db.begin().await?;
        let text = if tx.is_pg() { LEASE_PG } else { LEASE };
        let mut rows: Vec<Outgoing> = on!(&mut tx, Db, c => sqlx::query_as(text)
            .bind(owner.uuid()).bind(until).bind(now.0).bind(limit).fetch_all(c).await)
        .during("lease the outbox")?;
        tx.commit().await?;
        rows.sort_by_key(|row| row.seq);
        Ok(rows)
    }

    pub async fn outbox_done(&self, seq: i64, now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.inner.db.begin().await?;
        on!(&mut tx, Db, c => sqlx::query(DONE).bind(seq).bind(now.0).execute(c).await.map(drop))
            .during("finish an outbox row")?;
        tx.commit().await
    }

    pub async fn outbox_retry(
        &self,
        seq: i64,
        next_at: Timestamp,
        error: &str,
    ) -> Result<(), StoreError> {
        let mut tx = self.inner.db.begin().await?;
        on!(&mut tx, Db, c => sqlx::query(RETRY).bind(seq).bind(next_at.0).bind(error)
            .execute(c).await.map(drop))
        .during("put an outbox row off")?;
        tx.commit().await
    }
}
