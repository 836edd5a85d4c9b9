//! Repairs of manual changes and of remains of earlier decisions.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::{Pod, Service};
use lockstep_api::names::labels;
use lockstep_api::workload::Phase;
use lockstep_api::{PodGroup, RestartOrder, TrainingWorkload, Workload};
use lockstep_sim::pods::{env, leaving, published};
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Key, Solo, WatchedKind};
use serde_json::json;

use super::completion::two_groups;

/// Rounds of a second.
fn run_for(w: &mut Solo, seconds: i64) {
    let end = w.now() + TimeDelta::seconds(seconds);
    while w.now() < end {
        w.round();
        w.later(1);
    }
}

fn take_label_off_service(w: &mut Solo) {
    let key = w.key().clone();
    w.cluster.edit::<Service>(&key, |service| {
        let labels = service.metadata.labels.as_mut().unwrap();
        labels.remove(labels::WORKLOAD_UID);
    });
    // A watch by label shows an object that has lost the label as deleted.
    w.store().relist(WatchedKind::Service);
}

#[test]
fn a_service_whose_label_was_taken_off_delays_no_restart_in_place() {
    let mut w = Solo::supervised(gang(2));
    w.settle();
    take_label_off_service(&mut w);
    run_for(&mut w, 100);
    let failed_at = w.now();
    w.exit("g", 0, 1);
    w.until("the gang to restart", |w| {
        let children: Vec<u64> = w.children().into_values().collect();
        children == [2, 2]
    });
    assert!(w.now() - failed_at < TimeDelta::seconds(10));
}

#[test]
fn a_service_whose_label_was_taken_off_gets_it_back_and_delays_no_replacement() {
    let mut w = Solo::new(gang(2));
    w.settle();
    let key = w.key().clone();
    take_label_off_service(&mut w);
    w.delete_pod("g", 0);
    run_for(&mut w, 60);
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert_eq!(w.uids().len(), 2);
    let service = w.cluster.get::<Service>(&key).unwrap();
    let labels = service.metadata.labels.unwrap();
    assert_eq!(
        labels.get(labels::WORKLOAD_UID).map(String::as_str),
        Some("w-uid")
    );
}

/// `kubectl delete --cascade=orphan`, and the clean-up of what users may delete.
fn delete_and_orphan(w: &mut Solo) {
    macro_rules! orphan {
        ($($kind:ty),*) => {$(
            let keys: Vec<Key> = w.cluster.list::<$kind>().iter().map(Key::of).collect();
            for key in keys.iter().filter(|key| &*key.namespace == "ns") {
                w.cluster.edit::<$kind>(key, |o| o.metadata.owner_references = None);
            }
        )*};
    }
    orphan!(Service, Pod, Workload, PodGroup, RestartOrder);
    let key = w.key().clone();
    w.delete(WatchedKind::TrainingWorkload, &key);
    run_for(w, 5);
    for pod in w.pods() {
        w.delete(WatchedKind::Pod, &Key::of(&pod));
    }
    w.delete(WatchedKind::Service, &key);
    run_for(w, 60);
}

fn create_again(w: &mut Solo, uid: &str, members: i32) {
    let spec = serde_json::from_value(gang(members)).unwrap();
    let mut workload = TrainingWorkload::new("w", spec);
    workload.metadata.namespace = Some("ns".into());
    workload.metadata.uid = Some(uid.into());
    w.cluster.create(&workload);
}

#[test]
fn objects_left_by_an_earlier_workload_of_the_name_are_replaced() {
    let mut w = Solo::supervised(gang(2));
    w.settle();
    // Its order is beyond the first attempt, and released.
    w.exit("g", 0, 1);
    w.settle();
    delete_and_orphan(&mut w);
    assert!(w.scheduling().is_some() && w.order().is_some(), "orphans");
    create_again(&mut w, "w2-uid", 2);
    w.settle();
    let s = w.status();
    assert_eq!((s.phase, s.attempt), (Some(Phase::Running), 1));
    assert_eq!(w.condition("Stalled"), "!Progressing");
    let order = w.order().unwrap();
    assert_eq!(order.spec.workload_uid, "w2-uid");
    assert_eq!(order.metadata.owner_references.unwrap()[0].uid, "w2-uid");
}

