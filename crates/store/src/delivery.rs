//! The inbox: a delivery is a row before its sender gets an answer.

use std::time::Duration;

use serde_json::Value;
use shuntyard_core::mutant::{self, Mutant};
use shuntyard_protocol::{DeliveryId, EventId, InstanceId, SourceId, Timestamp};

use crate::{
    Store,
    column::row,
    db::{Tx, again, alone, clean, on, read},
    error::{During, StoreError},
    page::{Cursor, Page, fetch},
    store::Change,
};

/// For this long the same body again is a replay, where bodies are compared at all.
pub const REPLAY_WINDOW: Duration = Duration::from_hours(30 * 24);

/// A delivery to be stored.
#[derive(Clone, Debug, PartialEq)]
pub struct NewDelivery {
    pub id: DeliveryId,
    pub org: String,
    pub source: SourceId,
    /// The sender's own id of it; the same again is the same delivery.
    pub delivery_key: String,
    /// SHA-256 of the body, where the sender does not sign the id (GitHub): the same body within
    /// [`REPLAY_WINDOW`] is a replay.
    pub body_digest: Option<[u8; 32]>,
    /// The sender's name for what happened.
    pub kind: String,
    /// What of the headers is kept.
    pub headers: Value,
    pub body: Vec<u8>,
}

/// What became of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    New,
    /// It was there before, under this id.
    Duplicate(DeliveryId),
}

row! {
    pub struct Delivery {
        pub id: DeliveryId,
        pub org: String,
        pub source_id: SourceId,
        pub delivery_key: String,
        pub kind: String,
        pub headers: Value,
        pub body: Vec<u8>,
        /// `pending`, or how it ended.
        pub state: String,
        /// What came of it, for people.
        pub outcome: Option<String>,
        pub event_id: Option<EventId>,
        pub tries: u32,
        pub error: Option<String>,
        pub created_at: Timestamp,
        pub ended_at: Option<Timestamp>,
    }

    /// A delivery in a list: without its body.
    pub struct DeliveryHead {
        pub id: DeliveryId,
        pub org: String,
        pub source_id: SourceId,
        pub delivery_key: String,
        pub kind: String,
        pub state: String,
        pub outcome: Option<String>,
        pub event_id: Option<EventId>,
        pub tries: u32,
        pub error: Option<String>,
        pub created_at: Timestamp,
        pub ended_at: Option<Timestamp>,
    }
}

pub(crate) const INSERT: &str = "insert into delivery (id, org, source_id, delivery_key, \
    body_digest, kind, headers, body, state, next_at, tries, created_at) \
    values ($1, $2, $3, $4, $5, $6, $7, $8, 'pending', $9, 0, $9) on conflict do nothing";
/// How many rows were inserted: one, or none because the same was there.
macro_rules! insert {
    ($c:ident, $new:ident, $now:ident) => {
        sqlx::query(INSERT)
            .bind($new.id.uuid())
            .bind(&$new.org)
            .bind($new.source.uuid())
            .bind(&$new.delivery_key)
            .bind($new.body_digest.map(|digest| digest.to_vec()))
            .bind(&$new.kind)
            .bind($new.headers.to_string())
            .bind(&$new.body)
            .bind($now.0)
            .execute($c)
            .await
            .map(|done| done.rows_affected())
    };
}

pub(crate) const SAME: &str = "select id from delivery where source_id = $1 \
    and (delivery_key = $2 or body_digest = $3) order by created_at desc limit 1";
/// A replay that is old enough is a delivery of its own.
pub(crate) const FORGET: &str = "update delivery set body_digest = null \
    where source_id = $1 and body_digest = $2 and created_at <= $3";
pub(crate) const AGAIN: &str = "update delivery set next_at = $2 where state = 'pending' \
    and owner = $1 returning *";
pub(crate) const LEASE: &str = "update delivery set owner = $1, next_at = $2, tries = tries + 1 \
    where id in (select id from delivery where state = 'pending' and next_at <= $3 \
    order by next_at, id limit $4) returning *";
