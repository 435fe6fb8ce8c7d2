//! `workflow(name, options)`.

use std::collections::{BTreeMap, BTreeSet};

use shuntyard_protocol::plan;

use super::{Described, Describer, Export, JobCode, options::Options};
use crate::raw::Raw;

/// Most jobs of a workflow, before fan-out.
pub(crate) const JOBS_MAX: usize = 1000;

const KNOWN: [&str; 7] = ["on", "jobs", "env", "timeout", "concurrency", "description", "name"];
const LATER: [&str; 10] = [
    "rules",
    "approval",
    "inputs",
    "hashFiles",
    "onSuccess",
    "onFailure",
    "onCancel",
    "cleanup",
    "runtime",
    "environment",
];

impl<'a> Describer<'a> {
    pub(super) fn workflow(&mut self, export: &Export) -> Described {
        let node = self.node(export.node);
        let (name, options) = match node.args.first() {
            Some(Raw::Object(_)) => (None, node.args.first()),
            first => (first, node.args.get(1)),
        };
        let name = if let Some(raw) = name {
            self.name("workflow", &node.at, raw).unwrap_or_default()
        } else {
            self.fault(&node.at, "a workflow begins with its name: workflow(\"ci\", { … })");
            String::new()
        };
        let options =
            self.options(format!("workflow \"{name}\""), &node.at, options, &KNOWN, &LATER);
        if options.get("name").is_some() {
            self.fault(
                &node.at,
                "the name of a workflow is the first argument: workflow(\"ci\", { … })",
            );
        }
        let (jobs, code) = self.jobs(&options);
        let workflow = plan::Workflow {
            name,
            file: export.file.clone(),
            description: self.text(&options, "description"),
            on: self.triggers(&options),
            env: self.env(&options),
            timeout_ms: self.timeout(&options, "timeout"),
            concurrency: self.concurrency(&options, "concurrency"),
            jobs,
        };
        Described { workflow, jobs: code }
    }

    fn jobs(&mut self, options: &Options<'a>) -> (Vec<plan::Job>, Vec<JobCode>) {
        let items: &[Raw] = match options.get("jobs") {
            Some(Raw::List(items)) => items,
            None => &[],
            Some(other) => {
                self.wrong(options, "jobs", "a list of jobs", other);
                return (Vec::new(), Vec::new());
            }
        };
        if items.is_empty() || items.len() > JOBS_MAX {
            let count = items.len();
            self.fault(
                options.at,
                format!("{}: \"jobs\" holds 1 to {JOBS_MAX} jobs, got {count}", options.of),
            );
            return (Vec::new(), Vec::new());
        }
        let ids: Vec<u32> = items.iter().filter_map(|item| self.job_id(options, item)).collect();
        let names = self.job_names(&ids);
        ids.iter().map(|id| self.job(*id, &names)).unzip()
    }

    fn job_id(&mut self, options: &Options<'a>, raw: &'a Raw) -> Option<u32> {
        if let Raw::Function { .. } = raw {
            self.fault(
                options.at,
                format!(
                    "{}: a job generator (a function in \"jobs\") is not supported yet",
                    options.of
                ),
            );
            return None;
        }
        match self.as_node(raw) {
            Some((id, node)) if node.kind == "job" => Some(id),
            _ => {
                self.wrong(options, "jobs", "a list of job(…)", raw);
                None
            }
        }
    }

    /// The name of each job: its own, or `job-N` by its place among the unnamed.
    fn job_names(&mut self, ids: &[u32]) -> BTreeMap<u32, String> {
        let mut names = BTreeMap::new();
        let mut taken = BTreeSet::new();
        let mut unnamed = 0;
        for id in ids {
            let node = self.node(*id);
            let name = match node.args.first() {
                Some(Raw::Object(_)) | None => {
                    unnamed += 1;
                    format!("job-{unnamed}")
                }
                Some(raw) => self.name("job", &node.at, raw).unwrap_or_default(),
            };
            if names.contains_key(id) {
                self.fault(&node.at, format!("job \"{name}\" is twice in \"jobs\""));
            } else if !taken.insert(name.clone()) {
                self.fault(
                    &node.at,
                    format!("there are two jobs \"{name}\"; names are unique in a workflow"),
                );
            }
            names.insert(*id, name);
        }
        names
    }
}
