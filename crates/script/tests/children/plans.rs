//! What authors write, and the plan it gives.

use insta::assert_json_snapshot;
use serde_json::{Value, json};

use crate::{evaluate_files, evaluate_one, plan_of};

/// The only job of a workflow with these job options.
fn job_of(options: &str) -> Value {
    let plan =
        plan_of(&format!("export default workflow('w', {{ jobs: [job('j', {options})] }});"));
    plan[0]["jobs"][0].clone()
}

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
fn triggers_keep_their_patterns() {
    let plan = plan_of(
        "export default workflow('w', { on: [
           push(), push({ branches: ['main', '!x'], tags: 'v*', paths: ['src/**'] }),
           pr({ target: 'main', events: ['opened', 'closed'] }), tag('v*'), tag({ patterns: ['a', 'b'] }),
           manual(), schedule('0 4 * * 1'), schedule({ cron: '5 4 * * *', timezone: 'Europe/Berlin' }),
         ], jobs: [job({ run: sh('x') })] });",
    );
    assert_json_snapshot!(plan[0]["on"], @r#"
    [
      {
        "type": "push"
      },
      {
        "branches": [
          "main",
          "!x"
        ],
        "paths": [
          "src/**"
        ],
        "tags": [
          "v*"
        ],
        "type": "push"
      },
      {
        "events": [
          "opened",
          "closed"
        ],
        "target": [
          "main"
        ],
        "type": "pr"
      },
      {
        "patterns": [
          "v*"
        ],
        "type": "tag"
      },
      {
        "patterns": [
          "a",
          "b"
        ],
        "type": "tag"
      },
      {
        "type": "manual"
      },
      {
        "cron": "0 4 * * 1",
        "type": "schedule"
      },
      {
        "cron": "5 4 * * *",
        "timezone": "Europe/Berlin",
        "type": "schedule"
      }
    ]
    "#);
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
fn needs_name_outcomes() {
    let plan = plan_of(
        "const a = job('a', { run: sh('x') }), b = job('b', { run: sh('x') });
         const c = job('c', { needs: [a, { name: 'b', when: 'always' }], run: sh('x') });
         const d = job('d', { needs: [{ job: a, when: 'on-failure' }, { job: b, when: 'on-skip' }], run: sh('x') });
         const e = job('e', { needs: { job: a, when: ['lost', 'success', 'lost'] }, run: sh('x') });
         export default workflow('w', { jobs: [a, b, c, d, e] });",
    );
    let needs: Vec<_> = (2..5).map(|index| plan[0]["jobs"][index]["needs"].clone()).collect();
    assert_json_snapshot!(needs, @r#"
    [
      [
        {
          "job": "a",
          "when": [
            "success"
          ]
        },
        {
          "job": "b",
          "when": [
            "success",
            "failed",
            "timed_out",
            "cancelled",
            "skipped",
            "lost"
          ]
        }
      ],
      [
        {
          "job": "a",
          "when": [
            "failed",
            "timed_out",
            "lost"
          ]
        },
        {
          "job": "b",
          "when": [
            "success",
            "skipped"
          ]
        }
      ],
      [
        {
          "job": "a",
          "when": [
            "success",
            "lost"
          ]
        }
      ]
    ]
    "#);
}

#[test]
fn matrices_stay_as_they_were_written() {
    let job = job_of(
        "{ run: sh('x'), matrix: { os: ['linux', 'macos'], node: [20, 22.5, true] }, maxParallel: 2, failFast: true,
           include: [{ os: 'linux', extra: 'y' }], exclude: [{ os: 'macos', node: 20 }] }",
    );
    assert_json_snapshot!(job["matrix"], @r#"
    {
      "axes": {
        "product": [
          [
            "os",
            [
              "linux",
              "macos"
            ]
          ],
          [
            "node",
            [
              20,
              22.5,
              true
            ]
          ]
        ]
      },
      "exclude": [
        {
          "node": 20,
          "os": "macos"
        }
      ],
      "fail_fast": true,
      "include": [
        {
          "extra": "y",
          "os": "linux"
        }
      ],
      "max_parallel": 2
    }
    "#);
    assert_eq!(
        job_of("{ run: sh('x'), matrix: ['a', 1] }")["matrix"],
        json!({"axes": {"list": ["a", 1]}})
    );
}

#[test]
fn selectors_know_their_kind() {
    let job = job_of("{ run: sh('x'), runsOn: ['linux', 'gpu-*', /^rack[0-9]+$/i] }");
    assert_eq!(
        job["runs_on"],
        json!({"labels": [{"exact": "linux"}, {"glob": "gpu-*"}, {"regex": "(?i)^rack[0-9]+$"}]})
    );
    let job = job_of("{ run: sh('x'), runsOn: { labels: 'linux', exclude: ['slow'] } }");
    assert_eq!(
        job["runs_on"],
        json!({"labels": [{"exact": "linux"}], "exclude": [{"exact": "slow"}]})
    );
}

#[test]
fn options_of_jobs_and_steps_reach_the_plan() {
    let job = job_of(
        "{ checkout: { depth: 0, submodules: true }, timeout: '1h30m', gracePeriod: '5s', retry: { maxAttempts: 3, on: 'lost' },
           continueOnError: true, priority: -7, env: { A: 'x', B: 1.5, C: false },
           steps: [
             step('s', { run: async () => {}, timeout: 90000, retry: 2, continueOnError: true, env: { D: '1' },
                         outputs: z.object({ v: z.string().regex(/^v/).optional(), n: z.number().int().default(3) }) }),
             sh('t', 'ls', { shell: 'sh', cwd: 'sub', retry: { maxAttempts: 2, delayMs: '5s', backoff: 'fixed' } }),
             parallel([sh('p1'), async () => {}], { failFast: false, maxParallel: 1, name: 'both' }),
           ] }",
    );
    assert_json_snapshot!(job, @r#"
    {
      "checkout": {
        "depth": 0,
        "enabled": true,
        "submodules": true
      },
      "continue_on_error": true,
      "env": {
        "A": "x",
        "B": "1.5",
        "C": "false"
      },
      "grace_ms": 5000,
      "name": "j",
      "parallels": [
        {
          "fail_fast": false,
          "max_parallel": 1,
          "name": "both"
        }
      ],
      "priority": -7,
      "retry": {
        "max_attempts": 3,
        "on": [
          "lost"
        ]
      },
      "steps": [
        {
          "action": {
            "type": "function"
          },
          "continue_on_error": true,
          "env": {
            "D": "1"
          },
          "name": "s",
          "outputs": {
            "properties": [
              [
                "v",
                {
                  "optional": true,
                  "regex": "^v",
                  "type": "string"
                }
              ],
              [
                "n",
                {
                  "default": 3,
                  "int": true,
                  "type": "number"
                }
              ]
            ],
            "type": "object"
          },
          "retry": {
            "delay_ms": 1000,
            "exponential": true,
            "max_attempts": 2,
            "max_delay_ms": 30000
          },
          "timeout_ms": 90000
        },
        {
          "action": {
            "command": "ls",
            "cwd": "sub",
            "shell": [
              "sh",
              "-e",
              "-c"
            ],
            "type": "shell"
          },
          "name": "t",
          "retry": {
            "delay_ms": 5000,
            "exponential": false,
            "max_attempts": 2,
            "max_delay_ms": 30000
          }
        },
        {
          "action": {
            "command": "p1",
            "type": "shell"
          },
          "name": "p1",
          "parallel": 0
        },
        {
          "action": {
            "type": "function"
          },
          "name": "step-4",
          "parallel": 0
        }
      ],
      "timeout_ms": 5400000
    }
    "#);
    assert_eq!(job_of("{ run: sh('x'), checkout: false }")["checkout"]["enabled"], false);
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
