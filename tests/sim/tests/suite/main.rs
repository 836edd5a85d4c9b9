//! Promises of the simulation, and behaviour of the product in it.

// `cfg(test)` is always set here. It tells clippy that test helpers may unwrap.
#![cfg(test)]

mod absent;
mod api;
mod crashes;
mod determinism;
mod messages;
mod random;
mod refusals;
mod troubles;

use lockstep_sim::{Gangs, Spec};

const LOW: Spec = Spec {
    priority: 10,
    members: 2,
    gpus: 1,
};
const HIGH: Spec = Spec {
    priority: 100,
    ..LOW
};

/// A gang uses all capacity, and a gang of higher priority is created.
fn contested() -> Gangs {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1)]);
    world.gang("low", LOW);
    world.settle();
    world.gang("high", HIGH);
    world
}
