//! The queue as people see it.

use shuntyard_protocol::{JobId, RunId, Timestamp, plan::RunsOn};

use crate::{
    Store,
    claim::LIFT_MS,
    column::row,
    db::read,
    error::{During, StoreError},
    page::PAGE_MAX,
};

row! {
    pub struct QueuedJob {
        pub job_id: JobId,
        pub run_id: RunId,
        pub org: String,
        pub name: String,
        pub title: String,
        pub workflow: String,
        pub class: i64,
        pub runs_on: RunsOn,
        pub priority: i32,
        pub queued_at: Timestamp,
        /// Why its last placement came to nothing, if there was one.
        pub reason: Option<String>,
        /// From 1, within its org, were there an agent for every job.
        pub place: u32,
    }
}

pub(crate) const LIST: &str = "select q.job_id, q.run_id, q.org, j.name, j.title, r.workflow, \
    q.class, l.key as runs_on, q.priority, q.queued_at, j.reason, \
    row_number() over (partition by q.org \
    order by q.priority + ($2 - q.queued_at) / $3 desc, q.seq) as place \
    from queue q join job j on j.id = q.job_id join run r on r.id = q.run_id \
    join label_class l on l.id = q.class where (q.org = $1 or $1 is null) \
    order by place, q.seq limit $4";

impl Store {
    /// Queued jobs in the order in which they will be taken.
    pub async fn queue(
        &self,
        org: Option<&str>,
        limit: u32,
        now: Timestamp,
    ) -> Result<Vec<QueuedJob>, StoreError> {
        let limit = i64::from(limit.clamp(1, PAGE_MAX));
        read!(&self.inner.db, Kind, c => sqlx::query_as(LIST)
            .bind(org).bind(now.0).bind(LIFT_MS).bind(limit).fetch_all(c).await)
        .during("list the queue")
    }
}
