//! Cancel, rerun, and why a job waits.

use crate::{
    gate::Gate,
    machine::{running, unique_sleep, until},
    web::{job, states},
    world::{Db, World},
};

/// A job that does not want to end: it ignores SIGTERM, and so does what it left in another session.
fn stubborn(sleeps: &[String; 2], gate: &Gate, grace: &str) -> String {
    let [own, other] = sleeps;
    let command =
        format!("trap \"\" TERM; setsid sleep {other} & sleep {own} & {}; wait", gate.wait());
    format!("job('stubborn', {{ gracePeriod: '{grace}', steps: [sh('stay', '{command}')] }})")
}

async fn gone(sleeps: &[String; 2]) {
    until("every process to be gone", async || {
        sleeps.iter().all(|sleep| running(sleep) == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_graceful_cancel_reaches_what_ignores_it_after_the_grace() {
    let world = World::with_agent(Db::Sqlite).await;
    let (gate, sleeps) = (Gate::new().await, [unique_sleep(), unique_sleep()]);
    let polite = Gate::new().await;
    let jobs = format!(
        "{}, job('polite', {{ steps: [sh('trap \"echo tidied up; exit 0\" TERM; {}; true')] }}), \
         job('later', {{ needs: ['stubborn'], steps: [sh('true')] }})",
        stubborn(&sleeps, &gate, "300ms"),
        polite.wait()
    );
    let run = world.run(&jobs).await;
    let waiting = (gate.reached().await, polite.reached().await);
    until("both to sleep", async || sleeps.iter().all(|sleep| running(sleep) == 1).then_some(()))
        .await;
    world.shunt(&["runs", "cancel", &run]).await.ok();
    let run = world.api.ended(&run).await;
    assert_eq!(run["run"]["state"], "cancelled", "{run}");
    assert_eq!(states(&run), ["stubborn cancelled", "polite cancelled", "later cancelled"]);
    assert!(run["run"]["reason"].as_str().unwrap().contains("by "), "{run}");
    gone(&sleeps).await;
    world.api.logs(job(&run, "polite"), "tidied up").await;
    drop(waiting);
    let id = run["run"]["id"].as_str().unwrap();
    let again = world.shunt(&["runs", "cancel", id]).await;
    assert_eq!(again.code, 2, "{}", again.err);
}

#[tokio::test]
async fn a_forced_cancel_does_not_wait_for_the_grace() {
    let world = World::with_agent(Db::Sqlite).await;
    let (gate, sleeps) = (Gate::new().await, [unique_sleep(), unique_sleep()]);
    let run = world.run(&stubborn(&sleeps, &gate, "10m")).await;
    let _waiting = gate.reached().await;
    // A second, forced one overtakes the first.
    world.shunt(&["runs", "cancel", &run]).await.ok();
    world.shunt(&["runs", "cancel", "--force", &run]).await.ok();
    assert_eq!(world.api.ended(&run).await["run"]["state"], "cancelled");
    gone(&sleeps).await;
}

#[tokio::test]
async fn what_a_step_leaves_behind_ends_with_its_job() {
    let world = World::with_agent(Db::Sqlite).await;
    let sleep = unique_sleep();
    let command = format!("setsid sleep {sleep} > /dev/null 2>&1 & disown; true");
    let run = world.run(&format!("job('leave', {{ steps: [sh('{command}')] }})")).await;
    assert_eq!(world.api.ended(&run).await["run"]["state"], "success");
    gone(&[sleep.clone(), sleep]).await;
}

#[tokio::test]
async fn a_rerun_repeats_all_or_only_what_failed() {
    let world = World::with_agent(Db::Sqlite).await;
    let (first, second) = (world.machine.path("first"), world.machine.path("second"));
    let jobs = format!(
        "job('good', {{ steps: [step('out', async ({{ $ }}) => {{ await $`echo x >> {}`; return {{ value: 7 }}; }})] }}),
         job('bad', {{ needs: ['good'], steps: [
           step('use', ({{ needs, log }}) => log(`value ${{needs.good.outputs.out.value}}`)),
           sh('echo x >> {}; false'),
         ] }}),
         job('after', {{ needs: ['bad'], steps: [sh('true')] }})",
        first.display(),
        second.display()
    );
    let run = world.run(&jobs).await;
    let expected = ["good success", "bad failed", "after skipped"];
    let run = world.api.ended(&run).await;
    assert_eq!(states(&run), expected);
    let id = run["run"]["id"].as_str().unwrap();
    let times = |path: &std::path::Path| std::fs::read_to_string(path).unwrap().lines().count();

    let all = world.shunt(&["runs", "rerun", id]).await.ok();
    let all = world.api.ended(all.trim()).await;
    assert_eq!(all["run"]["rerun_of"], id);
    assert_eq!(states(&all), expected);
    assert_eq!((times(&first), times(&second)), (2, 2));

    let failed = world.shunt(&["runs", "rerun", "--failed", id]).await.ok();
    let failed = world.api.ended(failed.trim()).await;
    assert_eq!(states(&failed), expected);
    assert_eq!((times(&first), times(&second)), (2, 3), "what had succeeded did not run again");
    world.api.logs(job(&failed, "bad"), "value 7").await;
    // What was taken over is there as it was.
    let (good, before) = (job(&failed, "good"), job(&run, "good"));
    assert_eq!((&good["carried_from"], &good["steps"]), (&before["id"], &before["steps"]));
    assert_eq!(good["steps"][0]["state"], "success");
    assert_eq!(world.api.raw(good, None).await, world.api.raw(before, None).await);
    let failed = failed["run"]["id"].as_str().unwrap();
    let shown = world.shunt(&["runs", "show", failed]).await.ok();
    assert!(shown.contains("success  good  as before"), "{shown}");
    let logs = world.shunt(&["runs", "logs", failed]).await;
    assert!(logs.out.contains("source ") && logs.err.is_empty(), "{}{}", logs.out, logs.err);

    let unknown = world.shunt(&["runs", "rerun", "run_00000000000000000000000000"]).await;
    assert_eq!(unknown.code, 2);
}

#[tokio::test]
async fn the_queue_says_why_a_job_waits() {
    let mut world = World::new(Db::Sqlite).await;
    let gate = Gate::new().await;
    let jobs = format!(
        "job('first', {{ priority: 5, steps: [sh('{}')] }}), job('second', {{ steps: [sh('true')] }}), \
         job('special', {{ runsOn: 'gpu', steps: [sh('true')] }})",
        gate.wait()
    );
    let run = world.run(&jobs).await;
    assert!(why(&world, "first").await.unwrap().starts_with("no agent is connected"));
    world.agent("small", &["--slots", "1"]).await;
    let waiting = gate.reached().await;
    assert_eq!(why(&world, "second").await.unwrap(), "the one agent that can run it is full");
    assert_eq!(why(&world, "special").await.unwrap(), "no connected agent has gpu");
    assert_eq!(why(&world, "first").await, None);
    let shown = world.shunt(&["queue"]).await.ok();
    assert!(shown.contains("no connected agent has gpu"), "{shown}");

    waiting.go().await;
    world.agent("big", &["--label", "gpu"]).await;
    assert_eq!(world.api.ended(&run).await["run"]["state"], "success");
}

#[tokio::test]
async fn a_drained_agent_takes_nothing_even_after_it_was_away_until_it_is_resumed() {
    let mut world = World::new(Db::Sqlite).await;
    world.agent("a", &[]).await;
    let agents = world.api.get("/agents").await;
    let id = agents["items"][0]["id"].as_str().unwrap().to_owned();
    world.shunt(&["admin", "agent", "drain", &id]).await.ok();
    world.agents.clear();
    world.agent_again("a", &[]).await;
    let run = world.run("job('a', { steps: [sh('true')] })").await;
    assert_eq!(why(&world, "a").await.unwrap(), "the one agent that can run it is full");
    let listed = world.shunt(&["admin", "agent", "list"]).await.ok();
    assert!(listed.contains("draining"), "{listed}");
    world.shunt(&["admin", "agent", "resume", &id]).await.ok();
    assert_eq!(world.api.ended(&run).await["run"]["state"], "success");
}

#[tokio::test]
async fn an_agent_that_was_told_to_drain_ends_after_its_job_and_takes_jobs_at_its_next_start() {
    let mut world = World::with_agent(Db::Sqlite).await;
    let gate = Gate::new().await;
    let run = world.run(&format!("job('a', {{ steps: [sh('{}')] }})", gate.wait())).await;
    let waiting = gate.reached().await;
    world.agents[0].signal(rustix::process::Signal::INT);
    until("the agent to drain", async || world.agents[0].err().contains("draining").then_some(()))
        .await;
    waiting.go().await;
    assert_eq!(world.agents[0].end().await, 0);
    assert_eq!(world.api.ended(&run).await["run"]["state"], "success");
    let again = world.shunt(&["runs", "rerun", &run]).await.ok();
    world.agent_again("a", &[]).await;
    let second = gate.reached().await;
    second.go().await;
    assert_eq!(world.api.ended(again.trim()).await["run"]["state"], "success");
}

async fn why(world: &World, title: &str) -> Option<String> {
    let queue = world.api.get("/queue").await;
    let items = queue["items"].as_array().unwrap();
    let item = items.iter().find(|item| item["title"] == format!("ci: {title}"))?;
    Some(item["waiting"].as_str().unwrap().to_owned())
}
