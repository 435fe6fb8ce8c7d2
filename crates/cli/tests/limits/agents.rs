//! Agents that do not behave.

use std::{
    cell::Cell,
    fs,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures_util::{SinkExt as _, StreamExt as _};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use shuntyard_protocol::{
    JobId, Timestamp,
    agent::{AttemptId, AttemptKey, FromAgent, Renewal, SLOTS_MAX, ToAgent},
    frame::{self, FRAME_BYTES_MAX, LOG_PAYLOAD_BYTES_MAX},
};
use tokio_tungstenite::tungstenite::Message;

use crate::{
    MEBIBYTE,
    link::{Link, ended, hello, log, websocket_head},
    machine::{PATIENCE, until},
    measure::{Growth, is_well},
    wire::address,
    world::{Db, World},
};

/// What a job of these tests is; nobody runs it.
const JOB: &str = "job('j', { steps: [sh('true')] })";

async fn token(world: &World) -> String {
    world.api.new_token(&json!({ "name": "a", "kind": "enrol", "org": "default" })).await
}

async fn welcomed(world: &World) -> Link {
    Link::welcomed(&address(world), &token(world).await, 4, None).await
}

#[tokio::test]
async fn a_frame_of_sixteen_mebibytes_ends_the_link_before_it_is_read() {
    let world = World::new(Db::Sqlite).await;
    let (stranger, _) = Link::open(&address(&world), None).await.unwrap();
    for mut link in [welcomed(&world).await, stranger] {
        let growth = Growth::of(&world);
        link.raw(&websocket_head(16 * MEBIBYTE)).await;
        let piece = vec![0; 64 * 1024];
        for _ in 0..16 * MEBIBYTE / piece.len() as u64 {
            if link.raw(&piece).await {
                break;
            }
        }
        assert!(link.next().await.is_none());
        growth.stays_below(&world, 4 * MEBIBYTE);
        is_well(&world).await;
    }
}

#[tokio::test]
async fn frames_that_come_byte_by_byte_are_read_as_any_other() {
    let world = World::new(Db::Sqlite).await;
    let (mut link, nonce) = Link::open(&address(&world), None).await.unwrap();
    let growth = Growth::of(&world);
    let hello = frame::encode(&hello(&nonce, &token(&world).await, 1), b"").unwrap();
    for byte in [websocket_head(hello.len() as u64), hello].concat() {
        assert!(!link.raw(&[byte]).await);
    }
    assert!(matches!(link.next().await, Some(ToAgent::Welcome(_))));
    // One that is too long ends with its length, after ten bytes.
    for byte in websocket_head(16 * MEBIBYTE) {
        link.raw(&[byte]).await;
    }
    assert!(link.next().await.is_none());
    growth.stays_below(&world, 4 * MEBIBYTE);
}

#[tokio::test]
async fn a_hello_that_comes_byte_by_byte_for_too_long_ends_the_link() {
    let world = World::new(Db::Sqlite).await;
    let (mut link, nonce) = Link::open(&address(&world), None).await.unwrap();
    let hello = frame::encode(&hello(&nonce, "t", 1), b"").unwrap();
    let hello = [websocket_head(hello.len() as u64), hello].concat();
    let mut pauses = tokio::time::interval(Duration::from_millis(250));
    for byte in hello {
        pauses.tick().await;
        if link.raw(&[byte]).await {
            break;
        }
    }
    assert!(link.next().await.is_none());
    is_well(&world).await;
}

#[tokio::test]
async fn strangers_send_hello_bytes_max_and_no_more() {
    const HELLO_BYTES_MAX: usize = 512 * 1024;
    const STRANGERS: u64 = 200;
    let world = World::new(Db::Sqlite).await;
    let growth = Growth::of(&world);
    let piece = vec![0; 64 * 1024];
    // As long as a frame may be, and never finished.
    let head = websocket_head(FRAME_BYTES_MAX as u64);
    let flood = (0..STRANGERS).map(async |_| {
        let (mut link, _) = Link::open(&address(&world), None).await.unwrap();
        let mut enough = link.raw(&head).await;
        for _ in 1..FRAME_BYTES_MAX / piece.len() {
            enough = enough || link.raw(&piece).await;
        }
        assert!(link.next().await.is_none());
    });
    let ((), _) = tokio::join!(is_well(&world), futures_util::future::join_all(flood));
    growth.stays_below(&world, STRANGERS * HELLO_BYTES_MAX as u64 + 32 * MEBIBYTE);
    // A hello as long as may be is read and answered, one byte more is not.
    for (bytes, answered) in [(HELLO_BYTES_MAX, true), (HELLO_BYTES_MAX + 1, false)] {
        let (mut link, nonce) = Link::open(&address(&world), None).await.unwrap();
        let short = frame::encode(&hello(&nonce, "", 1), b"").unwrap().len();
        let token = "t".repeat(bytes - short - head.len());
        let hello = frame::encode(&hello(&nonce, &token, 1), b"").unwrap();
        link.raw(&[websocket_head(hello.len() as u64), hello].concat()).await;
        let answer = link.next().await;
        assert_eq!(matches!(answer, Some(ToAgent::Rejected { .. })), answered, "{answer:?}");
    }
}

#[tokio::test]
async fn a_job_that_is_offered_to_an_agent_without_an_answer_goes_to_another_one() {
    let mut world = World::configured("[timers]\noffer = '1s'").await;
    let mut mute = welcomed(&world).await;
    let run = world.run(JOB).await;
    let offered = tokio::time::timeout(PATIENCE, mute.next()).await.unwrap();
    assert!(matches!(offered, Some(ToAgent::Offer { .. })), "{offered:?}");
    world.agent("good", &["--slots", "1"]).await;
    // It goes on reading, and so counts as alive.
    tokio::select! {
        () = async { while mute.next().await.is_some() {} } => panic!("it was cut off"),
        ended = world.api.ended(&run) => {
            assert_eq!(ended["run"]["state"], "success", "{ended}");
        }
    }
}

fn renewals() -> FromAgent {
    let job = JobId::mint(Timestamp(0), [7; 10]);
    let renewal = |beat: u32| Renewal {
        id: AttemptId { job, attempt: beat },
        key: AttemptKey("00".repeat(32)),
        beat: beat.into(),
    };
    FromAgent::Renew { renewals: (1..=SLOTS_MAX).map(renewal).collect() }
}

#[tokio::test]
async fn an_agent_that_asks_and_never_reads_is_cut_off() {
    let world = World::new(Db::Sqlite).await;
    let token = token(&world).await;
    let mut deaf = Link::welcomed(&address(&world), &token, 1, Some(4096)).await;
    let growth = Growth::of(&world);
    // Each frame has a thousand answers, and the server waits with reading until they are gone.
    let frame = frame::encode(&renewals(), b"").unwrap();
    let asking =
        async { while deaf.socket.send(Message::Binary(frame.clone().into())).await.is_ok() {} };
    let ((), cut) = tokio::join!(is_well(&world), tokio::time::timeout(PATIENCE, asking));
    cut.expect("it is cut off");
    growth.stays_below(&world, 32 * MEBIBYTE);
    is_well(&world).await;
}

/// The database's processes, which stand still until this is dropped.
struct Paused(Vec<Pid>);

impl Paused {
    fn database(world: &World) -> Self {
        let url = fs::read_to_string(world.machine.path("database-url")).unwrap();
        let folder = url.split_once("host=").unwrap().1.trim().to_owned();
        let pids = fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let server = pids
            .filter(|pid| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&line).contains(&format!("{folder}/data"))
            })
            .min()
            .unwrap();
        let children = fs::read_to_string(format!("/proc/{server}/task/{server}/children"));
        let children = children.unwrap();
        let all = children.split_whitespace().map(|pid| pid.parse().unwrap()).chain([server]);
        let paused = Self(all.filter_map(Pid::from_raw).collect());
        paused.signal(Signal::STOP);
        paused
    }

    fn signal(&self, signal: Signal) {
        for &pid in &self.0 {
            // One that has ended meanwhile is as good.
            kill_process(pid, signal).ok();
        }
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
    }
}

