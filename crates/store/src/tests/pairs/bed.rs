//! A database with one of everything, which each experiment starts from.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

use serde_json::json;
use shuntyard_core::{
    apply::{Answer, Fact, Retry},
    gate::GateId,
};
use shuntyard_protocol::{
    DeliveryId, EventId, InstanceId, JobId, Outcome, RunId, SourceId, Timestamp, TokenId,
    agent::{AttemptFact, AttemptId, Containment, Mark},
    plan::Concurrency,
};
use sqlx::{AssertSqlSafe, PgPool, postgres::PgPoolOptions};

use crate::{
    AgentSeen, Created, Database, Instance, LogAnswer, LogAppend, NewDelivery, NewEvent, NewRun,
    NewToken, Source, StoreError,
    testing::Postgres,
    tests::world::{self, World, agent, history, key},
};

/// Experiments between two that clear dead rows away.
const VACUUM_AFTER: u32 = 100;

pub(super) struct Bed {
    pub(super) w: World,
    /// The run of which every job is in another state, and one that has ended.
    pub(super) run: RunId,
    pub(super) ended: RunId,
    /// Current attempts of the run's jobs by title.
    pub(super) jobs: BTreeMap<String, AttemptId>,
    /// The first run holds the one slot of a gate, the second waits for it.
    pub(super) holder: RunId,
    pub(super) waiter: RunId,
    pub(super) gate: GateId,
    pub(super) delivery: DeliveryId,
    watch: PgPool,
    rows: String,
    tables: String,
    restored: Cell<u32>,
}

pub(super) fn random(side: u8, n: u8) -> [u8; 10] {
    [200 + side, n, 0, 0, 0, 0, 0, 0, 0, 1]
}

pub(super) fn instance(side: u8) -> InstanceId {
    InstanceId::mint(Timestamp(1), random(side, 0))
}

pub(super) fn seen(name: &str) -> AgentSeen {
    AgentSeen {
        name: name.to_owned(),
        labels: vec!["linux".to_owned()],
        slots: 4,
        containment: Containment::Namespace,
        boot_id: "boot".to_owned(),
        software: "test".to_owned(),
    }
}

pub(super) fn token(n: u8, uses: Option<u32>) -> NewToken {
    NewToken {
        id: TokenId::mint(Timestamp(1), [n; 10]),
        org: "default".to_owned(),
        kind: "enrol".to_owned(),
        role: None,
        name: format!("t{n}"),
        hash: [n; 32],
        uses,
        created_by: "ann".to_owned(),
        expires_at: None,
    }
}

pub(super) fn log(id: AttemptId, from: u64, bytes: &[u8]) -> LogAppend {
    let marks = vec![Mark(from, Timestamp(1))];
    LogAppend { id, key_hash: key(id), stream: 1, from, marks, bytes: bytes.to_vec() }
}

impl Bed {
    pub(super) async fn open(server: &Postgres, name: &str) -> Self {
        // Whoever waits in a circle learns of it at once.
        let url = format!(
            "{}&options=-cdeadlock_timeout%3D10ms%20-csynchronous_commit%3Doff",
            server.database(name).await
        );
        let w = World::open(Database::Postgres(url.clone())).await;
        let watch = PgPoolOptions::new().max_connections(1).connect(&url).await.unwrap();
        let mut bed = Self {
            run: RunId::mint(Timestamp(1), [0; 10]),
            ended: RunId::mint(Timestamp(1), [0; 10]),
            jobs: BTreeMap::new(),
            holder: RunId::mint(Timestamp(1), [1; 10]),
            waiter: RunId::mint(Timestamp(1), [2; 10]),
            gate: 0,
            delivery: DeliveryId::mint(w.now(), w.random()),
            w,
            watch,
            rows: String::new(),
            tables: String::new(),
            restored: Cell::new(0),
        };
        bed.furnish().await;
        bed.make_runs().await;
        bed.make_gates().await;
        bed.save().await;
        bed
    }

    pub(super) fn now(&self) -> Timestamp {
        self.w.now()
    }

    /// When every deadline has passed.
    pub(super) fn late(&self) -> Timestamp {
        Timestamp(self.now().0 + 2 * world::RELEASE)
    }

    pub(super) fn delivery(&self, id: DeliveryId, n: u8) -> NewDelivery {
        NewDelivery {
            id,
            org: "default".to_owned(),
            source: self.w.source,
            delivery_key: format!("delivery {n}"),
            body_digest: Some([n; 32]),
            kind: "push".to_owned(),
            headers: json!({}),
            body: vec![n],
        }
    }

