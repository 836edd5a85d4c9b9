//! Placing gangs, and keeping their placements up to date.

use lockstep_api::condition::{ConditionStatus, reasons};
use lockstep_api::member::Member;
use lockstep_api::workload::{AvoidedNode, Backoff, DomainStatus};
use lockstep_model::pod::Stage;
use serde_json::json;

use super::world::{INSUFFICIENT, Spec, World};

const SMALL: Spec = Spec {
    priority: 10,
    members: 4,
    gpus: 1,
};

#[test]
fn a_gang_is_placed_whole_and_a_second_pass_changes_nothing() {
    let mut world = World::new(&[("n1", 2), ("n2", 2)]);
    world.gang("a", SMALL);
    assert_eq!(world.pass().steps.len(), 1);
    assert_eq!(world.nodes("a"), ["n1", "n1", "n2", "n2"]);
    assert_eq!(world.condition("a").reason, reasons::SCHEDULED);
    assert!(world.pass().steps.is_empty());
}

#[test]
fn a_waiting_gang_holds_nothing_and_says_what_is_short() {
    let mut world = World::new(&[("n1", 2), ("n2", 1)]);
    world.gang("a", SMALL);
    world.pass();
    assert_eq!(world.placement("a"), None);
    let condition = world.condition("a");
    assert_eq!(
        (condition.status, condition.reason.as_str()),
        (ConditionStatus::False, reasons::UNSCHEDULABLE)
    );
    assert!(
        condition.message.contains("nvidia.com/gpu"),
        "{}",
        condition.message
    );
    world.gang(
        "b",
        Spec {
            members: 3,
            ..SMALL
        },
    );
    world.pass();
    assert_eq!(
        world.nodes("b").len(),
        3,
        "what the waiting gang does not hold is there for others"
    );
}

#[test]
fn of_two_gangs_one_gets_all_and_the_other_nothing_whoever_came_first() {
    for (first, second) in [("a", "b"), ("b", "a")] {
        let mut world = World::new(&[("n1", 3), ("n2", 3)]);
        world.gang(first, SMALL);
        world.pass();
        world.later(1);
        world.gang(second, SMALL);
        world.pass();
        assert_eq!(
            (world.nodes(first).len(), world.placement(second)),
            (4, None)
        );
    }
}

#[test]
fn the_more_important_gang_and_among_equals_the_older_one_comes_first() {
    let mut world = World::new(&[("n1", 0)]);
    world.gang("young", SMALL);
    world.groups.get_mut("young").unwrap().metadata.uid = Some("a-smaller-uid".into());
    world.gang(
        "high",
        Spec {
            priority: 11,
            ..SMALL
        },
    );
    world.gang("old", SMALL);
    let asked = |world: &mut World, name: &str, ago: i64| {
        let at = world.now - chrono::TimeDelta::seconds(ago);
        world.groups.get_mut(name).unwrap().status = Some(lockstep_api::PodGroupStatus {
            queued_at: Some(at),
            ..lockstep_api::PodGroupStatus::default()
        });
    };
    asked(&mut world, "old", 60);
    asked(&mut world, "young", 5);
    world.node("n1", 8, true);
    world.pass();
    assert_eq!(
        (
            world.nodes("high").len(),
            world.nodes("old").len(),
            world.placement("young")
        ),
        (4, 4, None)
    );
}

#[test]
fn nothing_is_promised_twice_while_the_watch_lags_behind() {
    let mut world = World::new(&[("n1", 4)]);
    world.gang("a", SMALL);
    world.stale = Some(world.groups.clone());
    world.pass();
    world.gang("b", SMALL);
    let mut seen = world.stale.take().unwrap();
    seen.insert("b".into(), world.groups["b"].clone());
    world.stale = Some(seen);
    world.pass();
    assert_eq!((world.nodes("a").len(), world.placement("b")), (4, None));
}

#[test]
fn a_new_leader_rebuilds_its_reservations_from_the_placements() {
    let mut world = World::new(&[("n1", 4)]);
    world.gang("a", SMALL);
    world.pass();
    world.memory = crate::Memory::default();
    world.gang("b", SMALL);
    world.pass();
    assert_eq!((world.nodes("a").len(), world.placement("b")), (4, None));
}

