//! One WebSocket to one coordinator, from the challenge to its end.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use futures_util::{SinkExt as _, StreamExt as _, stream::SplitSink, stream::SplitStream};
use shuntyard_protocol::{
    agent::{FromAgent, Hello, Timers, ToAgent, VERSIONS, Welcome},
    frame::{self, FRAME_BYTES_MAX},
};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async_tls_with_config,
    tungstenite::{Bytes, Message, protocol::WebSocketConfig},
};

use super::{
    held,
    hub::{Frame, Hub},
    mailbox::Mailbox,
};
use crate::config::{Secret, Status};

/// How long a connection and each answer of the handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// Renewals without any sign of life before the link counts as dead.
const SILENT_RENEWALS: u32 = 3;
/// Added to that, for a link with short timers.
const SILENCE_MIN: Duration = Duration::from_secs(5);
/// How long renewals are collected, at most. The fence counts from before that.
const COLLECT_MAX: Duration = Duration::from_secs(1);

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// The address of the agent link at a coordinator.
pub(super) fn endpoint(url: &str) -> Result<String, String> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| format!("'{url}' is not a URL"))?;
    let scheme = match scheme {
        "http" | "ws" => "ws",
        "https" | "wss" => "wss",
        _ => return Err(format!("'{url}' does not start with https:// or http://")),
    };
    let rest = rest.trim_end_matches('/');
    if rest.is_empty() || rest.contains(['?', '#', '@']) {
        return Err(format!("'{url}' is not the address of a coordinator"));
    }
    Ok(format!("{scheme}://{rest}/api/v1/agent/link"))
}

/// Links until the link ends; whether it was welcomed, and why it ended.
pub(super) async fn run(hub: &Arc<Hub>, url: &str) -> (bool, String) {
    let mut socket = match open(hub, url).await {
        Ok(socket) => socket,
        Err(error) => return (false, format!("{error:#}")),
    };
    let welcome = match greet(hub, url, &mut socket).await {
        Ok(welcome) => welcome,
        Err(error) => return (false, format!("{error:#}")),
    };
    tracing::info!(url, agent = %welcome.agent, version = welcome.version, "linked");
    hub.online(&welcome);
    hub.tell(Status::Connected { url: url.into(), agent: welcome.agent });
    let (sink, stream) = socket.split();
    let ended = tokio::select! {
        result = listen(hub, stream, welcome.timers) => result,
        result = talk(hub, sink, welcome.timers) => result,
    };
    (true, ended.map_or_else(|error| format!("{error:#}"), |()| "the coordinator closed it".into()))
}

async fn open(hub: &Hub, url: &str) -> anyhow::Result<Socket> {
    let endpoint = endpoint(url).map_err(anyhow::Error::msg)?;
    let config = WebSocketConfig::default()
        .max_message_size(Some(FRAME_BYTES_MAX))
        .max_frame_size(Some(FRAME_BYTES_MAX))
        .max_write_buffer_size(2 * FRAME_BYTES_MAX);
    let connector = super::tls::connector(hub.host.config.ca_file.as_deref())?;
    let connecting = connect_async_tls_with_config(&endpoint, Some(config), true, connector);
    let (socket, _) = tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting)
        .await
        .with_context(|| format!("{endpoint} did not answer in time"))?
        .with_context(|| format!("cannot connect to {endpoint}"))?;
    Ok(socket)
}

/// Challenge, hello, welcome.
async fn greet(hub: &Hub, url: &str, socket: &mut Socket) -> anyhow::Result<Welcome> {
    let ToAgent::Challenge { versions, nonce } = answer(socket).await? else {
        bail!("the coordinator does not begin with a challenge");
    };
    let host = &hub.host;
    if VERSIONS.common(versions).is_none() {
        let told = Status::Rejected {
            url: url.into(),
            code: "version".into(),
            message: format!("it speaks versions {} to {}", versions.min, versions.max),
        };
        hub.tell(told);
        bail!(
            "the coordinator speaks versions {} to {} of the link, this agent {} to {}",
            versions.min,
            versions.max,
            VERSIONS.min,
            VERSIONS.max
        );
    }
    let hello = FromAgent::Hello(Hello {
        versions: VERSIONS,
        public_key: host.key.public(),
        signature: host.key.prove(&nonce),
        token: host.config.token.as_ref().map(Secret::expose).map(str::to_owned),
        name: host.config.name.clone(),
        labels: host.labels.clone(),
        slots: host.config.slots,
        containment: host.level,
        boot_id: host.boot_id.clone(),
        software: env!("CARGO_PKG_VERSION").into(),
        attempts: hub.held(),
    });
    let bytes = frame::encode(&hello, &[])?;
    socket.send(Message::binary(bytes)).await.context("cannot send the hello")?;
    let frame = answer(socket).await?;
    if let ToAgent::Welcome(welcome) = frame {
        return Ok(welcome);
    }
    let ToAgent::Rejected { code, message } = frame else {
        bail!("the coordinator answers the hello with neither a welcome nor a refusal");
    };
    tracing::error!(url, code, message, "the coordinator refuses this agent");
    let reason = format!("refused ({code}): {message}");
    hub.tell(Status::Rejected { url: url.into(), code, message });
    bail!(reason)
}

