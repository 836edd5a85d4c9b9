//! Promises of the simulation, and behaviour of the product in it.

// `cfg(test)` is always set here. It tells clippy that test helpers may unwrap.
#![cfg(test)]

mod absent;
mod api;
mod crashes;
mod determinism;
mod lost_work;
mod messages;
mod moves;
mod node_signals;
mod provisioning;
mod random;
mod refusals;
mod screens;
mod signals;
mod troubles;

use std::path::PathBuf;

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

/// Compares a page with a golden file, which `UPDATE_GOLDEN=1` writes.
fn matches_golden(file: &str, page: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(file);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    let (golden, page): (Vec<&str>, Vec<&str>) = (golden.lines().collect(), page.lines().collect());
    let new: Vec<&&str> = page.iter().filter(|l| !golden.contains(l)).collect();
    let gone: Vec<&&str> = golden.iter().filter(|l| !page.contains(l)).collect();
    assert!(
        golden == page,
        "UPDATE_GOLDEN=1 writes {}\nnew: {new:#?}\ngone: {gone:#?}",
        path.display()
    );
}