#[test]
fn a_suspended_backing_off_or_dependent_gang_does_not_ask_for_room() {
    let mut world = World::new(&[("n1", 16)]);
    for name in ["suspended", "backing-off", "dependent"] {
        world.gang(name, SMALL);
    }
    world.workloads.get_mut("suspended").unwrap().spec.suspend = true;
    let until = world.now;
    world.ledger("backing-off").backoff = Some(Backoff {
        reason: reasons::QUOTA_EXCEEDED.into(),
        message: String::new(),
        tries: 1,
        until,
    });
    world.ledger("dependent").started = false;
    assert!(world.pass().steps.is_empty());
}

#[test]
fn a_placement_that_was_given_back_is_cleared_only_when_the_pods_are_gone() {
    let mut world = World::new(&[("n1", 4)]);
    world.gang("a", SMALL);
    world.settle();
    world.gang("b", SMALL);
    world.workloads.get_mut("a").unwrap().spec.suspend = true;
    world.release("a");
    world.control();
    world.pass();
    assert!(
        world.placement("a").is_some() && world.placement("b").is_none(),
        "pods are still ending"
    );
    world.end_terminating();
    world.pass();
    assert!(world.placement("a").is_none() && world.status("a").queued_at.is_none());
    assert_eq!(world.nodes("b").len(), 4);
}

#[test]
fn pods_that_end_on_a_dead_node_do_not_keep_a_gang_from_the_queue() {
    let mut world = World::new(&[("n1", 4), ("n2", 4)]);
    world.gang("a", SMALL);
    world.settle();
    let node = world.nodes("a").remove(0);
    world.release("a");
    world.control();
    world.node(&node, 4, false);
    world.pass();
    assert!(world.placement("a").is_some());
    world.later(61);
    world.pass();
    assert_eq!(world.placement("a"), None);
    world.pass();
    assert!(world.nodes("a").iter().all(|n| *n != node) && world.nodes("a").len() == 4);
}

/// A gang of one on two nodes, whose pin kube-scheduler has refused; and the node of the pin.
fn refused() -> (World, String) {
    let mut world = World::new(&[("n1", 4), ("n2", 4)]);
    world.gang(
        "a",
        Spec {
            members: 1,
            ..SMALL
        },
    );
    world.pass();
    world.control();
    let first = world.nodes("a").remove(0);
    let pod = world.pods_of("a").remove(0);
    world.change(&pod.name, |p| {
        (p.stage, p.refusal) = (Stage::Refused, Some(INSUFFICIENT.into()));
    });
    (world, first)
}

#[test]
fn a_pin_that_kube_scheduler_refuses_is_planned_elsewhere() {
    let (mut world, first) = refused();
    assert!(world.pass().wake_after.is_some());
    assert_eq!(
        world.nodes("a").first(),
        Some(&first),
        "kube-scheduler may still make up its mind"
    );
    world.later(5);
    world.pass();
    assert_ne!(world.nodes("a"), [first]);
}

#[test]
fn a_refusal_does_not_count_while_somebody_is_leaving_the_node() {
    let (mut world, first) = refused();
    world.foreign("leaving", &first, 0, 1);
    let end = world.now + chrono::TimeDelta::seconds(30);
    world.change("leaving", |p| p.terminating = Some(end));
    world.pass();
    world.later(10);
    world.pass();
    assert_eq!(world.nodes("a"), [first.as_str()]);
    world.remove("leaving");
    assert!(world.pass().wake_after.is_some());
    assert_eq!(
        world.nodes("a"),
        [first],
        "kube-scheduler has only just been able to say yes"
    );
}

#[test]
fn a_pod_that_is_bound_just_when_its_seat_is_moved_keeps_its_node() {
    let (mut world, first) = refused();
    world.pass();
    world.later(5);
    world.pass();
    assert_ne!(world.nodes("a"), [first.as_str()]);
    let pod = world.pods_of("a").remove(0);
    world.change(&pod.name, |p| {
        p.bound = Some(first.clone());
        p.stage = Stage::Open;
    });
    world.settle();
    assert_eq!((world.nodes("a"), world.running("a")), (vec![first], 1));
}

