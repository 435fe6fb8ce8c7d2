//! What a server refuses to start with, and how it protects what it keeps.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

use serde_json::json;

use crate::{
    machine::Machine,
    on_both,
    web::Api,
    world::{Db, World},
};

on_both!(a_wrong_master_key_is_refused);

async fn a_wrong_master_key_is_refused(db: Db) {
    let mut world = World::new(db).await;
    world.repository("web").await;
    let key = world.data().join("master.key");
    let right = fs::read(&key).unwrap();
    world.server.kill();
    fs::write(&key, "ab".repeat(32)).unwrap();
    let refused = world.serve().done().await;
    assert_ne!(refused.code, 0);
    assert!(refused.err.contains("another master key"), "{}", refused.err);
    fs::write(&key, "not hexadecimal").unwrap();
    let refused = world.serve().done().await;
    assert!(refused.code != 0 && refused.err.contains("master.key"), "{}", refused.err);
    fs::write(&key, right).unwrap();
    world.start_again().await;
    assert_eq!(world.api.get("/sources").await["items"][0]["name"], "web");
}

#[tokio::test]
async fn secrets_on_disk_are_the_owners_alone() {
    let world = World::new(Db::Sqlite).await;
    let mode = |name: &str| fs::metadata(world.data().join(name)).unwrap().permissions().mode();
    assert_eq!(mode("") & 0o777, 0o700);
    for name in ["master.key", "admin-token", "endpoint.json"] {
        assert_eq!(mode(name) & 0o777, 0o600, "{name}");
    }
    // The secret of a webhook is sealed in the database.
    world.repository("web").await;
    for file in ["shuntyard.db", "shuntyard.db-wal"] {
        let bytes = fs::read(world.data().join(file)).unwrap();
        let secret = crate::world::SECRET.as_bytes();
        assert!(!bytes.windows(secret.len()).any(|part| part == secret), "{file}");
    }
    let source = world.api.get("/sources").await.to_string();
    assert!(!source.contains(crate::world::SECRET), "{source}");
}

#[tokio::test]
async fn an_unknown_setting_is_refused_with_the_nearest_one() {
    let machine = Machine::new();
    let file = machine.path("shunt.toml");
    fs::write(&file, "[webhook]\nmax_byte = 5\n").unwrap();
    let args = ["serve", "--data", "data", "--config", file.to_str().unwrap()];
    let refused = machine.run(&args).await;
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("'max_byte'; did you mean 'max_bytes'?"), "{}", refused.err);
    let mut command = machine.command(&["serve", "--data", "data"]);
    command.env("SHUNT_LISTN", "127.0.0.1:0");
    let refused = machine.spawn(command, "serve").done().await;
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("did you mean 'listen'?"), "{}", refused.err);
    let flag = machine.run(&["serve", "--data", "data", "--lisen", "127.0.0.1:0"]).await;
    assert!(flag.code == 2 && flag.err.contains("--listen"), "{}", flag.err);
}

#[tokio::test]
async fn flags_go_over_the_environment_and_that_over_the_file() {
    let machine = Machine::new();
    let file = machine.path("shunt.toml");
    fs::write(&file, "public_url = 'https://file.example'\nlisten = '127.0.0.1:1'\n").unwrap();
    let args = ["serve", "--config", file.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let mut command = machine.command(&args);
    let data = machine.path("data");
    command.env("SHUNT_DATA_DIR", &data).env("SHUNT_PUBLIC_URL", "https://env.example");
    let mut server = machine.spawn(command, "serve");
    let out = server.says("serving ").await;
    assert!(out.contains("serving https://env.example"), "{out}");
    let endpoint = fs::read_to_string(data.join("endpoint.json")).unwrap();
    let endpoint: serde_json::Value = serde_json::from_str(&endpoint).unwrap();
    let token = fs::read_to_string(data.join("admin-token")).unwrap();
    let api = Api::new(endpoint["url"].as_str().unwrap(), &token);
    let source = json!({ "name": "web", "kind": "github", "url": "https://git.example/web.git" });
    let source = api.post("/sources", &source).await;
    assert_eq!(source["webhook_url"], "https://env.example/webhooks/default/web");
}

#[tokio::test]
async fn beyond_loopback_it_wants_tls_or_a_proxy() {
    let machine = Machine::new();
    let refused = machine.run(&["serve", "--data", "data", "--listen", "0.0.0.0:0"]).await;
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("tls.cert"), "{}", refused.err);
    let half = machine.run(&["serve", "--data", "data", "--tls-cert", "x"]).await;
    assert_eq!(half.code, 2);
    let args =
        ["serve", "--data", "data", "--listen", "0.0.0.0:0", "--behind-proxy", "127.0.0.0/8"];
    let mut behind = machine.start(&args);
    behind.says("serving ").await;
}

