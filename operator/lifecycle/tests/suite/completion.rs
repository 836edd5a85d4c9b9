//! Dependencies, success and deadlines; resizing and stalled workloads.

use k8s_openapi::api::core::v1::{Pod, Service};
use lockstep_api::workload::Phase;
use lockstep_lifecycle::{Action, LifecycleSettings, Plan};
use lockstep_sim::api::{Refused, Rule, Verb};
use lockstep_sim::pods::{env, leaving, over};
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Key, Solo, WatchedKind};
use serde_json::json;

pub(super) fn two_groups(condition: &str) -> serde_json::Value {
    let template = json!({"spec": {"containers": [{"name": "t", "image": "i"}]}});
    json!({"scheduling": {"gang": {"scope": "Group"}}, "groups": [
        {"name": "a", "template": template},
        {"name": "b", "template": template, "dependsOn": [{"group": "a", "condition": condition}]}]})
}

#[test]
fn a_group_waits_until_the_one_it_depends_on_is_ready() {
    let mut w = Solo::new(two_groups("Ready"));
    w.faults(|f| f.starts_nothing = true);
    for _ in 0..20 {
        w.pass();
        w.schedule();
    }
    assert_eq!(w.uids().keys().collect::<Vec<_>>(), ["a-0-0"]);
    assert_eq!(w.condition("Admitted"), "!WaitingForDependency");
    w.faults(|f| f.starts_nothing = false);
    w.settle();
    assert_eq!(w.status().ready, "2/2");
}

#[test]
fn a_group_starts_after_its_dependency_succeeds_and_the_dependency_never_reruns() {
    let mut w = Solo::new(two_groups("Succeeded"));
    w.settle();
    assert_eq!(w.uids().len(), 1);
    w.exit("a", 0, 0);
    w.settle();
    assert_eq!(w.uids().len(), 2);
    for pod in w.pods().iter().filter(|p| over(p)) {
        w.remove(WatchedKind::Pod, &Key::of(pod));
    }
    w.exit("b", 0, 1);
    w.settle();
    assert_eq!(
        w.uids().keys().collect::<Vec<_>>(),
        ["b-0-0"],
        "the finished pod was collected and stays away"
    );
    w.exit("b", 0, 0);
    w.settle();
    assert_eq!(w.condition("Complete"), "SuccessPolicy");
}

#[test]
fn success_of_any_group_is_enough_when_the_policy_says_so() {
    let template = json!({"spec": {"containers": [{"name": "t", "image": "i"}]}});
    let mut w = Solo::new(
        json!({"successPolicy": {"operator": "Any", "groups": ["a"]}, "groups": [
        {"name": "a", "template": template}, {"name": "b", "template": template}]}),
    );
    w.settle();
    w.exit("b", 0, 0);
    w.settle();
    assert_eq!(w.condition("Complete"), "absent");
    w.exit("a", 0, 0);
    w.settle();
    assert_eq!(w.condition("Complete"), "SuccessPolicy");
}

#[test]
fn an_exit_with_zero_after_sigterm_is_no_success() {
    let mut w = Solo::new(gang(1));
    w.settle();
    w.exit("g", 0, 0);
    w.delete_pod("g", 0);
    w.settle();
    assert_eq!(
        (w.condition("Complete"), w.status().phase),
        ("absent".into(), Some(Phase::Running))
    );
}

#[test]
fn a_member_that_had_finished_runs_again_when_its_gang_restarts() {
    let mut w = Solo::new(gang(2));
    w.settle();
    w.exit("g", 0, 0);
    w.settle();
    assert_eq!(w.status().groups[0].completed_indexes, "0");
    w.exit("g", 1, 1);
    w.settle();
    assert_eq!(
        (
            w.status().groups[0].completed_indexes.as_str(),
            w.status().ready.as_str()
        ),
        ("", "2/2")
    );
}

#[test]
fn the_active_deadline_excludes_suspended_time() {
    let mut w = Solo::new(gang_with(1, &json!({"activeDeadlineSeconds": 300})));
    w.settle();
    w.edit(|s| s.suspend = true);
    w.settle();
    w.wait(1000);
    w.edit(|s| s.suspend = false);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    w.wait(301);
    assert_eq!(w.condition("Failed"), "DeadlineExceeded");
    assert!(w.pods().iter().all(leaving) || w.pods().is_empty());
}

