//! A store with a clock that stands still, and the shortest words for what tests do with it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use serde_json::{Value, json};
use shuntyard_core::{
    apply::{Answer, Fact, KeyHash, Retry},
    state::OutcomeSet,
};
use shuntyard_protocol::{
    AgentId, EventId, InstanceId, JobId, Outcome, RunId, SourceId, Timestamp,
    agent::{AttemptFact, AttemptId, End, StepEnd},
    plan::{Need, RunsOn},
};

use crate::{Database, NewEvent, NewJob, NewRun, Options, Store};

pub(crate) const RELEASE: i64 = 150_000;

pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) instance: InstanceId,
    pub(crate) source: SourceId,
    clock: Arc<AtomicI64>,
    minted: AtomicU64,
    folder: tempfile::TempDir,
}

/// A run and its jobs by title.
pub(crate) struct TestRun {
    pub(crate) id: RunId,
    pub(crate) event: EventId,
    pub(crate) jobs: BTreeMap<String, JobId>,
}

impl World {
    pub(crate) async fn open(database: Database) -> Self {
        let clock = Arc::new(AtomicI64::new(1_000_000));
        let folder = tempfile::tempdir().unwrap();
        let instance = InstanceId::mint(Timestamp(1), [1; 10]);
        let now = clock.clone();
        let options = Options {
            database,
            segments: Some(folder.path().join("segments")),
            instance,
            clock: Arc::new(move || Timestamp(now.load(Ordering::Relaxed))),
        };
        let (store, writers) = Store::open(options).await.unwrap();
        for writer in writers {
            #[expect(clippy::disallowed_methods, reason = "a test has no tasks to name")]
            tokio::spawn(writer.run());
        }
        let source = SourceId::mint(Timestamp(1), [2; 10]);
        Self { store, instance, source, clock, minted: AtomicU64::new(0), folder }
    }