#[test]
fn an_order_of_another_owner_is_kept_and_is_a_name_conflict() {
    let mut w = Solo::new(gang(2));
    w.settle();
    delete_and_orphan(&mut w);
    let key = w.key().clone();
    w.cluster.edit::<RestartOrder>(&key, |order| {
        order.metadata.labels = None;
    });
    create_again(&mut w, "w2-uid", 2);
    w.settle();
    assert_eq!(w.condition("Stalled"), "NameConflict");
    assert_eq!(w.order().unwrap().spec.workload_uid, "w-uid");
}

#[test]
fn a_member_whose_published_label_was_taken_off_gets_it_back() {
    let mut w = Solo::new(gang(2));
    w.settle();
    let before = w.uids();
    w.edit_pod("g", 1, |p| {
        p.metadata
            .labels
            .as_mut()
            .unwrap()
            .remove(labels::PUBLISHED);
    });
    w.settle();
    assert!(published(&w.pod("g", 1)), "its peers find it by its name");
    assert_eq!((w.uids(), w.status().attempt), (before, 1));
}

#[test]
fn a_member_that_kube_scheduler_takes_alone_has_its_own_grace_period() {
    let mut spec = gang_with(2, &json!({"scheduling": {"disruptionMode": "Single"}}));
    let pod = &mut spec["groups"][0]["template"]["spec"];
    pod["terminationGracePeriodSeconds"] = json!(600);
    pod["containers"][0]["env"] = json!([{"name": "HOLLOW_ON_TERM", "value": "ignore"}]);
    let mut w = Solo::new(spec);
    w.settle();
    let taken = w.pod("g", 1);
    w.take_pod("g", 1);
    run_for(&mut w, 400);
    let old = |p: &Pod| p.metadata.uid == taken.metadata.uid;
    assert!(w.pods().iter().any(old), "it saves its work");
    run_for(&mut w, 300);
    assert!(!w.pods().iter().any(old));
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_node_is_not_avoided_for_a_finished_pod_that_is_not_awaited() {
    let mut spec = two_groups("Succeeded");
    let a = &mut spec["groups"][0]["template"]["spec"]["containers"];
    a.as_array_mut()
        .unwrap()
        .push(json!({"name": "log", "image": "i"}));
    let mut w = Solo::new(spec);
    w.settle();
    let node = w.node_of("a", 0);
    let pod = w.pod("a", 0);
    w.fault(&node, |f| f.unkillable = true);
    assert!(w.exit_pod(&pod, 0));
    run_for(&mut w, 200);
    assert!(w.pods().iter().any(leaving), "its log container never ends");
    assert!(w.status().gangs.iter().all(|g| g.avoid.is_empty()));
}

#[test]
fn an_order_never_goes_back_and_the_next_restart_goes_beyond_it() {
    let mut w = Solo::new(gang(2));
    w.settle();
    let key = w.key().clone();
    w.cluster
        .edit::<RestartOrder>(&key, |o| o.spec.domains[0].attempt = 9);
    w.control();
    assert_eq!(w.order().unwrap().spec.domains[0].attempt, 9);
    w.settle();
    w.exit("g", 0, 1);
    w.settle();
    let attempt = w.order().unwrap().spec.domains[0].attempt;
    assert!(attempt > 9 && attempt == w.status().attempt, "{attempt}");
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn pods_recreated_together_after_a_second_failure_share_a_new_coordinator_port() {
    let rules = json!([{"name": "bad", "action": "RecreateGang",
        "match": {"exitCodes": {"operator": "In", "values": [9]}}}]);
    let policy = json!({"inPlace": {"withoutSupervisor": "Allow"}, "rules": rules});
    let mut w = Solo::new(gang_with(4, &json!({"failurePolicy": policy})));
    w.settle();
    let ports = |w: &Solo| {
        let pods = w.pods().into_iter().filter(|p| !leaving(p));
        let ports = pods.filter_map(|p| env(&p, "MASTER_PORT"));
        ports.collect::<BTreeSet<String>>()
    };
    let before = ports(&w);
    w.exit("g", 0, 1);
    w.agent("n0");
    w.control();
    assert!(w.status().domains[0].incident.is_some());
    w.exit("g", 3, 9);
    w.settle();
    assert_eq!(w.status().history[0].recreated, 4);
    let after = ports(&w);
    assert_eq!((after.len(), after == before), (1, false), "{after:?}");
    assert_eq!(w.status().phase, Some(Phase::Running));
}

fn message(w: &Solo, type_: &str) -> String {
    let status = w.status();
    let found = status.conditions.iter().find(|c| c.type_ == type_);
    found.map(|c| c.message.clone()).unwrap_or_default()
}

#[test]
fn pods_of_a_priority_class_recreated_with_another_value_are_reported() {
    let mut w = Solo::new(gang_with(
        2,
        &json!({"priorityClassName": "research", "failurePolicy": {"inPlace": {"withoutSupervisor": "Deny"}}}),
    ));
    w.create_class("research", 7, "Never");
    w.settle();
    assert_eq!(w.condition("PodsNotMatchingPriority"), "absent");
    w.delete_class("research");
    w.create_class("research", 9, "Never");
    w.exit("g", 0, 1);
    w.settle();
    assert_eq!(w.condition("PodsNotMatchingPriority"), "PriorityDiffers");
    let says = message(&w, "PodsNotMatchingPriority");
    assert!(says.contains("9 instead of 7"), "{says}");
}

#[test]
fn hooks_that_a_restart_in_place_does_not_run_are_named() {
    let mut spec = gang(2);
    let hook = json!({"exec": {"command": ["save"]}});
    spec["groups"][0]["template"]["spec"]["containers"][0]["lifecycle"] =
        json!({"preStop": hook, "postStart": hook});
    let mut w = Solo::new(spec);
    w.settle();
    let says = message(&w, "RestartsInPlace");
    assert!(
        says.contains("preStop of g/t does not run, and postStart of g/t runs again"),
        "{says}"
    );
}

#[test]
fn a_supervised_restart_names_the_pre_stop_that_it_does_not_run() {
    let mut spec = gang(2);
    let hook = json!({"exec": {"command": ["save"]}});
    let containers = &mut spec["groups"][0]["template"]["spec"]["containers"];
    containers[0]["lifecycle"] = json!({"preStop": hook});
    // It continues while the training process restarts.
    let beside = json!({"name": "log", "image": "i", "lifecycle": {"preStop": hook}});
    containers.as_array_mut().unwrap().push(beside);
    let mut w = Solo::supervised(spec);
    w.settle();
    assert_eq!(w.condition("RestartsInPlace"), "Supervised");
    let says = message(&w, "RestartsInPlace");
    assert!(says.contains("preStop of g/t does not run"), "{says}");
    assert!(!says.contains("g/log"), "{says}");
}

#[test]
fn a_restart_of_all_containers_of_a_pod_is_shown_while_it_lasts() {
    let rule = json!([{"name": "pod", "action": "RestartPod"}]);
    let mut spec = gang_with(2, &json!({"failurePolicy": {"rules": rule}}));
    let pod = &mut spec["groups"][0]["template"]["spec"];
    pod["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "log", "image": "i",
        "env": [{"name": "HOLLOW_ON_TERM", "value": "ignore"}]}));
    let mut w = Solo::new(spec);
    w.settle();
    w.exit("g", 0, 1);
    w.settle();
    let shown = |s: &lockstep_api::workload::TrainingWorkloadStatus| {
        let mut all = s.conditions.iter();
        all.any(|c| c.type_ == "Restarting" && c.reason == "RestartingAllContainers")
    };
    assert!(w.written().iter().any(shown));
    assert_eq!(w.condition("Restarting"), "!NotRestarting");
    assert_eq!((w.status().attempt, w.status().restarts.counted), (1, 1));
}
