//! Refusals, incomplete placements, dependencies, success, deadlines and resizing.

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::{Pod, Service};
use lockstep_api::PodGroup;
use lockstep_api::scheduling::Placement;
use lockstep_api::workload::Phase;
use lockstep_lifecycle::{Action, LifecycleSettings, Plan, decide};
use lockstep_sim::api::{Refused, Rule, Verb};
use lockstep_sim::pods::{env, leaving, member_of, node_of, over};
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Key, Solo, WatchedKind};
use serde_json::json;

#[test]
fn a_quota_that_refuses_one_pod_leaves_none() {
    let mut w = Solo::new(gang(4));
    w.store().admission.quota = Some(3);
    for _ in 0..60 {
        w.pass();
        w.schedule();
    }
    assert!(w.pods().is_empty(), "the whole gang is rolled back");
    assert_eq!(
        (w.condition("Admitted"), w.status().gangs[0].placement_tries),
        ("!QuotaExceeded".into(), 1)
    );
    w.store().admission.quota = None;
    w.settle();
    assert_eq!(
        w.status().phase,
        Some(Phase::Running),
        "tried again after the back-off"
    );
}

#[test]
fn repeated_refusals_wait_longer_and_longer() {
    let mut w = Solo::new(gang(2));
    w.store().admission.quota = Some(1);
    let mut waits = Vec::new();
    for _ in 0..200 {
        w.control();
        w.schedule();
        if let Some(b) = &w.status().gangs.first().and_then(|g| g.backoff.clone())
            && waits.last().is_none_or(|(n, _)| *n != b.tries)
        {
            waits.push((b.tries, (b.until - w.now()).num_seconds()));
        }
        w.later(1);
    }
    assert_eq!(waits[..4], [(1, 5), (2, 10), (3, 20), (4, 40)]);
}

/// A gang with one pod refused by quota, on a placement of a leader with a wrong clock.
fn refused_on_a_placement_of(clock: TimeDelta) -> Solo {
    let mut w = Solo::new(gang(4));
    w.store().admission.quota = Some(3);
    place_by(&mut w, clock);
    w
}

/// The scheduler places the gang and records another time.
fn place_by(w: &mut Solo, clock: TimeDelta) {
    decide_until(w, |w| w.groups().values().any(|g| placement(g).is_some()));
    w.edit_group("workload", |group| {
        let status = group.status.as_mut().unwrap();
        status.placement.as_mut().unwrap().decided_at += clock;
    });
}

/// Runs passes and cycles until a condition holds.
fn decide_until(w: &mut Solo, holds: impl Fn(&Solo) -> bool) {
    for _ in 0..60 {
        w.control();
        w.schedule();
        if holds(w) {
            return;
        }
        w.later(1);
    }
    panic!("{}", w.story(60));
}

fn placement(group: &PodGroup) -> Option<&Placement> {
    group.status.as_ref()?.placement.as_ref()
}

#[test]
fn a_refusal_counts_although_the_leader_that_placed_the_gang_was_an_hour_ahead() {
    let mut w = refused_on_a_placement_of(TimeDelta::hours(1));
    w.control();
    assert_eq!(w.status().gangs[0].placement_tries, 1);
    assert_eq!(w.condition("Admitted"), "!QuotaExceeded");
}

#[test]
fn the_refusal_of_an_older_placement_does_not_affect_one_with_an_earlier_timestamp() {
    let mut w = refused_on_a_placement_of(TimeDelta::zero());
    decide_until(&mut w, |w| {
        w.groups().values().all(|g| placement(g).is_none())
    });
    w.store().admission.quota = None;
    w.later(10);
    place_by(&mut w, -TimeDelta::hours(1));
    w.settle();
    let status = w.status();
    assert_eq!(
        (status.phase, status.gangs[0].placement_tries),
        (Some(Phase::Running), 0)
    );
}

#[test]
fn a_pod_that_its_node_rejects_sends_the_gang_elsewhere() {
    let mut w = Solo::new(gang(2));
    w.fault("n0", |f| f.rejects = true);
    w.settle();
    let s = w.status();
    assert_eq!(
        (s.phase, s.restarts.counted, s.history.len()),
        (Some(Phase::Running), 0, 0)
    );
    assert!(w.pods().iter().all(|p| node_of(p) != Some("n0")));
}

