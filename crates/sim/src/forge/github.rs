//! GitHub's webhooks: payloads as they come, signed as GitHub signs.

use aws_lc_rs::hmac;
use serde_json::{Value, json};

use super::{NO_COMMIT, Repository};

/// One webhook on its way.
#[derive(Clone, Debug)]
pub struct Webhook {
    /// `X-GitHub-Event`
    pub event: &'static str,
    /// `X-GitHub-Delivery`
    pub id: String,
    pub body: Vec<u8>,
}

/// Where a pull request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// A branch of the repository itself.
    Own,
    /// A repository of somebody else.
    Fork,
    /// A repository that was deleted meanwhile.
    Gone,
}

/// A pull request into `main`.
#[derive(Clone, Debug)]
pub struct Pull<'a> {
    pub number: u64,
    /// opened, synchronize, closed …
    pub action: &'a str,
    pub branch: &'a str,
    /// Commit of the head.
    pub head: &'a str,
    /// Commit of the base.
    pub base: &'a str,
    pub from: Head,
}

impl Webhook {
    fn new(event: &'static str, id: &str, payload: &Value) -> Self {
        Self { event, id: id.to_owned(), body: payload.to_string().into_bytes() }
    }

    /// The same body under another delivery id, as a replay would be.
    #[must_use]
    pub fn again_as(&self, id: &str) -> Self {
        Self { id: id.to_owned(), ..self.clone() }
    }
}

/// `X-Hub-Signature-256` of a body.
pub fn signature(secret: &str, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    format!("sha256={}", hex::encode(hmac::sign(&key, body)))
}

impl Repository {
    fn as_payload(&self) -> Value {
        json!({
            "id": self.id,
            "name": self.name,
            "full_name": format!("ada/{}", self.name),
            // Nobody may fetch what a payload says.
            "clone_url": "https://127.0.0.1:1/elsewhere.git",
            "default_branch": "main",
        })
    }

    /// A push that moved `name` (`refs/…`).
    pub fn push(&self, id: &str, name: &str, before: Option<&str>, after: &str) -> Webhook {
        let payload = json!({
            "ref": name,
            "before": before.unwrap_or(NO_COMMIT),
            "after": after,
            "created": before.is_none(),
            "deleted": false,
            "repository": self.as_payload(),
            "sender": { "login": "ada" },
        });
        Webhook::new("push", id, &payload)
    }

    /// A push that deleted a branch.
    pub fn deleted(&self, id: &str, branch: &str, before: &str) -> Webhook {
        let payload = json!({
            "ref": format!("refs/heads/{branch}"),
            "before": before,
            "after": NO_COMMIT,
            "deleted": true,
            "repository": self.as_payload(),
        });
        Webhook::new("push", id, &payload)
    }

    /// What GitHub sends when a webhook is set up.
    pub fn ping(&self, id: &str) -> Webhook {
        let payload =
            json!({ "zen": "Keep it logically awesome.", "repository": self.as_payload() });
        Webhook::new("ping", id, &payload)
    }

    /// Something about a pull request.
    pub fn pull_request(&self, id: &str, pull: &Pull<'_>) -> Webhook {
        let head_repository = match pull.from {
            Head::Own => self.as_payload(),
            Head::Fork => {
                json!({ "id": 99_000 + self.id, "full_name": "mallory/fork", "fork": true })
            }
            Head::Gone => Value::Null,
        };
        let payload = json!({
            "action": pull.action,
            "number": pull.number,
            "pull_request": {
                "number": pull.number,
                "title": "Mend it",
                "head": { "ref": pull.branch, "sha": pull.head, "repo": head_repository },
                "base": { "ref": "main", "sha": pull.base, "repo": self.as_payload() },
            },
            "repository": self.as_payload(),
        });
        Webhook::new("pull_request", id, &payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of GitHub's documentation.
    #[test]
    fn signatures_are_githubs() {
        assert_eq!(
            signature("It's a Secret to Everybody", b"Hello, World!"),
            "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
        );
    }
}
