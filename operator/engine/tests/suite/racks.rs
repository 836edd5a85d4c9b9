//! Gangs of several groups whose replicas must each share a rack, and that fit by construction.

#[path = "../../../../tests/bench/src/racks.rs"]
mod planted;

use std::collections::BTreeMap;
use std::time::Instant;

use lockstep_engine::{
    Cluster, Demand, GangPlacement, Infeasible, PreemptionOptions, place, preempt,
};
use planted::{Held, planted_in_racks};

/// Panics unless the placement has all members, capacity for them, and each replica in one rack.
fn assert_valid(mut cluster: Cluster, demand: &Demand, placement: &GangPlacement) {
    assert_eq!(placement.count(), demand.min_count);
    cluster.reserve(&demand.shapes, placement);
    let mut replicas: BTreeMap<(usize, u32), (u32, usize)> = BTreeMap::new();
    for a in &placement.assignments {
        assert!(cluster.free(a.node).iter().all(|&f| f >= 0), "{a:?}");
        let rack = cluster.domain(a.node, 0).expect("a rack");
        let (count, known) = replicas.entry((a.shape, a.replica)).or_insert((0, rack));
        *count += a.count;
        assert_eq!(*known, rack, "{a:?}");
    }
    for ((shape, _), (count, _)) in replicas {
        assert_eq!(count, demand.shapes[shape].replica_size);
    }
}

/// Places this many planted gangs over so many racks. Prints how many are refused or unknown.
#[expect(clippy::disallowed_methods, reason = "a benchmark")]
fn lost(gangs: u64, racks: impl Fn(u64) -> usize, held: Held) -> u64 {
    let (mut refused, mut unknown, mut times) = (0, 0, Vec::new());
    for seed in 0..gangs {
        let (scene, demand) = planted_in_racks(seed, racks(seed), held);
        let (mut cluster, units) = (scene.cluster, scene.units);
        let start = Instant::now();
        let answer = match held {
            Held::No => place(&cluster, &demand),
            Held::ByPods => {
                preempt(&cluster, &units, &demand, &PreemptionOptions::default()).map(|answer| {
                    for unit in answer.victims {
                        for pods in &units.units[unit].pods {
                            for &node in &pods.nodes {
                                cluster.remove_pod(node, &pods.request);
                            }
                        }
                    }
                    answer.placement
                })
            }
        };
        times.push(start.elapsed());
        match answer {
            Ok(placement) => assert_valid(cluster, &demand, &placement),
            Err(Infeasible::GaveUp { .. }) => unknown += 1,
            Err(_) => refused += 1,
        }
    }
    times.sort_unstable();
    println!(
        "{held:?}: {refused} refused, {unknown} unknown of {gangs}; p50 {:.1?}, max {:.1?}",
        times[times.len() / 2],
        times[times.len() - 1]
    );
    refused + unknown
}

fn few(seed: u64) -> usize {
    3 + seed as usize % 38
}

/// 4,992 nodes.
fn many(_: u64) -> usize {
    312
}

#[test]
fn planted_gangs_in_racks_are_placed_in_free_capacity() {
    assert!(lost(300, few, Held::No) <= 6);
}

#[test]
fn planted_gangs_in_racks_are_placed_by_preemption() {
    assert!(lost(300, few, Held::ByPods) <= 6);
}

#[test]
fn planted_gangs_in_hundreds_of_racks_are_placed() {
    assert_eq!(lost(20, many, Held::No), 0);
    assert_eq!(lost(6, many, Held::ByPods), 0);
}
