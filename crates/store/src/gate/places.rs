//! Who stands at gates, for people and for what is overdue.

use shuntyard_core::gate::{GateId, Place};
use shuntyard_protocol::{JobId, RunId, Timestamp};

use crate::{
    Store,
    column::row,
    db::read,
    error::{During, StoreError},
    page::PAGE_MAX,
};

row! {
    pub struct PlaceInfo {
        pub gate_id: i64,
        pub org: String,
        pub group_name: String,
        pub slots: u32,
        pub run_id: RunId,
        /// Absent: the whole run stands there.
        pub job_id: Option<JobId>,
        pub holding: bool,
        pub created_at: Timestamp,
        pub workflow: String,
        /// Of the run.
        pub number: u64,
        /// Of the job.
        pub title: Option<String>,
    }
}

macro_rules! places {
    ($rest:literal) => {
        concat!(
            "select p.gate_id, g.org, g.name as group_name, g.slots, p.run_id, p.job_id, \
            p.holding, p.created_at, r.workflow, r.number, j.title from gate_place p \
            join gate g on g.id = p.gate_id join run r on r.id = p.run_id \
            left join job j on j.id = p.job_id where ",
            $rest
        )
    };
}

pub(crate) const OF_ORG: &str = places!(
    "(g.org = $1 or $1 is null) \
    and p.gate_id in (select gate_id from gate_place where not holding) \
    order by p.gate_id, p.holding desc, p.arrived_at, p.seq limit $2"
);
pub(crate) const BESIDE: &str = places!(
    "p.gate_id in (select gate_id from gate_place where run_id = $1) \
    order by p.gate_id, p.holding desc, p.arrived_at, p.seq limit $2"
);
pub(crate) const HOLDERS: &str =
    places!("p.gate_id = $1 and p.holding order by p.arrived_at, p.seq limit $2");
pub(crate) const HOLDER_COUNT: &str =
    "select count(*) from gate_place where gate_id = $1 and holding";
pub(crate) const SINCE: &str =
    places!("not p.holding and p.created_at < $1 order by p.created_at limit $2");
pub(crate) const ASLEEP: &str = "select g.name from gate g join gate_place p on p.gate_id = g.id \
    where g.id not in (select gate_id from gate_wake) group by g.id, g.name, g.slots \
    having sum(case when p.holding then 1 else 0 end) < g.slots \
    and sum(case when p.holding then 0 else 1 end) > 0 limit $1";

/// Holders of a gate that a text names.
pub const HOLDERS_MAX: usize = 5;

/// Who holds the slots of a gate, in words; of many only the first.
pub fn held_by(holders: impl Iterator<Item = String>, count: usize) -> String {
    let names: Vec<String> = holders.take(HOLDERS_MAX).collect();
    match count {
        0 => "it is about to go on".to_owned(),
        n if n > HOLDERS_MAX => {
            format!("held by {} and {} more", names.join(", "), n - HOLDERS_MAX)
        }
        _ => format!("held by {}", names.join(", ")),
    }
}

impl PlaceInfo {
    pub fn place(&self) -> Place {
        super::place(self.run_id, self.job_id)
    }

    /// `ci #3`, or `ci #3: deploy` for a job of it.
    pub fn who(&self) -> String {
        let job = self.title.as_ref().map(|title| format!(": {title}")).unwrap_or_default();
        format!("{} #{}{job}", self.workflow, self.number)
    }
}

impl Store {
    /// Everybody at the gates of an org where somebody waits: by gate, who holds a slot first, then
    /// in the order in which they will go.
    pub async fn places(&self, org: Option<&str>) -> Result<Vec<PlaceInfo>, StoreError> {
        read!(&self.inner.db, Kind, c => {
            sqlx::query_as(OF_ORG).bind(org).bind(i64::from(PAGE_MAX)).fetch_all(c).await
        })
        .during("list who waits at gates")
    }

    /// The same at the gates where a run or jobs of it stand.
    pub async fn places_beside(&self, run: RunId) -> Result<Vec<PlaceInfo>, StoreError> {
        read!(&self.inner.db, Kind, c => {
            sqlx::query_as(BESIDE).bind(run.uuid()).bind(i64::from(PAGE_MAX)).fetch_all(c).await
        })
        .during("list who stands at a run's gates")
    }

    /// Gates with a free slot at which somebody waits, and that nothing wakes. There are none, as a
    /// simulation checks.
    pub async fn gates_asleep(&self) -> Result<Vec<String>, StoreError> {
        read!(&self.inner.db, Kind, c => {
            sqlx::query_scalar(ASLEEP).bind(i64::from(PAGE_MAX)).fetch_all(c).await
        })
        .during("look for gates that are asleep")
    }

    /// Who holds the slots of a gate, in words.
    pub(crate) async fn holders(&self, gate: GateId) -> Result<String, StoreError> {
        let during = "list who holds slots";
        let limit = i64::try_from(HOLDERS_MAX).expect("a few");
        let first: Vec<PlaceInfo> = read!(&self.inner.db, Kind, c => {
            sqlx::query_as(HOLDERS).bind(gate).bind(limit).fetch_all(c).await
        })
        .during(during)?;
        let count: i64 = read!(&self.inner.db, Kind, c => {
            sqlx::query_scalar(HOLDER_COUNT).bind(gate).fetch_one(c).await
        })
        .during(during)?;
        let count = usize::try_from(count).unwrap_or_default().max(first.len());
        Ok(held_by(first.iter().map(PlaceInfo::who), count))
    }

    /// Who has waited since before a time, the longest first.
    pub(crate) async fn waiting_since(
        &self,
        before: Timestamp,
        limit: i64,
    ) -> Result<Vec<PlaceInfo>, StoreError> {
        read!(&self.inner.db, Kind, c => {
            sqlx::query_as(SINCE).bind(before.0).bind(limit).fetch_all(c).await
        })
        .during("find who waits too long at a gate")
    }
}
