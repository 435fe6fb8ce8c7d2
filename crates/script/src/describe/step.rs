//! `steps` and `run`: step, sh, parallel, bare functions.

use std::collections::BTreeSet;

use shuntyard_protocol::plan::{Action, Parallel, Step, StepRetry};

use super::{Describer, StepCode, job::TRIES_MAX, names, options::Options, schema};
use crate::{
    fault::Fault,
    raw::{Node, Raw},
};

/// Most steps of a job.
pub(crate) const STEPS_MAX: usize = 1000;
/// Longest command of a shell step, in bytes.
pub(crate) const COMMAND_BYTES_MAX: usize = 64 * 1024;
const RETRY_DELAY_MS: u64 = 1000;
const RETRY_DELAY_MAX_MS: u64 = 30_000;
const PARALLEL_MAX: i32 = 256;

const STEP_KNOWN: [&str; 6] = ["run", "outputs", "timeout", "retry", "continueOnError", "env"];
const STEP_LATER: [&str; 6] = ["rules", "cache", "approval", "check", "summarize", "whenInSync"];
const SH_KNOWN: [&str; 7] =
    ["outputs", "timeout", "retry", "continueOnError", "env", "shell", "cwd"];
const SH_LATER: [&str; 3] = ["rules", "cache", "approval"];

/// The steps of a job so far.
#[derive(Default)]
pub(super) struct Body {
    pub(super) steps: Vec<Step>,
    pub(super) parallels: Vec<Parallel>,
    pub(super) code: Vec<StepCode>,
    /// Steps whose author gave no name, and what their name is made from.
    unnamed: Vec<(usize, String)>,
}

impl<'a> Describer<'a> {
    pub(super) fn body(&mut self, options: &Options<'a>) -> Body {
        let mut body = Body::default();
        match (options.get("steps"), options.get("run")) {
            (Some(Raw::List(items)), None) => {
                if items.is_empty() || items.len() > STEPS_MAX {
                    let count = items.len();
                    self.fault(
                        options.at,
                        format!(
                            "{}: \"steps\" holds 1 to {STEPS_MAX} steps, got {count}",
                            options.of
                        ),
                    );
                    return body;
                }
                for item in items {
                    self.item(options, item, None, &mut body);
                }
            }
            (Some(other), None) => self.wrong(options, "steps", "a list of steps", other),
            (None, Some(run)) => {
                self.item(options, run, None, &mut body);
                if let (Some((_, node)), false) = (self.as_node(run), body.steps.is_empty())
                    && node.kind == "parallel"
                {
                    self.fault(
                        options.at,
                        format!(
                            "{}: \"run\" is one step; write parallel() in \"steps\"",
                            options.of
                        ),
                    );
                }
                if let Some((0, name)) = body.unnamed.first_mut() {
                    "run".clone_into(name);
                }
            }
            (Some(_), Some(_)) => self.fault(
                options.at,
                format!("{} has \"steps\" and \"run\"; one of them is enough", options.of),
            ),
            (None, None) => self.fault(
                options.at,
                format!("{} has nothing to do; give it \"steps\" or \"run\"", options.of),
            ),
        }
        self.name_steps(options, &mut body);
        body
    }

    fn item(
        &mut self,
        options: &Options<'a>,
        raw: &'a Raw,
        parallel: Option<u32>,
        body: &mut Body,
    ) {
        let node = self.as_node(raw);
        match (raw, node.map(|(id, node)| (node.kind.as_str(), id, node))) {
            (Raw::Function { index, name }, _) => {
                let step = Step { parallel, ..Step::default() };
                push(body, step, None, name, StepCode { node: None, function: Some(*index) });
            }
            (_, Some(("step", id, node))) => self.step(id, node, parallel, body),
            (_, Some(("sh", id, node))) => self.sh(id, node, parallel, body),
            (_, Some(("parallel", _, node))) if parallel.is_none() => self.parallel(node, body),
            (_, Some(("parallel", ..))) => {
                self.fault(options.at, format!("{}: parallel() does not nest", options.of));
            }
            (Raw::Text(command), _) => {
                let message = format!("{}: a command is written sh({command:?})", options.of);
                self.fault(options.at, message);
            }
            _ => {
                self.wrong(options, "steps", "made of step(), sh(), parallel() and functions", raw);
            }
        }
    }