    pub(super) fn source(id: SourceId, name: &str) -> Source {
        Source {
            id,
            org: "default".to_owned(),
            name: name.to_owned(),
            kind: "github".to_owned(),
            url: "https://example.org/a.git".to_owned(),
            settings: json!({}),
            secrets: None,
            created_at: Timestamp(1),
            updated_at: Timestamp(1),
        }
    }

    async fn furnish(&self) {
        let (store, now) = (&self.w.store, self.now());
        store.insert_source(&Self::source(self.w.source, "repo")).await.unwrap();
        store.insert_delivery(&self.delivery(self.delivery, 1), now).await.unwrap();
        for (n, uses) in [(1, None), (2, Some(1))] {
            store.insert_token(&token(n, uses), now).await.unwrap();
        }
        store.enrol_agent(agent(1), "key1", &[1; 32], &seen("one"), now).await.unwrap();
        store.agent_seen(agent(1), &seen("one"), instance(0), now).await.unwrap();
        for side in [0, 1] {
            let beat = Instance {
                id: instance(side),
                name: format!("c{side}"),
                url: None,
                software: "test".to_owned(),
                started_at: now,
                beat_at: now,
            };
            store.beat(&beat).await.unwrap();
        }
        store.acquire_lease("leader", instance(0), self.late(), now).await.unwrap();
        // Taken by a coordinator that is not there.
        let gone = InstanceId::mint(Timestamp(1), [9; 10]);
        let other = DeliveryId::mint(now, self.w.random());
        store.insert_delivery(&self.delivery(other, 2), Timestamp(now.0 - 1)).await.unwrap();
        let long = std::time::Duration::from_hours(1);
        store.lease_deliveries(gone, 1, long, Timestamp(now.0 - 1)).await.unwrap();
    }

    /// One job in each state, with others that wait for them.
    async fn make_runs(&mut self) {
        let (w, success, failed) = (&self.w, &[Outcome::Success], &[Outcome::Failed]);
        self.ended = w.run(&[("a", &[]), ("b", &["a"])]).await.id;
        w.play(&[("a", Outcome::Failed)]).await;
        let mut jobs: Vec<_> = ["a", "b", "s", "o", "q1", "q2"].map(|n| w.new_job(n, &[])).into();
        let on = [Outcome::Lost, Outcome::Failed].into_iter().collect();
        jobs[0].retry = Retry { max_tries: 2, on };
        // The first two are children of one job.
        jobs[1].name = "a".to_owned();
        jobs.push(w.new_job("c", &[("a", success)]));
        jobs.push(w.new_job("d", &[("a", failed), ("s", &Outcome::ALL)]));
        jobs.push(w.new_job("e", &[("d", success)]));
        let run = w.create("default", jobs).await;
        self.run = run.id;
        self.jobs =
            run.jobs.into_iter().map(|(t, job)| (t, AttemptId { job, attempt: 1 })).collect();
        let claimed = w.claim(4).await;
        assert_eq!(claimed.iter().map(|job| job.title.as_str()).collect::<String>(), "abso");
        for title in ["a", "b", "s"] {
            assert_eq!(w.apply(w.reserved(self.jobs[title])).await, Answer::Committed);
        }
        for title in ["a", "b"] {
            let id = self.jobs[title];
            w.apply(w.begin(id)).await;
            w.apply(history(id, 1, AttemptFact::StepStarted { step: 0, at: w.now() })).await;
        }
        let logged = w.store.append_logs(vec![log(self.jobs["a"], 0, b"hello")], w.now()).await;
        assert_eq!(logged.unwrap(), [LogAnswer::Acked { to: 5 }]);
    }

    /// A run in a concurrency group.
    pub(super) fn gated(&self, id: RunId, job: JobId, group: &str) -> NewRun {
        let mut run = self.w.new_run("gated", vec![self.w.new_job("g", &[])]);
        (run.id, run.jobs[0].id) = (id, job);
        let group = group.to_owned();
        run.concurrency = Some(Concurrency { group, cancel_in_progress: false, max: 1 });
        run
    }

    pub(super) async fn start(&self, event: EventId, run: NewRun) -> Result<Created, StoreError> {
        let event = NewEvent { id: event, ..self.w.event(None) };
        self.w.store.create_runs(&event, vec![run], None, 100, self.now()).await
    }

