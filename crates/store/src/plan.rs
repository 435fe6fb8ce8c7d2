//! Plans by digest, and which plan a commit has.

use shuntyard_protocol::{SourceId, Timestamp};

use crate::{
    Store,
    column::row,
    db::{clean, on, read},
    error::{During, StoreError},
};

row! {
    /// A stored plan. Its key is its digest, so it never changes.
    pub struct StoredPlan {
        pub key: String,
        /// `protocol::plan::Plan` as JSON.
        pub body: String,
        /// The workflow files that a start carries: a JSON map from path to text.
        pub folder: String,
    }

    /// What evaluating a commit gave: a plan's key, or the author's error.
    pub struct PlanAt {
        pub plan_key: Option<String>,
        pub error: Option<String>,
    }
}

pub(crate) const GET: &str = "select key, body, folder from plan where key = $1";
pub(crate) const PUT: &str = "insert into plan (key, body, folder, created_at) \
    values ($1, $2, $3, $4) on conflict (key) do nothing";
pub(crate) const AT: &str =
    "select plan_key, error from plan_at where source_id = $1 and commit_sha = $2";
pub(crate) const PUT_AT: &str = "insert into plan_at \
    (source_id, commit_sha, plan_key, error, created_at) values ($1, $2, $3, $4, $5) \
    on conflict (source_id, commit_sha) do update set plan_key = excluded.plan_key, \
    error = excluded.error, created_at = excluded.created_at";

impl Store {
    pub async fn plan(&self, key: &str) -> Result<Option<StoredPlan>, StoreError> {
        read!(&self.inner.db, Kind, c => sqlx::query_as(GET).bind(key).fetch_optional(c).await)
            .during("read a plan")
    }

    /// What is known about a commit; absent: it was not evaluated yet.
    pub async fn plan_at(
        &self,
        source: SourceId,
        commit: &str,
    ) -> Result<Option<PlanAt>, StoreError> {
        read!(&self.inner.db, Kind, c => {
            sqlx::query_as(AT).bind(source.uuid()).bind(commit).fetch_optional(c).await
        })
        .during("read a commit's plan")
    }

    /// Stores a plan and that this commit has it.
    pub async fn put_plan(
        &self,
        source: SourceId,
        commit: &str,
        plan: &StoredPlan,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let during = "store a plan";
        let mut tx = self.inner.db.begin().await?;
        on!(&mut tx, Db, c => sqlx::query(PUT)
            .bind(&plan.key).bind(&plan.body).bind(&plan.folder).bind(now.0)
            .execute(c).await.map(drop))
        .during(during)?;
        on!(&mut tx, Db, c => sqlx::query(PUT_AT)
            .bind(source.uuid()).bind(commit).bind(Some(&plan.key)).bind(None::<String>)
            .bind(now.0).execute(c).await.map(drop))
        .during(during)?;
        tx.commit().await
    }

    /// Stores that evaluating this commit fails.
    pub async fn put_plan_error(
        &self,
        source: SourceId,
        commit: &str,
        error: &str,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut tx = self.inner.db.begin().await?;
        on!(&mut tx, Db, c => sqlx::query(PUT_AT)
            .bind(source.uuid()).bind(commit).bind(None::<String>).bind(Some(clean(error))).bind(now.0)
            .execute(c).await.map(drop))
        .during("store a plan error")?;
        tx.commit().await
    }
}