pub(crate) const ADOPT: &str = "update delivery set next_at = $1, owner = null \
    where state = 'pending' and owner is not null and next_at > $1 and not exists \
    (select 1 from instance where instance.id = delivery.owner and instance.beat_at >= $2)";
pub(crate) const LEASE_PG: &str = "update delivery set owner = $1, next_at = $2, \
    tries = tries + 1 where id in (select id from delivery where state = 'pending' \
    and next_at <= $3 order by next_at, id limit $4 for update skip locked) returning *";
pub(crate) const FINISH: &str = "update delivery set state = $2, outcome = $3, event_id = $4, \
    ended_at = $5, error = null, owner = null where id = $1 and state = 'pending'";
pub(crate) const RETRY: &str = "update delivery set next_at = $2, error = $3, owner = null \
    where id = $1 and state = 'pending'";
pub(crate) const BY_ID: &str = "select * from delivery where id = $1";
pub(crate) const LIST: &str = "select id, org, source_id, delivery_key, kind, state, outcome, \
    event_id, tries, error, created_at, ended_at from delivery \
    where (org = $1 or $1 is null) and (source_id = $2 or $2 is null) \
    and (created_at, id) < ($3, $4) order by created_at desc, id desc limit $5";

impl Store {
    /// Stores a delivery once; when this returns, the sender may be answered 2xx.
    pub async fn insert_delivery(
        &self,
        new: &NewDelivery,
        now: Timestamp,
    ) -> Result<Inserted, StoreError> {
        let inserted = if again!(self.insert_new(new, now))? {
            Inserted::New
        } else {
            again!(self.insert_delivery_once(new, now))?
        };
        if inserted == Inserted::New {
            self.announce(Change { deliveries: true, ..Change::default() });
        }
        Ok(inserted)
    }

    /// Whether nothing was in the way, as it nearly always is: that takes one statement.
    async fn insert_new(&self, new: &NewDelivery, now: Timestamp) -> Result<bool, StoreError> {
        let rows = alone!(&self.inner.db, c => insert!(c, new, now)).during("store a delivery")?;
        Ok(rows == 1)
    }

    async fn insert_delivery_once(
        &self,
        new: &NewDelivery,
        now: Timestamp,
    ) -> Result<Inserted, StoreError> {
        let during = "store a delivery";
        let digest = new.body_digest.map(|digest| digest.to_vec());
        let mut tx = self.inner.db.begin().await?;
        if let Some(digest) = &digest {
            let old = now - REPLAY_WINDOW;
            on!(&mut tx, Db, c => sqlx::query(FORGET).bind(new.source.uuid()).bind(digest)
                .bind(old.0).execute(c).await.map(drop))
            .during(during)?;
        }
        let rows = on!(&mut tx, Db, c => insert!(c, new, now)).during(during)?;
        if rows == 1 {
            tx.commit().await?;
            return Ok(Inserted::New);
        }
        let same: uuid::Uuid = on!(&mut tx, Db, c => sqlx::query_scalar(SAME)
            .bind(new.source.uuid()).bind(&new.delivery_key).bind(&digest).fetch_one(c).await)
        .during(during)?;
        tx.commit().await?;
        let same = DeliveryId::from_uuid(same);
        Ok(if same == new.id { Inserted::New } else { Inserted::Duplicate(same) })
    }

