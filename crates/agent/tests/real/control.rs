//! What the owner of an agent can tell it, with the agent inside this process.

use std::{path::PathBuf, time::Duration};

use shuntyard_agent::{
    AgentConfig, Control, Launcher, RunError, SPOOL_QUOTA_BYTES_MIN, Status, run,
};
use shuntyard_protocol::{Outcome, agent::ToAgent};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use crate::{
    coordinator::{Manners, Seen},
    world::{World, runs, sh, unique_sleep, until},
};

struct Inside {
    control: watch::Sender<Control>,
    running: JoinHandle<Result<(), RunError>>,
    events: mpsc::Receiver<Status>,
}

fn start(world: &World) -> Inside {
    start_with(world, |_| {})
}

fn start_with(world: &World, change: impl FnOnce(&mut AgentConfig)) -> Inside {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_shunt-agent"));
    let url = format!("ws://127.0.0.1:{}", world.coordinator.port);
    let mut config =
        AgentConfig::new(world.data(), vec![url], Launcher { program, args: Vec::new() });
    config.slots = 4;
    change(&mut config);
    let (control, receiver) = watch::channel(Control::Run);
    let (sender, events) = mpsc::channel(16);
    let running = tokio::task::spawn(run(config, receiver, Some(sender)));
    Inside { control, running, events }
}

#[tokio::test]
async fn a_draining_agent_takes_nothing_new_and_leaves_when_all_has_ended() {
    let world = World::without_agent(Manners::default()).await;
    let mut inside = start(&world);
    let flag = world.temp.path().join("flag");
    let id = world.submit(vec![sh(&format!(
        "echo up; until [ -e {} ]; do sleep 0.02; done",
        flag.display()
    ))]);
    world.coordinator.until(id, "output", |seen| seen.text(1) == "up\n").await;
    inside.control.send_replace(Control::Drain);
    let late = world.submit(vec![sh("true")]);
    let refused = world.coordinator.until(late, "a refusal", |seen| seen.refused.is_some()).await;
    assert_eq!(refused.refused.unwrap(), "the agent is draining");
    std::fs::write(&flag, "").unwrap();
    let seen = world.coordinator.ended(id).await;
    assert_eq!(seen.end().unwrap().outcome, Outcome::Success);
    inside.running.await.unwrap().unwrap();
    let mut events = Vec::new();
    while let Some(event) = inside.events.recv().await {
        events.push(event);
    }
    assert!(events.contains(&Status::Started { id, name: "build".into() }), "{events:?}");
    assert!(events.contains(&Status::Gone { id }), "{events:?}");
}

#[tokio::test]
async fn cancelling_everything_asks_first_and_reports_the_end() {
    let world = World::without_agent(Manners::default()).await;
    let inside = start(&world);
    let sleep = unique_sleep();
    let id =
        world.submit(vec![sh(&format!("trap 'echo bye; exit 0' TERM; echo up; sleep {sleep}"))]);
    world.coordinator.until(id, "output", |seen| seen.text(1) == "up\n").await;
    inside.control.send_replace(Control::CancelAll { grace: Duration::from_secs(5) });
    inside.running.await.unwrap().unwrap();
    let seen = world.coordinator.ended(id).await;
    assert_eq!(seen.end().unwrap().outcome, Outcome::Cancelled);
    assert!(seen.text(1).ends_with("bye\n"), "{}", seen.text(1));
    assert!(!runs(&sleep));
}

#[tokio::test]
async fn a_stopped_agent_leaves_its_jobs_running_for_the_next_one() {
    let world = World::without_agent(Manners::default()).await;
    let inside = start(&world);
    let flag = world.temp.path().join("flag");
    let id = world.submit(vec![sh(&format!(
        "echo up; until [ -e {} ]; do sleep 0.02; done; echo down",
        flag.display()
    ))]);
    world.coordinator.until(id, "output", |seen| seen.text(1) == "up\n").await;
    inside.control.send_replace(Control::Stop);
    inside.running.await.unwrap().unwrap();
    let next = start(&world);
    std::fs::write(&flag, "").unwrap();
    let seen = world.coordinator.ended(id).await;
    assert_eq!(seen.text(1), "up\ndown\n");
    world.gone(id).await;
    next.control.send_replace(Control::Stop);
    next.running.await.unwrap().unwrap();
}

