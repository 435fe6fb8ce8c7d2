//! What authors get wrong, and what they are told.

use insta::assert_snapshot;

use crate::{evaluate_files, evaluate_one, faults_of};

fn faults(body: &str) -> String {
    faults_of(evaluate_one(body))
}

/// The messages for these job options, without their place.
fn job_faults(options: &str) -> String {
    let text = faults(&format!("export default workflow('w', {{ jobs: [job('j', {options})] }});"));
    let messages =
        text.lines().filter_map(|line| line.strip_prefix(".shuntyard/workflows/w.ts:3:39: "));
    messages.collect::<Vec<_>>().join("\n")
}

#[test]
fn syntax_errors_show_the_line() {
    assert_snapshot!(faults_of(evaluate_files(&[("workflows/a.ts", "const a: number = 1;\nconst b = [1, 2;\n")])), @r#"
    .shuntyard/workflows/a.ts:2:16: Expected `,` or `]` but found `;`
      2 | const b = [1, 2;
        |                ^
    "#);
}

#[test]
fn thrown_errors_show_the_typescript_line() {
    let text = faults(
        "interface Long {\n  a: string;\n}\n\nfunction boom(x: Long): never {\n  throw new TypeError('bad ' + x.a);\n}\nboom({ a: 'luck' });",
    );
    assert_snapshot!(text, @r#"
    .shuntyard/workflows/w.ts:8:32: TypeError: bad luck
      8 |   throw new TypeError('bad ' + x.a);
        |                                ^
    "#);
}

#[test]
fn faults_of_all_files_come_together() {
    let text = faults_of(evaluate_files(&[
        (
            "workflows/a.ts",
            "import { workflw, job } from 'shuntyard';\nimport x from '../../etc/passwd';\nimport y from './missing';\nworkflw(job, x, y);",
        ),
        (
            "workflows/b.ts",
            "import fs from 'file:///etc/passwd';\nimport c from 'node:child_process';\nimport l from 'lodash';\nimport k from '@kici-dev/sdk';\nfs(c, l, k);",
        ),
        ("workflows/c.ts", "let = ;"),
    ]));
    assert_snapshot!(text, @r#"
    .shuntyard/workflows/a.ts:1:10: "shuntyard" has no export "workflw"; did you mean "workflow"?
      1 | import { workflw, job } from 'shuntyard';
        |          ^
    .shuntyard/workflows/a.ts:2:15: cannot import "../../etc/passwd": it is outside the workflow folder, and only files of that folder are known at this point; move it below .shuntyard or read it in a step
      2 | import x from '../../etc/passwd';
        |               ^
    .shuntyard/workflows/a.ts:3:15: cannot import "./missing": there is no .shuntyard/workflows/missing in the workflow folder; did you mean ".shuntyard/workflows/a.ts"?
      3 | import y from './missing';
        |               ^
    .shuntyard/workflows/b.ts:1:16: cannot import "file:///etc/passwd": workflow files import each other by relative paths, never by absolute ones
      1 | import fs from 'file:///etc/passwd';
        |                ^
    .shuntyard/workflows/b.ts:2:15: cannot import "node:child_process": of Node's modules only node:fs, node:fs/promises, node:path and node:os are built in
      2 | import c from 'node:child_process';
        |               ^
    .shuntyard/workflows/b.ts:3:15: cannot import "lodash": packages are not supported yet; use "shuntyard" or a relative path such as "./helper"
      3 | import l from 'lodash';
        |               ^
    .shuntyard/workflows/b.ts:4:15: cannot import "@kici-dev/sdk": that SDK is not supported yet; import from "shuntyard"
      4 | import k from '@kici-dev/sdk';
        |               ^
    .shuntyard/workflows/c.ts:1:7: Unexpected token
      1 | let = ;
        |       ^
    "#);
}

#[test]
fn several_mistakes_are_reported_at_their_calls() {
    let text = faults(
        "const a = job('a', { neds: [], timeout: 30, run: sh('x') });
const b = job('b', { needs: ['aa', a], steps: [], run: sh('x') });
export default workflow('w', {
  on: 'push',
  jobs: [a, b, job('a', { run: sh('') })],
});",
    );
    assert_snapshot!(text, @r#"
    .shuntyard/workflows/w.ts:3:11: job "a" has no option "neds"; did you mean "needs"?
      3 | const a = job('a', { neds: [], timeout: 30, run: sh('x') });
        |           ^
    .shuntyard/workflows/w.ts:3:11: job "a": "timeout": 30 is 30 ms; write "30s"
      3 | const a = job('a', { neds: [], timeout: 30, run: sh('x') });
        |           ^
    .shuntyard/workflows/w.ts:4:11: job "b" has "steps" and "run"; one of them is enough
      4 | const b = job('b', { needs: ['aa', a], steps: [], run: sh('x') });
        |           ^
    .shuntyard/workflows/w.ts:4:11: job "b" needs "aa", and the workflow has no such job; did you mean "a"?
      4 | const b = job('b', { needs: ['aa', a], steps: [], run: sh('x') });
        |           ^
    .shuntyard/workflows/w.ts:5:16: workflow "w": a trigger is written as a call: on: push()
      5 | export default workflow('w', {
        |                ^
    .shuntyard/workflows/w.ts:7:16: there are two jobs "a"; names are unique in a workflow
      7 |   jobs: [a, b, job('a', { run: sh('') })],
        |                ^
    .shuntyard/workflows/w.ts:7:32: sh("sh"): a command has 1 to 65536 bytes and no NUL character
      7 |   jobs: [a, b, job('a', { run: sh('') })],
        |                                ^
    "#);
}

#[test]
fn what_is_not_supported_yet_is_named() {
    assert_snapshot!(job_faults("{ run: sh('x'), container: 'node', services: {}, matrix: () => [], runsOnAll: 'x', cache: 1, runsOn: { labels: 'a', pick: 'stable' }, checkout: { lfs: true } }"), @r#"
    job "j": "container" is not supported yet
    job "j": "services" is not supported yet
    job "j": "runsOnAll" is not supported yet
    job "j": "cache" is not supported yet
    job "j": "runsOn": "pick" is not supported yet
    job "j": a matrix that is a function is not supported yet
    job "j": "checkout": "lfs" is not supported yet
    "#);
    assert_snapshot!(faults("export default workflow('w', { on: [sdk.release(), manual({ inputs: {} })], rules: [], environment: 'x', jobs: [() => [], sdk.invoke('x'), job({ needs: sdk.dynamicGroup('g'), steps: [step('s', { check: () => {}, run: () => {} })] })] });"), @r#"
    .shuntyard/workflows/w.ts:3:16: workflow "w": "rules" is not supported yet
      3 | export default workflow('w', { on: [sdk.release(), manual({ inputs: {} })], rules: [], environment: 'x', jobs: [() => [], sdk.invoke('x'), job({ needs: sdk.dyna
        |                ^
    .shuntyard/workflows/w.ts:3:16: workflow "w": "environment" is not supported yet
      3 | export default workflow('w', { on: [sdk.release(), manual({ inputs: {} })], rules: [], environment: 'x', jobs: [() => [], sdk.invoke('x'), job({ needs: sdk.dyna
        |                ^
    .shuntyard/workflows/w.ts:3:16: workflow "w": a job generator (a function in "jobs") is not supported yet
      3 | export default workflow('w', { on: [sdk.release(), manual({ inputs: {} })], rules: [], environment: 'x', jobs: [() => [], sdk.invoke('x'), job({ needs: sdk.dyna
        |                ^
    .shuntyard/workflows/w.ts:3:16: workflow "w": invoke() is not supported yet
      3 | export default workflow('w', { on: [sdk.release(), manual({ inputs: {} })], rules: [], environment: 'x', jobs: [() => [], sdk.invoke('x'), job({ needs: sdk.dyna
        |                ^
    .shuntyard/workflows/w.ts:3:16: workflow "w": release() is not supported yet
      3 | export default workflow('w', { on: [sdk.release(), manual({ inputs: {} })], rules: [], environment: 'x', jobs: [() => [], sdk.invoke('x'), job({ needs: sdk.dyna
        |                ^
    .shuntyard/workflows/w.ts:3:52: manual(): "inputs" is not supported yet
      3 | export default workflow('w', { on: [sdk.release(), manual({ inputs: {} })], rules: [], environment: 'x', jobs: [() => [], sdk.invoke('x'), job({ needs: sdk.dyna
        |                                                    ^
    .shuntyard/workflows/w.ts:3:140: job "job-1": dynamicGroup() is not supported yet
      3 | export default workflow('w', { on: [sdk.release(), manual({ inputs: {} })], rules: [], environment: 'x', jobs: [() => [], sdk.invoke('x'), job({ needs: sdk.dyna
        |                                                                                                                                            ^
    .shuntyard/workflows/w.ts:3:184: step "s": "check" is not supported yet
      3 | export default workflow('w', { on: [sdk.release(), manual({ inputs: {} })], rules: [], environment: 'x', jobs: [() => [], sdk.invoke('x'), job({ needs: sdk.dyna
        |                                                                                                                                                                 ^
    "#);
}

#[test]
fn concurrency_groups_are_checked() {
    assert_snapshot!(job_faults("{ run: sh('x'), concurrencyGroup: 'a', concurrency: { max: 0, size: 2 } }"), @r#"job "j": "concurrencyGroup" and "concurrency" are the same; write one"#);
    assert_snapshot!(job_faults("{ run: sh('x'), concurrency: { max: 0, size: 2 } }"), @r#"
    job "j": "concurrency" has no option "size"
    job "j": "concurrency": "max" is a whole number from 1 to 1000, got 0
    job "j": "concurrency": "group" is missing: { group: "deploy" }
    "#);
    assert_snapshot!(job_faults("{ run: sh('x'), concurrencyGroup: { group: () => 'x' } }"), @r#"job "j": "concurrencyGroup": "group" as a function is not supported yet"#);
    assert_snapshot!(job_faults("{ run: sh('x'), concurrencyGroup: 3 }"), @r#"job "j": "concurrencyGroup" is the name of a concurrency group, got 3"#);
}

#[test]
fn durations_are_checked() {
    for (timeout, expected) in [
        ("30", "30 is 30 ms; write \"30s\""),
        ("0", "0 is 0 ms; write \"0s\""),
        ("-1", "-1 is negative"),
        ("'25d'", "longer than 24 days"),
        ("'5 parsecs'", "\"5 parsecs\" is not a duration; write \"90s\", \"10m\" or \"1h30m\""),
        ("null", "a duration is a string such as \"90s\", got null"),
    ] {
        let text = job_faults(&format!("{{ run: sh('x'), timeout: {timeout} }}"));
        assert_eq!(text, format!("job \"j\": \"timeout\": {expected}"));
    }
    assert!(job_faults("{ run: sh('x'), gracePeriod: 30 }").contains("write \"30s\""));
}

#[test]
fn wrong_kinds_are_named() {
    assert_snapshot!(job_faults("{ run: sh('x'), env: { 'a-b': 1, C: {} }, priority: 101, retry: 0, continueOnError: 'yes', needs: 'j', matrix: { os: [] }, runsOn: [], checkout: 1 }"), @r#"
    job "j": "runsOn" is empty; leave it out to run anywhere
    job "j" needs itself
    job "j": "matrix.os" holds 1 to 256 values, got 0
    job "j": "a-b" is no name for a variable: letters, digits and _, and no digit first
    job "j": "env.C" is a string, a number or a boolean, got an object
    job "j": "checkout" is true, false or { depth, submodules }, got 1
    job "j": "retry" is a whole number from 1 to 100, got 0
    job "j": "continueOnError" is true or false, got "yes"
    job "j": "priority" is a whole number from -100 to 100, got 101
    "#);
    assert_snapshot!(job_faults("{ run: sh('x'), runsOn: /(?=x)/, retry: { maxAttempts: 2, on: ['skipped'] }, matrix: { os: ['a'], include: [{ a: 1 }] }, exclude: [{ arch: 1 }], needs: [{ name: 'j', when: 'sometimes' }] }"), @r#"
    job "j": "runsOn": /(?=x)/ uses look-around, which the linear engine for patterns does not have
    job "j": "needs.when" is one of on-success, always, on-skip, on-failure, or a list of success, failed, timed_out, cancelled, skipped, lost, got "sometimes"
    job "j": write "include" beside "matrix", not inside it
    job "j": "exclude" names "arch", which is no axis of the matrix
    job "j": "retry": "on" lists failed, timed_out and lost, got "skipped"
    "#);
    assert_snapshot!(job_faults("{ steps: ['make', 5, parallel([parallel([sh('a')])]), sh('a', 'x'), sh('a', 'y'), sh('z', { cwd: '../x', shell: 'fish' }), step('q', { outputs: z.object({ a: z.boolean().min(1) }) })] }"), @r#"
    job "j": a command is written sh("make")
    job "j": "steps" is made of step(), sh(), parallel() and functions, got 5
    job "j": there are two steps "a"
    "#);
    assert_snapshot!(job_faults("{ run: sh('x'), env: Promise.resolve({}) }"), @r#"
    job "j": "env" is an object of strings, got a promise (await it first)
    "#);
}

#[test]
fn names_are_checked() {
    let long = "x".repeat(101);
    assert!(
        faults(&format!(
            "export default workflow('{long}', {{ jobs: [job({{ run: sh('x') }})] }});"
        ))
        .contains("1 to 100 characters, this one has 101")
    );
    let fits = "x".repeat(100);
    assert!(
        evaluate_one(&format!(
            "export default workflow('{fits}', {{ jobs: [job({{ run: sh('x') }})] }});"
        ))
        .is_ok()
    );
    assert!(
        faults("export default workflow('a\\nb', { jobs: [job({ run: sh('x') })] });")
            .contains("control character")
    );
    assert!(
        faults("export default workflow({ jobs: [job({ run: sh('x') })] });")
            .contains("begins with its name")
    );
    let twice = "const jobs = [job({ run: sh('x') })]; export const a = workflow('w', { jobs }); export const b = workflow('w', { jobs });";
    assert!(faults(twice).contains("workflow \"w\" exists twice"));
}

#[test]
fn results_cannot_be_touched_while_planning() {
    let text = faults(
        "const s = step('s', async () => ({ x: 1 }));\nexport default workflow('w', { jobs: [job('j', { env: { X: s.result.x }, steps: [s] })] });",
    );
    assert_snapshot!(text, @r#"
    .shuntyard/workflows/w.ts:4:60: Error: the result of a step exists only while the run is under way: read it inside a step function, not while the workflow is planned
      4 | export default workflow('w', { jobs: [job('j', { env: { X: s.result.x }, steps: [s] })] });
        |                                                            ^
    "#);
}

#[test]
fn the_world_outside_does_not_exist_while_planning() {
    for (call, expected) in [
        (
            "setTimeout(() => {}, 1)",
            "setTimeout does not exist while the workflow is planned: use it inside a step function",
        ),
        ("fetch('http://x')", "fetch does not exist while the workflow is planned"),
        ("process.env.HOME", "process.env does not exist while the workflow is planned"),
        ("require('fs')", "require is not defined"),
        ("await import('node:net')", "cannot import \"node:net\""),
        ("await import('../../../etc/passwd')", "outside the workflow folder"),
        ("await import('shuntyard:host')", "cannot import \"shuntyard:host\""),
        (
            "(await import('node:fs')).readFileSync('/etc/passwd')",
            "node:fs does not exist while the workflow is planned",
        ),
    ] {
        let text = faults(&format!("{call};"));
        assert!(text.contains(expected), "{call}: {text}");
        assert!(text.starts_with(".shuntyard/workflows/w.ts"), "{call}: {text}");
    }
}
