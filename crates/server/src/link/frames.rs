//! An agent's frames on their way into the store, and the answers back.
//!
//! Facts and log chunks are queued for the next group commit in the order in which they came, and
//! answered when they are committed; so one link fills a commit instead of waiting for one each.

use std::{collections::VecDeque, future::Future, pin::Pin, sync::Arc};

use anyhow::Context;
use futures_util::{StreamExt, stream::FuturesUnordered};
use shuntyard_core::apply::{Answer, Fact};
use shuntyard_protocol::{
    AgentId,
    agent::{AttemptId, AttemptKey, FromAgent, ToAgent},
    frame::{self, FRAME_BYTES_MAX, FrameError},
};
use shuntyard_store::{LogAnswer, StoreError};
use tokio::sync::oneshot;

use super::{
    meaning::{self, About, Ask, Reply, Sender},
    outgoing::Outgoing,
};
use crate::{
    app::App,
    starts::{self, Start, Wanted},
};

/// Facts and chunks of one link whose commit is awaited; then the link is not read.
const PENDING_CAPACITY: usize = 256;
/// And their bytes: one link must not take all the room that the store has for all of them. As much
/// as sixteen attempts have on their way.
const PENDING_BYTES: usize = 8 * 1024 * 1024;

/// Starts of one link that are read, or wait to be sent, at the same time.
const STARTS_AT_ONCE: usize = 8;

/// What becomes of something, and the bytes that it holds until then.
type Pending = Pin<Box<dyn Future<Output = (usize, Result<Committed, StoreError>)> + Send>>;

/// Something that was committed or refused, or that a start was waiting for.
pub(super) enum Committed {
    Fact(About, Answer),
    Log(AttemptId, u32, LogAnswer),
    Start(AttemptId, starts::Answer),
}

/// One link's frames on their way into the store and back.
pub(super) struct Frames {
    app: Arc<App>,
    agent: AgentId,
    outgoing: Outgoing,
    pending: FuturesUnordered<Pending>,
    pending_bytes: usize,
    /// Attempts that are to start, in the order in which they were reserved.
    to_start: VecDeque<AttemptId>,
    /// How many of them are being read now.
    starting: usize,
}

