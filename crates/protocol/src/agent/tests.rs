//! Golden frames: one recorded example of each. A file that was committed is never edited; a new form
//! of a frame gets a new file, and what an older version wrote must still be read.

use std::{fs, path::Path};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::*;
use crate::plan::{Action, Checkout, Parallel, Step, StepRetry};

fn id() -> AttemptId {
    AttemptId { job: JobId::mint(Timestamp(1_700_000_000_000), [7; 10]), attempt: 3 }
}

fn key() -> AttemptKey {
    AttemptKey("ab".repeat(32))
}

/// What this version writes is what was recorded, and what was recorded is read as the same value.
fn check<T: Serialize + DeserializeOwned + PartialEq + fmt::Debug>(name: &str, value: &T) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(format!("{name}.json"));
    let written = serde_json::to_value(value).unwrap();
    if !path.exists() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("{written:#}\n")).unwrap();
        panic!("recorded {}; look at it and run again", path.display());
    }
    let text = fs::read_to_string(&path).unwrap();
    let recorded: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(written, recorded, "{name}: what is written has changed");
    assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), value, "{name}: is read differently");
}

fn hello() -> Hello {
    Hello {
        versions: VERSIONS,
        public_key: "aa".repeat(32),
        signature: "bb".repeat(64),
        token: Some("shunt_secret".into()),
        name: "box".into(),
        labels: vec!["shunt:os:linux".into(), "gpu".into()],
        slots: 2,
        containment: Containment::Namespace,
        boot_id: "b00t".into(),
        software: "0.1.0".into(),
        attempts: vec![
            Held { id: id(), key: Some(key()), alive: true },
            Held { id: id(), key: None, alive: false },
        ],
    }
}

#[test]
fn frames_from_an_agent() {
    check("v1/from_agent_hello", &FromAgent::Hello(hello()));
    check("v1/from_agent_reserve", &FromAgent::Reserve { id: id() });
    check("v1/from_agent_refuse", &FromAgent::Refuse { id: id(), reason: "full".into() });
    check("v1/from_agent_begin", &FromAgent::Begin { id: id() });
    let renewals = vec![Renewal { id: id(), key: key(), beat: 9 }];
    check("v1/from_agent_renew", &FromAgent::Renew { renewals });
    let marks = vec![Mark(100, Timestamp(5)), Mark(120, Timestamp(6))];
    let chunks = vec![Chunk { stream: 1, from: 100, len: 40, marks }];
    check("v1/from_agent_log", &FromAgent::Log { id: id(), key: key(), chunks });
    let facts = vec![
        NumberedFact { seq: 1, fact: AttemptFact::StepStarted { step: 0, at: Timestamp(7) } },
        NumberedFact {
            seq: 2,
            fact: AttemptFact::StepEnded(StepEnd {
                step: 0,
                at: Timestamp(8),
                outcome: Outcome::Failed,
                exit_code: Some(137),
                error: Some("killed by signal 9".into()),
                outputs: Some(json!({ "a": 1 })),
                tries: 2,
            }),
        },
        NumberedFact {
            seq: 3,
            fact: AttemptFact::Ended(End {
                at: Timestamp(9),
                outcome: Outcome::Failed,
                reason: Some("step 'test' failed".into()),
                outputs: Some(json!({ "test": { "a": 1 } })),
                ends: BTreeMap::from([(0, 10), (1, 140)]),
                torn: vec![1],
            }),
        },
    ];
    check("v1/from_agent_facts", &FromAgent::Facts { id: id(), key: key(), facts });
    check("v1/from_agent_abandon", &FromAgent::Abandon { id: id(), reason: "disk full".into() });
    check("v1/from_agent_draining", &FromAgent::Draining {});
}

