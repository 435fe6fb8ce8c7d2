//! `kill -9` in the middle, then a start: the right result, every line once.

use rustix::process::Signal;

use crate::{
    gate::Gate,
    on_both,
    web::job,
    world::{Db, World},
};

on_both!(
    a_killed_coordinator_loses_and_repeats_nothing,
    a_killed_agent_loses_and_repeats_nothing,
    killing_both_loses_and_repeats_nothing,
);

/// Lines before, and after, the kill.
const LINES: usize = 3000;

enum Victim {
    Coordinator,
    Agent,
    Both,
}

async fn a_killed_coordinator_loses_and_repeats_nothing(db: Db) {
    kill(db, &Victim::Coordinator).await;
}

async fn a_killed_agent_loses_and_repeats_nothing(db: Db) {
    kill(db, &Victim::Agent).await;
}

async fn killing_both_loses_and_repeats_nothing(db: Db) {
    kill(db, &Victim::Both).await;
}

/// The job goes on, and may end, while those who brought it about are dead.
async fn kill(db: Db, victim: &Victim) {
    let mut world = World::with_agent(db).await;
    let gate = Gate::new().await;
    let command = format!("seq 1 {LINES}; {}; seq {} {}", gate.wait(), LINES + 1, 2 * LINES);
    let next = "job('next', { needs: ['count'], steps: [sh('echo went on')] })";
    let jobs = format!("job('count', {{ steps: [sh('count', '{command}')] }}), {next}");
    let run = world.run(&jobs).await;
    let waiting = gate.reached().await;
    // The middle of a run includes the middle of its log.
    let count = job(&world.api.run(&run).await, "count").clone();
    world.api.logs(&count, "\n100\n").await;

    let (coordinator, agent) = match victim {
        Victim::Coordinator => (true, false),
        Victim::Agent => (false, true),
        Victim::Both => (true, true),
    };
    if agent {
        world.agents[0].kill();
    }
    if coordinator {
        world.server.kill();
    }
    waiting.go().await;
    if coordinator {
        world.start_again().await;
    }
    if agent {
        world.agent_again("a", &["--slots", "2"]).await;
    }
    let run = world.api.ended(&run).await;
    assert_eq!(run["run"]["state"], "success", "{run}");
    let count = job(&run, "count");
    assert_eq!(count["attempt"], 1, "the supervisor went on");
    let expected = crate::numbered(1..=2 * LINES);
    let log = world.api.whole(count, Some(1)).await;
    assert!(log == expected.as_bytes(), "{}", String::from_utf8_lossy(&log));
}

#[tokio::test]
async fn an_upgraded_agent_finds_its_supervisors_which_go_on_with_what_they_were() {
    let mut world = World::new(Db::Sqlite).await;
    world.machine.install();
    world.agent("a", &[]).await;
    let gate = Gate::new().await;
    let jobs = format!(
        "job('count', {{ steps: [sh('count', 'seq 1 9; {}; seq 10 19'), \
         step('late', ({{ log }}) => log('a function'))] }})",
        gate.wait()
    );
    let run = world.run(&jobs).await;
    let waiting = gate.reached().await;
    world.agents[0].signal(Signal::TERM);
    assert_eq!(world.agents[0].end().await, 0);
    world.machine.install();
    world.agent_again("a", &[]).await;
    waiting.go().await;
    let run = world.api.ended(&run).await;
    let count = job(&run, "count");
    assert_eq!((&count["state"], &count["attempt"]), (&"success".into(), &1.into()), "{run}");
    let log = world.api.whole(count, None).await;
    let want = crate::numbered(1..=19) + "a function\n";
    assert!(log.ends_with(want.as_bytes()), "{}", String::from_utf8_lossy(&log));
}

#[tokio::test]
async fn a_webhook_that_was_answered_survives_the_coordinator() {
    let mut world = World::new(Db::Sqlite).await;
    let web = world.repository("web").await;
    let jobs = crate::world::ci("job('a', { steps: [sh('echo hi')] })");
    let commit = web.commit("main", &[(crate::world::CI, &jobs)]).unwrap();
    let hook = web.push("1", "refs/heads/main", None, &commit);
    let (status, answer) = world.api.deliver("web", Some(crate::world::SECRET), &hook).await;
    world.server.kill();
    assert_eq!(status, 202);
    world.start_again().await;
    let again = world.api.deliver("web", Some(crate::world::SECRET), &hook).await;
    assert_eq!(again.0, 200, "it is known: {}", again.1);
    world.agent("a", &[]).await;
    // Its lease may still be that of the dead coordinator, which its successor must notice.
    let delivery = world.api.settled(&answer["delivery"]).await;
    assert_eq!(delivery["state"], "done", "{delivery}");
    let runs = world.api.runs_of(&delivery).await;
    assert_eq!(world.api.ended(&runs[0]).await["run"]["state"], "success");
}
