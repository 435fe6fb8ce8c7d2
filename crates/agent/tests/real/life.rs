//! What happens to an attempt when the processes around it die.

use std::time::{Duration, Instant};

use shuntyard_protocol::{
    Outcome,
    agent::{Timers, ToAgent},
};

use crate::{
    coordinator::Manners,
    world::{World, kill, runs, sh, unique_sleep, until},
};

#[tokio::test]
async fn a_job_runs_to_its_end_and_leaves_nothing() {
    let world = World::new(Manners::default()).await;
    let id = world.submit(vec![sh("echo one; echo two >&2; pwd"), sh("echo $SHUNT_RUN_NUMBER")]);
    let seen = world.coordinator.ended(id).await;
    let end = seen.end().unwrap();
    assert_eq!(end.outcome, Outcome::Success, "{end:?} {seen:?}");
    assert!(seen.text(1).starts_with("one\ntwo\n/"), "{}", seen.text(1));
    assert_eq!(seen.text(2), "7\n");
    assert_eq!(end.ends[&2], 2);
    world.gone(id).await;
    assert!(!world.data().join("work").join(id.to_string()).exists());
}

#[tokio::test]
async fn a_killed_agent_finds_its_attempt_again_and_every_line_is_there_once() {
    let mut world = World::new(Manners::default()).await;
    let id = world.submit(vec![sh("for i in $(seq 1 400); do echo line $i; sleep 0.01; done")]);
    world.coordinator.until(id, "some output", |seen| seen.text(1).contains("line 20\n")).await;
    world.kill_agent();
    world.start_agent();
    let seen = world.coordinator.ended(id).await;
    assert_eq!(seen.end().unwrap().outcome, Outcome::Success);
    let expected: Vec<_> = (1..=400).map(|i| format!("line {i}")).collect();
    assert_eq!(seen.text(1).lines().collect::<Vec<_>>(), expected);
    let held = &world.coordinator.hellos()[1].attempts[0];
    assert!(held.alive && held.key.is_some(), "{held:?}");
    world.gone(id).await;
}

#[tokio::test]
async fn a_job_that_ends_while_its_agent_is_away_is_reported_later() {
    let mut world = World::new(Manners::default()).await;
    let flag = world.temp.path().join("flag");
    let id = world.submit(vec![sh(&format!(
        "echo begun; while ! [ -e {} ]; do sleep 0.02; done; echo done",
        flag.display()
    ))]);
    world.coordinator.until(id, "the first line", |seen| seen.text(1) == "begun\n").await;
    world.kill_agent();
    std::fs::write(&flag, "").unwrap();
    let spool = world.data().join("attempts").join(id.to_string()).join("spool/facts-0000000001");
    until("the end in the spool", || {
        std::fs::read(&spool)
            .is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains("\"ended\""))
    })
    .await;
    world.start_agent();
    let seen = world.coordinator.ended(id).await;
    assert_eq!(
        (seen.end().unwrap().outcome, seen.text(1).as_str()),
        (Outcome::Success, "begun\ndone\n")
    );
    world.gone(id).await;
}

#[tokio::test]
async fn a_killed_supervisor_is_lost_with_a_gap_and_nothing_survives() {
    let world = World::new(Manners::default()).await;
    let sleep = unique_sleep();
    let id = world.submit(vec![
        sh("echo whole"),
        sh(&format!("echo cut; setsid sleep {sleep} & sleep {sleep}")),
    ]);
    world.coordinator.until(id, "output", |seen| seen.text(2) == "cut\n").await;
    until("the sleeps", || runs(&sleep)).await;
    kill(world.supervisor(id), 9);
    let seen = world.coordinator.ended(id).await;
    let end = seen.end().unwrap();
    assert_eq!((end.outcome, end.torn.as_slice()), (Outcome::Lost, &[2][..]), "{end:?}");
    assert_eq!(end.ends[&1], 6);
    assert!(!runs(&sleep), "nothing of it survives");
    world.gone(id).await;
}

