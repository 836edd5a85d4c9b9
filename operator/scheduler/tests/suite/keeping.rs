//! Existing placements: released, refused, lost, and restored.

use std::collections::BTreeMap;

use lockstep_api::member::Member;
use lockstep_api::names::WHOLE;
use lockstep_api::workload::{AvoidedNode, DomainStatus};
use lockstep_sim::pods::{member_of, node_of};
use lockstep_sim::{Gangs, Key, Spec, WatchedKind};
use serde_json::json;

use crate::INSUFFICIENT;

const SMALL: Spec = Spec {
    priority: 10,
    members: 4,
    gpus: 1,
};

#[test]
fn a_released_placement_is_cleared_only_after_its_pods_are_gone() {
    let mut world = Gangs::new(&[("n1", 4)]);
    world.gang("a", SMALL);
    world.settle();
    world.gang("b", SMALL);
    world.edit("a", |w| w.spec.suspend = true);
    world.control();
    assert!(world.released("a"));
    world.schedule();
    assert!(
        world.placement("a").is_some() && world.placement("b").is_none(),
        "pods are still ending"
    );
    world.kubelets();
    world.schedule();
    assert!(world.placement("a").is_none() && world.status("a").queued_at.is_none());
    assert_eq!(world.nodes("b").len(), 4);
}

#[test]
fn pods_that_end_on_a_dead_node_do_not_keep_a_gang_from_the_queue() {
    let mut world = Gangs::new(&[("n1", 4), ("n2", 4)]);
    world.gang("a", SMALL);
    world.settle();
    let node = world.nodes("a").remove(0);
    world.release("a");
    world.control();
    world.node(&node, 4, false);
    world.schedule();
    assert!(world.placement("a").is_some());
    world.later(61);
    world.schedule();
    assert_eq!(world.placement("a"), None);
    world.schedule();
    assert!(world.nodes("a").iter().all(|n| *n != node) && world.nodes("a").len() == 4);
}

/// A gang of one member on two nodes whose pin kube-scheduler has refused, and the pinned node.
fn refused() -> (Gangs, String) {
    let mut world = Gangs::new(&[("n1", 4), ("n2", 4)]);
    let one = Spec {
        members: 1,
        ..SMALL
    };
    world.gang("a", one);
    world.decide();
    let first = world.nodes("a").remove(0);
    world.refuse_pods("a", INSUFFICIENT);
    (world, first)
}

#[test]
fn a_pin_that_kube_scheduler_refuses_is_planned_elsewhere() {
    let (mut world, first) = refused();
    assert!(world.schedule().wake_after.is_some());
    assert_eq!(
        world.nodes("a").first(),
        Some(&first),
        "kube-scheduler may still make up its mind"
    );
    world.later(5);
    world.schedule();
    assert_ne!(world.nodes("a"), [first]);
}

#[test]
fn a_refusal_does_not_count_while_a_pod_terminates_on_the_node() {
    let (mut world, first) = refused();
    world.foreign("leaving", &first, 0, 1);
    let leaving = Key::new("ml", "leaving");
    world.delete(WatchedKind::Pod, &leaving);
    world.schedule();
    world.later(10);
    world.schedule();
    assert_eq!(world.nodes("a"), [first.as_str()]);
    world.remove(WatchedKind::Pod, &leaving);
    assert!(world.schedule().wake_after.is_some());
    assert_eq!(
        world.nodes("a"),
        [first],
        "kube-scheduler has only just been able to say yes"
    );
}

#[test]
fn a_refusal_that_no_termination_resolves_counts_while_pods_terminate() {
    let (mut world, first) = refused();
    let grace = json!({"spec": {"terminationGracePeriodSeconds": 3600}});
    world.foreign_with("leaving", &first, 0, 1, &grace);
    world.delete(WatchedKind::Pod, &Key::new("ml", "leaving"));
    let words = "0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) didn't satisfy plugin(s) \
        [NodeAffinity]. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.";
    world.refuse_pods("a", words);
    world.schedule();
    world.later(5);
    world.schedule();
    let refusal = world.status("a").refusal.expect("it is noted");
    assert_eq!(refusal.message, words);
    assert_ne!(world.nodes("a"), [first]);
}

#[test]
fn a_pod_that_is_bound_just_when_its_member_is_moved_keeps_its_node() {
    let (mut world, first) = refused();
    world.schedule();
    world.later(5);
    world.schedule();
    assert_ne!(world.nodes("a"), [first.as_str()]);
    // kube-scheduler could have bound the pod before.
    world.bind();
    let pod = world.pods_of("a").remove(0);
    assert_eq!(node_of(&pod), Some(first.as_str()));
    world.settle();
    assert_eq!((world.nodes("a"), world.running("a")), (vec![first], 1));
}

