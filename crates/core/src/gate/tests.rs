use shuntyard_protocol::Timestamp;

use super::*;

fn run(n: u8) -> RunId {
    RunId::mint(Timestamp(1), [n; 10])
}

/// Runs from the newest to the oldest; those that cancel are marked.
fn members(runs: &[(u8, bool)]) -> Vec<Member> {
    let member =
        |&(n, cancels): &(u8, bool)| Member { run: run(n), place: Place::Run(run(n)), cancels };
    runs.iter().map(member).collect()
}

fn check(runs: &[(u8, bool)], slots: u32, expected: &[u8]) {
    let gone = superseded(&members(runs), slots).map(|(_, gone)| gone).unwrap_or_default();
    assert_eq!(gone, expected.iter().map(|&n| Place::Run(run(n))).collect::<Vec<_>>(), "{runs:?}");
}

#[test]
fn slots_are_given_in_order_and_never_beyond_the_last() {
    let mut gate = Gate { slots: 2, ..Gate::default() };
    assert_eq!([gate.enter(), gate.enter(), gate.enter()], [true, true, false]);
    gate.leave(true);
    assert!(!gate.enter(), "another one waits before it");
    assert_eq!([gate.admit(), gate.admit()], [true, false]);
    assert_eq!(gate, Gate { slots: 2, holding: 2, waiting: 1 });
    gate.leave(false);
    assert_eq!((gate.waiting, gate.free()), (0, 0));
    // The group became narrower meanwhile.
    gate.slots = 1;
    assert_eq!((gate.free(), gate.enter()), (0, false));
}

#[test]
fn a_newcomer_cancels_the_older_ones_that_it_has_no_room_beside() {
    check(&[(3, false), (2, false), (1, false)], 1, &[]);
    check(&[(3, true), (2, false), (1, false)], 1, &[2, 1]);
    check(&[(3, true), (2, true), (1, true)], 2, &[1]);
    check(&[(3, true)], 1, &[]);
}

#[test]
fn who_came_after_the_one_that_cancels_is_safe() {
    check(&[(4, false), (3, true), (2, false)], 1, &[2]);
    check(&[(4, false), (3, false), (2, true)], 1, &[]);
}

#[test]
fn jobs_of_one_run_do_not_cancel_each_other() {
    let job = |n: u8, of: u8| Member {
        run: run(of),
        place: Place::Job(JobId::mint(Timestamp(1), [n; 10])),
        cancels: true,
    };
    let (_, gone) = superseded(&[job(3, 2), job(2, 2), job(1, 1)], 1).unwrap();
    assert_eq!(gone, [job(1, 1).place]);
}
