//! Who this agent is: its key, its boot, and how processes are named for good.

use std::path::{Path, PathBuf};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use serde::{Deserialize, Serialize};
use shuntyard_protocol::agent::hello_message;

use crate::{
    clock,
    files::{self, FileError},
    sandbox,
};

/// The agent's key could not be read or made.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} is not an Ed25519 key: restore it, or remove it and enrol this agent again", path.display())]
    Damaged { path: PathBuf },
}

/// The agent's Ed25519 key: whoever has it is this agent.
pub(crate) struct AgentKey(Ed25519KeyPair);

impl AgentKey {
    /// Reads the key, or makes it at the first start.
    pub(crate) fn load(path: &Path) -> Result<Self, KeyError> {
        let damaged = || KeyError::Damaged { path: path.into() };
        if !path.exists() {
            let seed: [u8; 32] = clock::random();
            files::write_atomic(path, hex::encode(seed).as_bytes())?;
        }
        let text = std::fs::read_to_string(path).map_err(FileError::of("read", path))?;
        let seed = hex::decode(text.trim()).map_err(|_| damaged())?;
        Ed25519KeyPair::from_seed_unchecked(&seed).map(Self).map_err(|_| damaged())
    }

    /// Hex.
    pub(crate) fn public(&self) -> String {
        hex::encode(self.0.public_key())
    }

    /// The proof for a coordinator's nonce, hex.
    pub(crate) fn prove(&self, nonce: &str) -> String {
        hex::encode(self.0.sign(&hello_message(nonce)))
    }
}

/// A process, named so that no other one ever has the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pub boot_id: String,
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`.
    pub started: u64,
}

impl ProcessId {
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let started = sandbox::process(pid)?.started;
        Some(Self { boot_id: boot_id(), pid, started })
    }

    /// Whether this very process still runs. One that has ended does not, also while nobody takes
    /// note of it: orphans wait for the host's first process, and not every one of those looks.
    pub(crate) fn lives(&self) -> bool {
        let zombie = sandbox::process(self.pid).is_none_or(|process| process.zombie);
        !zombie && Self::of(self.pid).as_ref() == Some(self)
    }
}

/// Differs after every boot.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};

    use super::*;

    #[test]
    fn the_key_stays_and_proves_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.key");
        let key = AgentKey::load(&path).unwrap();
        let again = AgentKey::load(&path).unwrap();
        assert_eq!(key.public(), again.public());
        let public = UnparsedPublicKey::new(&ED25519, hex::decode(key.public()).unwrap());
        let proof = hex::decode(again.prove("nonce")).unwrap();
        public.verify(&hello_message("nonce"), &proof).unwrap();
    }

    #[test]
    fn a_damaged_key_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.key");
        std::fs::write(&path, "short").unwrap();
        assert!(matches!(AgentKey::load(&path), Err(KeyError::Damaged { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"short");
    }

    #[test]
    fn a_process_is_found_again_and_another_one_is_not_it() {
        let me = ProcessId::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(me.lives());
        assert!(!ProcessId { started: me.started + 1, ..me }.lives());
    }

    #[test]
    fn a_process_that_has_ended_does_not_live_on_as_a_zombie() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let id = ProcessId::of(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(id.lives());
        let mut output = child.stdout.take().unwrap();
        drop(child.stdin.take());
        // Its end of the pipe closes on its way out.
        std::io::Read::read_to_end(&mut output, &mut Vec::new()).unwrap();
        while id.lives() {
            std::thread::yield_now();
        }
        assert!(ProcessId::of(id.pid).is_some(), "nobody has reaped it");
        child.wait().unwrap();
    }
}
