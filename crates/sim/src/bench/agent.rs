//! A simulated agent: the whole protocol over a real WebSocket, no processes.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use futures_util::{FutureExt, SinkExt, StreamExt, stream::SplitSink};
use shuntyard_protocol::{
    Outcome, Timestamp,
    agent::{
        AttemptFact, AttemptId, AttemptKey, Chunk, Containment, End, FromAgent, Hello, Mark,
        NumberedFact, StepEnd, ToAgent, VERSIONS, hello_message,
    },
    frame,
};
use tokio::{net::TcpStream, sync::mpsc};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async_with_config,
    tungstenite::{Message, protocol::WebSocketConfig},
};

/// Messages that may wait for the measurement.
const DONE_CAPACITY: usize = 4096;

/// What an agent does with each job.
#[derive(Clone)]
pub(super) struct Work {
    /// Lines of log per job, sent with its result.
    pub(super) lines: usize,
    /// Bytes of log per job, sent before the result as fast as they are acknowledged.
    pub(super) bulk_bytes: u64,
    pub(super) slots: u32,
}

type Sink = SplitSink<WebSocketStream<MaybeTlsStream<TcpStream>>, Message>;

pub(super) fn done_channel() -> (mpsc::Sender<AttemptId>, mpsc::Receiver<AttemptId>) {
    mpsc::channel(DONE_CAPACITY)
}

/// Runs jobs until the link closes; `done` hears of each whose result is acknowledged.
pub(super) async fn run(
    url: String,
    token: String,
    name: String,
    work: Work,
    done: mpsc::Sender<AttemptId>,
) -> anyhow::Result<()> {
    let url = format!("{}/api/v1/agent/link", url.replacen("http", "ws", 1));
    let config = WebSocketConfig::default().max_message_size(Some(frame::FRAME_BYTES_MAX));
    let (socket, _) =
        connect_async_with_config(url, Some(config), true).await.context("connect")?;
    let (mut sink, mut stream) = socket.split();
    let pair = Ed25519KeyPair::generate().map_err(|_| anyhow::anyhow!("make a key"))?;
    let log: Vec<u8> =
        (0..work.lines).flat_map(|i| format!("line {i} of a job\n").into_bytes()).collect();
    let mut hello = Some((token, name));
    let mut bulks = BTreeMap::new();
    loop {
        // What came together is answered with one flush, as a busy agent does.
        let message = if let Some(message) = stream.next().now_or_never() {
            message
        } else {
            sink.flush().await?;
            stream.next().await
        };
        let Some(message) = message else { return Ok(()) };
        let Message::Binary(bytes) = message? else { continue };
        let (header, _) = frame::decode::<ToAgent>(&bytes)?;
        match header {
            ToAgent::Challenge { nonce, .. } => {
                let (token, name) = hello.take().context("challenged twice")?;
                let frame = FromAgent::Hello(hello_frame(&pair, &nonce, token, name, work.slots));
                feed(&mut sink, &frame, b"").await?;
            }
            ToAgent::Offer { id, .. } => feed(&mut sink, &FromAgent::Reserve { id }, b"").await?,
            ToAgent::Start(spec) => feed(&mut sink, &FromAgent::Begin { id: spec.id }, b"").await?,
            ToAgent::Begun { id, key, .. } if work.bulk_bytes > 0 => {
                let mut bulk = Bulk { key, sent: 0, end: work.bulk_bytes };
                bulk.go_on(&mut sink, id, 0).await?;
                bulks.insert(id, bulk);
            }
            ToAgent::Begun { id, key, .. } => {
                send_log(&mut sink, id, &key, &log).await?;
                send_facts(&mut sink, id, key, log.len() as u64).await?;
            }
            ToAgent::LogAck { id, to } => {
                let acked = to.get(&1).copied().unwrap_or(0);
                if let Some(bulk) = bulks.get_mut(&id)
                    && bulk.go_on(&mut sink, id, acked).await?
                    && let Some(bulk) = bulks.remove(&id)
                {
                    send_facts(&mut sink, id, bulk.key, bulk.end).await?;
                }
            }
            ToAgent::FactAck { id, seq } if seq >= LAST_FACT => drop(done.send(id).await),
            ToAgent::Rejected { code, message } => bail!("{code}: {message}"),
            ToAgent::Welcome(_)
            | ToAgent::FactAck { .. }
            | ToAgent::Superseded { .. }
            | ToAgent::Renewed { .. }
            | ToAgent::Cancel { .. }
            | ToAgent::Unknown => {}
        }
    }
}

