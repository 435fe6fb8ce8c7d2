//! An agent that does as the test tells it, over a real WebSocket.

use std::collections::BTreeMap;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use shuntyard_protocol::{
    Outcome, Timestamp,
    agent::{
        AttemptFact, AttemptId, AttemptKey, Chunk, Containment, End, FromAgent, Hello, Mark,
        NumberedFact, ToAgent, VERSIONS, hello_message,
    },
    frame,
};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpSocket, TcpStream},
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Error, Message},
};

use crate::machine::PATIENCE;

/// One link.
pub(crate) struct Link {
    pub(crate) socket: WebSocketStream<TcpStream>,
}

impl Link {
    /// Up to the challenge, unless the server has no place for it. `receive`: bytes that the socket
    /// holds for whoever does not read.
    pub(crate) async fn open(address: &str, receive: Option<u32>) -> Result<(Self, String), Error> {
        let socket = TcpSocket::new_v4().unwrap();
        if let Some(bytes) = receive {
            socket.set_recv_buffer_size(bytes).unwrap();
        }
        let stream = socket.connect(address.parse().unwrap()).await?;
        stream.set_nodelay(true)?;
        let url = format!("ws://{address}/api/v1/agent/link");
        let (socket, _) = client_async(url, stream).await?;
        let mut link = Self { socket };
        match link.next().await {
            Some(ToAgent::Challenge { nonce, .. }) => Ok((link, nonce)),
            other => panic!("it begins with {other:?}"),
        }
    }

    /// An agent that is welcome, with a name that nobody else has and `slots`.
    pub(crate) async fn welcomed(
        address: &str,
        token: &str,
        slots: u32,
        receive: Option<u32>,
    ) -> Self {
        let (mut link, nonce) = Self::open(address, receive).await.unwrap();
        link.send(&hello(&nonce, token, slots), b"").await.unwrap();
        match link.next().await {
            Some(ToAgent::Welcome(_)) => link,
            other => panic!("it is answered with {other:?}"),
        }
    }

    pub(crate) async fn send(&mut self, frame: &FromAgent, payload: &[u8]) -> Result<(), Error> {
        let bytes = frame::encode(frame, payload).unwrap();
        self.socket.send(Message::Binary(bytes.into())).await
    }

    /// The next frame; none when the link has ended.
    pub(crate) async fn next(&mut self) -> Option<ToAgent> {
        loop {
            let message = timeout(PATIENCE, self.socket.next()).await.expect("a frame or the end");
            match message {
                Some(Ok(Message::Binary(bytes))) => return Some(frame::decode(&bytes).unwrap().0),
                Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                Some(Ok(_)) => {}
            }
        }
    }

    /// Takes the next offer, up to the permission to run it.
    pub(crate) async fn begin(&mut self) -> (AttemptId, AttemptKey) {
        loop {
            match self.next().await.expect("the link holds") {
                ToAgent::Offer { id, .. } => {
                    self.send(&FromAgent::Reserve { id }, b"").await.unwrap();
                }
                ToAgent::Start(spec) => {
                    self.send(&FromAgent::Begin { id: spec.id }, b"").await.unwrap();
                }
                ToAgent::Begun { id, key, .. } => return (id, key),
                _ => {}
            }
        }
    }

    /// Waits until a fact of an attempt is acknowledged.
    pub(crate) async fn acknowledged(&mut self, attempt: AttemptId) {
        loop {
            match self.next().await.expect("the link holds") {
                ToAgent::FactAck { id, seq } if id == attempt && seq > 0 => return,
                ToAgent::Superseded { .. } => panic!("it is superseded"),
                _ => {}
            }
        }
    }

    /// Bytes below the WebSocket, until the server has had enough. Whether it had.
    pub(crate) async fn raw(&mut self, bytes: &[u8]) -> bool {
        self.socket.get_mut().write_all(bytes).await.is_err()
    }
}

pub(crate) fn hello(nonce: &str, token: &str, slots: u32) -> FromAgent {
    let pair = Ed25519KeyPair::generate().unwrap();
    FromAgent::Hello(Hello {
        versions: VERSIONS,
        public_key: hex::encode(pair.public_key()),
        signature: hex::encode(pair.sign(&hello_message(nonce))),
        token: Some(token.to_owned()),
        name: hex::encode(&pair.public_key().as_ref()[..8]),
        labels: Vec::new(),
        slots,
        containment: Containment::Namespace,
        boot_id: "test".to_owned(),
        software: "test".to_owned(),
        attempts: Vec::new(),
    })
}

/// A stretch of the first step's log.
pub(crate) fn log(id: AttemptId, key: &AttemptKey, from: u64, len: u32) -> FromAgent {
    let chunks = vec![Chunk { stream: 1, from, len, marks: vec![Mark(from, Timestamp(0))] }];
    FromAgent::Log { id, key: key.clone(), chunks }
}

/// The result of an attempt, whose first step has written so many bytes.
pub(crate) fn ended(
    id: AttemptId,
    key: &AttemptKey,
    log: u64,
    outputs: Option<Value>,
) -> FromAgent {
    let end = End {
        at: Timestamp(0),
        outcome: Outcome::Success,
        reason: None,
        outputs,
        ends: BTreeMap::from([(1, log)]),
        torn: Vec::new(),
    };
    let facts = vec![NumberedFact { seq: 1, fact: AttemptFact::Ended(end) }];
    FromAgent::Facts { id, key: key.clone(), facts }
}

/// The beginning of a binary WebSocket message of a client, with a mask of zeros.
pub(crate) fn websocket_head(len: u64) -> Vec<u8> {
    [&[0x82, 0xff][..], &len.to_be_bytes(), &[0; 4]].concat()
}
