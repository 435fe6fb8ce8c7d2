//! `on`: what starts a run.

use shuntyard_protocol::plan::Trigger;

use super::{Describer, options::Options};
use crate::{
    fault::{Fault, hint},
    raw::{Node, Raw},
};

const TRIGGERS: [&str; 5] = ["push", "pr", "tag", "manual", "schedule"];
/// Fields of a cron line.
const CRON_FIELDS: usize = 5;
const PR_EVENTS: [&str; 14] = [
    "opened",
    "synchronize",
    "reopened",
    "closed",
    "edited",
    "labeled",
    "unlabeled",
    "assigned",
    "unassigned",
    "ready_for_review",
    "converted_to_draft",
    "review_requested",
    "locked",
    "unlocked",
];

impl<'a> Describer<'a> {
    pub(super) fn triggers(&mut self, options: &Options<'a>) -> Vec<Trigger> {
        match options.get("on") {
            None => Vec::new(),
            Some(Raw::List(items)) => {
                items.iter().filter_map(|item| self.trigger(options, item)).collect()
            }
            Some(one) => self.trigger(options, one).into_iter().collect(),
        }
    }

    fn trigger(&mut self, options: &Options<'a>, raw: &'a Raw) -> Option<Trigger> {
        let node = self.as_node(raw).map(|(_, node)| node);
        match node.map(|node| (node.kind.as_str(), node)) {
            Some(("push", node)) => Some(self.push(node)),
            Some(("pr", node)) => Some(self.pr(node)),
            Some(("tag", node)) => Some(self.tag(node)),
            Some(("manual", node)) => {
                self.options("manual()".to_owned(), &node.at, node.args.first(), &[], &["inputs"]);
                Some(Trigger::Manual {})
            }
            Some(("schedule", node)) => self.schedule(node),
            _ => {
                let (Raw::Text(word) | Raw::Function { name: word, .. }) = raw else {
                    self.wrong(options, "on", "a trigger such as push() or a list of them", raw);
                    return None;
                };
                let near = crate::fault::nearest(word, TRIGGERS).unwrap_or("push");
                self.fault(
                    options.at,
                    format!("{}: a trigger is written as a call: on: {near}()", options.of),
                );
                None
            }
        }
    }

    fn push(&mut self, node: &'a Node) -> Trigger {
        let known = ["branches", "tags", "paths"];
        let options = self.options(
            "push()".to_owned(),
            &node.at,
            node.args.first(),
            &known,
            &["repos", "match", "not", "bodyMatch"],
        );
        Trigger::Push {
            branches: self.texts(&options, "branches"),
            tags: self.texts(&options, "tags"),
            paths: self.texts(&options, "paths"),
        }
    }

    fn pr(&mut self, node: &'a Node) -> Trigger {
        let known = ["target", "source", "events", "paths"];
        let later = ["labels", "draft", "bodyMatch", "match", "not", "repos", "states"];
        let options = self.options("pr()".to_owned(), &node.at, node.args.first(), &known, &later);
        let events = self.texts(&options, "events");
        for event in &events {
            if !PR_EVENTS.contains(&event.as_str()) {
                let near = hint(event, PR_EVENTS);
                self.fault(&node.at, format!("pr() knows no event \"{event}\"{near}"));
            }
        }
        Trigger::Pr {
            target: self.texts(&options, "target"),
            source: self.texts(&options, "source"),
            events,
            paths: self.texts(&options, "paths"),
        }
    }

    fn tag(&mut self, node: &'a Node) -> Trigger {
        let patterns = match node.args.first() {
            None => Vec::new(),
            Some(Raw::Text(pattern)) => vec![pattern.clone()],
            Some(Raw::List(items)) if items.iter().all(|item| matches!(item, Raw::Text(_))) => {
                items
                    .iter()
                    .filter_map(|item| match item {
                        Raw::Text(text) => Some(text.clone()),
                        _ => None,
                    })
                    .collect()
            }
            raw => {
                let options = self.options(
                    "tag()".to_owned(),
                    &node.at,
                    raw,
                    &["tags", "patterns"],
                    &["paths", "repos"],
                );
                let mut patterns = self.texts(&options, "tags");
                patterns.extend(self.texts(&options, "patterns"));
                patterns
            }
        };
        Trigger::Tag { patterns }
    }

    fn schedule(&mut self, node: &'a Node) -> Option<Trigger> {
        let (cron, timezone) = match node.args.first() {
            Some(Raw::Text(cron)) => (Some(cron.clone()), None),
            raw => {
                let known = ["cron", "timezone"];
                let options = self.options(
                    "schedule()".to_owned(),
                    &node.at,
                    raw,
                    &known,
                    &["inputs", "catchUp"],
                );
                (self.text(&options, "cron"), self.text(&options, "timezone"))
            }
        };
        self.cron(&node.at, cron).map(|cron| Trigger::Schedule { cron, timezone })
    }

    fn cron(&mut self, at: &Fault, cron: Option<String>) -> Option<String> {
        let Some(cron) = cron else {
            self.fault(at, "schedule() needs a cron line: schedule({ cron: \"0 4 * * *\" })");
            return None;
        };
        let fields = cron.split_whitespace().count();
        if fields != CRON_FIELDS {
            let order = "minute, hour, day of month, month, day of week";
            self.fault(at, format!("schedule(): a cron line has {CRON_FIELDS} fields ({order}), \"{cron}\" has {fields}"));
        }
        Some(cron)
    }
}
