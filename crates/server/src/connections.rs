//! What a connection may take: how many there are, how long one may be silent, how much a stranger may
//! send.
//!
//! Whoever connects costs a descriptor and memory before anything is known about them. So all of it
//! has a limit here, below HTTP, TLS and the agents' link.

use std::{
    future::{Ready, ready},
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use anyhow::Context as _;
use axum::http::Request;
use axum_server::{Address, Server, accept::Accept};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{self, Sleep},
};
use tower::Service;

/// Without a byte in either direction for this long (and at most twice as long) a connection is cut.
/// Longer than a request may take, and than the pings of an agent's link are apart.
const SILENCE: Duration = Duration::from_mins(3);
/// Longest head of a request, in bytes. Above: 431.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Most requests at once on one connection with HTTP/2.
const HTTP2_STREAMS: u32 = 64;
/// Bytes that a sender may have on its way with HTTP/2: of one request, and of a connection.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 256 * 1024;
/// Files that are kept for everything else, of those that a process may open: an eighth, within these.
const RESERVE_MIN: u64 = 64;
const RESERVE_MAX: u64 = 1024;
/// Where the operating system has no limit.
const CONNECTIONS_MAX: usize = 65_536;

/// Lets this process open as many files as the system allows it, which is what bounds connections.
/// Programs that it starts inherit that; so whoever starts commands of users leaves it alone.
pub fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
}

/// Connections for which there are files.
fn room(open_files: Option<u64>) -> usize {
    let room = open_files.map(|files| {
        let reserve = (files / 8).clamp(RESERVE_MIN, RESERVE_MAX);
        usize::try_from(files.saturating_sub(reserve).max(1)).unwrap_or(CONNECTIONS_MAX)
    });
    room.map_or(CONNECTIONS_MAX, |room| room.min(CONNECTIONS_MAX))
}

/// How many connections there may be; above, one is closed as soon as it is accepted.
#[derive(Clone)]
pub(crate) struct Connections {
    open: Arc<AtomicUsize>,
    max: usize,
    silence: Duration,
}

impl Connections {
    /// `wanted`: from the configuration.
    pub(crate) fn new(wanted: Option<usize>) -> Self {
        let room = room(getrlimit(Resource::Nofile).current);
        if let Some(wanted) = wanted.filter(|&wanted| wanted > room) {
            tracing::warn!(wanted, room, "http.connections_max is above what open files allow");
        }
        Self::up_to(wanted.map_or(room, |wanted| wanted.min(room)))
    }

    fn up_to(max: usize) -> Self {
        Self { open: Arc::default(), max, silence: SILENCE }
    }

    fn enter(&self) -> Option<Place> {
        let place = Place(Arc::clone(&self.open));
        (self.open.fetch_add(1, Ordering::Relaxed) < self.max).then_some(place)
    }
}

/// A place among the connections, given back when dropped.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S> Accept<TcpStream, S> for Connections {
    type Stream = Connection;
    type Service = Introduced<S>;
    type Future = Ready<io::Result<(Connection, Introduced<S>)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let Some(place) = self.enter() else {
            return ready(Err(io::Error::other("too many connections")));
        };
        // Answers are short and somebody waits for them.
        drop(stream.set_nodelay(true));
        let peer = Peer::default();
        let connection = Connection {
            stream,
            peer: peer.clone(),
            silence: self.silence,
            timer: None,
            moved: false,
            _place: place,
        };
        ready(Ok((connection, Introduced { service, peer })))
    }
}

/// Who is at the other end, and what they may still send.
#[derive(Clone)]
pub(crate) struct Peer(Arc<AtomicU64>);

/// No limit.
const ANY: u64 = u64::MAX;

impl Default for Peer {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(ANY)))
    }
}

impl Peer {
    /// From now on it may send this many bytes; the connection ends with the next one.
    pub(crate) fn may_send(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// It is known: other limits hold.
    pub(crate) fn trust(&self) {
        self.0.store(ANY, Ordering::Relaxed);
    }

    /// Only the connection's own task reads, so nobody takes away in between.
    fn takes(&self, bytes: u64) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        if left == ANY {
            return true;
        }
        self.0.store(left.saturating_sub(bytes), Ordering::Relaxed);
        bytes <= left
    }
}

/// A TCP connection under watch.
pub(crate) struct Connection {
    stream: TcpStream,
    peer: Peer,
    silence: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// A byte moved since the timer was set.
    moved: bool,
    _place: Place,
}

impl Connection {
    /// To be called when nothing moves: an error when that was so for too long.
    fn wait(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let silence = self.silence;
        let timer = self.timer.get_or_insert_with(|| Box::pin(time::sleep(silence)));
        while timer.as_mut().poll(cx).is_ready() {
            if !std::mem::take(&mut self.moved) {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the other end is silent"));
            }
            timer.set(time::sleep(silence));
        }
        Ok(())
    }