fn replacing(world: &mut World, name: &str, ranges: &[&str], old: &[&str]) {
    let incident = json!({"attempt": 2, "action": "RestartGang", "stage": "Decided", "replace": ranges, "oldPods": old,
        "cause": {"kind": "NodeLost", "time": world.now}, "detectedAt": world.now, "decidedAt": world.now});
    let domain = DomainStatus {
        key: lockstep_api::names::WHOLE.into(),
        attempt: 2,
        incident: Some(serde_json::from_value(incident).unwrap()),
        ..DomainStatus::default()
    };
    world
        .workloads
        .get_mut(name)
        .unwrap()
        .status
        .as_mut()
        .unwrap()
        .domains = vec![domain];
}

#[test]
fn a_lost_member_gets_another_node_and_the_others_stay() {
    let mut world = World::new(&[("n1", 1), ("n2", 1), ("n3", 1), ("n4", 1), ("n5", 1)]);
    world.gang("a", SMALL);
    world.settle();
    let before = world.seats("a");
    let (member, node) = before
        .first_key_value()
        .map(|(m, n)| (m.clone(), n.clone()))
        .unwrap();
    world.node(&node, 1, false);
    world.pass();
    assert_eq!(
        world.seats("a"),
        before,
        "the workload decides when a node is lost"
    );
    let uid = world
        .pods_of("a")
        .into_iter()
        .find(|p| p.member.as_ref() == Some(&member))
        .unwrap()
        .uid;
    replacing(&mut world, "a", &["g/0/0"], &[&uid]);
    world.pass();
    let after = world.seats("a");
    assert_ne!(after[&member], node);
    assert!(
        before
            .iter()
            .filter(|(m, _)| **m != member)
            .all(|(m, n)| after[m] == *n)
    );
}

#[test]
fn a_replaced_member_keeps_its_node_unless_the_workload_avoids_it() {
    let mut world = World::new(&[("n1", 1), ("n2", 1), ("n3", 1), ("n4", 1), ("n5", 1)]);
    world.gang("a", SMALL);
    world.settle();
    let before = world.seats("a");
    let member = Member::new("g", 0, 0);
    let pod = world
        .pods_of("a")
        .into_iter()
        .find(|p| p.member.as_ref() == Some(&member))
        .unwrap();
    replacing(&mut world, "a", &["g/0/0"], &[&pod.uid]);
    assert!(world.pass().steps.is_empty());
    let until = world.now + chrono::TimeDelta::seconds(60);
    world.ledger("a").avoid = vec![AvoidedNode {
        node: before[&member].clone(),
        reason: "Test".into(),
        until,
    }];
    world.pass();
    assert_ne!(world.seats("a")[&member], before[&member]);
}

#[test]
fn a_gang_that_runs_keeps_its_nodes_while_no_replacement_is_found() {
    let mut world = World::new(&[("n1", 2), ("n2", 2)]);
    world.gang("a", SMALL);
    world.settle();
    let member = Member::new("g", 0, 0);
    let node = world.seats("a")[&member].clone();
    let pod = world
        .pods_of("a")
        .into_iter()
        .find(|p| p.member.as_ref() == Some(&member))
        .unwrap();
    replacing(&mut world, "a", &["g/0/0"], &[&pod.uid]);
    let until = world.now + chrono::TimeDelta::seconds(60);
    world.ledger("a").avoid = vec![AvoidedNode {
        node,
        reason: "Test".into(),
        until,
    }];
    world.pass();
    assert_eq!(world.seats("a").len(), 3);
    assert!(
        world.condition("a").message.contains("more members wait"),
        "{}",
        world.condition("a").message
    );
    assert!(world.pass().steps.is_empty());
}

#[test]
fn a_gang_of_which_nothing_runs_is_placed_anew_as_a_whole() {
    let mut world = World::new(&[("n1", 2), ("n2", 2)]);
    world.gang("a", SMALL);
    world.pass();
    world.node("n1", 2, false);
    world.pass();
    assert_eq!(
        world.placement("a"),
        None,
        "what it waits for it must not hold"
    );
}

