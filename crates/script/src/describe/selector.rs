//! `runsOn`: which agents may take a job.

use shuntyard_protocol::plan::{RunsOn, Selector};

use super::{Describer, options::Options};
use crate::raw::Raw;

/// Largest compiled regular expression.
const REGEX_BYTES_MAX: usize = 1024 * 1024;

impl<'a> Describer<'a> {
    pub(super) fn runs_on(&mut self, options: &Options<'a>) -> Option<RunsOn> {
        let raw = options.get("runsOn")?;
        let runs_on = match raw {
            Raw::Object(_) => {
                let of = format!("{}: \"runsOn\"", options.of);
                let inner =
                    self.options(of, options.at, Some(raw), &["labels", "exclude"], &["pick"]);
                let labels = inner.get("labels").map(|raw| self.selectors(&inner, "labels", raw));
                let exclude =
                    inner.get("exclude").map(|raw| self.selectors(&inner, "exclude", raw));
                RunsOn { labels: labels.unwrap_or_default(), exclude: exclude.unwrap_or_default() }
            }
            Raw::Function { .. } => {
                self.fault(
                    options.at,
                    format!("{}: \"runsOn\" as a function is not supported yet", options.of),
                );
                return None;
            }
            _ => RunsOn { labels: self.selectors(options, "runsOn", raw), exclude: Vec::new() },
        };
        if let Some(both) = runs_on.labels.iter().find(|label| runs_on.exclude.contains(label)) {
            let (Selector::Exact(text) | Selector::Glob(text) | Selector::Regex(text)) = both;
            self.fault(
                options.at,
                format!("{}: \"runsOn\" asks for \"{text}\" and excludes it", options.of),
            );
        }
        Some(runs_on)
    }

    fn selectors(&mut self, options: &Options<'a>, key: &str, raw: &'a Raw) -> Vec<Selector> {
        let items = match raw {
            Raw::List(items) => items.as_slice(),
            one => std::slice::from_ref(one),
        };
        let selectors: Vec<_> =
            items.iter().filter_map(|item| self.selector(options, key, item)).collect();
        if items.is_empty() {
            self.fault(
                options.at,
                format!("{}: \"{key}\" is empty; leave it out to run anywhere", options.of),
            );
        }
        selectors
    }

    fn selector(&mut self, options: &Options<'a>, key: &str, raw: &'a Raw) -> Option<Selector> {
        match raw {
            Raw::Text(text) if text.is_empty() => {
                self.fault(options.at, format!("{}: \"{key}\" holds an empty string", options.of));
                None
            }
            Raw::Text(text) if text.contains(['*', '?', '[', ']', '{', '}']) => {
                Some(Selector::Glob(text.clone()))
            }
            Raw::Text(text) => Some(Selector::Exact(text.clone())),
            Raw::RegExp { source, flags } => match regex(source, flags) {
                Ok(pattern) => Some(Selector::Regex(pattern)),
                Err(message) => {
                    self.fault(options.at, format!("{}: \"{key}\": {message}", options.of));
                    None
                }
            },
            other => {
                self.wrong(
                    options,
                    key,
                    "a label, a pattern, a regular expression or a list of them",
                    other,
                );
                None
            }
        }
    }
}

/// A JavaScript regular expression in the words of the linear engine.
pub(super) fn regex(source: &str, flags: &str) -> Result<String, String> {
    let unknown: String =
        flags.chars().filter(|flag| !"ims".contains(*flag) && !"gudy".contains(*flag)).collect();
    if !unknown.is_empty() {
        return Err(format!("the flag {unknown} of /{source}/ is not supported"));
    }
    let kept: String = flags.chars().filter(|flag| "ims".contains(*flag)).collect();
    let pattern = if kept.is_empty() { source.to_owned() } else { format!("(?{kept}){source}") };
    match regex::RegexBuilder::new(&pattern).size_limit(REGEX_BYTES_MAX).build() {
        Ok(_) => Ok(pattern),
        Err(_) if source.contains("(?=") || source.contains("(?!") || source.contains("(?<") => {
            Err(format!(
                "/{source}/ uses look-around, which the linear engine for patterns does not have"
            ))
        }
        Err(_) if source.contains('\\') => Err(format!(
            "/{source}/ uses something that the linear engine for patterns does not have, such as a back-reference"
        )),
        Err(error) => Err(format!("/{source}/ is not a pattern: {error}")),
    }
}
