//! Moves whose premises change, or which would end on nodes that are as bad.

use chrono::TimeDelta;
use lockstep_api::Outlook;
use lockstep_api::condition::reasons;
use lockstep_api::workload::CauseKind::{NodeFaulty, NodeLeaving};

use super::{faulty, moving, one, running};

#[test]
fn a_gang_moves_to_no_node_that_it_would_have_to_leave_as_early() {
    let leaving = |hours| Outlook::Leaving {
        deadline: Some(moving().now + TimeDelta::hours(hours)),
    };
    let others = ["n3", "n4", "n5", "n6"];
    let mut world = moving();
    for node in others {
        world.outlook(node, Outlook::Leaving { deadline: None });
    }
    world.cycle();
    assert_eq!(
        (world.to("x"), world.reason("x").as_str()),
        (None, reasons::UNSCHEDULABLE)
    );
    world.outlook("n5", leaving(20));
    world.cycle();
    assert_eq!(world.to("x"), Some(one(0, "n5")));
    // The nodes to leave have a deadline after that.
    world.deadline("x", TimeDelta::hours(21));
    world.cycle();
    assert_eq!(world.to("x"), None);
    world.outlook("n5", leaving(22));
    world.cycle();
    assert_eq!(world.to("x"), Some(one(0, "n5")));
}

#[test]
fn a_lost_member_gets_the_node_that_was_reserved_for_a_move_of_its_gang() {
    let mut world = running();
    for node in ["n4", "n5", "n6"] {
        world.foreign(&format!("pod-{node}"), node);
    }
    world.moves("x", NodeLeaving, &["n1"]);
    world.cycle();
    assert_eq!(world.to("x"), Some(one(0, "n3")));
    world.loses("x", 1, "n2");
    world.cycle();
    assert_eq!(world.nodes("x"), ["n1", "n3"]);
    assert_eq!(world.to("x"), None);
}

#[test]
fn too_many_faults_stop_no_move_that_leaves_another_node_too() {
    let mut world = faulty(10, 5);
    world.outlook("n10", Outlook::Leaving { deadline: None });
    world.outlook("n16", Outlook::Faulty);
    world.gang("x", 10, 2, &["n10", "n11"]);
    world.moves("x", NodeFaulty, &["n10", "n11"]);
    world.cycle();
    assert!(world.to("x").is_some(), "{:?}", world.target("x"));
}

#[test]
fn a_restart_for_another_reason_moves_members_only_to_free_nodes_without_signals() {
    let mut world = super::World::new(&[("n1", "a"), ("n2", "a"), ("n3", "a"), ("n4", "a")]);
    world.gang("x", 10, 2, &["n1", "n2"]);
    world.gang("y", 1, 1, &["n4"]);
    world.outlook("n3", Outlook::Suspect);
    world.moves("x", NodeLeaving, &["n1"]);
    world.within_restart("x");
    world.settings.concurrent_moves = 0;
    world.cycle();
    let target = world.target("x").unwrap();
    assert!(!target.preempts && target.nodes.is_empty(), "{target:?}");
    world.outlook("n3", Outlook::Healthy);
    world.cycle();
    assert_eq!(world.to("x"), Some(vec![(0, "n3".to_owned())]));
}
