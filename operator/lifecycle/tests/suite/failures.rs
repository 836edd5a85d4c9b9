//! Failure policy, budget, hybrid restarts, escalation.

use chrono::TimeDelta;
use lockstep_api::workload::FailureAction::{self, RecreateGang, RestartGang};
use lockstep_api::workload::{CauseKind, Phase};
use lockstep_sim::pods::{leaving, node_of, over};
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Key, Solo, WatchedKind};
use serde_json::{Value, json};

pub(super) fn rules(rules: &Value) -> Value {
    json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Allow"}, "rules": rules}})
}

pub(super) fn on_code(code: i32, action: &str) -> Value {
    json!({"name": "r", "match": {"exitCodes": {"operator": "In", "values": [code]}}, "action": action})
}

#[test]
fn a_code_that_fails_the_workload_fails_it_at_once() {
    let mut w = Solo::new(gang_with(2, &rules(&json!([on_code(3, "FailWorkload")]))));
    w.settle();
    w.exit("g", 1, 3);
    w.settle();
    let s = w.status();
    assert_eq!(
        (w.condition("Failed"), s.phase),
        ("FailurePolicy".into(), Some(Phase::Failed))
    );
    assert_eq!(
        (
            s.history[0].cause.exit_code,
            s.history[0].cause.rule.as_str()
        ),
        (Some(3), "r")
    );
    assert!(w.pods().iter().all(over), "what still ran is deleted");
    assert_eq!(s.restarts.total, 0);
}

#[test]
fn a_policy_that_fails_on_137_does_not_kill_the_healthy_members_of_a_restart() {
    let mut w = Solo::new(gang_with(3, &rules(&json!([on_code(137, "FailWorkload")]))));
    w.settle();
    w.exit("g", 0, 1);
    w.settle();
    assert_eq!(
        (w.status().phase, w.restarts()),
        (Some(Phase::Running), vec![1, 1, 1])
    );
    w.exit("g", 0, 137);
    w.settle();
    assert_eq!(
        w.condition("Failed"),
        "FailurePolicy",
        "a member that was killed from outside still counts"
    );
}

#[test]
fn a_spent_budget_fails_the_workload_with_its_history() {
    let limits = json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Allow"}, "limits": {"maxRestarts": 2}}});
    let mut w = Solo::new(gang_with(2, &limits));
    for _ in 0..3 {
        w.settle();
        w.exit("g", 0, 1);
    }
    w.settle();
    let s = w.status();
    assert_eq!(
        (w.condition("Failed"), s.restarts.counted, s.history.len()),
        ("RestartLimitExceeded".into(), 2, 3)
    );
}

#[test]
fn recreate_gang_replaces_every_pod_and_keeps_the_nodes() {
    let mut w = Solo::new(gang_with(4, &rules(&json!([on_code(9, "RecreateGang")]))));
    w.settle();
    let (before, placement) = (
        w.uids(),
        w.groups()["workload"].status.clone().unwrap().placement,
    );
    w.exit("g", 3, 9);
    w.settle();
    let listed = w
        .written()
        .iter()
        .flat_map(|s| &s.domains)
        .filter_map(|d| d.incident.as_ref())
        .any(|i| !i.old_pods.is_empty());
    assert!(!listed, "a status does not hold the pods of a large gang");
    assert!(w.uids().values().all(|u| before.values().all(|b| b != u)));
    assert_eq!(
        w.groups()["workload"].status.clone().unwrap().placement,
        placement
    );
    assert_eq!(
        (
            w.status().attempt,
            w.status().restarts.recreated,
            w.status().restarts.in_place
        ),
        (2, 4, 0)
    );
}

#[test]
fn a_clock_that_is_ahead_makes_no_deleted_pod_overdue() {
    let mut w = Solo::new(gang_with(4, &rules(&json!([on_code(9, "RecreateGang")]))));
    w.set_manager_clock(TimeDelta::minutes(5));
    w.crash();
    w.settle();
    w.exit("g", 3, 9);
    w.settle();
    assert_eq!(w.status().restarts.recreated, 4);
    let written = w.written();
    let mut gangs = written.iter().flat_map(|status| &status.gangs);
    assert!(gangs.all(|gang| gang.avoid.is_empty()));
}