    fn parallel(&mut self, node: &'a Node, body: &mut Body) {
        let of = "parallel()".to_owned();
        let options =
            self.options(of, &node.at, node.args.get(1), &["failFast", "maxParallel", "name"], &[]);
        let items = match node.args.first() {
            Some(Raw::List(items)) if !items.is_empty() => items,
            _ => {
                self.fault(
                    &node.at,
                    "parallel() takes a list of at least one step: parallel([a, b])",
                );
                return;
            }
        };
        let index = u32::try_from(body.parallels.len()).ok();
        body.parallels.push(Parallel {
            name: options.get("name").and_then(|raw| self.name("parallel block", &node.at, raw)),
            fail_fast: self.flag(&options, "failFast").unwrap_or(true),
            max_parallel: self
                .integer(&options, "maxParallel", (1, PARALLEL_MAX))
                .map(i32::unsigned_abs),
        });
        for item in items {
            self.item(&options, item, index, body);
        }
    }

    /// `step(name, fn)`, `step(name, options)`, `step(fn)`, `step(options)`.
    fn step(&mut self, id: u32, node: &'a Node, parallel: Option<u32>, body: &mut Body) {
        let (name, rest) = match node.args.as_slice() {
            [first @ (Raw::Function { .. } | Raw::Object(_)), ..] => (None, Some(first)),
            [name, rest @ ..] => (self.name("step", &node.at, name), rest.first()),
            [] => (None, None),
        };
        let shown =
            name.as_ref().map_or_else(|| "step".to_owned(), |name| format!("step \"{name}\""));
        if let Some(Raw::Function { index, name: function }) = rest {
            if node.args.len() > usize::from(name.is_some()) + 1 {
                let message = format!(
                    "{shown}: options and function go into one object: step(name, {{ run, … }})"
                );
                self.fault(&node.at, message);
            }
            let code = StepCode { node: Some(id), function: Some(*index) };
            return push(body, Step { parallel, ..Step::default() }, name, function, code);
        }
        if self.as_node_kind(rest, "sh") {
            return self
                .fault(&node.at, format!("{shown}: sh() is a step by itself: sh(name, command)"));
        }
        let options = self.options(shown, &node.at, rest, &STEP_KNOWN, &STEP_LATER);
        for key in ["shell", "cwd"].iter().filter(|key| options.get(key).is_some()) {
            self.fault(&node.at, format!("{}: \"{key}\" belongs to sh()", options.of));
        }
        let function = match options.get("run") {
            Some(Raw::Function { index, .. }) => Some(*index),
            Some(other) => {
                self.wrong(&options, "run", "a function", other);
                None
            }
            None => {
                self.fault(
                    &node.at,
                    format!("{} has nothing to do: step(name, async (ctx) => {{ … }})", options.of),
                );
                None
            }
        };
        let step = self.common(&options, parallel);
        push(body, step, name, "", StepCode { node: Some(id), function });
    }

    /// `sh(cmd)`, `sh(cmd, options)`, `sh(name, cmd)`, `sh(name, cmd, options)`.
    fn sh(&mut self, id: u32, node: &'a Node, parallel: Option<u32>, body: &mut Body) {
        let (name, command, rest) = match node.args.as_slice() {
            [name, Raw::Text(command), rest @ ..] => {
                (self.name("step", &node.at, name), command, rest.first())
            }
            [Raw::Text(command), rest @ ..] => (None, command, rest.first()),
            _ => {
                self.fault(&node.at, "sh() takes a command: sh(\"make\"), or a name and a command");
                return;
            }
        };
        let shown = name.clone().unwrap_or_else(|| names::of_command(command));
        if command.trim().is_empty() || command.len() > COMMAND_BYTES_MAX || command.contains('\0')
        {
            let rule = format!("a command has 1 to {COMMAND_BYTES_MAX} bytes and no NUL character");
            self.fault(&node.at, format!("sh(\"{shown}\"): {rule}"));
        }
        let options =
            self.options(format!("sh(\"{shown}\")"), &node.at, rest, &SH_KNOWN, &SH_LATER);
        let action = Action::Shell {
            command: command.clone(),
            shell: self.shell(&options),
            cwd: self.cwd(&options),
        };
        let step = Step { action, ..self.common(&options, parallel) };
        push(
            body,
            step,
            name,
            &names::of_command(command),
            StepCode { node: Some(id), function: None },
        );
    }

    fn common(&mut self, options: &Options<'a>, parallel: Option<u32>) -> Step {
        let outputs = options.get("outputs").and_then(|raw| match schema::of(self.tree, raw) {
            Ok(schema) => Some(schema.to_json()),
            Err(message) => {
                self.fault(options.at, format!("{}: \"outputs\"{message}", options.of));
                None
            }
        });
        Step {
            name: String::new(),
            action: Action::Function {},
            parallel,
            env: self.env(options),
            timeout_ms: self.timeout(options, "timeout"),
            retry: self.step_retry(options),
            continue_on_error: self.flag(options, "continueOnError").unwrap_or(false),
            outputs,
        }
    }

