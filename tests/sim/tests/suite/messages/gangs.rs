//! Stories of several gangs.

use lockstep_sim::{Gangs, Spec};
use serde_json::{Value, json};

use crate::{HIGH, LOW, contested};

/// Title of a story, and its world at the end.
pub(super) type Story = (&'static str, fn() -> Gangs);

pub(super) const STORIES: &[Story] = &[
    ("preempts", preempts),
    ("may not preempt", may_not_preempt),
    ("is kept out by budgets", guarded),
    ("waits for a claim", waits_for_a_claim),
    ("is refused by kube-scheduler", refused),
    ("waits behind a reservation", waits_behind),
    ("evicts pods of others", evicts_others),
    ("asks for a class of nodes that is not there", no_such_nodes),
    ("waits until others have run for long enough", too_young),
    ("waits for the moves of others", waits_to_move),
    ("does not move for one of many faults", too_many_faults),
];

/// The workload of the gang has this move.
fn has_move(world: &mut Gangs, name: &str, nodes: &[&str], mut moving: Value) {
    let nodes = nodes.iter().map(|n| json!({"node": n, "signal": "any"}));
    moving["nodes"] = nodes.collect();
    moving["id"] = name.into();
    moving["requestedAt"] = json!(world.now());
    let moving = serde_json::from_value(moving).unwrap();
    world.edit_ledger(name, |gang| gang.moving = Some(moving));
}

fn waits_to_move() -> Gangs {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2), ("n3", 2), ("n4", 2)]);
    world.scheduler_settings().concurrent_moves = 1;
    for name in ["first", "second"] {
        world.gang(name, LOW);
    }
    world.settle();
    for name in ["first", "second"] {
        let node = world.nodes(name).remove(0);
        has_move(&mut world, name, &[&node], json!({"reason": "NodeLeaving"}));
    }
    world.schedule();
    world
}

fn too_many_faults() -> Gangs {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2), ("n3", 2)]);
    world.gang("moved", LOW);
    world.gang("low", LOW);
    world.settle();
    let moved = json!({"reason": "NodeFaulty", "outcome": "Moved", "endedAt": world.now()});
    has_move(&mut world, "moved", &["n1", "n2", "n3"], moved);
    let node = world.nodes("low").remove(0);
    has_move(&mut world, "low", &[&node], json!({"reason": "NodeFaulty"}));
    world.schedule();
    world
}

fn preempts() -> Gangs {
    let mut world = contested();
    world.settle();
    world
}

fn may_not_preempt() -> Gangs {
    let mut world = contested();
    world.scheduler_settings().preemption_enabled = false;
    world.wait(30);
    world
}

fn guarded() -> Gangs {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1)]);
    world.guarded("precious", "n1");
    world.guarded("dear", "n2");
    world.gang("high", HIGH);
    world.wait(30);
    world
}

fn waits_for_a_claim() -> Gangs {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.gang_with_claim("data", LOW);
    world.wait(10);
    world
}

fn refused() -> Gangs {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.obstructed_gang("odd", LOW);
    world.wait(5);
    for _ in 0..6 {
        world.refuse_pods(
            "odd",
            "0/1 nodes are available: 1 node(s) had volume node affinity conflict",
        );
        world.wait(10);
    }
    world
}

fn waits_behind() -> Gangs {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang("runs", Spec { members: 3, ..HIGH });
    world.settle();
    world.gang("large", Spec { members: 4, ..LOW });
    world.wait(5);
    world.gang("small", Spec { members: 1, ..LOW });
    world.wait(5);
    world
}

fn evicts_others() -> Gangs {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1)]);
    world.foreign("one", "n1", 1, 1);
    world.foreign("two", "n2", 1, 1);
    world.gang("high", HIGH);
    world.settle();
    world
}

fn no_such_nodes() -> Gangs {
    let mut world = Gangs::new(&[("n1", 2)]);
    let container = json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    let spec = json!({"containers": [container], "nodeSelector": {"gpu": "h200"}});
    let group = json!({"name": "g", "replicas": 2, "template": {"spec": spec}});
    world.gang_with("choosy", LOW, &json!({"groups": [group]}));
    world.wait(5);
    world
}

fn too_young() -> Gangs {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1)]);
    world.scheduler_settings().rules.min_runtime = std::time::Duration::from_hours(1);
    world.gang("low", LOW);
    world.settle();
    world.gang("high", HIGH);
    world.wait(5);
    world
}

/// Runs the world for this number of seconds, one step each.
pub(super) fn lasts(world: &mut Gangs, seconds: i64) {
    for _ in 0..seconds {
        world.round();
        world.later(1);
    }
}
