//! Supervised gangs: no member starts an attempt before all have stopped the previous one.

use lockstep_api::NodeAgent;
use lockstep_api::names::annotations;
use lockstep_api::node_agent::ArrivedPod;
use lockstep_api::workload::{CauseKind, FailureAction, Phase};
use lockstep_sim::pods::{node_of, over};
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Key, Solo, WatchedKind};
use serde_json::{Value, json};

use super::failures::on_code;

/// A gang that restarts in place only with supervisors.
pub(super) fn denied(n: i32, rules: &Value) -> Value {
    let policy =
        json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Deny"}, "rules": rules}});
    gang_with(n, &policy)
}

fn running(n: i32) -> Solo {
    let mut w = Solo::supervised(denied(n, &json!([])));
    w.settle();
    w
}

pub(super) fn attempts(w: &mut Solo) -> Vec<u64> {
    w.children().into_values().collect()
}

#[test]
fn the_first_attempt_starts_through_the_barrier_with_one_address_for_all() {
    let mut w = running(3);
    assert_eq!(attempts(&mut w), [1, 1, 1]);
    assert_eq!(
        (w.status().phase, w.condition("RestartsInPlace")),
        (Some(Phase::Running), "Supervised".into())
    );
    let order = w.order().unwrap().spec.domains.remove(0);
    let coordinator = w.pod("g", 0).status.unwrap().pod_ip.unwrap();
    assert_eq!(
        (order.released_attempt, order.peers, order.world),
        (1, ["g/0-2/0"].map(str::to_owned).into(), 3)
    );
    assert_eq!(order.coordinator.unwrap().pod_ip, coordinator);
}

#[test]
fn a_dead_member_brings_all_back_inside_their_containers() {
    let mut w = running(4);
    let before = w.uids();
    let log = w.store().log.len();
    w.exit("g", 2, 1);
    w.settle();
    assert_eq!(attempts(&mut w), [2, 2, 2, 2]);
    assert_eq!((w.uids(), w.restarts()), (before, vec![0, 0, 0, 0]));
    let s = w.status();
    assert_eq!(
        (s.attempt, s.restarts.in_place, s.restarts.recreated),
        (2, 1, 0)
    );
    assert_eq!(s.history[0].cause.exit_code, Some(1));
    let told = w.store().log[log..]
        .iter()
        .filter(|write| write.kind == WatchedKind::Pod)
        .count();
    assert_eq!(told, 0, "no kubelet has anything to write");
}

#[test]
fn no_member_starts_before_the_last_member_arrives_at_the_barrier() {
    let mut w = running(3);
    let slow = w.node_of("g", 2);
    w.fault(&slow, |f| f.silent_agent = true);
    w.exit("g", 0, 1);
    for _ in 0..20 {
        w.rounds(1);
        assert!(w.children().values().all(|attempt| *attempt == 1));
    }
    assert_eq!(w.order().unwrap().spec.domains[0].released_attempt, 1);
    w.fault(&slow, |f| f.silent_agent = false);
    w.settle();
    assert_eq!(attempts(&mut w), [2, 2, 2]);
}

#[test]
fn an_arrival_while_the_gang_releases_its_placement_does_not_open_the_barrier() {
    let mut w = Solo::supervised(denied(3, &json!([])));
    w.faults(|f| f.starts_nothing = true);
    w.until("the pods", |w| {
        w.pods().iter().filter(|p| node_of(p).is_some()).count() == 3
    });
    let last = w.node_of("g", 2);
    for node in w.node_names().into_iter().filter(|n| *n != last) {
        w.fault(&node, |f| f.starts_nothing = false);
    }
    w.rounds(10);
    w.preempt("workload");
    // Its pods are not deleted yet.
    w.fault(&last, |f| f.starts_nothing = false);
    while w.kubelet(&last) | w.agent(&last) {}
    w.pass();
    let order = w.order().unwrap().spec.domains.remove(0);
    assert!(order.released_attempt < order.attempt, "{order:?}");
    w.settle();
    let s = w.status();
    let causes: Vec<CauseKind> = s.history.iter().map(|h| h.cause.kind).collect();
    assert_eq!(
        (causes, s.restarts.counted),
        (vec![CauseKind::Preempted], 0)
    );
    assert_eq!(attempts(&mut w).len(), 3);
}

