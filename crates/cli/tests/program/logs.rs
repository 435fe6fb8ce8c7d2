//! Logs are the bytes that commands wrote.

use serde_json::Value;

use crate::{
    gate::Gate,
    machine::until,
    on_both,
    web::job,
    world::{Db, World},
};

on_both!(a_raw_log_is_byte_for_byte_what_was_written);

/// Length of the long line, in bytes.
const LONG: usize = 20_000_000;

async fn a_raw_log_is_byte_for_byte_what_was_written(db: Db) {
    let world = World::with_agent(db).await;
    let odd = r"printf '\\377\\376 \\000 10%%\\r20%%\\r\\033[31mred\\033[0m\\n'";
    let run = world
        .run(&format!(
            "job('odd', {{ steps: [
               sh('odd', \"{odd}\"),
               sh('long', \"head -c {LONG} /dev/zero | tr '\\\\000' x; echo; printf end\"),
               sh('nothing', 'true'),
             ] }})"
        ))
        .await;
    let run = world.api.ended(&run).await;
    let odd = job(&run, "odd");
    assert_eq!(run["run"]["state"], "success", "{run}");
    assert_eq!(world.api.whole(odd, Some(1)).await, b"\xff\xfe \0 10%\r20%\r\x1b[31mred\x1b[0m\n");
    let mut long = vec![b'x'; LONG];
    long.extend_from_slice(b"\nend");
    // Not `assert_eq`, which would print both.
    assert!(world.api.whole(odd, Some(2)).await == long);
    assert!(world.api.whole(odd, Some(3)).await.is_empty());
    let all = world.api.whole(odd, None).await;
    assert!(all.ends_with(&long));
}

#[tokio::test]
async fn a_log_is_incomplete_until_its_end_and_every_line_has_a_time() {
    let world = World::with_agent(Db::Sqlite).await;
    let gate = Gate::new().await;
    let steps = format!("sh('say', 'echo one; {}; echo two')", gate.wait());
    let run = world.run(&format!("job('talk', {{ steps: [{steps}] }})")).await;
    let waiting = gate.reached().await;
    let talk = world.api.reaches(&run, "talk", "running").await;
    world.api.logs(&talk, "one\n").await;
    let path = format!("/jobs/{}/logs?stream=1", talk["id"].as_str().unwrap());
    let open = world.api.get(&path).await;
    assert_eq!(open["complete"], false);
    assert_eq!(open["lines"][0]["text"], "one");
    let raw = world.api.request(reqwest::Method::GET, &path.replace("logs?", "logs/raw?"));
    assert_eq!(raw.send().await.unwrap().headers()["x-log-complete"], "false");

    waiting.go().await;
    let run = world.api.ended(&run).await;
    let closed = world.api.get(&path).await;
    assert_eq!(closed["complete"], true);
    let time = |line: usize| closed["lines"][line]["at"].as_i64().unwrap();
    let step = &job(&run, "talk")["steps"][0];
    assert!(time(0) <= time(1), "{closed}");
    // Agents have clocks of their own, but here it is the same one.
    let (begin, end) = (step["started_at"].as_i64().unwrap(), step["ended_at"].as_i64().unwrap());
    let slack = 1000;
    assert!(begin - slack <= time(0) && time(1) <= end + slack, "{closed} {step}");
    // Going on from an offset gives the rest.
    let rest = world.api.get(&format!("{path}&from=4")).await;
    assert_eq!(rest["lines"][0]["text"], "two");
}

#[tokio::test]
async fn a_follower_sees_lines_as_they_come_and_ends_with_the_run() {
    let world = World::with_agent(Db::Sqlite).await;
    let gate = Gate::new().await;
    let steps = format!("sh('say', 'echo first line; {}; echo second line; exit 1')", gate.wait());
    let run = world.run(&format!("job('talk', {{ steps: [{steps}] }})")).await;
    let waiting = gate.reached().await;
    let data = world.data();
    let data = data.to_str().unwrap();
    let mut follower = world.machine.start(&["runs", "logs", "-f", &run, "--data", data]);
    let out = follower.says("first line").await;
    assert!(!out.contains("second line"));
    waiting.go().await;
    assert_eq!(follower.end().await, 1, "it ends as the run does");
    assert_eq!(follower.out().matches("first line").count(), 1);
    assert_eq!(follower.out().matches("second line").count(), 1);
    // Raw is for pipes: nothing around it.
    let raw = world.shunt(&["runs", "logs", &run, "--raw", "--job", "talk"]).await.ok();
    assert!(raw.ends_with("first line\nsecond line\n"), "{raw}");
}

#[tokio::test]
async fn a_lost_coordinator_costs_no_line_of_a_live_view() {
    let mut world = World::with_agent(Db::Sqlite).await;
    let gate = Gate::new().await;
    let steps = format!("sh('say', 'echo first line; {}; echo second line')", gate.wait());
    let run = world.run(&format!("job('talk', {{ steps: [{steps}] }})")).await;
    let waiting = gate.reached().await;
    let data = world.data();
    let data = data.to_str().unwrap();
    let mut follower = world.machine.start(&["runs", "logs", "-f", &run, "--data", data]);
    follower.says("first line").await;
    world.server.kill();
    waiting.go().await;
    world.start_again().await;
    let api = world.api.clone();
    let ended = until("the run to be green", async || {
        api.try_get(&format!("/runs/{run}")).await.filter(|run| run["run"]["state"] == "success")
    });
    let _: Value = ended.await;
    assert_eq!(follower.end().await, 0);
    assert_eq!(follower.out().matches("first line").count(), 1);
    assert_eq!(follower.out().matches("second line").count(), 1);
}

