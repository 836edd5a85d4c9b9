//! Supervised gangs: barriers after a release, around single members, and with coordinators outside
//! of the restart domain.

use lockstep_api::restart_order::DomainOrder;
use lockstep_api::workload::Phase;

use lockstep_sim::Solo;
use lockstep_sim::pods::over;
use lockstep_sim::solo::{gang, gang_with};
use serde_json::{Value, json};

use super::failures::on_code;

fn denied(n: i32, more: &Value) -> Value {
    let mut spec = gang_with(n, more);
    spec["failurePolicy"]["inPlace"]["withoutSupervisor"] = json!("Deny");
    spec
}

fn with_rules(n: i32, rules: &Value) -> Value {
    denied(n, &json!({"failurePolicy": {"rules": rules}}))
}

fn running(spec: Value) -> Solo {
    let mut w = Solo::supervised(spec);
    w.settle();
    w
}

fn order(w: &Solo) -> DomainOrder {
    w.order().unwrap().spec.domains.remove(0)
}

fn attempts(w: &mut Solo) -> Vec<u64> {
    w.children().into_values().collect()
}

fn ip_of(w: &Solo, index: i32) -> Option<String> {
    w.pod("g", index).status?.pod_ip
}

#[test]
fn a_gang_that_is_placed_again_goes_through_a_barrier_of_its_own() {
    let mut w = running(denied(2, &json!({})));
    let before = order(&w);
    w.edit(|s| s.suspend = true);
    w.settle();
    w.edit(|s| s.suspend = false);
    for _ in 0..60 {
        w.rounds(1);
        let running = w.children().len();
        let arrived = order(&w).released_attempt > before.released_attempt;
        assert!(running == 0 || arrived, "the old release is over");
    }
    w.settle();
    let order = order(&w);
    assert_eq!(
        (order.coordinator.map(|c| c.pod_ip), attempts(&mut w).len()),
        (ip_of(&w, 0), 2)
    );
}

#[test]
fn if_world_and_restart_domain_differ_members_keep_the_coordinator_of_their_pods() {
    // Both groups restart together, each with its own first member as coordinator.
    let mut spec = denied(1, &json!({}));
    let mut second = spec["groups"][0].clone();
    second["name"] = json!("h");
    second["replicas"] = json!(3);
    spec["groups"].as_array_mut().unwrap().push(second);
    let w = running(spec);
    assert_eq!(
        (order(&w).released_attempt, order(&w).coordinator),
        (1, None)
    );
    // Replicas restart separately, but share one coordinator.
    let replicas = json!({"failurePolicy": {"restartScope": "Replica"}});
    let mut spec = denied(2, &replicas);
    spec["groups"][0]["size"] = json!(2);
    let mut w = running(spec);
    assert_eq!(w.order().unwrap().spec.domains.len(), 2);
    let pod = w.pods().swap_remove(0);
    w.exit_pod(&pod, 1);
    w.settle();
    let order = w.order().unwrap().spec;
    assert!(order.domains.iter().all(|d| d.coordinator.is_none()));
}

#[test]
fn a_member_that_restarts_alone_after_hours_costs_its_neighbour_nothing() {
    let mut w = Solo::supervised(with_rules(2, &json!([on_code(42, "RestartContainer")])));
    for node in ["n1", "n2", "n3"] {
        w.capacity(node, 0);
    }
    w.settle();
    let before = w.uids();
    w.wait(1300);
    w.exit("g", 1, 42);
    w.settle();
    assert_eq!((w.uids(), attempts(&mut w)), (before, vec![1, 1]));
}

#[test]
fn a_gang_that_has_degraded_passes_its_next_barrier() {
    let elastic = json!({"scheduling": {"gang": {"minCount": 2}, "disruptionMode": "Single"}});
    let mut w = Solo::supervised(denied(4, &elastic));
    for (node, members) in [("n0", 2), ("n1", 1), ("n2", 1), ("n3", 0)] {
        w.capacity(node, members);
    }
    w.settle();
    let lost = w.node_of("g", 3);
    w.lose(&lost);
    w.wait(120);
    w.exit("g", 0, 1);
    w.settle();
    // Processes on the lost node cannot be stopped.
    let mut children = w.children();
    children.remove("g-3-0");
    let all: Vec<u64> = children.into_values().collect();
    assert!(
        all.len() >= 2 && all.iter().all(|a| *a == all[0] && *a >= 2),
        "{all:?}\n{}",
        w.story(40)
    );
}

