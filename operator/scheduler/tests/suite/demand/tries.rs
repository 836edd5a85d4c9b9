//! Tries whose nodes do not suffice, with signal pods.

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::Node;
use lockstep_api::condition::reasons;
use lockstep_sim::{Gangs, Key};
use serde_json::{Value, json};

use super::{demand, later, whole_nodes, world};
use crate::run;

const RACK: &str = "example.com/rack";

fn in_a_rack() -> Value {
    json!({"scheduling": {"topology": {"key": RACK, "mode": "Required"}}})
}

/// A gang of two nodes that must share a rack. Nodes have come in two racks.
fn apart() -> Gangs {
    let mut world = world(&[]);
    later(&mut world, "gang", whole_nodes(2), &in_a_rack());
    run(&mut world, 5);
    for (node, rack) in [("n1", "a"), ("n2", "b")] {
        world.zone(node, 4, &json!({RACK: rack}));
    }
    run(&mut world, 2);
    world
}

fn number(world: &Gangs) -> i32 {
    demand(world, "gang").unwrap().number
}

fn is_open(world: &Gangs) -> bool {
    demand(world, "gang").unwrap().is_open()
}

#[test]
fn a_try_has_failed_when_its_nodes_do_not_suffice_for_a_minute() {
    let mut world = apart();
    run(&mut world, 55);
    assert!(is_open(&world));
    run(&mut world, 10);
    assert!(!is_open(&world));
    let text = world.condition("gang").message;
    let part = "; the nodes of try 1 did not suffice: nodes have come, but they do not meet the required levels \
        of scheduling.topology; next try at ";
    assert!(text.contains(part), "{text}");
}

#[test]
fn the_minute_counts_again_after_a_break() {
    let mut world = apart();
    run(&mut world, 55);
    world.node("n2", 4, false);
    run(&mut world, 30);
    world.node("n2", 4, true);
    run(&mut world, 30);
    assert!(is_open(&world));
}

#[test]
fn a_try_without_nodes_does_not_fail() {
    let mut world = world(&[]);
    later(&mut world, "gang", whole_nodes(2), &in_a_rack());
    run(&mut world, 600);
    assert!(is_open(&world));
}

#[test]
fn the_next_tries_follow_after_10_and_20_minutes_and_then_none() {
    let mut world = apart();
    run(&mut world, 70);
    for (wait, next) in [(10, 2), (20, 3)] {
        let failed_at = demand(&world, "gang").unwrap().failed_at.unwrap();
        let until = failed_at + TimeDelta::minutes(wait);
        let left = (until - world.now()).num_seconds();
        world.later(left - 5);
        run(&mut world, 1);
        assert_eq!((number(&world), is_open(&world)), (next - 1, false));
        run(&mut world, 10);
        assert_eq!((number(&world), is_open(&world)), (next, true));
        assert_ne!(world.condition("gang").reason, reasons::NODES_NOT_PROVIDED);
        run(&mut world, 70);
        assert!(!is_open(&world));
    }
    let condition = world.condition("gang");
    assert_eq!(condition.reason, reasons::NODES_NOT_PROVIDED);
    let part = "; no more nodes are requested before a spec change, after 3 tries: ";
    assert!(condition.message.contains(part), "{}", condition.message);
    let last = demand(&world, "gang");
    world.later(24 * 3600);
    run(&mut world, 5);
    assert_eq!(demand(&world, "gang"), last);
    world.edit("gang", |w| w.spec.active_deadline_seconds = Some(100_000));
    run(&mut world, 5);
    assert_eq!((number(&world), is_open(&world)), (1, true));
}

#[test]
fn a_gang_in_back_off_is_placed_when_it_fits() {
    let mut world = apart();
    run(&mut world, 70);
    world.cluster.edit::<Node>(&Key::new("", "n2"), |node| {
        let labels = node.metadata.labels.get_or_insert_default();
        labels.insert(RACK.into(), "a".into());
    });
    run(&mut world, 5);
    assert_eq!((world.running("gang"), demand(&world, "gang")), (2, None));
}