#[test]
fn a_failure_while_members_wait_at_the_barrier_starts_the_next_attempt() {
    let mut w = running(3);
    let slow = w.node_of("g", 2);
    w.fault(&slow, |f| f.silent_agent = true);
    w.exit("g", 0, 1);
    let first = w.pod("g", 0);
    w.until("the order", |w| {
        w.order().unwrap().spec.domains[0].attempt == 2
    });
    w.until("the arrival", |w| !w.children().contains_key("g-0-0"));
    w.round();
    // The supervisor exits at the barrier.
    assert!(w.exit_pod(&first, 137));
    w.round();
    w.fault(&slow, |f| f.silent_agent = false);
    w.settle();
    let all = attempts(&mut w);
    assert!(
        all.len() == 3 && all.iter().all(|a| *a == all[0] && *a >= 2),
        "{all:?}"
    );
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_supervisor_that_dies_is_started_by_its_kubelet_and_all_meet_again() {
    let mut w = running(3);
    let before = w.uids();
    let pod = w.pod("g", 1);
    assert!(w.kill_container(&pod));
    w.settle();
    assert_eq!((attempts(&mut w), w.uids()), (vec![2, 2, 2], before));
    assert_eq!(w.status().restarts.in_place, 1);
}

#[test]
fn members_that_exit_0_wait_for_each_other_and_a_crash_in_a_teardown_restarts_all() {
    let mut w = running(3);
    w.exit("g", 0, 0);
    w.exit("g", 1, 0);
    w.wait(30);
    assert!(!w.pods().iter().any(over), "they wait for the third");
    w.exit("g", 2, 6);
    w.settle();
    assert_eq!(attempts(&mut w), [2, 2, 2]);
    for index in 0..3 {
        w.exit("g", index, 0);
    }
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Succeeded));
}

#[test]
fn a_failure_with_a_rule_for_one_member_restarts_only_that_member() {
    let mut w = Solo::supervised(denied(3, &json!([on_code(42, "RestartContainer")])));
    w.settle();
    let before = w.uids();
    w.exit("g", 1, 42);
    w.settle();
    assert_eq!(attempts(&mut w), [1, 1, 1]);
    assert_eq!((w.uids(), w.restarts()), (before, vec![0, 1, 0]));
    assert_eq!(w.status().attempt, 1);
    // The same member fails again, now with a restart of all.
    w.exit("g", 1, 1);
    w.settle();
    assert_eq!((attempts(&mut w), w.status().attempt), (vec![2, 2, 2], 2));
}

#[test]
fn a_failure_that_is_ignored_ends_its_container_only() {
    let mut w = Solo::supervised(denied(2, &json!([on_code(5, "Ignore")])));
    w.settle();
    w.exit("g", 1, 5);
    w.settle();
    assert_eq!(attempts(&mut w), [1]);
    assert!(over(&w.pod("g", 1)));
}

#[test]
fn codes_that_fail_or_recreate_do_so_under_a_supervisor() {
    let rules = json!([on_code(3, "FailWorkload"), on_code(9, "RecreateGang")]);
    let mut w = Solo::supervised(denied(3, &rules));
    w.settle();
    let before = w.uids();
    w.exit("g", 0, 9);
    w.settle();
    assert!(w.uids().values().all(|u| before.values().all(|b| b != u)));
    assert_eq!(attempts(&mut w), [2, 2, 2]);
    w.exit("g", 2, 3);
    w.settle();
    let s = w.status();
    assert_eq!(s.phase, Some(Phase::Failed));
    assert_eq!(s.history[0].cause.exit_code, Some(3));
}

#[test]
fn a_kill_seen_by_the_supervisor_fails_the_workload_at_once_if_a_rule_says_so() {
    let mut w = Solo::supervised(denied(2, &json!([on_code(137, "FailWorkload")])));
    w.settle();
    w.exit("g", 0, 137);
    let began = w.now();
    w.until("the end", |w| w.status().phase == Some(Phase::Failed));
    assert!(
        (w.now() - began).num_seconds() < 30,
        "no kubelet has to confirm it"
    );
}

#[test]
fn a_member_of_a_lost_node_gets_a_new_pod_and_arrives_at_the_shared_barrier() {
    let mut w = running(4);
    let before = w.uids();
    let lost = w.node_of("g", 3);
    w.lose(&lost);
    w.wait(120);
    w.capacity("n3", 2);
    w.settle();
    let after = w.uids();
    let kept = after.iter().filter(|(m, uid)| before.get(*m) == Some(uid));
    assert_eq!((kept.count(), w.status().phase), (2, Some(Phase::Running)));
    assert_eq!(attempts(&mut w), [2, 2, 2, 2]);
}

