//! How steps and their commands end when they do not end by themselves, and the runner's limits.

use serde_json::json;
use shuntyard_protocol::runner::ToRunner;

use crate::runner::{Runner, error_of, outputs_of};

#[test]
fn a_stop_ends_the_step_and_its_commands() {
    let mut runner = Runner::steps(
        "async ({ $, signal }) => { signal.addEventListener('abort', () => console.log('aborted')); await $`echo $$; trap 'echo asked; exit 9' TERM; sleep 600 & wait`; }, async () => { await new Promise(() => {}); }, async () => { for (;;) {} }, async ({ $ }) => { await $`trap '' TERM; echo up; while :; do sleep 600; done`; }, async () => ({ alive: true })",
    );
    runner.start(0, &json!({}));
    while runner.text(0).is_empty() {
        runner.next();
    }
    runner.send(&ToRunner::Stop { step: 0, force: false }, &[]);
    let message = runner.done().error.unwrap().message;
    assert!(message.contains("the step was stopped"), "{message}");
    assert!(
        runner.text(0).contains("asked") && runner.text(0).contains("aborted"),
        "{}",
        runner.text(0)
    );
    // A promise that never settles, and a loop that never yields.
    for step in [1, 2] {
        runner.start(step, &json!({}));
        runner.send(&ToRunner::Stop { step, force: false }, &[]);
        assert!(runner.done().error.is_some());
    }
    runner.start(3, &json!({}));
    while runner.text(3).is_empty() {
        runner.next();
    }
    runner.send(&ToRunner::Stop { step: 3, force: false }, &[]);
    runner.send(&ToRunner::Stop { step: 3, force: true }, &[]);
    assert!(runner.done().error.is_some());
    assert_eq!(runner.succeed(4), json!({"alive": true}));
}

#[test]
fn commands_end_with_the_supervisor() {
    let mut runner = Runner::steps("async ({ $ }) => { await $`echo $$; sleep 600`; }");
    runner.start(0, &json!({}));
    while runner.text(0).is_empty() {
        runner.next();
    }
    let pid: i32 = runner.text(0).trim().parse().unwrap();
    runner.close();
    let alive = rustix::process::test_kill_process(rustix::process::Pid::from_raw(pid).unwrap());
    assert!(alive.is_err());
}

#[test]
fn a_command_that_nobody_awaits_is_stopped_or_fails_the_step() {
    let mut runner = Runner::steps(
        "async ({ $ }) => { $`sleep 600`; await $`true`; }, async ({ $ }) => { $`exit 4`; await $`sleep 0.3`; }",
    );
    runner.succeed(0);
    assert!(runner.text(0).contains("still running when the step ended"), "{}", runner.text(0));
    assert_eq!(runner.run(1).error.unwrap().exit_code, Some(4));
}

#[test]
fn a_child_left_behind_does_not_hold_the_step() {
    let mut runner = Runner::steps("async ({ $ }) => { await $`sleep 5 & echo started`; }");
    let before = std::time::Instant::now();
    runner.succeed(0);
    assert!(before.elapsed() < std::time::Duration::from_secs(4));
}

#[test]
fn too_much_memory_fails_the_step_and_not_the_child() {
    // RUN_MEMORY_BYTES_MAX
    let mut runner = Runner::steps(
        "async () => { const a = []; for (;;) a.push(new Uint8Array(2 ** 24)); }, async () => ({ ok: true })",
    );
    let message = runner.fail(0);
    assert!(message.contains("memory"), "{message}");
    assert_eq!(runner.succeed(1), json!({"ok": true}));
}

#[test]
fn output_beyond_the_capture_is_logged_but_not_read_by_halves() {
    let mut runner = Runner::steps(
        "async ({ $ }) => { const r = await $`head -c 9000000 /dev/zero`; return { n: r.stdout.length }; }",
    );
    let message = runner.fail(0);
    assert!(message.contains("more than is kept in memory (8 MiB)"), "{message}");
    assert_eq!(runner.output[&0].len(), 9_000_000);
}

#[test]
fn the_runner_is_bounded_at_every_edge() {
    // TIMERS_MAX, FILE_BYTES_MAX, CAPTURE_BYTES_MAX
    let timers = |count| {
        format!(
            "async () => {{ for (let i = 0; i < {count}; i += 1) setTimeout(() => {{}}, 1e6); return {{ ok: true }}; }}"
        )
    };
    assert_eq!(outputs_of(&timers(10_000)), json!({"ok": true}));
    assert!(error_of(&timers(10_001)).contains("more than 10000 timers at the same time"));
    let file = |bytes: usize| {
        format!(
            "async ({{ $ }}) => {{ await $`truncate -s ${{{bytes}}} big`; return {{ size: fs.readFileSync('big').length }}; }}"
        )
    };
    let run = |bytes| {
        let body = format!(
            "import fs from 'node:fs'; export default workflow('w', {{ jobs: [job('j', {{ run: {} }})] }});",
            file(bytes)
        );
        Runner::load(&body, &[]).unwrap().run(0)
    };
    let limit = 64 * 1024 * 1024;
    assert_eq!(run(limit).outputs, Some(json!({"size": limit})));
    assert!(run(limit + 1).error.unwrap().message.contains("larger than 64 MiB"));
    let capture = |bytes: usize| {
        format!(
            "async ({{ $ }}) => ({{ n: (await $`head -c ${{{bytes}}} /dev/zero`.quiet()).stdout.length }})"
        )
    };
    assert_eq!(outputs_of(&capture(8 * 1024 * 1024)), json!({"n": 8 * 1024 * 1024}));
    assert!(error_of(&capture(8 * 1024 * 1024 + 1)).contains("more than is kept"));
}

#[test]
fn only_so_many_commands_run_at_the_same_time() {
    // COMMANDS_MAX
    let many = |count| {
        format!(
            "async ({{ $ }}) => {{ await Promise.all(Array.from({{ length: {count} }}, () => $`read x < /dev/null || sleep 0.5`)); }}"
        )
    };
    assert!(Runner::steps(&many(256)).run(0).error.is_none());
    assert!(error_of(&many(257)).contains("more than 256 commands at the same time"));
}
