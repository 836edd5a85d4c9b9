//! What the simulation promises, and what the product keeps in it.

// `cfg(test)` always holds here; it tells clippy that helpers of tests may unwrap.
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

/// A gang runs on all there is, and a more important one comes.
fn contested() -> Gangs {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1)]);
    world.gang("low", LOW);
    world.settle();
    world.gang("high", HIGH);
    world
}
