//! Where output goes when nobody reads it any more.

use std::process::Stdio;

use shuntyard_sim::forge::commit_folder;

use crate::{
    gate::Gate,
    machine::{Done, Machine},
    world::{CI, Db, World, ci},
};

/// Runs a command whose reader is gone before it says anything.
async fn unread(machine: &Machine, args: &[&str]) -> Done {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    machine.spawn_into(machine.command(args), "unread", Stdio::from(writer)).done().await
}

#[tokio::test]
async fn a_closed_pipe_is_a_normal_end() {
    let world = World::with_agent(Db::Sqlite).await;
    let gate = Gate::new().await;
    let jobs = format!(
        "job('good', {{ steps: [sh('seq 1 100000')] }}), job('bad', {{ steps: [sh('{}; false')] }})",
        gate.wait()
    );
    let run = world.run(&jobs).await;
    let waiting = gate.reached().await;
    world.api.reaches(&run, "good", "success").await;
    let data = world.data();
    let data = data.to_str().unwrap();
    // Whoever follows does not wait for an end that nobody would see.
    for form in [&[][..], &["--timestamps"], &["--raw", "--job", "good"]] {
        let args = [&["runs", "logs", "-f", &run, "--data", data], form].concat();
        let done = unread(&world.machine, &args).await;
        assert_eq!((done.code, done.err.as_str()), (0, ""), "{args:?}");
    }
    waiting.go().await;
    world.api.ended(&run).await;
    for args in [
        &["runs", "logs", &run][..],
        &["runs", "logs", &run, "--timestamps"],
        &["runs", "logs", &run, "--job", "good", "--raw"],
        &["runs", "logs", &run, "--follow"],
        &["runs", "show", &run],
        &["runs", "list"],
        &["runs", "list", "--json"],
        &["queue"],
        &["admin", "agent", "list"],
    ] {
        let done = unread(&world.machine, &[args, &["--data", data]].concat()).await;
        assert_eq!((done.code, done.err.as_str()), (0, ""), "{args:?}");
    }
}

#[tokio::test]
async fn work_goes_on_when_nobody_reads_and_ends_with_its_result() {
    let machine = Machine::new();
    let file = machine.path("worked");
    let jobs =
        format!("job('a', {{ steps: [sh('seq 1 1000; touch {}; exit 3')] }})", file.display());
    let folder = machine.folder("web", &[(CI, &ci(&jobs))]);
    commit_folder(&folder, "begin").unwrap();
    let path = folder.to_str().unwrap();
    for args in [
        &["run", "-C", path][..],
        &["dev", path, "--once", "--listen", "127.0.0.1:0"],
        &["dev", path, "--once", "--json", "--listen", "127.0.0.1:0"],
    ] {
        let done = unread(&machine, args).await;
        assert_eq!((done.code, done.err.as_str()), (1, ""), "{args:?}");
        std::fs::remove_file(&file).unwrap();
    }
    for args in [&["compile", "-C", path][..], &["preview", "push", "-C", path], &["--help"]] {
        let done = unread(&machine, args).await;
        assert_eq!((done.code, done.err.as_str()), (0, ""), "{args:?}");
    }
}
