//! The engine child that runs a job's functions, spoken to as a supervisor does.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use serde_json::{Value, json};
use shuntyard_protocol::{
    Outcome,
    agent::Upstream,
    frame,
    runner::{FromRunner, RunStep, StepDone, ToRunner},
};

use crate::{bundle, launcher};

/// A running child, and what it said.
pub(crate) struct Runner {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    workspace: tempfile::TempDir,
    /// Log bytes by step.
    pub(crate) output: BTreeMap<u32, Vec<u8>>,
    /// `SetEnv` and `AddPath` frames, as text.
    changes: Vec<String>,
}

impl Runner {
    /// Starts the child and loads job `j` of workflow `w`.
    pub(crate) fn load(body: &str, needs: &[(&str, Outcome, Value)]) -> Result<Self, String> {
        let mut child = Command::new(launcher("runner").program)
            .arg("runner")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        let workspace = tempfile::tempdir().unwrap();
        let (output, changes) = (BTreeMap::new(), Vec::new());
        let mut runner = Self { child, stdin, stdout, workspace, output, changes };
        let source = format!(
            "import * as sdk from 'shuntyard';\nconst {{ workflow, job, step, sh, parallel, z }} = sdk;\n{body}"
        );
        let needs = needs.iter().map(|(name, outcome, outputs)| {
            ((*name).to_owned(), Upstream { outcome: *outcome, outputs: outputs.clone() })
        });
        let load = ToRunner::Load {
            file: ".shuntyard/workflows/w.ts".to_owned(),
            workflow: "w".to_owned(),
            job: "j".to_owned(),
            context: json!({"matrix": {"os": "linux"}, "job": {"name": "j"}, "attempt": 1}),
            needs: needs.collect(),
        };
        runner.send(&load, &bundle(&[("workflows/w.ts", &source)]).to_json());
        match runner.next() {
            FromRunner::Ready {} => Ok(runner),
            FromRunner::LoadFailed { message } => Err(message),
            other => panic!("{other:?}"),
        }
    }

    /// A runner of a job with these steps.
    pub(crate) fn steps(steps: &str) -> Self {
        let body = format!(
            "export default workflow('w', {{ jobs: [job('j', {{ steps: [{steps}] }})] }});"
        );
        Self::load(&body, &[]).unwrap()
    }

    pub(crate) fn send(&mut self, header: &ToRunner, payload: &[u8]) {
        let body = frame::encode(header, payload).unwrap();
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(&[&length[..], &body].concat()).unwrap();
    }

    pub(crate) fn next(&mut self) -> FromRunner {
        let mut length = [0; 4];
        self.stdout.read_exact(&mut length).unwrap();
        let mut body = vec![0; u32::from_be_bytes(length) as usize];
        self.stdout.read_exact(&mut body).unwrap();
        let (header, payload) = frame::decode::<FromRunner>(&body).unwrap();
        if let FromRunner::Output { step } = header {
            self.output.entry(step).or_default().extend_from_slice(payload);
        }
        header
    }

    pub(crate) fn start(&mut self, step: u32, outputs: &Value) {
        let env = BTreeMap::from([
            ("PATH".to_owned(), std::env::var("PATH").unwrap()),
            ("GREETING".to_owned(), "hi".to_owned()),
        ]);
        let workspace = self.workspace.path().display().to_string();
        let outputs = serde_json::from_value(outputs.clone()).unwrap();
        self.send(&ToRunner::Step(RunStep { step, try_no: 1, env, workspace, outputs }), &[]);
    }

