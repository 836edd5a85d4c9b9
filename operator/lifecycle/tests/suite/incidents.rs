//! Boundaries, causes and charges of incidents.

use chrono::TimeDelta;
use lockstep_api::workload::{CauseKind, FailureAction, IncidentStage, Phase};
use lockstep_sim::Solo;
use lockstep_sim::solo::{gang, gang_with};
use serde_json::json;

use super::failures::{on_code, rules};

#[test]
fn a_restart_that_no_agent_reported_is_found_by_its_count() {
    // After a restart of all containers, the kubelet shows 137 instead of the true exit code.
    for (restart_all, shown) in [(true, 137), (false, 7)] {
        let policy = rules(&json!([on_code(137, "FailWorkload")]));
        let mut w = Solo::new(gang_with(2, &policy));
        for name in w.node_names() {
            w.set_restart_all(&name, restart_all);
        }
        w.faults(|f| (f.no_agent, f.quick) = (true, true));
        w.settle();
        let before = w.uids();
        w.exit("g", 1, 7);
        let node = w.node_of("g", 1);
        w.kubelet(&node);
        w.settle();
        let s = w.status();
        assert!(
            w.uids().values().all(|u| before.values().all(|b| b != u)),
            "no agent: new pods"
        );
        assert_eq!(
            (s.history.len(), s.history[0].cause.exit_code),
            (1, Some(shown))
        );
        assert_eq!((s.phase, s.restarts.counted), (Some(Phase::Running), 1));
    }
}

#[test]
fn a_second_failure_at_the_new_attempt_is_an_incident_of_its_own() {
    let mut w = Solo::new(gang(2));
    w.settle();
    w.exit("g", 0, 1);
    w.settle();
    w.exit("g", 1, 2);
    w.settle();
    let s = w.status();
    assert_eq!(
        (s.attempt, s.history.len(), s.restarts.counted, w.restarts()),
        (3, 2, 2, vec![2, 2])
    );
}

#[test]
fn a_member_that_fails_again_before_its_peers_are_back_is_charged_every_other_time() {
    let mut w = Solo::new(gang(4));
    w.settle();
    w.fault("n1", |f| f.hangs = true);
    let mut counted = Vec::new();
    for _ in 0..3 {
        w.exit("g", 0, 1);
        for _ in 0..30 {
            w.round();
            w.later(1);
        }
        counted.push(w.status().restarts.counted);
    }
    assert_eq!(counted, [1, 1, 2]);
    w.fault("n1", |f| f.hangs = false);
    w.settle();
    let s = w.status();
    assert_eq!(
        (s.phase, s.attempt, s.restarts.total),
        (Some(Phase::Running), 4, 1)
    );
    assert_eq!(
        s.history.iter().map(|h| h.counted).collect::<Vec<_>>(),
        [true, false, true]
    );
}

#[test]
fn a_peer_that_fails_because_of_a_requested_restart_costs_no_budget() {
    let mut w = Solo::new(gang(3));
    w.settle();
    w.edit(|s| s.restart_nonce = 1);
    w.pass();
    w.later(1);
    w.exit("g", 1, 1);
    w.settle();
    let s = w.status();
    assert_eq!(
        (w.restarts(), s.attempt, s.restarts.counted, s.history.len()),
        (vec![1, 1, 1], 2, 0, 1)
    );
    assert_eq!(s.history[0].cause.kind, CauseKind::Requested);
}

#[test]
fn a_container_that_restarted_alone_may_still_fail_its_gang() {
    let mut w = Solo::new(gang_with(
        3,
        &rules(&json!([on_code(3, "RestartContainer")])),
    ));
    w.settle();
    w.exit("g", 1, 3);
    w.settle();
    assert_eq!((w.restarts(), w.status().attempt), (vec![0, 1, 0], 1));
    w.wait(300);
    w.exit("g", 1, 1);
    w.settle();
    assert_eq!((w.restarts(), w.status().attempt), (vec![1, 2, 1], 2));
    w.wait(300);
    w.exit("g", 0, 1);
    w.settle();
    assert_eq!((w.restarts(), w.status().attempt), (vec![2, 3, 2], 3));
}

#[test]
fn a_container_that_restarted_alone_a_moment_before_an_incident_takes_part_in_it() {
    let mut w = Solo::new(gang_with(
        3,
        &rules(&json!([on_code(9, "RestartContainer")])),
    ));
    w.settle();
    w.exit("g", 1, 9);
    w.settle();
    assert_eq!(w.restarts(), [0, 1, 0]);
    w.later(5);
    w.exit("g", 0, 1);
    w.settle();
    assert_eq!((w.restarts(), w.status().attempt), (vec![1, 2, 1], 2));
    let order = &w.order().unwrap().spec.domains[0];
    assert_eq!((order.restarts_seen, order.exceptions.len()), (0, 1));
    assert_eq!(order.exceptions[0].restarts, 1);
    assert_eq!(order.exceptions[0].members, ["g/1/0"]);
}

