use super::*;

fn jobs() -> Vec<JobState> {
    let mut all = vec![
        JobState::Blocked,
        JobState::Held,
        JobState::Queued,
        JobState::Offered,
        JobState::Starting,
        JobState::Running,
        JobState::Recovering,
    ];
    all.extend(Outcome::ALL.map(JobState::Ended));
    all
}

#[test]
fn words_round_trip() {
    for state in jobs() {
        assert_eq!(JobState::parse(state.as_str()), Some(state));
    }
    for outcome in Outcome::ALL {
        assert_eq!(RunState::parse(outcome.as_str()), Some(RunState::Ended(outcome)));
        assert_eq!(AttemptState::parse(outcome.as_str()), Some(AttemptState::Ended(outcome)));
        assert_eq!(StepState::parse(outcome.as_str()), Some(StepState::Ended(outcome)));
    }
    for state in [RunState::Pending, RunState::Running, RunState::Cancelling] {
        assert_eq!(RunState::parse(state.as_str()), Some(state));
    }
    for state in [
        AttemptState::Offered,
        AttemptState::Starting,
        AttemptState::Running,
        AttemptState::Withdrawn,
    ] {
        assert_eq!(AttemptState::parse(state.as_str()), Some(state));
    }
    assert_eq!(JobState::parse("done"), None);
}

#[test]
fn an_end_is_final_and_nothing_moves_to_itself() {
    for from in jobs() {
        assert!(from.to(from).is_err(), "{from}");
        for to in jobs() {
            if from.is_ended() {
                assert!(from.to(to).is_err(), "{from} {to}");
            } else if to.is_ended() {
                assert_eq!(from.to(to), Ok(to));
            }
        }
    }
}

#[test]
fn only_a_start_leads_to_running() {
    let to_running: Vec<_> =
        jobs().into_iter().filter(|from| from.to(JobState::Running).is_ok()).collect();
    assert_eq!(to_running, [JobState::Starting, JobState::Recovering]);
}

#[test]
fn an_illegal_move_names_both_sides() {
    let error = JobState::Ended(Outcome::Lost).to(JobState::Running).unwrap_err();
    assert_eq!(error.to_string(), "a job cannot go from lost to running");
    let error = RunState::Cancelling.to(RunState::Running).unwrap_err();
    assert_eq!(error.to_string(), "a run cannot go from cancelling to running");
}

#[test]
fn a_set_holds_what_was_put_in() {
    let set: OutcomeSet = [Outcome::Lost, Outcome::Failed].into_iter().collect();
    for outcome in Outcome::ALL {
        assert_eq!(set.contains(outcome), matches!(outcome, Outcome::Lost | Outcome::Failed));
        assert!(OutcomeSet::ALL.contains(outcome));
    }
    assert_eq!(OutcomeSet::from_bits(set.bits()), set);
    assert_eq!(OutcomeSet::from_bits(-1), OutcomeSet::ALL);
}
