//! Supervised groups with dependencies. Each is a separate gang and restart domain. A group waits for
//! its dependencies only, and finished or missing groups are not awaited.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use lockstep_api::names::annotations::TIER;
use lockstep_api::restart_order::DomainOrder;
use lockstep_api::workload::Phase;
use lockstep_sim::pods::{condition, node_of, over};
use lockstep_sim::solo::gang;
use lockstep_sim::{Key, Solo, WatchedKind};
use serde_json::{Value, json};

/// Group `a` of two members, and `b` of three members, which depends on it.
fn two_groups(condition: &str) -> Value {
    let mut spec = gang(2);
    spec["groups"][0]["name"] = json!("a");
    let mut second = spec["groups"][0].clone();
    second["name"] = json!("b");
    second["replicas"] = json!(3);
    second["dependsOn"] = json!([{"group": "a", "condition": condition}]);
    spec["groups"].as_array_mut().unwrap().push(second);
    spec["scheduling"] = json!({"gang": {"scope": "Group"}});
    spec["failurePolicy"] = json!({"inPlace": {"withoutSupervisor": "Deny"}});
    spec
}

fn running(condition: &str) -> Solo {
    let mut w = Solo::supervised(two_groups(condition));
    w.settle();
    w
}

/// The first group has succeeded, and the second runs.
fn second_runs() -> Solo {
    let mut w = running("Succeeded");
    w.exit("a", 0, 0);
    w.exit("a", 1, 0);
    w.settle();
    assert_eq!(attempts(&mut w, "b"), [1, 1, 1]);
    w
}

fn attempts(w: &mut Solo, group: &str) -> Vec<u64> {
    let of_group = |(member, _): &(String, u64)| member.starts_with(group);
    let all = w.children().into_iter().filter(of_group);
    all.map(|(_, attempt)| attempt).collect()
}

fn uids(w: &Solo, group: &str) -> BTreeMap<String, String> {
    let mut all = w.uids();
    all.retain(|member, _| member.starts_with(group));
    all
}

fn order(w: &Solo, domain: &str) -> Option<DomainOrder> {
    let domains = w.order()?.spec.domains;
    domains.into_iter().find(|d| d.key == domain)
}

#[test]
fn a_finished_group_outside_the_success_policy_exits_at_once() {
    for operator in ["All", "Any"] {
        let mut spec = two_groups("Succeeded");
        spec["successPolicy"] = json!({"operator": operator, "groups": ["b"]});
        let mut w = Solo::supervised(spec);
        w.settle();
        w.exit("a", 0, 0);
        w.rounds(30);
        assert!(
            !w.pods().iter().any(over),
            "{operator}: one member still runs"
        );
        w.exit("a", 1, 0);
        w.until("the second group", |w| attempts(w, "b") == [1, 1, 1]);
    }
}

#[test]
fn a_succeeded_group_is_neither_restarted_nor_awaited() {
    for collected in [false, true] {
        let mut w = second_runs();
        if collected {
            for pod in w.pods().iter().filter(|p| over(p)) {
                w.remove(WatchedKind::Pod, &Key::of(pod));
            }
        }
        let (first, second) = (uids(&w, "a"), uids(&w, "b"));
        let told = order(&w, "a");
        w.exit("b", 1, 1);
        w.settle();
        assert_eq!(attempts(&mut w, "b"), [2, 2, 2], "collected: {collected}");
        assert_eq!((uids(&w, "a"), uids(&w, "b")), (first, second));
        assert_eq!(order(&w, "a"), told, "its order is about nobody any more");
        let s = w.status();
        assert_eq!(s.groups[0].succeeded, 2);
        assert_eq!(
            (s.restarts.in_place, s.restarts.counted, s.phase),
            (1, 1, Some(Phase::Running))
        );
        for index in 0..3 {
            w.exit("b", index, 0);
        }
        w.settle();
        assert_eq!(w.status().phase, Some(Phase::Succeeded));
    }
}

#[test]
fn a_failure_before_the_second_group_exists_restarts_the_first_in_place_at_once() {
    let mut w = running("Succeeded");
    let before = w.uids();
    assert_eq!(before.len(), 2);
    w.exit("a", 0, 1);
    w.settle();
    assert_eq!((attempts(&mut w, "a"), w.uids()), (vec![2, 2], before));
    assert!(order(&w, "b").is_none_or(|o| o.released_attempt == 0));
    w.exit("a", 0, 0);
    w.exit("a", 1, 0);
    w.settle();
    assert_eq!(attempts(&mut w, "b"), [1, 1, 1], "its own first attempt");
    assert_eq!(w.status().restarts.counted, 1);
}

#[test]
fn a_member_that_is_done_before_a_peer_fails_is_not_waited_for_when_all_start_again() {
    let mut w = running("Succeeded");
    w.exit("a", 0, 0);
    w.exit("a", 1, 9);
    w.settle();
    assert_eq!(attempts(&mut w, "a"), [2, 2], "exit 0 waits for the others");
    // After five minutes of waiting, its pod ends.
    w.exit("a", 0, 0);
    w.patience = chrono::TimeDelta::seconds(400);
    w.wait(400);
    assert!(over(&w.pod("a", 0)));
    w.exit("a", 1, 9);
    w.settle();
    let all = attempts(&mut w, "a");
    assert!(
        !all.is_empty() && all.iter().all(|a| *a == 3),
        "{all:?}\n{}",
        w.story(40)
    );
    for index in 0..2 {
        w.exit_if_running("a", index, 0);
    }
    w.settle();
    assert_eq!(attempts(&mut w, "b"), [1, 1, 1]);
}

