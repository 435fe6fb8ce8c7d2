use std::{collections::BTreeMap, sync::Arc};

use shuntyard_protocol::{InstanceId, Timestamp};
use sqlx::{AssertSqlSafe, Executor, PgPool, SqlSafeStr, SqlitePool};

use crate::{
    Database, Options, Store, StoreError, access, agent, claim, cluster, create, db::Db, delivery,
    due, gate, lease, log, outbox, plan, queue, reconcile, rerun, run, seed, source,
    testing::Postgres, token,
};

type Tables = BTreeMap<String, Vec<String>>;

async fn open(database: Database) -> Result<Store, StoreError> {
    let instance = InstanceId::mint(Timestamp(1), [1; 10]);
    let clock = Arc::new(|| Timestamp(1));
    let options = Options { database, segments: None, instance, clock };
    Store::open(options).await.map(|(store, _)| store)
}

fn tables(rows: Vec<(String, String)>) -> Tables {
    let mut tables = Tables::new();
    for (table, column) in rows {
        if table != "_sqlx_migrations" && table != "sqlite_sequence" {
            tables.entry(table).or_default().push(column);
        }
    }
    tables
}

async fn lite_tables(pool: &SqlitePool) -> Tables {
    let text = "select m.name, p.name from sqlite_master m join pragma_table_info(m.name) p \
        where m.type = 'table' order by m.name, p.name";
    tables(sqlx::query_as(text).fetch_all(pool).await.unwrap())
}

async fn pg_tables(pool: &PgPool) -> Tables {
    let text = "select table_name::text, column_name::text from information_schema.columns \
        where table_schema = 'public' order by table_name, column_name collate \"C\"";
    tables(sqlx::query_as(text).fetch_all(pool).await.unwrap())
}

/// Every text that is the same for both databases.
const TEXTS: &[&str] = &[
    access::INSERT,
    access::LIST,
    agent::ENROL,
    agent::BY_KEY,
    agent::BY_ID,
    agent::SEEN,
    agent::BEAT,
    agent::GONE,
    agent::DRAINING,
    agent::REVOKE,
    agent::LIST,
    claim::CLASSES,
    claim::QUEUED_CLASSES,
    cluster::INSERT,
    cluster::GET,
    create::DELIVERY,
    create::INSERT_EVENT,
    create::EVENT_BY_KEY,
    create::RUN_OF_EVENT,
    create::LOCK_EVENT,
    create::QUEUE_DEPTH,
    delivery::INSERT,
    delivery::SAME,
    delivery::FORGET,
    delivery::AGAIN,
    delivery::LEASE,
    delivery::ADOPT,
    delivery::FINISH,
    delivery::RETRY,
    delivery::BY_ID,
    delivery::LIST,
    due::ATTEMPTS,
    due::QUEUE,
    due::RUNS,
    due::NEXT,
    gate::FIND,
    gate::INSERT,
    gate::RESIZE,
    gate::NAME,
    gate::WOKEN,
    gate::FORGET_WAKES,
    gate::AHEAD,
    gate::WAITING,
    gate::MEMBERS,
    gate::places::OF_ORG,
    gate::places::BESIDE,
    gate::places::HOLDERS,
    gate::places::HOLDER_COUNT,
    gate::places::SINCE,
    gate::places::ASLEEP,
    lease::ACQUIRE,
    lease::RENEW,
    lease::RELEASE,
    lease::GET,
    lease::BEAT,
    lease::REMOVE,
    lease::LIST,
    log::append::INSERT_SEGMENT,
    log::read::CHUNKS,
    log::read::STREAMS,
    log::read::END,
    outbox::LEASE,
    outbox::DONE,
    outbox::RETRY,
    plan::GET,
    plan::PUT,
    plan::AT,
    plan::PUT_AT,
    queue::LIST,
    reconcile::CANCELS,
    rerun::OLD_JOBS,
    run::RUN,
    run::OPEN,
    run::EVENT,
    run::JOBS,
    run::JOB,
    run::ATTEMPTS,
    run::STEPS,
    run::EDGES,
    seed::NUMBER,
    seed::INSERT_RUN,
    seed::INSERT_PLACE,
    seed::PUT_CLASS,
    seed::CLASS,
    source::INSERT,
    source::UPDATE,
    source::BY_NAME,
    source::BY_ID,
    source::LIST,
    source::REMOVE,
    token::INSERT,
    token::BY_HASH,
    token::CONSUME,
    token::TOUCH,
    token::REVOKE,
    token::LIST,
];

#[tokio::test]
async fn both_databases_have_the_same_tables_and_take_the_same_texts() {
    let server = Postgres::start("schema");
    let url = server.database("schema").await;
    let lite = open(Database::Memory).await.unwrap();
    let pg = open(Database::Postgres(url)).await.unwrap();
    let (Db::Lite { read, .. }, Db::Pg(pool)) = (&lite.inner.db, &pg.inner.db) else {
        panic!("they were opened so");
    };
    let (lite_tables, pg_tables) = (lite_tables(read).await, pg_tables(pool).await);
    assert!(lite_tables.len() > 20);
    assert_eq!(lite_tables, pg_tables);
    for &text in TEXTS {
        read.prepare(AssertSqlSafe(text).into_sql_str()).await.expect(text);
    }
    for &text in TEXTS.iter().chain(&[delivery::LEASE_PG, outbox::LEASE_PG]) {
        pool.prepare(AssertSqlSafe(text).into_sql_str()).await.expect(text);
    }
    pg.close().await;
}

#[tokio::test]
async fn a_database_that_needs_a_newer_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::Sqlite(folder.path().join("shunt.db"));
    let store = open(database.clone()).await.unwrap();
    let Db::Lite { write, .. } = &store.inner.db else { panic!("it was opened so") };
    sqlx::query("update meta set value = '2' where key = 'min_reader'")
        .execute(write)
        .await
        .unwrap();
    store.close().await;
    let error = open(database).await.err().unwrap();
    assert!(matches!(error, StoreError::TooOld { min_reader: 2, reader: 1 }), "{error}");
}

#[tokio::test]
async fn a_file_is_opened_again_with_what_it_had_and_synced_fully() {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::Sqlite(folder.path().join("shunt.db"));
    let store = open(database.clone()).await.unwrap();
    let first = store.cluster("c1", b"check", Timestamp(1)).await.unwrap();
    store.close().await;
    let store = open(database).await.unwrap();
    assert_eq!(store.cluster("c2", b"", Timestamp(2)).await.unwrap(), first);
    let Db::Lite { write, .. } = &store.inner.db else { panic!("it was opened so") };
    let mode: String = sqlx::query_scalar("pragma journal_mode").fetch_one(write).await.unwrap();
    let sync: i64 = sqlx::query_scalar("pragma synchronous").fetch_one(write).await.unwrap();
    assert_eq!((mode.as_str(), sync), ("wal", 2));
}

#[test]
fn a_place_never_shows_a_password() {
    for url in [
        "postgres://me:secret@db.example/shunt",
        "postgres://me:s@cret@db.example/shunt?sslmode=require",
        "postgres://db.example/shunt?user=me&password=secret",
    ] {
        assert_eq!(Database::Postgres(url.to_owned()).place(), "postgres://db.example/shunt");
    }
}