/// Number of the fact that ends an attempt.
const LAST_FACT: u64 = 3;

/// As much as one frame carries.
const CHUNK_BYTES: u64 = 256 * 1024;
/// As much as an agent has on its way for one attempt.
const WINDOW_BYTES: u64 = 2 * CHUNK_BYTES;

/// A long log on its way.
struct Bulk {
    key: AttemptKey,
    sent: u64,
    end: u64,
}

impl Bulk {
    /// Sends what the window has room for. True: all of it is acknowledged.
    async fn go_on(&mut self, sink: &mut Sink, id: AttemptId, acked: u64) -> anyhow::Result<bool> {
        const LINE: &[u8] = b"a line of a log that is about as long as lines of logs are\n";
        while self.sent < self.end && self.sent + CHUNK_BYTES <= acked + WINDOW_BYTES {
            let len = CHUNK_BYTES.min(self.end - self.sent);
            let take = usize::try_from(len).context("a chunk is short")?;
            let bytes: Vec<u8> = LINE.iter().copied().cycle().take(take).collect();
            let marks = vec![Mark(self.sent, Timestamp(0))];
            let chunk = Chunk { stream: 1, from: self.sent, len: u32::try_from(len)?, marks };
            let frame = FromAgent::Log { id, key: self.key.clone(), chunks: vec![chunk] };
            feed(sink, &frame, &bytes).await?;
            self.sent += len;
        }
        Ok(acked >= self.end)
    }
}

async fn send_log(
    sink: &mut Sink,
    id: AttemptId,
    key: &AttemptKey,
    log: &[u8],
) -> anyhow::Result<()> {
    if log.is_empty() {
        return Ok(());
    }
    let len = u32::try_from(log.len()).context("a short log")?;
    let chunks = vec![Chunk { stream: 1, from: 0, len, marks: vec![Mark(0, Timestamp(0))] }];
    feed(sink, &FromAgent::Log { id, key: key.clone(), chunks }, log).await
}

/// A step and the result.
async fn send_facts(
    sink: &mut Sink,
    id: AttemptId,
    key: AttemptKey,
    log_end: u64,
) -> anyhow::Result<()> {
    let at = Timestamp(0);
    let end = StepEnd {
        step: 0,
        at,
        outcome: Outcome::Success,
        exit_code: Some(0),
        error: None,
        outputs: None,
        tries: 1,
    };
    let ends = BTreeMap::from([(1, log_end)]);
    let facts = [
        AttemptFact::StepStarted { step: 0, at },
        AttemptFact::StepEnded(end),
        AttemptFact::Ended(End {
            at,
            outcome: Outcome::Success,
            reason: None,
            outputs: None,
            ends,
            torn: Vec::new(),
        }),
    ];
    let facts = (1..).zip(facts).map(|(seq, fact)| NumberedFact { seq, fact }).collect();
    feed(sink, &FromAgent::Facts { id, key, facts }, b"").await
}

fn hello_frame(
    pair: &Ed25519KeyPair,
    nonce: &str,
    token: String,
    name: String,
    slots: u32,
) -> Hello {
    Hello {
        versions: VERSIONS,
        public_key: hex::encode(pair.public_key()),
        signature: hex::encode(pair.sign(&hello_message(nonce))),
        token: Some(token),
        name,
        labels: Vec::new(),
        slots,
        containment: Containment::Namespace,
        boot_id: "bench".to_owned(),
        software: "bench".to_owned(),
        attempts: Vec::new(),
    }
}

async fn feed(sink: &mut Sink, frame: &FromAgent, payload: &[u8]) -> anyhow::Result<()> {
    Ok(sink.feed(Message::Binary(frame::encode(frame, payload)?.into())).await?)
}
