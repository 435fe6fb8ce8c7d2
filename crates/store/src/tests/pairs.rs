//! PostgreSQL's isolation: whatever two operations do at the same time must end as if one had come
//! after the other.
//!
//! Of each pair of operations the first is held after each of its statements in turn, with its
//! transaction open, while the second runs to its end, or until it waits for a lock of the first.
//! What both answer and all rows are then compared with both serial orders. Pairs without a common
//! table that one of them writes commute; which tables an operation touches is what PostgreSQL says
//! that its transaction has locked. Nothing here waits for time to pass.

mod bed;
mod operations;

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use bed::Bed;
use operations::{OPERATIONS, Operation};

use crate::{
    db::{Lock, gate::Gate},
    testing::Postgres,
};

/// One for each processor that a small machine has.
const WORKERS: usize = 2;

/// What one operation does alone.
struct Profile {
    /// Statements, the commit included.
    statements: usize,
    reads: BTreeSet<String>,
    writes: BTreeSet<String>,
}

impl Profile {
    async fn of(bed: &Bed, operation: &Operation) -> Self {
        bed.restore().await;
        let counter = Gate::new(usize::MAX, None);
        counter.clone().hold((operation.run)(bed, 0)).await;
        let statements = counter.passed();
        let mut profile = Self { statements, reads: BTreeSet::new(), writes: BTreeSet::new() };
        if statements == 0 {
            return profile;
        }
        bed.restore().await;
        let gate = Gate::new(statements - 1, None);
        let held = gate.clone().hold((operation.run)(bed, 0));
        let look = async {
            gate.reached().await;
            for (table, writes) in bed.touched().await {
                let set = if writes { &mut profile.writes } else { &mut profile.reads };
                set.insert(table);
            }
            gate.open();
        };
        tokio::join!(held, look);
        profile
    }

    /// Whether the order of the two can matter.
    fn meets(&self, other: &Self) -> bool {
        let touches = |writes: &BTreeSet<String>, by: &Self| {
            !writes.is_disjoint(&by.writes) || !writes.is_disjoint(&by.reads)
        };
        touches(&self.writes, other) || touches(&other.writes, self)
    }
}

/// What two operations answered, and every row after them.
#[derive(Clone, PartialEq, Eq)]
struct End {
    answers: [String; 2],
    rows: String,
}

impl End {
    /// Whether this is one of those ends. A wake more than there is a turn to take is allowed: the
    /// gate is looked at once too often and nothing comes of it, while one too few would leave
    /// somebody waiting.
    fn is_one_of(&self, serial: &[Self]) -> bool {
        let parts = |end: &Self| -> (Vec<String>, Vec<String>) {
            end.rows.lines().map(str::to_owned).partition(|line| line.starts_with("gate_wake "))
        };
        let (wakes, others) = parts(self);
        serial.iter().any(|end| {
            let (least, want) = parts(end);
            self.answers == end.answers
                && others == want
                && least.iter().all(|wake| wakes.contains(wake))
        })
    }

    /// What tells this from the nearer one of the two.
    fn differs_from(&self, serial: &[Self; 2]) -> String {
        let lines = |end: &Self| -> BTreeSet<String> {
            let answers = end.answers.iter().map(|answer| format!("answered {answer}"));
            answers.chain(end.rows.lines().map(str::to_owned)).collect()
        };
        let have = lines(self);
        let differ = |end: &Self| {
            let want = lines(end);
            let gone = want.difference(&have).map(|line| format!("  - {line}"));
            gone.chain(have.difference(&want).map(|line| format!("  + {line}"))).collect()
        };
        let both: Vec<Vec<String>> = serial.iter().map(differ).collect();
        let nearer = both.into_iter().min_by_key(Vec::len).unwrap_or_default();
        nearer.join("\n")
    }
}

/// Two operations, each with its side.
type Pair<'a> = [(&'a Operation, u8); 2];

async fn one_after_the_other(bed: &Bed, pair: Pair<'_>) -> End {
    bed.restore().await;
    let mut answers = [String::new(), String::new()];
    for (operation, side) in pair {
        answers[usize::from(side)] = (operation.run)(bed, side).await;
    }
    End { answers, rows: bed.rows().await }
}

