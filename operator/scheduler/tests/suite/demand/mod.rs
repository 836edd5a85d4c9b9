//! Nodes on demand: which gangs request nodes, and which nodes are kept for them.

mod requests;
mod tries;

use std::time::Duration;

use chrono::TimeDelta;
use lockstep_api::condition::reasons;
use lockstep_api::scheduling::{AutoscalerMode, NodeDemand};
use lockstep_sim::{Gangs, Spec};
use serde_json::{Value, json};

use crate::{HIGH, LOW, run};

/// A cluster with signal pods for an autoscaler.
fn world(nodes: &[(&str, i64)]) -> Gangs {
    let mut world = Gangs::new(nodes);
    world.scheduler_settings().autoscaler = AutoscalerMode::Pods;
    world
}

/// Queues a gang after all existing ones.
fn later(world: &mut Gangs, name: &str, spec: Spec, more: &Value) {
    world.wait(1);
    world.gang_with(name, spec, more);
    world.settle();
}

fn demand(world: &Gangs, name: &str) -> Option<NodeDemand> {
    world.status(name).demand
}

/// A gang whose members take whole nodes of four accelerators.
fn whole_nodes(members: i32) -> Spec {
    Spec {
        priority: 50,
        members,
        gpus: 4,
    }
}

const SMALL: Spec = Spec {
    priority: 50,
    members: 1,
    gpus: 1,
};

fn reserved(world: &Gangs, name: &str) -> Vec<String> {
    let reservation = world.status(name).reservation;
    let nodes = reservation.into_iter().flat_map(|r| r.nodes);
    nodes.map(|n| n.node).collect()
}

/// Nodes full of work that may end, at a time that is not known.
fn busy(names: &[&str]) -> Gangs {
    let nodes: Vec<(&str, i64)> = names.iter().map(|name| (*name, 4)).collect();
    let mut world = world(&nodes);
    for name in names {
        let ends = json!({"spec": {"restartPolicy": "Never"}});
        world.foreign_with(&format!("on-{name}"), name, 1000, 4, &ends);
    }
    world
}

#[test]
fn a_gang_without_any_node_requests_nodes_until_it_is_placed() {
    let mut world = world(&[]);
    later(&mut world, "gang", LOW, &json!({}));
    let requested = demand(&world, "gang").unwrap();
    assert_eq!(
        (requested.number, requested.failed_at, requested.since),
        (1, None, requested.requested_at)
    );
    let condition = world.condition("gang");
    assert_eq!(condition.reason, reasons::EXCEEDS_LARGEST_NODE);
    let part = "; nodes are requested since ";
    assert!(condition.message.contains(part), "{}", condition.message);
    world.node("n1", 2, true);
    run(&mut world, 1);
    world.settle();
    assert_eq!((world.running("gang"), demand(&world, "gang")), (2, None));
}

/// A signal pod beside a bound member would buy another node.
#[test]
fn a_placed_gang_requests_no_nodes_although_its_members_are_unbound() {
    let mut world = world(&[]);
    later(&mut world, "gang", LOW, &json!({}));
    assert!(demand(&world, "gang").is_some());
    world.node("n1", 2, true);
    while world.placement("gang").is_none() {
        world.decide();
    }
    assert_eq!((world.running("gang"), demand(&world, "gang")), (0, None));
}

/// They were too many for a misfit and too few for a reservation.
#[test]
fn a_demand_stays_the_same_while_new_nodes_are_not_ready() {
    let mut world = world(&[]);
    later(&mut world, "gang", LOW, &json!({}));
    let first = demand(&world, "gang");
    for name in ["n1", "n2"] {
        world.node(name, 2, false);
        run(&mut world, 2);
        assert_eq!(
            demand(&world, "gang").map(|d| d.since),
            first.as_ref().map(|d| d.since)
        );
    }
}

#[test]
fn a_gang_that_fits_requests_no_nodes() {
    let mut world = world(&[("n1", 2)]);
    later(&mut world, "gang", LOW, &json!({}));
    assert_eq!((world.running("gang"), demand(&world, "gang")), (2, None));
}

#[test]
fn a_gang_with_a_reservation_requests_nodes() {
    let mut world = busy(&["n1"]);
    later(&mut world, "gang", whole_nodes(1), &json!({}));
    assert_eq!(reserved(&world, "gang"), ["n1"]);
    assert_eq!(demand(&world, "gang").unwrap().number, 1);
}

