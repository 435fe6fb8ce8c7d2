//! Whoever has the data folder owns the server, and nobody else gets anything out of it.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::Path,
};

use serde_json::json;

use crate::{
    machine::{Done, Machine, Process, until},
    on_both,
    web::{Api, job, states},
    world::{Db, World},
};

on_both!(a_token_can_be_made_on_the_machine_itself, the_machines_own_token_comes_back);

/// `shunt admin token create`, as somebody who has nothing but the machine.
async fn create_token(world: &World, data: &Path) -> Done {
    let args = ["admin", "token", "create", "boss", "--role", "admin", "--data"];
    let mut command = world.machine.command(&[&args[..], &[data.to_str().unwrap()]].concat());
    let url = world.machine.path("database-url");
    if url.exists() {
        command.env("SHUNT_DATABASE__URL_FILE", url);
    }
    world.machine.spawn(command, "admin").done().await
}

async fn a_token_can_be_made_on_the_machine_itself(db: Db) {
    let mut world = World::new(db).await;
    let data = world.data();
    let asked = create_token(&world, &data).await.ok();
    fs::remove_file(data.join("admin-token")).unwrap();
    let running = create_token(&world, &data).await.ok();
    world.server.kill();
    let killed = create_token(&world, &data).await.ok();
    world.start_again().await;
    for token in [asked, running, killed] {
        let list = Api::new(&world.api.url, token.trim()).get("/tokens").await;
        assert_eq!(list["items"][0]["role"], "admin", "{list}");
    }
    let elsewhere = create_token(&world, &world.machine.path("nothing")).await;
    if db == Db::Sqlite {
        assert_eq!(elsewhere.code, 2);
        assert!(elsewhere.err.contains("no server has started with"), "{}", elsewhere.err);
        assert!(!world.machine.path("nothing").exists());
    }
}

async fn the_machines_own_token_comes_back(db: Db) {
    let mut world = World::new(db).await;
    let list = world.api.get("/tokens").await;
    let own =
        list["items"].as_array().unwrap().iter().find(|token| token["name"] == "this machine");
    let id = own.unwrap()["id"].as_str().unwrap().to_owned();
    let (status, _) =
        world.api.send(reqwest::Method::DELETE, &format!("/tokens/{id}"), &json!({})).await;
    assert_eq!(status, 204);
    assert_eq!(world.shunt(&["admin", "agent", "list"]).await.code, 2);
    world.server.kill();
    world.start_again().await;
    world.shunt(&["admin", "agent", "list"]).await.ok();
}

#[tokio::test]
async fn a_master_key_that_is_gone_is_not_replaced() {
    let mut world = World::new(Db::Sqlite).await;
    let key = world.data().join("master.key");
    let right = fs::read_to_string(&key).unwrap();
    world.server.kill();
    fs::remove_file(&key).unwrap();
    let refused = world.serve().done().await;
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("master.key is missing: put it back"), "{}", refused.err);
    assert!(!key.exists());
    let with = |text: &str| -> Process {
        let data = world.data();
        let args = ["serve", "--data", data.to_str().unwrap(), "--listen", "127.0.0.1:0"];
        let mut command = world.machine.command(&args);
        command.env("SHUNT_MASTER_KEY", text);
        world.machine.spawn(command, "serve")
    };
    let refused = with(&"ab".repeat(32)).done().await;
    assert!(refused.code == 2 && refused.err.contains("than master_key"), "{}", refused.err);
    let refused = with("short").done().await;
    assert!(refused.code == 2 && refused.err.contains("64 hexadecimal digits"), "{}", refused.err);
    with(&right).says("serving ").await;
    assert!(!key.exists());
}

#[tokio::test]
async fn with_run_as_commands_are_another_users_and_reach_nothing_of_the_server() {
    let machine = Machine::new();
    fs::set_permissions(machine.path(""), fs::Permissions::from_mode(0o711)).unwrap();
    let world = World::on(machine, Db::Sqlite, &["--with-agent", "--run-as", "nobody"]).await;
    let data = world.data();
    let files = ["shuntyard.db", "shuntyard.db-wal", "master.key", "admin-token", "server.lock"];
    let look = format!(
        "id -u; cat .shuntyard/workflows/ci.ts | wc -l; cd {}; ls 2>&1; \
         for file in {} segments mirrors; do test -r $file && echo reads $file; done; echo looked",
        data.display(),
        files.join(" ")
    );
    let run = world.run(&format!("job('look', {{ steps: [sh('{look}')] }})")).await;
    let run = world.api.ended(&run).await;
    let text = world.api.logs(job(&run, "look"), "").await;
    assert_eq!(states(&run), ["look success"], "{text}");
    assert!(text.contains("65534\n") && text.contains("looked\n"), "{text}");
    assert!(!text.contains("reads "), "{text}");
    // Without namespaces the modes alone have to do.
    for name in files {
        let mode = fs::metadata(data.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{name}");
    }
    for name in ["segments", "mirrors", "agent/mirrors", "agent/attempts"] {
        let mode = fs::metadata(data.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{name}");
    }
}

#[tokio::test]
async fn a_user_who_cannot_get_to_the_workspaces_is_refused_with_the_folder() {
    let machine = Machine::new();
    let closed = machine.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(machine.path(""), fs::Permissions::from_mode(0o711)).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o750)).unwrap();
    let data = closed.join("data").display().to_string();
    let args = ["serve", "--data", &data, "--listen", "127.0.0.1:0", "--with-agent"];
    let args = [&args[..], &["--run-as", "nobody"]].concat();
    let refused = machine.run(&args).await;
    assert_ne!(refused.code, 0);
    let want = format!("the user 'nobody' for commands cannot get into {}:", closed.display());
    assert!(refused.err.contains(&want), "{}", refused.err);
    // Its group's x is enough, for a member.
    chown(&closed, None, Some(65534)).unwrap();
    let mut server = machine.start(&args);
    server.says("serving ").await;
    until("an agent", async || {
        let list = machine.run(&["admin", "agent", "list", "--data", &data, "--json"]).await.json();
        (list["items"][0]["connected"] == true).then_some(())
    })
    .await;
}
