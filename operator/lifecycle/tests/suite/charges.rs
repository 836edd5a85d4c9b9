//! Charges to the restart budget. Agents report the end of a container long before a kubelet
//! reports why it ended the pod.

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::{ContainerState, Pod};
use lockstep_api::workload::{CauseKind, Phase};
use lockstep_lifecycle::transitions;
use lockstep_sim::Solo;
use lockstep_sim::pods::node_of;
use lockstep_sim::solo::gang_with;
use serde_json::{Value, json};

use super::failures::{on_code, rules};

/// A gang of two with a second container that takes ten seconds to end.
fn slow_beside(policy: &Value) -> Value {
    let mut spec = gang_with(2, &json!({"failurePolicy": policy}));
    let pod = &mut spec["groups"][0]["template"]["spec"];
    pod["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "log", "image": "i",
        "env": [{"name": "HOLLOW_TERM_MILLIS", "value": "10000"}]}));
    spec
}

/// The kubelet evicts the pod of member 1; its agent reports the exit first.
fn evict_by_kubelet(w: &mut Solo) -> Pod {
    let pod = w.pod("g", 1);
    let node = node_of(&pod).unwrap().to_owned();
    w.node(&node).evict(pod.metadata.uid.as_deref().unwrap());
    w.kubelet(&node);
    w.agent(&node);
    w.pass();
    pod
}

/// Events about restarts, oldest first.
fn restart_events(w: &Solo) -> Vec<String> {
    let spec = w.workload().unwrap().spec;
    let written = w.written();
    let pairs = written.windows(2);
    let events = pairs.flat_map(|pair| transitions(&spec, &pair[0], &pair[1]));
    let about = events.filter(|e| e.reason == "RestartGang" || e.reason == "RecreateGang");
    about.map(|e| e.note).collect()
}

#[test]
fn a_kubelet_eviction_refunds_the_budget_for_the_exit_that_the_agent_saw_first() {
    for in_place in ["Allow", "Deny"] {
        let policy = json!({"inPlace": {"withoutSupervisor": in_place}});
        let mut w = Solo::new(slow_beside(&policy));
        w.settle();
        evict_by_kubelet(&mut w);
        assert_eq!(
            w.status().domains[0].incident.as_ref().map(|i| i.counted),
            Some(true),
            "the others are restarted at once"
        );
        w.settle();
        let s = w.status();
        assert_eq!(
            (s.phase, s.restarts.counted),
            (Some(Phase::Running), 0),
            "{in_place}"
        );
        assert!(s.restarts.counted_at.is_empty());
        let last = restart_events(&w).pop().unwrap();
        assert!(last.starts_with("corrected: "), "{last}");
        assert!(
            last.contains("not counted: 0 of 10 restarts used"),
            "{last}"
        );
        assert!(
            last.contains("failed (Evicted): The node was low"),
            "{last}"
        );
        let first = s.history.last().unwrap();
        assert_eq!(
            (first.cause.kind, first.cause.reason.as_str(), first.counted),
            (CauseKind::PodFailed, "Evicted", false)
        );
    }
}

/// The pod of member 0 exceeds the limit of its own volume.
fn exceed_own_limit(w: &mut Solo) {
    let pod = w.pod("g", 0);
    let node = node_of(&pod).unwrap().to_owned();
    w.node(&node)
        .evict_for_own_limit(pod.metadata.uid.as_deref().unwrap());
    w.kubelet(&node);
    w.agent(&node);
}

#[test]
fn an_eviction_for_the_pods_own_limit_is_charged_and_avoids_no_node() {
    for supervised in [false, true] {
        let mut w = Solo::supervised_if(supervised, slow_beside(&json!({})));
        w.settle();
        exceed_own_limit(&mut w);
        w.settle();
        let s = w.status();
        assert_eq!((s.phase, s.restarts.counted), (Some(Phase::Running), 1));
        let first = s.history.last().unwrap();
        assert_eq!(
            (first.cause.kind, first.cause.reason.as_str(), first.counted),
            (CauseKind::PodFailed, "Evicted", true),
            "{supervised}: {first:?}"
        );
        assert!(first.cause.message.contains("EmptyDir volume \"ckpt\""));
        assert!(s.gangs[0].avoid.is_empty(), "{:?}", s.gangs[0].avoid);
    }
}

