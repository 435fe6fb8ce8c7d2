//! Sealing of what is secret at rest, under the master key.
//!
//! Sealed form: `1 ‖ nonce (12) ‖ AES-256-GCM ciphertext and tag`. The purpose (which column of which
//! row) is the associated data, so a sealed value cannot be moved to another place.

use std::{fmt, fs, io::Write, os::unix::fs::OpenOptionsExt, path::Path};

use anyhow::{Context, bail};
use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    constant_time, digest, hmac,
};
use shuntyard_protocol::agent::{AttemptId, AttemptKey};
use zeroize::Zeroizing;

use crate::env::Env;

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 12;
const VERSION: u8 = 1;

/// The key under which everything else is sealed.
pub struct MasterKey {
    key: LessSafeKey,
    derive: hmac::Key,
    check: String,
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(…)")
    }
}

impl MasterKey {
    /// From 64 hexadecimal digits.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let bytes = Zeroizing::new(hex::decode(text.trim()).unwrap_or_default());
        if bytes.len() != KEY_BYTES {
            bail!("the master key must be 64 hexadecimal digits");
        }
        let key = UnboundKey::new(&AES_256_GCM, &bytes).expect("the length was checked");
        let derive = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        let check = hex::encode(hmac::sign(&derive, b"shuntyard master key 1"));
        Ok(Self { key: LessSafeKey::new(key), derive, check })
    }

    /// Reads the key file; before the first start there is none.
    pub fn load(path: &Path) -> anyhow::Result<Option<Self>> {
        let text = match fs::read_to_string(path) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("read master key {}", path.display()));
            }
        };
        let key = Self::parse(&text).with_context(|| format!("master key {}", path.display()))?;
        Ok(Some(key))
    }

    /// Makes a key for a new database, and writes its file (mode 0600).
    pub fn create(path: &Path, env: &Env) -> anyhow::Result<Self> {
        let text = Zeroizing::new(env.secret());
        write_private(path, text.as_bytes())?;
        Self::parse(&text)
    }

    /// A value that tells whether a database was sealed with this key, and nothing about it.
    pub fn check_value(&self) -> &str {
        &self.check
    }

    /// The key of an attempt. Derived, so that a repeated `begin` gets the same one from any
    /// coordinator; rows have only its digest.
    pub fn attempt_key(&self, id: AttemptId) -> AttemptKey {
        let tag = hmac::sign(&self.derive, format!("shuntyard attempt key 1 {id}").as_bytes());
        AttemptKey(hex::encode(tag))
    }

    pub fn seal(&self, env: &Env, purpose: &str, plain: &[u8]) -> Vec<u8> {
        let nonce = env.random::<NONCE_BYTES>();
        let mut sealed = plain.to_vec();
        self.key
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(purpose.as_bytes()),
                &mut sealed,
            )
            .expect("a secret is far below the limit of the cipher");
        [&[VERSION], &nonce[..], &sealed].concat()
    }

    pub fn open(&self, purpose: &str, sealed: &[u8]) -> anyhow::Result<Zeroizing<Vec<u8>>> {
        let parts = sealed.split_first().and_then(|(version, rest)| {
            let (nonce, text) = rest.split_first_chunk::<NONCE_BYTES>()?;
            (*version == VERSION).then_some((*nonce, text))
        });
        let Some((nonce, text)) = parts else {
            bail!("sealed value for {purpose} has an unknown form")
        };
        let mut bytes = Zeroizing::new(text.to_vec());
        let nonce = Nonce::assume_unique_for_key(nonce);
        let length = self
            .key
            .open_in_place(nonce, Aad::from(purpose.as_bytes()), &mut bytes)
            .map_err(|_| {
                anyhow::anyhow!("sealed value for {purpose} does not open with this master key")
            })?
            .len();
        bytes.truncate(length);
        Ok(bytes)
    }
}

/// SHA-256, for tokens and digests that are looked up.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = digest::digest(&digest::SHA256, bytes);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Whether `signature` (hex) is the HMAC-SHA256 of `body` under any of the active secrets. Takes
/// the same time whichever of them fits.
pub(crate) fn hmac_matches(secrets: &[Zeroizing<Vec<u8>>], body: &[u8], signature: &str) -> bool {
    let Ok(signature) = hex::decode(signature) else { return false };
    secrets.iter().fold(false, |found, secret| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        found | hmac::verify(&key, body, &signature).is_ok()
    })
}

/// Whether two secrets are the same, in constant time.
pub(crate) fn same_secret(a: &[u8], b: &[u8]) -> bool {
    constant_time::verify_slices_are_equal(&sha256(a), &sha256(b)).is_ok()
}

/// Writes a file that only its owner may read: complete or not at all.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let write = || -> std::io::Result<()> {
        let temp = path.with_extension("tmp");
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temp)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temp, path)?;
        fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    write().with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(digit: &str) -> MasterKey {
        MasterKey::parse(&digit.repeat(64)).unwrap()
    }

    #[test]
    fn what_was_sealed_opens_only_with_the_same_key_and_purpose() {
        let env = Env::system();
        let sealed = key("a").seal(&env, "source.webhook_secret", b"hunter2");
        assert_eq!(*key("a").open("source.webhook_secret", &sealed).unwrap(), b"hunter2");
        assert!(key("a").open("source.token", &sealed).is_err());
        assert!(key("b").open("source.webhook_secret", &sealed).is_err());
        for end in 0..sealed.len() {
            assert!(key("a").open("source.webhook_secret", &sealed[..end]).is_err());
        }
    }

    #[test]
    fn the_key_file_is_private_and_checked() {
        use std::os::unix::fs::PermissionsExt;
        let (dir, env) = (tempfile::tempdir().unwrap(), Env::system());
        let path = dir.path().join("master.key");
        assert!(MasterKey::load(&path).unwrap().is_none());
        let first = MasterKey::create(&path, &env).unwrap();
        let again = MasterKey::load(&path).unwrap().unwrap();
        assert_eq!(first.check_value(), again.check_value());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_ne!(first.check_value(), key("a").check_value());
        fs::write(&path, "short").unwrap();
        assert!(MasterKey::load(&path).is_err());
    }

    #[test]
    fn any_active_secret_verifies_and_garbage_does_not() {
        // From RFC 4231, test case 2.
        let signature = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        let body = b"what do ya want for nothing?";
        let secrets =
            |list: &[&[u8]]| list.iter().map(|s| Zeroizing::new(s.to_vec())).collect::<Vec<_>>();
        assert!(hmac_matches(&secrets(&[b"old", b"Jefe"]), body, signature));
        assert!(!hmac_matches(&secrets(&[b"old"]), body, signature));
        assert!(!hmac_matches(&secrets(&[b"Jefe"]), body, "zz"));
        assert!(!hmac_matches(&secrets(&[b"Jefe"]), body, ""));
        assert!(!hmac_matches(&[], body, signature));
    }
}
