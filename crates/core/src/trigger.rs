//! Whether an event starts a workflow, and the reason either way.

use shuntyard_protocol::plan::{Trigger, Workflow};

use crate::{
    event::{Changed, Event, Kind, PullRequest},
    glob::{GlobError, Patterns},
};

/// Actions that `pr()` means when it names none.
const PR_ACTIONS: [&str; 3] = ["opened", "synchronize", "reopened"];

/// The answer for one workflow, in words for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Match(String),
    /// One reason for each trigger.
    NoMatch(Vec<String>),
}

/// Tries each trigger of a workflow in order; the first that matches decides.
pub fn matches(workflow: &Workflow, event: &Event) -> Result<Verdict, GlobError> {
    if let Kind::Manual { workflow: name } = &event.kind {
        return Ok(if *name == workflow.name {
            Verdict::Match("started by hand".to_owned())
        } else {
            Verdict::NoMatch(vec![format!("'{name}' was started by hand")])
        });
    }
    let mut reasons = Vec::new();
    for trigger in &workflow.on {
        match one(trigger, event)? {
            Ok(reason) => return Ok(Verdict::Match(reason)),
            Err(reason) => reasons.push(reason),
        }
    }
    if workflow.on.is_empty() {
        reasons.push("it has no trigger: it is only started by hand".to_owned());
    }
    Ok(Verdict::NoMatch(reasons))
}

/// A trigger in words, for "which triggers exist".
pub fn describe(trigger: &Trigger) -> String {
    let list = |name: &str, patterns: &[String]| match patterns {
        [] => String::new(),
        _ => format!(" {name} {}", patterns.join(", ")),
    };
    match trigger {
        Trigger::Push { branches, tags, paths } => {
            format!("push{}{}{}", list("to", branches), list("tags", tags), list("touching", paths))
        }
        Trigger::Pr { target, source, events, paths } => format!(
            "pull request{}{}{}{}",
            list("into", target),
            list("from", source),
            list("on", events),
            list("touching", paths)
        ),
        Trigger::Tag { patterns } => format!("tag{}", list("named", patterns)),
        Trigger::Manual {} => "manual".to_owned(),
        Trigger::Schedule { cron, timezone } => {
            format!("schedule {cron} ({})", timezone.as_deref().unwrap_or("UTC"))
        }
    }
}

type Reason = Result<String, String>;

fn one(trigger: &Trigger, event: &Event) -> Result<Reason, GlobError> {
    match (trigger, &event.kind) {
        (Trigger::Push { branches, tags, paths }, Kind::Push { branch }) => {
            // A filter on tags alone is not a filter for branches.
            if branches.is_empty() && !tags.is_empty() {
                return Ok(Err("the trigger is for tags only".to_owned()));
            }
            and_paths(select("branch", branches, branch)?, paths, event)
        }
        (Trigger::Push { tags, .. }, Kind::Tag { tag }) => Ok(if tags.is_empty() {
            Err("push() is for branches; tags need tag() or push({tags})".to_owned())
        } else {
            select("tag", tags, tag)?
        }),
        (Trigger::Tag { patterns }, Kind::Tag { tag }) => select("tag", patterns, tag),
        (Trigger::Pr { target, source, events, paths }, Kind::PullRequest(pr)) => {
            let verdict = pull_request(target, source, events, pr)?;
            and_paths(verdict, paths, event)
        }
        (
            Trigger::Push { .. }
            | Trigger::Tag { .. }
            | Trigger::Pr { .. }
            | Trigger::Manual {}
            | Trigger::Schedule { .. },
            _,
        ) => Ok(Err(format!(
            "the trigger is {}, the event is {}",
            describe(trigger),
            event.trigger()
        ))),
    }
}

fn pull_request(
    target: &[String],
    source: &[String],
    events: &[String],
    pr: &PullRequest,
) -> Result<Reason, GlobError> {
    let action = &pr.action;
    let wanted = match events {
        [] => PR_ACTIONS.contains(&action.as_str()),
        _ => events.contains(action),
    };
    if !wanted {
        return Ok(Err(format!("action '{action}' is not among the trigger's events")));
    }
    Ok(match select("target branch", target, &pr.target)? {
        Ok(reason) => select("source branch", source, &pr.source)?.map(|_| reason),
        refused => refused,
    })
}

fn select(what: &str, patterns: &[String], value: &str) -> Result<Reason, GlobError> {
    if Patterns::new(patterns)?.matches(value) {
        return Ok(Ok(format!("{what} '{value}'")));
    }
    Ok(Err(format!("{what} '{value}' is not selected by {}", patterns.join(", "))))
}

