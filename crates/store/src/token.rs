//! Tokens: only their hashes are stored.

use std::time::Duration;

use shuntyard_protocol::{Timestamp, TokenId};

use crate::{
    Store,
    column::row,
    db::{on, read},
    error::{During, StoreError},
};

/// How coarse `used_at` is: a token in constant use is written once in this time.
pub const USED_AT_GRAIN: Duration = Duration::from_mins(1);

/// A token to be stored.
#[derive(Clone, Debug, PartialEq)]
pub struct NewToken {
    pub id: TokenId,
    pub org: String,
    /// `api`, `enrol` or `signin`.
    pub kind: String,
    /// viewer, operator or admin.
    pub role: Option<String>,
    pub name: String,
    /// SHA-256 of the secret.
    pub hash: [u8; 32],
    pub uses: Option<u32>,
    pub created_by: String,
    pub expires_at: Option<Timestamp>,
}

row! {
    pub struct Token {
        pub id: TokenId,
        pub org: String,
        pub kind: String,
        pub role: Option<String>,
        pub name: String,
        pub uses_left: Option<u32>,
        pub created_by: String,
        pub created_at: Timestamp,
        pub expires_at: Option<Timestamp>,
        pub used_at: Option<Timestamp>,
        pub revoked_at: Option<Timestamp>,
    }
}

impl Token {
    /// Neither revoked, expired nor used up.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none()
            && self.expires_at.is_none_or(|at| now < at)
            && self.uses_left != Some(0)
    }
}

pub(crate) const INSERT: &str = "insert into token (id, org, kind, role, name, hash, uses_left, \
    created_by, created_at, expires_at) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
pub(crate) const BY_HASH: &str = "select * from token where hash = $1";
/// One winner per use.
pub(crate) const CONSUME: &str = "update token set uses_left = uses_left - 1, used_at = $2 \
    where hash = $1 and kind = $3 and revoked_at is null \
    and (expires_at is null or expires_at > $2) \
    and (uses_left is null or uses_left > 0) returning *";
pub(crate) const TOUCH: &str =
    "update token set used_at = $2 where id = $1 and (used_at is null or used_at <= $3)";
pub(crate) const REVOKE: &str =
    "update token set revoked_at = $2 where id = $1 and revoked_at is null";
pub(crate) const LIST: &str =
    "select * from token where (org = $1 or $1 is null) order by created_at desc, id desc";

impl Store {
    pub async fn insert_token(&self, new: &NewToken, now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.inner.db.begin().await?;
        on!(&mut tx, Db, c => sqlx::query(INSERT)
            .bind(new.id.uuid()).bind(&new.org).bind(&new.kind).bind(&new.role).bind(&new.name)
            .bind(new.hash.to_vec()).bind(new.uses.map(i64::from)).bind(&new.created_by).bind(now.0)
            .bind(new.expires_at.map(|at| at.0)).execute(c).await.map(drop))
        .during("store a token")?;
        tx.commit().await
    }

    /// The token with this hash, valid or not: see [`Token::is_valid`].
    pub async fn token_by_hash(&self, hash: &[u8; 32]) -> Result<Option<Token>, StoreError> {
        read!(&self.inner.db, Kind, c => {
            sqlx::query_as(BY_HASH).bind(hash.to_vec()).fetch_optional(c).await
        })
        .during("look a token up")
    }

    /// Takes one use of a valid token of this kind. Absent: look it up to learn why.
    pub async fn consume_token(
        &self,
        hash: &[u8; 32],
        kind: &str,
        now: Timestamp,
    ) -> Result<Option<Token>, StoreError> {
        let mut tx = self.inner.db.begin().await?;
        let token = on!(&mut tx, Db, c => sqlx::query_as(CONSUME)
            .bind(hash.to_vec()).bind(now.0).bind(kind).fetch_optional(c).await)
        .during("use a token")?;
        tx.commit().await?;
        Ok(token)
    }

    /// Notes that a token was used; writes at most once per [`USED_AT_GRAIN`].
    pub async fn touch_token(&self, token: &Token, now: Timestamp) -> Result<(), StoreError> {
        let before = now - USED_AT_GRAIN;
        if token.used_at.is_some_and(|at| at > before) {
            return Ok(());
        }
        let mut tx = self.inner.db.begin().await?;
        on!(&mut tx, Db, c => sqlx::query(TOUCH)
            .bind(token.id.uuid()).bind(now.0).bind(before.0).execute(c).await.map(drop))
        .during("note a token's use")?;
        tx.commit().await
    }

    /// False when it is unknown or was revoked before.
    pub async fn revoke_token(&self, id: TokenId, now: Timestamp) -> Result<bool, StoreError> {
        let mut tx = self.inner.db.begin().await?;
        let rows = on!(&mut tx, Db, c => sqlx::query(REVOKE).bind(id.uuid()).bind(now.0)
            .execute(c).await.map(|done| done.rows_affected()))
        .during("revoke a token")?;
        tx.commit().await?;
        Ok(rows == 1)
    }

    pub async fn tokens(&self, org: Option<&str>) -> Result<Vec<Token>, StoreError> {
        read!(&self.inner.db, Kind, c => sqlx::query_as(LIST).bind(org).fetch_all(c).await)
            .during("list tokens")
    }
}
