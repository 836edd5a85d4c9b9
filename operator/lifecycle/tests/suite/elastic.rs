//! Gangs that run with some of their members.

use chrono::TimeDelta;
use lockstep_api::condition::{find, types};
use lockstep_api::words::time;
use lockstep_api::workload::{CauseKind, FailureAction, Phase};
use lockstep_sim::Solo;
use lockstep_sim::pods::{self, leaving, member_of};
use lockstep_sim::solo::{gang, gang_with};
use serde_json::{Value, json};

/// A cluster with this many members' capacity on each node.
fn world(workload: Value, capacity: [usize; 4]) -> Solo {
    let mut w = Solo::new(workload);
    for (node, members) in w.node_names().into_iter().zip(capacity) {
        w.capacity(&node, members);
    }
    w
}

/// A gang of four with a minimum of two.
fn elastic(more: &Value) -> Value {
    let mut spec = gang_with(4, more);
    spec["scheduling"]["gang"]["minCount"] = json!(2);
    spec
}

/// Values of a variable in pods that are not terminating, by member.
fn env(w: &Solo, name: &str) -> Vec<String> {
    let live = w.pods().into_iter().filter(|p| !leaving(p));
    let mut all: Vec<_> = live
        .map(|p| (member_of(&p), lockstep_sim::pods::env(&p, name).unwrap()))
        .collect();
    all.sort();
    all.into_iter().map(|(_, value)| value).collect()
}

fn message(w: &Solo, type_: &str) -> String {
    find(&w.status().conditions, type_).unwrap().message.clone()
}

#[test]
fn a_gang_with_capacity_for_some_of_its_members_runs_with_these_and_they_know_it() {
    let mut w = world(elastic(&json!({})), [2, 1, 0, 0]);
    w.settle();
    assert_eq!(
        (env(&w, "PET_NNODES"), env(&w, "PET_NODE_RANK")),
        (
            vec!["3".into(); 3],
            vec!["0".into(), "1".into(), "2".into()]
        )
    );
    let s = w.status();
    assert_eq!(
        (s.phase, s.ready.as_str(), w.condition("Ready").as_str()),
        (Some(Phase::Running), "3/4", "AllMembersReady")
    );
    assert_eq!(s.groups[0].world_indexes.as_deref(), Some("0-2"));
    let grows = s.domains[0].healthy_since.unwrap() + TimeDelta::minutes(1);
    assert_eq!(
        (message(&w, types::ADMITTED), s.restarts.total),
        (
            format!(
                "placed with 3 of 4 members (minCount 2); grows from {} if capacity is free",
                time(grows)
            ),
            0
        )
    );
    assert_eq!(w.order().unwrap().spec.domains[0].world, 3);
}

#[test]
fn a_gang_without_capacity_for_its_minimum_waits() {
    let mut w = world(elastic(&json!({})), [1, 0, 0, 0]);
    w.settle();
    assert_eq!(
        (w.condition("Admitted").as_str(), w.pods().len()),
        ("!ExceedsCluster", 0)
    );
}

#[test]
fn it_grows_into_free_capacity_after_a_while_with_one_uncounted_restart() {
    let mut w = world(elastic(&json!({})), [2, 1, 0, 0]);
    // Shorter than the time until it grows.
    w.patience = TimeDelta::seconds(10);
    w.settle();
    let before: Vec<_> = (0..3).map(|i| w.node_of("g", i)).collect();
    w.capacity("n2", 2);
    w.settle();
    assert_eq!(
        w.status().ready,
        "3/4",
        "not at once: every restart costs work"
    );
    w.wait(61);
    let s = w.status();
    assert_eq!(
        (env(&w, "PET_NNODES"), s.ready.as_str()),
        (vec!["4".to_owned(); 4], "4/4")
    );
    assert_eq!(
        (
            s.groups[0].world_indexes.clone(),
            s.restarts.counted,
            s.history.len()
        ),
        (None, 0, 1)
    );
    let h = &s.history[0];
    assert_eq!(
        (h.cause.kind, h.action),
        (CauseKind::Resize, FailureAction::RecreateGang)
    );
    assert_eq!(h.cause.message, "continues with 4 members instead of 3");
    assert_eq!(
        (0..3).map(|i| w.node_of("g", i)).collect::<Vec<_>>(),
        before,
        "nodes are kept"
    );
    w.wait(3600);
    assert_eq!(w.status().history.len(), 1);
}

#[test]
fn a_finishing_gang_does_not_restart_to_grow_and_completes_without_missing_members() {
    let mut w = world(elastic(&json!({})), [2, 1, 0, 0]);
    // Shorter than the time until it grows.
    w.patience = TimeDelta::seconds(10);
    w.settle();
    w.capacity("n2", 2);
    w.exit("g", 0, 0);
    w.settle();
    w.wait(600);
    assert_eq!(
        (w.status().ready.as_str(), w.status().history.len()),
        ("3/4", 0)
    );
    w.exit("g", 1, 0);
    w.exit("g", 2, 0);
    w.settle();
    assert_eq!(
        (
            w.condition("Complete").as_str(),
            w.status().groups[0].completed_indexes.as_str()
        ),
        ("SuccessPolicy", "0-2")
    );
}