#[test]
fn pods_that_are_bound_when_their_node_was_lost_and_found_keep_it() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang("a", SMALL);
    world.decide();
    world.node("n1", 2, false);
    world.bind();
    assert_eq!(world.running("a"), 2);
    world.later(61);
    world.schedule();
    assert_eq!(world.nodes("a"), ["n2", "n2"]);
    world.node("n1", 2, true);
    world.bind();
    world.schedule();
    assert_eq!((world.nodes("a").len(), world.running("a")), (4, 4));
    world.settle();
    assert_eq!((world.nodes("a").len(), world.running("a")), (4, 4));
}

fn uid_of(world: &Gangs, name: &str, member: &Member) -> String {
    let mut pods = world
        .pods_of(name)
        .into_iter()
        .filter(|p| member_of(p).as_ref() == Some(member));
    pods.next()
        .and_then(|p| p.metadata.uid)
        .expect("it has a pod")
}

/// Sets an incident of the workload that replaces these members.
fn replacing(world: &mut Gangs, name: &str, ranges: &[&str], old: &[&str]) {
    let now = world.now();
    let incident = json!({"attempt": 2, "action": "RestartGang", "stage": "Decided", "replace": ranges, "oldPods": old,
        "cause": {"kind": "NodeLost", "time": now}, "detectedAt": now, "decidedAt": now});
    let domain = DomainStatus {
        key: WHOLE.into(),
        attempt: 2,
        incident: Some(serde_json::from_value(incident).unwrap()),
        ..DomainStatus::default()
    };
    world.edit(name, |w| {
        w.status.get_or_insert_default().domains = vec![domain];
    });
}

/// Makes the workload avoid a node for a minute.
fn avoiding(world: &mut Gangs, name: &str, node: &str) {
    let avoided = AvoidedNode {
        node: node.to_owned(),
        reason: "Test".into(),
        until: world.now() + chrono::TimeDelta::seconds(60),
        ..AvoidedNode::default()
    };
    world.edit_ledger(name, |gang| gang.avoid = vec![avoided]);
}

fn others(of: &BTreeMap<Member, String>, member: &Member) -> BTreeMap<Member, String> {
    let mut others = of.clone();
    others.remove(member);
    others
}

#[test]
fn a_lost_member_gets_another_node_and_other_members_stay() {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1), ("n3", 1), ("n4", 1), ("n5", 1)]);
    world.gang("a", SMALL);
    world.settle();
    let before = world.assigned("a");
    let (member, node) = before.first_key_value().expect("it is placed");
    world.node(node, 1, false);
    world.schedule();
    assert_eq!(
        world.assigned("a"),
        before,
        "the workload decides when a node is lost"
    );
    world.settle();
    let after = world.assigned("a");
    assert_ne!(after[member], *node);
    assert_eq!(others(&after, member), others(&before, member));
    assert_eq!(world.running("a"), 4);
}

#[test]
fn a_replaced_member_keeps_its_node_unless_the_workload_avoids_it() {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1), ("n3", 1), ("n4", 1), ("n5", 1)]);
    world.gang("a", SMALL);
    world.settle();
    let before = world.assigned("a");
    let member = Member::new("g", 0, 0);
    let uid = uid_of(&world, "a", &member);
    replacing(&mut world, "a", &["g/0/0"], &[&uid]);
    assert_eq!(world.schedule().requests, 0);
    avoiding(&mut world, "a", &before[&member]);
    world.schedule();
    assert_ne!(world.assigned("a")[&member], before[&member]);
}

#[test]
fn a_gang_that_runs_keeps_its_nodes_while_no_replacement_is_found() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang("a", SMALL);
    world.settle();
    let member = Member::new("g", 0, 0);
    let node = world.assigned("a")[&member].clone();
    let uid = uid_of(&world, "a", &member);
    replacing(&mut world, "a", &["g/0/0"], &[&uid]);
    avoiding(&mut world, "a", &node);
    world.schedule();
    assert_eq!(world.assigned("a").len(), 3);
    let message = world.condition("a").message;
    assert!(message.contains("other members are pending"), "{message}");
    assert_eq!(world.schedule().requests, 0);
}

#[test]
fn a_gang_without_running_members_is_placed_again_as_a_whole() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang("a", SMALL);
    world.pass();
    assert_eq!(world.nodes("a").len(), 4);
    world.node("n1", 2, false);
    world.later(61);
    world.schedule();
    assert_eq!(
        world.placement("a"),
        None,
        "what it waits for it must not hold"
    );
}

#[test]
fn a_running_gang_whose_placement_was_lost_has_the_nodes_that_it_runs_on() {
    let mut world = Gangs::new(&[("n1", 4), ("n2", 4)]);
    world.gang("a", SMALL);
    world.settle();
    let before = world.assigned("a");
    world.edit_group("a", |g| g.status = None);
    world.crash();
    world.settle();
    assert_eq!((world.assigned("a"), world.running("a")), (before, 4));
}