    /// Reads frames until a step is done.
    pub(crate) fn done(&mut self) -> StepDone {
        loop {
            match self.next() {
                FromRunner::Done(done) => return done,
                FromRunner::SetEnv { name, value, .. } => {
                    self.changes.push(format!("{name}={value}"));
                }
                FromRunner::AddPath { path, .. } => self.changes.push(format!("path {path}")),
                FromRunner::Output { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn run(&mut self, step: u32) -> StepDone {
        self.start(step, &json!({}));
        self.done()
    }

    /// Runs a step that has to succeed, and returns its outputs.
    pub(crate) fn succeed(&mut self, step: u32) -> Value {
        let done = self.run(step);
        assert!(done.error.is_none(), "{:?}\n{}", done.error, self.text(step));
        done.outputs.unwrap_or(Value::Null)
    }

    /// Runs a step that has to fail, and returns the message.
    pub(crate) fn fail(&mut self, step: u32) -> String {
        self.run(step).error.expect("the step fails").message
    }

    pub(crate) fn text(&self, step: u32) -> String {
        String::from_utf8_lossy(self.output.get(&step).map_or(&[][..], Vec::as_slice)).into_owned()
    }

    /// Ends the child as a supervisor that goes away does.
    pub(crate) fn close(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }

    pub(crate) fn workspace(&self) -> &Path {
        self.workspace.path()
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The outputs of a single step with this function.
pub(crate) fn outputs_of(function: &str) -> Value {
    Runner::steps(function).succeed(0)
}

/// The error of a single step with this function.
pub(crate) fn error_of(function: &str) -> String {
    Runner::steps(function).fail(0)
}

#[test]
fn a_step_runs_commands_and_returns_outputs() {
    let mut runner = Runner::steps(
        "async ({ $, log, env, matrix }) => {
           log('on', matrix.os); log.warn('careful');
           const { stdout, exitCode } = await $`echo ${env.GREETING}; echo err >&2; pwd`;
           return { lines: stdout.split('\\n').slice(0, 1), exitCode, one: await $`printf one`.text() };
         }",
    );
    assert_eq!(runner.succeed(0), json!({"lines": ["hi"], "exitCode": 0, "one": "one"}));
    let text = runner.text(0);
    assert!(text.contains("on linux\nwarning: careful\n") && text.contains("err\n"), "{text}");
    assert!(text.contains(runner.workspace().file_name().unwrap().to_str().unwrap()), "{text}");
    runner.close();
}

#[test]
fn interpolations_are_quoted_exactly() {
    let nasty = json!([
        "a b", "it's", "$HOME", "`id`", "x;y", "", "*", "-n", "a\nb", "\"q\"", "\\", "ü", "!"
    ]);
    let outputs = outputs_of(&format!(
        "async ({{ $ }}) => {{
           const words = {nasty};
           const all = await $`printf '%s\\0' ${{words}}`.quiet();
           return {{ words: all.stdout.split('\\0').slice(0, -1), one: (await $`printf %s ${{words[1]}}`.quiet()).stdout,
                    num: await $`echo ${{1.5}} ${{true}}`.text(), nested: await $`echo ${{await $`printf 'a b\\n'`}}x`.text(),
                    none: await $`echo ${{[]}}end`.text() }};
         }}"
    ));
    assert_eq!(outputs["words"], nasty);
    assert_eq!(outputs["one"], "it's");
    assert_eq!(outputs["num"], "1.5 true");
    assert_eq!(outputs["nested"], "a bx");
    assert_eq!(outputs["none"], "end");
}

#[test]
fn values_that_mean_nothing_in_a_command_are_errors() {
    for (value, what) in [
        ("undefined", "undefined"),
        ("null", "null"),
        ("{ a: 1 }", "an object"),
        ("() => 1", "function"),
    ] {
        let message =
            error_of(&format!("async ({{ $ }}) => {{ await $`echo ${{'a'}} ${{{value}}}`; }}"));
        assert!(message.contains(&format!("value 2 of the command is {what}")), "{message}");
    }
    assert!(
        error_of("async ({ $ }) => { await $`echo \"${'a b'}\"`; }").contains("is inside quotes")
    );
    assert!(error_of("async ({ $ }) => { await $`echo ${'a\\0'}`; }").contains("NUL"));
    assert!(error_of("async ({ $ }) => { await $('ls'); }").contains("template tag"));
}

#[test]
fn a_failing_command_fails_the_step_with_its_code_and_line() {
    let mut runner = Runner::steps(
        "async ({ $ }) => {\n  await $`echo before`;\n  await $`false | true; exit 3`;\n}, async ({ $ }) => { await $`kill -TERM $$`; }",
    );
    let done = runner.run(0);
    let error = done.error.unwrap();
    assert_eq!(error.exit_code, Some(1));
    assert!(
        error
            .message
            .starts_with("CommandError: command failed with exit code 1: false | true; exit 3"),
        "{}",
        error.message
    );
    assert!(error.message.contains(".shuntyard/workflows/w.ts:5:"), "{}", error.message);
    assert!(!error.message.contains("shuntyard:"), "{}", error.message);
    let error = runner.run(1).error.unwrap();
    assert_eq!(error.exit_code, Some(143));
    assert!(error.message.contains("command was ended by SIGTERM"), "{}", error.message);
}

#[test]
fn nothrow_quiet_timeout_and_sh_do_what_they_say() {
    let mut runner = Runner::steps(
        "async ({ $, sh }) => {
           const bad = await $`echo loud; exit 7`.nothrow().quiet();
           const json = await sh(`echo '{\"a\": [1]}'`, { quiet: true });
           let late = '';
           try { await $`sleep 60`.timeout('200ms'); } catch (error) { late = error.message; }
           return { code: bad.exitCode, out: bad.text(), json: json.json(), late, lines: (await $`printf 'a\\nb\\n'`.quiet()).lines() };
         }",
    );
    assert_eq!(
        runner.succeed(0),
        json!({"code": 7, "out": "loud", "json": {"a": [1]}, "late": "command did not end within 200 ms: sleep 60", "lines": ["a", "b"]})
    );
    assert_eq!(runner.text(0), "");
}

#[test]
fn bytes_survive_untouched() {
    let mut runner = Runner::steps(
        "async ({ $ }) => { await $`printf '\\377\\000\\r\\033[1m'; head -c 3000000 /dev/zero | tr '\\0' x`; }",
    );
    runner.succeed(0);
    let output = &runner.output[&0];
    assert_eq!(&output[..7], b"\xff\0\r\x1b[1m");
    assert_eq!(output.len(), 7 + 3_000_000);
}

#[test]
fn variables_and_paths_change_for_later_commands() {
    let mut runner = Runner::steps(
        "async ({ $, setEnv, addPath, env }) => {
           setEnv('GREETING', 'bye'); addPath('/opt/tool/bin');
           return { env: await $`echo $GREETING`.text(), path: (await $`echo $PATH`.text()).startsWith('/opt/tool/bin:') };
         }",
    );
    assert_eq!(runner.succeed(0), json!({"env": "bye", "path": true}));
    assert_eq!(runner.changes, ["GREETING=bye", "path /opt/tool/bin"]);
    assert!(
        error_of("async ({ setEnv }) => setEnv('a-b', '1')").contains("no name for a variable")
    );
}

#[test]
fn results_of_steps_and_jobs_are_read_where_they_exist() {
    let body = "const up = job('up', { steps: [step('make', { run: async () => ({}) })] });
                const flat = job('flat', { run: async () => ({}) });
                const gone = job('gone', { steps: [sh('x')] });
                const far = job('far', { run: async () => ({}) });
                const a = step('a', async () => ({ x: 1 }));
                export default workflow('w', { jobs: [up, flat, gone, far, job('j', { needs: [up, flat, { job: gone, when: 'always' }], steps: [
                  a,
                  async ({ needs, outputsOf }) => ({ x: a.result.x, v: up.result.make.v, f: flat.result.f, g: gone.result.any.thing ?? 'none',
                                          o: outputsOf('a').x, n: needs.up.outcome, s: outputsOf('shelly').y }),
                  async () => far.result.x,
                  step('later', async () => ({ y: later2.result.x })),
                  sh('shelly', 'true'),
                ] })] });
                const later2 = step('other', async () => {});";
    let needs = [
        ("up", Outcome::Success, json!({"make": {"v": "1.0"}})),
        ("flat", Outcome::Success, json!({"f": [true]})),
        ("gone", Outcome::Skipped, Value::Null),
    ];
    let mut runner = Runner::load(body, &needs).unwrap();
    assert_eq!(runner.succeed(0), json!({"x": 1}));
    runner.start(1, &json!({"a": {"x": 1}, "shelly": {"y": "from the file"}}));
    let done = runner.done();
    assert_eq!(
        done.outputs,
        Some(
            json!({"x": 1, "v": "1.0", "f": [true], "g": "none", "o": 1, "n": "success", "s": "from the file"})
        ),
        "{:?}",
        done.error
    );
    let message = runner.fail(2);
    assert!(
        message.contains("job \"j\" reads outputs of \"far\", which is not in its \"needs\""),
        "{message}"
    );
    assert!(runner.fail(3).contains("a step of another job"));
    assert!(runner.fail(4).contains("no function for this step"));
}

#[test]
fn outputs_are_checked() {
    let schema = "outputs: z.object({ version: z.string(), n: z.number().default(2) })";
    let step = |run: &str| format!("step('s', {{ {schema}, run: {run} }})");
    assert_eq!(
        outputs_of(&step("async () => ({ version: 'v1' })")),
        json!({"version": "v1", "n": 2})
    );
    assert!(
        error_of(&step("async () => ({ version: 7 })"))
            .contains("outputs.version is a string, got 7")
    );
    assert!(error_of(&step("async () => {}")).contains("outputs.version is missing"));
    assert!(error_of("async () => ({ a: new Map() })").contains("outputs.a is a Map"));
    assert!(error_of("async () => ({ a: [() => 1] })").contains("outputs.a[0] is a function"));
    assert!(error_of("async () => 5").contains("returns its outputs as an object, got number"));
    assert!(
        error_of("async () => ({ a: 'x'.repeat(256 * 1024) })").contains("at most 262144 bytes")
    );
    assert_eq!(outputs_of("async ({ $ }) => $`true`"), Value::Null);
}

#[test]
fn errors_keep_their_typescript_lines_and_causes() {
    let message = error_of(
        "async () => {\n  const f = (x: number): never => {\n    throw new Error('inner ' + x);\n  };\n  try { f(1); } catch (error) { throw new TypeError('outer', { cause: error }); }\n}",
    );
    assert!(message.starts_with("TypeError: outer\n"), "{message}");
    assert!(message.contains("caused by: Error: inner 1\n"), "{message}");
    assert!(message.contains(".shuntyard/workflows/w.ts:5:"), "{message}");
    assert!(error_of("async () => { throw 'text'; }").contains("thrown: text"));
    assert!(
        error_of("async () => { throw { get name() { throw 1; } }; }").contains("cannot be shown")
    );
}

#[test]
fn parallel_steps_run_at_the_same_time() {
    let mut runner = Runner::steps("parallel([
        step('a', async ({ $ }) => { await $`while [ ! -e b-was-here ]; do sleep 0.05; done; echo from-a`; }),
        step('b', async ({ $ }) => { await $`touch b-was-here; echo from-b`; }),
    ])");
    runner.start(0, &json!({}));
    runner.start(1, &json!({}));
    let (first, second) = (runner.done(), runner.done());
    assert!(first.error.is_none() && second.error.is_none(), "{first:?} {second:?}");
    assert_eq!((runner.text(0).as_str(), runner.text(1).as_str()), ("from-a\n", "from-b\n"));
}

