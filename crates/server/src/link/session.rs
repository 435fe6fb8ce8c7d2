//! One agent's link, from the upgrade to the end.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use axum::{
    Extension,
    extract::{
        State, WebSocketUpgrade,
        ws::{Message, WebSocket},
    },
    response::Response,
};
use futures_util::{SinkExt, StreamExt, stream::SplitSink, stream::SplitStream};
use shuntyard_protocol::{
    AgentId,
    agent::{FromAgent, Hello, ToAgent, VERSIONS, Verdict, Welcome},
    frame,
};
use shuntyard_store::{CancelWanted, HeldAttempt};
use tokio::time;
use tokio_util::sync::CancellationToken;

use super::{
    Session,
    frames::Frames,
    handshake::{self, Admitted},
    outgoing::{Outgoing, Queue},
};
use crate::{
    app::App,
    connections::Peer,
    dispatch,
    http::error::{ApiResult, too_many},
    secrets::sha256,
};

/// The handshake must end within this.
const AUTH_TIMEOUT: Duration = Duration::from_secs(15);
/// Links whose handshake has not ended.
const UNAUTHENTICATED_MAX: usize = 256;
/// Bytes that come before an agent is known: its hello, with every attempt that it holds.
const HELLO_BYTES_MAX: u64 = 512 * 1024;
/// Nothing was heard for this long, pongs included: the link is dead.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(45);
const PING_PERIOD: Duration = Duration::from_secs(15);
/// What each link keeps ready to read into, even while nothing comes.
const READ_BUFFER_BYTES: usize = 8 * 1024;
/// An agent that does not take a frame within this is cut off.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

static SERIAL: AtomicU64 = AtomicU64::new(0);

/// Links whose handshake has not ended yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handshakes(Arc<AtomicUsize>);

/// A place among them, given back when dropped.
struct Place(Handshakes);

