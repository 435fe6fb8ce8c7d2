//! Requests as bytes, sent as no proper client would.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{machine::PATIENCE, world::World};

/// How a connection ended for its client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With the status of an answer.
    Answered(u16),
    /// Without one.
    Closed,
}

/// Where the server listens.
pub(crate) fn address(world: &World) -> String {
    world.api.url.strip_prefix("http://").unwrap().to_owned()
}

pub(crate) async fn connect(world: &World) -> TcpStream {
    let stream = TcpStream::connect(address(world)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// What comes back until there is a status or the end.
pub(crate) async fn end(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> End {
    let read = async {
        let mut bytes = Vec::new();
        let mut buffer = [0; 1024];
        loop {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return End::Closed,
                Ok(read) => bytes.extend_from_slice(&buffer[..read]),
            }
            if let Some(line) =
                bytes.split(|&b| b == b'\n').next().filter(|l| l.len() < bytes.len())
            {
                let line = String::from_utf8_lossy(line).into_owned();
                return End::Answered(line.split(' ').nth(1).unwrap().parse().unwrap());
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("the server answers or closes")
}

/// Sends byte by byte, with a pause after each, until the server has had enough.
pub(crate) async fn dribble(stream: TcpStream, bytes: &[u8], pause: Duration) -> End {
    let (mut reading, mut writing) = stream.into_split();
    let write = async {
        let mut ticks = tokio::time::interval(pause);
        for byte in bytes {
            ticks.tick().await;
            if writing.write_all(&[*byte]).await.is_err() {
                break;
            }
        }
        // Whoever has sent all of it waits.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        end = end(&mut reading) => end,
        () = write => unreachable!("it waits for ever"),
    }
}

/// Sends a head and then `total` bytes of body, as fast as they are taken, until the server has had
/// enough. How it ended, and how much was taken.
pub(crate) async fn pour(stream: TcpStream, head: &str, total: u64, chunked: bool) -> (End, u64) {
    const PIECE: usize = 64 * 1024;
    let (mut reading, mut writing) = stream.into_split();
    let mut sent = 0;
    let write = async {
        let mut piece = vec![b' '; PIECE];
        if chunked {
            piece = [format!("{PIECE:x}\r\n").as_bytes(), &piece, b"\r\n"].concat();
        }
        if writing.write_all(head.as_bytes()).await.is_ok() {
            while sent < total && writing.write_all(&piece).await.is_ok() {
                sent += PIECE as u64;
            }
        }
        std::future::pending::<()>().await;
    };
    let end = tokio::select! {
        end = end(&mut reading) => end,
        () = write => unreachable!("it waits for ever"),
    };
    (end, sent)
}