/// A certificate for this machine that nobody signed but itself, and its key.
fn certificate(machine: &Machine) -> [String; 2] {
    let [config, cert, key] =
        ["tls.cnf", "cert.pem", "key.pem"].map(|name| machine.path(name).display().to_string());
    fs::write(
        &config,
        "[req]\ndistinguished_name = dn\nx509_extensions = ext\nprompt = no\n[dn]\nCN = localhost\n\
         [ext]\nsubjectAltName = IP:127.0.0.1, DNS:localhost\nbasicConstraints = CA:FALSE\n",
    )
    .unwrap();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-nodes", "-days", "2", "-config", &config, "-keyout", &key, "-out", &cert])
        .output()
        .expect("this test needs the program openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    [cert, key]
}

#[tokio::test]
async fn with_tls_commands_here_and_agents_with_the_authority_get_through() {
    let machine = Machine::new();
    let [cert, key] = certificate(&machine);
    let data = machine.path("server").display().to_string();
    let serve = ["serve", "--data", &data, "--listen", "127.0.0.1:0", "--with-agent"];
    let mut server =
        machine.start(&[&serve[..], &["--tls-cert", &cert, "--tls-key", &key]].concat());
    let out = server.says("serving ").await;
    let url = out.split_whitespace().nth(1).unwrap();
    assert!(url.starts_with("https://127.0.0.1:"), "{out}");
    let token = machine.run(&["admin", "agent", "create-token", "--data", &data]).await.ok();
    let file = machine.path("token");
    fs::write(&file, token).unwrap();
    let agent = ["agent", "--coordinator", url, "--data", "agent", "--name", "elsewhere"];
    let agent = [&agent[..], &["--enrol-token-file", file.to_str().unwrap()]].concat();
    let mut stranger = machine.start(&agent);
    stranger.says("no link to").await;
    drop(stranger);
    let mut agent = machine.start(&[&agent[..], &["--ca-file", &cert]].concat());
    agent.says("connected to").await;
    crate::machine::until("the agent inside and the one elsewhere", async || {
        let list = machine.run(&["admin", "agent", "list", "--data", &data, "--json"]).await.json();
        let agents = list["items"].as_array()?.clone();
        (agents.iter().filter(|agent| agent["connected"] == true).count() == 2).then_some(())
    })
    .await;
    let plain = reqwest::get(url.replace("https", "http")).await;
    assert!(plain.is_err(), "{plain:?}");
}

#[tokio::test]
async fn an_agent_that_may_not_is_told_so() {
    let world = World::new(Db::Sqlite).await;
    let file = world.machine.path("token");
    fs::write(&file, "shunt_guessed").unwrap();
    let args = ["agent", "--coordinator", &world.api.url, "--data", "x"];
    let args = [args.as_slice(), &["--enrol-token-file", file.to_str().unwrap()]].concat();
    let mut agent = world.machine.start(&args);
    crate::machine::until("the agent to be turned away", async || {
        (agent.err() + &agent.out()).contains("turned this agent away").then_some(())
    })
    .await;
    assert!(!agent.has_ended(), "the coordinator may change its mind");
    assert_eq!(world.api.get("/agents").await["items"], json!([]));
}

#[tokio::test]
async fn a_token_admits_as_many_agents_as_it_says_and_a_revoked_one_stays_out() {
    let mut world = World::new(Db::Sqlite).await;
    world.agent("a", &[]).await;
    let agents = world.api.get("/agents").await;
    let id = agents["items"][0]["id"].as_str().unwrap().to_owned();
    world.shunt(&["admin", "agent", "revoke", &id]).await.ok();
    let again = &mut world.agents[0];
    crate::machine::until("the agent to be turned away", async || {
        (again.err() + &again.out()).contains("turned this agent away").then_some(())
    })
    .await;
}