impl Frames {
    pub(super) fn new(app: Arc<App>, agent: AgentId, outgoing: Outgoing) -> Self {
        Self {
            app,
            agent,
            outgoing,
            pending: FuturesUnordered::new(),
            pending_bytes: 0,
            to_start: VecDeque::new(),
            starting: 0,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.pending.len() < PENDING_CAPACITY && self.pending_bytes < PENDING_BYTES
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The next answer of the store.
    pub(super) async fn next_reply(&mut self) -> anyhow::Result<Committed> {
        let (bytes, reply) = self.pending.next().await.context("nothing is pending")?;
        self.pending_bytes -= bytes;
        // Not knowing whether a batch was committed, the agent must ask again: so it connects again.
        Ok(reply?)
    }

    /// Queues what a frame says. `len`: its own length, which bounds what its parts hold.
    pub(super) async fn take(
        &mut self,
        frame: FromAgent,
        payload: &[u8],
        len: usize,
    ) -> anyhow::Result<()> {
        let asks = {
            let key = |id| self.app.key.attempt_key(id);
            meaning::asks(frame, payload, &self.sender(&key))?
        };
        let share = len / asks.len().max(1);
        for ask in asks {
            match ask {
                Ask::Fact(about, fact) => {
                    let answer = self.app.store.enqueue(fact).await?;
                    self.wait(share, async move {
                        Ok(Committed::Fact(about, answer.committed().await?))
                    });
                }
                Ask::Log(chunk) => {
                    let (id, stream, bytes) = (chunk.id, chunk.stream, chunk.bytes.len());
                    let answer = self.app.store.enqueue_log(chunk).await?;
                    self.wait(bytes.max(share), async move {
                        Ok(Committed::Log(id, stream, answer.committed().await?))
                    });
                }
                // Its own wish ends with its link: the next start takes jobs again.
                Ask::Drain => self.app.agents.set_draining(self.agent, true),
            }
        }
        Ok(())
    }

    fn wait(
        &mut self,
        bytes: usize,
        answer: impl Future<Output = Result<Committed, StoreError>> + Send + 'static,
    ) {
        self.pending_bytes += bytes;
        self.pending.push(Box::pin(async move { (bytes, answer.await) }));
    }

    fn sender<'a>(&'a self, key: &'a dyn Fn(AttemptId) -> AttemptKey) -> Sender<'a> {
        let now = self.app.env.now();
        Sender { agent: self.agent, now, timers: &self.app.config.timers, key }
    }

    /// Tells the agent what became of something.
    pub(super) async fn answer(&mut self, committed: Committed) -> anyhow::Result<()> {
        match committed {
            Committed::Fact(about, answer) => self.answer_fact(about, answer).await,
            Committed::Log(id, stream, answer) => {
                self.send(&meaning::log_reply(id, stream, answer)?, b"").await
            }
            Committed::Start(id, start) => {
                self.starting -= 1;
                self.start(id, start).await?;
                self.want_starts().await
            }
        }
    }

    async fn answer_fact(&mut self, about: About, answer: Answer) -> anyhow::Result<()> {
        if let Answer::Failed { reason } = &answer {
            tracing::error!(?about, reason, "a fact cannot be applied");
        }
        let replies = {
            let key = |id| self.app.key.attempt_key(id);
            meaning::replies(about, answer, &self.sender(&key))?
        };
        for reply in replies {
            match reply {
                Reply::Send(frame) => self.send(&frame, b"").await?,
                Reply::Start(id) => {
                    self.to_start.push_back(id);
                    self.want_starts().await?;
                }
                Reply::Freed(id) => self.freed(id),
            }
        }
        Ok(())
    }

    /// The attempt takes no slot any more.
    fn freed(&self, id: AttemptId) {
        if self.app.agents.ended(id) {
            self.app.pokes.dispatch.poke();
        }
    }

    /// Asks for the next starts, as many as one agent gets at a time: each may have megabytes.
    async fn want_starts(&mut self) -> anyhow::Result<()> {
        while self.starting < STARTS_AT_ONCE
            && let Some(id) = self.to_start.pop_front()
        {
            let (reply, start) = oneshot::channel();
            self.app.starts.send(Wanted { id, reply }).await.context("the server stops")?;
            self.starting += 1;
            self.wait(0, async move {
                Ok(Committed::Start(id, start.await.map_err(|_| StoreError::Closed)?))
            });
        }
        Ok(())
    }

    async fn start(&mut self, id: AttemptId, answer: starts::Answer) -> anyhow::Result<()> {
        let Start { spec, folder } = match answer {
            starts::Answer::Start(start) => *start,
            starts::Answer::Gone => return self.dismiss(id).await,
            starts::Answer::Unusable(reason) => return self.give_up(id, reason).await,
        };
        let folder = folder.as_deref().unwrap_or_default().as_bytes();
        match frame::encode(&ToAgent::Start(Box::new(spec)), folder) {
            Ok(bytes) => Ok(self.outgoing.send(bytes).await?),
            Err(FrameError::TooLong { bytes }) => {
                let reason = format!(
                    "what the job needs to start has {bytes} bytes, with the outputs of the jobs \
                     before it; that is above the limit of {FRAME_BYTES_MAX}"
                );
                self.give_up(id, reason).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whoever is asked, this job cannot start. So this attempt comes to nothing, and after some of
    /// them the job fails with the reason.
    async fn give_up(&mut self, id: AttemptId, reason: String) -> anyhow::Result<()> {
        self.app.store.submit(Fact::Abandoned { id, agent: self.agent, reason }).await?;
        self.dismiss(id).await
    }

    async fn dismiss(&mut self, id: AttemptId) -> anyhow::Result<()> {
        self.freed(id);
        self.send(&ToAgent::Superseded { id }, b"").await
    }

    async fn send(&mut self, frame: &ToAgent, payload: &[u8]) -> anyhow::Result<()> {
        let bytes = frame::encode(frame, payload)?;
        // The writer cuts off an agent that does not read, which ends this wait.
        Ok(self.outgoing.send(bytes).await?)
    }
}
