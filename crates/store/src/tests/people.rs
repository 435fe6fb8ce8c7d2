use serde_json::json;
use shuntyard_protocol::{SourceId, Timestamp, TokenId, agent::Containment};

use super::world::{World, agent};
use crate::{AgentSeen, Enrolled, Instance, NewAccess, NewToken, PlanAt, Source, StoredPlan};

pub(super) async fn a_source_is_known_by_its_name(w: &World) {
    let source = |name: &str| Source {
        id: SourceId::mint(w.now(), w.random()),
        org: "default".to_owned(),
        name: name.to_owned(),
        kind: "github".to_owned(),
        url: "https://example.org/a.git".to_owned(),
        settings: json!({"forks": "ignore"}),
        secrets: Some(vec![0, 1, 255]),
        created_at: w.now(),
        updated_at: w.now(),
    };
    let mut first = source("a");
    assert!(w.store.insert_source(&first).await.unwrap());
    assert!(!w.store.insert_source(&source("a")).await.unwrap(), "the name is taken");
    assert_eq!(w.store.source_named("default", "a").await.unwrap(), Some(first.clone()));
    first.url = "https://example.org/b.git".to_owned();
    first.secrets = None;
    assert!(w.store.update_source(&first).await.unwrap());
    assert_eq!(w.store.source(first.id).await.unwrap(), Some(first.clone()));
    assert_eq!(w.store.sources(None).await.unwrap(), [first.clone()]);
    assert_eq!(w.store.sources(Some("other")).await.unwrap(), []);
    assert!(w.store.remove_source(first.id).await.unwrap());
    assert!(!w.store.remove_source(first.id).await.unwrap());
    assert!(!w.store.update_source(&first).await.unwrap());
}

pub(super) async fn plans_are_kept_by_commit(w: &World) {
    let plan = StoredPlan { key: "k".to_owned(), body: "{}".to_owned(), folder: "{}".to_owned() };
    assert_eq!(w.store.plan_at(w.source, "c1").await.unwrap(), None);
    w.store.put_plan_error(w.source, "c1", "line 3: what?", w.now()).await.unwrap();
    let at = w.store.plan_at(w.source, "c1").await.unwrap().unwrap();
    assert_eq!(at, PlanAt { plan_key: None, error: Some("line 3: what?".to_owned()) });
    for commit in ["c1", "c2"] {
        w.store.put_plan(w.source, commit, &plan, w.now()).await.unwrap();
        let at = w.store.plan_at(w.source, commit).await.unwrap().unwrap();
        assert_eq!(at, PlanAt { plan_key: Some("k".to_owned()), error: None });
    }
    assert_eq!(w.store.plan("k").await.unwrap(), Some(plan));
    assert_eq!(w.store.plan("x").await.unwrap(), None);
}

fn token(w: &World, kind: &str, hash: u8, uses: Option<u32>, expires: Option<i64>) -> NewToken {
    NewToken {
        id: TokenId::mint(w.now(), w.random()),
        org: "default".to_owned(),
        kind: kind.to_owned(),
        role: Some("admin".to_owned()),
        name: format!("t{hash}"),
        hash: [hash; 32],
        uses,
        created_by: "ann".to_owned(),
        expires_at: expires.map(|ms| Timestamp(w.now().0 + ms)),
    }
}

pub(super) async fn a_token_enrols_as_often_as_it_may(w: &World) {
    w.store.insert_token(&token(w, "enrol", 1, Some(1), Some(1000)), w.now()).await.unwrap();
    w.store.insert_token(&token(w, "api", 2, None, None), w.now()).await.unwrap();
    let seen = AgentSeen {
        name: "box".to_owned(),
        labels: vec!["linux".to_owned()],
        slots: 4,
        containment: Containment::Namespace,
        boot_id: "b1".to_owned(),
        software: "0.1.0".to_owned(),
    };
    let enrol = async |n: u8, key: &str, hash: u8| {
        w.store.enrol_agent(agent(n), key, &[hash; 32], &seen, w.now()).await.unwrap()
    };
    assert_eq!(enrol(1, "k1", 2).await, Enrolled::TokenRefused, "an API token enrols nobody");
    let Enrolled::Agent(enrolled) = enrol(1, "k1", 1).await else { panic!("it is valid") };
    assert_eq!((enrolled.id, enrolled.slots), (agent(1), 4));
    let Enrolled::Agent(again) = enrol(9, "k1", 1).await else { panic!("it is known") };
    assert_eq!(again.id, enrolled.id);
    assert_eq!(enrol(2, "k2", 1).await, Enrolled::TokenRefused, "it is used up");
    assert!(w.store.agent_seen(enrolled.id, &seen, w.instance, w.now()).await.unwrap());
    w.store.set_agent_draining(enrolled.id, true).await.unwrap();
    w.pass(5);
    w.store.agent_beat(enrolled.id, w.now()).await.unwrap();
    let row = w.store.agent(enrolled.id).await.unwrap().unwrap();
    assert_eq!((row.instance_id, row.seen_at, row.draining), (Some(w.instance), w.now(), true));
    w.store.agent_gone(enrolled.id, w.instance, w.now()).await.unwrap();
    assert_eq!(w.store.agents(None).await.unwrap()[0].instance_id, None);
    assert!(w.store.revoke_agent(enrolled.id, "ann", w.now()).await.unwrap());
    assert!(!w.store.revoke_agent(enrolled.id, "ann", w.now()).await.unwrap());
    assert!(!w.store.agent_seen(enrolled.id, &seen, w.instance, w.now()).await.unwrap());
    assert!(matches!(enrol(1, "k1", 1).await, Enrolled::KeyRevoked(_)));
    assert!(w.store.agent_by_key("k1").await.unwrap().unwrap().revoked_at.is_some());
}