    /// One gate with somebody at it and somebody before it, and one where nobody is.
    async fn make_gates(&mut self) {
        let gone = RunId::mint(Timestamp(1), [3; 10]);
        for (n, (id, group)) in
            (1..).zip([(self.holder, "deploy"), (self.waiter, "deploy"), (gone, "free")])
        {
            let job = JobId::mint(Timestamp(1), [n; 10]);
            let event = EventId::mint(Timestamp(1), [n; 10]);
            self.start(event, self.gated(id, job, group)).await.unwrap();
        }
        let (reason, by) = ("stop".to_owned(), "ann".to_owned());
        self.w.apply(Fact::CancelRun { run: gone, force: true, reason, by }).await;
        for gate in self.w.store.woken_gates().await.unwrap() {
            self.w.store.turn_gate(gate, self.now()).await.unwrap();
        }
        let gate = "select gate_id from gate_place where run_id = $1";
        let gate = sqlx::query_scalar(gate).bind(self.holder.uuid()).fetch_one(&self.watch);
        self.gate = gate.await.unwrap();
    }

    /// Keeps a copy of every table, and writes the texts that restore and read them all.
    async fn save(&mut self) {
        const COLUMNS: &str = "select table_name::text, column_name::text from \
            information_schema.columns where table_schema = 'public' \
            and table_name not in ('_sqlx_migrations', 'meta', 'org') \
            order by table_name, ordinal_position";
        let columns: Vec<(String, String)> =
            sqlx::query_as(COLUMNS).fetch_all(&self.watch).await.unwrap();
        let tables: BTreeSet<&String> = columns.iter().map(|(table, _)| table).collect();
        let (mut body, mut rows) = (Vec::new(), Vec::new());
        let mut copies = vec!["create schema saved;".to_owned()];
        for &table in &tables {
            copies.push(format!("create table saved.{table} as table public.{table};"));
            body.push(format!(
                "delete from public.{table}; insert into public.{table} table saved.{table};"
            ));
            let of = columns.iter().filter(|(name, _)| name == table);
            let list: Vec<_> = of.filter_map(|(table, column)| read_as(table, column)).collect();
            let list = list.join(", ");
            rows.push(format!(
                "select '{table} ' || r::text as line from (select {list} from {table}) r"
            ));
        }
        let restore = format!(
            "{} create function restore() returns void language plpgsql as \
             $$ begin {} end $$",
            copies.concat(),
            body.concat()
        );
        sqlx::raw_sql(AssertSqlSafe(restore)).execute(&self.watch).await.unwrap();
        let rows = rows.join(" union all ");
        self.rows =
            format!("select coalesce(string_agg(line, E'\\n' order by line), '') from ({rows}) l");
        let tables: Vec<&str> = tables.into_iter().map(String::as_str).collect();
        self.tables = tables.join(", ");
    }

    /// Makes everything as it was.
    pub(super) async fn restore(&self) {
        sqlx::query("select restore()").execute(&self.watch).await.unwrap();
        self.restored.set(self.restored.get() + 1);
        if self.restored.get().is_multiple_of(VACUUM_AFTER) {
            let vacuum = format!("vacuum {}", self.tables);
            sqlx::query(AssertSqlSafe(vacuum)).execute(&self.watch).await.unwrap();
        }
    }

    /// Every row of every table.
    pub(super) async fn rows(&self) -> String {
        sqlx::query_scalar(AssertSqlSafe(self.rows.clone())).fetch_one(&self.watch).await.unwrap()
    }

    /// Waits until some transaction waits for another; whether it has locked or written nothing yet.
    pub(super) async fn somebody_waits(&self) -> bool {
        const WAITING: &str = "select backend_xid is null from pg_stat_activity \
            where datname = current_database() and wait_event_type = 'Lock'";
        loop {
            let waits = sqlx::query_scalar(WAITING).fetch_optional(&self.watch).await.unwrap();
            if let Some(empty_handed) = waits {
                return empty_handed;
            }
        }
    }

    /// Tables that open transactions have read, and those that they have written.
    pub(super) async fn touched(&self) -> Vec<(String, bool)> {
        const TOUCHED: &str = "select c.relname::text, l.mode = 'RowExclusiveLock' \
            from pg_locks l join pg_class c on c.oid = l.relation \
            join pg_namespace n on n.oid = c.relnamespace \
            where l.pid <> pg_backend_pid() and c.relkind = 'r' and n.nspname = 'public' \
            and l.database = (select oid from pg_database where datname = current_database())";
        sqlx::query_as(TOUCHED).fetch_all(&self.watch).await.unwrap()
    }
}

/// Numbers that a sequence gives say only who came first; that counts within a run.
fn read_as(table: &str, column: &str) -> Option<String> {
    match (table, column) {
        ("queue" | "outbox", "seq") => {
            Some("row_number() over (partition by run_id order by seq) as seq".to_owned())
        }
        ("gate_place" | "gate_wake", "seq") => {
            Some("row_number() over (partition by gate_id order by seq) as seq".to_owned())
        }
        ("access_log", "seq") => None,
        ("job", "queue_seq") => Some("queue_seq is not null as queue_seq".to_owned()),
        (_, column) => Some(column.to_owned()),
    }
}
