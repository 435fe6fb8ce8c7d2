//! SHA-256 as hex.

use aws_lc_rs::digest::{Context, SHA256, digest};

/// The digest of some bytes.
pub(crate) fn of(bytes: &[u8]) -> String {
    hex::encode(digest(&SHA256, bytes))
}

/// The digest of a list of byte strings; where one ends and the next begins counts.
pub(crate) fn of_parts(parts: &[&[u8]]) -> String {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    hex::encode(context.finish())
}
