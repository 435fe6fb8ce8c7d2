//! Gates: who may pass, who must wait, and who comes next.
//!
//! Whoever wants a slot locks the gate and counts the places there; so two that want the last slot
//! follow one another. Slots come back without that lock, and each time a row in `gate_wake` says so.

use std::collections::{BTreeMap, BTreeSet};

use shuntyard_core::{
    apply::{Answer, Fact},
    gate::{Gate, GateId, Member, Place, SHARED_PREFIX, Ticket, superseded},
};
use shuntyard_protocol::{JobId, RunId, SourceId, Timestamp, plan::Concurrency};
use uuid::Uuid;

use crate::{
    Change, Store,
    apply::{batch, load, portions, save, save_gates},
    column::row,
    db::{Lock, Statement, Tx, again, on, read},
    error::{During, StoreError},
};

pub(crate) mod places;

pub use places::{HOLDERS_MAX, PlaceInfo, held_by};

/// Gates that one look finds.
pub(crate) const WOKEN_MAX: i64 = 100;

/// What came of [`Store::turn_gate`].
#[derive(Clone, Debug, PartialEq)]
pub enum GateTurn {
    /// These have to make room first; nothing else was done.
    Cancel(Vec<Fact>),
    /// So many have gone through.
    LetGo(u32),
}

/// The gates of new runs, locked.
pub(crate) struct Gates {
    ids: BTreeMap<(Uuid, String), GateId>,
    source: SourceId,
    pub(crate) locked: BTreeMap<GateId, Gate>,
}

impl Gates {
    /// The ticket of a group's member.
    pub(crate) fn ticket(&self, group: &Concurrency) -> Option<Ticket> {
        let gate = *self.ids.get(&key(group, self.source))?;
        Some(Ticket { gate, cancels: group.cancel_in_progress })
    }
}

row! {
    struct GateRow {
        id: i64,
        slots: u32,
    }

    struct Count {
        gate_id: i64,
        holding: bool,
        n: u32,
    }

    struct Waiting {
        seq: i64,
        run_id: RunId,
        job_id: Option<JobId>,
    }

    struct MemberRow {
        run_id: RunId,
        job_id: Option<JobId>,
        cancels: bool,
        run_cancel: Option<bool>,
        job_cancel: Option<bool>,
        workflow: String,
        number: u64,
    }
}

pub(crate) const FIND: &str = "select id from gate where org = $1 and scope = $2 and name = $3";
pub(crate) const INSERT: &str = "insert into gate (org, scope, name, slots, created_at) \
    values ($1, $2, $3, $4, $5) on conflict do nothing";
pub(crate) const RESIZE: &str = "update gate set slots = $2 where id = $1";
pub(crate) const NAME: &str = "select name from gate where id = $1";
pub(crate) const WOKEN: &str =
    "select gate_id from gate_wake group by gate_id order by min(created_at), gate_id limit $1";
pub(crate) const FORGET_WAKES: &str = "delete from gate_wake where gate_id = $1";
pub(crate) const AHEAD: &str = "select distinct j.gate_id from gate_place p \
    join job j on j.run_id = p.run_id where p.gate_id = $1 and p.job_id is null \
    and not p.holding and j.gate_id is not null and j.state = 'blocked'";
pub(crate) const WAITING: &str = "select seq, run_id, job_id from gate_place \
    where gate_id = $1 and not holding order by arrived_at, seq limit $2";
pub(crate) const MEMBERS: &str = "select p.run_id, p.job_id, p.cancels, \
    r.cancel_force as run_cancel, j.cancel_force as job_cancel, r.workflow, r.number \
    from gate_place p join run r on r.id = p.run_id left join job j on j.id = p.job_id \
    where p.gate_id = $1 \
    and exists (select 1 from gate_place q where q.gate_id = $1 and q.cancels) \
    order by p.arrived_at desc, p.seq desc";

/// A group's scope and name: it is the source's own unless its name says that the org shares it.
fn key(group: &Concurrency, source: SourceId) -> (Uuid, String) {
    let shared = group.group.starts_with(SHARED_PREFIX);
    (if shared { Uuid::nil() } else { source.uuid() }, group.group.clone())
}