#[test]
fn a_running_gang_whose_placement_was_lost_has_the_seats_that_it_runs_on() {
    let mut world = World::new(&[("n1", 4), ("n2", 4)]);
    world.gang("a", SMALL);
    world.settle();
    let before = world.seats("a");
    world.groups.get_mut("a").unwrap().status = None;
    world.memory = crate::Memory::default();
    world.settle();
    assert_eq!((world.seats("a"), world.running("a")), (before, 4));
}

#[test]
fn a_gang_that_is_under_way_keeps_its_nodes_although_no_pod_is_there() {
    let mut world = World::new(&[("n1", 2), ("n2", 2)]);
    world.gang("a", SMALL);
    world.settle();
    replacing(&mut world, "a", &["g/0/0", "g/1/0", "g/2/0", "g/3/0"], &[]);
    for pod in world.pods_of("a") {
        world.remove(&pod.name);
    }
    world.node("n1", 2, false);
    world.pass();
    assert_eq!(world.nodes("a"), ["n2", "n2"]);
}

#[test]
fn members_that_have_succeeded_need_no_room() {
    let mut world = World::new(&[("n1", 3)]);
    world.gang("a", SMALL);
    let status = world
        .workloads
        .get_mut("a")
        .unwrap()
        .status
        .as_mut()
        .unwrap();
    status.groups = vec![lockstep_api::workload::GroupStatus {
        name: "g".into(),
        completed_indexes: "0".into(),
        ..lockstep_api::workload::GroupStatus::default()
    }];
    world.pass();
    assert_eq!(world.seats("a").len(), 3);
}

#[test]
fn members_of_a_basic_group_are_placed_one_by_one() {
    let mut world = World::new(&[("n1", 2)]);
    world.gang_with(
        "a",
        SMALL,
        json!({"scheduling": {"policy": "Basic"}}),
        json!({"gangKey": "g", "schedulingPolicy": {"basic": {}, "gang": null}, "disruptionMode": {"single": {}, "all": null}}),
    );
    let group = world.groups.get_mut("a").unwrap();
    group.metadata.name = Some(lockstep_api::names::pod_group_name("a", "w-a", "g"));
    world.ledger("a").key = "g".into();
    world.settle();
    assert_eq!(world.seats("a").len(), 2);
    world.node("n2", 2, true);
    world.settle();
    assert_eq!((world.seats("a").len(), world.running("a")), (4, 4));
}

#[test]
fn small_gangs_do_not_starve_a_large_one_that_waits_before_them() {
    let mut world = World::new(&[("n1", 4), ("n2", 4)]);
    world.gang("running", SMALL);
    world.settle();
    world.gang(
        "large",
        Spec {
            members: 8,
            ..SMALL
        },
    );
    world.pass();
    world.later(1);
    world.gang(
        "small",
        Spec {
            members: 1,
            ..SMALL
        },
    );
    world.settle();
    assert_eq!(
        (world.placement("large"), world.placement("small")),
        (None, None)
    );
    world.workloads.get_mut("running").unwrap().spec.suspend = true;
    world.release("running");
    world.settle();
    assert_eq!(
        (world.running("large"), world.placement("small")),
        (8, None)
    );
}

#[test]
fn room_that_the_waiting_gang_cannot_use_is_there_for_those_behind_it() {
    let mut world = World::new(&[("n1", 5)]);
    world.gang("running", SMALL);
    world.settle();
    world.node("n2", 1, true);
    world.gang(
        "large",
        Spec {
            members: 2,
            gpus: 2,
            ..SMALL
        },
    );
    world.pass();
    world.later(1);
    world.gang(
        "small",
        Spec {
            members: 1,
            ..SMALL
        },
    );
    world.settle();
    assert_eq!(
        (world.placement("large"), world.nodes("small")),
        (None, vec!["n2".to_owned()])
    );
}

#[test]
fn a_message_that_changes_all_the_time_is_written_now_and_then() {
    let mut world = World::new(&[("n1", 1)]);
    world.gang("a", SMALL);
    world.pass();
    world.node("n2", 1, true);
    assert!(world.pass().steps.is_empty());
    world.later(5);
    assert_eq!(world.pass().steps.len(), 1);
}