#[test]
fn a_gang_that_does_not_start_in_time_releases_its_placement() {
    let mut w = Solo::new(gang_with(
        2,
        &json!({"failurePolicy": {"startDeadlineSeconds": 30}}),
    ));
    w.fault("n0", |f| f.starts_nothing = true);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert!(w.pods().iter().all(|p| node_of(p) != Some("n0")));
    assert_eq!(w.status().restarts.counted, 0);
    let written = w.written();
    let mut backoffs = written.iter().flat_map(|s| &s.gangs);
    let why = backoffs
        .find_map(|g| Some(g.backoff.as_ref()?.message.clone()))
        .expect("it backed off");
    // The kubelet's own reason must be visible.
    let waits = "(failurePolicy.startDeadlineSeconds): volumes or network are not ready";
    assert!(why.contains(waits), "{why}");
}

#[test]
fn a_gang_without_replacement_releases_its_placement_and_waits_whole() {
    let mut w = Solo::new(gang(8));
    w.settle();
    w.lose("n3");
    for _ in 0..500 {
        w.settle();
        w.later(1);
    }
    let s = w.status();
    assert_eq!(
        (s.phase, w.condition("Admitted").as_str()),
        (Some(Phase::Pending), "!Unschedulable")
    );
    assert!(
        w.pods().iter().all(|p| node_of(p) == Some("n3")),
        "only what the lost node holds is left"
    );
    assert!(w.written().iter().any(|s| s.gangs.iter().any(|g| {
        g.backoff
            .as_ref()
            .is_some_and(|b| b.reason == "ReplacementTimeout")
    })));
}

#[test]
fn a_refused_pin_is_followed_to_the_new_node() {
    let mut w = Solo::new(gang(2));
    while w.pods().len() < 2 {
        w.schedule();
        w.control();
    }
    let places = w
        .pods()
        .iter()
        .map(|p| (member_of(p).unwrap(), "n3".to_owned()))
        .collect();
    w.place("workload", &places);
    w.settle();
    assert!(w.pods().iter().all(|p| node_of(p) == Some("n3")));
    assert_eq!(
        (w.status().phase, w.status().history.len()),
        (Some(Phase::Running), 0)
    );
}

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
fn a_wait_for_capacity_may_end_in_failure() {
    let mut w = Solo::new(gang_with(
        9,
        &json!({"scheduling": {"timeoutSeconds": 100, "onTimeout": "Fail"}}),
    ));
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Pending));
    w.wait(101);
    assert_eq!(w.condition("Failed"), "SchedulingTimeout");
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

#[test]
fn a_replacement_rejected_by_its_node_is_placed_elsewhere_while_other_members_stay() {
    let mut w = Solo::new(gang(4));
    w.settle();
    let before = w.uids();
    w.fault("n2", |f| f.rejects = true);
    w.lose("n0");
    w.settle();
    let after = w.uids();
    assert_eq!(
        before.iter().filter(|(m, u)| after[*m] == **u).count(),
        2,
        "survivors keep their pods"
    );
    let moved = |w: &mut Solo, i| w.node_of("g", i);
    assert_eq!(
        (moved(&mut w, 0), moved(&mut w, 1)),
        ("n3".into(), "n3".into())
    );
    let s = w.status();
    assert_eq!(
        (s.phase, s.history.len(), s.restarts.counted),
        (Some(Phase::Running), 1, 1)
    );
}

#[test]
fn a_replacement_that_does_not_start_is_placed_elsewhere_after_its_deadline() {
    let mut w = Solo::new(gang_with(
        4,
        &json!({"failurePolicy": {"startDeadlineSeconds": 20}}),
    ));
    w.settle();
    w.fault("n2", |f| f.starts_nothing = true);
    w.lose("n0");
    w.settle();
    assert_eq!(
        (w.status().phase, w.status().history.len()),
        (Some(Phase::Running), 1)
    );
    assert!(w.uids().len() == 4 && w.pods().iter().all(|p| node_of(p) != Some("n2")));
}

#[test]
fn a_queued_gang_reports_its_scheduling_timeout_without_any_other_event() {
    let mut w = Solo::new(gang_with(
        9,
        &json!({"scheduling": {"timeoutSeconds": 600, "onTimeout": "Wait"}}),
    ));
    w.settle();
    assert_eq!(w.condition("Admitted"), "!ExceedsCluster");
    let wait = decide(&w.view(), w.now()).requeue_after.expect("a wake-up");
    w.advance(TimeDelta::from_std(wait).unwrap());
    w.control();
    let status = w.status();
    let admitted = lockstep_api::condition::find(&status.conditions, "Admitted").unwrap();
    assert!(
        admitted.message.contains("scheduling.timeoutSeconds"),
        "{}",
        admitted.message
    );
    assert_eq!(status.phase, Some(Phase::Pending), "and goes on waiting");
}