/// Finds or makes the gates of groups, gives each as many slots as its group says now, and locks
/// them.
pub(crate) async fn open<'a>(
    tx: &mut Tx,
    org: &str,
    source: SourceId,
    groups: impl Iterator<Item = &'a Concurrency>,
    now: Timestamp,
) -> Result<Gates, StoreError> {
    let slots: BTreeMap<_, _> = groups.map(|group| (key(group, source), group.max)).collect();
    let mut ids = BTreeMap::new();
    for (key, slots) in &slots {
        ids.insert(key.clone(), find(tx, org, key, *slots, now).await?);
    }
    let mut locked = lock(tx, &ids.values().copied().collect()).await?;
    let mut wider = BTreeSet::new();
    for (key, id) in &ids {
        let Some(gate) = locked.get_mut(id).filter(|gate| gate.slots != slots[key]) else {
            continue;
        };
        if gate.slots < slots[key] && gate.waiting > 0 {
            wider.insert(*id);
        }
        gate.slots = slots[key];
        on!(tx, Db, c => sqlx::query(RESIZE)
            .bind(*id).bind(i64::from(gate.slots)).execute(c).await.map(drop))
        .during("change the slots of a gate")?;
    }
    save_gates::wake(tx, &wider, now).await?;
    Ok(Gates { ids, source, locked })
}

/// The gate of that name; one that another transaction makes at the same time is waited for.
async fn find(
    tx: &mut Tx,
    org: &str,
    (scope, name): &(Uuid, String),
    slots: u32,
    now: Timestamp,
) -> Result<GateId, StoreError> {
    let during = "find a gate";
    let known: Option<GateId> = on!(tx, Db, c => sqlx::query_scalar(FIND)
        .bind(org).bind(*scope).bind(name).fetch_optional(c).await)
    .during(during)?;
    if let Some(id) = known {
        return Ok(id);
    }
    on!(tx, Db, c => sqlx::query(INSERT)
        .bind(org).bind(*scope).bind(name).bind(i64::from(slots)).bind(now.0)
        .execute(c).await.map(drop))
    .during(during)?;
    on!(tx, Db, c => sqlx::query_scalar(FIND)
        .bind(org).bind(*scope).bind(name).fetch_one(c).await)
    .during(during)
}

/// Locks gates in id order, and only then counts their places.
pub(crate) async fn lock(
    tx: &mut Tx,
    gates: &BTreeSet<GateId>,
) -> Result<BTreeMap<GateId, Gate>, StoreError> {
    let mut locked = BTreeMap::new();
    let ids: Vec<GateId> = gates.iter().copied().collect();
    let lock = tx.lock(Lock::Gates);
    for ids in portions(&ids) {
        let rows: Vec<GateRow> = on!(tx, Db, c => {
            let mut q = Statement::<Db>::new("select id, slots from gate where id");
            q.push_in(ids).push(" order by id").push(lock);
            q.done_as().fetch_all(c).await
        })
        .during("lock gates")?;
        locked
            .extend(rows.iter().map(|row| (row.id, Gate { slots: row.slots, ..Gate::default() })));
        let counts: Vec<Count> = on!(tx, Db, c => {
            let mut q = Statement::<Db>::new(
                "select gate_id, holding, count(*) as n from gate_place where gate_id");
            q.push_in(ids).push(" group by gate_id, holding");
            q.done_as().fetch_all(c).await
        })
        .during("count the places at gates")?;
        for count in counts {
            let Some(gate) = locked.get_mut(&count.gate_id) else { continue };
            *(if count.holding { &mut gate.holding } else { &mut gate.waiting }) = count.n;
        }
    }
    Ok(locked)
}

impl Store {
    /// Gates whose turn it is, the longest woken first.
    pub async fn woken_gates(&self) -> Result<Vec<GateId>, StoreError> {
        read!(&self.inner.db, Kind, c => {
            sqlx::query_scalar(WOKEN).bind(WOKEN_MAX).fetch_all(c).await
        })
        .during("list woken gates")
    }

    /// Lets those go through a gate whose turn it is, as far as there are slots, and forgets why it
    /// was woken; or says who has to be cancelled before. Then apply that and call again.
    ///
    /// # Errors
    /// When the database does not answer; the gate stays woken then.
    pub async fn turn_gate(&self, gate: GateId, now: Timestamp) -> Result<GateTurn, StoreError> {
        let (turn, change) = again!(self.turn_once(gate, now))?;
        self.announce(change);
        Ok(turn)
    }