    fn step_retry(&mut self, options: &Options<'a>) -> Option<StepRetry> {
        let raw = options.get("retry")?;
        let mut retry = StepRetry {
            max_attempts: 1,
            delay_ms: RETRY_DELAY_MS,
            max_delay_ms: RETRY_DELAY_MAX_MS,
            exponential: true,
        };
        let Raw::Object(_) = raw else {
            retry.max_attempts = self.tries(options, raw)?;
            return Some(retry);
        };
        let of = format!("{}: \"retry\"", options.of);
        let known = ["maxAttempts", "delayMs", "backoff", "maxDelayMs"];
        let inner = self.options(of, options.at, Some(raw), &known, &["retryIf"]);
        if inner.get("maxAttempts").is_none() {
            self.fault(
                options.at,
                format!("{}: \"retry\" says how often: {{ maxAttempts: 3 }}", options.of),
            );
        }
        if let Some(tries) = self.integer(&inner, "maxAttempts", (1, TRIES_MAX)) {
            retry.max_attempts = tries.unsigned_abs();
        }
        retry.delay_ms = self.delay(&inner, "delayMs").unwrap_or(retry.delay_ms);
        retry.max_delay_ms = self.delay(&inner, "maxDelayMs").unwrap_or(retry.max_delay_ms);
        match self.text(&inner, "backoff").as_deref() {
            None | Some("exponential") => {}
            Some("fixed") => retry.exponential = false,
            Some(other) => {
                let message =
                    format!("{}: \"backoff\" is exponential or fixed, got \"{other}\"", inner.of);
                self.fault(options.at, message);
            }
        }
        Some(retry)
    }

    fn shell(&mut self, options: &Options<'a>) -> Option<Vec<String>> {
        match options.get("shell")? {
            Raw::Text(name) => {
                let words: &[&str] = match name.as_str() {
                    "bash" => &["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"],
                    "sh" => &["sh", "-e", "-c"],
                    "pwsh" => &["pwsh", "-NoProfile", "-NonInteractive", "-Command"],
                    other => {
                        let message = format!(
                            "{}: \"shell\" names bash, sh or pwsh, got \"{other}\"; any other as a list of \
                             program and arguments before the command",
                            options.of
                        );
                        self.fault(options.at, message);
                        &[]
                    }
                };
                Some(words.iter().map(|&word| word.to_owned()).collect())
            }
            Raw::List(items) if !items.is_empty() => Some(self.texts(options, "shell")),
            other => {
                self.wrong(options, "shell", "a name or a list of program and arguments", other);
                None
            }
        }
    }

    fn cwd(&mut self, options: &Options<'a>) -> Option<String> {
        let cwd = self.text(options, "cwd")?;
        if cwd.starts_with('/') || cwd.split('/').any(|part| part == "..") {
            self.fault(
                options.at,
                format!("{}: \"cwd\" is a folder inside the workspace, got \"{cwd}\"", options.of),
            );
        }
        Some(cwd)
    }

    fn as_node_kind(&self, raw: Option<&Raw>, kind: &str) -> bool {
        raw.and_then(|raw| self.as_node(raw)).is_some_and(|(_, node)| node.kind == kind)
    }

    /// Gives every step a name of its own; what the author named keeps its name.
    fn name_steps(&mut self, options: &Options<'a>, body: &mut Body) {
        let mut taken = BTreeSet::new();
        let at: &Fault = options.at;
        for step in body.steps.iter().filter(|step| !step.name.is_empty()) {
            if !taken.insert(step.name.clone()) {
                self.fault(at, format!("{}: there are two steps \"{}\"", options.of, step.name));
            }
        }
        for (index, base) in &body.unnamed {
            let base = if base.is_empty() { format!("step-{}", index + 1) } else { base.clone() };
            let name = names::unique(&base, &taken);
            taken.insert(name.clone());
            body.steps[*index].name = name;
        }
    }
}

fn push(body: &mut Body, step: Step, name: Option<String>, base: &str, code: StepCode) {
    if name.is_none() {
        // Functions written in place have no name, or the name of the property they are in.
        let base = if base == "run" { "" } else { base };
        body.unnamed.push((body.steps.len(), base.to_owned()));
    }
    body.steps.push(Step { name: name.unwrap_or_default(), ..step });
    body.code.push(code);
}