    /// Where segments lie.
    pub(crate) fn segments(&self) -> std::path::PathBuf {
        self.folder.path().join("segments")
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.clock.load(Ordering::Relaxed))
    }

    pub(crate) fn pass(&self, ms: i64) {
        self.clock.fetch_add(ms, Ordering::Relaxed);
    }

    pub(crate) fn random(&self) -> [u8; 10] {
        let n = self.minted.fetch_add(1, Ordering::Relaxed) + 1;
        let mut random = [0; 10];
        random[2..].copy_from_slice(&n.to_be_bytes());
        random
    }

    pub(crate) fn job_id(&self) -> JobId {
        JobId::mint(self.now(), self.random())
    }

    pub(crate) fn event(&self, key: Option<&str>) -> NewEvent {
        NewEvent {
            id: EventId::mint(self.now(), self.random()),
            org: "default".to_owned(),
            source: self.source,
            kind: "push".to_owned(),
            event_key: key.map(str::to_owned),
            ref_name: Some("refs/heads/main".to_owned()),
            branch: Some("main".to_owned()),
            commit: Some("c0ffee".to_owned()),
            actor: Some("ann".to_owned()),
            title: Some("a\0b".to_owned()),
            body: json!({"kind": "push"}),
        }
    }

    pub(crate) fn new_job(&self, name: &str, needs: &[(&str, &[Outcome])]) -> NewJob {
        NewJob {
            id: self.job_id(),
            name: name.to_owned(),
            title: name.to_owned(),
            matrix: None,
            spec: json!({"name": name, "steps": []}),
            runs_on: RunsOn::default(),
            priority: 0,
            retry: Retry { max_tries: 1, on: OutcomeSet::NONE },
            continue_on_error: false,
            concurrency: None,
            needs: needs
                .iter()
                .map(|(job, when)| Need { job: (*job).to_owned(), when: when.to_vec() })
                .collect(),
        }
    }

    pub(crate) fn new_run(&self, workflow: &str, jobs: Vec<NewJob>) -> NewRun {
        NewRun {
            timeout_ms: None,
            concurrency: None,
            id: RunId::mint(self.now(), self.random()),
            workflow: workflow.to_owned(),
            file: format!(".shuntyard/workflows/{workflow}.ts"),
            plan_key: None,
            env: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
            jobs,
        }
    }

    pub(crate) async fn create(&self, org: &str, jobs: Vec<NewJob>) -> TestRun {
        let mut event = self.event(None);
        event.org = org.to_owned();
        let run = self.new_run("ci", jobs);
        let jobs = run.jobs.iter().map(|job| (job.title.clone(), job.id)).collect();
        let id = run.id;
        let created =
            self.store.create_runs(&event, vec![run], None, 10_000, self.now()).await.unwrap();
        assert_eq!((created.fresh, &created.runs[..]), (1, &[id][..]));
        TestRun { id, event: event.id, jobs }
    }

    /// A run of jobs that need others on success.
    pub(crate) async fn run(&self, jobs: &[(&str, &[&str])]) -> TestRun {
        let jobs = jobs
            .iter()
            .map(|(name, needs)| {
                let needs: Vec<(&str, &[Outcome])> =
                    needs.iter().map(|need| (*need, &[Outcome::Success][..])).collect();
                self.new_job(name, &needs)
            })
            .collect();
        self.create("default", jobs).await
    }

    pub(crate) async fn classes(&self) -> Vec<i64> {
        self.store.label_classes().await.unwrap().iter().map(|class| class.id).collect()
    }

    pub(crate) async fn claim(&self, limit: u32) -> Vec<crate::Claimed> {
        let until = Timestamp(self.now().0 + 5000);
        let classes = self.classes().await;
        self.store.claim(&classes, limit, self.instance, until, self.now()).await.unwrap()
    }

    pub(crate) async fn apply(&self, fact: Fact) -> Answer {
        let answers = self.store.apply(vec![fact], self.now()).await.unwrap();
        answers.into_iter().next().unwrap()
    }

    pub(crate) fn reserved(&self, id: AttemptId) -> Fact {
        let start_by = Timestamp(self.now().0 + 15_000);
        Fact::Reserved { id, agent: agent(1), start_by }
    }

    pub(crate) fn begin(&self, id: AttemptId) -> Fact {
        let release_at = Timestamp(self.now().0 + RELEASE);
        Fact::Begin { id, agent: agent(1), key_hash: key(id), release_at }
    }

    /// Lets everything that is claimed begin.
    pub(crate) async fn start_all(&self) -> BTreeMap<String, AttemptId> {
        let claimed = self.claim(500).await;
        let mut started = BTreeMap::new();
        for claim in claimed {
            assert_eq!(self.apply(self.reserved(claim.id)).await, Answer::Committed);
            assert!(matches!(self.apply(self.begin(claim.id)).await, Answer::Begun { .. }));
            started.insert(claim.title, claim.id);
        }
        started
    }

    pub(crate) async fn end(&self, id: AttemptId, outcome: Outcome) -> Answer {
        self.apply(ended(id, 1, outcome)).await
    }

    /// Starts what is ready, and ends it as told, round by round, until nothing is left.
    pub(crate) async fn play(&self, outcomes: &[(&str, Outcome)]) {
        loop {
            let started = self.start_all().await;
            if started.is_empty() {
                return;
            }
            for (title, id) in started {
                let told = outcomes.iter().find(|(name, _)| *name == title);
                self.end(id, told.map_or(Outcome::Success, |(_, outcome)| *outcome)).await;
            }
        }
    }

    /// Title and state of each job, in order, as one text.
    pub(crate) async fn states(&self, run: RunId) -> String {
        let jobs = self.store.jobs_of(run).await.unwrap();
        let states: Vec<_> =
            jobs.iter().map(|job| format!("{} {}", job.title, job.state)).collect();
        states.join(", ")
    }

    pub(crate) async fn run_state(&self, run: RunId) -> String {
        self.store.run(run).await.unwrap().unwrap().state.to_string()
    }
}

pub(crate) fn agent(n: u8) -> AgentId {
    AgentId::mint(Timestamp(1), [n; 10])
}

pub(crate) fn key(id: AttemptId) -> KeyHash {
    let mut key = [7; 32];
    key[..16].copy_from_slice(id.job.uuid().as_bytes());
    key[16..20].copy_from_slice(&id.attempt.to_be_bytes());
    key
}

pub(crate) fn history(id: AttemptId, seq: u64, fact: AttemptFact) -> Fact {
    Fact::Attempt { id, key_hash: key(id), seq, fact }
}

pub(crate) fn end(outcome: Outcome) -> End {
    End {
        at: Timestamp(5),
        outcome,
        reason: None,
        outputs: None,
        ends: BTreeMap::new(),
        torn: Vec::new(),
    }
}

pub(crate) fn ended(id: AttemptId, seq: u64, outcome: Outcome) -> Fact {
    history(id, seq, AttemptFact::Ended(end(outcome)))
}

pub(crate) fn step_end(step: u32, outcome: Outcome, outputs: Option<Value>) -> AttemptFact {
    AttemptFact::StepEnded(StepEnd {
        step,
        at: Timestamp(4),
        outcome,
        exit_code: Some(0),
        error: Some("a\0b".to_owned()),
        outputs,
        tries: 1,
    })
}