#[test]
fn a_program_that_always_exceeds_its_own_limit_fails_its_workload() {
    let policy = json!({"limits": {"maxRestarts": 3}});
    let mut w = Solo::supervised(gang_with(2, &json!({ "failurePolicy": policy })));
    for _ in 0..4 {
        w.settle();
        assert_eq!(w.status().phase, Some(Phase::Running), "{}", w.story(20));
        exceed_own_limit(&mut w);
    }
    w.settle();
    assert_eq!(w.condition("Failed"), "RestartLimitExceeded");
    let message = w.status().message;
    let named = "failed (Evicted): Usage of EmptyDir volume \"ckpt\" exceeds the limit \"10Gi\"";
    assert!(message.ends_with(named), "{message}");
}

#[test]
fn an_eviction_by_the_kubelet_costs_no_budget_where_none_is_left() {
    for in_place in ["Allow", "Deny"] {
        let policy =
            json!({"inPlace": {"withoutSupervisor": in_place}, "limits": {"maxRestarts": 0}});
        let mut w = Solo::new(slow_beside(&policy));
        w.settle();
        evict_by_kubelet(&mut w);
        w.settle();
        let s = w.status();
        assert_eq!(
            (s.phase, s.restarts.counted),
            (Some(Phase::Running), 0),
            "{in_place}"
        );
    }
}

#[test]
fn a_kubelet_eviction_does_not_match_a_rule_that_fails_the_workload_on_other_exits() {
    let policy = json!({"inPlace": {"withoutSupervisor": "Allow"}, "rules": [
        {"name": "known", "match": {"exitCodes": {"operator": "In", "values": [42]}}, "action": "RestartGang"},
        {"name": "bug", "match": {"exitCodes": {"operator": "NotIn", "values": [42]}}, "action": "FailWorkload"}]});
    let mut w = Solo::new(slow_beside(&policy));
    w.settle();
    evict_by_kubelet(&mut w);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    w.exit("g", 0, 3);
    w.settle();
    assert_eq!(w.condition("Failed"), "FailurePolicy");
}

#[test]
fn a_kill_that_no_eviction_explains_stays_charged_and_fails_what_it_has_to_fail() {
    for (policy, failed) in [
        (json!({"inPlace": {"withoutSupervisor": "Allow"}}), "absent"),
        (
            json!({"limits": {"maxRestarts": 0}}),
            "RestartLimitExceeded",
        ),
        (
            json!({"rules": [{"name": "r", "match": {"exitCodes": {"operator": "In", "values": [137]}},
                "action": "FailWorkload"}]}),
            "FailurePolicy",
        ),
    ] {
        let mut w = Solo::new(slow_beside(&policy));
        w.settle();
        w.exit("g", 1, 137);
        let node = w.node_of("g", 1);
        w.agent(&node);
        w.pass();
        w.settle();
        assert_eq!(w.condition("Failed"), failed);
        assert_eq!(w.status().history[0].cause.exit_code, Some(137));
    }
}

#[test]
fn a_pod_status_without_an_exit_delays_the_incident_for_a_bounded_time() {
    let policy = json!({"limits": {"maxRestarts": 0}});
    let mut w = Solo::new(slow_beside(&policy));
    w.settle();
    w.exit("g", 1, 137);
    let node = w.node_of("g", 1);
    w.agent(&node);
    for _ in 0..50 {
        w.pass();
        w.later(1);
    }
    assert_eq!(w.condition("Failed"), "absent");
    for _ in 0..20 {
        w.pass();
        w.later(1);
    }
    assert_eq!(w.condition("Failed"), "RestartLimitExceeded");
}

/// A gang whose training containers cannot start, because the image lacks the program.
fn unstartable(n: i32, policy: &Value) -> Value {
    let mut spec = gang_with(n, &json!({"failurePolicy": policy}));
    spec["groups"][0]["template"]["spec"]["containers"][0]["env"] = json!([{"name": "HOLLOW_EXIT", "value": "128"}, {"name": "HOLLOW_REASON", "value": "StartError"}]);
    spec
}

