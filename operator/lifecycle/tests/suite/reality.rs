//! Events of real clusters: deleted priority classes, slow terminations, quotas that admit some
//! members, repeated uncounted failures.

use chrono::{DateTime, TimeDelta};
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use lockstep_api::TrainingWorkload;
use lockstep_api::names::labels;
use lockstep_api::workload::Phase;
use lockstep_sim::clock::api_time;
use lockstep_sim::pods::{leaving, node_of};
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Key, Solo, WatchedKind};
use serde_json::{Value, json};

use super::completion::two_groups;

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
    let mut w = Solo::new(gang_with(2, &json!({"priorityClassName": "research"})));
    w.create_class("research", 7, "Never");
    w.settle();
    w.delete_class("research");
    w.exit("g", 0, 1);
    w.settle();
    assert_eq!(
        (w.restarts(), w.status().phase),
        (vec![1, 1], Some(Phase::Running))
    );
}

#[test]
fn a_gang_whose_priority_class_was_deleted_says_so_while_it_needs_new_pods() {
    let mut w = Solo::new(gang_with(
        2,
        &json!({"priorityClassName": "research",
            "failurePolicy": {"inPlace": {"withoutSupervisor": "Deny"}}}),
    ));
    w.create_class("research", 7, "Never");
    w.settle();
    assert_eq!(w.condition("Stalled"), "!Progressing");
    w.delete_class("research");
    w.exit("g", 0, 1);
    w.settle();
    assert_eq!(w.condition("Stalled"), "InvalidPriorityClass");
    w.create_class("research", 7, "Never");
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_requested_restart_leaves_a_group_alone_that_has_succeeded() {
    let mut w = Solo::new(two_groups("Succeeded"));
    w.settle();
    w.exit("a", 0, 0);
    w.settle();
    let finished = w.uids();
    w.edit(|s| s.restart_nonce = 1);
    w.settle();
    assert!(w.status().domains.iter().all(|d| !d.is_restarting()));
    assert_eq!(w.status().phase, Some(Phase::Running));
    let kept = finished
        .iter()
        .filter(|(m, uid)| m.starts_with('a') && w.uids().get(*m) == Some(uid));
    assert_eq!(kept.count(), 1, "the finished pod stays for its log");
}

/// The finished group has ranks in the world that changes.
#[test]
fn a_resize_leaves_a_group_alone_that_has_succeeded() {
    let mut spec = two_groups("Ready");
    spec["network"] = json!({"world": "Workload"});
    let mut w = Solo::new(spec);
    w.settle();
    w.exit("a", 0, 0);
    w.settle();
    let finished = w.pod("a", 0).metadata.uid;
    w.edit(|s| s.groups[1].replicas = Some(2));
    w.settle();
    let status = w.status();
    assert!(status.domains.iter().all(|d| !d.is_restarting()));
    assert_eq!(status.phase, Some(Phase::Running));
    assert_eq!(w.pod("a", 0).metadata.uid, finished, "it stays for its log");
    assert_eq!(w.uids().len(), 3);
}

#[test]
fn no_pod_of_the_new_attempt_is_made_while_one_of_the_old_attempt_still_runs() {
    let mut w = Solo::new(deny(4));
    w.settle();
    let old = w.uids();
    w.exit("g", 0, 1);
    for _ in 0..8 {
        w.control();
        w.schedule();
        w.bind();
        // The other node's kubelet ends its containers later.
        for node in ["n0", "n2", "n3"] {
            w.kubelet(node);
            w.agent(node);
        }
        let of_old = |p: &Pod| old.values().any(|u| p.metadata.uid.as_ref() == Some(u));
        let old_left = w.pods().iter().any(of_old);
        let new = !w.pods().iter().all(of_old);
        assert!(!(old_left && new), "two attempts side by side");
        w.later(1);
    }
    assert!(w.pods().iter().any(leaving), "the old ones were waited for");
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_quota_that_refuses_one_member_of_a_basic_group_does_not_affect_other_members() {
    let mut w = Solo::new(basic(4));
    w.store().admission.quota = Some(3);
    for _ in 0..60 {
        w.round();
        w.later(1);
    }
    assert_eq!(w.uids().len(), 3);
    assert_eq!(w.status().preemptions, 0);
}

#[test]
fn members_of_a_basic_group_that_have_finished_stay_finished_over_a_suspension() {
    let mut w = Solo::new(basic(3));
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
fn a_member_that_has_succeeded_does_not_train_again_after_its_node_has_forgotten_it() {
    let mut w = Solo::new(basic(2));
    w.settle();
    let node = node_of(&w.pod("g", 0)).expect("it is bound").to_owned();
    w.exit("g", 0, 0);
    // The pod is not Succeeded yet when the node returns with an empty disk.
    w.kubelet(&node);
    w.pass();
    assert_eq!(w.status().groups[0].completed_indexes, "0");
    w.node(&node).reboot();
    w.settle();
    assert!(!w.exit_if_running("g", 0, 0), "it was started again");
    assert_eq!(w.status().groups[0].completed_indexes, "0");
    assert!(w.exit_if_running("g", 1, 0));
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Succeeded));
}

#[test]
fn a_replica_that_has_finished_stays_finished_over_a_suspension() {
    let mut w = Solo::new(gang_with(
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
fn added_replicas_of_a_basic_group_restart_no_running_member() {
    let mut w = Solo::new(basic(3));
    w.settle();
    let before = w.uids();
    w.edit(|s| s.groups[0].replicas = Some(4));
    w.settle();
    let after = w.uids();
    assert_eq!(after.len(), 4);
    assert!(before.iter().all(|(m, uid)| after.get(m) == Some(uid)));
}

#[test]
fn a_running_gang_of_which_a_replacement_is_refused_holds_its_nodes_for_a_while() {
    let mut w = Solo::new(deny(3));
    w.settle();
    w.store().admission.quota = Some(2);
    w.exit("g", 0, 1);
    for _ in 0..40 {
        w.round();
        w.later(1);
    }
    assert!(
        w.status().gangs[0].released.is_none(),
        "the nodes are held while the quota may free"
    );
    w.store().admission.quota = None;
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn repeated_uncounted_failures_are_restarted_with_increasing_delay() {
    let policy = json!({"failurePolicy": {"rules": [{"name": "free", "counted": false, "action": "RestartGang",
        "match": {"exitCodes": {"operator": "In", "values": [9]}}}], "inPlace": {"withoutSupervisor": "Allow"}}});
    let mut w = Solo::new(gang_with(2, &policy));
    w.patience = TimeDelta::seconds(600);
    w.settle();
    let begun = w.now();
    for _ in 0..8 {
        w.exit("g", 0, 9);
        w.settle();
    }
    assert!(
        w.now() - begun > TimeDelta::minutes(14),
        "eight restarts took {}",
        w.now() - begun
    );
    assert_eq!(w.status().restarts.counted, 0);
    assert_ne!(w.status().phase, Some(Phase::Failed));
}

#[test]
fn the_third_failure_in_a_row_that_costs_nothing_places_its_member_elsewhere() {
    let policy = json!({"failurePolicy": {"rules": [{"name": "free", "counted": false, "action": "RestartGang",
        "match": {"exitCodes": {"operator": "In", "values": [9]}}}], "inPlace": {"withoutSupervisor": "Allow"}}});
    let mut w = Solo::new(gang_with(3, &policy));
    w.patience = TimeDelta::seconds(120);
    w.settle();
    let nodes = |w: &Solo| [0, 1, 2].map(|at| w.node_of("g", at));
    let before = nodes(&w);
    for _ in 0..2 {
        w.exit("g", 2, 9);
        w.settle();
        assert_eq!(nodes(&w), before);
    }
    w.exit("g", 2, 9);
    w.settle();
    let after = nodes(&w);
    assert_ne!(after[2], before[2]);
    assert_eq!(after[..2], before[..2], "the others keep their nodes");
    let status = w.status();
    assert_eq!(
        (status.phase, status.restarts.counted),
        (Some(Phase::Running), 0)
    );
}

#[test]
fn the_loss_of_one_node_is_one_incident_however_many_replicas_it_held() {
    let mut w = Solo::new(gang_with(
        2,
        &json!({"scheduling": {"gang": {"scope": "Replica"}}, "failurePolicy": {"restartScope": "Replica",
            "nodeLostSeconds": 5}}),
    ));
    for name in ["n1", "n2", "n3"] {
        w.capacity(name, 0);
    }
    w.settle();
    w.capacity("n1", 2);
    w.lose("n0");
    w.wait(10);
    assert_eq!(w.status().restarts.counted, 1);
    assert_eq!(w.status().phase, Some(Phase::Running));
}

/// The loss of a node that was lost this many seconds ago.
fn counted_after_a_loss_of(seconds_ago: i64) -> i64 {
    let mut w = Solo::new(gang_with(
        2,
        &json!({"failurePolicy": {"nodeLostSeconds": 5}}),
    ));
    w.settle();
    let first = w.node_of("g", 0);
    w.lose(&first);
    w.settle();
    assert_eq!(w.status().restarts.counted, 1);
    let next = w.node_of("g", 0);
    assert_ne!(next, first);
    let (key, lost_at) = (w.key().clone(), w.now() - TimeDelta::seconds(seconds_ago));
    w.cluster.edit::<TrainingWorkload>(&key, |w| {
        let before = &mut w.status.as_mut().unwrap().history[0];
        assert!(before.counted);
        before.cause.node.clone_from(&next);
        before.time = lost_at;
    });
    w.lose(&next);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    w.status().restarts.counted
}

#[test]
fn the_same_node_lost_again_is_another_incident_after_half_a_minute() {
    assert_eq!(counted_after_a_loss_of(15), 1);
    assert_eq!(counted_after_a_loss_of(40), 2);
}

#[test]
fn a_node_whose_clock_says_1970_loses_no_more_work_than_there_was() {
    let mut w = Solo::new(gang(2));
    let to_1970 = DateTime::UNIX_EPOCH - w.now();
    for node in w.node_names() {
        w.node(&node).clock_ahead = to_1970;
    }
    w.settle();
    w.wait(1000);
    w.exit("g", 0, 1);
    w.settle();
    let status = w.status();
    assert_eq!(status.phase, Some(Phase::Running));
    let lost = status.history[0].lost_accelerator_seconds / 16;
    assert!((1000..1060).contains(&lost), "{lost} s");
}

#[test]
fn time_in_the_queue_is_no_lost_work() {
    let mut w = Solo::new(gang(9));
    w.settle();
    w.wait(36_000);
    w.capacity("n0", 3);
    w.settle();
    w.wait(300);
    w.exit("g", 0, 1);
    w.settle();
    let lost = w.status().history[0].lost_accelerator_seconds;
    assert!(lost < 72 * 400, "{lost} accelerator-seconds");
}

#[test]
fn a_restart_whose_last_state_has_no_time_is_counted_although_its_report_was_lost() {
    let mut w = Solo::new(gang(2));
    w.settle();
    let node = w.node_of("g", 0);
    w.exit("g", 0, 3);
    // The container is restarted before the agent lists it, and shows no times.
    w.kubelets();
    let pod = w.pod("g", 0);
    let there = w
        .node(&node)
        .runtime
        .table()
        .view(pod.metadata.uid.as_deref().unwrap());
    assert_eq!(there.containers.len(), 1, "the agent has nothing to report");
    let shown = &pod.status.unwrap().container_statuses.unwrap()[0];
    let last = shown.last_state.clone().unwrap().terminated.unwrap();
    assert_eq!(
        (shown.restart_count, last.finished_at, last.container_id),
        (1, None, None)
    );
    w.wait(30);
    assert_eq!(w.status().restarts.counted, 1);
}

#[test]
fn a_pod_that_has_lost_its_labels_is_replaced_and_not_left_behind() {
    let mut w = Solo::new(gang(2));
    w.settle();
    let uid = w.pod("g", 0).metadata.uid;
    w.edit_pod("g", 0, |p| {
        let labels = p.metadata.labels.as_mut().unwrap();
        labels.remove(labels::GROUP);
    });
    w.settle();
    assert!(
        w.pods().iter().all(|p| p.metadata.uid != uid),
        "it still runs"
    );
    assert_eq!(w.uids().len(), 2);
    assert_eq!(w.status().phase, Some(Phase::Running));
}

fn cordon(w: &mut Solo, node: &str) {
    w.cluster.edit::<Node>(&Key::new("", node), |node| {
        node.spec.get_or_insert_default().unschedulable = Some(true);
    });
}

/// Karpenter and the cluster autoscaler taint the nodes that they remove, and do not cordon them.
fn taint(w: &mut Solo, node: &str, key: &str) {
    w.cluster.edit::<Node>(&Key::new("", node), |node| {
        let taints = &mut node.spec.get_or_insert_default().taints;
        taints.get_or_insert_default().push(Taint {
            key: key.into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        });
    });
}

#[test]
fn a_drain_of_several_nodes_of_a_gang_restarts_it_once() {
    let marks: [fn(&mut Solo, &str); 3] = [
        cordon,
        |w, node| taint(w, node, "karpenter.sh/disrupted"),
        |w, node| taint(w, node, "ToBeDeletedByClusterAutoscaler"),
    ];
    for (supervised, mark) in [true, false]
        .into_iter()
        .flat_map(|s| marks.map(|m| (s, m)))
    {
        let mut w = Solo::supervised_if(supervised, deny(4));
        w.settle();
        let (first, second) = (w.node_of("g", 0), w.node_of("g", 3));
        assert_ne!(first, second);
        mark(&mut w, &first);
        mark(&mut w, &second);
        let pod = w.pod("g", 0);
        w.evict(&pod).unwrap();
        w.settle();
        let drained = [first, second];
        let left: Vec<i32> = (0..4)
            .filter(|member| drained.contains(&w.node_of("g", *member)))
            .collect();
        assert!(left.is_empty(), "members {left:?} keep drained nodes");
        let s = w.status();
        assert_eq!((s.attempt, s.restarts.counted), (2, 0), "{supervised}");
    }
}

#[test]
fn an_eviction_without_a_drain_moves_no_other_member() {
    let mut w = Solo::supervised(deny(4));
    w.settle();
    let before = w.uids();
    let (first, second) = (w.node_of("g", 0), w.node_of("g", 3));
    assert_ne!(first, second);
    cordon(&mut w, &second);
    let pod = w.pod("g", 0);
    w.evict(&pod).unwrap();
    w.settle();
    let after = w.uids();
    let kept = before.iter().filter(|(m, uid)| after[*m] == **uid).count();
    assert_eq!((kept, w.node_of("g", 3)), (3, second));
}

/// The limit of docs/failures.md: pods have no finalizer that keeps their success.
#[test]
fn members_whose_pods_are_collected_while_no_manager_runs_run_again() {
    let mut w = Solo::new(gang(2));
    w.settle();
    let before = w.uids();
    w.exit("g", 0, 0);
    w.exit("g", 1, 0);
    for _ in 0..20 {
        w.kubelets();
        w.later(1);
    }
    for pod in w.pods() {
        w.remove(WatchedKind::Pod, &Key::of(&pod));
    }
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert!(w.uids().iter().all(|(m, uid)| before[m] != *uid));
}

/// No scheduler binds a deleted pod.
#[test]
fn an_unbound_pod_kept_by_a_foreign_finalizer_does_not_block_its_replacement() {
    let mut w = Solo::new(gang(2));
    while w.pods().len() < 2 {
        w.pass();
        w.schedule();
    }
    let now = api_time(w.now());
    w.edit_pod("g", 0, |pod| {
        assert_eq!(node_of(pod), None);
        pod.metadata.finalizers = Some(vec!["example.com/audit".into()]);
        pod.metadata.deletion_timestamp = Some(now);
        pod.metadata.deletion_grace_period_seconds = Some(0);
    });
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running), "{}", w.story(15));
}
