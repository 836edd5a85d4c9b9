//! Nodes that cannot take pods for a while: NotReady, cordoned, tainted, or without devices. A
//! placement, an intent or a reservation on such a node stays until the node is lost.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use lockstep_sim::{Gangs, Key, Spec};
use serde_json::json;

use crate::{HIGH, LOW, run};

/// Default of `nodeLostSeconds`, and one second for the next cycle.
const LOST: i64 = 61;

type Change = fn(&mut Gangs, &str, bool);

/// Ways in which a node cannot take pods for a while.
const CAUSES: [(&str, Change); 4] = [
    ("NotReady", |world, node, usable| {
        world.node(node, 1, usable);
    }),
    ("cordon", |world, node, usable| {
        world.cluster.edit::<Node>(&Key::new("", node), |n| {
            n.spec.get_or_insert_default().unschedulable = (!usable).then_some(true);
        });
    }),
    ("taint", |world, node, usable| {
        let taint = json!({"key": "node.cilium.io/agent-not-ready", "effect": "NoSchedule"});
        let taint = (!usable).then(|| vec![serde_json::from_value(taint).unwrap()]);
        world.cluster.edit::<Node>(&Key::new("", node), |n| {
            n.spec.get_or_insert_default().taints = taint;
        });
    }),
    ("no devices", |world, node, usable| {
        world.node(node, i64::from(usable), true);
    }),
];

const GANGS: [&str; 4] = ["a", "b", "c", "d"];

/// Nodes with one accelerator each, and four gangs of low priority on eight of them.
fn busy(nodes: usize) -> Gangs {
    let names: Vec<String> = (1..=nodes).map(|n| format!("n{n}")).collect();
    let nodes: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let mut world = Gangs::new(&nodes);
    for name in GANGS {
        world.gang(name, LOW);
    }
    world.settle();
    world
}

fn full() -> Gangs {
    busy(8)
}

fn evicted(world: &Gangs) -> Vec<&'static str> {
    let names = GANGS.into_iter();
    names.filter(|name| world.running(name) == 0).collect()
}

#[test]
fn a_node_that_is_unusable_for_seconds_does_not_change_a_preemption_in_progress() {
    for (cause, change) in CAUSES {
        let mut world = full();
        world.gang("high", HIGH);
        world.pass();
        let intent = world.intent("high").expect("it preempts");
        let placement = world.placement("high");
        world.control();
        world.schedule();
        let node = world.nodes("high").remove(0);
        change(&mut world, &node, false);
        for _ in 0..20 {
            world.control();
            world.schedule();
            world.bind();
            world.later(1);
            let now = world.intent("high").expect("it goes on");
            assert_eq!(now.id, intent.id, "{cause}");
        }
        change(&mut world, &node, true);
        run(&mut world, 60);
        assert_eq!(world.running("high"), 2, "{cause}");
        assert_eq!(world.placement("high"), placement, "{cause}");
        assert_eq!(
            (world.preemptions("high"), evicted(&world).len()),
            (1, 1),
            "{cause}"
        );
    }
}

#[test]
fn a_node_that_is_unusable_for_seconds_does_not_change_a_placement() {
    for (cause, change) in CAUSES {
        let mut world = Gangs::new(&[("n1", 1), ("n2", 1), ("n3", 1)]);
        world.gang("a", LOW);
        world.decide();
        let (placement, node) = (world.placement("a"), world.nodes("a").remove(0));
        change(&mut world, &node, false);
        run(&mut world, 40);
        assert_eq!(world.placement("a"), placement, "{cause}");
        change(&mut world, &node, true);
        run(&mut world, 10);
        assert_eq!(world.placement("a"), placement, "{cause}");
        assert_eq!(world.running("a"), 2, "{cause}");
    }
}

#[test]
fn a_node_that_stays_unusable_loses_its_placement_once() {
    for (cause, change) in CAUSES {
        let mut world = Gangs::new(&[("n1", 1), ("n2", 1), ("n3", 1)]);
        world.gang("a", LOW);
        world.decide();
        let node = world.nodes("a").remove(0);
        change(&mut world, &node, false);
        let mut placements = Vec::from_iter(world.placement("a").map(|p| p.id));
        for _ in 0..LOST + 30 {
            run(&mut world, 1);
            placements.extend(world.placement("a").map(|p| p.id));
        }
        placements.dedup();
        assert_eq!((placements.len(), world.running("a")), (2, 2), "{cause}");
        assert!(!world.nodes("a").contains(&node), "{cause}");
    }
}

