//! A TCP proxy whose connections can be cut, delayed and silenced.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// Bytes that one direction of a connection holds.
const BUFFER_BYTES: usize = 16 * 1024;

/// What becomes of bytes on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    Clear,
    /// Each piece arrives this much later.
    Slow(Duration),
    /// Nothing arrives until the weather changes.
    Silent,
}

/// The proxy, as long as it is not dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    weather: watch::Sender<Weather>,
    /// Counts the cuts.
    cuts: watch::Sender<u64>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Listens on a free port of this machine, for connections to `target`.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (weather, cuts) = (watch::Sender::new(Weather::Clear), watch::Sender::new(0));
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, target, weather.subscribe(), cuts.subscribe()));
        Ok(Self { address, weather, cuts, _tasks: tasks })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    /// Breaks every connection.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

async fn accept(
    listener: TcpListener,
    target: SocketAddr,
    weather: watch::Receiver<Weather>,
    cuts: watch::Receiver<u64>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((near, _)) = accepted {
                let (weather, mut cuts) = (weather.clone(), cuts.clone());
                cuts.mark_unchanged();
                connections.spawn(async move {
                    tokio::select! {
                        () = connect(near, target, weather) => {}
                        _ = cuts.changed() => {}
                    }
                });
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connect(near: TcpStream, target: SocketAddr, weather: watch::Receiver<Weather>) {
    let Ok(far) = TcpStream::connect(target).await else { return };
    near.set_nodelay(true).ok();
    far.set_nodelay(true).ok();
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    tokio::select! {
        _ = carry(near_read, far_write, weather.clone()) => {}
        _ = carry(far_read, near_write, weather) => {}
    }
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut weather: watch::Receiver<Weather>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        let now = weather.wait_for(|weather| *weather != Weather::Silent).await;
        let slow = now.map(|weather| *weather);
        if let Ok(Weather::Slow(by)) = slow {
            tokio::time::sleep(by).await;
        }
        to.write_all(&buffer[..count]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_carries_silences_and_cuts() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
        let mut near = TcpStream::connect(proxy.address()).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        near.write_all(b"ab").await.unwrap();
        let mut bytes = [0; 2];
        far.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"ab");
        proxy.set(Weather::Silent);
        far.write_all(b"cd").await.unwrap();
        let silent = tokio::time::timeout(Duration::from_millis(50), near.read_exact(&mut bytes));
        assert!(silent.await.is_err());
        proxy.set(Weather::Clear);
        near.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"cd");
        proxy.cut();
        assert!(matches!(near.read(&mut bytes).await, Ok(0) | Err(_)));
        let mut again = TcpStream::connect(proxy.address()).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        again.write_all(b"ef").await.unwrap();
        far.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"ef");
    }
}