/// Whether a line begins with a day and a time, and what follows.
fn after_time(line: &str) -> Option<&str> {
    let (time, rest) = line.split_at_checked("2026-01-01 00:00:00 ".len())?;
    let digits = time.bytes().filter(u8::is_ascii_digit).count();
    (digits == 14 && time.matches(':').count() == 2).then_some(rest)
}

#[tokio::test]
async fn what_is_not_all_of_a_log_is_said_to_be_incomplete_and_lines_can_have_their_times() {
    let world = World::with_agent(Db::Sqlite).await;
    let gate = Gate::new().await;
    let steps = format!("sh('say', 'echo one; {}; echo two')", gate.wait());
    let run = world
        .run(&format!(
            "job('short', {{ steps: [sh('echo short')] }}), job('talk', {{ steps: [{steps}] }}), \
             job('later', {{ needs: ['talk'], steps: [sh('true')] }})"
        ))
        .await;
    let waiting = gate.reached().await;
    let short = world.api.reaches(&run, "short", "success").await;
    world.api.whole(&short, Some(1)).await;
    let talk = world.api.reaches(&run, "talk", "running").await;
    world.api.logs(&talk, "one\n").await;
    for form in [&[][..], &["--timestamps"]] {
        let open = world.shunt(&[&["runs", "logs", &run], form].concat()).await;
        let said = "incomplete: talk, later have not ended; --follow waits\n";
        assert_eq!((open.code, open.err.as_str()), (0, said), "{form:?}");
        assert!(open.out.contains("one\n"), "{}", open.out);
    }
    let open = world.shunt(&["runs", "logs", &run, "--job", "talk", "--raw"]).await;
    assert_eq!(open.err, "incomplete: talk has not ended; --follow waits for it\n");
    let closed = world.shunt(&["runs", "logs", &run, "--job", "short"]).await;
    assert_eq!((closed.err.as_str(), closed.out.contains("short\n")), ("", true));

    waiting.go().await;
    let ended = world.api.ended(&run).await;
    for name in ["talk", "later"] {
        world.api.whole(job(&ended, name), None).await;
    }
    let all = world.shunt(&["runs", "logs", &run, "--timestamps"]).await;
    assert_eq!(all.err, "");
    let lines: Vec<_> = all.out.lines().filter_map(after_time).collect();
    for wanted in ["short", "one", "two"] {
        assert!(lines.contains(&wanted), "{}", all.out);
    }
}

#[tokio::test]
async fn a_follower_may_want_one_job_the_times_or_only_the_bytes() {
    let world = World::with_agent(Db::Sqlite).await;
    let gate = Gate::new().await;
    let steps = format!("sh('say', 'echo one; {}; printf two')", gate.wait());
    let other = "job('other', { steps: [sh('echo of another job; exit 1')] })";
    let run = world.run(&format!("job('talk', {{ steps: [{steps}] }}), {other}")).await;
    let waiting = gate.reached().await;
    let data = world.data();
    let follow = |more: &[&str]| {
        let args = ["runs", "logs", "-f", &run, "--data", data.to_str().unwrap()];
        world.machine.start(&[&args[..], more].concat())
    };
    let mut all = follow(&["--timestamps"]);
    let mut talk = follow(&["--job", "talk"]);
    let mut timed = follow(&["--job", "talk", "--timestamps"]);
    let mut raw = follow(&["--job", "talk", "--raw"]);
    for follower in [&mut all, &mut talk, &mut timed, &mut raw] {
        let out = follower.says("one\n").await;
        assert!(!out.contains("two"), "{out}");
    }
    waiting.go().await;
    for follower in [&mut all, &mut talk, &mut timed, &mut raw] {
        assert_eq!(follower.end().await, 1, "it ends as the run does");
        assert_eq!(follower.err(), "");
    }
    assert!(all.out().contains("of another job"), "{}", all.out());
    for follower in [&talk, &timed, &raw] {
        let out = follower.out();
        assert!(!out.contains("other"), "{out}");
    }
    let lines = |out: &str| -> Vec<String> {
        out.lines().filter_map(after_time).map(str::to_owned).collect()
    };
    let wanted = ["talk › say │ one", "talk › say │ two"];
    let of_talk = lines(&timed.out()).into_iter().filter(|line| line.starts_with("talk › "));
    assert_eq!(of_talk.collect::<Vec<_>>(), wanted);
    assert!(lines(&all.out()).iter().any(|line| line.ends_with("│ of another job")));
    let plain = talk.out();
    assert!(wanted.iter().all(|line| plain.lines().any(|other| other == *line)), "{plain}");
    assert!(raw.out().ends_with("one\ntwo"), "{}", raw.out());

    let unknown = world.shunt(&["runs", "logs", "-f", &run, "--job", "tlak"]).await;
    assert!(unknown.code == 2 && unknown.err.contains("talk, other"), "{}", unknown.err);
    let several = world.shunt(&["runs", "logs", "-f", &run, "--raw"]).await;
    assert!(several.code == 2 && several.err.contains("--job"), "{}", several.err);
}