#[test]
fn an_agent_that_forgets_and_a_manager_that_crashes_change_nothing() {
    for crash in 0..6 {
        let mut w = running(3);
        let before = w.uids();
        w.exit("g", 0, 1);
        for step in 0..12 {
            if step == crash {
                w.crash();
                let node = w.node_of("g", 1);
                w.node(&node).agent_loses_memory();
            }
            w.rounds(1);
        }
        w.settle();
        assert_eq!(
            (attempts(&mut w), w.uids(), w.restarts()),
            (vec![2, 2, 2], before, vec![0, 0, 0]),
            "crash {crash}"
        );
        assert_eq!(w.status().restarts.counted, 1);
    }
}

#[test]
fn an_agent_cannot_hide_the_arrivals_of_another_node() {
    let mut w = running(4);
    let members: Vec<(String, String)> = (0..4)
        .map(|i| (w.node_of("g", i), w.pod("g", i).metadata.uid.unwrap()))
        .collect();
    let last = members.iter().map(|(node, _)| node).max().unwrap();
    let others = members.iter().filter(|(node, _)| node != last);
    let forged: Vec<ArrivedPod> = others
        .map(|(_, uid)| ArrivedPod {
            pod_uid: uid.clone(),
            ..ArrivedPod::default()
        })
        .collect();
    assert_eq!(forged.len(), 2);
    w.exit("g", 0, 1);
    for _ in 0..30 {
        w.rounds(1);
        w.cluster.edit::<NodeAgent>(&Key::new("", last), |agent| {
            for arrival in agent.status.iter_mut().flat_map(|s| &mut s.arrivals) {
                arrival.pods.extend(forged.clone());
                arrival.pods.sort();
                arrival.pods.dedup();
            }
        });
    }
    assert_eq!(attempts(&mut w), [2; 4]);
}

#[test]
fn a_supervised_workload_is_suspended_and_resumed() {
    let mut w = running(2);
    w.edit(|s| s.suspend = true);
    w.settle();
    assert!(w.pods().iter().all(over));
    w.edit(|s| s.suspend = false);
    w.settle();
    let all = attempts(&mut w);
    assert!(all.len() == 2 && all[0] == all[1], "{all:?}");
    let restarts = w.status().restarts;
    assert_eq!((restarts.counted, restarts.counted_at.len()), (0, 0));
}

#[test]
fn an_agent_that_comes_and_goes_spends_no_budget() {
    let mut w = running(3);
    let before = w.uids();
    for n in 0..40 {
        let node = w.node_of("g", n % 3);
        w.fault(&node, |f| f.no_agent = true);
        w.rounds(3);
        w.node(&node).agent_loses_memory();
        w.fault(&node, |f| f.no_agent = false);
        w.rounds(2);
    }
    w.settle();
    let s = w.status();
    assert_eq!((attempts(&mut w), w.uids()), (vec![1, 1, 1], before));
    assert_eq!(
        (s.restarts.counted, s.history.len(), s.phase),
        (0, 0, Some(Phase::Running))
    );
}

/// Number of writes to objects of a kind since then.
fn written(w: &Solo, from: usize, kind: WatchedKind) -> usize {
    let store = w.store();
    let new = store.log[from..].iter();
    new.filter(|write| write.kind == kind).count()
}

#[test]
fn a_restart_writes_its_order_twice_and_each_agent_writes_once_or_twice() {
    let mut w = running(8);
    let from = w.store().log.len();
    w.exit("g", 2, 1);
    w.settle();
    assert_eq!(attempts(&mut w), [2; 8]);
    let orders = written(&w, from, WatchedKind::RestartOrder);
    let agents = written(&w, from, WatchedKind::NodeAgent);
    assert_eq!(orders, 2, "the order, and the release");
    assert!((4..=5).contains(&agents), "{agents} writes on four nodes");
}

#[test]
fn a_status_that_is_written_wakes_no_agent() {
    let mut w = running(4);
    let order = |w: &Solo| w.order().unwrap().metadata.resource_version;
    let from = w.store().log.len();
    let (before, told) = (w.written().len(), order(&w));
    for turn in 0..20 {
        // The readiness probe alternates.
        let shown = ["False", "True"][turn % 2];
        w.edit_pod("g", turn as i32 / 2 % 4, |pod| {
            let conditions = pod.status.as_mut().unwrap().conditions.iter_mut();
            let ready = conditions.flatten().find(|c| c.type_ == "Ready").unwrap();
            ready.status = shown.into();
        });
        w.rounds(1);
    }
    let statuses = w.written().len() - before;
    assert!(statuses >= 20, "{statuses} statuses");
    // Agents watch only the order, which has not changed.
    assert_eq!(order(&w), told);
    assert_eq!(written(&w, from, WatchedKind::NodeAgent), 0);
    for node in w.node_names() {
        assert!(!w.agent(&node), "the agent of {node} has something to do");
    }
}

