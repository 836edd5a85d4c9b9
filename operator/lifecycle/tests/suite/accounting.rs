//! Accelerator time held, lost and waited for.

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::Pod;
use lockstep_api::names::annotations;
use lockstep_api::node_agent::MemberProgress;
use lockstep_api::workload::{Accounting, Phase};
use lockstep_api::{NodeAgent, TrainingWorkload};
use lockstep_sim::pods::leaving;
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Key, Solo};
use serde_json::json;

/// Accelerators of two members.
const ACCELERATORS: i64 = 16;
/// Work can be lost from the time of a placement, which is recorded some seconds later.
const SLACK: i64 = 30 * ACCELERATORS;

fn accounting(w: &Solo) -> Accounting {
    w.status().accounting
}

/// True if `seconds` is close to `expected`.
fn about(seconds: i64, expected: i64) -> bool {
    (expected - 5..expected + 30).contains(&seconds)
}

#[test]
fn held_time_counts_from_the_placement_and_goodput_is_what_failures_leave_of_it() {
    let mut w = Solo::new(gang(2));
    w.settle();
    w.wait(1000);
    w.exit("g", 0, 1);
    w.settle();
    let after = accounting(&w);
    let held = after.held_accelerator_seconds / ACCELERATORS;
    assert!(about(held, 1000), "{held}");
    assert_eq!(
        after.lost_accelerator_seconds,
        w.status().history[0].lost_accelerator_seconds
    );
    let all = after.lost_accelerator_seconds + after.restart_accelerator_seconds;
    assert!((950 * ACCELERATORS..1030 * ACCELERATORS).contains(&all));
    let goodput = after.goodput.expect("it held nodes");
    let percent: f64 = goodput.trim_end_matches('%').parse().unwrap();
    assert!(percent < 5.0, "no checkpoint was reported: {goodput}");
    w.wait(3000);
    w.exit("g", 1, 1);
    w.settle();
    let last = accounting(&w);
    assert!(about(last.held_accelerator_seconds / ACCELERATORS, 4000));
    assert!(last.lost_accelerator_seconds < last.held_accelerator_seconds + SLACK);
}

#[test]
fn time_without_capacity_is_waiting_and_none_while_suspended() {
    let mut w = Solo::new(gang(2));
    for node in ["n0", "n1", "n2", "n3"] {
        w.capacity(node, 0);
    }
    w.settle();
    w.wait(500);
    for node in ["n0", "n1", "n2", "n3"] {
        w.capacity(node, 2);
    }
    w.settle();
    let waited = accounting(&w).waited_seconds;
    assert!(about(waited, 500), "{waited}");
    w.edit(|spec| spec.suspend = true);
    w.settle();
    let held = accounting(&w).held_accelerator_seconds;
    w.wait(5000);
    w.edit(|spec| spec.suspend = false);
    w.settle();
    let after = accounting(&w);
    assert!(about(after.waited_seconds, waited), "{after:?}");
    let more = after.held_accelerator_seconds - held;
    assert!(more < 60 * ACCELERATORS, "{more}");
}

#[test]
fn a_gang_that_grows_has_held_what_it_had_before() {
    let mut w = Solo::new(gang_with(
        4,
        &json!({"scheduling": {"gang": {"minCount": 2}}}),
    ));
    w.capacity("n0", 2);
    for node in ["n1", "n2", "n3"] {
        w.capacity(node, 0);
    }
    w.settle();
    assert_eq!(accounting(&w).accelerators, ACCELERATORS);
    w.wait(3600);
    w.capacity("n1", 2);
    w.wait(120);
    let after = accounting(&w);
    assert_eq!(after.accelerators, 2 * ACCELERATORS);
    let hours = after.held_accelerator_seconds / ACCELERATORS;
    assert!((3600..4200).contains(&hours), "{after:?}");
    assert!(after.waited_seconds < 60, "{after:?}");
}

#[test]
fn waiting_for_another_group_is_not_waiting_for_capacity() {
    let mut spec = gang(1);
    let mut second = spec["groups"][0].clone();
    second["name"] = json!("h");
    second["dependsOn"] = json!([{"group": "g", "condition": "Succeeded"}]);
    spec["groups"].as_array_mut().unwrap().push(second);
    spec["scheduling"] = json!({"gang": {"scope": "Group"}});
    let mut w = Solo::new(spec);
    w.settle();
    w.wait(5000);
    let now = accounting(&w);
    assert_eq!(now.accelerators, ACCELERATORS / 2, "{now:?}");
    assert!(
        now.waiting_since.is_none() && now.waited_seconds < 60,
        "{now:?}"
    );
}

