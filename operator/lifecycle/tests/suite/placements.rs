//! Refused, replaced and incomplete placements.

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::Pod;
use lockstep_api::PodGroup;
use lockstep_api::scheduling::Placement;
use lockstep_api::workload::Phase;
use lockstep_lifecycle::decide;
use lockstep_sim::pods::{member_of, node_of};
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
