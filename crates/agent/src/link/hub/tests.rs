use std::path::Path;

use shuntyard_protocol::{JobId, Timestamp, agent::AttemptKey};

use super::*;

const TIMERS: Timers =
    Timers { renew_ms: 10, fence_term_ms: 45, fence_kill_ms: 15, reservation_ms: 15 };

fn id(number: u8) -> AttemptId {
    AttemptId { job: JobId::mint(Timestamp(i64::from(number)), [number; 10]), attempt: 1 }
}

/// Two attempts on link 7.
fn state() -> State {
    let link = Some(Link { number: 7, timers: TIMERS, offset_ms: 0 });
    let mut state = State { link, ..State::default() };
    for number in [1, 2] {
        let dir = AttemptDir::new(Path::new("/data"), id(number));
        state.entries.insert(id(number), Entry::new(dir, Mailbox::default()));
    }
    state
}

fn log(number: u8) -> FromAgent {
    FromAgent::Log { id: id(number), key: AttemptKey("key".into()), chunks: Vec::new() }
}

fn renew(number: u8, beat: u64) -> FromAgent {
    let renewal = Renewal { id: id(number), key: AttemptKey("key".into()), beat };
    FromAgent::Renew { renewals: vec![renewal] }
}

fn bytes(len: usize) -> Bytes {
    Bytes::from(vec![0; len])
}

#[test]
fn a_flood_of_log_delays_neither_renewals_nor_the_other_attempt() {
    let mut state = state();
    for _ in 0..4 {
        assert!(state.up(id(1), 7, log(1), bytes(100)));
    }
    assert!(state.up(id(2), 7, log(2), bytes(1)));
    assert!(state.up(id(2), 7, renew(2, 1), Bytes::new()));
    assert!(state.up(id(1), 7, renew(1, 1), Bytes::new()));
    assert!(state.up(id(2), 7, renew(2, 2), Bytes::new()));
    let Some((FromAgent::Renew { renewals }, _)) = state.next() else { panic!("renewals first") };
    assert_eq!(renewals.len(), 2, "one frame for all, and only the latest of each");
    let order: Vec<_> = std::iter::from_fn(|| state.next()).map(|(_, bytes)| bytes.len()).collect();
    assert_eq!(order, [100, 1, 100, 100, 100]);
}

#[test]
fn frames_of_an_earlier_link_are_dropped() {
    let mut state = state();
    assert!(state.up(id(1), 6, log(1), bytes(10)));
    assert!(state.next().is_none());
}

#[test]
fn more_log_than_may_wait_is_a_breach() {
    let mut state = state();
    let limit = usize::try_from(WAITING_BYTES_MAX).unwrap();
    assert!(state.up(id(1), 7, log(1), bytes(limit)));
    assert!(!state.up(id(1), 7, log(1), bytes(1)));
    for _ in 0..CONTROL_MAX {
        assert!(state.up(id(1), 7, FromAgent::Begin { id: id(1) }, Bytes::new()));
    }
    assert!(!state.up(id(1), 7, FromAgent::Begin { id: id(1) }, Bytes::new()));
}

#[test]
fn an_attempt_speaks_for_itself_alone() {
    let mut state = state();
    assert!(!state.up(id(1), 7, log(2), bytes(1)));
    assert!(!state.up(id(1), 7, FromAgent::Draining {}, Bytes::new()));
    assert!(state.up(id(1), 7, renew(2, 1), Bytes::new()));
    assert!(state.renewals.is_empty());
}

#[test]
fn a_reservation_holds_a_slot_until_it_expires() {
    let mut state = state();
    assert!(state.may_take(id(3), 0, 2).is_err());
    assert!(state.may_take(id(3), 0, 3).is_ok());
    state.reservations.insert(id(3), 15);
    assert!(state.may_take(id(4), 14, 3).is_err());
    assert!(state.may_take(id(4), 15, 3).is_ok());
    // An attempt whose commands have ended holds none.
    state.entries.get_mut(&id(1)).unwrap().running = false;
    assert!(state.may_take(id(5), 15, 2).is_ok());
    state.draining = true;
    assert!(state.may_take(id(5), 15, 9).is_err());
}