#[test]
fn without_supervisor_a_restart_in_place_needs_allow() {
    let mut w = Solo::new(gang_with(
        2,
        &json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Deny"}}}),
    ));
    w.settle();
    let before = w.uids();
    w.exit("g", 0, 1);
    w.settle();
    assert!(w.uids().values().all(|u| before.values().all(|b| b != u)));
    assert_eq!(w.status().history[0].action, FailureAction::RecreateGang);
    assert_eq!(w.condition("RestartsInPlace"), "!Denied");
}

#[test]
fn a_lost_node_costs_new_pods_for_its_members_only() {
    let mut w = Solo::new(gang(4));
    w.settle();
    let before = w.uids();
    w.lose("n0");
    w.settle();
    let after = w.uids();
    let kept = |m: &str| before[m] == after[m];
    assert_eq!(
        (kept("g-0-0"), kept("g-1-0"), kept("g-2-0"), kept("g-3-0")),
        (false, false, true, true)
    );
    let s = w.status();
    assert_eq!(
        (s.phase, s.history[0].cause.kind, s.history[0].recreated),
        (Some(Phase::Running), CauseKind::NodeLost, 2)
    );
    assert!(
        w.pods()
            .iter()
            .filter(|p| !leaving(p))
            .all(|p| node_of(p) != Some("n0"))
    );
}

#[test]
fn members_on_nodes_without_agent_are_replaced() {
    let mut w = Solo::new(gang(4));
    w.fault("n1", |f| f.no_agent = true);
    w.settle();
    assert_eq!(w.condition("RestartsInPlace"), "!AgentMissing");
    let before = w.uids();
    w.exit("g", 0, 1);
    w.settle();
    let after = w.uids();
    assert_eq!(before.iter().filter(|(m, u)| after[*m] == **u).count(), 2);
    assert_eq!(
        (w.status().restarts.recreated, w.status().phase),
        (2, Some(Phase::Running))
    );
}

#[test]
fn a_member_that_does_not_come_back_in_time_gets_a_new_pod() {
    let mut w = Solo::new(gang(4));
    w.settle();
    let before = w.uids();
    w.fault("n1", |f| f.hangs = true);
    w.exit("g", 0, 1);
    w.settle();
    let after = w.uids();
    assert_eq!(
        before
            .iter()
            .filter(|(m, u)| after[*m] != **u)
            .map(|(m, _)| m.as_str())
            .collect::<Vec<_>>(),
        ["g-2-0", "g-3-0"]
    );
    assert_eq!(w.status().history.len(), 1);
}

#[test]
fn a_deleted_pod_restarts_the_gang_and_is_replaced() {
    let mut w = Solo::new(gang(3));
    w.settle();
    let before = w.uids();
    w.delete_pod("g", 1);
    w.settle();
    let after = w.uids();
    assert_eq!(before.iter().filter(|(m, u)| after[*m] != **u).count(), 1);
    assert_eq!(
        (
            w.status().history[0].cause.kind,
            w.status().restarts.counted
        ),
        (CauseKind::PodDeleted, 0)
    );
}

#[test]
fn a_pod_that_vanished_between_two_passes_is_noticed() {
    let mut w = Solo::new(gang(3));
    w.settle();
    let key = Key::of(&w.pod("g", 1));
    w.remove(WatchedKind::Pod, &key);
    w.settle();
    assert_eq!(
        (w.pods().len(), w.status().history.len(), w.status().phase),
        (3, 1, Some(Phase::Running))
    );
}