#[tokio::test]
async fn without_renewals_the_attempt_fences_itself_before_the_release() {
    let timers =
        Timers { renew_ms: 100, fence_term_ms: 1500, fence_kill_ms: 700, reservation_ms: 9000 };
    let manners = Manners { timers, release_ms: 3000, renews: false, ..Manners::default() };
    let world = World::new(manners).await;
    let sleep = unique_sleep();
    let id =
        world.submit(vec![sh(&format!("trap '' TERM; echo up; sleep {sleep}; sleep {sleep}"))]);
    world.coordinator.until(id, "it to begin", |seen| seen.begun).await;
    let begun = Instant::now();
    world.coordinator.until(id, "output", |seen| seen.text(1) == "up\n").await;
    let seen = world.coordinator.ended(id).await;
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!(seen.end().unwrap().outcome, Outcome::Lost);
    assert!(!runs(&sleep));
}

#[tokio::test]
async fn a_stopped_supervisor_is_ended_by_the_kernel() {
    let timers =
        Timers { renew_ms: 100, fence_term_ms: 1500, fence_kill_ms: 700, reservation_ms: 9000 };
    let manners = Manners { timers, release_ms: 3000, ..Manners::default() };
    let world = World::new(manners).await;
    let sleep = unique_sleep();
    let id = world.submit(vec![sh(&format!("echo up; sleep {sleep}"))]);
    world.coordinator.until(id, "output", |seen| seen.text(1) == "up\n").await;
    kill(world.supervisor(id), 19);
    let seen = world.coordinator.ended(id).await;
    assert_eq!(seen.end().unwrap().outcome, Outcome::Lost);
    assert!(!runs(&sleep));
}

#[tokio::test]
async fn a_superseded_attempt_ends_and_leaves_nothing() {
    let world = World::new(Manners::default()).await;
    let sleep = unique_sleep();
    let id = world.submit(vec![sh(&format!("echo up; sleep {sleep}"))]);
    world.coordinator.until(id, "output", |seen| seen.text(1) == "up\n").await;
    world.coordinator.order(ToAgent::Superseded { id });
    world.gone(id).await;
    assert!(!runs(&sleep));
    assert!(world.coordinator.seen(id).end().is_none());
}

#[tokio::test]
async fn an_attempt_that_the_coordinator_does_not_want_back_is_killed() {
    let mut world = World::new(Manners::default()).await;
    let sleep = unique_sleep();
    let id = world.submit(vec![sh(&format!("echo up; sleep {sleep}"))]);
    world.coordinator.until(id, "output", |seen| seen.text(1) == "up\n").await;
    world.kill_agent();
    world.coordinator.condemn(id);
    world.start_agent();
    world.gone(id).await;
    assert!(!runs(&sleep));
}

#[tokio::test]
async fn a_cancelled_command_gets_its_grace() {
    let world = World::new(Manners::default()).await;
    let id = world.submit(vec![
        sh("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done"),
        sh("echo no"),
    ]);
    world.coordinator.until(id, "output", |seen| seen.text(1) == "up\n").await;
    world.coordinator.order(ToAgent::Cancel { id, force: false, reason: "by hand".into() });
    let seen = world.coordinator.ended(id).await;
    let end = seen.end().unwrap();
    assert_eq!((end.outcome, end.reason.as_deref()), (Outcome::Cancelled, Some("by hand")));
    // In between the shell says what became of its `sleep`, which got the signal too.
    assert!(
        seen.text(1).starts_with("up\n") && seen.text(1).ends_with("bye\n"),
        "{}",
        seen.text(1)
    );
    assert_eq!(seen.step(0).unwrap().exit_code, Some(3));
    assert_eq!(seen.step(1).unwrap().outcome, Outcome::Cancelled);
    assert_eq!(seen.text(2), "");
}