#[test]
fn a_dependent_restarts_after_its_dependency_and_alone_after_its_own_failure() {
    let mut w = running("Ready");
    let before = w.uids();
    assert_eq!(w.status().ready, "5/5");
    w.exit("a", 0, 1);
    w.settle();
    assert_eq!(
        (attempts(&mut w, "a"), attempts(&mut w, "b")),
        (vec![2, 2], vec![2, 2, 2])
    );
    w.exit("b", 2, 1);
    w.settle();
    assert_eq!(
        (attempts(&mut w, "a"), attempts(&mut w, "b")),
        (vec![2, 2], vec![3, 3, 3])
    );
    w.wait(60);
    // Both at once: the failure of the dependent is not charged.
    w.exit("a", 1, 1);
    w.exit("b", 0, 1);
    w.settle();
    assert_eq!(
        (attempts(&mut w, "a"), attempts(&mut w, "b")),
        (vec![3, 3], vec![4, 4, 4])
    );
    assert_eq!((w.uids(), w.restarts()), (before, vec![0; 5]));
    assert_eq!(
        (w.status().restarts.counted, w.status().ready),
        (3, "5/5".into())
    );
}

/// The second group waits for the first to be ready. Agents exist, but no pods.
fn about_to_start() -> Solo {
    let mut spec = two_groups("Ready");
    spec["suspend"] = json!(true);
    let mut w = Solo::supervised(spec);
    w.settle();
    w.edit(|s| s.suspend = false);
    w
}

/// Number of supervised pods of the first group that kubelets show as ready.
fn shown_ready(w: &Solo) -> usize {
    let pods = w.pods().into_iter().filter(|p| !over(p));
    let ready = |p: &Pod| condition(p, "Ready").is_some_and(|(status, _)| status == "True");
    let supervised = |p: &Pod| p.metadata.annotations.as_ref().unwrap()[TIER] == "supervised";
    pods.filter(ready)
        .inspect(|p| assert!(supervised(p)))
        .count()
}

#[test]
fn a_group_is_not_ready_for_dependents_while_its_members_wait_at_the_barrier() {
    let mut w = about_to_start();
    w.faults(|f| f.silent_agent = true);
    w.rounds(30);
    // Their containers run, but training has not begun.
    assert_eq!((shown_ready(&w), w.children().len()), (2, 0));
    assert_eq!(
        (uids(&w, "b").len(), w.condition("Admitted")),
        (0, "!WaitingForDependency".into())
    );
    assert_eq!(
        (w.condition("Ready"), w.status().ready),
        ("!MembersNotReady".into(), "0/5".into())
    );
    w.faults(|f| f.silent_agent = false);
    w.settle();
    assert_eq!(
        (w.condition("Ready"), w.status().ready),
        ("AllMembersReady".into(), "5/5".into())
    );
}

#[test]
fn a_member_that_dies_at_the_first_barrier_does_not_let_the_next_group_begin() {
    let mut w = about_to_start();
    for node in ["n0", "n1", "n2", "n3"] {
        w.capacity(node, 1);
    }
    w.until("the pods", |w| {
        w.pods().iter().filter(|p| node_of(p).is_some()).count() == 2
    });
    let late = w.node_of("a", 1);
    w.fault(&late, |f| f.silent_agent = true);
    w.rounds(10);
    assert_eq!((shown_ready(&w), w.children().len()), (2, 0));
    let pod = w.pod("a", 0);
    assert!(w.kill_container(&pod));
    w.rounds(10);
    assert!(w.children().is_empty() && uids(&w, "b").is_empty());
    for node in ["n0", "n1", "n2", "n3"] {
        w.capacity(node, 2);
    }
    w.fault(&late, |f| f.silent_agent = false);
    w.settle();
    assert_eq!(
        (attempts(&mut w, "a").len(), attempts(&mut w, "b").len()),
        (2, 3)
    );
}

#[test]
fn the_second_group_comes_although_the_first_restarts_meanwhile() {
    for round in 0..12 {
        let mut w = Solo::supervised(two_groups("Ready"));
        w.rounds(round);
        let failed = w.exit_if_running("a", 0, 1);
        w.settle();
        let again = 1 + u64::from(failed);
        let (first, second) = (attempts(&mut w, "a"), attempts(&mut w, "b"));
        assert_eq!(first, [again; 2], "failed after {round} s: {failed}");
        // It restarts too if it had started.
        assert_eq!(second, [second[0]; 3], "failed after {round} s: {failed}");
        assert!(second[0] <= again);
    }
}

#[test]
fn suspended_and_resumed_groups_follow_each_other_again_at_no_cost() {
    for condition in ["Ready", "Succeeded"] {
        let mut w = if condition == "Ready" {
            running(condition)
        } else {
            second_runs()
        };
        w.edit(|s| s.suspend = true);
        w.settle();
        assert!(w.children().is_empty());
        w.edit(|s| s.suspend = false);
        w.settle();
        let (first, second) = (attempts(&mut w, "a"), attempts(&mut w, "b"));
        let again = if condition == "Ready" { 2 } else { 0 };
        assert_eq!((first.len(), second.len()), (again, 3), "{condition}");
        assert!(second.iter().all(|a| *a == second[0]), "{second:?}");
        assert_eq!(w.status().restarts.counted, 0);
    }
}