fn spec() -> Spec {
    Spec {
        id: id(),
        run: RunId::mint(Timestamp(1_700_000_000_000), [8; 10]),
        org: "default".into(),
        source: "web".into(),
        workflow: "ci".into(),
        file: ".shuntyard/workflows/ci.ts".into(),
        job: "test".into(),
        title: "test (22)".into(),
        try_no: 1,
        run_number: 4,
        matrix: Some(json!({ "node": 22 })),
        event: json!({ "kind": { "type": "push", "branch": "main" } }),
        code: Some(Code {
            url: "file:///src".into(),
            commit: "c0".repeat(20),
            ref_name: Some("refs/heads/main".into()),
        }),
        checkout: Checkout::default(),
        env: BTreeMap::from([("A".into(), "1".into())]),
        timeout_ms: 60_000,
        grace_ms: 30_000,
        steps: vec![
            Step {
                name: "sh".into(),
                action: Action::Shell {
                    command: "true".into(),
                    shell: None,
                    cwd: Some("a".into()),
                },
                parallel: Some(0),
                ..Step::default()
            },
            Step {
                name: "fn".into(),
                retry: Some(StepRetry {
                    max_attempts: 3,
                    delay_ms: 1000,
                    max_delay_ms: 30_000,
                    exponential: true,
                }),
                ..Step::default()
            },
        ],
        parallels: vec![Parallel { name: None, fail_fast: true, max_parallel: Some(2) }],
        single: false,
        needs: BTreeMap::from([(
            "build".into(),
            Upstream { outcome: Outcome::Success, outputs: json!({}) },
        )]),
        run_url: Some("http://localhost/runs/x".into()),
    }
}

#[test]
fn frames_to_an_agent() {
    let challenge = ToAgent::Challenge { versions: VERSIONS, nonce: "n".into() };
    check("v1/to_agent_challenge", &challenge);
    let verdicts = vec![
        Verdict::Keep { id: id(), log: BTreeMap::from([(0, 5)]), facts: 2 },
        Verdict::Finish { id: id(), log: BTreeMap::new(), facts: 3 },
        Verdict::Kill { id: id() },
    ];
    let welcome = Welcome {
        version: 1,
        agent: AgentId::mint(Timestamp(1_700_000_000_000), [1; 10]),
        instance: InstanceId::mint(Timestamp(1_700_000_000_000), [2; 10]),
        now: Timestamp(10),
        timers: Timers {
            renew_ms: 10_000,
            fence_term_ms: 45_000,
            fence_kill_ms: 15_000,
            reservation_ms: 15_000,
        },
        verdicts,
    };
    check("v1/to_agent_welcome", &ToAgent::Welcome(welcome));
    let rejected = ToAgent::Rejected { code: "invalid-proof".into(), message: "m".into() };
    check("v1/to_agent_rejected", &rejected);
    check("v1/to_agent_offer", &ToAgent::Offer { id: id(), name: "test".into() });
    check("v1/to_agent_start", &ToAgent::Start(Box::new(spec())));
    let begun = ToAgent::Begun { id: id(), key: key(), release_in_ms: 150_000 };
    check("v1/to_agent_begun", &begun);
    check("v1/to_agent_superseded", &ToAgent::Superseded { id: id() });
    let renewals = vec![Renewed { id: id(), beat: 9, release_in_ms: 150_000 }];
    check("v1/to_agent_renewed", &ToAgent::Renewed { renewals });
    let cancel = ToAgent::Cancel { id: id(), force: true, reason: "by hand".into() };
    check("v1/to_agent_cancel", &cancel);
    let to = BTreeMap::from([(0, 5), (2, 9)]);
    check("v1/to_agent_log_ack", &ToAgent::LogAck { id: id(), to });
    check("v1/to_agent_fact_ack", &ToAgent::FactAck { id: id(), seq: 3 });
}

#[test]
fn a_later_version_may_add_frames_and_fields() {
    let later = json!({ "type": "teleport", "to": "mars" });
    assert_eq!(serde_json::from_value::<FromAgent>(later.clone()).unwrap(), FromAgent::Unknown);
    assert_eq!(serde_json::from_value::<ToAgent>(later).unwrap(), ToAgent::Unknown);
    let mut more = serde_json::to_value(FromAgent::Begin { id: id() }).unwrap();
    more["colour"] = json!("blue");
    assert_eq!(serde_json::from_value::<FromAgent>(more).unwrap(), FromAgent::Begin { id: id() });
}

#[test]
fn both_ends_speak_the_highest_version_that_both_know() {
    let versions = |min, max| Versions { min, max };
    assert_eq!(versions(1, 3).common(versions(2, 5)), Some(3));
    assert_eq!(versions(1, 1).common(versions(1, 1)), Some(1));
    assert_eq!(versions(3, 4).common(versions(1, 2)), None);
    assert_eq!(versions(1, 2).common(versions(3, 4)), None);
}

#[test]
fn a_key_does_not_show_itself() {
    assert!(
        !format!("{:?}", FromAgent::Log { id: id(), key: key(), chunks: vec![] }).contains("abab")
    );
}
