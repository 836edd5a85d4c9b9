//! Scenarios with many gangs on a cluster in memory.

// Always true here, so that clippy permits `unwrap` in test helpers.
#![cfg(test)]

mod admitted;
mod budgets;
mod checkpoints;
mod demand;
mod disabled;
mod elastic;
mod failed_preemptions;
mod fairness;
mod foreign;
mod forged;
mod holding;
mod inputs;
mod intents;
mod invariants;
mod keeping;
mod moves;
mod neighbours;
mod pacing;
mod places;
mod placing;
mod preempting;
mod queueing;
mod quotas;
mod reach;
mod recording;
mod refusing;
mod remembering;
mod reserving;
mod silence;
mod slow_kube_scheduler;
mod unanswered;
mod waiting;

use lockstep_sim::{Gangs, Spec};

const LOW: Spec = Spec {
    priority: 10,
    members: 2,
    gpus: 1,
};
/// A gang that may preempt `LOW`.
const HIGH: Spec = Spec {
    priority: 100,
    ..LOW
};

/// Message of kube-scheduler 1.37 about a pinned pod that lacks accelerators on its node.
const INSUFFICIENT: &str = "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) didn't satisfy \
    plugin(s) [NodeAffinity]. preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, \
    2 Preemption is not helpful for scheduling.";

fn run(world: &mut Gangs, seconds: i64) {
    for _ in 0..seconds {
        world.round();
        world.later(1);
    }
}