#[test]
fn timers_and_text_exist() {
    let outputs = outputs_of(
        "async () => {
           const seen = [];
           await new Promise((done) => { const t = setInterval(() => { seen.push('tick'); if (seen.length === 2) { clearInterval(t); done(); } }, 5); });
           clearTimeout(setTimeout(() => seen.push('never'), 1));
           await new Promise((done) => setTimeout(done, 20, 1));
           queueMicrotask(() => seen.push('micro'));
           await null;
           const text = new TextDecoder().decode(new TextEncoder().encode('ü'));
           return { seen, text, platform: typeof process.platform, cwd: process.cwd().length > 1, env: process.env.GREETING };
         }",
    );
    assert_eq!(
        outputs,
        json!({"seen": ["tick", "tick", "micro"], "text": "ü", "platform": "string", "cwd": true, "env": "hi"})
    );
}

#[test]
fn files_are_those_of_the_workspace() {
    let body = "import fs, { readFileSync, promises } from 'node:fs';\nimport * as path from 'node:path';\nimport os from 'node:os';\nimport { readFile } from 'node:fs/promises';
        export default workflow('w', { jobs: [job('j', { steps: [async () => {
          fs.mkdirSync('a/b', { recursive: true });
          fs.writeFileSync(path.join('a', 'b', 'c.txt'), 'ü1');
          fs.appendFileSync('a/b/c.txt', '2');
          const text = readFileSync('a/b/c.txt', 'utf8');
          let code; try { readFileSync('missing'); } catch (error) { code = error.code + ': ' + error.message; }
          const facts = { text, bytes: readFileSync('a/b/c.txt').length, names: fs.readdirSync('a'), size: fs.statSync('a/b/c.txt').size,
            folder: fs.statSync('a').isDirectory(), async: await readFile('a/b/c.txt', 'utf8'), same: promises.readFile === readFile,
            code, ext: path.extname('x/y.tar.gz'), rel: path.relative('/a/b', '/a/c'), cpus: os.availableParallelism() > 0 };
          fs.rmSync('a', { recursive: true });
          fs.rmSync('a', { force: true });
          return { ...facts, left: fs.existsSync('a') };
        }] })] });";
    let mut runner = Runner::load(body, &[]).unwrap();
    assert_eq!(
        runner.succeed(0),
        json!({"text": "ü12", "bytes": 4, "names": ["b"], "size": 4, "folder": true, "async": "ü12", "same": true,
               "code": "ENOENT: cannot read missing: No such file or directory (os error 2)", "ext": ".gz", "rel": "../c", "cpus": true, "left": false})
    );
}

#[test]
fn a_job_that_is_not_there_is_a_clear_error() {
    let message = Runner::load(
        "export default workflow('w', { jobs: [job('k', { run: async () => {} })] });",
        &[],
    )
    .err()
    .unwrap();
    assert!(message.contains("no longer has the job \"j\""), "{message}");
    let message = Runner::load("throw new Error('at load');", &[]).err().unwrap();
    assert!(message.contains("w.ts:3:") && message.contains("Error: at load"), "{message}");
    let message = Runner::load("const x = ;", &[]).err().unwrap();
    assert!(message.contains("Unexpected token"), "{message}");
}

#[test]
fn state_of_the_module_is_shared_by_the_steps_of_a_job() {
    let mut runner = Runner::load("let n = 0; const count = async () => ({ n: (n += 1) }); export default workflow('w', { jobs: [job('j', { steps: [count, count] })] });", &[]).unwrap();
    assert_eq!(runner.succeed(0), json!({"n": 1}));
    assert_eq!(runner.succeed(1), json!({"n": 2}));
    // Another try of the same step.
    assert_eq!(runner.succeed(1), json!({"n": 3}));
}