    async fn turn_once(
        &self,
        gate: GateId,
        now: Timestamp,
    ) -> Result<(GateTurn, Change), StoreError> {
        let during = "turn a gate";
        let mut tx = self.inner.db.begin().await?;
        // Before anybody is counted: whoever leaves later than this statement sees leaves a wake that
        // stays, and the places of the others are gone when they are counted.
        on!(&mut tx, Db, c => sqlx::query(FORGET_WAKES).bind(gate).execute(c).await.map(drop))
            .during(during)?;
        // A run that goes through brings jobs to other gates: all of them are locked in order.
        let ahead: Vec<GateId> = on!(&mut tx, Db, c => {
            sqlx::query_scalar(AHEAD).bind(gate).fetch_all(c).await
        })
        .during(during)?;
        let locked = lock(&mut tx, &ahead.into_iter().chain([gate]).collect()).await?;
        let here = locked.get(&gate).copied().unwrap_or_default();
        let cancels = cancels(&mut tx, gate, here.slots).await?;
        if !cancels.is_empty() {
            return Ok((GateTurn::Cancel(cancels), Change::default()));
        }
        let next: Vec<Waiting> = on!(&mut tx, Db, c => sqlx::query_as(WAITING)
            .bind(gate).bind(i64::from(here.free())).fetch_all(c).await)
        .during(during)?;
        let (gone, change) = admit(&mut tx, (gate, here), &next, now).await?;
        tx.commit().await?;
        Ok((GateTurn::LetGo(gone), change))
    }
}

/// Gives slots to those who waited.
async fn admit(
    tx: &mut Tx,
    (gate, here): (GateId, Gate),
    next: &[Waiting],
    now: Timestamp,
) -> Result<(u32, Change), StoreError> {
    if next.is_empty() {
        return Ok((0, Change::default()));
    }
    let facts = next.iter().map(|row| Fact::Admitted { place: place(row.run_id, row.job_id) });
    let facts: Vec<Fact> = facts.collect();
    let scope = load::Scope::of(&facts);
    let (mut loaded, _) = load::load(tx, &scope, &BTreeSet::new()).await?;
    loaded.gates.entry(gate).or_insert(here);
    let decision = batch::decide_all(tx, loaded, &facts, now).await?;
    save::save(tx, &decision, now).await?;
    let answers = next.iter().zip(&decision.answers);
    let gone = answers.filter(|(_, answer)| **answer == Answer::Done).map(|(row, _)| row.seq);
    let gone: Vec<i64> = gone.collect();
    for seqs in portions(&gone) {
        on!(tx, Db, c => {
            let mut q =
                Statement::<Db>::new("update gate_place set holding = true where seq");
            q.push_in(seqs);
            q.done().execute(c).await.map(drop)
        })
        .during("give slots")?;
    }
    let count = u32::try_from(gone.len()).expect("a gate has few slots");
    Ok((count, batch::change(&decision, &[], &[])))
}

/// Cancels whoever has no room beside the newest member that cancels, and is not going already.
async fn cancels(tx: &mut Tx, gate: GateId, slots: u32) -> Result<Vec<Fact>, StoreError> {
    let during = "find who has to make room at a gate";
    let rows: Vec<MemberRow> = on!(tx, Db, c => {
        sqlx::query_as(MEMBERS).bind(gate).fetch_all(c).await
    })
    .during(during)?;
    let member = |row: &MemberRow| Member {
        run: row.run_id,
        place: place(row.run_id, row.job_id),
        cancels: row.cancels,
    };
    let members: Vec<Member> = rows.iter().map(member).collect();
    let Some((newest, gone)) = superseded(&members, slots) else { return Ok(Vec::new()) };
    let row_of: BTreeMap<Place, &MemberRow> =
        members.iter().map(|member| member.place).zip(&rows).collect();
    let going = |place: &Place| {
        row_of.get(place).is_some_and(|row| row.run_cancel.or(row.job_cancel).is_some())
    };
    let gone: Vec<Place> = gone.into_iter().filter(|place| !going(place)).collect();
    if gone.is_empty() {
        return Ok(Vec::new());
    }
    let name: String =
        on!(tx, Db, c => sqlx::query_scalar(NAME).bind(gate).fetch_one(c).await).during(during)?;
    let newest = row_of[&newest];
    let (workflow, number) = (&newest.workflow, newest.number);
    let reason = format!("concurrency group '{name}' makes room for {workflow} #{number}");
    Ok(gone.into_iter().map(|place| cancel(place, reason.clone())).collect())
}

fn cancel(place: Place, reason: String) -> Fact {
    let (force, by) = (false, "cancelInProgress".to_owned());
    match place {
        Place::Run(run) => Fact::CancelRun { run, force, reason, by },
        Place::Job(job) => Fact::CancelJob { job, force, reason, by },
    }
}

fn place(run: RunId, job: Option<JobId>) -> Place {
    job.map_or(Place::Run(run), Place::Job)
}
