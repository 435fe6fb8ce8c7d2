//! `shunt preview`

use serde_json::json;
use shuntyard_core::{
    event::{Changed, Event, Kind, PullRequest},
    trigger::{self, Verdict},
};

use super::plan;
use crate::{
    args::{EventKind, Preview},
    exit::{FAILED, Failure, Result, usage},
    show::style,
};

pub(crate) async fn run(args: Preview) -> Result {
    let plan = plan::of_folder(&args.repository.directory).await?;
    let event = event(&args);
    let mut matched = Vec::new();
    let mut rows = Vec::new();
    for workflow in &plan.workflows {
        let verdict = trigger::matches(workflow, &event).map_err(usage)?;
        let (runs, reasons) = match verdict {
            Verdict::Match(reason) => (true, vec![reason]),
            Verdict::NoMatch(reasons) => (false, reasons),
        };
        if runs {
            matched.push(workflow.name.as_str());
        }
        if args.json {
            rows.push(json!({ "workflow": workflow.name, "runs": runs, "reasons": reasons }));
        } else {
            let state = style::paint(if runs { "success" } else { "skipped" });
            let state = state.replace("success", "runs").replace("skipped", "does not run");
            anstream::println!("{state}  {}: {}", workflow.name, reasons.join("; "));
        }
    }
    if args.json {
        anstream::println!("{}", json!({ "items": rows }));
    }
    let known: Vec<_> = plan.workflows.iter().map(|workflow| workflow.name.as_str()).collect();
    check(&args.expect, &matched, &known)
}

fn check(expect: &[String], matched: &[&str], known: &[&str]) -> Result {
    let mut held = true;
    for name in expect {
        let (wanted, plain) = match name.strip_prefix('!') {
            Some(plain) => (false, plain),
            None => (true, name.as_str()),
        };
        if !known.contains(&plain) {
            return Err(usage(format!("--expect {name}: there is no workflow '{plain}'")));
        }
        if matched.contains(&plain) != wanted {
            let fact = if wanted { "does not run" } else { "runs" };
            anstream::eprintln!("{}expected {name}:{} it {fact}", style::ERROR, anstyle::Reset);
            held = false;
        }
    }
    if held { Ok(()) } else { Err(Failure::Said(FAILED)) }
}

fn event(args: &Preview) -> Event {
    let kind = match args.event {
        EventKind::Push => Kind::Push { branch: args.branch.clone() },
        EventKind::Tag => Kind::Tag { tag: args.tag.clone() },
        EventKind::Pr => Kind::PullRequest(PullRequest {
            number: 1,
            action: "opened".to_owned(),
            title: String::new(),
            target: args.target.clone(),
            source: args.source.clone(),
            fork: false,
        }),
    };
    let changed = match &args.files {
        Some(files) => Changed::Files(files.iter().filter(|f| !f.is_empty()).cloned().collect()),
        None => Changed::Unknown("no --files given".to_owned()),
    };
    Event {
        kind,
        commit: "0".repeat(40),
        ref_name: None,
        before: None,
        subject: String::new(),
        author: String::new(),
        changed,
    }
}
