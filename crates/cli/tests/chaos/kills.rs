//! A hundred `kill -9` of agent and coordinator while one command runs: one attempt, one log.

use std::{collections::BTreeSet, time::Duration};

use shuntyard_sim::chaos::{
    faults::Random,
    history::{self, is_ended},
    work::{What, Work},
};

use crate::{
    records::{self, Sent, Widths},
    world::{Db, SOURCE, World, check_programs, until},
};

const KILLS: u32 = 100;
/// Time between two kills, in milliseconds.
const GAP_MS: std::ops::Range<u64> = 80..700;
// About 68 s: the kills take about 40.
const WORK: Work = Work { lines: 3_000, burst: 2, pause_ms: 45, width: 40, stubborn: false };
const PATIENCE: Duration = Duration::from_mins(2);

pub(crate) async fn hundred() {
    check_programs();
    // With the default lease: kills this close leave no time for a short one to be renewed.
    let mut world = World::start(Db::Sqlite, 1, 1, "").await;
    let file = format!(
        "import {{ job, push, sh, workflow }} from 'shuntyard';\n\
         const long = job('long', {{ checkout: false, steps: [sh('long', {:?})] }});\n\
         export default workflow('long', {{ on: push(), jobs: [long] }});\n",
        WORK.command()
    );
    let path = ".shuntyard/workflows/long.ts";
    let commit = world.repository.commit("main", &[(path, &file)]).unwrap();
    let hook = world.repository.push("only", "refs/heads/main", None, &commit);
    world.api.deliver(SOURCE, &hook).await;
    let begun = || records::truths(&world).into_values().next().is_some_and(|t| t.len() > 2);
    until("the command to begin", PATIENCE, async || begun().then_some(())).await;
    let seed = u64::from(std::process::id());
    eprintln!("seed {seed}");
    let mut random = Random::new(seed);
    for kill in 0..KILLS {
        let done = records::truths(&world);
        let done = done.values().flatten().any(|record| record.what == What::Stop);
        assert!(!done, "the command ended after {kill} kills: it is too short for this machine");
        let victim = match kill % 2 {
            0 => &mut world.coordinator,
            _ => &mut world.agents[0],
        };
        victim.kill();
        victim.start();
        tokio::time::sleep(Duration::from_millis(random.within(GAP_MS))).await;
    }
    until("the run to end", PATIENCE, async || {
        let runs = world.api.try_get("/runs").await?;
        let ended = is_ended(runs["items"][0]["state"].as_str()?);
        (ended && world.held().is_empty()).then_some(())
    })
    .await;
    let sent = Sent::from([("only".to_owned(), BTreeSet::from(["long".to_owned()]))]);
    let history = records::collect(&world, &sent, &Widths::from([("long", WORK.width)])).await;
    let violations = history::check(&history);
    if !violations.is_empty() {
        let kept = world.keep();
        panic!("{violations:#?}; everything is in {}", kept.display());
    }
    let job = &history.jobs[0];
    let begun = job.attempts.iter().filter(|attempt| attempt.state != "withdrawn").count();
    assert_eq!((job.state.as_str(), begun), ("success", 1), "{:?}", job.attempts);
}
