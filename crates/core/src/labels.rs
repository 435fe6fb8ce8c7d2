//! Labels of agents and what jobs ask of them.

use std::collections::BTreeSet;

use globset::{GlobBuilder, GlobMatcher};
use regex::{Regex, RegexBuilder};
use shuntyard_protocol::plan::{RunsOn, Selector};

/// Prefixes that only Shuntyard itself may set.
pub const RESERVED: [&str; 2] = ["shunt:", "kici:"];

/// Most selectors of one `runsOn`.
pub const SELECTORS_MAX: usize = 256;
/// Longest selector, in bytes.
pub const SELECTOR_BYTES_MAX: usize = 4096;
/// Memory of one compiled regular expression.
const REGEX_BYTES_MAX: usize = 1024 * 1024;

/// Short names for the labels that every agent carries.
const ALIASES: [(&str, &str); 5] = [
    ("linux", "shunt:os:linux"),
    ("macos", "shunt:os:macos"),
    ("windows", "shunt:os:windows"),
    ("x64", "shunt:arch:x64"),
    ("arm64", "shunt:arch:arm64"),
];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    #[error(
        "label '{label}' is reserved: labels under shunt: and kici: are set by Shuntyard itself"
    )]
    Reserved { label: String },
    #[error("label '{label}' must be 1 to 256 bytes without spaces or control characters")]
    Malformed { label: String },
    #[error("selector '{text}' is not a {kind}: {reason}")]
    Selector { kind: &'static str, text: String, reason: String },
    #[error("{count} selectors are above the limit of {SELECTORS_MAX}")]
    TooMany { count: usize },
    #[error("'{text}' is both asked for and excluded")]
    Contradiction { text: String },
}

/// Checks a label that a person configured.
pub fn check(label: &str) -> Result<(), LabelError> {
    let well_formed = (1..=shuntyard_protocol::agent::LABEL_BYTES_MAX).contains(&label.len())
        && !label.chars().any(|c| c.is_whitespace() || c.is_control());
    if !well_formed {
        return Err(LabelError::Malformed { label: label.chars().take(80).collect() });
    }
    if RESERVED.iter().any(|prefix| label.starts_with(prefix)) {
        return Err(LabelError::Reserved { label: label.to_owned() });
    }
    Ok(())
}

/// The labels that every agent carries, in both spellings. `arch` and `os` are Rust's names.
pub fn builtin(os: &str, arch: &str, host: &str) -> BTreeSet<String> {
    let arch = match arch {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    };
    ["shunt", "kici"]
        .iter()
        .flat_map(|p| {
            [format!("{p}:os:{os}"), format!("{p}:arch:{arch}"), format!("{p}:host:{host}")]
        })
        .collect()
}

#[derive(Clone, Debug)]
enum Condition {
    Exact(String),
    Glob(GlobMatcher),
    Pattern(Regex),
}

impl Condition {
    fn new(selector: &Selector) -> Result<Self, LabelError> {
        let broken = |kind, text: &str, reason: String| LabelError::Selector {
            kind,
            text: text.to_owned(),
            reason,
        };
        let all = text(selector);
        if all.len() > SELECTOR_BYTES_MAX {
            let start = &all[..all.floor_char_boundary(80)];
            let reason = format!("it has more than {SELECTOR_BYTES_MAX} bytes");
            return Err(broken("selector", start, reason));
        }
        match selector {
            Selector::Exact(text) => {
                let alias = ALIASES.iter().find(|(short, _)| short == text);
                Ok(Self::Exact(alias.map_or(text.as_str(), |(_, label)| label).to_owned()))
            }
            Selector::Glob(text) => {
                let glob = GlobBuilder::new(text)
                    .build()
                    .map_err(|error| broken("glob", text, error.kind().to_string()))?;
                Ok(Self::Glob(glob.compile_matcher()))
            }
            Selector::Regex(text) => {
                let regex = RegexBuilder::new(text).size_limit(REGEX_BYTES_MAX).build();
                regex.map(Self::Pattern).map_err(|error| {
                    broken(
                        "regular expression of the linear engine (no look-around, no back-references)",
                        text,
                        error.to_string(),
                    )
                })
            }
        }
    }

    fn holds(&self, labels: &BTreeSet<String>) -> bool {
        match self {
            Self::Exact(label) => labels.contains(label),
            Self::Glob(glob) => labels.iter().any(|label| glob.is_match(label)),
            Self::Pattern(regex) => labels.iter().any(|label| regex.is_match(label)),
        }
    }
}

/// A compiled `runsOn`.
#[derive(Clone, Debug)]
pub struct Requirement {
    all: Vec<(Selector, Condition)>,
    none: Vec<Condition>,
}

impl Requirement {
    pub fn new(runs_on: &RunsOn) -> Result<Self, LabelError> {
        let count = runs_on.labels.len() + runs_on.exclude.len();
        if count > SELECTORS_MAX {
            return Err(LabelError::TooMany { count });
        }
        if let Some(both) = runs_on.labels.iter().find(|s| runs_on.exclude.contains(s)) {
            return Err(LabelError::Contradiction { text: text(both).to_owned() });
        }
        let all = runs_on.labels.iter().map(|s| Ok((s.clone(), Condition::new(s)?)));
        Ok(Self {
            all: all.collect::<Result<_, LabelError>>()?,
            none: runs_on.exclude.iter().map(Condition::new).collect::<Result<_, _>>()?,
        })
    }