pub(super) async fn tokens_end(w: &World) {
    w.store.insert_token(&token(w, "api", 1, None, Some(1000)), w.now()).await.unwrap();
    w.store.insert_token(&token(w, "signin", 2, Some(1), Some(1000)), w.now()).await.unwrap();
    let find = async |hash: u8| w.store.token_by_hash(&[hash; 32]).await.unwrap();
    let api = find(1).await.unwrap();
    assert!(api.is_valid(w.now()) && !api.is_valid(Timestamp(w.now().0 + 1000)));
    w.store.touch_token(&api, w.now()).await.unwrap();
    assert_eq!(find(1).await.unwrap().used_at, Some(w.now()));
    assert_eq!(find(3).await, None);
    let consume = async || w.store.consume_token(&[2; 32], "signin", w.now()).await.unwrap();
    assert_eq!(consume().await.unwrap().uses_left, Some(0));
    assert_eq!(consume().await, None);
    assert!(!find(2).await.unwrap().is_valid(w.now()));
    assert!(w.store.revoke_token(api.id, w.now()).await.unwrap());
    assert!(!w.store.revoke_token(api.id, w.now()).await.unwrap());
    assert!(!find(1).await.unwrap().is_valid(w.now()));
    assert_eq!(w.store.tokens(Some("default")).await.unwrap().len(), 2);
}

pub(super) async fn a_lease_has_one_holder(w: &World) {
    let other = shuntyard_protocol::InstanceId::mint(Timestamp(1), [9; 10]);
    let acquire = async |holder, ms: i64| {
        let until = Timestamp(w.now().0 + ms);
        w.store.acquire_lease("leader", holder, until, w.now()).await.unwrap()
    };
    let mine = acquire(w.instance, 100).await.unwrap();
    assert_eq!(mine.epoch, 1);
    assert_eq!(acquire(other, 100).await, None);
    assert_eq!(acquire(w.instance, 200).await.unwrap().epoch, 1, "prolonged");
    assert!(w.store.renew_lease(&mine, Timestamp(w.now().0 + 300), w.now()).await.unwrap());
    w.pass(300);
    assert!(!w.store.renew_lease(&mine, Timestamp(w.now().0 + 9), w.now()).await.unwrap());
    assert_eq!(acquire(w.instance, 100).await.unwrap().epoch, 2, "it had expired");
    assert!(!w.store.renew_lease(&mine, Timestamp(w.now().0 + 9), w.now()).await.unwrap());
    w.store.release_lease(&mine).await.unwrap();
    assert_eq!(acquire(other, 100).await, None, "an old epoch releases nothing");
    let current = w.store.lease("leader").await.unwrap().unwrap();
    w.store.release_lease(&current).await.unwrap();
    assert_eq!(acquire(other, 100).await.unwrap().epoch, 3);
}

pub(super) async fn instances_beat(w: &World) {
    let mut instance = Instance {
        id: w.instance,
        name: "c1".to_owned(),
        url: None,
        software: "0.1.0".to_owned(),
        started_at: w.now(),
        beat_at: w.now(),
    };
    w.store.beat(&instance).await.unwrap();
    instance.beat_at = Timestamp(w.now().0 + 10);
    w.store.beat(&instance).await.unwrap();
    assert_eq!(w.store.instances().await.unwrap(), [instance]);
    w.store.remove_instance(w.instance).await.unwrap();
    assert_eq!(w.store.instances().await.unwrap(), []);
    w.store.ping().await.unwrap();
    w.store.db_now().await.unwrap();
}

pub(super) async fn what_operators_do_is_logged(w: &World) {
    for subject in ["run_1", "run_2"] {
        let access = NewAccess {
            org: "default".to_owned(),
            actor: "ann".to_owned(),
            action: "run.cancel".to_owned(),
            subject: subject.to_owned(),
            detail: None,
            address: Some("127.0.0.1".to_owned()),
        };
        w.store.insert_access(&access, w.now()).await.unwrap();
    }
    let log = w.store.access_log(Some("default"), None, 1).await.unwrap();
    assert_eq!(log[0].subject, "run_2");
    let log = w.store.access_log(None, Some(log[0].seq), 9).await.unwrap();
    assert_eq!((log.len(), log[0].subject.as_str()), (1, "run_1"));
}

pub(super) async fn the_first_cluster_row_stays(w: &World) {
    let first = w.store.cluster("c1", b"check", w.now()).await.unwrap();
    assert_eq!(first.key_check, b"check");
    assert_eq!(w.store.cluster("c2", b"other", w.now()).await.unwrap(), first);
}
