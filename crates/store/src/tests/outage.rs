//! What happens when something beneath the store breaks.

use shuntyard_core::apply::Answer;
use shuntyard_protocol::{Outcome, Timestamp, agent::Mark};
use sqlx::PgPool;

use super::world::{World, ended, key};
use crate::{
    CHUNK_BYTES_MAX, Database, INLINE_BYTES_MAX, LogAnswer, LogAppend, StoreError, db::Db,
    testing::Postgres,
};

/// Ends whichever connection waits for a lock; returns when one was found.
async fn end_who_waits(pool: &PgPool) {
    loop {
        let ended: i64 = sqlx::query_scalar(
            "select count(*) from (select pg_terminate_backend(pid) from pg_locks \
             where not granted) as ended",
        )
        .fetch_one(pool)
        .await
        .unwrap();
        if ended > 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_commit_whose_connection_breaks_is_decided_again() {
    let server = Postgres::start("outage");
    let w = World::open(Database::Postgres(server.database("outage").await)).await;
    let run = w.run(&[("a", &[])]).await;
    let id = w.start_all().await["a"];
    let Db::Pg(pool) = &w.store.inner.db else { panic!("it was opened so") };
    let mut lock = pool.begin().await.unwrap();
    sqlx::query("select 1 from run for update").execute(&mut *lock).await.unwrap();
    let breaker = async {
        end_who_waits(pool).await;
        lock.rollback().await.unwrap();
    };
    let (answer, ()) = tokio::join!(w.store.submit(ended(id, 1, Outcome::Success)), breaker);
    assert_eq!(answer.unwrap(), Answer::Acked { seq: 1 });
    assert_eq!(w.states(run.id).await, "a success");
    w.store.close().await;
}

#[tokio::test]
async fn facts_do_not_wait_for_broken_segments() {
    let w = World::open(Database::Memory).await;
    w.run(&[("a", &[])]).await;
    let id = w.start_all().await["a"];
    // A file stands where the folder should be.
    std::fs::write(w.segments(), b"").unwrap();
    let len = usize::try_from(INLINE_BYTES_MAX).unwrap() + 1;
    assert!(len <= CHUNK_BYTES_MAX);
    let chunk = LogAppend {
        id,
        key_hash: key(id),
        stream: 0,
        from: 0,
        marks: vec![Mark(0, Timestamp(1))],
        bytes: vec![b'x'; len],
    };
    let end = ended(id, 1, Outcome::Success);
    let (log, fact) = tokio::join!(w.store.append_log(chunk.clone()), w.store.submit(end));
    assert!(matches!(log, Err(StoreError::Unavailable { .. })), "{log:?}");
    assert_eq!(fact.unwrap(), Answer::Acked { seq: 1 });
    assert_eq!(w.store.log_streams(id).await.unwrap(), [], "nothing is acked that is not stored");
    std::fs::remove_file(w.segments()).unwrap();
    let to = len as u64;
    assert_eq!(w.store.append_log(chunk).await.unwrap(), LogAnswer::Acked { to });
}

#[tokio::test]
async fn a_store_without_writers_says_so() {
    let w = World::open(Database::Memory).await;
    let (store, writers) = crate::Store::open(crate::Options {
        database: Database::Memory,
        segments: None,
        instance: w.instance,
        clock: std::sync::Arc::new(|| Timestamp(1)),
    })
    .await
    .unwrap();
    drop(writers);
    let id = shuntyard_protocol::agent::AttemptId { job: w.job_id(), attempt: 1 };
    let error = store.submit(ended(id, 1, Outcome::Success)).await.unwrap_err();
    assert!(matches!(error, StoreError::Closed));
}