#[test]
fn a_container_that_cannot_be_started_costs_no_budget() {
    let mut w = Solo::new(unstartable(2, &json!({"limits": {"maxRestarts": 0}})));
    w.patience = TimeDelta::seconds(1);
    w.settle();
    let s = w.status();
    assert_ne!(s.phase, Some(Phase::Failed));
    assert_eq!((s.restarts.counted, s.history.len()), (0, 0));
    let gang = &s.gangs[0];
    assert_eq!(
        gang.backoff.as_ref().map(|b| b.reason.as_str()),
        Some("StartError")
    );
}

/// The status of a waiting container has no time, and the agent's report is under way.
#[test]
fn a_restart_that_shows_137_waits_for_the_report_with_the_true_code() {
    let mut w = Solo::new(gang_with(2, &json!({})));
    w.settle();
    let node = w.node_of("g", 0);
    w.exit("g", 0, 3);
    while !shows_masked_exit(&w.pod("g", 0)) {
        w.kubelet(&node);
    }
    w.pass();
    assert_eq!(w.status().attempt, 1, "{}", w.story(10));
    w.settle();
    assert_eq!(w.status().history[0].cause.exit_code, Some(3));
}

/// The kubelet restarts all containers after it, again and again.
#[test]
fn a_container_that_its_kubelet_cannot_start_fails_its_workload_uncharged() {
    for supervised in [false, true] {
        let spec = unstartable(2, &json!({"limits": {"maxRestarts": 0}}));
        let mut w = Solo::supervised_if(supervised, spec);
        w.settle();
        let s = w.status();
        assert_eq!(w.condition("Failed"), "StartError", "{supervised}");
        assert!(s.message.contains("exit code 128"), "{}", s.message);
        assert_eq!((s.restarts.counted, s.history.len()), (0, 0));
    }
}

fn shows_masked_exit(pod: &Pod) -> bool {
    let status = pod.status.as_ref().unwrap();
    let training = &status.container_statuses.as_ref().unwrap()[0];
    let ended = |s: &Option<ContainerState>| s.as_ref()?.terminated.as_ref()?.reason.clone();
    ended(&training.state).is_none()
        && ended(&training.last_state).as_deref() == Some("RestartingAllContainers")
}

#[test]
fn a_rule_on_the_code_of_a_container_that_cannot_be_started_decides() {
    let policy = json!({"rules": [{"name": "r", "match": {"exitCodes": {"operator": "In", "values": [128]}},
        "action": "FailWorkload"}]});
    let mut w = Solo::new(unstartable(2, &policy));
    w.settle();
    assert_eq!(w.condition("Failed"), "FailurePolicy");
}

#[test]
fn user_deletions_of_a_pod_cost_no_budget_but_back_off() {
    let policy = json!({"inPlace": {"withoutSupervisor": "Allow"}, "limits": {"maxRestarts": 0}});
    let mut w = Solo::new(gang_with(2, &json!({"failurePolicy": policy})));
    w.settle();
    let begun = w.now();
    for _ in 0..4 {
        w.delete_pod("g", 1);
        w.settle();
    }
    let s = w.status();
    assert_eq!((s.phase, s.restarts.counted), (Some(Phase::Running), 0));
    assert!(
        w.now() - begun > TimeDelta::seconds(60),
        "{}",
        w.now() - begun
    );
}

#[test]
fn members_that_nodes_do_not_start_do_not_count_towards_releasing_the_placement() {
    let mut w = Solo::new(gang_with(
        3,
        &json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Allow", "maxTries": 1}}}),
    ));
    w.patience = TimeDelta::seconds(400);
    w.settle();
    for _ in 0..4 {
        // The former node rejects the replacement, which starts on another node.
        let node = w.node_of("g", 0);
        w.fault(&node, |f| f.rejects = true);
        w.delete_pod("g", 0);
        w.settle();
        w.fault(&node, |f| f.rejects = false);
    }
    let before = w.status();
    assert_eq!(
        (before.phase, before.domains[0].in_place_tries),
        (Some(Phase::Running), 0)
    );
    w.exit("g", 1, 1);
    w.settle();
    assert_eq!(
        w.status().gangs[0].released,
        before.gangs[0].released,
        "the nodes are kept"
    );
}