#[test]
fn a_pod_that_goes_right_after_the_release_takes_all_to_the_next_attempt() {
    let mut w = running(denied(3, &json!({})));
    w.exit("g", 0, 1);
    w.until("the release", |w| order(w).released_attempt == 2);
    w.delete_pod("g", 1);
    w.settle();
    assert_eq!(attempts(&mut w), [3, 3, 3]);
}

#[test]
fn a_pod_that_goes_right_after_the_first_release_takes_all_to_the_next_attempt() {
    let mut w = Solo::supervised(denied(3, &json!({})));
    w.until("the release", |w| {
        w.order().is_some() && order(w).released_attempt == 1
    });
    w.delete_pod("g", 1);
    w.settle();
    let all = attempts(&mut w);
    assert!(all.len() == 3 && all.iter().all(|a| *a >= 2), "{all:?}");
}

#[test]
fn members_that_do_one_task_after_the_other_have_no_supervisor() {
    let rule = json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [0]}});
    let mut spec = gang(2);
    let container = &mut spec["groups"][0]["template"]["spec"]["containers"][0];
    container["restartPolicy"] = json!("Never");
    container["restartPolicyRules"] = json!([rule]);
    let mut w = running(spec);
    assert_eq!(attempts(&mut w), Vec::<u64>::new());
    w.exit("g", 0, 0);
    w.settle();
    assert_eq!(w.restarts(), [1, 0]);
}

#[test]
fn an_order_that_was_written_for_supervisors_lets_those_go_that_have_none() {
    let mut w = Solo::supervised(denied(2, &json!({})));
    for node in ["n0", "n1", "n2", "n3"] {
        w.capacity(node, 0);
    }
    w.settle();
    w.edit(|s| s.suspend = true);
    w.settle();
    w.edit(|s| {
        s.failure_policy.in_place.supervisor = lockstep_api::workload::SupervisorMode::Never;
        s.suspend = false;
    });
    for node in ["n0", "n1"] {
        w.capacity(node, 2);
    }
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert!(w.status().domains[0].healthy_since.is_some());
    assert_eq!(order(&w).released_attempt, order(&w).attempt);
}

#[test]
fn a_member_restarted_alone_in_a_new_pod_may_restart_alone_again() {
    let rules = json!([on_code(42, "RestartContainer"),
        {"name": "deleted", "match": {"reasons": ["PodDeleted"]}, "action": "RestartPod"}]);
    let mut w = running(with_rules(2, &rules));
    for _ in 0..2 {
        w.exit("g", 1, 42);
        w.wait(60);
    }
    assert_eq!(w.restarts(), [0, 2]);
    w.delete_pod("g", 1);
    w.settle();
    w.exit("g", 1, 42);
    w.wait(60);
    assert_eq!((w.restarts(), attempts(&mut w)), (vec![0, 1], vec![1, 1]));
}

#[test]
fn however_long_the_back_off_members_stop_at_once_and_stay_in_their_containers() {
    let policy =
        json!({"failurePolicy": {"inPlace": {"maxTries": 10}, "limits": {"maxRestarts": 100}}});
    let mut w = running(denied(2, &policy));
    w.patience = chrono::TimeDelta::seconds(400);
    for n in 0..7 {
        w.exit("g", 0, 1);
        for _ in 0..4 {
            w.round();
        }
        let old = w.children().into_values().filter(|a| *a <= n + 1);
        assert_eq!(
            old.count(),
            0,
            "restart {n}: nobody waits for a peer that is gone"
        );
        w.settle();
    }
    assert_eq!((w.restarts(), attempts(&mut w)), (vec![0, 0], vec![8, 8]));
}

