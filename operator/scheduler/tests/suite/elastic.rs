//! Elastic gangs, and nodes that can be used again soon.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::reasons;
use lockstep_api::member::Member;
use lockstep_api::words::time;
use lockstep_api::workload::AvoidedNode;
use lockstep_sim::pods::member_of;
use lockstep_sim::{Gangs, Spec};
use serde_json::json;

const SMALL: Spec = Spec {
    priority: 10,
    members: 4,
    gpus: 1,
};

/// A gang of four with `minCount` 2, and capacity for three.
fn elastic() -> Gangs {
    let mut world = Gangs::new(&[("n1", 3)]);
    elastic_gang(&mut world);
    world.settle();
    world
}

fn elastic_gang(world: &mut Gangs) {
    let two = json!({"scheduling": {"gang": {"minCount": 2}}});
    world.gang_with("a", SMALL, &two);
}

/// Since when all members of the gang run.
fn healthy_since(world: &Gangs) -> Option<DateTime<Utc>> {
    let status = world.workload("a").status?;
    status.domains.first()?.healthy_since
}

#[test]
fn an_elastic_gang_starts_with_what_fits_and_keeps_to_it_while_it_starts() {
    let mut world = Gangs::new(&[("n1", 3)]);
    world.fault("n1", |f| f.starts_nothing = true);
    elastic_gang(&mut world);
    world.settle();
    assert_eq!(
        (world.assigned("a").len(), healthy_since(&world)),
        (3, None)
    );
    world.node("n2", 4, true);
    world.settle();
    assert_eq!(
        (world.assigned("a").len(), healthy_since(&world)),
        (3, None)
    );
}

#[test]
fn it_grows_into_free_capacity_once_it_has_run_for_a_while() {
    let mut world = elastic();
    world.node("n2", 4, true);
    let cycle = world.schedule();
    let since = healthy_since(&world).expect("it runs");
    let wake = cycle.wake_after.expect("it grows later");
    assert_eq!(
        (world.assigned("a").len(), world.now() + wake),
        (3, since + world.scheduler_settings().grow_after)
    );
    world.later(600);
    world.settle();
    assert_eq!((world.assigned("a").len(), world.running("a")), (4, 4));
}

#[test]
fn an_elastic_gang_evicts_no_pod_to_grow() {
    let mut world = elastic();
    world.node("n2", 1, true);
    let low = Spec {
        members: 1,
        priority: 1,
        ..SMALL
    };
    world.gang("low", low);
    world.settle();
    world.later(600);
    world.settle();
    assert_eq!((world.assigned("a").len(), world.running("low")), (3, 1));
}

#[test]
fn raised_replicas_and_min_count_evict_no_pod_and_take_no_partial_capacity() {
    let mut world = Gangs::new(&[("n1", 4), ("n2", 1)]);
    world.gang("a", SMALL);
    let low = Spec {
        members: 1,
        priority: 1,
        ..SMALL
    };
    world.gang("low", low);
    world.settle();
    assert!(healthy_since(&world).is_some());
    world.edit("a", |w| w.spec.groups[0].replicas = Some(6));
    world.settle();
    let group = world.group("a").unwrap();
    let policy = group.spec.gang.scheduling_policy.gang.unwrap();
    assert_eq!(policy.min_count, 6);
    assert_eq!((world.assigned("a").len(), world.running("low")), (4, 1));
    world.node("n3", 1, true);
    world.settle();
    assert_eq!(world.assigned("a").len(), 4, "one of two is of no use");
    world.node("n3", 2, true);
    world.settle();
    assert_eq!(
        world.assigned("a").len(),
        6,
        "nobody waits ten minutes for what was asked for"
    );
}

#[test]
fn it_does_not_grow_when_a_member_has_finished() {
    let mut world = elastic();
    let pods = world.pods_of("a");
    let second = pods
        .iter()
        .find(|p| member_of(p) == Some(Member::new("g", 1, 0)));
    assert!(world.exit_pod(second.expect("it has a pod"), 0));
    world.settle();
    let status = world.workload("a").status.unwrap();
    assert_eq!(status.groups[0].completed_indexes, "1");
    world.node("n2", 4, true);
    world.later(600);
    world.settle();
    assert_eq!(world.assigned("a").len(), 3);
}

/// A more important gang that a free node has rejected, and that does not fit next to the gang on
/// the other node.
fn rejected(reason: &str, tries: i32) -> Gangs {
    let mut world = Gangs::new(&[("n1", 4), ("n2", 0)]);
    world.gang("low", SMALL);
    world.settle();
    world.node("n2", 4, true);
    let spec = Spec {
        priority: 20,
        ..SMALL
    };
    world.gang("a", spec);
    world.control();
    let avoided = AvoidedNode {
        node: "n2".into(),
        reason: reason.into(),
        until: world.now() + TimeDelta::seconds(30),
        ..AvoidedNode::default()
    };
    world.edit_ledger("a", |gang| {
        gang.avoid = vec![avoided];
        gang.placement_tries = tries;
    });
    world.schedule();
    world
}

#[test]
fn a_temporary_kubelet_rejection_for_capacity_evicts_no_pod() {
    let mut world = rejected(reasons::REJECTED_BY_NODE, 1);
    assert_eq!(world.placement("a"), None);
    let again = time(world.now() + TimeDelta::seconds(30));
    let message = world.condition("a").message;
    let said = format!(
        "would fit only with node n2, whose kubelet rejected a pod of this gang; retry at {again}"
    );
    assert!(message.starts_with(&said), "{message}");
    world.later(30);
    world.settle();
    assert_eq!(
        (world.nodes("a"), world.running("low")),
        (vec!["n2".to_owned(); 4], 4)
    );
}

#[test]
fn a_node_that_keeps_rejecting_or_is_avoided_for_another_reason_is_not_waited_for() {
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
