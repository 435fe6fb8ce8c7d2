//! What authors write, and the plan it gives.

use insta::assert_json_snapshot;
use serde_json::{Value, json};

use crate::{evaluate_files, evaluate_one, plan_of};

#[test]
fn a_small_workflow_is_planned_completely() {
    let plan = plan_of(
        "const build = job('build', { steps: [sh('make'), step('test', async ({ $ }) => { await $`make test`; })] });
         const ship = job('ship', { needs: build, run: async () => ({ url: 'x' }) });
         export default workflow('ci', { on: [push({ branches: 'main' }), pr()], jobs: [build, ship] });",
    );
    assert_json_snapshot!(plan, @r#"
    [
      {
        "file": ".shuntyard/workflows/w.ts",
        "jobs": [
          {
            "checkout": {
              "depth": 1,
              "enabled": true
            },
            "name": "build",
            "steps": [
              {
                "action": {
                  "command": "make",
                  "type": "shell"
                },
                "name": "make"
              },
              {
                "action": {
                  "type": "function"
                },
                "name": "test"
              }
            ]
          },
          {
            "checkout": {
              "depth": 1,
              "enabled": true
            },
            "name": "ship",
            "needs": [
              {
                "job": "build",
                "when": [
                  "success"
                ]
              }
            ],
            "single": true,
            "steps": [
              {
                "action": {
                  "type": "function"
                },
                "name": "run"
              }
            ]
          }
        ],
        "name": "ci",
        "on": [
          {
            "branches": [
              "main"
            ],
            "type": "push"
          },
          {
            "type": "pr"
          }
        ]
      }
    ]
    "#);
}

#[test]
fn every_export_that_is_a_workflow_counts_once() {
    let evaluated = evaluate_files(&[
        (
            "workflows/a.ts",
            "import { workflow, job, sh } from 'shuntyard';\nimport { shared } from '../lib/shared.ts';\n\
             const jobs = [job({ run: sh('true') })];\n\
             export const zebra = workflow('z', { jobs });\nexport const alpha = workflow('a', { jobs });\n\
             export { zebra as again, shared };\nexport const helper = 5;\nexport default zebra;",
        ),
        ("workflows/b.mjs", "export { shared as mine } from '../lib/shared.ts';"),
        (
            "lib/shared.ts",
            "import { workflow, job, sh } from 'shuntyard';\n\
             export const shared = workflow('shared', { jobs: [job({ run: sh('true') })] });",
        ),
    ])
    .unwrap();
    let names: Vec<_> =
        evaluated.plan.workflows.iter().map(|w| (w.name.as_str(), w.file.as_str())).collect();
    assert_eq!(
        names,
        [
            ("z", ".shuntyard/workflows/a.ts"),
            ("a", ".shuntyard/workflows/a.ts"),
            ("shared", ".shuntyard/workflows/a.ts"),
        ]
    );
    let files: Vec<_> = evaluated.plan.files.keys().map(String::as_str).collect();
    assert_eq!(
        files,
        [".shuntyard/lib/shared.ts", ".shuntyard/workflows/a.ts", ".shuntyard/workflows/b.mjs"]
    );
}

#[test]
fn the_same_source_gives_the_same_bytes() {
    let body = "const b = job('b', { matrix: { os: ['z', 'a'], n: [2, 1] }, env: { Z: 1, A: String(Math.random()) }, run: sh('x') });
                export default workflow('w' + Date.now(), { jobs: [b] });";
    let (one, two) = (evaluate_one(body).unwrap(), evaluate_one(body).unwrap());
    assert_eq!(one.bytes, two.bytes);
    assert_eq!(one.digest, two.digest);
    assert_eq!(
        serde_json::from_slice::<shuntyard_protocol::plan::Plan>(&one.bytes).unwrap(),
        one.plan
    );
}

#[test]
fn the_world_stands_still_while_planning() {
    let plan = plan_of(
        "const facts = {
           now: Date.now(), text: new Date().toISOString(), zone: new Date().getTimezoneOffset(),
           other: new Date(0).getTime(), call: typeof Date(), utc: Date.UTC(1970, 0, 1), is: new Date() instanceof Date,
           random: Math.random() !== Math.random(), perf: typeof performance,
         };
         export default workflow('w', { description: JSON.stringify(facts), jobs: [job({ run: sh('x') })] });",
    );
    let facts: Value = serde_json::from_str(plan[0]["description"].as_str().unwrap()).unwrap();
    assert_eq!(
        facts,
        json!({
            "now": 1_767_323_045_006_i64, "text": "2026-01-02T03:04:05.006Z", "zone": 0, "other": 0,
            "call": "string", "utc": 0, "is": true, "random": true, "perf": "undefined",
        })
    );
}