#[test]
fn a_preemption_that_overtakes_a_restart_loses_nothing_twice() {
    let mut w = Solo::new(gang(2));
    w.settle();
    w.wait(7200);
    w.exit("g", 0, 1);
    w.until("the restart", |w| w.status().attempt >= 2);
    w.preempt("workload");
    w.settle();
    let after = accounting(&w);
    assert!(w.status().history.len() > 1, "{:?}", w.status().history);
    let more = after.lost_accelerator_seconds - after.held_accelerator_seconds;
    assert!(more < SLACK, "{after:?}");
}

/// Work lost by the only failure, after recovery.
fn lost_once(w: &Solo) -> i64 {
    let s = w.status();
    assert_eq!((s.phase, s.history.len()), (Some(Phase::Running), 1));
    s.history[0].lost_accelerator_seconds
}

#[test]
fn what_a_gang_has_done_is_lost_although_members_have_gone_elsewhere_since() {
    let mut w = Solo::new(gang(4));
    w.settle();
    w.wait(7200);
    w.lose("n0");
    w.settle();
    let lost = lost_once(&w) / (2 * ACCELERATORS);
    assert!((7200..8000).contains(&lost), "{lost}");
}

#[test]
fn a_basic_member_loses_its_own_work_only() {
    let mut w = Solo::new(gang_with(4, &json!({"scheduling": {"policy": "Basic"}})));
    w.settle();
    w.wait(7200);
    w.delete_pod("g", 0);
    w.settle();
    let lost = lost_once(&w) / (ACCELERATORS / 2);
    assert!((7200..7400).contains(&lost), "{lost}");
}

#[test]
fn a_member_that_stands_alone_loses_its_work_with_its_node() {
    let mut w = Solo::new(gang_with(3, &json!({"scheduling": {"policy": "Basic"}})));
    w.settle();
    w.wait(7200);
    let node = w.node_of("g", 2);
    w.lose(&node);
    w.settle();
    let lost = lost_once(&w) / (ACCELERATORS / 2);
    assert!((7200..7400).contains(&lost), "{lost}");
}

#[test]
fn a_basic_member_that_joined_last_loses_no_work_from_before_it_joined() {
    let mut w = Solo::new(gang_with(2, &json!({"scheduling": {"policy": "Basic"}})));
    for node in w.node_names() {
        w.capacity(&node, 0);
    }
    w.capacity("n1", 1);
    w.settle();
    w.wait(36_000);
    w.capacity("n2", 1);
    w.settle();
    w.wait(60);
    let joined = (0..2).find(|member| w.node_of("g", *member) == "n2");
    w.delete_pod("g", joined.expect("it was placed"));
    w.settle();
    let lost = lost_once(&w) / (ACCELERATORS / 2);
    assert!((60..600).contains(&lost), "{lost}");
}

/// Two members take half an hour to terminate. Their preemptor fails one minute after its start.
#[test]
fn the_grace_period_of_its_victims_is_neither_held_nor_lost() {
    let mut spec = gang(2);
    let pod = &mut spec["groups"][0]["template"]["spec"];
    pod["terminationGracePeriodSeconds"] = json!(1800);
    pod["containers"][0]["env"] = json!([{"name": "HOLLOW_ON_TERM", "value": "ignore"}]);
    let mut w = Solo::new(spec);
    w.capacity("n0", 2);
    for node in ["n1", "n2", "n3"] {
        w.capacity(node, 0);
    }
    w.settle();
    w.create_class("important", 100, "PreemptLowerPriority");
    let rules = json!([{"name": "bad", "action": "FailWorkload"}]);
    let more = json!({"priorityClassName": "important", "failurePolicy": {"rules": rules}});
    w.add_workload("boss", gang_with(2, &more));
    let boss = |w: &Solo| {
        let found: Option<TrainingWorkload> = w.get(&Key::new("ns", "boss"));
        found.and_then(|b| b.status).unwrap_or_default()
    };
    w.until("the victims are asked to leave", |w| {
        w.pods().iter().any(leaving)
    });
    w.rounds(60);
    let waits = boss(&w).accounting;
    assert_eq!(waits.accelerators, 0, "its nodes are others' still");
    assert!(waits.waiting_since.is_some(), "{waits:?}");
    for _ in 0..2000 {
        if boss(&w).phase == Some(Phase::Running) {
            break;
        }
        w.rounds(1);
    }
    assert_eq!(boss(&w).phase, Some(Phase::Running), "{}", w.story(20));
    let waited = boss(&w).accounting.waited_seconds;
    assert!(about(waited, 1800), "{waited}");
    w.rounds(60);
    let pods = w.pods();
    let of_boss = |p: &&Pod| {
        p.metadata
            .name
            .as_ref()
            .is_some_and(|n| n.starts_with("boss-"))
    };
    let failing = pods.iter().find(of_boss).cloned().unwrap();
    assert!(w.exit_pod(&failing, 1));
    w.settle();
    let s = boss(&w);
    assert_eq!(s.phase, Some(Phase::Failed));
    let lost = s.history[0].lost_accelerator_seconds / ACCELERATORS;
    assert!(about(lost, 60), "{lost}");
    let held = s.accounting.held_accelerator_seconds / ACCELERATORS;
    assert!(about(held, 60), "{held}");
    assert!(s.accounting.lost_accelerator_seconds <= s.accounting.held_accelerator_seconds);
}