#[test]
fn a_failure_first_seen_in_pod_status_is_handled_once_if_the_kubelet_restarts_first() {
    for (restarts_whole, memory) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut w = Solo::new(gang(2));
        for node in w.node_names() {
            w.set_restart_all(&node, restarts_whole);
        }
        w.settle();
        let node = w.node_of("g", 0);
        w.exit("g", 0, 3);
        // The agent batches its reports. The kubelet shows the exit, and restarts the container
        // before the manager has written the order.
        w.kubelet(&node);
        assert!(w.pass(), "the incident is recorded");
        assert_eq!(w.status().attempt, 2);
        w.later(1);
        w.kubelets();
        assert_eq!(w.restarts(), [1, 0], "the kubelet has restarted it");
        while w.pass() {}
        assert_eq!(w.order().unwrap().spec.domains[0].attempt, 2);
        if !memory {
            w.node(&node).agent_loses_memory();
        }
        w.settle();
        let s = w.status();
        assert_eq!(
            (w.restarts(), s.attempt, s.restarts.total),
            (vec![1, 1], 2, 1),
            "kubelet restarts all: {restarts_whole}, the agent's memory: {memory}\n{}",
            w.story(30)
        );
    }
}

#[test]
fn an_agent_without_records_stops_only_containers_older_than_the_order() {
    let mut w = Solo::new(gang(4));
    w.settle();
    w.exit("g", 0, 1);
    w.settle();
    assert_eq!(w.restarts(), [1, 1, 1, 1]);
    for node in w.node_names() {
        w.node(&node).agent_loses_memory();
    }
    w.later(1);
    w.settle();
    assert_eq!(w.restarts(), [1, 1, 1, 1]);
    w.exit("g", 2, 1);
    w.pass();
    for node in w.node_names() {
        w.node(&node).agent_loses_memory();
    }
    w.settle();
    let s = w.status();
    assert_eq!(
        (w.restarts(), s.attempt, s.phase),
        (vec![2, 2, 2, 2], 3, Some(Phase::Running))
    );
}

#[test]
fn the_earlier_of_two_failures_is_the_cause_and_the_more_severe_action_wins() {
    let mut w = Solo::new(gang_with(3, &rules(&json!([on_code(9, "RecreateGang")]))));
    w.settle();
    w.exit("g", 2, 1);
    w.advance(TimeDelta::milliseconds(20));
    w.exit("g", 0, 9);
    w.settle();
    let h = &w.status().history[0];
    assert_eq!(
        (h.cause.exit_code, h.action, w.status().history.len()),
        (Some(1), FailureAction::RecreateGang, 1)
    );
}

#[test]
fn a_kubelet_restart_during_a_recreation_does_not_keep_the_incident_open() {
    let by_rule = rules(&json!([on_code(42, "RestartContainer")]));
    let alone = json!({"scheduling": {"policy": "Basic"}});
    for (name, spec, code) in [("a rule", by_rule, 42), ("alone", alone, 1)] {
        let mut w = Solo::new(gang_with(3, &spec));
        w.settle();
        w.edit(|s| s.restart_nonce += 1);
        w.delete_pod("g", 0);
        w.until("the others are back", |w| {
            let incident = w.status().domains[0].incident.clone();
            incident.is_some_and(|i| i.stage == IncidentStage::Arrived)
        });
        assert!(w.exit_if_running("g", 1, code), "{name}");
        w.settle();
        let s = w.status();
        assert_eq!(
            (s.phase, s.domains[0].incident.is_none()),
            (Some(Phase::Running), true),
            "{name}: {}",
            s.message
        );
    }
}

#[test]
fn a_restart_completes_after_a_node_loses_the_container_of_its_attempt() {
    let mut w = Solo::new(gang_with(1, &json!({"scheduling": {"policy": "Basic"}})));
    w.settle();
    let node = w.node_of("g", 0);
    w.edit(|s| s.restart_nonce += 1);
    w.exit("g", 0, 1);
    w.rounds(1);
    // The kubelet starts with an empty disk, and counts restarts from zero.
    w.node(&node).reboot();
    w.settle();
    let s = w.status();
    assert_eq!(
        (s.phase, s.domains[0].incident.is_none()),
        (Some(Phase::Running), true),
        "{}",
        s.message
    );
}

#[test]
fn the_kubelet_delays_a_member_that_a_rule_restarts_again_and_again() {
    let rule = json!([{"name": "again", "action": "RestartPod", "counted": false,
        "match": {"exitCodes": {"operator": "In", "values": [9]}}}]);
    for supervised in [false, true] {
        let spec = gang_with(2, &rules(&rule));
        let mut w = Solo::supervised_if(supervised, spec);
        for node in w.node_names() {
            w.set_restart_all(&node, true);
        }
        w.settle();
        let before = w.uids();
        let mut exits = 0;
        for _ in 0..600 {
            exits += i32::from(w.exit_if_running("g", 0, 9));
            w.round();
            w.later(1);
        }
        let s = w.status();
        assert!((3..20).contains(&exits), "{exits} restarts in 600 s");
        assert_eq!((s.attempt, s.restarts.counted), (1, 0), "{supervised}");
        // The other member has a back-off of its own.
        let restarted = w.restarts()[1];
        assert!(w.exit_if_running("g", 1, 9));
        w.until("the other member to run again", |w| {
            w.restarts()[1] > restarted
        });
        assert_eq!((w.uids(), w.status().attempt), (before, 1), "{supervised}");
    }
}
