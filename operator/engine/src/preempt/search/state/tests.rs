//! Compares the state with direct counting, over every set of victims of two small instances.

use std::sync::Arc;

use smallvec::smallvec;

use super::*;
use crate::{
    cluster::{Cluster, ClusterNode},
    placement::PlacementInstance,
    problem::{
        Demand, Pods, Scope, Shape, TopologyDemand, TopologyStrictness, Unit, UnitIx, Units,
    },
};

/// Five nodes of four accelerators: two in each of two racks, one in no rack. The last admits no
/// pod of the second shape.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new(1, 1);
    for (ix, rack) in [Some(0), Some(0), Some(1), Some(1), None]
        .into_iter()
        .enumerate()
    {
        cluster.upsert_node(
            ix,
            &ClusterNode {
                allocatable: smallvec![4],
                domains: vec![rack],
                schedulable: true,
            },
        );
    }
    cluster
}

/// Units that share budgets and restart together.
fn running(cluster: &mut Cluster) -> Units {
    let mut units = Units {
        units: Vec::new(),
        pdb_allowed: vec![1, 0],
        cascade_loss: vec![50, 70],
    };
    let mut unit = |amount: i64,
                    nodes: &[NodeIx],
                    cost: u64,
                    cascade: Option<usize>,
                    pdbs: &[(crate::problem::PdbIx, u32)]| {
        for &node in nodes {
            cluster.add_pod(node, &[amount]);
        }
        units.units.push(Unit {
            pods: vec![Pods {
                request: smallvec![amount],
                nodes: nodes.to_vec(),
            }],
            priority: 0,
            gang: nodes.len() > 1,
            cost,
            pdbs: pdbs.into(),
            start: 0,
            cascade,
            eligible: None,
            preempts: false,
        });
    };
    unit(4, &[0], 10, None, &[(0, 1)]);
    unit(2, &[1, 2], 99, Some(0), &[(0, 2)]);
    unit(2, &[1], 3, Some(0), &[]);
    unit(1, &[2], 5, None, &[(0, 1), (1, 1)]);
    unit(3, &[3], 8, Some(1), &[(1, 1)]);
    unit(4, &[4], 0, None, &[]);
    units
}

/// A pod of two accelerators and three pods of one. The last node does not admit them.
fn two_shapes() -> Demand {
    let mut demand = Demand::homogeneous([2].as_slice(), 1, 100);
    demand.shapes.push(Shape::new([1].as_slice(), 3));
    for shape in &mut demand.shapes {
        shape.eligible = Some(Arc::new((0..4).collect()));
    }
    Demand {
        min_count: 4,
        ..demand
    }
}

/// Two replicas of three pods of one accelerator, each within a rack.
fn two_replicas() -> Demand {
    let mut demand = Demand::homogeneous([1].as_slice(), 6, 100);
    demand.shapes[0].replica_size = 3;
    Demand {
        topology: vec![TopologyDemand {
            key: 0,
            mode: TopologyStrictness::Required,
            scope: Scope::Replica,
        }],
        ..demand
    }
}

/// Slots of a shape on these nodes after eviction of a set.
fn slots_without(
    instance: &PreemptionInstance<'_>,
    shape: ShapeIx,
    set: &[CandidateIx],
    nodes: &[NodeIx],
) -> i64 {
    let free = instance.free_without(set.iter().copied());
    let spec = &instance.demand.shapes[shape];
    nodes
        .iter()
        .map(|&node| i64::from(instance.placement.slots_on(&free, shape, spec, node)))
        .sum()
}

fn cost_of(units: &Units, victims: &[UnitIx]) -> EvictionCost {
    let mut cost = EvictionCost::default();
    let mut disrupted = vec![0u64; units.pdb_allowed.len()];
    let mut cascades = vec![false; units.cascade_loss.len()];
    for unit in victims.iter().filter_map(|&u| units.units.get(u)) {
        cost.gangs += u32::from(unit.gang);
        cost.pods += unit.pod_count();
        for &(pdb, pods) in &unit.pdbs {
            disrupted[pdb] += u64::from(pods);
        }
        match unit.cascade {
            None => cost.lost += u128::from(unit.cost),
            Some(c) if !cascades[c] => {
                cascades[c] = true;
                cost.lost += u128::from(units.cascade_loss[c]);
            }
            Some(_) => {}
        }
    }
    for (&pods, &allowed) in disrupted.iter().zip(&units.pdb_allowed) {
        cost.pdb_excess += pods.saturating_sub(u64::from(allowed));
    }
    cost
}

