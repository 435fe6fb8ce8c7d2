//! Many connections, held by processes of their own: descriptors are counted by process.

use std::{
    env,
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
};

use futures_util::future::join_all;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::link::Link;

const KIND: &str = "SHUNT_CROWD";
const COUNT: &str = "SHUNT_CROWD_COUNT";
const ADDRESS: &str = "SHUNT_CROWD_ADDRESS";
const TOKEN: &str = "SHUNT_CROWD_TOKEN";
/// What a process says when all its connections are there.
const READY: &str = "the crowd is there";
/// Connections of one process.
const OF_ONE: usize = 2500;
/// Connections that are made at once.
const AT_ONCE: usize = 50;

/// What each of a crowd does before it is idle.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// One request, over a connection that is kept.
    Http,
    /// An agent that is welcome.
    Agent,
}

/// Idle connections, until it is dropped.
pub(crate) struct Crowd(Vec<Child>);

impl Crowd {
    /// Returns when all are there.
    pub(crate) fn gather(kind: Kind, count: usize, address: &str, token: &str) -> Self {
        let mut crowd = Self(Vec::new());
        let mut left = count;
        while left > 0 {
            let part = left.min(OF_ONE);
            left -= part;
            crowd.0.push(spawn(kind, part, address, token));
        }
        for child in &mut crowd.0 {
            let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
            let ready = lines.map_while(Result::ok).any(|line| line.contains(READY));
            assert!(ready, "the crowd did not gather");
        }
        crowd
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.0 {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn spawn(kind: Kind, count: usize, address: &str, token: &str) -> Child {
    let kind = match kind {
        Kind::Http => "http",
        Kind::Agent => "agent",
    };
    Command::new(env::current_exe().unwrap())
        .args(["crowd::process", "--exact", "--ignored", "--nocapture"])
        .env(KIND, kind)
        .env(COUNT, count.to_string())
        .env(ADDRESS, address)
        .env(TOKEN, token)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Lets this process open as many files as it may.
pub(crate) fn open_files() -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    maximum.map_or(usize::MAX, |files| usize::try_from(files).unwrap())
}

/// A process of a crowd; nothing happens unless it is one.
#[tokio::test]
#[ignore = "a process that other tests start"]
async fn process() {
    let Ok(kind) = env::var(KIND) else { return };
    let get = |name: &str| env::var(name).unwrap();
    let (address, token) = (get(ADDRESS), get(TOKEN));
    let count: usize = get(COUNT).parse().unwrap();
    open_files();
    let (mut streams, mut links) = (Vec::new(), Vec::new());
    for first in (0..count).step_by(AT_ONCE) {
        let part = first..(first + AT_ONCE).min(count);
        if kind == "http" {
            streams.extend(join_all(part.map(|_| kept(&address))).await);
        } else {
            links.extend(join_all(part.map(|_| Link::welcomed(&address, &token, 1, None))).await);
        }
    }
    println!("{READY}");
    // Until whoever started it is gone.
    drop(tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0; 1])).await);
    drop((streams, links));
}

/// A connection that has seen one request.
async fn kept(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 512];
    while !answer.ends_with(b"ok\n") {
        let read = stream.read(&mut buffer).await.unwrap();
        assert_ne!(read, 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&buffer[..read]);
    }
    stream
}