#[test]
fn a_coordinator_recreated_alone_does_not_get_its_old_address() {
    let rules =
        json!([{"name": "deleted", "match": {"reasons": ["PodDeleted"]}, "action": "RestartPod"}]);
    let mut w = running(with_rules(2, &rules));
    let old = ip_of(&w, 0);
    w.delete_pod("g", 0);
    for _ in 0..60 {
        w.rounds(1);
        let starts = w.children().contains_key("g-0-0") && ip_of(&w, 0) != old;
        let told = order(&w).coordinator.map(|c| c.pod_ip);
        assert!(
            !starts || told.is_none() || told == ip_of(&w, 0),
            "{told:?}"
        );
    }
    assert_eq!(attempts(&mut w), [1, 1]);
}

#[test]
fn the_duration_of_a_restart_is_reported_by_phase() {
    let mut w = running(denied(3, &json!({})));
    let slow = w.node_of("g", 2);
    w.fault(&slow, |f| f.silent_agent = true);
    w.exit("g", 0, 1);
    w.rounds(10);
    w.fault(&slow, |f| f.silent_agent = false);
    w.settle();
    let phases = &w.status().history[0].phases;
    assert!(phases.stop_ms >= 5000, "{phases:?}");
    assert_eq!(
        phases.start_ms, 0,
        "the incident ends with the release: {phases:?}"
    );
}

#[test]
fn a_preempted_gang_has_its_grace_period_whatever_comes_after_it() {
    let mut spec = denied(2, &json!({}));
    let pod = &mut spec["groups"][0]["template"]["spec"];
    pod["terminationGracePeriodSeconds"] = json!(60);
    pod["containers"][0]["env"] = json!([{"name": "HOLLOW_TERM_MILLIS", "value": "20000"}]);
    let mut w = running(spec);
    w.preempt("workload");
    for second in 0..15 {
        w.rounds(1);
        assert_eq!(attempts(&mut w), [1, 1], "after {second} s");
    }
}

#[test]
fn a_container_that_exits_at_the_barrier_does_not_delay_other_members() {
    let rules = json!([on_code(137, "RestartContainer")]);
    let mut w = Solo::supervised(with_rules(3, &rules));
    for node in ["n0", "n1", "n2", "n3"] {
        w.capacity(node, 1);
    }
    w.settle();
    let slow = w.node_of("g", 2);
    w.fault(&slow, |f| f.silent_agent = true);
    w.exit("g", 0, 1);
    w.rounds(6);
    let pod = w.pod("g", 0);
    assert!(w.kill_container(&pod));
    w.rounds(6);
    w.fault(&slow, |f| f.silent_agent = false);
    w.patience = chrono::TimeDelta::seconds(400);
    w.settle();
    let all = attempts(&mut w);
    assert!(
        all.len() == 3 && all.iter().all(|a| *a == all[0] && *a >= 2),
        "{all:?}"
    );
}

#[test]
fn a_node_that_comes_back_starts_no_second_process_of_a_member() {
    let mut w = Solo::supervised(denied(3, &json!({})));
    for node in ["n0", "n1", "n2", "n3"] {
        w.capacity(node, 1);
    }
    w.settle();
    let (slow, lost) = (w.node_of("g", 1), w.node_of("g", 2));
    w.fault(&slow, |f| f.silent_agent = true);
    w.exit("g", 0, 1);
    w.rounds(4);
    w.lose(&lost);
    w.rounds(120);
    w.fault(&slow, |f| f.silent_agent = false);
    w.rounds(6);
    w.find(&lost);
    w.agent(&lost);
    w.agent(&lost);
    // The cluster asserts that no member runs twice.
    w.settle();
    let all = attempts(&mut w);
    assert!(
        all.len() == 3 && all.iter().all(|a| *a == all[0]),
        "{all:?}"
    );
}

#[test]
fn a_gang_that_shrank_goes_through_a_barrier_when_it_is_placed_again() {
    let mut spec = denied(2, &json!({"network": {"world": "Replica"}}));
    spec["groups"][0]["size"] = json!(2);
    let mut w = running(spec);
    w.edit(|s| s.groups[0].replicas = Some(1));
    w.settle();
    assert_eq!(order(&w).peers, ["g/0/0-1"]);
    let before = order(&w).attempt;
    w.edit(|s| s.suspend = true);
    w.settle();
    w.edit(|s| s.suspend = false);
    w.settle();
    assert!(order(&w).attempt > before);
    assert_eq!(w.children().len(), 2);
}

