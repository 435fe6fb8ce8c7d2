//! A coordinator small enough to read: it keeps what it is sent, and refuses gaps.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use futures_util::{SinkExt as _, StreamExt as _};
use shuntyard_protocol::{
    AgentId, InstanceId, Timestamp,
    agent::{
        AttemptFact, AttemptId, AttemptKey, Chunk, End, FromAgent, Hello, NumberedFact, Renewed,
        Spec, StepEnd, Timers, ToAgent, VERSIONS, Verdict, Welcome, hello_message,
    },
    frame,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_tungstenite::{WebSocketStream, accept_async, tungstenite::Message};

/// Longest that any test waits for anything.
const PATIENCE: Duration = Duration::from_secs(40);

/// What the coordinator knows of one attempt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) begun: bool,
    pub(crate) streams: BTreeMap<u32, Vec<u8>>,
    pub(crate) facts: Vec<NumberedFact>,
    pub(crate) abandoned: Option<String>,
    pub(crate) refused: Option<String>,
    pub(crate) renewals: u64,
    /// Log frames that came while nothing was acknowledged.
    pub(crate) log_frames: usize,
}

impl Seen {
    pub(crate) fn end(&self) -> Option<&End> {
        self.facts.iter().find_map(|fact| match &fact.fact {
            AttemptFact::Ended(end) => Some(end),
            AttemptFact::StepStarted { .. } | AttemptFact::StepEnded(_) => None,
        })
    }

    pub(crate) fn step(&self, step: u32) -> Option<&StepEnd> {
        self.facts.iter().find_map(|fact| match &fact.fact {
            AttemptFact::StepEnded(end) if end.step == step => Some(end),
            AttemptFact::StepStarted { .. } | AttemptFact::StepEnded(_) | AttemptFact::Ended(_) => {
                None
            }
        })
    }

    pub(crate) fn text(&self, stream: u32) -> String {
        String::from_utf8_lossy(self.streams.get(&stream).map_or(&[], Vec::as_slice)).into_owned()
    }

    pub(crate) fn ends(&self) -> BTreeMap<u32, u64> {
        self.streams.iter().map(|(stream, bytes)| (*stream, bytes.len() as u64)).collect()
    }

    fn take_log(&mut self, chunks: &[Chunk], mut payload: &[u8]) {
        self.log_frames += 1;
        for chunk in chunks {
            let (bytes, rest) = payload.split_at(chunk.len as usize);
            payload = rest;
            let stream = self.streams.entry(chunk.stream).or_default();
            let have = stream.len() as u64;
            let from = chunk.from;
            assert!(from <= have, "a gap in stream {}: {have} < {from}", chunk.stream);
            let skip = usize::try_from(have - from).unwrap().min(bytes.len());
            stream.extend_from_slice(&bytes[skip..]);
            assert_eq!(chunk.marks[0].0, from);
        }
    }

    /// It ended and its log is whole.
    pub(crate) fn complete(&self) -> bool {
        self.end().is_some_and(|end| {
            end.ends
                .iter()
                .all(|(stream, end)| self.ends().get(stream).copied().unwrap_or(0) >= *end)
        })
    }
}

/// How the coordinator behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    pub(crate) timers: Timers,
    pub(crate) release_ms: u64,
    pub(crate) renews: bool,
    pub(crate) acks_logs: bool,
    pub(crate) permits: bool,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            timers: Timers {
                renew_ms: 200,
                fence_term_ms: 10_000,
                fence_kill_ms: 5_000,
                reservation_ms: 15_000,
            },
            release_ms: 20_000,
            renews: true,
            acks_logs: true,
            permits: true,
        }
    }
}

struct State {
    manners: Manners,
    seen: BTreeMap<AttemptId, Seen>,
    waiting: Vec<(Spec, Vec<u8>)>,
    starting: BTreeMap<AttemptId, (Spec, Vec<u8>)>,
    /// Frames to send at the next opportunity.
    orders: Vec<ToAgent>,
    kill: Vec<AttemptId>,
    finish: Vec<AttemptId>,
    hellos: Vec<Hello>,
}

#[derive(Clone)]
pub(crate) struct Coordinator {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
    pub(crate) port: u16,
}