/// The first waits after so many statements until the second has ended, or waits for the first.
/// Also returns whether holding the first one later would make no difference: what the second one
/// waits for stays locked, before that it only read what was committed, and it holds nothing that
/// the first could have to wait for.
async fn interleaved(
    bed: &Bed,
    [(a, of_a), (b, of_b)]: Pair<'_>,
    statements: usize,
    unlocked: Option<Lock>,
) -> (End, bool) {
    let gate = Gate::new(statements, unlocked);
    let mut first = Box::pin(gate.clone().hold((a.run)(bed, of_a)));
    let early = tokio::select! {
        answer = &mut first => Some(answer),
        () = gate.reached() => None,
    };
    let other = Gate::new(usize::MAX, unlocked);
    let mut second = Box::pin(other.hold((b.run)(bed, of_b)));
    let mut same_later = false;
    let mut answers = if let Some(first) = early {
        [first, second.await]
    } else {
        let early = tokio::select! {
            answer = &mut second => Some(answer),
            empty_handed = bed.somebody_waits() => {
                same_later = empty_handed;
                None
            }
        };
        gate.open();
        match early {
            Some(second) => [first.await, second],
            None => tokio::join!(first, second).into(),
        }
    };
    if of_a > of_b {
        answers.reverse();
    }
    (End { answers, rows: bed.rows().await }, same_later)
}

/// Where two operations do not end like one after the other, each held while the other runs.
async fn faults_of(
    bed: &Bed,
    pair: [(&Operation, &Profile); 2],
    unlocked: Option<Lock>,
) -> Vec<String> {
    let [a, b] = [(pair[0].0, 0), (pair[1].0, 1)];
    let serial = [one_after_the_other(bed, [a, b]).await, one_after_the_other(bed, [b, a]).await];
    let mut orders = vec![([a, b], pair[0].1.statements)];
    if a.0.name != b.0.name {
        orders.push(([b, a], pair[1].1.statements));
    }
    let mut faults = Vec::new();
    for (pair, statements) in orders {
        for after in 1..statements {
            bed.restore().await;
            let (end, same_later) = interleaved(bed, pair, after, unlocked).await;
            if !end.is_one_of(&serial) {
                let [held, between] = pair.map(|(operation, _)| operation.name);
                let differs = end.differs_from(&serial);
                faults.push(format!("{between} after statement {after} of {held}:\n{differs}"));
                break;
            }
            if same_later {
                break;
            }
        }
    }
    faults
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// All pairs that meet, spread over the workers.
fn all_pairs(server: &Postgres) -> (usize, Vec<String>) {
    let next = AtomicUsize::new(0);
    let tried = AtomicUsize::new(0);
    let faults = Mutex::new(Vec::new());
    let count = OPERATIONS.len();
    thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (next, tried, faults) = (&next, &tried, &faults);
            scope.spawn(move || {
                runtime().block_on(async {
                    let bed = Bed::open(server, &format!("pairs{worker}")).await;
                    let mut profiles = Vec::new();
                    for operation in OPERATIONS {
                        profiles.push(Profile::of(&bed, operation).await);
                    }
                    loop {
                        let pair = next.fetch_add(1, Ordering::Relaxed);
                        if pair >= count * count {
                            return;
                        }
                        let (a, b) = (pair / count, pair % count);
                        if a > b || !profiles[a].meets(&profiles[b]) {
                            continue;
                        }
                        tried.fetch_add(1, Ordering::Relaxed);
                        let pair = [a, b].map(|n| (&OPERATIONS[n], &profiles[n]));
                        let found = faults_of(&bed, pair, None).await;
                        faults.lock().unwrap().extend(found);
                    }
                });
            });
        }
    });
    (tried.into_inner(), faults.into_inner().unwrap())
}

#[test]
fn two_operations_at_once_end_like_one_after_the_other() {
    let server = Postgres::start("pairs");
    let (tried, faults) = all_pairs(&server);
    let count = OPERATIONS.len();
    eprintln!("{tried} of {} pairs touch the same tables", count * (count + 1) / 2);
    assert!(faults.is_empty(), "{} pairs:\n{}", faults.len(), faults.join("\n"));
    assert!(tried > 300, "only {tried} pairs were tried");
}

/// For each lock two operations that go wrong without it.
const NEED: [(Lock, [&str; 2]); 6] = [
    (Lock::Gates, ["take_last_slot", "take_last_slot"]),
    (Lock::Runs, ["reserve", "begin"]),
    (Lock::Jobs, ["claim_one", "queue_expired"]),
    (Lock::Attempts, ["append_log", "append_other"]),
    (Lock::Claimed, ["claim_one", "claim_one"]),
    (Lock::Held, ["commit_both", "reconcile"]),
];

#[test]
fn a_lock_that_is_missing_is_noticed() {
    let server = Postgres::start("unlocked");
    runtime().block_on(async {
        let bed = Bed::open(&server, "unlocked").await;
        for (lock, names) in NEED {
            let named = |name| OPERATIONS.iter().find(|operation| operation.name == name).unwrap();
            let [a, b] = names.map(named);
            let profiles = [Profile::of(&bed, a).await, Profile::of(&bed, b).await];
            let pair = [(a, &profiles[0]), (b, &profiles[1])];
            assert!(faults_of(&bed, pair, None).await.is_empty());
            let faults = faults_of(&bed, pair, Some(lock)).await;
            assert!(!faults.is_empty(), "{names:?} do not notice that {lock:?} is missing");
        }
    });
}