#[tokio::test]
async fn two_agents_do_not_share_a_data_directory() {
    let world = World::new(Manners::default()).await;
    let id = world.submit(vec![sh("true")]);
    world.coordinator.ended(id).await;
    let second = start(&world);
    assert!(matches!(second.running.await.unwrap(), Err(RunError::DataDirInUse { .. })));
}

#[tokio::test]
async fn an_unacknowledged_log_stops_the_command_and_loses_nothing() {
    const QUOTA: u64 = 2 * 1024 * 1024;
    const WINDOW: usize = 512 * 1024;
    const TOTAL: usize = 20 * 1024 * 1024;
    let manners = Manners { acks_logs: false, ..Manners::default() };
    let world = World::without_agent(manners).await;
    let inside = start_with(&world, |config| config.spool_quota_bytes = QUOTA);
    let id =
        world.submit(vec![sh(&format!("head -c {TOTAL} /dev/zero | tr '\\0' x; echo; echo end"))]);
    let arrived = |seen: &Seen| seen.streams.get(&1).map_or(0, Vec::len);
    world.coordinator.until(id, "a full window", |seen| arrived(seen) == WINDOW).await;
    // The renewals go on past the log that waits.
    let before = world.coordinator.seen(id).renewals;
    let seen = world.coordinator.until(id, "renewals", |seen| seen.renewals > before + 5).await;
    assert_eq!(arrived(&seen), WINDOW, "no more than a window is on its way");
    assert!(seen.step(0).is_none(), "the command waits");
    let spool = world.data().join("attempts").join(id.to_string()).join("spool");
    let files = std::fs::read_dir(spool).unwrap().map(|file| file.unwrap().metadata().unwrap());
    let on_disk: u64 = files.map(|metadata| metadata.len()).sum();
    assert!(on_disk < QUOTA + 256 * 1024, "{on_disk} bytes");
    world.coordinator.mind(|manners| manners.acks_logs = true);
    let seen = world.coordinator.ended(id).await;
    assert_eq!(arrived(&seen), TOTAL + 5);
    assert!(seen.text(1).ends_with("x\nend\n"));
    inside.control.send_replace(Control::Stop);
    inside.running.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_attempt_that_waits_for_room_in_its_spool_can_still_be_ended() {
    let manners = Manners { acks_logs: false, ..Manners::default() };
    let world = World::without_agent(manners).await;
    let few = start_with(&world, |config| config.spool_quota_bytes = SPOOL_QUOTA_BYTES_MIN - 1);
    assert!(matches!(few.running.await.unwrap(), Err(RunError::Setting { .. })));
    let inside = start_with(&world, |config| config.spool_quota_bytes = SPOOL_QUOTA_BYTES_MIN);
    let id = world.submit(vec![sh("yes")]);
    let renewals = |seen: &Seen| seen.renewals > 3 && seen.streams.contains_key(&1);
    world.coordinator.until(id, "it to wait", renewals).await;
    world.coordinator.order(ToAgent::Superseded { id });
    world.gone(id).await;
    inside.control.send_replace(Control::Stop);
    inside.running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_job_that_is_cancelled_between_two_steps_is_no_success() {
    let manners = Manners { acks_logs: false, ..Manners::default() };
    let world = World::without_agent(manners).await;
    let inside = start_with(&world, |config| config.spool_quota_bytes = SPOOL_QUOTA_BYTES_MIN);
    let flag = world.temp.path().join("flag");
    // The command ends by itself, while the last of its output waits for room in the spool.
    let bytes = SPOOL_QUOTA_BYTES_MIN + 64 * 1024;
    let first = format!("head -c {bytes} /dev/zero | tr '\\0' x; touch {}", flag.display());
    let id = world.submit(vec![sh(&first), sh("echo second")]);
    until("the first command to end", || flag.exists()).await;
    let before = world.coordinator.seen(id).renewals;
    world.coordinator.until(id, "renewals", |seen| seen.renewals > before + 5).await;
    world.coordinator.order(ToAgent::Cancel { id, force: false, reason: "by hand".into() });
    world.coordinator.mind(|manners| manners.acks_logs = true);
    let seen = world.coordinator.ended(id).await;
    assert_eq!(seen.step(1).unwrap().outcome, Outcome::Cancelled);
    assert_eq!(seen.end().unwrap().outcome, Outcome::Cancelled);
    assert_eq!(seen.text(2), "");
    inside.control.send_replace(Control::Stop);
    inside.running.await.unwrap().unwrap();
}