#[test]
fn a_lost_node_of_a_preemption_in_progress_costs_one_more_victim() {
    let mut world = full();
    world.gang("high", HIGH);
    world.pass();
    let first = world.intent("high").expect("it preempts");
    run(&mut world, 1);
    let node = world.nodes("high").remove(0);
    world.node(&node, 1, false);
    run(&mut world, LOST + 60);
    assert_eq!(world.running("high"), 2);
    assert!(!world.nodes("high").contains(&node));
    assert_eq!(world.preemptions("high"), 2, "after {}", first.id);
}

#[test]
fn no_victim_is_evicted_while_a_node_of_the_preemptor_is_silent() {
    let mut world = full();
    world.gang("high", HIGH);
    world.pass();
    let (intent, node) = (world.intent("high"), world.nodes("high").remove(0));
    world.node(&node, 1, false);
    run(&mut world, 30);
    assert_eq!(world.intent("high").map(|i| i.id), intent.map(|i| i.id));
    assert!(GANGS.iter().all(|name| !world.disrupted(name)));
    world.node(&node, 1, true);
    run(&mut world, 30);
    assert_eq!((world.running("high"), world.preemptions("high")), (2, 1));
}

#[test]
fn no_placement_is_given_up_during_an_outage() {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1), ("n3", 1), ("n4", 1), ("n5", 1)]);
    world.gang("a", LOW);
    world.decide();
    let placement = world.placement("a");
    for node in ["n1", "n2", "n3"] {
        world.node(node, 1, false);
    }
    run(&mut world, 200);
    assert_eq!(world.placement("a"), placement);
    for node in ["n1", "n2", "n3"] {
        world.node(node, 1, true);
    }
    run(&mut world, 20);
    assert_eq!((world.placement("a"), world.running("a")), (placement, 2));
}

#[test]
fn a_reservation_stays_on_a_node_until_it_is_lost() {
    for (cause, change) in CAUSES {
        let mut world = Gangs::new(&[("n1", 1), ("n2", 1), ("n3", 1)]);
        let ends = json!({"activeDeadlineSeconds": 3600});
        for name in ["a", "b", "c"] {
            world.gang_with(name, Spec { members: 1, ..LOW }, &ends);
        }
        world.settle();
        world.gang("later", LOW);
        world.settle();
        let reserved = |world: &Gangs| {
            let reservation = world.status("later").reservation;
            let nodes = reservation.into_iter().flat_map(|r| r.nodes);
            nodes.map(|n| n.node).collect::<Vec<_>>()
        };
        let before = reserved(&world);
        assert_eq!(before.len(), 2);
        change(&mut world, &before[0], false);
        for _ in 0..20 {
            world.schedule();
            world.later(1);
            assert_eq!(reserved(&world), before, "{cause}");
        }
        world.later(LOST);
        world.schedule();
        assert_ne!(reserved(&world), before, "{cause}");
    }
}

/// Seconds in which nodes flap, and seconds of a story.
const FLAPPING: (i64, i64) = (120, 240);

#[test]
fn flapping_nodes_change_neither_victims_nor_placements() {
    for seed in 0..30 {
        let mut world = busy(10);
        world.reseed(seed);
        // No victim of the other gang.
        let late = Spec {
            priority: 200,
            ..LOW
        };
        world.gang("late", late);
        world.pass();
        world.gang("high", Spec { members: 4, ..HIGH });
        world.pass();
        let first = world.intent("high").expect("it preempts").id;
        let placed = ["late", "high"].map(|name| world.placement(name).map(|p| p.id));
        let mut returns: BTreeMap<String, i64> = BTreeMap::new();
        let mut victims = BTreeSet::new();
        for second in 0..FLAPPING.1 {
            for node in world.node_names() {
                if returns.get(&node).is_some_and(|at| *at <= second) {
                    world.node(&node, 1, true);
                    returns.remove(&node);
                } else if second < FLAPPING.0 && returns.len() < 3 && world.pick(40) == 0 {
                    world.node(&node, 1, false);
                    let lasts = 5 + world.pick(36) as i64;
                    returns.entry(node).or_insert(second + lasts);
                }
            }
            run(&mut world, 1);
            let intent = world.intent("high").map(|intent| intent.id);
            assert!(
                intent.is_none_or(|id| id == first),
                "seed {seed}, second {second}"
            );
            victims.extend(GANGS.into_iter().filter(|name| world.disrupted(name)));
        }
        assert_eq!(
            (victims.len(), world.preemptions("high")),
            (2, 1),
            "seed {seed}"
        );
        let now = ["late", "high"].map(|name| world.placement(name).map(|p| p.id));
        assert_eq!(now, placed, "seed {seed}");
        let running = ["late", "high"].map(|name| world.running(name));
        assert_eq!(running, [2, 4], "seed {seed}");
    }
}