impl Handshakes {
    fn enter(&self) -> Option<Place> {
        let place = Place(self.clone());
        (self.0.fetch_add(1, Ordering::Relaxed) < UNAUTHENTICATED_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// `GET /api/v1/agent/link`
pub(crate) async fn upgrade(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    upgrade: WebSocketUpgrade,
) -> ApiResult<Response> {
    let busy = || too_many("too many agents connect at once; try again");
    let place = app.handshakes.enter().ok_or_else(busy)?;
    let Extension(peer) = peer.unwrap_or_default();
    peer.may_send(HELLO_BYTES_MAX);
    let upgrade = upgrade
        .max_message_size(frame::FRAME_BYTES_MAX)
        .max_frame_size(frame::FRAME_BYTES_MAX)
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(0);
    Ok(upgrade.on_upgrade(move |socket| async move {
        if let Err(error) = serve(app, socket, peer, place).await {
            tracing::info!(error = format!("{error:#}"), "agent link closed");
        }
    }))
}

async fn serve(app: Arc<App>, socket: WebSocket, peer: Peer, place: Place) -> anyhow::Result<()> {
    let (mut sink, mut stream) = socket.split();
    let hello = time::timeout(AUTH_TIMEOUT, greet(&app, &mut sink, &mut stream));
    let (hello, admitted) = hello.await.context("handshake took too long")??;
    drop(place);
    peer.trust();
    let agent = admitted.agent.id;
    let (outgoing, queue) = Outgoing::new();
    let close = CancellationToken::new();
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let welcome = welcome(&app, &admitted, &hello).await?;
    let held = welcome.verdicts.iter().filter_map(|verdict| match verdict {
        Verdict::Keep { id, .. } => Some(*id),
        Verdict::Finish { .. } | Verdict::Kill { .. } => None,
    });
    let held: BTreeSet<_> = held.collect();
    send(&mut sink, &ToAgent::Welcome(welcome)).await?;
    app.agents.register(
        agent,
        Session {
            serial,
            org: admitted.agent.org.clone(),
            labels: labels(&admitted),
            slots: admitted.seen.slots as usize,
            draining: admitted.agent.draining,
            held,
            outgoing: outgoing.clone(),
            close: close.clone(),
        },
    );
    // What an admin did since the agent was admitted did not find this session.
    let now = app.store.agent(agent).await?;
    app.agents.set_draining(agent, now.as_ref().is_none_or(|agent| agent.draining));
    if now.is_none_or(|agent| agent.revoked_at.is_some()) {
        close.cancel();
    }
    tracing::info!(%agent, name = admitted.agent.name, "agent connected");
    app.pokes.dispatch.poke();
    for CancelWanted { id, force, reason } in app.store.cancels_for(agent).await? {
        app.agents.send_to_holder(id, &ToAgent::Cancel { id, force, reason });
    }
    let frames = Frames::new(Arc::clone(&app), agent, outgoing);
    let ended = tokio::select! {
        ended = read(&app, agent, &mut stream, frames) => ended,
        ended = write(&mut sink, queue) => ended,
        () = close.cancelled() => Err(anyhow::anyhow!("closed by this side")),
        () = app.tasks.stop().cancelled() => Ok(()),
    };
    drop(time::timeout(Duration::from_secs(1), sink.close()).await);
    if app.agents.unregister(agent, serial) {
        app.store.agent_gone(agent, app.instance, app.env.now()).await?;
    }
    ended.with_context(|| format!("agent {agent}"))
}

fn labels(admitted: &Admitted) -> BTreeSet<String> {
    let own = dispatch::server_labels(&admitted.agent.org, admitted.seen.containment);
    admitted.seen.labels.iter().cloned().chain(own).collect()
}

type Sink = SplitSink<WebSocket, Message>;
type Stream = SplitStream<WebSocket>;

async fn greet(
    app: &App,
    sink: &mut Sink,
    stream: &mut Stream,
) -> anyhow::Result<(Hello, Admitted)> {
    let nonce = app.env.secret();
    send(sink, &ToAgent::Challenge { versions: VERSIONS, nonce: nonce.clone() }).await?;
    // Whatever else comes before the agent is known is dropped.
    let hello = loop {
        let Some(message) = stream.next().await else { bail!("closed before its hello") };
        if let Message::Binary(bytes) = message?
            && let (FromAgent::Hello(hello), _) = frame::decode(&bytes)?
        {
            break hello;
        }
    };
    match handshake::admit(app, &hello, &nonce).await {
        Ok(admitted) => Ok((hello, admitted)),
        Err(refusal) => {
            let code = refusal.code.to_owned();
            send(sink, &ToAgent::Rejected { code, message: refusal.message.clone() }).await?;
            sink.close().await?;
            bail!("agent '{}' was turned away: {}: {}", hello.name, refusal.code, refusal.message)
        }
    }
}

async fn welcome(app: &App, admitted: &Admitted, hello: &Hello) -> anyhow::Result<Welcome> {
    let (agent, now) = (admitted.agent.id, app.env.now());
    if !app.store.agent_seen(agent, &admitted.seen, app.instance, now).await? {
        bail!("the agent was revoked meanwhile");
    }
    let held: Vec<_> = hello
        .attempts
        .iter()
        .map(|held| HeldAttempt {
            id: held.id,
            key_hash: held.key.as_ref().map(|key| sha256(key.0.as_bytes())),
        })
        .collect();
    let verdicts = app.store.reconcile(agent, app.instance, &held).await?;
    Ok(Welcome {
        version: admitted.version,
        agent,
        instance: app.instance,
        now,
        timers: app.config.timers.for_agents(),
        verdicts,
    })
}

async fn send(sink: &mut Sink, frame: &ToAgent) -> anyhow::Result<()> {
    let bytes = frame::encode(frame, b"")?;
    time::timeout(WRITE_TIMEOUT, sink.send(Message::Binary(bytes.into()))).await??;
    Ok(())
}

async fn read(
    app: &App,
    agent: AgentId,
    stream: &mut Stream,
    mut frames: Frames,
) -> anyhow::Result<()> {
    let mut beats = time::interval(PING_PERIOD);
    let mut heard = app.env.now();
    loop {
        tokio::select! {
            // Answers first: they make room for more frames.
            biased;
            reply = frames.next_reply(), if frames.has_pending() => frames.answer(reply?).await?,
            message = stream.next(), if frames.has_room() => {
                let Some(message) = message else { return Ok(()) };
                heard = app.env.now();
                match message? {
                    Message::Binary(bytes) => {
                        let (header, payload) = frame::decode(&bytes)?;
                        frames.take(header, payload, bytes.len()).await?;
                    }
                    Message::Close(_) => return Ok(()),
                    Message::Text(_) => bail!("frames are binary"),
                    Message::Ping(_) | Message::Pong(_) => {}
                }
            }
            _ = beats.tick() => {
                if app.env.now().since(heard) > SILENCE_TIMEOUT {
                    bail!("nothing heard for {} s", SILENCE_TIMEOUT.as_secs());
                }
                app.store.agent_beat(agent, app.env.now()).await?;
            }
        }
    }
}

async fn write(sink: &mut Sink, mut queue: Queue) -> anyhow::Result<()> {
    let mut pings = time::interval(PING_PERIOD);
    loop {
        let message = tokio::select! {
            frame = queue.next() => match frame {
                Some(frame) => Message::Binary(frame.into()),
                None => return Ok(()),
            },
            _ = pings.tick() => Message::Ping(Vec::new().into()),
        };
        // What queued up meanwhile goes out with one flush.
        let batch = async {
            sink.feed(message).await?;
            while let Some(frame) = queue.waiting() {
                sink.feed(Message::Binary(frame.into())).await?;
            }
            sink.flush().await
        };
        time::timeout(WRITE_TIMEOUT, batch).await.context("the agent does not read")??;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unauthenticated_max_links_may_shake_hands_at_once() {
        let handshakes = Handshakes::default();
        let mut places: Vec<_> = (0..UNAUTHENTICATED_MAX).map(|_| handshakes.enter()).collect();
        assert!(places.iter().all(Option::is_some));
        assert!(handshakes.enter().is_none());
        places.pop();
        assert!(handshakes.enter().is_some());
    }
}