#[test]
fn a_pod_that_vanishes_after_the_release_takes_all_to_the_next_attempt() {
    let mut w = running(denied(3, &json!({})));
    w.exit("g", 0, 1);
    w.until("the release", |w| order(w).released_attempt == 2);
    let pod = lockstep_sim::Key::of(&w.pod("g", 1));
    w.remove(lockstep_sim::WatchedKind::Pod, &pod);
    w.settle();
    assert_eq!(attempts(&mut w), [3, 3, 3]);
}

#[test]
fn a_run_that_succeeds_is_the_first_attempt_for_good() {
    let mut w = running(denied(2, &json!({})));
    for index in 0..2 {
        w.exit("g", index, 0);
    }
    w.settle();
    assert_eq!(
        (w.status().phase, w.status().attempt),
        (Some(Phase::Succeeded), 1)
    );
}

#[test]
fn groups_of_the_success_policy_do_not_wait_for_a_server_that_never_exits() {
    let mut spec = denied(2, &json!({"successPolicy": {"groups": ["g"]}}));
    let mut server = spec["groups"][0].clone();
    server["name"] = json!("h");
    server["replicas"] = json!(1);
    spec["groups"].as_array_mut().unwrap().push(server);
    let mut w = running(spec);
    for index in 0..2 {
        w.exit("g", index, 0);
    }
    w.rounds(20);
    assert_eq!(w.status().phase, Some(Phase::Succeeded));
}

/// A head and two workers with common ranks and rendezvous.
fn of_one_world(network: &Value) -> Value {
    let mut spec = denied(1, &json!({"network": network}));
    let mut workers = spec["groups"][0].clone();
    workers["name"] = json!("workers");
    workers["replicas"] = json!(2);
    spec["groups"].as_array_mut().unwrap().push(workers);
    spec
}

#[test]
fn a_finished_group_of_a_shared_world_takes_part_in_the_restart_of_that_world() {
    for network in [
        json!({"world": "Workload"}),
        json!({"coordinator": {"group": "g"}}),
    ] {
        let mut w = running(of_one_world(&network));
        w.exit("workers", 0, 0);
        w.exit("workers", 1, 0);
        // A child that exited with 0 waits 300 s for the head.
        w.wait(330);
        assert_eq!(w.status().groups[1].succeeded, 2, "{network}");
        w.exit("g", 0, 1);
        w.settle();
        assert_eq!(attempts(&mut w), [2, 2, 2], "{network}");
        assert_eq!(w.status().ready, "3/3");
        assert_eq!(order(&w).peers, ["g/0/0", "workers/0-1/0"]);
    }
}

#[test]
fn an_unsupervised_finished_group_takes_part_in_the_restart_of_its_world() {
    for mode in ["Deny", "Allow"] {
        let mut spec = of_one_world(&json!({"world": "Workload"}));
        spec["failurePolicy"]["inPlace"]["withoutSupervisor"] = json!(mode);
        let mut w = Solo::new(spec);
        w.settle();
        w.exit("workers", 0, 0);
        w.exit("workers", 1, 0);
        w.rounds(3);
        w.exit("g", 0, 1);
        w.settle();
        let alive = w.pods().iter().filter(|pod| !over(pod)).count();
        assert_eq!((alive, w.status().ready.as_str()), (3, "3/3"), "{mode}");
    }
}

#[test]
fn a_finished_group_with_a_world_of_its_own_stays_finished() {
    let mut w = running(of_one_world(&json!({"world": "Group"})));
    w.exit("workers", 0, 0);
    w.exit("workers", 1, 0);
    w.wait(330);
    w.exit("g", 0, 1);
    w.settle();
    let s = w.status();
    assert_eq!((attempts(&mut w), s.groups[1].succeeded), (vec![2], 2));
    w.exit("g", 0, 0);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Succeeded));
}