    fn after<T>(&mut self, poll: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        match poll {
            Poll::Pending => match self.wait(cx) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
            ended @ Poll::Ready(_) => {
                self.moved = true;
                ended
            }
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let read = (buffer.filled().len() - before) as u64;
        if !self.peer.takes(read) {
            // An error comes without bytes.
            buffer.set_filled(before);
            let error = "more than a stranger may send";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, error)));
        }
        self.after(poll, cx)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.after(poll, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.after(poll, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Gives each request the [`Peer`] of its connection.
#[derive(Clone)]
pub(crate) struct Introduced<S> {
    service: S,
    peer: Peer,
}

impl<S: Service<Request<B>>, B> Service<Request<B>> for Introduced<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        request.extensions_mut().insert(self.peer.clone());
        self.service.call(request)
    }
}

/// The server with its limits. `patience`: for the head of a request, and for the next one on a
/// connection that is kept.
pub(crate) fn limited<A: Address, T>(server: Server<A, T>, patience: Duration) -> Server<A, T> {
    let mut server = server.first_request_timeout(patience);
    let builder = server.http_builder();
    builder.http1().header_read_timeout(patience).max_buf_size(HEAD_BYTES_MAX);
    builder
        .http2()
        .max_concurrent_streams(HTTP2_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(STREAM_WINDOW as usize)
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX));
    server.accept_error_handler(|_, error| tracing::debug!(%error, "no connection"))
}

/// A certificate and its key, read from PEM files.
pub(crate) async fn tls(
    tls: &crate::config::Tls,
) -> anyhow::Result<axum_server::tls_rustls::RustlsConfig> {
    let read = axum_server::tls_rustls::RustlsConfig::from_pem_file(&tls.cert, &tls.key).await;
    read.with_context(|| {
        format!("read the certificate {} and key {}", tls.cert.display(), tls.key.display())
    })
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// Both ends of a connection.
    async fn pair(connections: &Connections) -> (TcpStream, Connection, Peer) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (server, introduced) = connections.accept(accepted.unwrap().0, ()).await.unwrap();
        (client.unwrap(), server, introduced.peer)
    }

    #[test]
    fn connections_leave_files_for_the_rest() {
        assert_eq!(room(Some(1024)), 896);
        assert_eq!(room(Some(100)), 36);
        assert_eq!(room(Some(10)), 1);
        // RESERVE_MIN and RESERVE_MAX are reached at eight times as many files, and hold beyond.
        for (files, reserve) in
            [(8 * RESERVE_MIN, RESERVE_MIN), (8 * RESERVE_MAX, RESERVE_MAX), (20_000, RESERVE_MAX)]
        {
            assert_eq!(room(Some(files)) as u64, files - reserve);
        }
        assert_eq!(room(None), CONNECTIONS_MAX);
        let more = CONNECTIONS_MAX as u64 + RESERVE_MAX + 1;
        assert_eq!(room(Some(more)), CONNECTIONS_MAX);
        assert_eq!(room(Some(more - 2)), CONNECTIONS_MAX - 1);
    }

    #[tokio::test]
    async fn one_connection_more_than_allowed_is_closed_until_another_ends() {
        let connections = Connections::up_to(2);
        let (first, second) = (pair(&connections).await, pair(&connections).await);
        assert!(connections.enter().is_none());
        drop(first);
        assert!(connections.enter().is_some());
        drop(second);
    }

    #[tokio::test]
    async fn a_stranger_may_send_so_much_and_whoever_is_known_anything() {
        let connections = Connections::up_to(2);
        let (mut client, mut server, peer) = pair(&connections).await;
        let mut buffer = [0; 10];
        peer.may_send(10);
        client.write_all(&[0; 10]).await.unwrap();
        server.read_exact(&mut buffer).await.unwrap();
        peer.trust();
        client.write_all(&[0; 10]).await.unwrap();
        server.read_exact(&mut buffer).await.unwrap();
        peer.may_send(10);
        client.write_all(&[0; 11]).await.unwrap();
        let mut all = Vec::new();
        let error = server.read_to_end(&mut all).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }

    #[tokio::test]
    async fn silence_ends_a_connection_unless_a_byte_moved_meanwhile() {
        let silence = Duration::from_millis(20);
        let connections = Connections { silence, ..Connections::up_to(1) };
        let (mut client, mut server, _) = pair(&connections).await;
        let read = async |server: &mut Connection| server.read(&mut [0; 1]).await;
        let mut reading = Box::pin(read(&mut server));
        // The timer is set when there is nothing to read; what is read then counts for it.
        assert!(futures_util::poll!(&mut reading).is_pending());
        client.write_all(b"x").await.unwrap();
        assert_eq!(reading.await.unwrap(), 1);
        let before = server.timer.as_ref().unwrap().deadline();
        assert_eq!(read(&mut server).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(server.timer.as_ref().unwrap().deadline() >= before + silence);
    }
}
