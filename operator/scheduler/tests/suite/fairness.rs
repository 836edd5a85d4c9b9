//! Queue order among gangs of one priority: the namespace with the smallest share is first.

use lockstep_api::names::annotations;
use lockstep_sim::{Gangs, Spec, WatchedKind};
use serde_json::json;

const ONE: Spec = Spec {
    priority: 10,
    members: 1,
    gpus: 1,
};

/// A gang in a namespace, queued after the existing ones.
fn queue(world: &mut Gangs, namespace: &str, name: &str) {
    world.gang_in(namespace, name, ONE, &json!({}));
    world.pass();
    world.later(1);
}

/// A gang of `ml` holds one accelerator, and a temporary foreign pod another. Three gangs wait, two
/// of `ml` first.
fn waiting() -> Gangs {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1)]);
    world.scheduler_settings().rules.reservations_per_priority = 0;
    world.foreign("passing", "n2", 1000, 1);
    queue(&mut world, "ml", "runs");
    for name in ["first", "second"] {
        queue(&mut world, "ml", name);
    }
    queue(&mut world, "other", "third");
    world
}

fn end_passing(world: &mut Gangs) {
    world.remove(WatchedKind::Pod, &lockstep_sim::Key::new("ml", "passing"));
    world.settle();
}

#[test]
fn the_gang_of_the_namespace_that_has_least_is_served_first() {
    let mut world = waiting();
    end_passing(&mut world);
    let placed = ["first", "second", "third"].map(|name| world.placement(name).is_some());
    assert_eq!(placed, [false, false, true]);
}

#[test]
fn a_namespace_of_more_weight_may_have_more() {
    let mut world = waiting();
    queue(&mut world, "other", "fourth");
    world.node("n3", 1, true);
    end_passing(&mut world);
    let placed = |world: &Gangs| {
        ["first", "second", "third", "fourth"].map(|name| world.placement(name).is_some())
    };
    assert_eq!(
        placed(&world),
        [true, false, true, false],
        "one each, and the older one"
    );
    let notes = json!({annotations::FAIR_SHARE_WEIGHT: "3"});
    let namespace = json!({"metadata": {"name": "other", "annotations": notes}});
    let kind = WatchedKind::Namespace;
    let made = world.store().create("admin", kind, namespace, false);
    made.unwrap_or_else(|no| panic!("{}", no.message));
    world.node("n4", 1, true);
    world.settle();
    assert_eq!(placed(&world), [true, false, true, true]);
}

#[test]
fn shares_rise_with_every_gang_that_is_placed_so_that_namespaces_take_turns() {
    let mut world = Gangs::new(&[]);
    world.scheduler_settings().rules.reservations_per_priority = 0;
    for name in ["a1", "a2", "a3", "a4"] {
        queue(&mut world, "ml", name);
    }
    for name in ["b1", "b2"] {
        queue(&mut world, "other", name);
    }
    world.node("n1", 4, true);
    world.pass();
    let placed = ["a1", "a2", "a3", "a4", "b1", "b2"].map(|name| world.placement(name).is_some());
    assert_eq!(placed, [true, true, false, false, true, true]);
}

#[test]
fn a_gang_with_reserved_nodes_keeps_its_place_at_any_share_of_its_namespace() {
    let mut world = Gangs::new(&[("n1", 2)]);
    queue(&mut world, "ml", "runs");
    let ends = json!({"spec": {"restartPolicy": "Never"}});
    world.foreign_with("passing", "n1", 1000, 1, &ends);
    world.gang_in("ml", "large", Spec { gpus: 2, ..ONE }, &json!({}));
    world.pass();
    assert!(world.status("large").reservation.is_some());
    world.later(1);
    queue(&mut world, "other", "small");
    end_passing(&mut world);
    assert_eq!(
        world.placement("small"),
        None,
        "its namespace has nothing, and it came later"
    );
    assert!(world.status("large").reservation.is_some());
}
