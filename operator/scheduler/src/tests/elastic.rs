//! Gangs that can do with some of their members, and nodes that may be used again soon.

use chrono::TimeDelta;
use lockstep_api::condition::reasons;
use lockstep_api::workload::{AvoidedNode, DomainStatus, GroupStatus};
use serde_json::json;

use super::world::{Spec, World};

const SMALL: Spec = Spec {
    priority: 10,
    members: 4,
    gpus: 1,
};

/// A gang of four that can do with two, and room for three.
fn elastic() -> World {
    let mut world = World::new(&[("n1", 3)]);
    let (workload, group) = (
        json!({"gang": {"minCount": 2}}),
        json!({"gang": {"minCount": 2}}),
    );
    world.gang_with(
        "a",
        SMALL,
        json!({"scheduling": workload}),
        json!({"schedulingPolicy": group}),
    );
    world.settle();
    world
}

/// The workload controller has seen the first members run.
fn runs(world: &mut World, members: &str) {
    let healthy_since = Some(world.now);
    let status = world
        .workloads
        .get_mut("a")
        .unwrap()
        .status
        .as_mut()
        .unwrap();
    status.domains = vec![DomainStatus {
        key: "workload".into(),
        attempt: 1,
        healthy_since,
        ..DomainStatus::default()
    }];
    let world_indexes = Some(members.to_owned());
    status.groups = vec![GroupStatus {
        name: "g".into(),
        world_indexes,
        ..GroupStatus::default()
    }];
}

#[test]
fn an_elastic_gang_starts_with_what_fits_and_keeps_to_it_while_it_starts() {
    let mut world = elastic();
    assert_eq!(world.seats("a").len(), 3);
    world.node("n2", 4, true);
    world.settle();
    assert_eq!(world.seats("a").len(), 3);
}

#[test]
fn it_grows_into_free_room_once_it_has_run_for_a_while() {
    let mut world = elastic();
    runs(&mut world, "0-2");
    world.node("n2", 4, true);
    let plan = world.pass();
    assert_eq!(
        (world.seats("a").len(), plan.wake_after),
        (3, Some(world.settings.grow_after))
    );
    world.later(600);
    world.settle();
    assert_eq!(world.seats("a").len(), 4);
}

#[test]
fn it_evicts_nobody_to_grow() {
    let mut world = elastic();
    runs(&mut world, "0-2");
    world.node("n2", 1, true);
    world.gang(
        "low",
        Spec {
            members: 1,
            priority: 1,
            ..SMALL
        },
    );
    world.settle();
    world.later(600);
    world.settle();
    assert_eq!((world.seats("a").len(), world.running("low")), (3, 1));
}

#[test]
fn raised_replicas_and_minimum_evict_nobody_and_take_no_part_of_the_room() {
    let mut world = World::new(&[("n1", 4), ("n2", 1)]);
    world.gang("a", SMALL);
    world.gang(
        "low",
        Spec {
            members: 1,
            priority: 1,
            ..SMALL
        },
    );
    world.settle();
    runs(&mut world, "0-3");
    let more = world.workloads.get_mut("a").unwrap();
    more.spec.groups[0].replicas = 6;
    more.metadata.generation = Some(2);
    let policy = &mut world
        .groups
        .get_mut("a")
        .unwrap()
        .spec
        .gang
        .scheduling_policy;
    policy.gang.as_mut().unwrap().min_count = 6;
    world.settle();
    assert_eq!((world.seats("a").len(), world.running("low")), (4, 1));
    world.node("n3", 1, true);
    world.settle();
    assert_eq!(world.seats("a").len(), 4, "one seat of two is of no use");
    world.node("n3", 2, true);
    world.settle();
    assert_eq!(
        world.seats("a").len(),
        6,
        "nobody waits ten minutes for what was asked for"
    );
}

#[test]
fn it_does_not_grow_when_a_member_has_finished() {
    let mut world = elastic();
    runs(&mut world, "0-2");
    world
        .workloads
        .get_mut("a")
        .unwrap()
        .status
        .as_mut()
        .unwrap()
        .groups[0]
        .completed_indexes = "1".into();
    world.node("n2", 4, true);
    world.later(600);
    world.settle();
    assert_eq!(world.seats("a").len(), 3);
}

/// A more important gang that does not fit beside the one on the only other node, and was rejected
/// by a node with room.
fn rejected(reason: &str, tries: i32) -> World {
    let mut world = World::new(&[("n1", 4), ("n2", 4)]);
    world.node("n2", 0, true);
    world.gang("low", SMALL);
    world.settle();
    world.node("n2", 4, true);
    world.gang(
        "a",
        Spec {
            priority: 20,
            ..SMALL
        },
    );
    let until = world.now + TimeDelta::seconds(30);
    let ledger = world.ledger("a");
    ledger.avoid = vec![AvoidedNode {
        node: "n2".into(),
        reason: reason.into(),
        until,
    }];
    ledger.placement_tries = tries;
    world.pass();
    world
}

#[test]
fn nobody_is_evicted_because_a_kubelet_had_no_room_for_a_moment() {
    let mut world = rejected(reasons::REJECTED_BY_NODE, 1);
    assert_eq!(world.placement("a"), None);
    assert!(
        world
            .condition("a")
            .message
            .contains("whose kubelet rejected"),
        "{:?}",
        world.condition("a")
    );
    world.later(30);
    world.settle();
    assert_eq!(
        (world.nodes("a"), world.running("low")),
        (vec!["n2".to_owned(); 4], 4)
    );
}

#[test]
fn a_node_that_rejects_again_and_again_or_is_avoided_for_another_reason_is_not_waited_for() {
    for (reason, tries) in [(reasons::REJECTED_BY_NODE, 4), (reasons::FAILED_MEMBER, 0)] {
        let mut world = rejected(reason, tries);
        world.settle();
        let on = |node: &str| vec![node.to_owned(); 4];
        assert_eq!(
            (world.nodes("a"), world.nodes("low")),
            (on("n1"), on("n2")),
            "{reason}: low was evicted"
        );
    }
}
