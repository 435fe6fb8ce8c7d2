//! Who an agent is: challenge, hello, welcome.

use std::collections::BTreeSet;

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use shuntyard_core::labels;
use shuntyard_protocol::{
    AgentId, Timestamp,
    agent::{Hello, LABELS_MAX, SLOTS_MAX, VERSIONS, hello_message},
};
use shuntyard_store::{Agent, AgentSeen, Enrolled};

use crate::{app::App, secrets::sha256};

/// Longest name of an agent, in characters.
const NAME_CHARS_MAX: usize = 100;

/// Why an agent is turned away. `code` is stable, `message` names what helps.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: &'static str,
    pub(super) message: String,
}

fn refuse(code: &'static str, message: impl Into<String>) -> Refusal {
    Refusal { code, message: message.into() }
}

impl From<shuntyard_store::StoreError> for Refusal {
    fn from(error: shuntyard_store::StoreError) -> Self {
        tracing::warn!(%error, "an agent could not be looked up");
        refuse("unavailable", "the database does not answer; try again")
    }
}

/// An agent whose key was proved.
pub(super) struct Admitted {
    pub(super) agent: Agent,
    pub(super) seen: AgentSeen,
    pub(super) version: u32,
}

/// Checks a hello against the nonce that it answers, and enrols the key if it brings a token.
pub(super) async fn admit(app: &App, hello: &Hello, nonce: &str) -> Result<Admitted, Refusal> {
    let version = VERSIONS.common(hello.versions).ok_or_else(|| {
        let Hello { versions, .. } = hello;
        refuse(
            "protocol-too-old",
            format!(
                "the agent speaks versions {}–{} of the link, this coordinator {}–{}: upgrade the older one",
                versions.min, versions.max, VERSIONS.min, VERSIONS.max
            ),
        )
    })?;
    prove(hello, nonce)?;
    let seen = describe(hello)?;
    let now = app.env.now();
    let known = app.store.agent_by_key(&hello.public_key).await?;
    let agent = match (known, &hello.token) {
        (Some(agent), _) => agent,
        (None, Some(token)) => enrol(app, hello, token, &seen, now).await?,
        (None, None) => {
            return Err(refuse(
                "unknown-credential",
                "the agent's key is not enrolled: make a token with `shunt admin agent create-token` and \
                 start the agent with --token-file",
            ));
        }
    };
    if agent.revoked_at.is_some() {
        return Err(refuse(
            "credential-revoked",
            format!(
                "the agent was revoked by {}: remove its data folder and enrol it anew with a token of \
                 `shunt admin agent create-token`",
                agent.revoked_by.as_deref().unwrap_or("an administrator")
            ),
        ));
    }
    Ok(Admitted { agent, seen, version })
}

fn prove(hello: &Hello, nonce: &str) -> Result<(), Refusal> {
    let invalid = || refuse("invalid-proof", "the signature does not fit the agent's key");
    let key = hex::decode(&hello.public_key).map_err(|_| invalid())?;
    let signature = hex::decode(&hello.signature).map_err(|_| invalid())?;
    let key = UnparsedPublicKey::new(&ED25519, key);
    key.verify(&hello_message(nonce), &signature).map_err(|_| invalid())
}

async fn enrol(
    app: &App,
    hello: &Hello,
    token: &str,
    seen: &AgentSeen,
    now: Timestamp,
) -> Result<Agent, Refusal> {
    let id = AgentId::mint(now, app.env.random());
    let hash = sha256(token.as_bytes());
    match app.store.enrol_agent(id, &hello.public_key, &hash, seen, now).await? {
        Enrolled::Agent(agent) | Enrolled::KeyRevoked(agent) => Ok(*agent),
        Enrolled::TokenRefused => Err(refuse(
            "token-refused",
            "the token is unknown, expired, used up or revoked: make a new one with \
             `shunt admin agent create-token`",
        )),
    }
}

