//! `shunt dev`: the whole server for one repository.

use std::{fs, path::Path};

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use shuntyard_sim::forge::commit_folder;

use crate::{
    gate::Gate,
    machine::{Done, Machine, Process, running, unique_sleep, until, write},
    web::{Api, job},
    world::{CI, ci},
};

/// A repository on this machine with one workflow.
fn repository(machine: &Machine, name: &str, jobs: &str) -> String {
    let folder = machine.folder(name, &[(CI, &ci(jobs)), ("greeting.txt", "good morning\n")]);
    commit_folder(&folder, "begin").unwrap();
    folder.to_str().unwrap().to_owned()
}

/// The API of a running `dev`, by its data folder.
async fn api(data: &Path) -> Api {
    until("the server's address", async || {
        let endpoint: Value =
            serde_json::from_slice(&fs::read(data.join("endpoint.json")).ok()?).ok()?;
        let token = fs::read_to_string(data.join("admin-token")).ok()?;
        Some(Api::new(endpoint["url"].as_str()?, &token))
    })
    .await
}

async fn newest_run(api: &Api) -> String {
    let run = until("a run", async || {
        Some(api.try_get("/runs").await?["items"][0]["id"].as_str()?.to_owned())
    });
    run.await
}

/// `shunt dev --once` for a folder.
async fn once(machine: &Machine, path: &str) -> Done {
    machine.run(&["dev", path, "--once", "--listen", "127.0.0.1:0"]).await
}

#[tokio::test]
async fn once_ends_with_the_result_of_the_run() {
    let machine = Machine::new();
    let good = repository(&machine, "good", "job('a', { steps: [sh('cat greeting.txt')] })");
    let done = once(&machine, &good).await;
    assert!(done.out.contains("good morning"), "{}", done.out);
    done.ok();
    let bad = repository(&machine, "bad", "job('a', { steps: [sh('exit 3')] })");
    let done = once(&machine, &bad).await;
    assert_eq!(done.code, 1, "{}{}", done.out, done.err);
    assert!(done.out.contains("exit code 3"), "{}", done.out);
    // Once more with the same data folder: the number goes on.
    let done = once(&machine, &bad).await;
    assert!(done.out.contains("run #2 of ci"), "{}", done.out);
}

#[tokio::test]
async fn a_plan_error_and_nothing_to_run_end_with_2_and_say_why() {
    let machine = Machine::new();
    let wrong = repository(&machine, "wrong", "job('a', { steps: [sh('true')], needs: ['b'] })");
    let done = once(&machine, &wrong).await;
    assert_eq!(done.code, 2, "{}{}", done.out, done.err);
    assert!(done.out.contains("'b'"), "{}{}", done.out, done.err);

    let broken = repository(&machine, "broken", "job('a', { steps: [sh('true' })");
    let done = once(&machine, &broken).await;
    assert_eq!(done.code, 2, "{}{}", done.out, done.err);
    assert!(done.out.contains(&format!("{CI}:2:")), "{}{}", done.out, done.err);

    let none = machine.folder("none", &[("a.txt", "a")]);
    let done = once(&machine, none.to_str().unwrap()).await;
    assert_eq!(done.code, 2, "{}{}", done.out, done.err);
    assert!(done.out.contains("shunt init"), "{}{}", done.out, done.err);

    let folder = machine.folder("other", &[(CI, &ci("job('a', { steps: [sh('true')] })"))]);
    fs::write(
        folder.join(CI),
        "import { job, push, sh, tag, workflow } from 'shuntyard';\n\
         export default workflow('release', { on: [tag('v*'), push({ branches: 'stable' })], \
         jobs: [job('a', { steps: [sh('true')] })] });",
    )
    .unwrap();
    commit_folder(&folder, "begin").unwrap();
    let done = once(&machine, folder.to_str().unwrap()).await;
    assert_eq!(done.code, 2, "{}{}", done.out, done.err);
    for part in ["release", "v*", "stable"] {
        assert!(done.out.contains(part), "{part}: {}", done.out);
    }

    let done = machine.run(&["dev", "/does/not/exist"]).await;
    assert_eq!(done.code, 2, "{}{}", done.out, done.err);
}