#[test]
fn an_evicted_pod_costs_no_budget() {
    let mut w = Solo::new(gang_with(
        2,
        &json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Allow"}, "limits": {"maxRestarts": 0}}}),
    ));
    w.settle();
    let pod = w.pod("g", 1);
    w.evict(&pod).unwrap();
    w.settle();
    let s = w.status();
    assert_eq!(
        (
            s.phase,
            s.restarts.counted,
            s.restarts.total,
            s.history[0].counted
        ),
        (Some(Phase::Running), 0, 1, false)
    );
}

#[test]
fn a_failed_member_can_be_replaced_elsewhere() {
    let rule = json!([{"name": "ecc", "match": {"exitCodes": {"operator": "In", "values": [42]}},
        "action": "RestartGang", "failedMember": "ReplaceElsewhere", "avoidSeconds": 3600}]);
    let mut w = Solo::new(gang_with(3, &rules(&rule)));
    w.settle();
    let node = w.node_of("g", 0);
    w.exit("g", 0, 42);
    w.settle();
    assert_ne!(w.node_of("g", 0), node);
    assert_eq!(w.status().gangs[0].avoid[0].node, node);
    assert_eq!(
        (w.restarts(), w.status().restarts.recreated),
        (vec![0, 1, 1], 1)
    );
}

#[test]
fn repeated_failures_back_off_and_then_use_new_pods_and_then_release_the_placement() {
    let mut w = Solo::new(gang(2));
    w.patience = TimeDelta::seconds(100);
    w.settle();
    let mut actions = Vec::new();
    for _ in 0..6 {
        w.exit("g", 0, 1);
        w.settle();
        actions.push(w.status().history[0].action);
    }
    assert_eq!(
        actions[..5],
        [
            RestartGang,
            RestartGang,
            RestartGang,
            RecreateGang,
            RecreateGang
        ]
    );
    assert_eq!(
        w.status().phase,
        Some(Phase::Running),
        "queued again and placed"
    );
    let given_back = w.written().iter().any(|s| {
        s.gangs[..].iter().any(|g| {
            g.backoff
                .as_ref()
                .is_some_and(|b| b.reason == "RestartsExhausted")
        })
    });
    assert!(given_back);
    let waits: Vec<i64> = w
        .status()
        .history
        .iter()
        .rev()
        .map(|h| h.phases.decide_ms / 1000)
        .collect();
    assert!(
        waits[0] <= 1 && (10..13).contains(&waits[1]) && (20..23).contains(&waits[2]),
        "{waits:?}"
    );
}

#[test]
fn ten_healthy_minutes_forget_earlier_restarts() {
    let mut w = Solo::new(gang(2));
    w.settle();
    for _ in 0..5 {
        w.exit("g", 0, 1);
        w.settle();
        w.wait(601);
    }
    assert!(
        w.status()
            .history
            .iter()
            .all(|h| h.action == FailureAction::RestartGang && h.phases.decide_ms <= 1000)
    );
}

#[test]
fn a_raised_nonce_restarts_once_and_costs_nothing() {
    let mut w = Solo::new(gang(3));
    w.settle();
    w.edit(|s| s.restart_nonce = 5);
    w.settle();
    let s = w.status();
    assert_eq!(
        (w.restarts(), s.attempt, s.restarts.counted, s.history.len()),
        (vec![1, 1, 1], 2, 0, 1)
    );
    assert_eq!(s.history[0].cause.kind, CauseKind::Requested);
}

#[test]
fn a_restart_requested_during_an_incident_still_recreates_the_pods_of_that_incident() {
    let mut w = Solo::new(gang(3));
    w.settle();
    let before = w.uids();
    w.edit(|s| s.groups[0].replicas = Some(2));
    w.crash_after(1);
    w.pass();
    assert_eq!(
        w.status().domains[0].incident.as_ref().map(|i| i.action),
        Some(RecreateGang)
    );
    w.later(1);
    w.edit(|s| s.restart_nonce = 1);
    w.settle();
    assert!(
        w.uids().values().all(|u| before.values().all(|b| b != u)),
        "they would believe to be three"
    );
}

