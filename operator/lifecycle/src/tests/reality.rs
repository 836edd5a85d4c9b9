//! What real clusters do that a friendly one does not: classes that are deleted, pods that take
//! long to end, quotas that let some members in, failures that cost nothing and never stop.

use chrono::TimeDelta;
use lockstep_api::workload::Phase;
use serde_json::{Value, json};

use super::{gang, gang_with};
use crate::testing::World;
use crate::view::Priority;

fn deny(n: i32) -> Value {
    gang_with(
        n,
        &json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Deny"}}}),
    )
}

fn basic(n: i32) -> Value {
    gang_with(n, &json!({"scheduling": {"policy": "Basic"}}))
}

#[test]
fn a_gang_whose_priority_class_was_deleted_still_restarts_in_place() {
    let mut w = World::new(gang_with(2, &json!({"priorityClassName": "research"})));
    w.settle();
    w.priority = Priority::Unknown;
    w.exit("g", 0, 1);
    w.settle();
    assert_eq!(
        (w.restarts(), w.status().phase),
        (vec![1, 1], Some(Phase::Running))
    );
}

#[test]
fn a_gang_whose_priority_class_was_deleted_says_so_while_it_needs_new_pods() {
    let mut w = World::new(gang_with(
        2,
        &json!({"priorityClassName": "research",
            "failurePolicy": {"inPlace": {"withoutSupervisor": "Deny"}}}),
    ));
    let known = w.priority.clone();
    w.settle();
    assert_eq!(w.condition("Stalled"), "!Progressing");
    w.priority = Priority::Unknown;
    w.exit("g", 0, 1);
    w.settle();
    assert_eq!(w.condition("Stalled"), "InvalidPriorityClass");
    w.priority = known;
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_requested_restart_leaves_a_group_alone_that_has_succeeded() {
    let mut w = World::new(super::placements::two_groups("Succeeded"));
    w.settle();
    w.exit("a", 0, 0);
    w.settle();
    let finished = w.uids();
    w.edit(|s| s.restart_nonce = 1);
    w.settle();
    assert!(w.status().domains.iter().all(|d| d.incident.is_none()));
    assert_eq!(w.status().phase, Some(Phase::Running));
    let kept = finished
        .iter()
        .filter(|(m, uid)| m.starts_with('a') && w.uids().get(*m) == Some(uid));
    assert_eq!(kept.count(), 1, "the finished pod stays for its log");
}

#[test]
fn no_pod_of_the_new_attempt_is_made_while_one_of_the_old_attempt_still_runs() {
    let mut w = World::new(deny(4));
    w.settle();
    let old = w.uids();
    w.exit("g", 0, 1);
    for _ in 0..8 {
        while w.pass(usize::MAX) {}
        // The other node's kubelet lets its containers end later.
        for node in ["n0", "n2", "n3"] {
            w.kubelet(node);
            w.agent(node);
        }
        let old_left = w
            .pods
            .iter()
            .any(|p| old.values().any(|u| *u == p.shown.uid));
        let new = w
            .pods
            .iter()
            .any(|p| old.values().all(|u| *u != p.shown.uid));
        assert!(!(old_left && new), "two attempts side by side");
        w.now += TimeDelta::seconds(1);
    }
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_quota_that_refuses_one_member_of_a_basic_group_leaves_the_others_alone() {
    let mut w = World::new(basic(4));
    w.quota = Some(3);
    for _ in 0..60 {
        while w.pass(usize::MAX) {
            w.schedule();
            if w.refusals.iter().any(|r| r.at == w.now) {
                break;
            }
        }
        w.schedule();
        for node in ["n0", "n1", "n2", "n3"] {
            w.kubelet(node);
            w.agent(node);
        }
        w.now += TimeDelta::seconds(1);
    }
    let there = w.pods.iter().filter(|p| !p.shown.terminating());
    assert_eq!(there.count(), 3);
    assert_eq!(w.status().preemptions, 0);
}

#[test]
fn members_of_a_basic_group_that_have_finished_stay_finished_over_a_suspension() {
    let mut w = World::new(basic(3));
    w.settle();
    w.exit("g", 0, 0);
    w.settle();
    w.edit(|s| s.suspend = true);
    w.settle();
    w.edit(|s| s.suspend = false);
    w.settle();
    assert_eq!(w.status().groups[0].completed_indexes, "0");
}

#[test]
fn a_replica_that_has_finished_stays_finished_over_a_suspension() {
    let mut w = World::new(gang_with(
        3,
        &json!({"scheduling": {"gang": {"scope": "Replica"}}}),
    ));
    w.settle();
    w.exit("g", 1, 0);
    w.settle();
    w.edit(|s| s.suspend = true);
    w.settle();
    w.edit(|s| s.suspend = false);
    w.settle();
    assert_eq!(w.status().groups[0].completed_indexes, "1");
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert_eq!(w.condition("Admitted"), "Scheduled");
}

#[test]
fn replicas_that_a_basic_group_gains_do_not_restart_the_others() {
    let mut w = World::new(basic(3));
    w.settle();
    let before = w.uids();
    w.edit(|s| s.groups[0].replicas = 4);
    w.settle();
    let after = w.uids();
    assert_eq!(after.len(), 4);
    assert!(before.iter().all(|(m, uid)| after.get(m) == Some(uid)));
}

#[test]
fn a_running_gang_of_which_a_replacement_is_refused_holds_its_nodes_for_a_while() {
    let mut w = World::new(deny(3));
    w.settle();
    w.quota = Some(2);
    w.exit("g", 0, 1);
    for _ in 0..40 {
        for _ in 0..10 {
            if !w.pass(usize::MAX) {
                break;
            }
        }
        w.schedule();
        for node in ["n0", "n1", "n2", "n3"] {
            w.kubelet(node);
            w.agent(node);
        }
        w.now += TimeDelta::seconds(1);
    }
    assert!(
        w.status().gangs[0].released.is_none(),
        "the nodes are held while the quota may free"
    );
    w.quota = None;
    w.refusals.clear();
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_failure_that_costs_nothing_and_comes_again_and_again_is_answered_slower_and_slower() {
    let policy = json!({"failurePolicy": {"rules": [{"name": "free", "counted": false, "action": "RestartGang",
        "match": {"exitCodes": {"operator": "In", "values": [9]}}}], "inPlace": {"withoutSupervisor": "Allow"}}});
    let mut w = World::new(gang_with(2, &policy));
    w.patience = 600;
    w.settle();
    let begun = w.now;
    for _ in 0..8 {
        w.exit("g", 0, 9);
        w.settle();
    }
    assert!(
        w.now - begun > TimeDelta::minutes(14),
        "eight restarts took {}",
        w.now - begun
    );
    assert_eq!(w.status().restarts.counted, 0);
    assert_ne!(w.status().phase, Some(Phase::Failed));
}

#[test]
fn the_loss_of_one_node_is_one_incident_however_many_replicas_it_held() {
    let mut w = World::new(gang_with(
        2,
        &json!({"scheduling": {"gang": {"scope": "Replica"}}, "failurePolicy": {"restartScope": "Replica",
            "nodeLostSeconds": 5}}),
    ));
    for name in ["n1", "n2", "n3"] {
        w.nodes.get_mut(name).unwrap().slots = 0;
    }
    w.settle();
    w.nodes.get_mut("n1").unwrap().slots = 2;
    w.lose("n0");
    w.wait(10);
    assert_eq!(w.status().restarts.counted, 1);
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn time_in_the_queue_is_no_lost_work() {
    let mut w = World::new(gang(9));
    w.settle();
    w.wait(36_000);
    w.nodes.get_mut("n0").unwrap().slots = 3;
    w.settle();
    w.wait(300);
    w.exit("g", 0, 1);
    w.settle();
    let lost = w.status().history[0].lost_accelerator_seconds;
    assert!(lost < 72 * 400, "{lost} accelerator-seconds");
}

#[test]
fn a_restart_whose_last_state_has_no_time_is_counted_although_its_report_was_lost() {
    let mut w = World::new(gang(2));
    w.settle();
    let node = w.pod("g", 0).shown.node.clone().unwrap();
    w.exit("g", 0, 3);
    // The container is restarted before the agent looks, and shows no times.
    w.kubelet(&node);
    w.kubelet(&node);
    let pod = w.pod("g", 0);
    pod.on_node.containers.remove(0);
    for status in pod.shown.containers.values_mut() {
        if let Some(last) = &mut status.last {
            last.finished_at = None;
            last.id = None;
        }
    }
    w.wait(30);
    assert_eq!(w.status().restarts.counted, 1);
}

#[test]
fn a_pod_that_has_lost_its_labels_is_replaced_and_not_left_behind() {
    let mut w = World::new(gang(2));
    w.settle();
    let uid = w.pod("g", 0).shown.uid.clone();
    w.pod("g", 0).shown.identity.member = None;
    w.settle();
    assert!(w.pods.iter().all(|p| p.shown.uid != uid), "it still runs");
    assert_eq!(w.uids().len(), 2);
    assert_eq!(w.status().phase, Some(Phase::Running));
}
