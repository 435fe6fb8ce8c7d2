//! Each option, and what becomes of it in the plan.

use insta::assert_json_snapshot;
use serde_json::{Value, json};

use crate::plan_of;

/// The only job of a workflow with these job options.
fn job_of(options: &str) -> Value {
    let plan =
        plan_of(&format!("export default workflow('w', {{ jobs: [job('j', {options})] }});"));
    plan[0]["jobs"][0].clone()
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
fn concurrency_groups_are_names_or_say_more() {
    let plan = plan_of(
        "export default workflow('w', { concurrency: { group: 'deploy', cancelInProgress: true, max: 3 }, jobs: [
           job('a', { concurrencyGroup: 'org:ship', run: sh('x') }),
           job('b', { concurrency: { group: 'b', max: 1 }, run: sh('x') }),
         ] });",
    );
    assert_eq!(
        plan[0]["concurrency"],
        json!({"group": "deploy", "cancel_in_progress": true, "max": 3})
    );
    assert_eq!(plan[0]["jobs"][0]["concurrency"], json!({"group": "org:ship"}));
    assert_eq!(plan[0]["jobs"][1]["concurrency"], json!({"group": "b"}));
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