#[test]
fn an_elastic_gang_continues_with_fewer_members_if_a_lost_member_has_no_capacity() {
    let mut w = world(elastic(&json!({})), [1, 1, 1, 1]);
    w.settle();
    assert_eq!(w.status().ready, "4/4");
    w.lose("n1");
    w.settle();
    let s = w.status();
    assert_eq!(
        (env(&w, "PET_NNODES"), s.phase),
        (vec!["3".to_owned(); 3], Some(Phase::Running))
    );
    assert_eq!(env(&w, "PET_NODE_RANK"), ["0", "1", "2"], "ranks close up");
    assert_eq!(
        (s.ready.as_str(), s.groups[0].world_indexes.as_deref()),
        ("3/4", Some("0,2-3"))
    );
    assert_eq!(
        (s.history.len(), s.restarts.counted, s.history[0].cause.kind),
        (1, 1, CauseKind::NodeLost)
    );
    w.find("n1");
    w.wait(400);
    assert_eq!(
        (w.status().ready.as_str(), w.status().restarts.counted),
        ("4/4", 1)
    );
}

#[test]
fn it_stays_as_it_is_when_a_lost_member_finds_capacity() {
    let mut w = world(elastic(&json!({})), [1, 1, 1, 2]);
    w.settle();
    let before = w.uids();
    w.lose("n1");
    w.settle();
    let after = w.uids();
    assert_eq!(
        before.iter().filter(|(m, u)| after[*m] == **u).count(),
        3,
        "the others restart in place"
    );
    assert_eq!(
        (w.status().ready.as_str(), w.status().history.len()),
        ("4/4", 1)
    );
}

#[test]
fn below_its_minimum_it_holds_its_nodes_for_a_while_and_then_waits_whole() {
    let mut w = world(elastic(&json!({})), [1, 1, 0, 0]);
    w.settle();
    assert_eq!(w.status().ready, "2/4");
    w.lose("n1");
    w.settle();
    assert_eq!(
        (w.status().phase, w.uids().len()),
        (Some(Phase::Restarting), 2),
        "the lost member keeps its pod until it has another node"
    );
    w.wait(400);
    assert_eq!(
        (w.status().phase, w.uids().len()),
        (Some(Phase::Pending), 0)
    );
}

#[test]
fn added_replicas_join_once_they_have_capacity_and_running_members_continue() {
    let mut w = world(gang_with(2, &json!({})), [2, 0, 0, 0]);
    w.settle();
    let before = w.uids();
    w.edit(|s| s.groups[0].replicas = Some(4));
    w.settle();
    assert_eq!(
        (w.uids(), w.status().ready.as_str(), w.status().phase),
        (before.clone(), "2/4", Some(Phase::Running))
    );
    w.capacity("n1", 1);
    w.wait(3600);
    assert_eq!(w.uids(), before, "capacity for a part of them is of no use");
    w.capacity("n1", 2);
    w.settle();
    let s = w.status();
    assert_eq!(
        (s.ready.as_str(), s.restarts.counted, s.restarts.total),
        ("4/4", 0, 1)
    );
    assert_eq!(env(&w, "PET_NNODES"), ["4", "4", "4", "4"]);
}

#[test]
fn replicas_of_the_spec_scale_their_group_and_the_status_counts_them() {
    let counted = |w: &Solo| (w.status().replicas, w.status().ready);
    let mut spec = gang(4);
    spec["groups"][0]["size"] = json!(2);
    let mut w = world(spec, [8, 0, 0, 0]);
    w.settle();
    assert_eq!((w.status().replicas, w.status().selector), (None, None));
    let before = w.uids();
    w.edit(|s| (s.replicas, s.groups[0].replicas) = (Some(4), None));
    w.settle();
    assert_eq!(counted(&w), (Some(4), "8/8".into()));
    assert_eq!(w.uids(), before, "the same number in another field");
    let selector = "training.lockstep.dev/workload=w,training.lockstep.dev/group=g,\
                    training.lockstep.dev/index=0";
    assert_eq!(w.status().selector.as_deref(), Some(selector));
    w.edit(|s| s.replicas = Some(3));
    w.settle();
    let s = w.status();
    assert_eq!(
        (counted(&w), s.restarts.counted, s.restarts.total),
        ((Some(3), "6/6".into()), 0, 1)
    );
    w.edit(|s| s.suspend = true);
    w.settle();
    assert_eq!(w.status().replicas, Some(0));
}

#[test]
fn replicas_that_are_worlds_of_their_own_do_not_restart_when_another_joins() {
    let spec = elastic(
        &json!({"network": {"world": "Replica"}, "failurePolicy": {"restartScope": "Replica"}}),
    );
    let mut w = world(spec, [2, 1, 0, 0]);
    w.settle();
    let before = w.uids();
    assert_eq!(
        (w.status().phase, w.status().ready.as_str()),
        (Some(Phase::Running), "3/4")
    );
    w.capacity("n2", 1);
    w.wait(61);
    let after = w.uids();
    assert!(
        before.iter().all(|(m, u)| after[m] == *u),
        "{before:?} {after:?}"
    );
    assert_eq!(
        (w.status().ready.as_str(), w.status().history.len()),
        ("4/4", 0)
    );
    w.lose("n2");
    w.settle();
    assert_eq!(
        (w.status().ready.as_str(), w.status().phase),
        ("3/4", Some(Phase::Running))
    );
    assert!(
        before.iter().all(|(m, u)| w.uids()[m] == *u),
        "the replica that is gone was a world of its own"
    );
}