#[tokio::test]
async fn json_is_one_object_a_line() {
    let machine = Machine::new();
    let path = repository(&machine, "web", "job('a', { steps: [sh('cat greeting.txt')] })");
    fs::write(Path::new(&path).join("new.txt"), "").unwrap();
    let done = machine.run(&["dev", &path, "--once", "--json", "--listen", "127.0.0.1:0"]).await;
    let out = done.ok();
    let events: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds.first(), Some(&"started"), "{out}");
    assert_eq!(kinds.last(), Some(&"finished"), "{out}");
    assert_eq!(events.last().unwrap()["state"], "success");
    assert!(events[0]["url"].as_str().unwrap().starts_with("http://127.0.0.1:"));
    let count = events.iter().find(|event| event["type"] == "uncommitted").unwrap();
    assert_eq!(count["files"], 1);
    let said = events.iter().filter(|event| event["type"] == "log");
    let mut lines = said.flat_map(|event| event["lines"].as_array().unwrap());
    assert!(lines.any(|line| line == "good morning"), "{out}");
}

#[tokio::test]
async fn it_serves_on_says_what_is_not_committed_and_runs_what_is_committed_later() {
    let machine = Machine::new();
    let path = repository(&machine, "web", "job('a', { steps: [sh('cat greeting.txt')] })");
    let folder = Path::new(&path);
    write(folder, &[("greeting.txt", "good night\n"), ("notes/a.txt", ""), ("notes/b.txt", "")]);
    let mut dev = machine.start(&["dev", &path, "--listen", "127.0.0.1:0"]);
    let out = dev.says("watching ").await;
    assert!(out.contains("3 files are not part of this run"), "{out}");
    assert!(out.contains("`shunt run` uses the working tree"), "{out}");
    assert!(out.contains("good morning") && !out.contains("good night"), "{out}");

    commit_folder(folder, "later").unwrap();
    dev.says("good night").await;
    let out = dev.says("success  ci #2").await;
    assert!(out.contains("run #1 of ci") && out.contains("run #2 of ci"), "{out}");
    // The default data folder is the user's, and another command finds the server by itself.
    let dev_folders = fs::read_dir(machine.path("share/shuntyard/dev")).unwrap();
    let names: Vec<_> = dev_folders.map(|entry| entry.unwrap().file_name()).collect();
    assert!(names[0].to_str().unwrap().starts_with("web-"), "{names:?}");
    let list = machine.run(&["runs", "list", "--json"]).await.json();
    let subjects: Vec<_> =
        list["items"].as_array().unwrap().iter().map(|run| run["subject"].clone()).collect();
    assert_eq!(subjects, ["later", "begin"]);
    // Code that cannot be planned is told, and does not end it.
    write(folder, &[(CI, "nonsense(")]);
    commit_folder(folder, "broken").unwrap();
    dev.says("error").await;
    write(folder, &[(CI, &ci("job('a', { steps: [sh('echo mended')] })"))]);
    commit_folder(folder, "mended").unwrap();
    dev.says("mended\n").await;
    dev.says("success  ci #3").await;
}

#[tokio::test]
async fn a_plain_folder_works_without_git() {
    let machine = Machine::new();
    let jobs = ci("job('a', { steps: [sh('cat greeting.txt')] })");
    let folder = machine.folder("plain", &[(CI, &jobs), ("greeting.txt", "one\n")]);
    let path = folder.to_str().unwrap();
    let mut dev = machine.start(&["dev", path, "--listen", "127.0.0.1:0"]);
    dev.says("watching ").await;
    write(&folder, &[("greeting.txt", "two\n")]);
    dev.says("two\n").await;
    assert!(!folder.join(".git").exists());
}

#[tokio::test]
async fn a_second_dev_takes_the_next_free_port_but_a_port_that_was_asked_for_must_be_free() {
    let machine = Machine::new();
    let jobs = "job('a', { steps: [sh('true')] })";
    let (one, two) = (repository(&machine, "one", jobs), repository(&machine, "two", jobs));
    let (mut first, mut second) = (machine.start(&["dev", &one]), machine.start(&["dev", &two]));
    let (first_out, second_out) = (first.says("watching ").await, second.says("watching ").await);
    let url = |out: &str| {
        let line = out.lines().next().unwrap();
        line.split_whitespace().find(|word| word.starts_with("http://")).unwrap().to_owned()
    };
    assert_ne!(url(&first_out), url(&second_out));
    // Which of the two is meant, nobody knows.
    let list = machine.run(&["runs", "list"]).await;
    assert_eq!(list.code, 2);
    assert!(list.err.contains("--data"), "{}", list.err);
    let taken = url(&first_out).replace("http://", "").replace("/api/v1", "");
    let third = machine.run(&["dev", &one, "--data", "third", "--listen", &taken]).await;
    assert_ne!(third.code, 0);
    assert!(third.err.contains(&taken), "{}", third.err);
    let server = machine.run(&["serve", "--data", "server", "--listen", &taken]).await;
    assert_ne!(server.code, 0);
    assert!(server.err.contains(&taken), "{}", server.err);
}

