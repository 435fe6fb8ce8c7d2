//! GitHub's webhooks.

use anyhow::Context;
use serde::Deserialize;
use shuntyard_core::event::{Kind, PullRequest};

use super::{Base, Incoming, Meaning, ignored, is_null};

/// Whether runs are started for pull requests from other repositories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forks {
    Ignore,
    Run,
}

#[derive(Deserialize)]
struct Push {
    #[serde(rename = "ref")]
    ref_name: String,
    before: String,
    after: String,
    #[serde(default)]
    deleted: bool,
}

#[derive(Deserialize)]
struct PullRequestEvent {
    action: String,
    number: u64,
    pull_request: Pull,
}

#[derive(Deserialize)]
struct Pull {
    #[serde(default)]
    title: String,
    head: Side,
    base: Side,
}

#[derive(Deserialize)]
struct Side {
    #[serde(rename = "ref")]
    branch: String,
    sha: String,
    /// Absent when the repository is gone.
    repo: Option<Repository>,
}

#[derive(Deserialize)]
struct Repository {
    id: u64,
}

/// Reads a verified delivery. `event` is the `X-GitHub-Event` header.
pub(crate) fn normalise(
    event: &str,
    body: &[u8],
    source: &str,
    forks: Forks,
) -> anyhow::Result<Meaning> {
    match event {
        "push" => push(serde_json::from_slice(body).context("push payload")?),
        "pull_request" => {
            let event = serde_json::from_slice(body).context("pull_request payload")?;
            pull_request(event, source, forks)
        }
        "ping" => Ok(ignored("ping: the webhook works")),
        other => Ok(ignored(format!("event '{other}' starts nothing"))),
    }
}

fn push(push: Push) -> anyhow::Result<Meaning> {
    if push.deleted || is_null(&push.after) {
        return Ok(ignored(format!("{} was deleted", push.ref_name)));
    }
    let base = if is_null(&push.before) {
        Base::New
    } else {
        crate::git::check_commit(&push.before)?;
        Base::Before(push.before)
    };
    let kind = if let Some(branch) = push.ref_name.strip_prefix("refs/heads/") {
        Kind::Push { branch: branch.to_owned() }
    } else if let Some(tag) = push.ref_name.strip_prefix("refs/tags/") {
        Kind::Tag { tag: tag.to_owned() }
    } else {
        return Ok(ignored(format!("{} is neither a branch nor a tag", push.ref_name)));
    };
    crate::git::check_commit(&push.after)?;
    Ok(Meaning::Event(Box::new(Incoming {
        kind,
        commit: Some(push.after),
        ref_name: Some(push.ref_name),
        base,
    })))
}

fn pull_request(event: PullRequestEvent, source: &str, forks: Forks) -> anyhow::Result<Meaning> {
    let Pull { title, head, base } = event.pull_request;
    let fork = match (&head.repo, &base.repo) {
        (Some(head), Some(base)) => head.id != base.id,
        (None, _) | (_, None) => true,
    };
    if fork && forks == Forks::Ignore {
        return Ok(ignored(format!(
            "fork: pull request {} comes from another repository; to run it, and with it the code of \
             strangers on your agents: shunt admin source set {source} --forks run",
            event.number
        )));
    }
    if event.action == "closed" {
        return Ok(ignored("the pull request was closed"));
    }
    for commit in [&head.sha, &base.sha] {
        crate::git::check_commit(commit)?;
    }
    let pull_request = PullRequest {
        number: event.number,
        action: event.action,
        title: title.chars().take(500).collect(),
        target: base.branch,
        source: head.branch,
        fork,
    };
    Ok(Meaning::Event(Box::new(Incoming {
        // The head of a fork is only reachable by the pull request's own ref.
        ref_name: Some(format!("refs/pull/{}/head", event.number)),
        kind: Kind::PullRequest(pull_request),
        commit: Some(head.sha),
        base: Base::Target(base.sha),
    })))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
    const NULL: &str = "0000000000000000000000000000000000000000";

    fn read(event: &str, payload: &Value, forks: Forks) -> Meaning {
        normalise(event, payload.to_string().as_bytes(), "web", forks).unwrap()
    }

    fn push(ref_name: &str, before: &str, after: &str) -> Meaning {
        read("push", &json!({"ref": ref_name, "before": before, "after": after}), Forks::Ignore)
    }

    fn pr(head_repo: &Value) -> Value {
        json!({"action": "opened", "number": 7, "pull_request": {
            "title": "Mend it",
            "head": {"ref": "topic", "sha": A, "repo": head_repo},
            "base": {"ref": "main", "sha": B, "repo": {"id": 1}},
        }})
    }

    #[test]
    fn branches_and_tags_become_events() {
        let Meaning::Event(event) = push("refs/heads/feat/ünï\"$(id)", B, A) else { panic!() };
        assert_eq!(event.kind, Kind::Push { branch: "feat/ünï\"$(id)".into() });
        assert_eq!(event.base, Base::Before(B.into()));
        let Meaning::Event(event) = push("refs/tags/v1", NULL, A) else { panic!() };
        assert_eq!((event.kind, event.base), (Kind::Tag { tag: "v1".into() }, Base::New));
    }

    #[test]
    fn deleted_refs_and_other_events_start_nothing() {
        assert!(matches!(push("refs/heads/x", A, NULL), Meaning::Ignored(_)));
        assert!(matches!(push("refs/notes/x", B, A), Meaning::Ignored(_)));
        assert!(matches!(read("star", &json!({}), Forks::Ignore), Meaning::Ignored(_)));
        assert!(normalise("push", b"[]", "web", Forks::Ignore).is_err());
        let odd = json!({"ref": "refs/heads/x", "before": A, "after": "--upload-pack=x"});
        assert!(normalise("push", odd.to_string().as_bytes(), "web", Forks::Ignore).is_err());
    }

    #[test]
    fn a_pull_request_from_another_or_a_vanished_repository_is_a_fork() {
        for repo in [json!({"id": 2}), Value::Null] {
            let Meaning::Ignored(reason) = read("pull_request", &pr(&repo), Forks::Ignore) else {
                panic!()
            };
            assert!(reason.starts_with("fork: "), "{reason}");
            assert!(reason.contains("source set web --forks run"), "{reason}");
            assert!(matches!(read("pull_request", &pr(&repo), Forks::Run), Meaning::Event(_)));
        }
        let Meaning::Event(event) = read("pull_request", &pr(&json!({"id": 1})), Forks::Ignore)
        else {
            panic!()
        };
        assert_eq!(event.base, Base::Target(B.into()));
        assert_eq!(event.ref_name.as_deref(), Some("refs/pull/7/head"));
    }
}