    /// Whether an agent with these labels may take the job.
    pub fn admits(&self, labels: &BTreeSet<String>) -> bool {
        self.all.iter().all(|(_, condition)| condition.holds(labels))
            && !self.none.iter().any(|condition| condition.holds(labels))
    }

    /// The selectors that these labels do not meet, for "why is my job waiting".
    pub fn unmet<'a>(&'a self, labels: &BTreeSet<String>) -> Vec<&'a str> {
        let unmet = self.all.iter().filter(|(_, condition)| !condition.holds(labels));
        unmet.map(|(selector, _)| text(selector)).collect()
    }
}

/// A selector as the author wrote it.
pub fn text(selector: &Selector) -> &str {
    match selector {
        Selector::Exact(text) | Selector::Glob(text) | Selector::Regex(text) => text,
    }
}

#[cfg(test)]
mod tests {
    use shuntyard_protocol::agent::LABEL_BYTES_MAX;

    use super::*;

    fn admits(labels: &[Selector], exclude: &[Selector], agent: &[&str]) -> bool {
        let runs_on = RunsOn { labels: labels.to_vec(), exclude: exclude.to_vec() };
        let agent = agent.iter().map(|&label| label.to_owned()).collect();
        Requirement::new(&runs_on).unwrap().admits(&agent)
    }

    #[test]
    fn exact_glob_and_regular_expression_must_all_hold() {
        use Selector::{Exact, Glob, Regex};
        assert!(admits(&[], &[], &[]));
        assert!(admits(&[Exact("gpu".into())], &[], &["gpu", "x"]));
        assert!(!admits(&[Exact("gpu".into())], &[], &["gpu-2"]));
        assert!(admits(&[Glob("gpu-*".into())], &[], &["gpu-2"]));
        assert!(admits(&[Regex("^gpu-[0-9]$".into())], &[], &["gpu-2"]));
        assert!(!admits(&[Exact("a".into()), Exact("b".into())], &[], &["a"]));
        assert!(!admits(&[Exact("a".into())], &[Glob("slow*".into())], &["a", "slow-disk"]));
        assert!(admits(&[Glob("größe-*".into())], &[], &["größe-ü"]));
    }

    #[test]
    fn plain_names_stand_for_the_builtin_labels() {
        let labels: Vec<_> = builtin("linux", "x86_64", "box").into_iter().collect();
        let labels: Vec<_> = labels.iter().map(String::as_str).collect();
        assert!(admits(
            &[Selector::Exact("linux".into()), Selector::Exact("x64".into())],
            &[],
            &labels
        ));
        assert!(admits(&[Selector::Exact("kici:host:box".into())], &[], &labels));
        assert!(!admits(&[Selector::Exact("macos".into())], &[], &labels));
    }

    #[test]
    fn look_around_and_contradictions_are_refused() {
        let look = RunsOn { labels: vec![Selector::Regex("(?=a)".into())], exclude: vec![] };
        let error = Requirement::new(&look).unwrap_err().to_string();
        assert!(error.contains("no look-around"), "{error}");
        let both = RunsOn {
            labels: vec![Selector::Exact("a".into())],
            exclude: vec![Selector::Exact("a".into())],
        };
        assert_eq!(
            Requirement::new(&both).unwrap_err().to_string(),
            "'a' is both asked for and excluded"
        );
    }

    #[test]
    fn selectors_max_selectors_are_compiled_and_no_more() {
        let ask = |labels: usize, exclude: usize| {
            let many = |n, p| (0..n).map(|i| Selector::Exact(format!("{p}{i}"))).collect();
            Requirement::new(&RunsOn { labels: many(labels, "l"), exclude: many(exclude, "e") })
        };
        assert!(ask(SELECTORS_MAX - 1, 1).is_ok());
        let error = LabelError::TooMany { count: SELECTORS_MAX + 1 };
        assert_eq!(ask(SELECTORS_MAX, 1).err(), Some(error));
    }

    #[test]
    fn a_selector_above_selector_bytes_max_is_refused() {
        for (bytes, fits) in [(SELECTOR_BYTES_MAX, true), (SELECTOR_BYTES_MAX + 1, false)] {
            for selector in [Selector::Exact, Selector::Glob, Selector::Regex] {
                let labels = vec![selector("x".repeat(bytes))];
                assert_eq!(Requirement::new(&RunsOn { labels, exclude: vec![] }).is_ok(), fits);
            }
        }
    }

    #[test]
    fn a_regular_expression_above_regex_bytes_max_is_refused() {
        let ask = |times: usize| {
            let labels = vec![Selector::Regex(format!("^a{{{times}}}$"))];
            Requirement::new(&RunsOn { labels, exclude: vec![] }).is_ok()
        };
        // The size of the automaton is the library's own count; it is about 30 bytes for a letter.
        let fits = (1..100_000).map(|n| n * 1000).take_while(|&times| ask(times)).last().unwrap();
        assert!((REGEX_BYTES_MAX / 100..REGEX_BYTES_MAX / 8).contains(&fits), "{fits}");
    }

    #[test]
    fn labels_set_by_hand_are_checked() {
        assert!(check("gpu").is_ok());
        assert!(check(&"x".repeat(LABEL_BYTES_MAX)).is_ok());
        assert!(check(&"x".repeat(LABEL_BYTES_MAX + 1)).is_err());
        for label in ["", "a b", "a\n", "shunt:os:linux", "kici:x"] {
            assert!(check(label).is_err(), "{label:?}");
        }
    }
}