#[tokio::test]
async fn one_data_folder_has_one_server_at_a_time() {
    let machine = Machine::new();
    let path = repository(&machine, "web", "job('a', { steps: [sh('true')] })");
    let mut first = machine.start(&["dev", &path, "--listen", "127.0.0.1:0"]);
    first.says("watching ").await;
    let second = once(&machine, &path).await;
    assert_eq!(second.code, 2, "{}{}", second.out, second.err);
    assert!(second.err.contains("in use"), "{}", second.err);
    // The first one is not disturbed.
    machine.run(&["runs", "list"]).await.ok();
}

/// A `dev` in the middle of the job `slow`, with `queued` waiting behind it.
async fn interrupted(machine: &Machine, path: &str) -> (Process, Api, String) {
    let mut dev =
        machine.start(&["dev", path, "--data", "data", "--slots", "1", "--listen", "127.0.0.1:0"]);
    dev.says("data in ").await;
    let api = api(&machine.path("data")).await;
    let run = newest_run(&api).await;
    (dev, api, run)
}

#[tokio::test]
async fn sigterm_leaves_the_supervisors_to_the_next_start() {
    let machine = Machine::new();
    let gate = Gate::new().await;
    let jobs =
        format!("job('slow', {{ steps: [sh('seq 1 500; {}; seq 501 1000')] }})", gate.wait());
    let path = repository(&machine, "web", &jobs);
    let (mut dev, _, run) = interrupted(&machine, &path).await;
    let waiting = gate.reached().await;
    dev.signal(Signal::TERM);
    assert_eq!(dev.end().await, 0);
    // Nobody is there: the job goes on all the same.
    waiting.go().await;
    let (mut dev, api, again) = interrupted(&machine, &path).await;
    assert_eq!(again, run);
    let run = api.ended(&run).await;
    assert_eq!(run["run"]["state"], "success", "{run}");
    let slow = job(&run, "slow");
    assert_eq!(slow["attempt"], 1);
    let expected = crate::numbered(1..=1000);
    assert_eq!(String::from_utf8(api.whole(slow, Some(1)).await).unwrap(), expected);
    dev.says("watching ").await;
    assert_eq!(dev.out().matches("│ 1000\n").count(), 1);
}

#[tokio::test]
async fn once_after_a_crash_ends_with_the_result_of_the_head() {
    for (old, new, code) in [("false", "true", 0), ("true", "exit 3", 1)] {
        let machine = Machine::new();
        let gate = Gate::new().await;
        let jobs = |name: &str, end: &str| format!("job('{name}', {{ steps: [sh('{end}')] }})");
        let path = repository(&machine, "web", &jobs("old", &format!("{}; {old}", gate.wait())));
        let (mut dev, _, _) = interrupted(&machine, &path).await;
        let waiting = gate.reached().await;
        dev.kill();
        let folder = Path::new(&path);
        write(folder, &[(CI, &ci(&jobs("new", new)))]);
        commit_folder(folder, "later").unwrap();
        let once = ["dev", &path, "--data", "data", "--once", "--listen", "127.0.0.1:0"];
        let mut dev = machine.start(&once);
        dev.says("1 run of last time goes on").await;
        waiting.go().await;
        let done = dev.done().await;
        assert_eq!(done.code, code, "{}{}", done.out, done.err);
        let (first, second) = done.out.split_once("run #2 of ci").unwrap();
        assert!(first.contains("ci #1 in ") && second.contains("ci #2 in "), "{}", done.out);
    }
}

#[tokio::test]
async fn once_after_a_crash_goes_on_with_the_runs_of_the_head() {
    let machine = Machine::new();
    let gate = Gate::new().await;
    let slow = ci(&format!("job('slow', {{ steps: [sh('{}')] }})", gate.wait()));
    let bad = ci("job('bad', { steps: [sh('exit 3')] })").replace("'ci'", "'second'");
    let path = repository(&machine, "web", "");
    let folder = Path::new(&path);
    write(folder, &[(CI, &slow), (".shuntyard/workflows/second.ts", &bad)]);
    commit_folder(folder, "both").unwrap();
    let mut dev =
        machine.start(&["dev", &path, "--data", "data", "--slots", "2", "--listen", "127.0.0.1:0"]);
    dev.says("data in ").await;
    let api = api(&machine.path("data")).await;
    let waiting = gate.reached().await;
    let over = until("the run of the second workflow to end", async || {
        let runs = api.try_get("/runs?workflow=second").await?;
        (runs["items"][0]["state"] == "failed").then_some(())
    });
    over.await;
    dev.kill();
    let once = ["dev", &path, "--data", "data", "--once", "--listen", "127.0.0.1:0"];
    let mut dev = machine.start(&once);
    dev.says("1 run of last time goes on").await;
    waiting.go().await;
    let done = dev.done().await;
    assert_eq!(done.code, 1, "a run of the head had failed before: {}{}", done.out, done.err);
    assert!(!done.out.contains("#2"), "it runs once: {}", done.out);
}

