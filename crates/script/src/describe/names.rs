//! Names of workflows, jobs and steps.

use std::collections::BTreeSet;

use super::Describer;
use crate::{fault::Fault, raw::Raw};

/// Longest name, in characters.
pub(super) const NAME_CHARS_MAX: usize = 100;
/// Longest name that is made from a command.
const COMMAND_NAME_CHARS: usize = 60;

impl Describer<'_> {
    /// Checks a name and returns it; a bad one is noted.
    pub(super) fn name(&mut self, what: &str, at: &Fault, raw: &Raw) -> Option<String> {
        let Raw::Text(name) = raw else {
            let kind = self.kind(raw);
            self.fault(at, format!("the name of a {what} is a string, got {kind}"));
            return None;
        };
        let chars = name.chars().count();
        if chars == 0 || chars > NAME_CHARS_MAX {
            self.fault(at, format!("the name of a {what} has 1 to {NAME_CHARS_MAX} characters, this one has {chars}"));
        } else if name.chars().any(char::is_control) {
            self.fault(at, format!("the name of a {what} contains a control character: {name:?}"));
        } else if name.trim() != name {
            self.fault(
                at,
                format!("the name of a {what} begins or ends with white space: {name:?}"),
            );
        }
        Some(name.clone())
    }
}

/// A name for a command: its first line, shortened.
pub(super) fn of_command(command: &str) -> String {
    let line = command.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("sh");
    let clean: String = line.chars().filter(|c| !c.is_control()).collect();
    if clean.chars().count() <= COMMAND_NAME_CHARS {
        return clean;
    }
    let start: String = clean.chars().take(COMMAND_NAME_CHARS - 1).collect();
    format!("{}…", start.trim_end())
}

/// `name`, or `name (2)` and so on when it is taken.
pub(super) fn unique(name: &str, taken: &BTreeSet<String>) -> String {
    if !taken.contains(name) {
        return name.to_owned();
    }
    (2..=taken.len() + 2)
        .map(|n| format!("{name} ({n})"))
        .find(|name| !taken.contains(name))
        .expect("there are more candidates than taken names")
}
