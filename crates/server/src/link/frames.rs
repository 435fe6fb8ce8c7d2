//! What an agent's frames mean, and the answers to them.
//!
//! Facts and log chunks are queued for the next group commit in the order in which they came, and
//! answered when they are committed; so one link fills a commit instead of waiting for one each.

use std::{collections::BTreeMap, future::Future, pin::Pin, sync::Arc};

use anyhow::{Context, bail};
use futures_util::{StreamExt, stream::FuturesUnordered};
use shuntyard_core::apply::{Answer, Cancel, Fact, KeyHash};
use shuntyard_protocol::{
    AgentId,
    agent::{
        AttemptFact, AttemptId, AttemptKey, Chunk, FACTS_PER_FRAME_MAX, FromAgent, NumberedFact,
        Renewal, Renewed, SLOTS_MAX, ToAgent,
    },
    frame,
};
use shuntyard_store::{LogAnswer, LogAppend, StoreError};
use tokio::sync::mpsc;

use crate::{app::App, dispatch, secrets::sha256};

/// Facts and chunks of one link whose commit is awaited; then the link is not read.
const PENDING_MAX: usize = 256;

type Pending = Pin<Box<dyn Future<Output = Result<Reply, StoreError>> + Send>>;

/// Something that was committed, or refused.
pub(super) enum Reply {
    Fact(About, Answer),
    Log(AttemptId, u32, LogAnswer),
}

/// Which frame a fact came from.
#[derive(Clone, Debug)]
pub(super) enum About {
    Reserve(AttemptId),
    /// Refuse and abandon: nothing is answered.
    Withdraw(AttemptId),
    Begin(AttemptId),
    Renew(AttemptId, u64),
    Fact(AttemptId, bool),
}

/// One link's frames on their way into the store and back.
pub(super) struct Frames {
    app: Arc<App>,
    agent: AgentId,
    outgoing: mpsc::Sender<Vec<u8>>,
    pending: FuturesUnordered<Pending>,
}

fn key_hash(key: &AttemptKey) -> KeyHash {
    sha256(key.0.as_bytes())
}

impl Frames {
    pub(super) fn new(app: Arc<App>, agent: AgentId, outgoing: mpsc::Sender<Vec<u8>>) -> Self {
        Self { app, agent, outgoing, pending: FuturesUnordered::new() }
    }