/// Sends a log as fast as it is taken, without a look at what is acknowledged; counts what was taken.
async fn blast(
    sink: &mut (impl futures_util::Sink<Message> + Unpin),
    (id, key): &(AttemptId, AttemptKey),
    total: u64,
    taken: &AtomicU64,
) {
    let piece = vec![b'x'; LOG_PAYLOAD_BYTES_MAX];
    let len = u32::try_from(piece.len()).unwrap();
    while taken.load(Ordering::Relaxed) < total {
        let from = taken.load(Ordering::Relaxed);
        let bytes = frame::encode(&log(*id, key, from, len), &piece).unwrap();
        assert!(sink.send(Message::Binary(bytes.into())).await.is_ok(), "the link holds");
        taken.store(from + u64::from(len), Ordering::Relaxed);
    }
}

/// Reads until so much of the log is acknowledged.
async fn stored(
    stream: &mut (
             impl futures_util::Stream<Item = Result<Message, tokio_tungstenite::tungstenite::Error>>
             + Unpin
         ),
    total: u64,
) {
    let mut acked = 0;
    while acked < total {
        let message = tokio::time::timeout(PATIENCE, stream.next()).await.expect("a frame");
        let Message::Binary(bytes) = message.unwrap().unwrap() else { continue };
        if let (ToAgent::LogAck { to, .. }, _) = frame::decode(&bytes).unwrap() {
            acked = acked.max(to[&1]);
        }
    }
}