impl Coordinator {
    pub(crate) async fn start(manners: Manners) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = State {
            manners,
            seen: BTreeMap::new(),
            waiting: Vec::new(),
            starting: BTreeMap::new(),
            orders: Vec::new(),
            kill: Vec::new(),
            finish: Vec::new(),
            hellos: Vec::new(),
        };
        let coordinator =
            Self { state: Arc::new(Mutex::new(state)), changed: watch::Sender::new(0), port };
        let accepting = coordinator.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let serving = accepting.clone();
                tokio::spawn(async move { serving.serve(stream).await });
            }
        });
        coordinator
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn touch(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    pub(crate) fn submit(&self, spec: Spec, folder: &[u8]) -> AttemptId {
        let id = spec.id;
        let mut state = self.state();
        state.seen.insert(id, Seen::default());
        state.waiting.push((spec, folder.to_vec()));
        drop(state);
        self.touch();
        id
    }

    pub(crate) fn order(&self, frame: ToAgent) {
        self.state().orders.push(frame);
        self.touch();
    }

    pub(crate) fn mind(&self, change: impl FnOnce(&mut Manners)) {
        change(&mut self.state().manners);
        self.touch();
    }

    /// At the next hello this attempt is not wanted.
    pub(crate) fn condemn(&self, id: AttemptId) {
        self.state().kill.push(id);
    }

    /// At the next hello only this attempt's log is wanted.
    pub(crate) fn finish(&self, id: AttemptId) {
        self.state().finish.push(id);
    }

    pub(crate) fn seen(&self, id: AttemptId) -> Seen {
        self.state().seen[&id].clone()
    }

    pub(crate) fn hellos(&self) -> Vec<Hello> {
        self.state().hellos.clone()
    }

    /// Waits until the attempt looks like this.
    pub(crate) async fn until(
        &self,
        id: AttemptId,
        what: &str,
        condition: impl Fn(&Seen) -> bool,
    ) -> Seen {
        let mut changes = self.changed.subscribe();
        let waiting = async {
            loop {
                let seen = self.seen(id);
                if condition(&seen) {
                    return seen;
                }
                changes.changed().await.unwrap();
            }
        };
        let seen = tokio::time::timeout(PATIENCE, waiting).await;
        seen.unwrap_or_else(|_| {
            panic!("waited in vain for: {what}; seen {:#?}", Brief(&self.seen(id)))
        })
    }

    pub(crate) async fn ended(&self, id: AttemptId) -> Seen {
        self.until(id, "its complete end", Seen::complete).await
    }

    async fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut socket = accept_async(stream).await.ok()?;
        let nonce = "0123456789abcdef".to_owned();
        send(&mut socket, &ToAgent::Challenge { versions: VERSIONS, nonce: nonce.clone() }, &[])
            .await?;
        let (FromAgent::Hello(hello), _) = receive(&mut socket).await? else { panic!("no hello") };
        let key = UnparsedPublicKey::new(&ED25519, hex::decode(&hello.public_key).unwrap());
        key.verify(&hello_message(&nonce), &hex::decode(&hello.signature).unwrap()).unwrap();
        let welcome = self.welcome(hello);
        send(&mut socket, &ToAgent::Welcome(welcome), &[]).await?;
        let mut changes = self.changed.subscribe();
        changes.mark_changed();
        loop {
            tokio::select! {
                frame = receive(&mut socket) => {
                    let (frame, payload) = frame?;
                    for (answer, payload) in self.take(frame, &payload) {
                        send(&mut socket, &answer, &payload).await?;
                    }
                    self.touch();
                }
                _ = changes.changed() => for frame in self.due() {
                    send(&mut socket, &frame, &[]).await?;
                },
            }
        }
    }

    fn welcome(&self, hello: Hello) -> Welcome {
        let mut state = self.state();
        let verdict = |held: &shuntyard_protocol::agent::Held| {
            let id = held.id;
            let Some(seen) = state.seen.get(&id).filter(|_| !state.kill.contains(&id)) else {
                return Verdict::Kill { id };
            };
            let (log, facts) = (seen.ends(), seen.facts.len() as u64);
            if state.finish.contains(&id) {
                return Verdict::Finish { id, log, facts };
            }
            Verdict::Keep { id, log, facts }
        };
        let verdicts = hello.attempts.iter().map(verdict).collect();
        state.hellos.push(hello);
        Welcome {
            version: 1,
            agent: AgentId::mint(Timestamp(1), [1; 10]),
            instance: InstanceId::mint(Timestamp(1), [1; 10]),
            now: Timestamp(1_700_000_000_000),
            timers: state.manners.timers,
            verdicts,
        }
    }

    fn due(&self) -> Vec<ToAgent> {
        let mut state = self.state();
        let mut frames = std::mem::take(&mut state.orders);
        for (spec, folder) in std::mem::take(&mut state.waiting) {
            frames.push(ToAgent::Offer { id: spec.id, name: spec.job.clone() });
            state.starting.insert(spec.id, (spec, folder));
        }
        if state.manners.acks_logs {
            frames.extend(
                state
                    .seen
                    .iter()
                    .filter(|(_, seen)| seen.log_frames > 0)
                    .map(|(id, seen)| ToAgent::LogAck { id: *id, to: seen.ends() }),
            );
            for seen in state.seen.values_mut() {
                seen.log_frames = 0;
            }
        }
        frames
    }

    fn take(&self, frame: FromAgent, payload: &[u8]) -> Vec<(ToAgent, Vec<u8>)> {
        let mut state = self.state();
        let manners = state.manners;
        let answer = |frame| vec![(frame, Vec::new())];
        match frame {
            FromAgent::Reserve { id } => {
                let (spec, folder) = state.starting.remove(&id).expect("it was offered");
                vec![(ToAgent::Start(Box::new(spec)), folder)]
            }
            FromAgent::Refuse { id, reason } => {
                state.seen.get_mut(&id).unwrap().refused = Some(reason);
                Vec::new()
            }
            FromAgent::Begin { id } => {
                state.seen.get_mut(&id).unwrap().begun = true;
                if !manners.permits {
                    return Vec::new();
                }
                answer(ToAgent::Begun { id, key: key(id), release_in_ms: manners.release_ms })
            }
            FromAgent::Renew { renewals } => {
                let mut renewed = Vec::new();
                for renewal in renewals {
                    assert_eq!(renewal.key, key(renewal.id));
                    state.seen.get_mut(&renewal.id).unwrap().renewals += 1;
                    let (id, beat) = (renewal.id, renewal.beat);
                    renewed.push(Renewed { id, beat, release_in_ms: manners.release_ms });
                }
                if manners.renews {
                    answer(ToAgent::Renewed { renewals: renewed })
                } else {
                    Vec::new()
                }
            }
            FromAgent::Log { id, key: shown, chunks } => {
                assert_eq!(shown, key(id));
                state.seen.get_mut(&id).unwrap().take_log(&chunks, payload);
                Vec::new()
            }
            FromAgent::Facts { id, key: shown, facts } => {
                assert_eq!(shown, key(id));
                let seen = state.seen.get_mut(&id).unwrap();
                for fact in facts {
                    let next = seen.facts.len() as u64 + 1;
                    assert!(fact.seq <= next, "a hole before fact {}", fact.seq);
                    if fact.seq == next {
                        seen.facts.push(fact);
                    }
                }
                answer(ToAgent::FactAck { id, seq: seen.facts.len() as u64 })
            }
            FromAgent::Abandon { id, reason } => {
                state.seen.get_mut(&id).unwrap().abandoned = Some(reason);
                Vec::new()
            }
            FromAgent::Hello(_) | FromAgent::Draining {} | FromAgent::Unknown => Vec::new(),
        }
    }
}

/// Without the log's bytes.
struct Brief<'a>(&'a Seen);

impl std::fmt::Debug for Brief<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tails: Vec<_> = self
            .0
            .streams
            .iter()
            .map(|(s, b)| (s, b.len(), String::from_utf8_lossy(&b[b.len().saturating_sub(300)..])))
            .collect();
        write!(
            f,
            "begun {} renewals {} abandoned {:?} refused {:?} facts {:#?} tails {tails:#?}",
            self.0.begun, self.0.renewals, self.0.abandoned, self.0.refused, self.0.facts
        )
    }
}

fn key(id: AttemptId) -> AttemptKey {
    AttemptKey(format!("key of {id}"))
}

async fn send(
    socket: &mut WebSocketStream<TcpStream>,
    frame: &ToAgent,
    payload: &[u8],
) -> Option<()> {
    socket.send(Message::binary(frame::encode(frame, payload).unwrap())).await.ok()
}

async fn receive(socket: &mut WebSocketStream<TcpStream>) -> Option<(FromAgent, Vec<u8>)> {
    loop {
        if let Message::Binary(bytes) = socket.next().await?.ok()? {
            let (header, payload) = frame::decode(&bytes).unwrap();
            return Some((header, payload.to_vec()));
        }
    }
}