fn and_paths(verdict: Reason, paths: &[String], event: &Event) -> Result<Reason, GlobError> {
    let (Ok(reason), false) = (&verdict, paths.is_empty()) else { return Ok(verdict) };
    let files = match &event.changed {
        Changed::Unknown(why) => {
            return Ok(Ok(format!("{reason}; changed files are not known ({why})")));
        }
        Changed::Files(files) => files,
    };
    let patterns = Patterns::new(paths)?;
    Ok(match files.iter().find(|file| patterns.matches(file)) {
        Some(file) => Ok(format!("{reason}, changed '{file}'")),
        None => Err(format!(
            "none of {} changed files is selected by {}",
            files.len(),
            paths.join(", ")
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: Kind, changed: Changed) -> Event {
        Event {
            kind,
            commit: "c0ffee".into(),
            ref_name: None,
            before: None,
            subject: String::new(),
            author: String::new(),
            changed,
        }
    }

    fn push(branch: &str, files: &[&str]) -> Event {
        let files = files.iter().map(|&f| f.to_owned()).collect();
        event(Kind::Push { branch: branch.into() }, Changed::Files(files))
    }

    fn on(trigger: Trigger) -> Workflow {
        Workflow { name: "ci".into(), on: vec![trigger], ..Workflow::default() }
    }

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(|&s| s.to_owned()).collect()
    }

    fn push_on(branches: &[&str], paths: &[&str]) -> Workflow {
        on(Trigger::Push { branches: strings(branches), tags: vec![], paths: strings(paths) })
    }

    fn is_match(workflow: &Workflow, event: &Event) -> bool {
        matches!(matches(workflow, event).unwrap(), Verdict::Match(_))
    }

    #[test]
    fn paths_need_one_selected_file_and_none_changed_is_not_a_match() {
        let workflow = push_on(&[], &["**", "!CHANGELOG.md", "!docs/**"]);
        assert!(is_match(&workflow, &push("main", &["docs/main.md", "CHANGELOG.md", "README.md"])));
        assert!(!is_match(&workflow, &push("main", &["docs/main.md"])));
        assert!(!is_match(&workflow, &push("main", &[])));
    }

    #[test]
    fn unknown_changes_run_the_workflow_and_say_why() {
        let event =
            event(Kind::Push { branch: "main".into() }, Changed::Unknown("no base commit".into()));
        let verdict = matches(&push_on(&["main"], &["src/**"]), &event).unwrap();
        let expected = "branch 'main'; changed files are not known (no base commit)";
        assert_eq!(verdict, Verdict::Match(expected.into()));
    }

    #[test]
    fn push_is_for_branches_and_tags_must_be_asked_for() {
        let tag = event(Kind::Tag { tag: "v1".into() }, Changed::Files(vec![]));
        assert!(!is_match(&push_on(&[], &[]), &tag));
        assert!(is_match(&on(Trigger::Tag { patterns: vec![] }), &tag));
        assert!(!is_match(&on(Trigger::Tag { patterns: strings(&["x*"]) }), &tag));
        let tags = on(Trigger::Push { branches: vec![], tags: strings(&["v*"]), paths: vec![] });
        assert!(is_match(&tags, &tag));
        assert!(!is_match(&tags, &push("main", &["a"])));
    }

    #[test]
    fn pull_requests_match_by_action_target_and_source() {
        let pr = |action: &str, target: &str| {
            let pr = PullRequest {
                number: 1,
                action: action.into(),
                title: String::new(),
                target: target.into(),
                source: "topic".into(),
                fork: false,
            };
            event(Kind::PullRequest(pr), Changed::Files(vec![]))
        };
        let workflow = on(Trigger::Pr {
            target: strings(&["main"]),
            source: vec![],
            events: vec![],
            paths: vec![],
        });
        assert!(is_match(&workflow, &pr("opened", "main")));
        assert!(!is_match(&workflow, &pr("closed", "main")));
        assert!(!is_match(&workflow, &pr("opened", "dev")));
    }

    #[test]
    fn a_start_by_hand_is_for_one_workflow_whatever_its_triggers() {
        let by_hand = event(Kind::Manual { workflow: "ci".into() }, Changed::Files(vec![]));
        assert!(is_match(&push_on(&["x"], &[]), &by_hand));
        let other = Workflow { name: "docs".into(), ..Workflow::default() };
        assert!(!is_match(&other, &by_hand));
    }

    #[test]
    fn every_trigger_that_did_not_match_says_why() {
        let verdict = matches(&push_on(&["main", "!wip/**"], &[]), &push("dev", &[])).unwrap();
        let expected = "branch 'dev' is not selected by main, !wip/**";
        assert_eq!(verdict, Verdict::NoMatch(vec![expected.into()]));
    }
}
