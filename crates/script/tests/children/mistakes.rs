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
        text.lines().filter_map(|line| line.strip_prefix(".shuntyard/workflows/w.ts:3:44: "));
    messages.collect::<Vec<_>>().join("\n")
}

#[test]
fn syntax_errors_show_the_line() {
    assert_snapshot!(faults_of(evaluate_files(&[("workflows/a.ts", "const a: number = 1;\nconst b = [1, 2;\n")])), @"");
}

#[test]
fn thrown_errors_show_the_typescript_line() {
    let text = faults(
        "interface Long {\n  a: string;\n}\n\nfunction boom(x: Long): never {\n  throw new TypeError('bad ' + x.a);\n}\nboom({ a: 'luck' });",
    );
    assert_snapshot!(text, @"");
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
    assert_snapshot!(text, @"");
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
    assert_snapshot!(text, @"");
}

#[test]
fn what_is_not_supported_yet_is_named() {
    assert_snapshot!(job_faults("{ run: sh('x'), container: 'node', services: {}, matrix: () => [], runsOnAll: 'x', cache: 1, runsOn: { labels: 'a', pick: 'stable' }, checkout: { lfs: true } }"), @"");
    assert_snapshot!(faults("export default workflow('w', { on: [sdk.release(), manual({ inputs: {} })], rules: [], concurrency: 'x', jobs: [() => [], sdk.invoke('x'), job({ needs: sdk.dynamicGroup('g'), steps: [step('s', { check: () => {}, run: () => {} })] })] });"), @"");
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
    assert_snapshot!(job_faults("{ run: sh('x'), env: { 'a-b': 1, C: {} }, priority: 101, retry: 0, continueOnError: 'yes', needs: 'j', matrix: { os: [] }, runsOn: [], checkout: 1 }"), @"");
    assert_snapshot!(job_faults("{ run: sh('x'), runsOn: /(?=x)/, retry: { maxAttempts: 2, on: ['skipped'] }, matrix: { os: ['a'], include: [{ a: 1 }] }, exclude: [{ arch: 1 }], needs: [{ name: 'j', when: 'sometimes' }] }"), @"");
    assert_snapshot!(job_faults("{ steps: ['make', 5, parallel([parallel([sh('a')])]), sh('a', 'x'), sh('a', 'y'), sh('z', { cwd: '../x', shell: 'fish' }), step('q', { outputs: z.object({ a: z.boolean().min(1) }) })] }"), @"");
    assert_snapshot!(job_faults("{ run: sh('x'), env: Promise.resolve({}) }"), @"");
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
    assert_snapshot!(text, @"");
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
