//! Remains of a failed attempt: pods with long grace periods and pods that never end, and their
//! separation from the next attempt.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::Pod;
use lockstep_api::workload::Phase;
use lockstep_sim::pods::{env, leaving, node_of};
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Key, Solo};
use serde_json::{Value, json};

/// A recreated gang whose members ignore SIGTERM and have this grace period.
fn stubborn(n: i32, grace: i64) -> Value {
    let mut spec = gang_with(
        n,
        &json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Deny"}}}),
    );
    let pod = &mut spec["groups"][0]["template"]["spec"];
    pod["terminationGracePeriodSeconds"] = json!(grace);
    pod["containers"][0]["env"] = json!([{"name": "HOLLOW_ON_TERM", "value": "ignore"}]);
    spec
}

fn run_for(w: &mut Solo, seconds: i64) {
    let end = w.now() + TimeDelta::seconds(seconds);
    while w.now() < end {
        w.round();
        w.later(1);
    }
}

fn meeting_points(w: &Solo) -> BTreeSet<(String, String)> {
    let value = |p: &Pod, name: &str| env(p, name).unwrap_or_default();
    let pods = w.pods().into_iter().filter(|p| !leaving(p));
    pods.map(|p| (value(&p, "MASTER_PORT"), value(&p, "PET_RDZV_ID")))
        .collect()
}

#[test]
fn a_grace_period_of_a_day_holds_a_failed_gang_no_longer_than_its_recreate_grace() {
    let mut w = Solo::new(stubborn(3, 86_400));
    w.settle();
    let old = w.uids();
    w.exit("g", 0, 1);
    run_for(&mut w, 110);
    assert!(w.pods().iter().any(leaving), "the others have two minutes");
    run_for(&mut w, 30);
    let new = w.uids();
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert!(new.values().all(|u| old.values().all(|o| o != u)));
}

