use std::time::Duration;

use serde_json::json;
use shuntyard_protocol::{DeliveryId, InstanceId, Outcome, Timestamp};

use super::world::World;
use crate::{Inserted, Instance, NewDelivery, REPLAY_WINDOW};

fn delivery(w: &World, key: &str, digest: Option<u8>) -> NewDelivery {
    NewDelivery {
        id: DeliveryId::mint(w.now(), w.random()),
        org: "default".to_owned(),
        source: w.source,
        delivery_key: key.to_owned(),
        body_digest: digest.map(|byte| [byte; 32]),
        kind: "push".to_owned(),
        headers: json!({"x": "y"}),
        body: vec![0, 159, 146, 150],
    }
}

async fn insert(w: &World, new: &NewDelivery) -> Inserted {
    w.store.insert_delivery(new, w.now()).await.unwrap()
}

pub(super) async fn a_delivery_is_stored_once(w: &World) {
    let first = delivery(w, "d1", None);
    assert_eq!(insert(w, &first).await, Inserted::New);
    assert_eq!(insert(w, &first).await, Inserted::New, "a commit whose answer was lost");
    assert_eq!(insert(w, &delivery(w, "d1", None)).await, Inserted::Duplicate(first.id));
    assert_eq!(insert(w, &delivery(w, "d2", None)).await, Inserted::New);
    let row = w.store.delivery(first.id).await.unwrap().unwrap();
    assert_eq!((row.body, row.headers), (first.body, first.headers));
    let list = w.store.deliveries(Some("default"), Some(w.source), None, 1).await.unwrap();
    assert_eq!(list.items[0].delivery_key, "d2");
    let list = w.store.deliveries(None, None, list.next, 1).await.unwrap();
    assert_eq!((list.items[0].delivery_key.as_str(), list.next), ("d1", None));
}

pub(super) async fn the_same_body_is_a_replay_for_thirty_days(w: &World) {
    let first = delivery(w, "d1", Some(5));
    assert_eq!(insert(w, &first).await, Inserted::New);
    assert_eq!(insert(w, &delivery(w, "d2", Some(5))).await, Inserted::Duplicate(first.id));
    assert_eq!(insert(w, &delivery(w, "d3", Some(6))).await, Inserted::New);
    let window = i64::try_from(REPLAY_WINDOW.as_millis()).unwrap();
    w.pass(window - 1);
    assert_eq!(insert(w, &delivery(w, "d4", Some(5))).await, Inserted::Duplicate(first.id));
    w.pass(1);
    let later = delivery(w, "d5", Some(5));
    assert_eq!(insert(w, &later).await, Inserted::New);
    assert_eq!(insert(w, &delivery(w, "d6", Some(5))).await, Inserted::Duplicate(later.id));
    assert_eq!(insert(w, &delivery(w, "d1", None)).await, Inserted::Duplicate(first.id));
}

pub(super) async fn deliveries_are_leased_retried_and_finished(w: &World) {
    for key in ["d1", "d2", "d3"] {
        insert(w, &delivery(w, key, None)).await;
        w.pass(1);
    }
    let [one, two, three, four] = [1; 4].map(|_| InstanceId::mint(w.now(), w.random()));
    let lease = async |owner, limit| {
        let lease = Duration::from_mins(1);
        let taken = w.store.lease_deliveries(owner, limit, lease, w.now()).await.unwrap();
        taken.into_iter().map(|row| (row.delivery_key.clone(), row)).collect::<Vec<_>>()
    };
    let taken = lease(one, 2).await;
    assert_eq!((taken[0].0.as_str(), taken[1].0.as_str()), ("d1", "d2"));
    assert_eq!(lease(two, 9).await[0].0, "d3");
    assert_eq!(lease(three, 9).await, []);
    let (first, second) = (taken[0].1.id, taken[1].1.id);
    let done = async |id| {
        w.store.finish_delivery(id, "ignored", "no trigger", None, w.now()).await.unwrap()
    };
    assert!(done(first).await);
    assert!(!done(first).await, "it had ended");
    let later = Timestamp(w.now().0 + 5000);
    assert!(w.store.retry_delivery(second, later, "no network").await.unwrap());
    assert!(!w.store.retry_delivery(first, later, "no network").await.unwrap());
    w.pass(5000);
    let again = lease(three, 9).await;
    assert_eq!((again.len(), again[0].1.id, again[0].1.tries), (1, second, 2));
    assert_eq!(again[0].1.error.as_deref(), Some("no network"));
    w.pass(60_000);
    assert_eq!(lease(four, 9).await.len(), 2, "the holders died");
    let again = lease(four, 9).await;
    let tries: Vec<_> = again.iter().map(|(key, row)| (key.as_str(), row.tries)).collect();
    assert_eq!(
        tries,
        [("d2", 3), ("d3", 2)],
        "whoever asks again was interrupted, which is no try"
    );
}

pub(super) async fn deliveries_of_a_dead_coordinator_are_due_at_once(w: &World) {
    insert(w, &delivery(w, "d1", None)).await;
    let lease = async || {
        let lease = Duration::from_mins(15);
        w.store.lease_deliveries(w.instance, 9, lease, w.now()).await.unwrap().len()
    };
    let adopt = async |since| w.store.adopt_deliveries(since, w.now()).await.unwrap();
    let beaten = w.now();
    let instance = Instance {
        id: w.instance,
        name: "a".to_owned(),
        url: None,
        software: "1".to_owned(),
        started_at: beaten,
        beat_at: beaten,
    };
    w.store.beat(&instance).await.unwrap();
    assert_eq!((lease().await, adopt(beaten).await), (1, 0), "it lives");
    w.pass(1);
    assert_eq!((adopt(w.now()).await, lease().await), (1, 1), "it has been silent");
    w.store.remove_instance(w.instance).await.unwrap();
    assert_eq!((adopt(beaten).await, lease().await), (1, 1), "it left");
}

pub(super) async fn the_outbox_is_driven_in_order(w: &World) {
    let run = w.run(&[("a", &[])]).await;
    w.play(&[]).await;
    let lease = async |limit| {
        let lease = Duration::from_mins(1);
        w.store.lease_outbox(w.instance, limit, lease, w.now()).await.unwrap()
    };
    let rows = lease(9).await;
    let states: Vec<_> = rows.iter().map(|row| row.state.as_str()).collect();
    assert_eq!(states, ["pending", "running", "success"]);
    assert!(rows.iter().all(|row| row.run_id == run.id));
    assert_eq!(lease(9).await, []);
    w.store.outbox_done(rows[0].seq, w.now()).await.unwrap();
    w.store.outbox_retry(rows[1].seq, w.now(), "503").await.unwrap();
    let again = lease(9).await;
    assert_eq!((again.len(), again[0].seq, again[0].tries), (1, rows[1].seq, 2));
    w.run(&[("b", &[])]).await;
    let id = w.start_all().await["b"];
    w.end(id, Outcome::Failed).await;
    assert_eq!(lease(9).await.len(), 3);
}
