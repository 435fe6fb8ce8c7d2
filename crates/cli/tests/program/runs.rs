//! From a push to a result.

use crate::{
    on_both,
    web::{job, states},
    world::{CI, Db, World, ci},
};

on_both!(a_push_becomes_a_green_run_on_an_agent_elsewhere);

async fn a_push_becomes_a_green_run_on_an_agent_elsewhere(db: Db) {
    let world = World::with_agent(db).await;
    let web = world.repository("web").await;
    let jobs = "
        job('build', {
          steps: [
            sh('hello', 'cat greeting.txt; echo \"to=world\" >> \"$SHUNT_OUTPUT\"'),
            step('count', async ({ $ }) => ({ bytes: Number(await $`wc -c < greeting.txt`.text()) })),
          ],
        }),
        job('test', {
          needs: ['build'],
          matrix: { os: ['a', 'b'], level: [1, 2] },
          exclude: [{ os: 'b', level: 2 }],
          run: async ({ needs, matrix, log }) => {
            const { hello, count } = needs.build.outputs;
            log.info(`${matrix.os}${matrix.level} says hello ${hello.to} in ${count.bytes} bytes`);
          },
        })";
    let runs = world.push(&web, &[(CI, &ci(jobs)), ("greeting.txt", "good morning\n")]).await;
    let [run] = runs.as_slice() else { panic!("{runs:?}") };
    let run = world.api.ended(run).await;
    assert_eq!(run["run"]["state"], "success", "{run}");
    assert_eq!(
        states(&run),
        ["build success", "test (a, 1) success", "test (a, 2) success", "test (b, 1) success"]
    );
    let log = world.api.logs(job(&run, "build"), "good morning").await;
    assert_eq!(log.matches("good morning").count(), 1);
    world.api.logs(job(&run, "test (b, 1)"), "b1 says hello world in 13 bytes").await;
    let id = run["run"]["id"].as_str().unwrap();
    let list = world.shunt(&["runs", "list", "--json"]).await.json();
    let first = &list["items"][0];
    for (field, value) in [("id", id), ("state", "success"), ("workflow", "ci"), ("branch", "main")]
    {
        assert_eq!(first[field], value);
    }
    assert_eq!(first["commit"], run["run"]["commit"]);
    let shown = world.shunt(&["runs", "logs", id]).await.ok();
    assert!(shown.contains("b1 says hello world in 13 bytes\n"), "{shown}");
}

#[tokio::test]
async fn what_needs_a_failed_job_is_skipped_unless_it_asks_for_failures() {
    let world = World::with_agent(Db::Sqlite).await;
    let jobs = "
        job('bad', { steps: [sh('false')] }),
        job('after', { needs: ['bad'], steps: [sh('true')] }),
        job('after that', { needs: ['after'], steps: [sh('true')] }),
        job('mourn', { needs: [{ job: 'bad', when: 'on-failure' }], steps: [sh('true')] }),
        job('always', { needs: [{ job: 'after', when: 'always' }], steps: [sh('true')] }),
        job('soft', { continueOnError: true, steps: [sh('false')] }),
        job('after soft', { needs: ['soft'], steps: [sh('true')] })";
    let run = world.run(jobs).await;
    let run = world.api.ended(&run).await;
    assert_eq!(run["run"]["state"], "failed");
    assert_eq!(
        states(&run),
        [
            "bad failed",
            "after skipped",
            "after that skipped",
            "mourn success",
            "always success",
            "soft failed",
            "after soft success"
        ]
    );
}

#[tokio::test]
async fn failures_that_were_planned_for_leave_the_run_green() {
    let world = World::with_agent(Db::Sqlite).await;
    let jobs = "
        job('soft', { continueOnError: true, steps: [sh('exit 3')] }),
        job('soft step', { steps: [sh('bad', 'exit 4', { continueOnError: true }), sh('echo on')] }),
        job('second try', { retry: 3, steps: [sh('test $SHUNT_ATTEMPT = 2')] }),
        job('step again', {
          steps: [sh('again', 'echo x >> tries; test $(wc -l < tries) = 3', { retry: { maxAttempts: 3, delayMs: 1 } })],
        })";
    let run = world.run(jobs).await;
    let run = world.api.ended(&run).await;
    assert_eq!(run["run"]["state"], "success", "{run}");
    assert_eq!(job(&run, "soft")["state"], "failed");
    assert_eq!(job(&run, "soft step")["steps"][0]["exit_code"], 4);
    assert_eq!(job(&run, "second try")["try_no"], 2);
    assert_eq!(job(&run, "step again")["steps"][0]["tries"], 3);
    let id = job(&run, "second try")["id"].as_str().unwrap();
    let detail = world.api.get(&format!("/jobs/{id}")).await;
    let attempts: Vec<_> = detail["attempts"].as_array().unwrap().iter().collect();
    assert_eq!(attempts.len(), 2, "{detail}");
}

#[tokio::test]
async fn how_a_command_ended_is_told() {
    let world = World::with_agent(Db::Sqlite).await;
    let jobs = "
        job('killed', { steps: [sh('kill -9 $$')] }),
        job('code', { steps: [sh('exit 42')] }),
        job('slow step', { steps: [sh('slow', 'sleep 600', { timeout: '1s' })] }),
        job('slow job', { timeout: '1s', steps: [sh('sleep 600')] }),
        job('thrown', { steps: [step('x', () => { throw new Error('what a pity') })] })";
    let run = world.run(jobs).await;
    let run = world.api.ended(&run).await;
    assert_eq!(run["run"]["state"], "failed");
    let step = |name: &str| job(&run, name)["steps"][0].clone();
    assert_eq!(step("killed")["state"], "failed");
    assert_eq!(step("killed")["exit_code"], 137);
    assert_eq!(step("code")["exit_code"], 42);
    assert_eq!(step("slow step")["state"], "timed_out");
    assert_eq!(job(&run, "slow job")["state"], "timed_out");
    assert!(step("thrown")["error"].as_str().unwrap().contains("what a pity"), "{run}");
}
