//! A place where a step of a job waits for the test.

use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    time,
};

/// A listener that a step connects to: then the test knows where it is.
pub(crate) struct Gate(TcpListener);

/// A step that waits. It fails should this be dropped without [`Waiting::go`].
pub(crate) struct Waiting(TcpStream);

impl Gate {
    pub(crate) async fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    /// What the step says in bash.
    pub(crate) fn wait(&self) -> String {
        let port = self.0.local_addr().unwrap().port();
        format!("read -r _ < /dev/tcp/127.0.0.1/{port}")
    }

    /// What a step says to tell that it came here, and goes on. A shell that reads does not see a
    /// signal that comes just before it reads; one that waits for a child does.
    pub(crate) fn pass(&self) -> String {
        let port = self.0.local_addr().unwrap().port();
        format!(": > /dev/tcp/127.0.0.1/{port}")
    }

    /// Waits until a step has come this far.
    pub(crate) async fn reached(&self) -> Waiting {
        let reached = time::timeout(crate::machine::PATIENCE, self.0.accept()).await;
        Waiting(reached.expect("no step came to the gate").unwrap().0)
    }
}

impl Waiting {
    pub(crate) async fn go(mut self) {
        self.0.write_all(b"\n").await.unwrap();
    }
}