    /// Takes up to `limit` due deliveries, oldest first, until `now + lease`; then they are due
    /// again, unless finished. Whoever asks works on nothing any more: what it has leased already
    /// comes before anything else, and that something interrupted it was no try.
    pub async fn lease_deliveries(
        &self,
        owner: InstanceId,
        limit: u32,
        lease: Duration,
        now: Timestamp,
    ) -> Result<Vec<Delivery>, StoreError> {
        let (until, limit) = ((now + lease).0, i64::from(limit));
        let mut tx = self.inner.db.begin().await?;
        let mut taken: Vec<Delivery> = on!(&mut tx, Db, c => sqlx::query_as(AGAIN)
            .bind(owner.uuid()).bind(until).fetch_all(c).await)
        .during("lease deliveries again")?;
        if mutant::on(Mutant::ForgetInterrupted) {
            taken.clear();
        }
        if taken.is_empty() {
            let text = if tx.is_pg() { LEASE_PG } else { LEASE };
            taken = on!(&mut tx, Db, c => sqlx::query_as(text)
                .bind(owner.uuid()).bind(until).bind(now.0).bind(limit).fetch_all(c).await)
            .during("lease deliveries")?;
        }
        tx.commit().await?;
        taken.sort_by_key(|delivery| (delivery.created_at, delivery.id));
        Ok(taken)
    }

    /// Makes deliveries due whose coordinator left, or has not said since `beaten_since` that it
    /// lives; returns how many.
    pub async fn adopt_deliveries(
        &self,
        beaten_since: Timestamp,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let mut tx = self.inner.db.begin().await?;
        let adopted = on!(&mut tx, Db, c => sqlx::query(ADOPT)
            .bind(now.0).bind(beaten_since.0).execute(c).await.map(|done| done.rows_affected()))
        .during("adopt deliveries")?;
        tx.commit().await?;
        Ok(adopted)
    }

    /// Ends a delivery: `state` is `done`, `ignored` or `failed`, `outcome` says what came of it.
    /// False when it had ended before.
    pub async fn finish_delivery(
        &self,
        id: DeliveryId,
        state: &str,
        outcome: &str,
        event: Option<EventId>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut tx = self.inner.db.begin().await?;
        let done = finish(&mut tx, id, state, outcome, event, now).await?;
        tx.commit().await?;
        Ok(done)
    }

    /// Makes a delivery due again at `next_at`, with what went wrong.
    pub async fn retry_delivery(
        &self,
        id: DeliveryId,
        next_at: Timestamp,
        error: &str,
    ) -> Result<bool, StoreError> {
        let mut tx = self.inner.db.begin().await?;
        let rows = on!(&mut tx, Db, c => sqlx::query(RETRY).bind(id.uuid()).bind(next_at.0)
            .bind(clean(error)).execute(c).await.map(|done| done.rows_affected()))
        .during("put a delivery off")?;
        tx.commit().await?;
        Ok(rows == 1)
    }

    pub async fn delivery(&self, id: DeliveryId) -> Result<Option<Delivery>, StoreError> {
        read!(&self.inner.db, Kind, c => {
            sqlx::query_as(BY_ID).bind(id.uuid()).fetch_optional(c).await
        })
        .during("read a delivery")
    }

    /// Deliveries of an org or source, newest first.
    pub async fn deliveries(
        &self,
        org: Option<&str>,
        source: Option<SourceId>,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<DeliveryHead>, StoreError> {
        let after = after.unwrap_or(Cursor::START);
        let rows = read!(&self.inner.db, Kind, c => sqlx::query_as(LIST)
            .bind(org).bind(source.map(SourceId::uuid)).bind(after.at.0).bind(after.id)
            .bind(fetch(limit)).fetch_all(c).await)
        .during("list deliveries")?;
        Ok(Page::new(rows, limit, |row: &DeliveryHead| Cursor {
            at: row.created_at,
            id: row.id.uuid(),
        }))
    }
}

pub(crate) async fn finish(
    tx: &mut Tx,
    id: DeliveryId,
    state: &str,
    outcome: &str,
    event: Option<EventId>,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let rows = on!(tx, Db, c => sqlx::query(FINISH)
        .bind(id.uuid()).bind(state).bind(clean(outcome)).bind(event.map(EventId::uuid)).bind(now.0)
        .execute(c).await.map(|done| done.rows_affected()))
    .during("finish a delivery")?;
    Ok(rows == 1)
}