#[tokio::test]
async fn commits_that_come_during_the_first_run_are_shown_after_it() {
    let machine = Machine::new();
    let gate = Gate::new().await;
    let jobs = format!("job('slow', {{ steps: [sh('{}; true')] }})", gate.wait());
    let path = repository(&machine, "web", &jobs);
    let folder = Path::new(&path);
    let mut dev =
        machine.start(&["dev", &path, "--data", "data", "--slots", "2", "--listen", "127.0.0.1:0"]);
    dev.says("data in ").await;
    let api = api(&machine.path("data")).await;
    let waiting = gate.reached().await;
    write(folder, &[(CI, &ci("job('a', { steps: [sh('echo came meanwhile')] })"))]);
    commit_folder(folder, "later").unwrap();
    until("the run of the second commit to end", async || {
        let runs = api.try_get("/runs").await?;
        (runs["items"][0]["number"] == 2 && runs["items"][0]["state"] == "success").then_some(())
    })
    .await;
    write(folder, &[(CI, "nonsense(")]);
    commit_folder(folder, "broken").unwrap();
    let source = api.get("/sources").await["items"][0]["name"].as_str().unwrap().to_owned();
    until("the third commit to be refused", async || {
        let deliveries = api.try_get(&format!("/sources/{source}/deliveries")).await?;
        (deliveries["items"][0]["state"] == "failed").then_some(())
    })
    .await;
    assert!(!dev.out().contains("watching "), "{}", dev.out());
    waiting.go().await;
    let out = dev.says("success  ci #2").await;
    assert!(out.contains("came meanwhile") && out.contains("error:"), "{out}");
    assert_eq!(out.matches("run #1 of ci").count(), 1, "{out}");
}

#[tokio::test]
async fn a_second_ctrl_c_ends_at_once() {
    let machine = Machine::new();
    let (gate, sleep) = (Gate::new().await, unique_sleep());
    let command = format!("trap \"\" TERM; sleep {sleep} & {}; wait", gate.pass());
    let path =
        repository(&machine, "web", &format!("job('stubborn', {{ steps: [sh('{command}')] }})"));
    let (mut dev, _, _) = interrupted(&machine, &path).await;
    drop(gate.reached().await);
    // It cannot kill the command when the grace is over, so `dev` would wait for it.
    let [supervisor] = machine.supervisors()[..] else { panic!("one supervisor") };
    kill_process(supervisor, Signal::STOP).unwrap();
    dev.signal(Signal::INT);
    dev.says("stopping").await;
    dev.signal(Signal::INT);
    let code = dev.end().await;
    assert_eq!(code, 130, "{}{}", dev.out(), dev.err());
    assert!(dev.err().contains("ending at once"), "{}", dev.err());
    assert_eq!(running(&sleep), 1, "its supervisor has not ended it yet");
}

#[tokio::test]
async fn ctrl_c_asks_commands_to_stop_and_leaves_what_is_queued() {
    let machine = Machine::new();
    let (gate, sleep) = (Gate::new().await, unique_sleep());
    let jobs = format!(
        "job('slow', {{ priority: 5, steps: [sh('trap \"echo asked to stop; exit 0\" TERM; sleep {sleep} & {}; wait')] }}), \
         job('queued', {{ steps: [sh('echo had its turn')] }})",
        gate.pass()
    );
    let path = repository(&machine, "web", &jobs);
    let (mut dev, _, run) = interrupted(&machine, &path).await;
    drop(gate.reached().await);
    dev.signal(Signal::INT);
    assert_eq!(dev.end().await, 130, "{}{}", dev.out(), dev.err());
    assert_eq!(running(&sleep), 0);
    let (mut dev, api, again) = interrupted(&machine, &path).await;
    assert_eq!(again, run);
    let run = api.ended(&run).await;
    assert_eq!(job(&run, "queued")["state"], "success", "{run}");
    assert_eq!(job(&run, "slow")["state"], "cancelled", "{run}");
    api.logs(job(&run, "slow"), "asked to stop").await;
    dev.says("watching ").await;
}