#[test]
fn a_gang_that_is_under_way_keeps_its_nodes_although_no_pod_is_there() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang("a", SMALL);
    world.settle();
    replacing(&mut world, "a", &["g/0/0", "g/1/0", "g/2/0", "g/3/0"], &[]);
    for pod in world.pods_of("a") {
        world.remove(WatchedKind::Pod, &Key::of(&pod));
    }
    world.node("n1", 2, false);
    world.schedule();
    assert_eq!(world.nodes("a").len(), 4, "the node may return");
    world.later(61);
    world.schedule();
    assert_eq!(world.nodes("a"), ["n2", "n2"]);
}

#[test]
fn a_node_filled_by_bound_pods_of_another_gang_is_not_kept_for_a_member_without_pod() {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 2)]);
    let three = Spec {
        members: 3,
        ..SMALL
    };
    let one = Spec {
        priority: 5,
        members: 1,
        ..SMALL
    };
    world.gang("b", three);
    world.gang("a", one);
    world.pass();
    assert_eq!((world.nodes("b").len(), world.placement("a")), (3, None));
    // No pod of `b` is bound when a node is lost. Its placement is cleared, and `a` gets the other
    // node.
    world.store().watches.hold(WatchedKind::PodGroup, true);
    world.node("n1", 1, false);
    world.later(61);
    world.schedule();
    assert_eq!((world.placement("b"), world.nodes("a").len()), (None, 1));
    // The controller has not seen this, and creates the pods of the old placement.
    world.control();
    world.bind();
    world.store().watches.hold(WatchedKind::PodGroup, false);
    assert_eq!(world.running("b"), 2);
    world.schedule();
    assert_eq!(world.nodes("b"), ["n2", "n2"]);
    assert_eq!(world.placement("a"), None);
}

#[test]
fn a_node_is_given_up_before_another_gang_gets_it() {
    for writes in 1..3 {
        let mut world = Gangs::new(&[("n1", 1), ("n2", 2)]);
        let three = Spec {
            members: 3,
            ..SMALL
        };
        let one = Spec {
            priority: 5,
            members: 1,
            ..SMALL
        };
        world.gang("z", three);
        world.gang("a", one);
        world.pass();
        assert_eq!((world.nodes("z").len(), world.placement("a")), (3, None));
        world.node("n1", 1, false);
        world.later(61);
        world.crash_after(writes);
        world.schedule();
        let promised = world.nodes("z").len() + world.nodes("a").len();
        assert_eq!(promised, writes - 1, "after {writes} writes");
    }
}

const ONE: Spec = Spec {
    members: 1,
    ..SMALL
};

/// Members assigned to each node.
fn promised(world: &Gangs, gangs: &[&str]) -> BTreeMap<String, usize> {
    let mut on = BTreeMap::new();
    for node in gangs.iter().flat_map(|gang| world.nodes(gang)) {
        *on.entry(node).or_default() += 1;
    }
    on
}

#[test]
fn gangs_that_exchange_their_nodes_never_hold_one_together() {
    for writes in 0..4 {
        let mut world = Gangs::new(&[("n1", 1), ("n2", 1)]);
        for gang in ["a", "b"] {
            world.gang(gang, ONE);
        }
        world.pass();
        let before = ["a", "b"].map(|gang| world.nodes(gang).remove(0));
        assert_ne!(before[0], before[1]);
        for (gang, node) in ["a", "b"].iter().zip(&before) {
            avoiding(&mut world, gang, node);
        }
        world.crash_after(writes);
        for _ in 0..3 {
            world.schedule();
            let promised = promised(&world, &["a", "b"]);
            assert!(
                promised.values().all(|members| *members == 1),
                "after {writes} writes: {promised:?}"
            );
        }
        let after = ["a", "b"].map(|gang| world.nodes(gang).remove(0));
        assert_eq!((&after[0], &after[1]), (&before[1], &before[0]));
    }
}

#[test]
fn a_circle_is_broken_where_nothing_runs_yet() {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1), ("n3", 1)]);
    let two = Spec {
        members: 2,
        priority: 5,
        ..SMALL
    };
    world.gang("runs", two);
    world.settle();
    world.gang("new", ONE);
    world.pass();
    let (member, from) = world.assigned("runs").pop_first().expect("it is placed");
    let to = world.nodes("new").remove(0);
    let uid = uid_of(&world, "runs", &member);
    replacing(&mut world, "runs", &[&member.to_string()], &[&uid]);
    for pod in world.pods_of("runs") {
        if member_of(&pod).as_ref() == Some(&member) {
            world.remove(WatchedKind::Pod, &Key::of(&pod));
        }
    }
    avoiding(&mut world, "runs", &from);
    avoiding(&mut world, "new", &to);
    world.schedule();
    assert_eq!(world.assigned("runs")[&member], to);
    assert_eq!(world.placement("new"), None, "it goes first, and alone");
    let message = world.condition("new").message;
    assert!(message.contains("1 other gang"), "{message}");
    world.schedule();
    assert_eq!(world.nodes("new"), [from]);
}
