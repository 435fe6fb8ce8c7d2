//! Sources as the coordinator sees them: what their settings and sealed secrets mean.

use anyhow::Context;
use serde::{Deserialize, Serialize};
use shuntyard_protocol::SourceId;
use shuntyard_store::Source;
use zeroize::Zeroizing;

use crate::{env::Env, secrets::MasterKey, source::github::Forks};

/// Where a source's events come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Github,
    Generic,
    /// A repository or folder on this machine that is watched.
    Local,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Github, Self::Generic, Self::Local];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Github => "github",
            Self::Generic => "generic",
            Self::Local => "local",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// The settings of a source, as its row has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Settings {
    /// Pull requests from other repositories start runs.
    pub run_forks: bool,
    /// Labels of jobs without `runsOn`.
    pub labels: Vec<String>,
    /// For a local source: the files as they are, committed or not.
    pub work_tree: bool,
    /// For a local source: what was last seen as its head. Absent until the first look, which
    /// starts nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<String>,
}

impl Settings {
    pub(crate) fn of(source: &Source) -> anyhow::Result<Self> {
        serde_json::from_value(source.settings.clone())
            .with_context(|| format!("settings of source '{}'", source.name))
    }

    pub(crate) fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("settings are JSON")
    }

    pub(crate) fn forks(&self) -> Forks {
        if self.run_forks { Forks::Run } else { Forks::Ignore }
    }
}

/// The secrets of a source, opened.
#[derive(Default)]
pub struct SourceSecrets {
    /// Active webhook secrets: during a rotation there are two.
    pub webhook: Vec<Zeroizing<Vec<u8>>>,
}

fn purpose(id: SourceId) -> String {
    format!("source.secrets {id}")
}

impl SourceSecrets {
    pub fn open(key: &MasterKey, source: &Source) -> anyhow::Result<Self> {
        let Some(sealed) = &source.secrets else { return Ok(Self::default()) };
        let plain = key.open(&purpose(source.id), sealed)?;
        let webhook: Vec<String> = serde_json::from_slice(&plain).context("secrets of a source")?;
        let bytes = |text: String| Zeroizing::new(text.into_bytes());
        Ok(Self { webhook: webhook.into_iter().map(bytes).collect() })
    }

    /// The sealed form of one webhook secret.
    pub fn seal(key: &MasterKey, env: &Env, source: SourceId, webhook: &str) -> Vec<u8> {
        let plain = Zeroizing::new(serde_json::to_vec(&[webhook]).expect("a text is JSON"));
        key.seal(env, &purpose(source), &plain)
    }
}

/// Refuses names that would not be clear in a URL or a routing key.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let fine = (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && !name.starts_with('.');
    if fine {
        return Ok(());
    }
    Err(format!("'{name}' is not a name: 1 to 64 letters, digits, '-', '_' and '.'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_an_edge() {
        assert!(check_name(&"a".repeat(64)).is_ok());
        for name in [&"a".repeat(65), "", "a/b", "ü", ".hidden", "a b"] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