async fn answer(socket: &mut Socket) -> anyhow::Result<ToAgent> {
    let reading = async {
        loop {
            match socket.next().await.context("the coordinator hung up")?? {
                Message::Binary(bytes) => return Ok(frame::decode(&bytes)?.0),
                Message::Close(close) => bail!("closed: {close:?}"),
                Message::Text(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    };
    let timeout = tokio::time::timeout(HANDSHAKE_TIMEOUT, reading);
    timeout.await.context("the coordinator did not answer in time")?
}

async fn listen(
    hub: &Arc<Hub>,
    mut stream: SplitStream<Socket>,
    timers: Timers,
) -> anyhow::Result<()> {
    let silence = SILENCE_MIN + Duration::from_millis(timers.renew_ms) * SILENT_RENEWALS;
    loop {
        let next = tokio::time::timeout(silence, stream.next())
            .await
            .context("the coordinator has been silent for too long")?;
        let Some(message) = next else { return Ok(()) };
        match message.context("the link broke")? {
            Message::Binary(bytes) => {
                let (header, payload) = frame::decode(&bytes).context("a frame is damaged")?;
                take(hub, header, payload).await;
            }
            Message::Close(_) => return Ok(()),
            Message::Text(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
    }
}

async fn take(hub: &Arc<Hub>, header: ToAgent, payload: &[u8]) {
    match header {
        ToAgent::Offer { id, .. } => hub.offer(id),
        ToAgent::Start(spec) => held::follow_start(hub, *spec, payload.to_vec()).await,
        ToAgent::Begun { id, .. } => hub.down(id, |mailbox| mailbox.begun(header)),
        ToAgent::Superseded { id } => hub.down(id, Mailbox::supersede),
        ToAgent::Renewed { renewals } => {
            for renewed in renewals {
                hub.down(renewed.id, |mailbox| mailbox.renew(renewed));
            }
        }
        ToAgent::Cancel { id, force, reason } => {
            hub.down(id, |mailbox| mailbox.cancel(force, reason));
        }
        ToAgent::LogAck { id, to } => hub.down(id, |mailbox| mailbox.ack_log(to)),
        ToAgent::FactAck { id, seq } => hub.down(id, |mailbox| mailbox.ack_facts(seq)),
        ToAgent::Challenge { .. } | ToAgent::Welcome(_) | ToAgent::Rejected { .. } => {
            tracing::warn!("the coordinator repeats its handshake");
        }
        ToAgent::Unknown => {}
    }
}

/// How long renewals are collected.
fn collect_every(renew: Duration) -> Duration {
    (renew / 10).clamp(Duration::from_millis(5), COLLECT_MAX)
}

async fn talk(
    hub: &Hub,
    mut sink: SplitSink<Socket, Message>,
    timers: Timers,
) -> anyhow::Result<()> {
    let renew = Duration::from_millis(timers.renew_ms.max(1));
    let mut collect = tokio::time::interval(collect_every(renew));
    let mut ping = tokio::time::interval(renew.max(Duration::from_secs(1)));
    loop {
        let more = hub.outgoing.notified();
        if let Some((header, payload)) = hub.next() {
            send(&mut sink, (header, payload)).await?;
            continue;
        }
        tokio::select! {
            () = more => {}
            _ = collect.tick() => {}
            _ = ping.tick() => {
                sink.send(Message::Ping(Bytes::new())).await.context("the link broke")?;
            }
        }
    }
}

async fn send(
    sink: &mut SplitSink<Socket, Message>,
    (header, payload): Frame,
) -> anyhow::Result<()> {
    let bytes = frame::encode(&header, &payload)?;
    sink.send(Message::binary(bytes)).await.context("the link broke")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_are_collected_for_a_tenth_of_their_interval() {
        assert_eq!(collect_every(Duration::from_secs(5)), Duration::from_millis(500));
        assert_eq!(collect_every(Duration::from_secs(10)), COLLECT_MAX);
        assert_eq!(collect_every(Duration::from_mins(10)), COLLECT_MAX);
    }

    #[test]
    fn a_coordinator_is_named_by_its_address() {
        let link = "/api/v1/agent/link";
        assert_eq!(endpoint("https://ci.example.org/"), Ok(format!("wss://ci.example.org{link}")));
        assert_eq!(endpoint("http://[::1]:8484"), Ok(format!("ws://[::1]:8484{link}")));
        for url in ["ci.example.org", "ftp://h", "https://", "https://u:p@h", "https://h/?q"] {
            assert!(endpoint(url).is_err(), "{url}");
        }
    }
}