#[test]
fn a_basic_group_restarts_one_container_and_counts_it() {
    let mut w = Solo::new(gang_with(3, &json!({"scheduling": {"policy": "Basic"}})));
    w.settle();
    w.exit("g", 1, 1);
    w.settle();
    let s = w.status();
    assert_eq!((w.restarts(), s.attempt), (vec![0, 1, 0], 1));
    assert_eq!(
        (s.restarts.total, s.restarts.counted, s.history.len()),
        (1, 1, 1)
    );
    assert_eq!(
        (s.history[0].action, s.history[0].cause.exit_code),
        (FailureAction::RestartContainer, Some(1))
    );
}

#[test]
fn a_basic_member_whose_pod_is_gone_is_replaced_alone() {
    let mut w = Solo::new(gang_with(3, &json!({"scheduling": {"policy": "Basic"}})));
    w.settle();
    let before = w.uids();
    w.delete_pod("g", 0);
    w.settle();
    let after = w.uids();
    assert_eq!(before.iter().filter(|(m, u)| after[*m] != **u).count(), 1);
    assert_eq!(
        (w.restarts(), w.status().phase),
        (vec![0, 0, 0], Some(Phase::Running))
    );
}

/// A gang whose training container has this restart rule of the user.
fn with_own_rule(rule: &Value) -> Value {
    let mut spec = gang(2);
    let container = &mut spec["groups"][0]["template"]["spec"]["containers"][0];
    container["restartPolicyRules"] = json!([rule]);
    container["restartPolicy"] = json!("Never");
    spec
}

#[test]
fn what_a_users_own_restart_rule_restarts_is_no_business_of_the_gang() {
    let rule = json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}});
    let mut w = Solo::new(with_own_rule(&rule));
    w.settle();
    w.exit("g", 1, 42);
    w.settle();
    let s = w.status();
    assert_eq!(
        (w.restarts(), s.attempt, s.phase),
        (vec![0, 1], 1, Some(Phase::Running))
    );
    w.exit("g", 1, 1);
    w.settle();
    assert_eq!((w.restarts(), w.status().attempt), (vec![1, 2], 2));
}

#[test]
fn a_container_that_its_own_rule_restarts_after_success_has_not_succeeded() {
    let rule = json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [0]}});
    let mut w = Solo::new(with_own_rule(&rule));
    w.settle();
    for index in 0..2 {
        w.exit("g", index, 0);
        w.settle();
    }
    let s = w.status();
    assert_eq!(
        (s.phase, s.groups[0].completed_indexes.as_str()),
        (Some(Phase::Running), "")
    );
    assert_eq!(w.restarts(), [1, 1]);
}

#[test]
fn a_member_that_fails_during_an_agent_outage_is_the_cause() {
    let rule = json!({"name": "free", "counted": false, "action": "RestartGang",
        "match": {"exitCodes": {"operator": "In", "values": [42]}}});
    let policy =
        json!({"failurePolicy": {"rules": [rule], "inPlace": {"withoutSupervisor": "Deny"}}});
    // Seconds after the failure of its member.
    for away in [2, 15, 45] {
        let mut w = Solo::supervised(gang_with(4, &policy));
        w.settle();
        let uids = w.uids();
        let node = w.node_of("g", 0);
        let peer = (1..4).find(|i| w.node_of("g", *i) != node).unwrap();
        w.fault(&node, |f| f.silent_agent = true);
        w.exit("g", 0, 42);
        w.rounds(1);
        // Caused by the loss of its peer.
        w.exit("g", peer, 1);
        w.rounds(away);
        assert_eq!(w.status().restarts.counted, 1, "as far as is known");
        w.fault(&node, |f| f.silent_agent = false);
        w.settle();
        let s = w.status();
        let cause = &s.history[0].cause;
        assert_eq!(
            (cause.exit_code, cause.rule.as_str(), s.restarts.counted),
            (Some(42), "free", 0),
            "after {away} s\n{}",
            w.story(20)
        );
        assert_eq!((s.history.len(), s.attempt, w.uids()), (1, 2, uids));
    }
}