    pub(super) fn has_room(&self) -> bool {
        self.pending.len() < PENDING_MAX
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The next answer of the store.
    pub(super) async fn next_reply(&mut self) -> anyhow::Result<Reply> {
        let reply = self.pending.next().await.context("nothing is pending")?;
        // Not knowing whether a batch was committed, the agent must ask again: so it connects again.
        Ok(reply?)
    }

    /// Queues what a frame says.
    pub(super) async fn take(&mut self, frame: FromAgent, payload: &[u8]) -> anyhow::Result<()> {
        let (agent, timers) = (self.agent, self.app.config.timers);
        match frame {
            FromAgent::Reserve { id } => {
                let start_by = self.app.env.now() + timers.reservation;
                self.fact(About::Reserve(id), Fact::Reserved { id, agent, start_by }).await
            }
            FromAgent::Refuse { id, reason } => {
                self.fact(About::Withdraw(id), Fact::Refused { id, agent, reason }).await
            }
            FromAgent::Abandon { id, reason } => {
                self.fact(About::Withdraw(id), Fact::Abandoned { id, agent, reason }).await
            }
            FromAgent::Begin { id } => {
                let key_hash = key_hash(&self.app.key.attempt_key(id));
                let release_at = self.app.env.now() + timers.release;
                let fact = Fact::Begin { id, agent, key_hash, release_at };
                self.fact(About::Begin(id), fact).await
            }
            FromAgent::Renew { renewals } => self.renew(renewals).await,
            FromAgent::Log { id, key, chunks } => self.log(id, &key, chunks, payload).await,
            FromAgent::Facts { id, key, facts } => self.facts(id, &key, facts).await,
            FromAgent::Draining {} => {
                self.app.agents.drain(agent);
                self.app.store.set_agent_draining(agent, true).await?;
                Ok(())
            }
            FromAgent::Hello(_) => bail!("a second hello"),
            // A frame of a later version.
            FromAgent::Unknown => Ok(()),
        }
    }

    async fn fact(&mut self, about: About, fact: Fact) -> anyhow::Result<()> {
        let answer = self.app.store.enqueue(fact).await?;
        self.pending
            .push(Box::pin(async move { Ok(Reply::Fact(about, answer.committed().await?)) }));
        Ok(())
    }

    async fn renew(&mut self, renewals: Vec<Renewal>) -> anyhow::Result<()> {
        if renewals.len() > SLOTS_MAX as usize {
            bail!("{} renewals in one frame", renewals.len());
        }
        let release_at = self.app.env.now() + self.app.config.timers.release;
        for Renewal { id, key, beat } in renewals {
            let fact = Fact::Renewed { id, key_hash: key_hash(&key), release_at };
            self.fact(About::Renew(id, beat), fact).await?;
        }
        Ok(())
    }

    async fn facts(
        &mut self,
        id: AttemptId,
        key: &AttemptKey,
        facts: Vec<NumberedFact>,
    ) -> anyhow::Result<()> {
        if facts.len() > FACTS_PER_FRAME_MAX {
            bail!("{} facts in one frame", facts.len());
        }
        let key_hash = key_hash(key);
        for NumberedFact { seq, fact } in facts {
            let ended = matches!(fact, AttemptFact::Ended(_));
            self.fact(About::Fact(id, ended), Fact::Attempt { id, key_hash, seq, fact }).await?;
        }
        Ok(())
    }

    async fn log(
        &mut self,
        id: AttemptId,
        key: &AttemptKey,
        chunks: Vec<Chunk>,
        payload: &[u8],
    ) -> anyhow::Result<()> {
        let key_hash = key_hash(key);
        let mut rest = payload;
        for Chunk { stream, from, len, marks } in chunks {
            let (bytes, behind) =
                rest.split_at_checked(len as usize).context("a log frame ends early")?;
            rest = behind;
            let chunk = LogAppend { id, key_hash, stream, from, marks, bytes: bytes.to_vec() };
            let answer = self.app.store.enqueue_log(chunk).await?;
            self.pending.push(Box::pin(async move {
                Ok(Reply::Log(id, stream, answer.committed().await?))
            }));
        }
        Ok(())
    }

    /// Tells the agent what became of something.
    pub(super) async fn answer(&mut self, reply: Reply) -> anyhow::Result<()> {
        match reply {
            Reply::Fact(about, answer) => self.answer_fact(about, answer).await,
            Reply::Log(id, stream, answer) => {
                let frame = match answer {
                    LogAnswer::Acked { to } | LogAnswer::Gap { have: to } => {
                        ToAgent::LogAck { id, to: BTreeMap::from([(stream, to)]) }
                    }
                    LogAnswer::Superseded => ToAgent::Superseded { id },
                    LogAnswer::Failed { reason } => bail!("log of {id}: {reason}"),
                };
                self.send(&frame, b"").await
            }
        }
    }

    async fn answer_fact(&mut self, about: About, answer: Answer) -> anyhow::Result<()> {
        match (about, answer) {
            (About::Reserve(id), Answer::Committed) => self.start(id).await,
            (About::Withdraw(id), _) => {
                self.freed(id);
                Ok(())
            }
            (About::Begin(id), Answer::Begun { cancel, .. }) => {
                let key = self.app.key.attempt_key(id);
                let release_in_ms = self.release_in_ms();
                self.send(&ToAgent::Begun { id, key, release_in_ms }, b"").await?;
                self.cancel(id, cancel).await
            }
            (About::Renew(id, beat), Answer::Renewed { cancel, .. }) => {
                let renewed = Renewed { id, beat, release_in_ms: self.release_in_ms() };
                self.send(&ToAgent::Renewed { renewals: vec![renewed] }, b"").await?;
                self.cancel(id, cancel).await
            }
            // Unanswered, the supervisor's fence closes by itself.
            (About::Renew(..), Answer::Expired) => Ok(()),
            (About::Fact(id, ended), Answer::Acked { seq }) => {
                if ended {
                    self.freed(id);
                }
                self.send(&ToAgent::FactAck { id, seq }, b"").await
            }
            (About::Fact(id, _), Answer::Gap { have }) => {
                self.send(&ToAgent::FactAck { id, seq: have }, b"").await
            }
            (
                About::Reserve(id) | About::Begin(id) | About::Renew(id, _) | About::Fact(id, _),
                Answer::Superseded | Answer::Stale | Answer::Unknown,
            ) => {
                self.freed(id);
                self.send(&ToAgent::Superseded { id }, b"").await
            }
            (About::Fact(id, _), Answer::Failed { reason }) => {
                // It would be sent for ever: the attempt ends instead, and is lost at its release.
                tracing::error!(attempt = %id, reason, "a fact cannot be applied");
                self.send(&ToAgent::Superseded { id }, b"").await
            }
            (about, answer) => bail!("{about:?} was answered {answer:?}"),
        }
    }

    async fn start(&mut self, id: AttemptId) -> anyhow::Result<()> {
        match dispatch::spec(&self.app, id).await? {
            Some((spec, folder)) => self.send(&ToAgent::Start(Box::new(spec)), &folder).await,
            None => self.send(&ToAgent::Superseded { id }, b"").await,
        }
    }

    async fn cancel(&mut self, id: AttemptId, cancel: Option<Cancel>) -> anyhow::Result<()> {
        let Some(Cancel { force, reason, .. }) = cancel else { return Ok(()) };
        self.send(&ToAgent::Cancel { id, force, reason }, b"").await
    }

    fn release_in_ms(&self) -> u64 {
        u64::try_from(self.app.config.timers.release.as_millis()).unwrap_or(u64::MAX)
    }

    fn freed(&self, id: AttemptId) {
        if self.app.agents.ended(id) {
            self.app.pokes.dispatch.poke();
        }
    }

    async fn send(&mut self, frame: &ToAgent, payload: &[u8]) -> anyhow::Result<()> {
        let bytes = frame::encode(frame, payload)?;
        // The writer cuts off an agent that does not read, which ends this wait.
        self.outgoing.send(bytes).await.context("the link is closing")
    }
}