#[test]
fn cost_slots_and_marginal_changes_of_a_victim_set_match_a_recount() {
    for demand in [two_shapes(), two_replicas()] {
        let mut cluster = cluster();
        let units = running(&mut cluster);
        let placement = PlacementInstance::new(&cluster, &demand);
        let (instance, fit) = (
            PreemptionInstance::new(&placement, &units),
            FitCondition::new(&placement),
        );
        let racks = [[0, 1], [2, 3]];
        let in_racks = !demand.topology.is_empty();
        let supply = |ix: ShapeIx, set: &[CandidateIx]| match fit.shapes[ix].replica_size {
            Some(members) => racks
                .iter()
                .map(|nodes| slots_without(&instance, ix, set, nodes) / members)
                .sum(),
            None => slots_without(&instance, ix, set, &[0, 1, 2, 3, 4]),
        };
        let price = |set: &[CandidateIx]| {
            let cost = cost_of(&units, set);
            Price::from(cost.pdb_excess) * instance.weights.excess + cost.lost as Price
        };
        for bits in 0u32..1 << units.units.len() {
            let set: Vec<CandidateIx> = (0..units.units.len())
                .filter(|c| bits >> c & 1 == 1)
                .collect();
            let mut state = VictimState::new(&instance, &fit);
            for &candidate in &set {
                state.evict(candidate);
            }
            assert_eq!(
                (state.victims(), state.cost(), state.price()),
                (set.clone(), cost_of(&units, &set), price(&set))
            );
            let mut spare = 0;
            for (ix, shape) in fit.shapes.iter().enumerate() {
                assert_eq!(
                    state.supply(ix),
                    supply(ix, &set),
                    "shape {ix} without {set:?}"
                );
                spare += supply(ix, &set) - if ix == 0 { shape.need } else { 3 + 2 };
            }
            assert_eq!(state.surplus(), spare);
            for (domain, members) in racks.iter().enumerate().filter(|_| in_racks) {
                assert_eq!(
                    state.slots_in(0, domain),
                    slots_without(&instance, 0, &set, members)
                );
            }
            for candidate in (0..units.units.len()).filter(|c| !set.contains(c)) {
                let more: Vec<CandidateIx> = set.iter().copied().chain([candidate]).collect();
                let beyond = cost_of(&units, &more).pdb_excess - cost_of(&units, &set).pdb_excess;
                assert_eq!(
                    (state.marginal(candidate), state.marginal_excess(candidate)),
                    (price(&more) - price(&set), beyond)
                );
                for ix in 0..fit.shapes.len() {
                    let change = (
                        price(&more) - price(&set),
                        supply(ix, &more) - supply(ix, &set),
                    );
                    assert_eq!(
                        state.marginal_of(ix, &[candidate]),
                        change,
                        "{candidate} beside {set:?}"
                    );
                }
            }
            assert_eq!(state.victims(), set, "weighing changes nothing");
        }
    }
}

#[test]
fn work_is_counted_in_visits_of_nodes_and_a_placement_that_is_tried_as_four_of_each() {
    let mut cluster = cluster();
    let units = running(&mut cluster);
    let together = TopologyDemand {
        key: 0,
        mode: TopologyStrictness::Required,
        scope: Scope::Replica,
    };
    let mut demand = Demand {
        topology: vec![together],
        ..Demand::homogeneous([1].as_slice(), 2, 100)
    };
    // A second shape makes counting replicas inexact.
    demand.shapes.push(Shape::new([2].as_slice(), 1));
    demand.min_count = 3;
    let placement = PlacementInstance::new(&cluster, &demand);
    let (instance, fit) = (
        PreemptionInstance::new(&placement, &units),
        FitCondition::new(&placement),
    );
    let mut state = VictimState::new(&instance, &fit);
    state.evict(1);
    assert_eq!(state.steps, 2, "it runs on two nodes");
    assert!(state.fits());
    assert_eq!(state.all_steps(), 2 + 4 * 5);
}

#[test]
fn a_node_that_is_as_it_was_after_weighing_is_not_looked_at_again() {
    let mut cluster = Cluster::new(2, 0);
    let mut units = Units::default();
    for node in 0..3 {
        let spec = ClusterNode {
            allocatable: smallvec![4, 4],
            domains: Vec::new(),
            schedulable: true,
        };
        cluster.upsert_node(node, &spec);
        cluster.add_pod(node, &[4, 4]);
        units.units.push(Unit {
            pods: vec![Pods {
                request: smallvec![4, 4],
                nodes: vec![node],
            }],
            priority: 0,
            gang: false,
            cost: 1,
            pdbs: smallvec![],
            start: 0,
            cascade: None,
            eligible: None,
            preempts: false,
        });
    }
    let mut demand = Demand::homogeneous([3, 1].as_slice(), 1, 100);
    demand.shapes.push(Shape::new([1, 3].as_slice(), 1));
    demand.min_count = 2;
    let placement = PlacementInstance::new(&cluster, &demand);
    let (instance, fit) = (
        PreemptionInstance::new(&placement, &units),
        FitCondition::new(&placement),
    );
    let mut state = VictimState::new(&instance, &fit);
    state.evict(0);
    assert!(state.fits());
    state.marginal_of(0, &[1, 2]);
    let before = state.all_steps();
    assert!(state.fits());
    assert_eq!(state.all_steps(), before);
}
