use super::*;

/// Two attempts of one job, of which the first was lost after its second record.
fn history() -> History {
    let record = |at, attempt: u32, what| {
        let attempt = format!("j.{attempt}");
        Record { at, attempt, step: 0, what }
    };
    let truth = vec![
        record(1, 1, What::Start),
        record(2, 1, What::Upto(1)),
        record(3, 1, What::Upto(2)),
        record(9, 2, What::Start),
        record(10, 2, What::Upto(1)),
        record(11, 2, What::Stop),
    ];
    let attempt = |number: u32, state: &str, lines: u32| {
        let id = format!("j.{number}");
        let bytes = (1..=lines).map(|n| line(&id, 0, n, 2)).collect::<String>().into_bytes();
        Attempt {
            number,
            state: state.into(),
            reason: String::new(),
            late: None,
            complete: true,
            logs: BTreeMap::from([(0, Log { bytes, torn: false })]),
        }
    };
    History {
        deliveries: vec![Delivery {
            key: "d".into(),
            workflows: BTreeSet::from(["w".into()]),
            state: Some("done".into()),
            event: Some("e".into()),
        }],
        runs: vec![Run {
            id: "r".into(),
            event: "e".into(),
            workflow: "w".into(),
            state: "success".into(),
        }],
        jobs: vec![Job {
            id: "j".into(),
            state: "success".into(),
            attempt: 2,
            width: 2,
            steps: vec![("success".into(), Some("j.2".into()))],
            attempts: vec![attempt(1, "lost", 1), attempt(2, "success", 1)],
        }],
        truths: BTreeMap::from([("j".into(), truth)]),
    }
}

#[track_caller]
fn finds(change: impl FnOnce(&mut History), expected: &Violation) {
    let mut history = history();
    change(&mut history);
    let found = check(&history);
    assert!(found.contains(expected), "{found:?}");
}

fn log(history: &mut History, attempt: usize) -> &mut Log {
    history.jobs[0].attempts[attempt].logs.get_mut(&0).unwrap()
}

#[test]
fn a_history_in_order_breaks_nothing() {
    assert_eq!(check(&history()), []);
    // What was being written when it was killed may have arrived or not.
    let mut more = history();
    log(&mut more, 0).bytes.extend(line("j.1", 0, 2, 2).into_bytes());
    assert_eq!(check(&more), []);
}

#[test]
fn what_has_not_ended_is_found() {
    finds(
        |history| history.jobs[0].state = "running".into(),
        &Violation::JobOpen { job: "j".into(), state: "running".into() },
    );
    finds(
        |history| history.runs[0].state = "cancelling".into(),
        &Violation::RunOpen { run: "r".into(), state: "cancelling".into() },
    );
    finds(
        |history| history.deliveries[0].state = None,
        &Violation::DeliveryOpen { key: "d".into(), state: "unknown".into() },
    );
}

#[test]
fn a_doubled_and_a_missing_run_are_found() {
    let expected = vec!["w".to_owned()];
    finds(
        |history| history.runs.push(history.runs[0].clone()),
        &Violation::Runs {
            key: "d".into(),
            expected: expected.clone(),
            found: vec!["w".into(), "w".into()],
        },
    );
    finds(
        |history| history.runs.clear(),
        &Violation::Runs { key: "d".into(), expected, found: vec![] },
    );
    finds(|history| history.deliveries.clear(), &Violation::RunFromNowhere { run: "r".into() });
}

#[test]
fn two_attempts_at_once_are_found() {
    finds(
        |history| history.truths.get_mut("j").unwrap()[2].at = 9,
        &Violation::Concurrent { earlier: "j.1".into(), later: "j.2".into() },
    );
    finds(
        |history| history.truths.get_mut("j").unwrap()[3].what = What::Overlap,
        &Violation::Overlap { attempt: "j.2".into() },
    );
}

#[test]
fn a_command_without_permission_is_found() {
    finds(
        |history| history.jobs[0].attempts[0].state = "withdrawn".into(),
        &Violation::NoPermission { attempt: "j.1".into(), state: "withdrawn".into() },
    );
    finds(
        |history| drop(history.jobs[0].attempts.remove(0)),
        &Violation::NoPermission { attempt: "j.1".into(), state: "unknown".into() },
    );
    finds(
        |history| history.jobs.clear(),
        &Violation::NoPermission { attempt: "j.1".into(), state: "unknown job".into() },
    );
}

#[test]
fn the_result_of_an_old_attempt_is_found() {
    finds(
        |history| history.jobs[0].steps[0].1 = Some("j.1".into()),
        &Violation::OldResult { job: "j".into(), current: 2, step: 0, from: "j.1".into() },
    );
    finds(
        |history| drop(history.truths.get_mut("j").unwrap().pop()),
        &Violation::Unfinished { attempt: "j.2".into(), step: 0 },
    );
}

#[test]
fn lines_that_are_missing_doubled_or_foreign_are_found() {
    finds(
        |history| log(history, 0).bytes.clear(),
        &Violation::LogShort {
            attempt: "j.1".into(),
            step: 0,
            state: "lost".into(),
            have: 0,
            wrote: line("j.1", 0, 1, 2).len(),
        },
    );
    finds(
        |history| {
            let bytes = log(history, 1).bytes.clone();
            log(history, 1).bytes.extend(bytes);
        },
        &Violation::LogDiffers { attempt: "j.2".into(), step: 0, at: line("j.2", 0, 1, 2).len() },
    );
    finds(
        |history| log(history, 1).bytes[2] = b'1',
        &Violation::LogDiffers { attempt: "j.2".into(), step: 0, at: 2 },
    );
    finds(
        |history| history.jobs[0].attempts[1].complete = false,
        &Violation::LogOpen { attempt: "j.2".into(), state: "success".into() },
    );
}

#[test]
fn a_gap_mark_is_for_an_attempt_whose_supervisor_died() {
    let mut torn = history();
    *log(&mut torn, 0) = Log { bytes: Vec::new(), torn: true };
    assert_eq!(check(&torn), []);
    finds(
        |history| log(history, 1).torn = true,
        &Violation::Torn { attempt: "j.2".into(), step: 0, state: "success".into() },
    );
}