#[test]
fn a_requested_restart_runs_inside_the_containers() {
    let mut w = running(3);
    let before = w.uids();
    w.edit(|s| s.restart_nonce += 1);
    w.settle();
    assert_eq!(
        (attempts(&mut w), w.uids(), w.restarts()),
        (vec![2, 2, 2], before, vec![0, 0, 0])
    );
}

#[test]
fn where_no_agent_can_reach_a_supervisor_pods_have_none_and_the_condition_says_why() {
    let spec = denied(2, &json!([]));
    let mut w = Solo::supervised(spec);
    for node in ["n0", "n1", "n2", "n3"] {
        w.fault(node, |f| f.no_agent = true);
    }
    w.settle();
    let tier = |w: &Solo| w.pod("g", 0).metadata.annotations.unwrap()[annotations::TIER].clone();
    assert_eq!(tier(&w), "restart-all");
    assert_eq!(
        w.status().phase,
        Some(Phase::Running),
        "nobody is held for ever"
    );
    assert_eq!(w.condition("RestartsInPlace"), "!AgentMissing");
}

#[test]
fn a_container_without_a_command_runs_without_a_supervisor_as_the_condition_says() {
    let mut spec = gang(2);
    spec["groups"][0]["template"]["spec"]["containers"][0]["command"] = json!([]);
    spec["failurePolicy"]["inPlace"]["withoutSupervisor"] = json!("Deny");
    let mut w = Solo::supervised(spec);
    w.settle();
    assert_eq!(w.condition("RestartsInPlace"), "!Denied");
    w.exit("g", 0, 1);
    w.settle();
    assert_eq!(w.status().history[0].action, FailureAction::RecreateGang);
}

#[test]
fn members_that_restart_one_by_one_have_no_supervisor() {
    let mut w = Solo::supervised(gang_with(3, &json!({"scheduling": {"policy": "Basic"}})));
    w.settle();
    assert!(w.children().is_empty());
    assert_eq!(w.status().phase, Some(Phase::Running));
}

/// Varies the order of watch events and of steps of agents and kubelets. Injects failures of
/// processes and supervisors, silent, restarted and reset agents, and crashes of the manager. After
/// each step, the cluster asserts that no two attempts run at once.
#[test]
fn no_order_of_turns_mixes_attempts_and_each_ends_with_all_running() {
    let mut attempts_in_all = 0;
    for seed in 0..40 {
        let mut w = running(3);
        w.reseed(seed);
        for _ in 0..600 {
            match w.pick(120) {
                0 => {
                    let index = w.pick(3);
                    let code = [1, 0, 137][w.pick(3)];
                    w.exit_if_running("g", index as i32, code);
                }
                1 => {
                    let pods = w.pods();
                    let pod = pods[w.pick(pods.len())].clone();
                    w.kill_container(&pod);
                }
                2 => w.crash(),
                3 => {
                    let node = format!("n{}", w.pick(4));
                    w.node(&node).agent_loses_memory();
                }
                4 => {
                    let node = format!("n{}", w.pick(4));
                    let on = w.pick(2) == 0;
                    w.fault(&node, |f| f.silent_agent = on);
                }
                _ => drop(w.step()),
            }
        }
        for node in ["n0", "n1", "n2", "n3"] {
            w.fault(node, |f| f.silent_agent = false);
        }
        w.patience = chrono::TimeDelta::seconds(400);
        w.settle();
        let s = w.status();
        attempts_in_all += s.attempt;
        let all = attempts(&mut w);
        match s.phase {
            Some(Phase::Running) => {
                // A finished member waits at most five minutes for other members.
                let done = s.groups[0].succeeded as usize;
                assert_eq!(all.len() + done, 3, "seed {seed}: {all:?}\n{}", w.story(40));
            }
            other => assert_eq!(
                other,
                Some(Phase::Succeeded),
                "seed {seed}\n{}",
                w.story(40)
            ),
        }
    }
    assert!(attempts_in_all > 90, "{attempts_in_all} attempts");
}
