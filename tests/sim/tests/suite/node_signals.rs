//! Placement by signals of nodes.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::Node;
use lockstep_api::NodeHealthMode;
use lockstep_sim::{Gangs, Key};

use crate::{HIGH, LOW};

const STATE: &str = "dgxc.nvidia.com/nvsentinel-state";
const MAINTENANCE: &str = "cloud.google.com/scheduled-maintenance-time";

/// Three nodes of two accelerators.
fn world(mode: NodeHealthMode) -> Gangs {
    let mut world = Gangs::new(&[("n0", 2), ("n1", 2), ("n2", 2)]);
    world.set_node_health(mode);
    world
}

/// Labels a node, and waits longer than a hold time.
pub fn label(world: &mut Gangs, node: &str, label: (&str, &str)) {
    world.cluster.edit::<Node>(&Key::new("", node), |node| {
        let labels = node.metadata.labels.get_or_insert_default();
        labels.insert(label.0.to_owned(), label.1.to_owned());
    });
    world.settle();
    world.wait(31);
}

fn nodes(world: &Gangs, gang: &str) -> BTreeSet<String> {
    let placed = lockstep_sim::gangs::assigned(&world.status(gang));
    placed.into_values().collect()
}

#[test]
fn a_faulty_node_loses_its_gang_and_gets_none() {
    let mut world = world(NodeHealthMode::Act);
    world.gang("first", LOW);
    world.settle();
    let faulty = nodes(&world, "first");
    assert_eq!(faulty.len(), 1);
    for name in &faulty {
        label(&mut world, name, (STATE, "quarantined"));
    }
    world.wait(120);
    for name in ["second", "third"] {
        world.gang(name, LOW);
    }
    world.settle();
    let placed = |world: &Gangs| ["first", "second", "third"].map(|name| nodes(world, name));
    let before = placed(&world);
    assert_eq!(before.each_ref().map(BTreeSet::len), [1, 1, 0]);
    assert!(before.iter().all(|nodes| nodes.is_disjoint(&faulty)));
    // The process that takes over decides in the same way.
    world.crash();
    world.wait(120);
    assert_eq!(placed(&world), before);
}

#[test]
fn nodes_that_leave_are_the_last_choice_and_the_earliest_deadline_is_last() {
    let mut world = world(NodeHealthMode::Act);
    let now = world.now();
    for (node, hours) in [("n0", 2), ("n1", 5)] {
        let at = (now + TimeDelta::hours(hours)).timestamp().to_string();
        label(&mut world, node, (MAINTENANCE, &at));
    }
    for (gang, node) in [("first", "n2"), ("second", "n1"), ("third", "n0")] {
        world.gang(gang, LOW);
        world.settle();
        assert_eq!(nodes(&world, gang), [node.to_owned()].into());
    }
}

#[test]
fn a_gang_gets_a_suspect_node_rather_than_victims() {
    let mut world = world(NodeHealthMode::Act);
    let all = BTreeSet::from(["n0", "n1", "n2"].map(str::to_owned));
    for gang in ["first", "second"] {
        world.gang(gang, LOW);
        world.settle();
    }
    let used = &nodes(&world, "first") | &nodes(&world, "second");
    let free = &all - &used;
    for node in &free {
        let failed = ("sagemaker.amazonaws.com/deep-health-check-status", "Failed");
        label(&mut world, node, failed);
    }
    world.gang("high", HIGH);
    world.settle();
    assert_eq!((used.len(), nodes(&world, "high")), (2, free));
}

#[test]
fn signals_change_no_placement_while_they_are_observed() {
    let mut world = world(NodeHealthMode::Observe);
    for node in ["n0", "n1", "n2"] {
        label(&mut world, node, (STATE, "quarantined"));
    }
    world.gang("first", LOW);
    world.settle();
    assert_eq!(nodes(&world, "first").len(), 1);
    world.gang("second", LOW);
    world.set_node_health(NodeHealthMode::Act);
    world.settle();
    assert_eq!(nodes(&world, "second"), BTreeSet::new());
    world.set_node_health(NodeHealthMode::Off);
    world.settle();
    assert_eq!(nodes(&world, "second").len(), 1);
}
