//! Tries from inside the walls what they are there to deny.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::ErrorKind,
    net::{TcpStream, UdpSocket},
    os::unix::net::UnixStream,
    process::Command,
    thread,
};

use serde::{Deserialize, Serialize};

use super::Layers;
use crate::sys;

/// What the probe found.
#[derive(Debug, Serialize, Deserialize)]
pub struct Probe {
    pub layers: Layers,
    /// Each attempt, and whether it was denied.
    pub denied: BTreeMap<String, bool>,
}

/// Raises the walls, then runs into each of them.
pub(crate) fn run() -> Probe {
    let layers = super::raise();
    let refused = |error: &std::io::Error| error.kind() == ErrorKind::PermissionDenied;
    let attempts: [(&str, bool); 16] = [
        ("open a file", File::open("/etc/passwd").is_err_and(|e| refused(&e))),
        ("create a file", File::create("/tmp/shuntyard-probe").is_err_and(|e| refused(&e))),
        ("list a folder", fs::read_dir("/").is_err_and(|e| refused(&e))),
        ("look at a file", fs::metadata("/etc/passwd").is_err_and(|e| refused(&e))),
        ("connect by TCP", TcpStream::connect(("127.0.0.1", 9)).is_err_and(|e| refused(&e))),
        ("bind by UDP", UdpSocket::bind(("127.0.0.1", 0)).is_err_and(|e| refused(&e))),
        ("connect a Unix socket", UnixStream::connect("/run/x").is_err_and(|e| refused(&e))),
        ("make a socket pair", UnixStream::pair().is_err()),
        ("run a program", Command::new("/bin/true").spawn().is_err()),
        ("start a thread", thread::Builder::new().spawn(|| ()).is_err()),
        ("fork", sys::fork_is_denied()),
        ("execute", sys::exec_is_denied()),
        ("trace", sys::trace_is_denied()),
        ("signal a process", sys::kill_is_denied()),
        ("map executable memory", sys::executable_memory_is_denied()),
        ("write to another descriptor", sys::write_is_denied(3)),
    ];
    let denied = attempts.into_iter().map(|(name, denied)| (name.to_owned(), denied)).collect();
    Probe { layers, denied }
}