#[test]
fn a_gang_that_has_just_saved_loses_no_work_and_its_restart_has_a_cost_of_its_own() {
    let mut w = Solo::new(gang(2));
    w.settle();
    w.wait(1000);
    let saved = w.now().to_rfc3339();
    let key = w.key().clone();
    w.cluster.edit::<TrainingWorkload>(&key, |workload| {
        let notes = workload.metadata.annotations.get_or_insert_default();
        notes.insert(annotations::LAST_CHECKPOINT.to_owned(), saved);
    });
    w.exit("g", 0, 1);
    w.wait(100);
    let s = w.status();
    let entry = &s.history[0];
    let restart = (entry.recovered_at.unwrap() - entry.time).num_seconds();
    assert!(entry.lost_accelerator_seconds < 2 * ACCELERATORS);
    assert_eq!(entry.restart_accelerator_seconds, restart * ACCELERATORS);
    assert!(restart > 0);
    let all = s.accounting;
    assert_eq!(
        (
            all.lost_accelerator_seconds,
            all.restart_accelerator_seconds
        ),
        (
            entry.lost_accelerator_seconds,
            entry.restart_accelerator_seconds
        )
    );
}

#[test]
fn a_gang_that_never_ran_has_lost_no_work() {
    let mut w = Solo::new(gang(2));
    w.faults(|f| f.starts_nothing = true);
    w.settle();
    w.wait(310);
    w.preempt("workload");
    w.settle();
    let s = w.status();
    assert!(!s.history.is_empty());
    assert!(s.accounting.held_accelerator_seconds >= 300 * ACCELERATORS);
    assert_eq!(s.accounting.lost_accelerator_seconds, 0, "{:?}", s.history);
}

#[test]
fn nothing_is_written_because_time_passes() {
    let mut w = Solo::new(gang(2));
    w.settle();
    let written = w.written().len();
    w.wait(10_000);
    assert_eq!(w.written().len(), written);
}

#[test]
fn a_checkpoint_time_is_at_most_the_time_of_its_report_despite_a_fast_node_clock() {
    for manager_restarts in [false, true] {
        let rules = json!([{"name": "ecc", "action": "FailWorkload",
            "match": {"exitCodes": {"operator": "In", "values": [42]}}}]);
        let mut w = Solo::new(gang_with(2, &json!({"failurePolicy": {"rules": rules}})));
        for node in ["n0", "n1"] {
            w.capacity(node, 1);
        }
        w.settle();
        w.wait(500);
        let (pod, node) = (w.pod("g", 0), w.node_of("g", 0));
        assert_ne!(node, w.node_of("g", 1));
        let heard_at = w.now();
        let ahead = heard_at + TimeDelta::hours(1);
        w.cluster.edit::<NodeAgent>(&Key::new("", node), |agent| {
            agent.status.get_or_insert_default().progress = vec![MemberProgress {
                pod_uid: pod.metadata.uid.unwrap(),
                attempt: 1,
                step: 9,
                step_time: ahead,
                checkpoint_step: Some(8),
                checkpoint_time: Some(ahead),
                time: ahead,
                ..MemberProgress::default()
            }];
        });
        w.settle();
        w.wait(1500);
        if manager_restarts {
            w.crash();
        }
        w.wait(1500);
        let since = (w.now() - heard_at).num_seconds();
        w.exit("g", 1, 42);
        w.settle();
        let s = w.status();
        assert_eq!(s.progress.and_then(|p| p.checkpoint_step), Some(8));
        let lost = s.history[0].lost_accelerator_seconds / ACCELERATORS;
        assert!(about(lost, since), "{manager_restarts}: {lost} of {since}");
    }
}

#[test]
fn members_that_have_succeeded_hold_no_accelerators() {
    let mut w = Solo::new(gang(2));
    w.settle();
    assert_eq!(accounting(&w).accelerators, 16);
    w.exit("g", 0, 0);
    w.settle();
    assert_eq!(accounting(&w).accelerators, 8);
    let held = accounting(&w).held_accelerator_seconds;
    w.wait(1000);
    w.exit("g", 1, 0);
    w.settle();
    let after = accounting(&w);
    assert_eq!(after.accelerators, 0);
    let more = (after.held_accelerator_seconds - held) / 8;
    assert!(about(more, 1000), "{more}");
}