#[test]
fn the_active_deadline_excludes_time_in_the_queue() {
    let mut w = Solo::new(gang_with(20, &json!({"activeDeadlineSeconds": 60})));
    w.rounds(100);
    let s = w.status();
    assert_eq!(
        (s.phase, s.start_time, s.active_seconds),
        (Some(Phase::Pending), None, 0)
    );
}

#[test]
fn the_active_deadline_excludes_time_in_the_queue_after_a_preemption() {
    let mut w = Solo::new(gang_with(2, &json!({"activeDeadlineSeconds": 600})));
    w.settle();
    assert!(w.status().start_time.is_some());
    w.wait(300);
    let nodes = w.node_names();
    for node in &nodes {
        w.capacity(node, 0);
    }
    w.preempt("workload");
    w.settle();
    w.wait(1000);
    let s = w.status();
    assert_eq!((s.phase, s.start_time), (Some(Phase::Pending), None));
    assert!(
        (300..360).contains(&s.active_seconds),
        "{}",
        s.active_seconds
    );
    for node in &nodes {
        w.capacity(node, 2);
    }
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    w.wait(301);
    assert_eq!(w.condition("Failed"), "DeadlineExceeded");
}

#[test]
fn replicas_grow_and_shrink_with_one_uncounted_restart() {
    let mut w = Solo::new(gang(2));
    w.settle();
    w.edit(|s| s.groups[0].replicas = Some(4));
    w.settle();
    let nnodes = |w: &Solo| {
        let of = |p: &Pod| env(p, "PET_NNODES").unwrap();
        w.pods().iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(
        (nnodes(&w), w.status().ready),
        (vec!["4".to_owned(); 4], "4/4".into())
    );
    w.edit(|s| s.groups[0].replicas = Some(1));
    w.settle();
    assert_eq!(
        (nnodes(&w), w.status().ready),
        (vec!["1".to_owned()], "1/1".into())
    );
    assert_eq!(
        (w.status().restarts.counted, w.status().history.len()),
        (0, 2)
    );
}

#[test]
fn an_unknown_priority_class_stalls_and_makes_nothing() {
    let mut w = Solo::new(gang_with(1, &json!({"priorityClassName": "nobody"})));
    w.settle();
    assert_eq!(
        (w.condition("Stalled"), w.status().phase),
        ("InvalidPriorityClass".into(), Some(Phase::Stalled))
    );
    assert!(w.groups().is_empty());
}

#[test]
fn an_invalid_template_stalls_and_makes_nothing() {
    let mut w = Solo::new(gang(1));
    w.store().admission.invalid = Some("spec.containers[0].name: Invalid value".into());
    w.settle();
    assert_eq!(w.condition("Stalled"), "InvalidTemplate");
    assert!(w.groups().is_empty() && w.service().is_none());
}

#[test]
fn a_service_of_another_owner_is_a_name_conflict() {
    let mut w = Solo::new(gang(1));
    let mut service = Service::default();
    service.metadata.name = Some("w".into());
    service.metadata.namespace = Some("ns".into());
    w.create(&service);
    w.settle();
    assert_eq!(w.condition("Stalled"), "NameConflict");
    assert!(w.pods().is_empty());
}

#[test]
fn an_order_rejected_as_invalid_stalls_the_workload_and_is_retried_later() {
    let mut w = Solo::new(gang(2));
    w.settle();
    w.exit("g", 0, 1);
    for node in ["n0", "n1"] {
        w.agent(node);
    }
    w.pass();
    let update =
        |w: &mut Solo| matches!(w.plan(), Plan::Act(a) if matches!(a[0], Action::Update { .. }));
    assert!(update(&mut w));
    w.store().admission.rules = vec![Rule {
        kind: WatchedKind::RestartOrder,
        verb: Verb::Update,
        name: Some("w".into()),
        answer: Refused::invalid("spec.domains[0].world: Invalid value"),
    }];
    w.pass();
    assert!(!update(&mut w));
    w.control();
    assert_eq!(
        (w.condition("Stalled"), w.restarts()),
        ("InvalidObject".into(), vec![0, 0])
    );
    w.store().admission.rules.clear();
    w.advance(LifecycleSettings::default().retry);
    assert!(update(&mut w));
    w.settle();
    assert_eq!(w.restarts(), [1, 1]);
    w.wait(60);
    assert_eq!(w.condition("Stalled"), "!Progressing");
}
