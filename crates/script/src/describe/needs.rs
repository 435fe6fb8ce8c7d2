//! `needs`: which jobs come first, and how they have to end.

use std::collections::BTreeMap;

use shuntyard_protocol::{Outcome, plan::Need};

use super::{Describer, options::Options};
use crate::{fault::hint, raw::Raw};

const CONDITIONS: [&str; 4] = ["on-success", "always", "on-skip", "on-failure"];

impl<'a> Describer<'a> {
    /// `names` are the jobs of the workflow by node, `own` is the job that needs.
    pub(super) fn needs(
        &mut self,
        options: &Options<'a>,
        own: u32,
        names: &BTreeMap<u32, String>,
    ) -> Vec<Need> {
        let items = match options.get("needs") {
            None => return Vec::new(),
            Some(Raw::List(items)) => items.as_slice(),
            Some(one) => std::slice::from_ref(one),
        };
        let mut needs: Vec<Need> = Vec::new();
        for item in items {
            let Some(need) = self.need(options, item, names) else { continue };
            if names.get(&own) == Some(&need.job) {
                self.fault(options.at, format!("{} needs itself", options.of));
            } else if needs.iter().any(|other| other.job == need.job) {
                self.fault(options.at, format!("{} needs \"{}\" twice", options.of, need.job));
            } else {
                needs.push(need);
            }
        }
        needs
    }

    fn need(
        &mut self,
        options: &Options<'a>,
        raw: &'a Raw,
        names: &BTreeMap<u32, String>,
    ) -> Option<Need> {
        let (target, when) = match raw {
            Raw::Object(_) => {
                let of = format!("{}: \"needs\"", options.of);
                let inner = self.options(of, options.at, Some(raw), &["name", "job", "when"], &[]);
                let Some(target) = inner.get("job").or(inner.get("name")) else {
                    self.fault(
                        options.at,
                        format!("{}: an entry of \"needs\" has a job or a name", options.of),
                    );
                    return None;
                };
                (target, inner.get("when"))
            }
            other => (other, None),
        };
        let job = self.needed_job(options, target, names)?;
        let when =
            when.map_or_else(|| Some(vec![Outcome::Success]), |when| self.when(options, when))?;
        Some(Need { job, when })
    }

    fn needed_job(
        &mut self,
        options: &Options<'a>,
        raw: &'a Raw,
        names: &BTreeMap<u32, String>,
    ) -> Option<String> {
        if let Raw::Text(name) = raw {
            if names.values().any(|known| known == name) {
                return Some(name.clone());
            }
            let near = hint(name, names.values().map(String::as_str));
            self.fault(
                options.at,
                format!("{} needs \"{name}\", and the workflow has no such job{near}", options.of),
            );
            return None;
        }
        match self.as_node(raw) {
            Some((id, node)) if node.kind == "job" => {
                let name = names.get(&id).cloned();
                if name.is_none() {
                    let name = match node.args.first() {
                        Some(Raw::Text(name)) => format!("\"{name}\""),
                        _ => "a job without a name".to_owned(),
                    };
                    let message = format!(
                        "{} needs {name}, which is not in the workflow's \"jobs\"",
                        options.of
                    );
                    self.fault(options.at, message);
                }
                name
            }
            _ => {
                self.wrong(options, "needs", "a job, its name, or { job, when }", raw);
                None
            }
        }
    }

    fn when(&mut self, options: &Options<'a>, raw: &'a Raw) -> Option<Vec<Outcome>> {
        let words: Vec<&Raw> = match raw {
            Raw::Text(word) => match word.as_str() {
                "on-success" => return Some(vec![Outcome::Success]),
                "always" => return Some(Outcome::ALL.to_vec()),
                "on-skip" => return Some(vec![Outcome::Success, Outcome::Skipped]),
                "on-failure" => {
                    return Some(vec![Outcome::Failed, Outcome::TimedOut, Outcome::Lost]);
                }
                _ => vec![raw],
            },
            Raw::List(items) if !items.is_empty() => items.iter().collect(),
            _ => vec![raw],
        };
        let mut outcomes = Vec::new();
        for word in words {
            let outcome = match word {
                Raw::Text(text) => Outcome::parse(text),
                _ => None,
            };
            if let Some(outcome) = outcome {
                outcomes.push(outcome);
            } else {
                let known: Vec<&str> =
                    Outcome::ALL.iter().map(|outcome| outcome.as_str()).collect();
                let list =
                    format!("one of {}, or a list of {}", CONDITIONS.join(", "), known.join(", "));
                self.wrong(options, "needs.when", &list, word);
                return None;
            }
        }
        outcomes.sort_unstable();
        outcomes.dedup();
        Some(outcomes)
    }
}