/// The peer's exit is observed first and charged. The eviction, with an earlier time, becomes
/// visible when its pod has ended.
#[test]
fn an_eviction_that_fails_a_peer_first_costs_no_budget() {
    let policy = json!({"inPlace": {"withoutSupervisor": "Allow"}});
    let mut w = Solo::new(slow_beside(&policy));
    w.settle();
    let pod = w.pod("g", 1);
    let node = node_of(&pod).unwrap().to_owned();
    w.fault(&node, |f| f.silent_agent = true);
    w.settle();
    w.node(&node).evict(pod.metadata.uid.as_deref().unwrap());
    w.kubelet(&node);
    w.later(2);
    w.exit("g", 0, 1);
    w.settle();
    assert_eq!(w.status().restarts.counted, 0);
}

/// The deletion timestamp is the end of the grace period, long after the exit that the deletion
/// caused in a peer. A late pass observes both at once.
#[test]
fn a_late_pass_that_sees_an_eviction_with_its_echo_in_a_peer_charges_nothing() {
    let policy = json!({"inPlace": {"withoutSupervisor": "Allow"}, "limits": {"maxRestarts": 0}});
    let mut w = Solo::new(gang_with(2, &json!({"failurePolicy": policy})));
    for node in ["n0", "n1"] {
        w.capacity(node, 1);
    }
    w.settle();
    let (peer, pod) = (w.node_of("g", 0), w.pod("g", 1));
    assert_ne!(Some(peer.as_str()), node_of(&pod));
    w.evict(&pod).unwrap();
    w.advance(TimeDelta::milliseconds(50));
    w.exit("g", 0, 1);
    w.agent(&peer);
    w.advance(TimeDelta::milliseconds(50));
    w.pass();
    w.settle();
    let s = w.status();
    assert_eq!(
        (s.phase, s.restarts.counted),
        (Some(Phase::Running), 0),
        "{:?}",
        s.history
    );
}

/// A running gang whose kubelets restart a container that exits with 42.
fn left_to_kubelets(members: i32) -> Solo {
    let soft = on_code(42, "RestartContainer");
    let mut w = Solo::new(gang_with(members, &rules(&json!([soft]))));
    for node in w.node_names() {
        w.set_restart_all(&node, false);
    }
    w.settle();
    w
}

#[test]
fn a_failure_whose_report_is_under_way_is_not_counted_as_anothers_last_end_too() {
    let mut w = left_to_kubelets(2);
    w.exit("g", 1, 42);
    w.settle();
    let node = w.node_of("g", 0);
    w.fault(&node, |f| (f.quick, f.silent_agent) = (true, true));
    w.exit("g", 0, 7);
    w.rounds(2);
    w.fault(&node, |f| (f.quick, f.silent_agent) = (false, false));
    w.settle();
    assert_eq!(w.status().restarts.counted, 2, "{}", w.story(40));
}

#[test]
fn an_unreported_failure_is_handled_while_the_report_of_another_member_is_pending() {
    let mut w = left_to_kubelets(4);
    let (without, silent) = (w.node_of("g", 0), w.node_of("g", 3));
    assert_ne!(without, silent);
    w.fault(&without, |f| (f.no_agent, f.quick) = (true, true));
    w.settle();
    w.fault(&silent, |f| (f.silent_agent, f.quick) = (true, true));
    w.exit("g", 3, 42);
    w.exit("g", 0, 7);
    w.rounds(2);
    assert_eq!(w.status().attempt, 2, "{}", w.story(40));
}

#[test]
fn a_pod_past_its_own_deadline_is_charged_with_that_cause() {
    for (in_place, supervised) in [("Allow", false), ("Deny", false), ("Deny", true)] {
        let mut spec = gang_with(
            2,
            &json!({"failurePolicy": {"inPlace": {"withoutSupervisor": in_place}}}),
        );
        spec["groups"][0]["template"]["spec"]["activeDeadlineSeconds"] = json!(600);
        let mut w = Solo::supervised_if(supervised, spec);
        w.settle();
        w.wait(580);
        w.rounds(120);
        let s = w.status();
        let first = s.history.last().unwrap();
        assert_eq!(
            (first.cause.kind, first.cause.reason.as_str(), first.counted),
            (CauseKind::PodFailed, "DeadlineExceeded", true),
            "{in_place}, supervised {supervised}: {first:?}"
        );
    }
}
