//! The simulated cluster: what must hold for 300 seeds, that a seed replays, and that the world
//! notices when something is wrong.

use std::ops::Range;

use shuntyard_sim::world::{Play, Story, play};

/// Plays seeds; the first that does not hold is told with all that led to it.
fn hold(seeds: Range<u64>) {
    for seed in seeds {
        let story = play(Play { seed, ..Play::default() });
        assert!(story.violation.is_none(), "{story}");
    }
}

// 300 seeds, in parts that run beside each other.

#[test]
fn seeds_0_to_74_hold() {
    hold(0..75);
}

#[test]
fn seeds_75_to_149_hold() {
    hold(75..150);
}

#[test]
fn seeds_150_to_224_hold() {
    hold(150..225);
}

#[test]
fn seeds_225_to_299_hold() {
    hold(225..300);
}

fn differ(a: &Story, b: &Story) -> Option<String> {
    let lines = a.trace.iter().zip(&b.trace);
    let line = lines.clone().position(|(a, b)| a != b);
    line.map(|n| format!("seed {}: '{}' and '{}'", a.seed, a.trace[n], b.trace[n]))
}

#[test]
fn a_seed_tells_the_same_story_twice() {
    for seed in [3, 13, 16, 19] {
        let first = play(Play { seed, ..Play::default() });
        let second = play(Play { seed, ..Play::default() });
        assert_eq!(differ(&first, &second), None);
        assert_eq!(first.trace.len(), second.trace.len());
        assert_eq!(first.to_string(), second.to_string());
    }
}

#[test]
fn a_batch_of_facts_means_what_they_mean_one_by_one() {
    for seed in [1, 2, 5, 7, 9] {
        let batches = play(Play { seed, ..Play::default() });
        let apart = play(Play { seed, one_by_one: true, ..Play::default() });
        assert_eq!(differ(&batches, &apart), None);
        assert!(apart.violation.is_none(), "{apart}");
    }
}

#[test]
fn the_worlds_are_of_some_size() {
    let stories = (0..6).map(|seed| play(Play { seed, ..Play::default() }));
    let attempts: usize = stories.map(|story| story.attempts).sum();
    assert!(attempts > 12, "only {attempts} attempts ran");
}
