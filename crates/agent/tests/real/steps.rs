//! What steps do, and what comes out of them.

use shuntyard_protocol::{
    Outcome,
    plan::{Action, Parallel, Step, StepRetry},
};

use crate::{
    coordinator::{Manners, Seen},
    world::{World, runs, sh, spec, unique_sleep},
};

async fn run(steps: Vec<Step>) -> (World, Seen) {
    let world = World::new(Manners::default()).await;
    let id = world.submit(steps);
    let seen = world.coordinator.ended(id).await;
    (world, seen)
}

#[tokio::test]
async fn bytes_survive_untouched() {
    let (_world, seen) = run(vec![
        sh(r"printf '\xff\xfe\0\r50%%\r100%%\n\033[31mred\033[0m'"),
        sh("head -c 20971520 /dev/zero | tr '\\0' y"),
    ])
    .await;
    assert_eq!(seen.streams[&1], b"\xff\xfe\0\r50%\r100%\n\x1b[31mred\x1b[0m");
    assert_eq!(seen.streams[&2].len(), 20 * 1024 * 1024);
    assert!(seen.streams[&2].iter().all(|&b| b == b'y'));
}

#[tokio::test]
async fn nothing_of_a_step_survives_it_and_nothing_hangs_it() {
    let sleep = unique_sleep();
    let id_steps = vec![
        sh(&format!("sleep {sleep} & exit 0")),
        sh(&format!("setsid sleep {sleep} & disown; env -i setsid sleep {sleep} & exit 0")),
        sh(&format!("ps -e -o args | grep -c '[s]leep {sleep}' || true")),
    ];
    let (_world, seen) = run(id_steps).await;
    assert_eq!(seen.end().unwrap().outcome, Outcome::Success);
    assert_eq!(seen.text(3), "0\n");
    assert!(!runs(&sleep));
}

#[tokio::test]
async fn exit_codes_and_signals_are_told() {
    let mut failing = vec![
        sh("kill -9 $$"),
        sh("exit 3"),
        sh("false | true; echo hi"),
        sh("no-such-command-here"),
    ];
    for step in &mut failing {
        step.continue_on_error = true;
    }
    failing.push(sh("exec 1>&- 2>&-; sleep 0.1; exit 4"));
    failing.push(sh("echo never"));
    let (_world, seen) = run(failing).await;
    let codes: Vec<_> = (0..5).map(|step| seen.step(step).unwrap().exit_code.unwrap()).collect();
    assert_eq!(codes, [137, 3, 1, 127, 4]);
    assert_eq!(seen.text(3), "");
    assert_eq!(seen.end().unwrap().outcome, Outcome::Failed);
    assert_eq!(seen.step(5).unwrap().outcome, Outcome::Skipped);
}

#[tokio::test]
async fn hand_off_files_reach_later_steps() {
    let mut second = sh("echo $A-$(tool); echo \"$B\"; echo v=1 >> $KICI_OUTPUT");
    second.name = "named".into();
    let (_world, seen) = run(vec![
        sh("mkdir bin; printf '#!/bin/sh\\necho tool' > bin/tool; chmod +x bin/tool; echo $PWD/bin >> $SHUNT_PATH; \
            echo A=1 >> $SHUNT_ENV; printf 'B<<EOF\\nx\\ny\\nEOF' >> $SHUNT_ENV"),
        second,
        sh("echo A=evil=1 >> $SHUNT_ENV; echo SHUNT_RUN=x >> $SHUNT_ENV"),
        sh("echo $A $SHUNT_RUN"),
        sh("printf 'C<<STOP\\nx\\n' >> $SHUNT_ENV"),
    ])
    .await;
    assert_eq!(seen.text(2), "1-tool\nx\ny\n");
    assert!(
        seen.text(4).starts_with("warning: 'SHUNT_RUN' is set by the agent"),
        "{}",
        seen.text(4)
    );
    assert!(seen.text(4).contains("evil=1 run_"));
    let error = seen.step(4).unwrap().error.clone().unwrap();
    assert!(error.contains("no line is exactly 'STOP'"), "{error}");
    assert_eq!(seen.end().unwrap().outputs.as_ref().unwrap()["named"]["v"], "1");
}

#[tokio::test]
async fn a_value_that_is_too_long_names_variable_and_limit() {
    let (world, seen) =
        run(vec![sh("{ printf BIG=; head -c 131072 /dev/zero | tr '\\0' x; } >> $SHUNT_ENV")])
            .await;
    let error = seen.step(0).unwrap().error.clone().unwrap();
    assert!(error.contains("'BIG'") && error.contains("131072"), "{error}");
    let mut steps = vec![sh("true")];
    steps[0].env.insert("HUGE".into(), "x".repeat(131_072));
    let id = world.submit(steps);
    let seen = world.coordinator.ended(id).await;
    let error = seen.step(0).unwrap().error.clone().unwrap();
    assert!(error.contains("'HUGE'"), "{error}");
}