#[tokio::test]
async fn a_command_that_ignores_the_cancel_is_killed_after_the_grace() {
    let world = World::new(Manners::default()).await;
    let id =
        world.submit(vec![sh("trap '' INT TERM HUP; echo up; while sleep 0.1; do date; done")]);
    world.coordinator.until(id, "output", |seen| seen.text(1).starts_with("up\n")).await;
    let cancelled = Instant::now();
    world.coordinator.order(ToAgent::Cancel { id, force: false, reason: "by hand".into() });
    let seen = world.coordinator.ended(id).await;
    assert!(cancelled.elapsed() >= Duration::from_millis(1900));
    assert_eq!(seen.end().unwrap().outcome, Outcome::Cancelled);
    assert_eq!(seen.step(0).unwrap().exit_code, Some(137));
}

#[tokio::test]
async fn a_forced_cancel_does_not_wait() {
    let world = World::new(Manners::default()).await;
    let id = world.submit(vec![sh("trap '' TERM; echo up; while :; do sleep 0.1; done")]);
    world.coordinator.until(id, "output", |seen| seen.text(1) == "up\n").await;
    let cancelled = Instant::now();
    world.coordinator.order(ToAgent::Cancel { id, force: true, reason: "now".into() });
    let seen = world.coordinator.ended(id).await;
    assert!(cancelled.elapsed() < Duration::from_millis(1500), "{:?}", cancelled.elapsed());
    assert_eq!(seen.end().unwrap().outcome, Outcome::Cancelled);
}

#[tokio::test]
async fn nothing_runs_before_the_permission_and_a_supervisor_that_dies_then_abandons() {
    let world = World::new(Manners { permits: false, ..Manners::default() }).await;
    let flag = world.temp.path().join("flag");
    let id = world.submit(vec![sh(&format!("touch {}", flag.display()))]);
    world.coordinator.until(id, "it to ask", |seen| seen.begun).await;
    kill(world.supervisor(id), 9);
    let seen =
        world.coordinator.until(id, "it to be given up", |seen| seen.abandoned.is_some()).await;
    assert_eq!(seen.abandoned.unwrap(), "its supervisor ended before it began");
    assert!(!flag.exists());
    world.gone(id).await;
}

#[tokio::test]
async fn a_permission_that_was_lost_with_the_link_is_asked_for_again() {
    let mut world = World::new(Manners { permits: false, ..Manners::default() }).await;
    let id = world.submit(vec![sh("echo up")]);
    world.coordinator.until(id, "it to ask", |seen| seen.begun).await;
    world.kill_agent();
    world.coordinator.mind(|manners| manners.permits = true);
    world.start_agent();
    let seen = world.coordinator.ended(id).await;
    assert_eq!((seen.end().unwrap().outcome, seen.text(1).as_str()), (Outcome::Success, "up\n"));
    assert_eq!(world.coordinator.hellos()[1].attempts[0].key, None);
}

#[tokio::test]
async fn an_attempt_that_is_cancelled_before_it_began_runs_nothing() {
    let world = World::new(Manners { permits: false, ..Manners::default() }).await;
    let id = world.submit(vec![sh("echo up")]);
    world.coordinator.until(id, "it to ask", |seen| seen.begun).await;
    world.coordinator.order(ToAgent::Cancel { id, force: false, reason: "by hand".into() });
    let seen =
        world.coordinator.until(id, "it to be given up", |seen| seen.abandoned.is_some()).await;
    assert!(seen.streams.is_empty());
    world.gone(id).await;
}

#[tokio::test]
async fn an_attempt_of_which_only_the_log_is_wanted_is_ended_and_its_log_sent() {
    let mut world = World::new(Manners::default()).await;
    let flag = world.temp.path().join("flag");
    let sleep = unique_sleep();
    let id = world.submit(vec![sh(&format!(
        "echo up; until [ -e {} ]; do sleep 0.02; done; echo written while away; sleep {sleep}",
        flag.display()
    ))]);
    world.coordinator.until(id, "output", |seen| seen.text(1) == "up\n").await;
    world.kill_agent();
    std::fs::write(&flag, "").unwrap();
    until("the second sleep", || runs(&sleep)).await;
    world.coordinator.finish(id);
    world.start_agent();
    world.gone(id).await;
    assert_eq!(world.coordinator.seen(id).text(1), "up\nwritten while away\n");
    assert!(!runs(&sleep));
}
