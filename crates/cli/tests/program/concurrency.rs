//! Concurrency groups: who waits, who goes on, who is cancelled, and what people are told.

use serde_json::Value;

use crate::{
    gate::Gate,
    machine::until,
    web::states,
    world::{CI, Db, World},
};

/// A workflow `ci` of one job whose command is in place of `$`, with these options.
fn workflow(options: &str, command: &str) -> String {
    format!(
        "import {{ job, push, sh, workflow }} from 'shuntyard';\n\
         export default workflow('ci', {{ on: push(), {options}, \
         jobs: [job('ship', {{ gracePeriod: '1s', steps: [sh('{command}')] }})] }});\n"
    )
}

async fn one_after_the_other(db: Db) {
    let world = World::with_agent(db).await;
    let repository = world.repository("web").await;
    let gate = Gate::new().await;
    let file = workflow("concurrency: 'deploy'", &gate.wait());
    let first = world.push(&repository, &[(CI, &file)]).await[0].clone();
    let holding = gate.reached().await;
    let second = world.push(&repository, &[(CI, &file), ("a", "1")]).await[0].clone();
    let third = world.push(&repository, &[(CI, &file), ("a", "2")]).await[0].clone();
    let why = "waits for concurrency group 'deploy' (1 slot), held by ci #1";
    assert_eq!(world.api.run(&second).await["waiting"], why);
    let queue = world.api.get("/queue").await;
    assert_eq!(queue["items"][0]["run"], second.as_str(), "{queue}");
    assert_eq!(queue["items"][0]["waiting"], why);
    assert_eq!(queue["items"][1]["waiting"], format!("{why}; 1 waits before it"));
    assert!(world.shunt(&["queue"]).await.ok().contains(why));
    assert!(world.shunt(&["runs", "show", &second]).await.ok().contains(why));
    // Whoever waits holds no agent: this one has two slots, and another repository finds one.
    let other = world.repository("other").await;
    let file = workflow("concurrency: 'deploy'", "true");
    let beside = world.push(&other, &[(CI, &file)]).await[0].clone();
    assert_eq!(world.api.ended(&beside).await["run"]["state"], "success");

    world.shunt(&["runs", "cancel", &second]).await.ok();
    assert_eq!(world.api.ended(&second).await["run"]["state"], "cancelled");
    holding.go().await;
    assert_eq!(world.api.ended(&first).await["run"]["state"], "success");
    gate.reached().await.go().await;
    assert_eq!(world.api.ended(&third).await["run"]["state"], "success");
    assert_eq!(world.api.run(&third).await.get("waiting"), None);
}

#[tokio::test]
async fn runs_of_a_group_go_one_after_the_other() {
    one_after_the_other(Db::Sqlite).await;
}

#[tokio::test]
async fn runs_of_a_group_go_one_after_the_other_with_postgresql() {
    one_after_the_other(Db::Postgres).await;
}

#[tokio::test]
async fn the_newest_cancels_what_is_under_way() {
    let world = World::with_agent(Db::Sqlite).await;
    let repository = world.repository("web").await;
    let gate = Gate::new().await;
    let options = "concurrency: { group: 'preview', cancelInProgress: true }";
    let file = workflow(options, &gate.wait());
    let first = world.push(&repository, &[(CI, &file)]).await[0].clone();
    let _cancelled = gate.reached().await;
    let second = world.push(&repository, &[(CI, &file), ("a", "1")]).await[0].clone();
    let first = world.api.ended(&first).await;
    assert_eq!(states(&first), ["ship cancelled"]);
    assert_eq!(
        first["run"]["reason"],
        "concurrency group 'preview' makes room for ci #2 by cancelInProgress"
    );
    gate.reached().await.go().await;
    assert_eq!(world.api.ended(&second).await["run"]["state"], "success");
}

#[tokio::test]
async fn jobs_of_a_group_never_run_beside_each_other() {
    let world = World::with_agent(Db::Sqlite).await;
    let (gate, lock) = (Gate::new().await, world.machine.path("lock"));
    let lock = lock.display();
    let jobs = format!(
        "job('ship', {{ matrix: ['a', 'b'], concurrencyGroup: 'ship', \
         steps: [sh('mkdir {lock}; {}; rmdir {lock}')] }})",
        gate.wait()
    );
    let run = world.run(&jobs).await;
    let first = gate.reached().await;
    let held = |run: &Value| {
        let jobs = run["jobs"].as_array().unwrap().clone();
        jobs.into_iter().find(|job| job["state"] == "held")
    };
    let waiting = until("a job to be held", async || held(&world.api.run(&run).await)).await;
    let why = waiting["reason"].as_str().unwrap();
    let expected = "waits for concurrency group 'ship' (1 slot), held by ci #1: ship (";
    assert!(why.starts_with(expected), "{why}");
    first.go().await;
    gate.reached().await.go().await;
    let run = world.api.ended(&run).await;
    assert_eq!(run["run"]["state"], "success", "{run}");
}
