//! Rules of the API server on which the product depends.

use chrono::{DateTime, Utc};
use lockstep_sim::api::{DeleteOptions, Patch, Verb};
use lockstep_sim::pods::leaving;
use lockstep_sim::solo::gang;
use lockstep_sim::{Key, Solo, WatchedKind};
use serde_json::json;

#[test]
fn a_write_for_another_version_or_another_object_is_refused() {
    let w = Solo::new(gang(1));
    let key = w.key().clone();
    let write = |metadata| {
        let patch = Patch::Merge(json!({"metadata": metadata, "spec": {"suspend": true}}));
        let answer = w
            .store()
            .patch("test", WatchedKind::TrainingWorkload, &key, &patch, false);
        answer.map(drop).map_err(|no| (no.code, no.reason))
    };
    assert_eq!(
        write(json!({"resourceVersion": "1"})),
        Err((409, "Conflict"))
    );
    assert_eq!(write(json!({"uid": "another"})), Err((422, "Invalid")));
    assert_eq!(write(json!({"uid": "w-uid"})), Ok(()));
}

#[test]
fn a_name_is_taken_until_its_pod_is_gone() {
    let mut w = Solo::new(gang(1));
    w.settle();
    let pod = w.pod("g", 0);
    let again = json!({"metadata": {"name": pod.metadata.name, "namespace": "ns"}, "spec": {"containers": []}});
    w.delete_pod("g", 0);
    let end = w.pods()[0]
        .metadata
        .deletion_timestamp
        .clone()
        .unwrap()
        .0
        .as_second();
    assert_eq!(end, w.now().timestamp() + 30, "the end of its grace period");
    let taken = w
        .store()
        .create("test", WatchedKind::Pod, again.clone(), false);
    assert_eq!(taken.unwrap_err().reason, "AlreadyExists");
    w.kubelets();
    assert!(
        w.store()
            .create("test", WatchedKind::Pod, again, false)
            .is_ok()
    );
}

#[test]
fn an_unbound_pod_is_deleted_at_once_and_a_pod_of_a_lost_node_stays() {
    let mut w = Solo::new(gang(1));
    w.settle();
    w.lose("n0");
    w.delete_pod("g", 0);
    w.wait(60);
    let on = |node: &str| {
        let pods = w.pods();
        pods.iter()
            .filter(|p| leaving(p) && lockstep_sim::pods::node_of(p) == Some(node))
            .count()
    };
    assert_eq!(on("n0"), 1, "nobody says that it has ended");
    let unbound = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"containers": []}});
    let key = Key::new("ns", "p");
    w.store()
        .create("test", WatchedKind::Pod, unbound, false)
        .unwrap();
    w.store()
        .delete("test", WatchedKind::Pod, &key, &DeleteOptions::default())
        .unwrap();
    assert!(w.store().raw(WatchedKind::Pod, &key).is_none());
}

#[test]
fn the_last_delete_moves_the_time_of_a_deletion() {
    let mut w = Solo::new(gang(1));
    w.settle();
    let key = Key::of(&w.pod("g", 0));
    w.delete_pod("g", 0);
    w.control();
    let requested = w.now();
    w.later(5);
    let last = DeleteOptions {
        grace: Some(0),
        ..DeleteOptions::default()
    };
    let gone = w.store().delete("kubelet", WatchedKind::Pod, &key, &last);
    let meta = &gone.unwrap()["metadata"];
    let end: DateTime<Utc> = serde_json::from_value(meta["deletionTimestamp"].clone()).unwrap();
    assert_eq!((end - requested).num_seconds(), 5);
    assert_eq!(meta["deletionGracePeriodSeconds"], 0);
}

#[test]
fn what_a_deleted_workload_owns_is_collected() {
    let mut w = Solo::new(gang(2));
    w.settle();
    let key = w.key().clone();
    w.delete(WatchedKind::TrainingWorkload, &key);
    w.settle();
    assert!(
        w.pods().is_empty()
            && w.groups().is_empty()
            && w.service().is_none()
            && w.order().is_none()
    );
}

#[test]
fn news_that_are_held_back_or_late_do_not_reach_the_manager() {
    let mut w = Solo::new(gang(1));
    w.store().watches.hold(WatchedKind::TrainingWorkload, true);
    w.settle();
    assert!(w.written().is_empty(), "nobody has heard of it");
    w.store().watches.hold(WatchedKind::TrainingWorkload, false);
    w.store()
        .watches
        .delay(WatchedKind::Pod, chrono::TimeDelta::seconds(3));
    w.settle();
    assert_eq!(w.status().ready, "1/1");
    let creates = w
        .log()
        .into_iter()
        .filter(|l| l.kind == WatchedKind::Pod && l.verb == Verb::Create && l.who == "controller");
    assert_eq!(creates.count(), 1, "what is late is not made twice");
}