#[test]
fn jobs_and_steps_without_names_get_some() {
    let plan = plan_of(
        "async function lint() {}
         export default workflow('w', { jobs: [
           job({ steps: [sh('make all\\nmore'), sh('make all'), lint, async () => {}, step(() => {}), sh('own', 'x')] }),
           job('named', { run: async () => {} }),
           job({ run: sh('cargo test') }),
         ] });",
    );
    let names: Vec<Vec<&str>> = plan[0]["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| {
            let steps =
                job["steps"].as_array().unwrap().iter().map(|step| step["name"].as_str().unwrap());
            std::iter::once(job["name"].as_str().unwrap()).chain(steps).collect()
        })
        .collect();
    assert_eq!(
        names,
        [
            vec!["job-1", "make all", "make all (2)", "lint", "step-4", "step-5", "own"],
            vec!["named", "run"],
            vec!["job-2", "run"],
        ]
    );
}

#[test]
fn what_files_print_is_kept() {
    let evaluated = evaluate_one(
        "console.log('hello', { a: [1, 'x'] }, null); console.warn(new Map([[1, 2]]));
         export default workflow('w', { jobs: [job({ run: sh('x') })] });",
    )
    .unwrap();
    assert_eq!(evaluated.console, "hello { a: [1, \"x\"] } null\nMap [[1, 2]]\n");
}

#[test]
fn helpers_json_and_packages_of_types_are_importable() {
    let evaluated = evaluate_files(&[
        (
            "workflows/w.ts",
            "import data from '../data.json' with { type: 'json' };\nimport type { Ctx } from 'shuntyard';\n\
             import { make } from '../lib';\nimport { join } from 'node:path';\n\
             const f = async (ctx: Ctx): Promise<void> => {};\n\
             export default make(join('a', '..', data.name), f);",
        ),
        ("data.json", "{\"name\": \"from-json\"}"),
        (
            "lib/index.ts",
            "import { workflow, job } from 'shuntyard';\n\
             export function make(name: string, run: any) { return workflow(name, { jobs: [job({ run })] }); }",
        ),
    ])
    .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(evaluated.plan.workflows[0].name, "from-json");
}

#[test]
fn an_empty_folder_has_an_empty_plan() {
    let evaluated = evaluate_files(&[]).unwrap();
    assert!(evaluated.plan.workflows.is_empty());
    assert_eq!(evaluated.plan.version, 1);
}

#[test]
fn the_example_is_planned() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/hello");
    let bundle = shuntyard_script::Bundle::from_dir(&root).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let launcher = crate::launcher("evaluate");
    let evaluation = shuntyard_script::evaluate(
        &launcher,
        &bundle,
        crate::NOW,
        shuntyard_script::Require::Walls,
    );
    let evaluated = runtime.block_on(evaluation).unwrap_or_else(|error| panic!("{error}"));
    let jobs: Vec<_> =
        evaluated.plan.workflows[0].jobs.iter().map(|job| job.name.as_str()).collect();
    assert_eq!(jobs, ["check", "greet", "farewell"]);
}
