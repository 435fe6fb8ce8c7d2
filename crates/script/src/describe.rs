//! From the author's values to the plan: every check of what a workflow file may say.
//!
//! Pure: a [`Tree`] goes in, workflows and faults come out. Faults are collected, not thrown, so
//! that one evaluation reports all of them.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "an author may write anything; each place takes some kinds and refuses the rest"
)]

mod concurrency;
mod duration;
mod job;
mod matrix;
mod names;
mod needs;
mod options;
pub(crate) mod schema;
mod selector;
mod step;
mod trigger;
mod workflow;

use std::collections::BTreeMap;

use shuntyard_protocol::plan;

use crate::{
    fault::{FAULTS_MAX, Fault},
    raw::{Node, Raw, Tree},
};

/// A workflow, and where the functions of its steps are.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) workflow: plan::Workflow,
    /// One for each job of the workflow.
    pub(crate) jobs: Vec<JobCode>,
}

/// How the runner finds a job's functions again.
#[derive(Debug, Default)]
pub(crate) struct JobCode {
    /// The call of `job`.
    pub(crate) node: u32,
    /// One for each step of the job.
    pub(crate) steps: Vec<StepCode>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepCode {
    /// The call of `step` or `sh`; a bare function has none.
    pub(crate) node: Option<u32>,
    /// Index of the function; a shell step has none.
    pub(crate) function: Option<usize>,
}

/// One exported value that is a workflow.
#[derive(Clone, Debug)]
pub(crate) struct Export {
    pub(crate) file: String,
    pub(crate) node: u32,
}

/// Describes the exported workflows in the given order. One that is exported twice counts once.
///
/// # Errors
/// Every fault of all of them.
pub(crate) fn describe(tree: &Tree, exports: &[Export]) -> Result<Vec<Described>, Vec<Fault>> {
    let mut describer = Describer { tree, faults: Vec::new() };
    let mut described: Vec<Described> = Vec::new();
    let mut seen = BTreeMap::new();
    for export in exports {
        if seen.insert(export.node, &export.file).is_some() {
            continue;
        }
        let one = describer.workflow(export);
        let twin = described.iter().find(|other| other.workflow.name == one.workflow.name);
        if let Some(twin) = twin {
            let message = format!(
                "workflow \"{}\" exists twice: {} has one of that name too",
                one.workflow.name, twin.workflow.file
            );
            let at = &describer.node(export.node).at;
            describer.faults.push(Fault { message, ..at.clone() });
        }
        described.push(one);
    }
    let place = |fault: &Fault| fault.place.as_ref().map(|place| (place.line, place.column));
    describer.faults.sort_by_cached_key(|fault| (fault.file.clone(), place(fault)));
    describer.faults.truncate(FAULTS_MAX);
    if describer.faults.is_empty() { Ok(described) } else { Err(describer.faults) }
}

struct Describer<'a> {
    tree: &'a Tree,
    faults: Vec<Fault>,
}

impl<'a> Describer<'a> {
    fn node(&self, id: u32) -> &'a Node {
        self.tree.nodes.get(&id).expect("every node that a value names was read with it")
    }

    /// The node behind a value, if it is one.
    fn as_node(&self, raw: &Raw) -> Option<(u32, &'a Node)> {
        match raw {
            Raw::Node(id) => Some((*id, self.node(*id))),
            Raw::Undefined
            | Raw::Null
            | Raw::Bool(_)
            | Raw::Number(_)
            | Raw::Text(_)
            | Raw::List(_)
            | Raw::Object(_)
            | Raw::RegExp { .. }
            | Raw::Function { .. }
            | Raw::Other(_) => None,
        }
    }

    fn fault(&mut self, at: &Fault, message: impl Into<String>) {
        self.faults.push(Fault { message: message.into(), ..at.clone() });
    }

    /// The value for people: what it is, or which SDK function made it.
    fn kind(&self, raw: &Raw) -> String {
        match self.as_node(raw) {
            Some((_, node)) if node.kind == "unsupported" => {
                "something that is not supported yet".to_owned()
            }
            Some((_, node)) => format!("a {}()", node.kind),
            None => raw.kind().to_owned(),
        }
    }

    /// `comment()` for a value that a documented, later function made.
    fn unsupported(&self, raw: &Raw) -> Option<String> {
        let (_, node) = self.as_node(raw).filter(|(_, node)| node.kind == "unsupported")?;
        match node.args.first() {
            Some(Raw::Text(name)) => Some(format!("{name}()")),
            _ => None,
        }
    }
}