/// What the agent says about itself, within limits.
fn describe(hello: &Hello) -> Result<AgentSeen, Refusal> {
    let malformed = |what: String| refuse("malformed", what);
    let name_fits = (1..=NAME_CHARS_MAX).contains(&hello.name.chars().count())
        && !hello.name.chars().any(char::is_control);
    if !name_fits {
        return Err(malformed(format!("an agent's name has 1 to {NAME_CHARS_MAX} characters")));
    }
    if !(1..=SLOTS_MAX).contains(&hello.slots) {
        return Err(malformed(format!("an agent has 1 to {SLOTS_MAX} slots")));
    }
    if hello.labels.len() > LABELS_MAX {
        return Err(malformed(format!("an agent has at most {LABELS_MAX} labels")));
    }
    for label in &hello.labels {
        let derived = labels::RESERVED.iter().any(|prefix| {
            let kind = label.strip_prefix(prefix).and_then(|rest| rest.split(':').next());
            matches!(kind, Some("os" | "arch" | "host"))
        });
        if !derived {
            labels::check(label).map_err(|error| malformed(error.to_string()))?;
        }
    }
    let labels: BTreeSet<_> = hello.labels.iter().cloned().collect();
    Ok(AgentSeen {
        name: hello.name.clone(),
        labels: labels.into_iter().collect(),
        slots: hello.slots,
        containment: hello.containment,
        boot_id: hello.boot_id.chars().take(100).collect(),
        software: hello.software.chars().take(100).collect(),
    })
}

#[cfg(test)]
mod tests {
    use shuntyard_protocol::agent::Containment;

    use super::*;

    fn hello(edit: impl FnOnce(&mut Hello)) -> Result<AgentSeen, Refusal> {
        let mut hello = Hello {
            versions: VERSIONS,
            public_key: String::new(),
            signature: String::new(),
            token: None,
            name: "box".into(),
            labels: vec!["shunt:os:linux".into(), "gpu".into()],
            slots: 1,
            containment: Containment::Namespace,
            boot_id: "b".into(),
            software: "1".into(),
            attempts: vec![],
        };
        edit(&mut hello);
        describe(&hello)
    }

    #[test]
    fn limits_hold_at_their_edges() {
        assert!(hello(|_| ()).is_ok());
        assert!(hello(|h| h.slots = SLOTS_MAX).is_ok());
        assert!(hello(|h| h.slots = SLOTS_MAX + 1).is_err());
        assert!(hello(|h| h.slots = 0).is_err());
        let labels = |n: usize| (0..n).map(|i| format!("l{i}")).collect();
        assert!(hello(|h| h.labels = labels(LABELS_MAX)).is_ok());
        assert!(hello(|h| h.labels = labels(LABELS_MAX + 1)).is_err());
        assert!(hello(|h| h.name = "ü".repeat(NAME_CHARS_MAX)).is_ok());
        assert!(hello(|h| h.name = "ü".repeat(NAME_CHARS_MAX + 1)).is_err());
        assert!(hello(|h| h.labels = vec!["shunt:role:admin".into()]).is_err());
    }

    #[test]
    fn a_signature_over_another_nonce_proves_nothing() {
        use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
        let pair = Ed25519KeyPair::generate().unwrap();
        let signed = |nonce: &str| {
            let mut proof = Hello {
                public_key: hex::encode(pair.public_key()),
                signature: hex::encode(pair.sign(&hello_message(nonce))),
                versions: VERSIONS,
                token: None,
                name: "box".into(),
                labels: vec![],
                slots: 1,
                containment: Containment::None,
                boot_id: String::new(),
                software: String::new(),
                attempts: vec![],
            };
            proof.name.push('x');
            proof
        };
        assert!(prove(&signed("n"), "n").is_ok());
        assert_eq!(prove(&signed("m"), "n").unwrap_err().code, "invalid-proof");
    }
}