#[tokio::test]
async fn a_step_out_of_time_is_timed_out_and_a_failed_one_is_tried_again() {
    let mut slow = sh("trap 'echo stopping; exit 0' TERM; echo up; while :; do sleep 0.05; done");
    slow.timeout_ms = Some(300);
    slow.continue_on_error = true;
    let mut flaky = sh("echo try $SHUNT_STEP_TRY; test $SHUNT_STEP_TRY = 3");
    flaky.retry =
        Some(StepRetry { max_attempts: 3, delay_ms: 10, max_delay_ms: 10, exponential: false });
    let (_world, seen) = run(vec![slow, flaky]).await;
    assert_eq!(seen.step(0).unwrap().outcome, Outcome::TimedOut);
    assert!(seen.text(1).ends_with("stopping\n"), "{}", seen.text(1));
    let flaky = seen.step(1).unwrap();
    assert_eq!((flaky.outcome, flaky.tries), (Outcome::Success, 3));
    assert!(seen.text(2).contains("try 1 of 3 failed"));
    assert_eq!(seen.end().unwrap().outcome, Outcome::Success);
}

#[tokio::test]
async fn a_job_out_of_time_is_timed_out() {
    let world = World::new(Manners::default()).await;
    let mut spec = spec(vec![sh("sleep 600")]);
    spec.timeout_ms = 300;
    let id = world.coordinator.submit(spec, b"{}");
    let seen = world.coordinator.ended(id).await;
    assert_eq!(seen.end().unwrap().outcome, Outcome::TimedOut);
}

#[tokio::test]
async fn parallel_steps_run_at_once_and_the_first_failure_ends_the_others() {
    let world = World::new(Manners::default()).await;
    let sleep = unique_sleep();
    let steps = [
        "touch a; until [ -e b ]; do sleep 0.02; done; echo met; touch c",
        "touch b; until [ -e c ]; do sleep 0.02; done; echo met; exit 5",
        &format!("setsid sleep {sleep} & sleep {sleep}"),
    ];
    let steps = steps.iter().map(|&command| Step { parallel: Some(0), ..sh(command) }).collect();
    let mut spec = spec(steps);
    spec.parallels = vec![Parallel { name: None, fail_fast: true, max_parallel: None }];
    let id = world.coordinator.submit(spec, b"{}");
    let seen = world.coordinator.ended(id).await;
    assert_eq!((seen.text(1), seen.text(2)), ("met\n".into(), "met\n".into()));
    assert_eq!(seen.step(1).unwrap().exit_code, Some(5));
    assert_eq!(seen.step(2).unwrap().outcome, Outcome::Cancelled);
    assert_eq!(seen.end().unwrap().outcome, Outcome::Failed);
    assert!(!runs(&sleep));
}

#[tokio::test]
async fn more_attempts_than_slots_are_refused() {
    let world = World::new(Manners::default()).await;
    let held: Vec<_> = (0..4).map(|_| world.submit(vec![sh("echo up; sleep 600")])).collect();
    for id in &held {
        world.coordinator.until(*id, "it to run", |seen| seen.text(1) == "up\n").await;
    }
    let id = world.submit(vec![sh("true")]);
    let seen = world.coordinator.until(id, "a refusal", |seen| seen.refused.is_some()).await;
    assert_eq!(seen.refused.unwrap(), "no slot is free");
}

const WORKFLOW: &str = r"
import { workflow, job, step, sh } from 'shuntyard';
let shared = 0;
export default workflow('ci', { jobs: [job('build', { steps: [
  step('first', async (ctx) => {
    shared += 1;
    ctx.log('hello from', ctx.run.number);
    await ctx.$`echo a command; echo W=written >> $SHUNT_ENV; echo file=1 >> $SHUNT_OUTPUT`;
    ctx.setEnv('S', 'set');
    return { n: 41 + shared };
  }),
  sh('echo $S $W'),
  step('third', async (ctx) => { throw new Error('no, ' + shared); }),
  step('slow', async (ctx) => { await ctx.$`trap 'echo stopping; exit 0' TERM; echo up; sleep 600`; }),
] })] });
";

#[tokio::test]
async fn functions_run_in_the_engine_and_share_the_job() {
    let world = World::new(Manners::default()).await;
    let function =
        |name: &str| Step { name: name.into(), action: Action::Function {}, ..Step::default() };
    let mut steps = vec![function("first"), sh("echo $S $W"), function("third"), function("slow")];
    steps[2].continue_on_error = true;
    steps[3].timeout_ms = Some(1000);
    let spec = spec(steps);
    let folder = serde_json::json!({ &spec.file: WORKFLOW }).to_string();
    let id = world.coordinator.submit(spec, folder.as_bytes());
    let seen = world.coordinator.ended(id).await;
    assert!(
        seen.text(1).contains("hello from 7") && seen.text(1).contains("a command\n"),
        "{}",
        seen.text(1)
    );
    assert_eq!(seen.text(2), "set written\n");
    let error = seen.step(2).unwrap().error.clone().unwrap();
    assert!(error.contains("no, 1") && error.contains("ci.ts"), "{error}");
    assert_eq!(seen.step(3).unwrap().outcome, Outcome::TimedOut);
    assert!(seen.text(4).starts_with("up\n"), "{}", seen.text(4));
    let outputs = seen.step(0).unwrap().outputs.clone().unwrap();
    assert_eq!(outputs, serde_json::json!({"n": 42, "file": "1"}));
    assert_eq!(seen.end().unwrap().outcome, Outcome::TimedOut);
}