#[test]
fn a_grace_period_that_is_shorter_stays_as_it_is() {
    let mut w = Solo::new(stubborn(2, 10));
    w.settle();
    w.exit("g", 0, 1);
    run_for(&mut w, 20);
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_deletion_by_a_user_with_a_long_grace_does_not_hold_the_gang_either() {
    let mut w = Solo::new(stubborn(2, 86_400));
    w.settle();
    w.delete_pod("g", 0);
    run_for(&mut w, 140);
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_pod_that_no_signal_ends_is_deleted_by_force_and_its_node_is_avoided() {
    let mut w = Solo::new(stubborn(4, 30));
    w.settle();
    w.fault("n1", |f| f.unkillable = true);
    let stuck = w.pod("g", 2);
    assert_eq!(node_of(&stuck), Some("n1"));
    w.exit("g", 0, 1);
    run_for(&mut w, 110);
    assert!(
        w.get::<Pod>(&Key::of(&stuck)).is_some(),
        "it has its grace, and a minute and a half"
    );
    run_for(&mut w, 40);
    assert!(
        w.pods()
            .iter()
            .all(|p| p.metadata.uid != stuck.metadata.uid)
    );
    let s = w.status();
    assert_eq!(s.phase, Some(Phase::Running), "{}", w.story(30));
    assert!(w.pods().iter().all(|p| node_of(p) != Some("n1")));
    let avoided: Vec<_> = s.gangs[0]
        .avoid
        .iter()
        .map(|a| (a.node.as_str(), a.reason.as_str()))
        .collect();
    assert_eq!(avoided, [("n1", "PodStuck")]);
}

#[test]
fn a_gang_that_releases_its_placement_does_not_wait_for_an_unkillable_pod() {
    let mut w = Solo::new(gang(2));
    w.settle();
    w.fault("n0", |f| f.unkillable = true);
    w.preempt("workload");
    run_for(&mut w, 150);
    assert_eq!(w.status().phase, Some(Phase::Running), "{}", w.story(30));
    assert!(w.pods().iter().all(|p| node_of(p) != Some("n0")));
}

#[test]
fn nothing_is_deleted_by_force_on_a_node_that_does_not_answer() {
    let mut spec = stubborn(2, 30);
    spec["failurePolicy"]["nodeLostSeconds"] = json!(600);
    let mut w = Solo::new(spec);
    w.settle();
    let stuck = w.pod("g", 0);
    w.delete_pod("g", 0);
    w.pass();
    let node = node_of(&stuck).unwrap().to_owned();
    w.lose(&node);
    run_for(&mut w, 300);
    assert!(w.get::<Pod>(&Key::of(&stuck)).is_some());
}

#[test]
fn members_that_all_get_new_pods_meet_elsewhere_than_what_is_left_of_the_old_ones() {
    let mut w = Solo::new(stubborn(3, 1));
    w.settle();
    let first = meeting_points(&w);
    assert_eq!(first, BTreeSet::from([("29500".into(), "w-uid".into())]));
    w.exit("g", 0, 1);
    w.settle();
    assert_eq!(
        meeting_points(&w),
        BTreeSet::from([("29501".into(), "w-uid-1".into())])
    );
}

#[test]
fn a_member_recreated_alone_joins_the_coordinator_of_the_running_members() {
    let mut w = Solo::new(gang(3));
    w.settle();
    w.delete_pod("g", 1);
    w.settle();
    assert_eq!(w.restarts(), [1, 0, 1]);
    assert_eq!(
        meeting_points(&w),
        BTreeSet::from([("29500".into(), "w-uid".into())])
    );
}

#[test]
fn where_several_restart_domains_meet_at_one_place_it_stays() {
    let mut spec = stubborn(3, 1);
    spec["failurePolicy"]["restartScope"] = json!("Replica");
    spec["network"] = json!({"world": "Workload"});
    let mut w = Solo::new(spec);
    w.settle();
    w.exit("g", 1, 1);
    w.settle();
    assert_eq!(meeting_points(&w).len(), 1);
}

/// The API server removes a pod with grace period 0 at once. Its containers run until the kubelet
/// receives the deletion.
#[test]
fn a_grace_period_of_nothing_does_not_hide_containers_that_still_run() {
    let mut w = Solo::new(stubborn(4, 0));
    w.settle();
    let slow = w.node_of("g", 3);
    w.exit("g", 0, 1);
    for _ in 0..8 {
        w.control();
        for name in w.node_names().into_iter().filter(|name| *name != slow) {
            w.kubelet(&name);
            w.agent(&name);
        }
        w.later(1);
    }
    let first = BTreeSet::from([("29500".into(), "w-uid".into())]);
    assert!(
        meeting_points(&w).is_subset(&first),
        "the next attempt begins while containers of the first run on {slow}"
    );
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

fn avoided(w: &Solo) -> Vec<String> {
    let gangs = w.status().gangs;
    let avoid = gangs.iter().flat_map(|g| &g.avoid);
    avoid
        .map(|a| format!("{} {} {}", a.node, a.reason, a.until))
        .collect()
}

/// Nodes continue, the manager is unavailable.
fn without_manager(w: &mut Solo, seconds: i64) {
    for _ in 0..seconds {
        w.kubelets();
        w.later(1);
    }
}

#[test]
fn a_pod_whose_long_grace_is_cut_late_gets_the_cut_grace() {
    let mut w = Solo::new(stubborn(2, 86_400));
    w.settle();
    let old = w.pod("g", 0);
    w.delete_pod("g", 0);
    without_manager(&mut w, 400);
    for s in 0..30 {
        w.round();
        assert!(
            w.get::<Pod>(&Key::of(&old))
                .is_some_and(|p| p.metadata.uid == old.metadata.uid),
            "gone {s} s after the cut; {:?}\n{}",
            avoided(&w),
            w.story(30)
        );
        w.later(1);
    }
}

#[test]
fn no_pod_is_force_deleted_on_a_node_not_yet_known_to_be_silent() {
    let mut w = Solo::new(stubborn(4, 5));
    w.settle();
    let node = w.node_of("g", 3);
    let old = w.pod("g", 3);
    w.exit("g", 0, 1);
    // The node is silent, but its Ready stays True for 50 s (node-monitor-grace-period).
    for s in 0..45 {
        w.control();
        w.schedule();
        for name in w.node_names().into_iter().filter(|name| *name != node) {
            w.kubelet(&name);
            w.agent(&name);
        }
        w.bind();
        assert!(
            w.get::<Pod>(&Key::of(&old))
                .is_some_and(|p| p.metadata.uid == old.metadata.uid),
            "gone after {s} s; {:?}\n{}",
            avoided(&w),
            w.story(30)
        );
        w.later(1);
    }
}

#[test]
fn a_node_that_comes_back_may_end_its_pods_itself() {
    let mut spec = stubborn(4, 30);
    spec["failurePolicy"]["nodeLostSeconds"] = json!(600);
    let mut w = Solo::new(spec);
    w.settle();
    let old = w.pod("g", 3);
    let node = w.node_of("g", 3);
    w.lose(&node);
    w.exit("g", 0, 1);
    run_for(&mut w, 200);
    assert!(w.get::<Pod>(&Key::of(&old)).is_some());
    w.find(&node);
    w.control();
    w.later(1);
    w.control();
    assert!(
        w.get::<Pod>(&Key::of(&old))
            .is_some_and(|p| p.metadata.uid == old.metadata.uid),
        "{:?}\n{}",
        avoided(&w),
        w.story(30)
    );
}

#[test]
fn a_domain_that_meets_at_the_coordinator_of_another_finds_it_after_scaling() {
    let mut spec = stubborn(1, 1);
    spec["failurePolicy"]["restartScope"] = json!("Replica");
    spec["scheduling"] = json!({"gang": {"scope": "Replica"}});
    spec["network"] =
        json!({"world": "Replica", "coordinator": {"group": "g", "replica": 0, "index": 0}});
    let mut w = Solo::new(spec);
    w.settle();
    w.exit("g", 0, 1);
    w.settle();
    w.edit(|s| s.groups[0].replicas = Some(2));
    w.settle();
    assert_eq!(meeting_points(&w).len(), 1, "{:?}", meeting_points(&w));
}

#[test]
fn a_pod_deleted_during_the_back_off_gets_the_cut_grace() {
    let mut spec = stubborn(4, 3600);
    spec["failurePolicy"]["recreateGraceSeconds"] = json!(120);
    let mut w = Solo::new(spec);
    w.settle();
    for _ in 0..4 {
        w.exit("g", 0, 1);
        run_for(&mut w, 300);
        assert_eq!(w.status().phase, Some(Phase::Running), "{}", w.story(20));
    }
    let old = w.pod("g", 3);
    w.exit("g", 0, 1);
    run_for(&mut w, 2);
    w.delete_pod("g", 3);
    let mut cut = None;
    for s in 0..300 {
        w.round();
        let there = w
            .get::<Pod>(&Key::of(&old))
            .filter(|p| p.metadata.uid == old.metadata.uid);
        match there {
            Some(p)
                if p.metadata
                    .deletion_grace_period_seconds
                    .is_some_and(|s| s < 3600) =>
            {
                cut.get_or_insert(s);
            }
            Some(_) => {}
            None => {
                let after = cut.map(|c| s - c);
                assert!(
                    after.is_some_and(|a| a >= 119),
                    "gone {after:?} s after the cut, at {s}: {:?}\n{}",
                    avoided(&w),
                    w.story(12)
                );
                return;
            }
        }
        w.later(1);
    }
}