#[test]
fn a_demand_stays_until_a_new_leader_knows_the_dry_run_of_the_pods() {
    let mut world = busy(&["n1"]);
    later(&mut world, "gang", whole_nodes(1), &json!({}));
    let before = demand(&world, "gang");
    assert!(before.is_some());
    world.crash();
    world.schedule();
    let message = world.condition("gang").message;
    assert!(message.contains("no dry run yet"), "{message}");
    assert_eq!(demand(&world, "gang"), before);
    world.settle();
    assert_eq!(demand(&world, "gang"), before);
}

#[test]
fn a_gang_without_a_reservation_requests_no_nodes_unless_it_is_a_misfit() {
    let mut world = busy(&["n1"]);
    world.scheduler_settings().rules.reservations_per_priority = 0;
    later(&mut world, "waits", whole_nodes(1), &json!({}));
    later(&mut world, "misfit", whole_nodes(2), &json!({}));
    assert_eq!(demand(&world, "waits"), None);
    assert!(demand(&world, "misfit").is_some());
}

#[test]
fn a_gang_that_preempts_requests_no_nodes() {
    let mut world = world(&[("n1", 2)]);
    later(&mut world, "low", LOW, &json!({}));
    later(&mut world, "high", HIGH, &json!({}));
    assert_eq!(demand(&world, "high"), None);
    assert!(demand(&world, "low").is_some(), "the victim lacks nodes");
}

#[test]
fn a_gang_that_waits_for_a_claim_or_is_suspended_requests_no_nodes() {
    let mut world = world(&[]);
    world.gang_with_claim("claim", LOW);
    world.settle();
    later(&mut world, "gang", LOW, &json!({}));
    assert_eq!(demand(&world, "claim"), None);
    assert!(demand(&world, "gang").is_some());
    world.edit("gang", |w| w.spec.suspend = true);
    world.settle();
    assert_eq!(demand(&world, "gang"), None);
}

#[test]
fn a_gang_of_kube_scheduler_requests_no_nodes() {
    let mut world = world(&[]);
    world.scheduler_settings().backend = lockstep_api::workload::Backend::Kubernetes;
    later(&mut world, "gang", LOW, &json!({}));
    assert_eq!(demand(&world, "gang"), None);
}

#[test]
fn without_an_autoscaler_no_gang_requests_nodes_and_old_demands_go() {
    let mut world = world(&[]);
    later(&mut world, "gang", LOW, &json!({}));
    assert!(demand(&world, "gang").is_some());
    world.scheduler_settings().autoscaler = AutoscalerMode::Off;
    world.wait(60);
    world.decide();
    let text = world.condition("gang").message;
    assert_eq!(demand(&world, "gang"), None);
    assert!(!text.contains("requested since"), "{text}");
}

#[test]
fn new_nodes_are_preferred_to_preemption_for_the_configured_time() {
    let mut world = world(&[("n1", 2)]);
    world.scheduler_settings().scale_up_before_preemption = Duration::from_mins(5);
    later(&mut world, "low", LOW, &json!({}));
    later(&mut world, "high", HIGH, &json!({}));
    assert_eq!(world.intent("high"), None);
    let first = demand(&world, "high").unwrap();
    run(&mut world, 295);
    assert_eq!((world.intent("high"), world.running("low")), (None, 2));
    assert_eq!(demand(&world, "high").unwrap().since, first.since);
    run(&mut world, 10);
    assert_eq!((world.running("low"), world.preemptions("high")), (0, 1));
    assert_eq!(demand(&world, "high"), None);
}

#[test]
fn equal_gangs_prefer_new_nodes_each_for_their_own_time() {
    let mut world = world(&[("n1", 2), ("n2", 2)]);
    world.scheduler_settings().scale_up_before_preemption = Duration::from_mins(5);
    for name in ["low", "other"] {
        later(&mut world, name, LOW, &json!({}));
    }
    later(&mut world, "first", HIGH, &json!({}));
    run(&mut world, 120);
    later(&mut world, "second", HIGH, &json!({}));
    run(&mut world, 190);
    let preempted = ["first", "second"].map(|name| world.preemptions(name));
    assert_eq!(preempted, [1, 0]);
    run(&mut world, 130);
    assert_eq!(world.preemptions("second"), 1);
}