/// A gang of eight on eight places. Another pod takes one before the members are bound.
fn one_place_short(spec: &serde_json::Value) -> Solo {
    let mut w = Solo::new(gang_with(8, spec));
    while w.groups().is_empty() {
        w.pass();
    }
    w.schedule();
    w.control();
    take_place(&mut w, "other", "n3");
    w
}

/// A pod that must not be evicted takes the place of a member.
fn take_place(w: &mut Solo, name: &str, node: &str) {
    let other = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "elsewhere", "uid": name},
        "spec": {"nodeName": node, "priority": 2_000_000_000, "containers": [{"name": "c", "image": "i",
            "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}});
    let other: Pod = serde_json::from_value(other).unwrap();
    w.cluster.create(&other);
}

fn bound(w: &Solo) -> usize {
    w.pods().iter().filter(|p| node_of(p).is_some()).count()
}

#[test]
fn an_incomplete_gang_is_not_admitted_and_releases_its_capacity() {
    let mut w = one_place_short(&json!({"failurePolicy": {"replacementTimeoutSeconds": 100}}));
    for _ in 0..60 {
        w.round();
        w.later(1);
    }
    assert_eq!(bound(&w), 7);
    assert_eq!(w.condition("Admitted"), "!Unschedulable");
    for _ in 0..60 {
        w.round();
        w.later(1);
    }
    assert_eq!((bound(&w), w.pods().len()), (0, 0));
    assert_eq!(
        (w.status().restarts.counted, w.status().history.len()),
        (0, 0)
    );
    let tries = w.status().gangs[0].placement_tries;
    assert_eq!(tries, 1, "it waits before it queues again");
    w.remove(WatchedKind::Pod, &Key::new("elsewhere", "other"));
    // The node that refused a pod is avoided until then.
    w.wait(600);
    assert_eq!((w.status().phase, bound(&w)), (Some(Phase::Running), 8));
}

#[test]
fn an_incomplete_gang_releases_its_capacity_even_if_a_member_has_finished() {
    let mut w = one_place_short(&json!({"failurePolicy": {"replacementTimeoutSeconds": 100}}));
    for _ in 0..30 {
        w.round();
        w.later(1);
    }
    assert_eq!(bound(&w), 7);
    let done = (0..8).find(|member| w.exit_if_running("g", *member, 0));
    let node = w.node_of("g", done.expect("seven run"));
    w.kubelets();
    take_place(&mut w, "another", &node);
    for _ in 0..100 {
        w.round();
        w.later(1);
    }
    assert_eq!((bound(&w), w.pods().len()), (0, 0));
}

#[test]
fn a_gang_of_replicas_with_a_member_that_never_ran_releases_its_capacity() {
    let policy = json!({"restartScope": "Replica", "replacementTimeoutSeconds": 100});
    let mut w = one_place_short(&json!({"failurePolicy": policy}));
    w.rounds(60);
    let healthy = |w: &Solo| {
        let domains = w.status().domains;
        domains.iter().filter(|d| d.healthy_since.is_some()).count()
    };
    assert_eq!((bound(&w), healthy(&w)), (7, 7));
    // An eviction of another replica does not extend the wait.
    let other = w.pods().into_iter().find(|p| node_of(p).is_some());
    w.cluster.evict(&other.expect("seven run")).unwrap();
    w.rounds(100);
    assert_eq!((bound(&w), w.pods().len()), (0, 0));
    assert_eq!(w.status().restarts.counted, 0);
    let reason = "ReplacementTimeout";
    let statuses = w.written();
    let mut conditions = statuses.iter().flat_map(|s| &s.conditions);
    assert!(conditions.any(|c| c.type_ == "Admitted" && c.reason == reason));
}

#[test]
fn a_gang_that_has_been_whole_stays_admitted_when_it_loses_a_member() {
    let mut w = Solo::new(gang(8));
    w.settle();
    assert_eq!(w.condition("Admitted"), "Scheduled");
    w.lose("n3");
    for _ in 0..120 {
        w.round();
        w.later(1);
        assert_eq!(w.condition("Admitted"), "Scheduled");
    }
    assert_eq!(w.condition("Ready"), "!MembersNotReady");
    assert!(
        w.condition("Restarting").starts_with("Restart"),
        "{}",
        w.condition("Restarting")
    );
}