#[tokio::test]
async fn an_agent_that_sends_faster_than_the_disk_waits_for_it() {
    const TOTAL: u64 = 256 * MEBIBYTE;
    let world = World::new(Db::Postgres).await;
    let mut link = welcomed(&world).await;
    let run = world.run(JOB).await;
    let attempt = link.begin().await;
    let growth = Growth::of(&world);
    let taken = AtomicU64::new(0);
    let (mut sink, mut stream) = link.socket.split();
    let blasting = blast(&mut sink, &attempt, TOTAL, &taken);
    let reading = stored(&mut stream, TOTAL);
    let standing = async {
        let take = || taken.load(Ordering::Relaxed);
        until("the log to flow", async || (take() > 16 * MEBIBYTE).then_some(())).await;
        let paused = Paused::database(&world);
        // Nothing is taken any more when a hundred looks in a row see the same.
        let (seen, same) = (Cell::new(take()), Cell::new(0));
        until("the agent to be held up", async || {
            same.set(if take() == seen.get() { same.get() + 1 } else { 0 });
            seen.set(take());
            (same.get() == 100).then_some(())
        })
        .await;
        assert!(seen.get() < TOTAL, "it was never held up");
        is_well(&world).await;
        drop(paused);
    };
    tokio::join!(blasting, reading, standing);
    growth.stays_below(&world, 64 * MEBIBYTE);
    let mut link = Link { socket: sink.reunite(stream).unwrap() };
    link.send(&ended(attempt.0, &attempt.1, TOTAL, None), b"").await.unwrap();
    link.acknowledged(attempt.0).await;
    let ended = world.api.ended(&run).await;
    assert_eq!(ended["run"]["state"], "success", "{ended}");
}

#[tokio::test]
async fn heavy_results_of_many_attempts_at_once_are_stored_one_after_the_other() {
    let world = World::new(Db::Sqlite).await;
    let token = token(&world).await;
    let mut link = Link::welcomed(&address(&world), &token, 64, None).await;
    let axis = (0..64).map(|i| i.to_string()).collect::<Vec<_>>().join(", ");
    let jobs = format!("job('j', {{ matrix: {{ n: [{axis}] }}, steps: [sh('true')] }})");
    let run = world.run(&jobs).await;
    let mut attempts = Vec::new();
    while attempts.len() < 64 {
        attempts.push(link.begin().await);
    }
    let growth = Growth::of(&world);
    // Small numbers take many times their text.
    let outputs: Value = vec![json!([]); 300_000].into();
    let (mut sink, mut stream) = link.socket.split();
    let sending = async {
        for (id, key) in &attempts {
            let bytes = frame::encode(&ended(*id, key, 0, Some(outputs.clone())), b"").unwrap();
            sink.send(Message::Binary(bytes.into())).await.unwrap();
        }
    };
    let reading = async {
        let mut acked = 0;
        while acked < attempts.len() {
            let message = tokio::time::timeout(PATIENCE, stream.next()).await.expect("a frame");
            let Message::Binary(bytes) = message.unwrap().unwrap() else { continue };
            acked +=
                usize::from(matches!(frame::decode(&bytes).unwrap(), (ToAgent::FactAck { .. }, _)));
        }
    };
    tokio::join!(sending, reading, is_well(&world));
    growth.stays_below(&world, 400 * MEBIBYTE);
    let ended = world.api.ended(&run).await;
    assert_eq!(ended["run"]["state"], "success", "{}", ended["run"]);
}

#[tokio::test]
async fn a_job_that_needs_more_than_a_frame_holds_fails_and_says_so() {
    let world = World::new(Db::Sqlite).await;
    let mut link = welcomed(&world).await;
    let jobs = "job('a', { steps: [sh('true')] }), \
        job('b', { needs: ['a'], steps: [sh('true')] }), \
        job('c', { needs: ['a', 'b'], steps: [sh('true')] })";
    let run = world.run(jobs).await;
    // Two results that each fit into a frame.
    let outputs = Value::from("x".repeat(FRAME_BYTES_MAX / 2));
    for _ in 0..2 {
        let (id, key) = link.begin().await;
        link.send(&ended(id, &key, 0, Some(json!({ "s": outputs }))), b"").await.unwrap();
        link.acknowledged(id).await;
    }
    let mut offers = 0;
    let failed = async {
        loop {
            match link.next().await.expect("the link holds") {
                ToAgent::Offer { id, .. } => {
                    offers += 1;
                    link.send(&FromAgent::Reserve { id }, b"").await.unwrap();
                }
                ToAgent::Start(_) => panic!("it does not fit"),
                _ => {}
            }
        }
    };
    tokio::select! {
        () = failed => unreachable!("it reads for ever"),
        ended = world.api.ended(&run) => {
            assert_eq!(ended["run"]["state"], "failed", "{ended}");
            assert!(ended.to_string().contains("above the limit"), "{ended}");
        }
    }
}