#[test]
fn a_replica_that_returns_after_lack_of_capacity_has_its_own_barrier() {
    let mut spec = gang_with(
        3,
        &json!({"network": {"world": "Replica"}, "failurePolicy": {"restartScope": "Replica"}}),
    );
    spec["groups"][0]["size"] = json!(2);
    spec["scheduling"]["gang"]["minCount"] = json!(4);
    let mut w = Solo::supervised(spec);
    w.capacity("n3", 0);
    w.settle();
    assert_eq!(w.status().ready, "6/6");
    let lost = w.node_of("g", 2);
    w.edit_group("workload", |group| {
        let placement = group.status.as_mut().unwrap().placement.as_mut().unwrap();
        placement.nodes.retain(|n| n.node != lost);
    });
    w.pass();
    w.lose(&lost);
    w.settle();
    assert_eq!(w.status().ready, "4/6");
    w.capacity("n3", 2);
    w.wait(61);
    let s = w.status();
    assert_eq!((s.ready.as_str(), s.phase), ("6/6", Some(Phase::Running)));
    assert_eq!(s.history, []);
}

/// A gang of four with a minimum of two, of which single members may be preempted.
fn degrading() -> Value {
    elastic(&json!({"scheduling": {"disruptionMode": "Single"}}))
}

#[test]
fn a_gang_of_mode_single_continues_without_a_lost_member_while_enough_remain() {
    let mut w = world(degrading(), [2, 1, 1, 0]);
    w.settle();
    let before = w.uids();
    assert_eq!(before.len(), 4);
    let lost = w.node_of("g", 3);
    w.lose(&lost);
    w.settle();
    let s = w.status();
    let after = w.uids();
    let kept = before.iter().filter(|(m, uid)| after.get(*m) == Some(uid));
    assert_eq!(
        (kept.count(), w.restarts()[..3].to_vec()),
        (3, vec![0, 0, 0])
    );
    assert_eq!(
        (s.attempt, s.phase),
        (1, Some(Phase::Running)),
        "{}",
        w.story(40)
    );
    w.wait(1800);
    let after = w.uids();
    let kept = before.iter().filter(|(m, uid)| after.get(*m) == Some(uid));
    assert_eq!(kept.count(), 3, "nothing is given back while it waits");
    w.capacity("n3", 1);
    w.wait(900);
    assert_eq!(
        (w.uids().len(), w.status().attempt),
        (4, 1),
        "{}",
        w.story(40)
    );
    let after = w.uids();
    let kept = before.iter().filter(|(m, uid)| after.get(*m) == Some(uid));
    assert_eq!(kept.count(), 3);
}

#[test]
fn a_gang_of_mode_single_restarts_below_its_min_count_or_on_a_program_failure() {
    let mut w = world(degrading(), [2, 1, 1, 0]);
    w.settle();
    w.exit("g", 3, 1);
    w.settle();
    assert_eq!((w.status().attempt, w.restarts()), (2, vec![1, 1, 1, 1]));
    let mut w = world(degrading(), [2, 1, 1, 2]);
    w.settle();
    for index in 1..4 {
        w.delete_pod("g", index);
    }
    w.settle();
    assert_eq!(w.status().attempt, 2);
}

#[test]
fn a_replica_removed_and_added_again_at_once_gets_the_new_member_count() {
    let mut w = Solo::new(gang_with(
        3,
        &json!({"scheduling": {"gang": {"scope": "Replica"}}}),
    ));
    w.settle();
    w.edit(|s| s.groups[0].replicas = Some(1));
    w.crash_after(1);
    w.pass();
    w.crash();
    // Its pod from when three members ran still exists.
    w.edit(|s| s.groups[0].replicas = Some(2));
    w.settle();
    let pods = w.pods();
    let sizes = pods.iter().map(|p| pods::env(p, "PET_NNODES"));
    let two = Some("2".to_owned());
    assert_eq!(sizes.collect::<Vec<_>>(), [two.clone(), two]);
}

#[test]
fn a_workload_without_members_is_pending_until_it_is_scaled_up() {
    let mut w = Solo::new(gang(0));
    for replicas in [0, 2, 0] {
        w.edit(|s| s.groups[0].replicas = Some(replicas));
        w.settle();
        let s = w.status();
        let expected = if replicas == 0 {
            (Some(Phase::Pending), "NoMembers".to_owned())
        } else {
            (Some(Phase::Running), "AllMembersReady".to_owned())
        };
        assert_eq!((s.phase, s.reason), expected, "{replicas} replicas");
        assert_eq!(w.pods().len(), usize::try_from(replicas).unwrap());
    }
}
