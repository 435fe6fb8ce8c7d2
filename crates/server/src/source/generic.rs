//! Generic webhooks: any signed JSON object may ask for a push-like run.
//!
//! `{"ref": "refs/heads/main", "commit": "…"}`, both optional: without a commit the head of the
//! default branch runs.

use anyhow::Context;
use serde::Deserialize;
use shuntyard_core::event::Kind;

use super::{Base, Incoming, Meaning, ignored, is_null};

#[derive(Deserialize)]
struct Body {
    #[serde(rename = "ref")]
    ref_name: Option<String>,
    commit: Option<String>,
}

pub(crate) fn normalise(body: &[u8]) -> anyhow::Result<Meaning> {
    let body: Body = serde_json::from_slice(body).context("body")?;
    if let Some(commit) = &body.commit {
        crate::git::check_commit(commit)?;
        if is_null(commit) {
            let name = body.ref_name.as_deref().unwrap_or("what was pushed");
            return Ok(ignored(format!("{name} was deleted")));
        }
    }
    let kind = match body.ref_name.as_deref() {
        None => Kind::Generic {},
        Some(name) => match (name.strip_prefix("refs/heads/"), name.strip_prefix("refs/tags/")) {
            (Some(branch), _) => Kind::Push { branch: branch.to_owned() },
            (_, Some(tag)) => Kind::Tag { tag: tag.to_owned() },
            (None, None) => {
                return Ok(ignored("ref must begin with refs/heads/ or refs/tags/"));
            }
        },
    };
    let base = if matches!(kind, Kind::Push { .. }) { Base::New } else { Base::None };
    Ok(Meaning::Event(Box::new(Incoming {
        kind,
        commit: body.commit,
        ref_name: body.ref_name,
        base,
    })))
}
