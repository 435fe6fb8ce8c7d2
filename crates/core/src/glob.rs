//! Ordered lists of globs, as triggers use them.
//!
//! Patterns are evaluated in order; `!p` takes away, a later positive gives back, and a list of
//! only `!` starts from "everything". `*` does not cross `/`, `**` does; dotfiles match; case
//! matters.

use globset::{GlobBuilder, GlobMatcher};

/// Most patterns of one list.
pub const PATTERNS_MAX: usize = 10_000;

/// Longest text of one list, in bytes: compiled, a pattern takes hundreds of times its text.
pub const PATTERNS_BYTES_MAX: usize = 512 * 1024;

/// A pattern that is not a glob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    #[error("pattern '{pattern}' is not a glob: {reason}")]
    Syntax { pattern: String, reason: String },
    #[error("{count} patterns are above the limit of {PATTERNS_MAX}")]
    TooMany { count: usize },
    #[error("patterns of {bytes} bytes are above the limit of {PATTERNS_BYTES_MAX}")]
    TooLong { bytes: usize },
}

/// A compiled list. A pattern whose literal beginning differs from the text's costs one comparison,
/// so that thousands of patterns against thousands of files stay cheap.
#[derive(Clone, Debug)]
pub struct Patterns {
    /// The last one first: the first that matches decides.
    rules: Vec<Rule>,
    /// The verdict when none matches.
    otherwise: bool,
}

#[derive(Clone, Debug)]
struct Rule {
    /// Selects (true) or takes away.
    gives: bool,
    /// What every match begins with.
    prefix: String,
    glob: GlobMatcher,
}

impl Patterns {
    pub fn new<S: AsRef<str>>(patterns: &[S]) -> Result<Self, GlobError> {
        if patterns.len() > PATTERNS_MAX {
            return Err(GlobError::TooMany { count: patterns.len() });
        }
        let bytes = patterns.iter().map(|pattern| pattern.as_ref().len()).sum();
        if bytes > PATTERNS_BYTES_MAX {
            return Err(GlobError::TooLong { bytes });
        }
        let rules = patterns.iter().rev().map(|pattern| rule(pattern.as_ref()));
        let rules = rules.collect::<Result<Vec<_>, _>>()?;
        let otherwise = rules.iter().all(|rule| !rule.gives);
        Ok(Self { rules, otherwise })
    }

    /// Whether the list selects `text`: the last pattern that matches decides.
    pub fn matches(&self, text: &str) -> bool {
        let decides = |rule: &&Rule| text.starts_with(&rule.prefix) && rule.glob.is_match(text);
        self.rules.iter().find(decides).map_or(self.otherwise, |rule| rule.gives)
    }
}

fn rule(pattern: &str) -> Result<Rule, GlobError> {
    let (gives, text) = match pattern.strip_prefix('!') {
        Some(rest) => (false, rest),
        None => (true, pattern),
    };
    let glob = GlobBuilder::new(text).literal_separator(true).build().map_err(|error| {
        GlobError::Syntax { pattern: pattern.to_owned(), reason: error.kind().to_string() }
    })?;
    let special = text.find(['*', '?', '[', ']', '{', '}', '\\']).unwrap_or(text.len());
    let prefix = text[..special].to_owned();
    Ok(Rule { gives, prefix, glob: glob.compile_matcher() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(patterns: &[&str], text: &str, expected: bool) {
        let compiled = Patterns::new(patterns).unwrap();
        assert_eq!(compiled.matches(text), expected, "{patterns:?} ~ {text}");
    }

    #[test]
    fn a_star_stays_within_a_segment_and_dotfiles_match() {
        check(&["*"], "path/with/slash", false);
        check(&["feature/*"], "feature/a/b", false);
        check(&["**"], "all/the/branches", true);
        check(&["**"], ".github/workflows/ci.yml", true);
        check(&["src/**"], "src/.env", true);
        check(&["v[12].*"], "v1.10.1", true);
        check(&["*"], "Main", true);
        check(&["main"], "Main", false);
    }

    #[test]
    fn the_last_matching_pattern_decides() {
        check(&["*.md", "!README.md", "README*"], "README.md", true);
        check(&["main", "!wip/**"], "dev", false);
        check(&["main", "!wip/**"], "wip/x", false);
        check(&["**", "!wip/**"], "wip/x", false);
        check(&["**", "!wip/**"], "dev", true);
        check(&["!docs/**"], "src/a", true);
        check(&["!docs/**"], "docs/a", false);
        check(&[], "anything", true);
    }

    #[test]
    fn odd_names_are_data() {
        for name in ["optional-storage-(#12)", "feat/ünï\"$(id)", "a'b", "a#b", "a%20b", "a\nb"] {
            check(&["**"], name, true);
            check(&["main"], name, false);
        }
    }

    #[test]
    fn ten_thousand_patterns_against_ten_thousand_files() {
        let patterns: Vec<_> = (0..PATTERNS_MAX).map(|i| format!("dir{i}/*.rs")).collect();
        let compiled = Patterns::new(&patterns).unwrap();
        let selected = (0..10_000).filter(|i| compiled.matches(&format!("dir{i}/x.rs"))).count();
        assert_eq!(selected, 10_000);
        let one_more = [patterns, vec!["x".to_owned()]].concat();
        assert_eq!(Patterns::new(&one_more).unwrap_err(), GlobError::TooMany { count: 10_001 });
    }

    #[test]
    fn patterns_of_patterns_bytes_max_bytes_are_compiled_and_no_more() {
        let long = ["a".repeat(PATTERNS_BYTES_MAX / 2), "b".repeat(PATTERNS_BYTES_MAX / 2)];
        assert!(Patterns::new(&long).is_ok());
        let longer = [long[0].as_str(), long[1].as_str(), "c"];
        let bytes = PATTERNS_BYTES_MAX + 1;
        assert_eq!(Patterns::new(&longer).unwrap_err(), GlobError::TooLong { bytes });
    }

    #[test]
    fn a_broken_pattern_is_named() {
        let error = Patterns::new(&["src/[a"]).unwrap_err();
        assert!(error.to_string().starts_with("pattern 'src/[a' is not a glob: "), "{error}");
    }
}
