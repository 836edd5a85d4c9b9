//! Moves of gangs away from nodes with signals, by the whole manager.

use lockstep_api::NodeHealthMode;
use lockstep_api::workload::MoveOutcome;
use lockstep_sim::{Gangs, Spec};
use serde_json::json;

use crate::node_signals::label;
use crate::{HIGH, LOW};

const STATE: &str = "dgxc.nvidia.com/nvsentinel-state";

fn world(nodes: &[(&str, i64)]) -> Gangs {
    let mut world = Gangs::new(nodes);
    world.set_node_health(NodeHealthMode::Act);
    world
}

#[test]
fn a_gang_restarts_for_no_node_that_leaves_too() {
    let mut world = world(&[("n0", 2), ("n1", 2), ("n2", 2), ("n3", 2)]);
    world.gang("gang", LOW);
    world.settle();
    let nodes = world.nodes("gang");
    for node in ["n0", "n1", "n2", "n3"] {
        label(&mut world, node, (STATE, "draining"));
    }
    world.wait(1800);
    assert_eq!(world.workload("gang").status.unwrap().history, []);
    assert_eq!(world.nodes("gang"), nodes);
    let version = |w: &Gangs| {
        (
            w.workload("gang").metadata.resource_version,
            w.group("gang").unwrap().metadata.resource_version,
        )
    };
    let before = version(&world);
    world.wait(600);
    assert_eq!(version(&world), before, "the wait costs no write");
}

#[test]
fn a_gang_of_one_member_that_moves_by_a_preemption_has_moved() {
    let mut world = world(&[("n0", 2), ("n1", 2)]);
    let one = |of: Spec| Spec {
        members: 1,
        gpus: 2,
        ..of
    };
    world.gang("high", one(HIGH));
    world.settle();
    world.gang("low", one(LOW));
    world.settle();
    let node = world.nodes("high").remove(0);
    label(&mut world, &node, (STATE, "quarantined"));
    world.wait(300);
    assert_ne!(world.nodes("high"), [node]);
    let moving = world.ledger("high").moving.unwrap();
    assert_eq!(moving.outcome, Some(MoveOutcome::Moved), "{moving:?}");
    assert_eq!(world.workload("high").status.unwrap().history.len(), 1);
}

#[test]
fn a_gang_of_one_member_leaves_a_faulty_node_once() {
    let mut world = world(&[("n0", 2), ("n1", 2), ("n2", 2)]);
    world.gang_with(
        "gang",
        Spec {
            members: 1,
            gpus: 2,
            ..LOW
        },
        &json!({}),
    );
    world.settle();
    let node = world.nodes("gang").remove(0);
    label(&mut world, &node, (STATE, "quarantined"));
    world.wait(120);
    let status = world.workload("gang").status.unwrap();
    assert_eq!(
        (status.history.len(), status.history[0].counted),
        (1, false)
    );
    assert_ne!(world.nodes("gang"), [node]);
}