#[test]
fn nodes_that_come_one_by_one_are_kept_for_the_gang_that_demands_them() {
    let mut world = world(&[("old", 1)]);
    later(&mut world, "large", whole_nodes(3), &json!({}));
    later(&mut world, "small", Spec { gpus: 4, ..SMALL }, &json!({}));
    run(&mut world, 5);
    for (name, kept) in [("n1", vec!["n1"]), ("n2", vec!["n1", "n2"])] {
        world.node(name, 4, true);
        run(&mut world, 5);
        assert_eq!(reserved(&world, "large"), kept);
        assert_eq!(world.running("small"), 0);
    }
    world.crash();
    run(&mut world, 5);
    assert_eq!(reserved(&world, "large"), ["n1", "n2"], "a new leader");
    world.node("n3", 4, true);
    run(&mut world, 5);
    assert_eq!((world.running("large"), world.running("small")), (3, 0));
    world.node("n4", 4, true);
    run(&mut world, 5);
    assert_eq!(world.running("small"), 1);
}

#[test]
fn nodes_from_before_the_demand_are_not_kept_for_a_misfit() {
    let mut world = world(&[("old", 4)]);
    run(&mut world, 5);
    later(&mut world, "large", whole_nodes(2), &json!({}));
    run(&mut world, 5);
    later(&mut world, "small", SMALL, &json!({}));
    assert!(demand(&world, "large").is_some());
    assert_eq!(
        (world.running("small"), reserved(&world, "large").len()),
        (1, 0)
    );
}

#[test]
fn a_new_node_replaces_a_busy_one_in_the_reservation() {
    let mut world = busy(&["n1", "n2"]);
    later(&mut world, "large", whole_nodes(2), &json!({}));
    assert_eq!(reserved(&world, "large"), ["n1", "n2"]);
    run(&mut world, 5);
    world.node("new", 4, true);
    run(&mut world, 5);
    later(&mut world, "small", SMALL, &json!({}));
    let nodes = reserved(&world, "large");
    assert!(nodes.contains(&"new".to_owned()), "{nodes:?}");
    assert_eq!(world.running("small"), 0);
}

#[test]
fn a_gang_of_higher_priority_takes_new_nodes_first() {
    let mut world = world(&[]);
    later(&mut world, "large", whole_nodes(2), &json!({}));
    run(&mut world, 5);
    world.node("n1", 4, true);
    run(&mut world, 5);
    assert_eq!(reserved(&world, "large"), ["n1"]);
    later(&mut world, "high", HIGH, &json!({}));
    run(&mut world, 5);
    assert_eq!(world.running("high"), 2);
}

#[test]
fn the_time_of_a_demand_does_not_change_while_it_is_open() {
    let mut world = world(&[]);
    later(&mut world, "gang", LOW, &json!({}));
    let first = demand(&world, "gang");
    world.later(3600);
    world.crash();
    run(&mut world, 5);
    assert_eq!(demand(&world, "gang"), first);
    assert!(world.now() - first.unwrap().since > TimeDelta::hours(1));
}

#[test]
fn equal_gangs_get_new_nodes_in_the_order_of_the_queue() {
    let mut world = world(&[]);
    for name in ["first", "second"] {
        later(&mut world, name, whole_nodes(2), &json!({}));
    }
    run(&mut world, 5);
    for (node, running) in [("n1", [0, 0]), ("n2", [2, 0]), ("n3", [2, 0])] {
        world.node(node, 4, true);
        run(&mut world, 5);
        assert_eq!(["first", "second"].map(|gang| world.running(gang)), running);
        assert!(demand(&world, "second").is_some());
    }
    assert!(reserved(&world, "second").contains(&"n3".to_owned()));
    world.node("n4", 4, true);
    run(&mut world, 5);
    assert_eq!(world.running("second"), 2);
}

#[test]
fn a_gang_with_a_demand_is_not_evaluated_again_without_an_event() {
    let mut world = busy(&["n1"]);
    later(&mut world, "waits", whole_nodes(1), &json!({}));
    later(&mut world, "misfit", whole_nodes(2), &json!({}));
    run(&mut world, 5);
    world.pass();
    let cycle = world.pass();
    assert_eq!((cycle.judged, cycle.searches, cycle.requests), (0, 0, 0));
}
