//! Stories of several gangs.

use lockstep_sim::{Gangs, Spec};
use serde_json::json;

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
];

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
