//! Racks of four nodes, each full of single units of one accelerator.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::smallvec;

use crate::{
    cluster::{Cluster, ClusterNode},
    placement::PlacementInstance,
    preempt::{
        fit::FitCondition,
        instance::PreemptionInstance,
        search::{local_search::LocalSearch, state::VictimState},
    },
    problem::{
        Amounts, Demand, Pods, Scope, Shape, TopologyDemand, TopologyStrictness, Unit, Units,
    },
};

const RACK: usize = 4;
const GPUS: usize = 4;

fn cluster(racks: usize) -> (Cluster, Units) {
    let mut cluster = Cluster::new(1, 1);
    let mut units = Units::default();
    for node in 0..racks * RACK {
        let spec = ClusterNode {
            allocatable: smallvec![GPUS as i64],
            domains: vec![Some(node / RACK)],
            schedulable: true,
        };
        cluster.upsert_node(node, &spec);
        for at in 0..GPUS {
            cluster.add_pod(node, &[1]);
            units.units.push(Unit {
                pods: vec![Pods {
                    request: smallvec![1],
                    nodes: vec![node],
                }],
                priority: 0,
                gang: false,
                cost: (node * 7 + at * 3) as u64 % 11,
                pdbs: smallvec![],
                start: 0,
                cascade: None,
                eligible: None,
                preempts: false,
            });
        }
    }
    (cluster, units)
}

/// Two replicas of two whole nodes, and one replica of two pods with three accelerators.
fn two_groups() -> Demand {
    let group = |accelerators: i64, replicas: u32| Shape {
        replica_size: 2,
        ..Shape::new([accelerators].as_slice(), 2 * replicas)
    };
    Demand {
        min_count: 6,
        shapes: vec![group(4, 2), group(3, 1)],
        topology: vec![TopologyDemand {
            key: 0,
            mode: TopologyStrictness::Required,
            scope: Scope::Replica,
        }],
        ..Demand::homogeneous([1].as_slice(), 1, 100)
    }
}

/// A placement of all replicas for each of the 2,560 units would take 6.5 million steps.
#[test]
fn a_reprieve_places_all_replicas_again_only_within_its_budget() {
    let (cluster, units) = cluster(160);
    let demand = two_groups();
    let placement = PlacementInstance::new(&cluster, &demand);
    let instance = PreemptionInstance::new(&placement, &units);
    let fit = FitCondition::new(&placement);
    let pool = vec![true; instance.candidates.len()];
    let mut search = LocalSearch::new(VictimState::new(&instance, &fit), &pool, 1);
    search.set_victims(|_| true);
    assert!(search.state.fits());
    let before = search.state.all_steps();
    search.reprieve();
    let steps = search.state.all_steps() - before;
    assert!(steps < 200_000, "{steps} steps for {} units", pool.len());
    assert_eq!(search.state.victims().len(), 2 * 2 * 4 + 2 * 3);
}

/// Checks placements against the free capacity while random units are evicted and restored.
#[test]
fn a_kept_placement_has_capacity_and_keeps_replicas_in_racks() {
    let (cluster, units) = cluster(6);
    let demand = two_groups();
    let placement = PlacementInstance::new(&cluster, &demand);
    let instance = PreemptionInstance::new(&placement, &units);
    let fit = FitCondition::new(&placement);
    let mut state = VictimState::new(&instance, &fit);
    let candidates = instance.candidates.len();
    for candidate in 0..candidates {
        state.evict(candidate);
    }
    assert!(state.fits());
    state.begin();
    let (mut seed, mut kept, mut lost) = (1_usize, 0, 0);
    let mut restored = Vec::new();
    for step in 0..4_000 {
        seed = (seed * 1_103_515_245 + 12_345) & 0x7fff_ffff;
        let candidate = (seed >> 8) % candidates;
        // The gang fits beside few restored units, and does not beside many.
        let most = if step / 100 % 2 == 0 { 6 } else { 40 };
        if restored.len() < most && state.is_evicted(candidate) {
            state.restore(candidate);
            restored.push(candidate);
        } else if !restored.is_empty() {
            let candidate = restored.swap_remove(candidate % restored.len());
            state.evict(candidate);
        }
        if step % 500 == 499 {
            state.undo();
            restored.clear();
            assert!(state.still_fits(), "the first placement is valid again");
            state.begin();
        }
        let fits = state.still_fits();
        let Some(found) = state.victim_set().placement else {
            assert!(!fits);
            lost += 1;
            continue;
        };
        kept += 1;
        let mut taken: BTreeMap<usize, i64> = BTreeMap::new();
        let mut racks: BTreeMap<(usize, u32), BTreeSet<usize>> = BTreeMap::new();
        for a in &found.assignments {
            let request: &Amounts = &demand.shapes[a.shape].request;
            *taken.entry(a.node).or_default() += request[0] * i64::from(a.count);
            let racks = racks.entry((a.shape, a.replica)).or_default();
            racks.insert(a.node / RACK);
        }
        assert!(
            taken
                .iter()
                .all(|(&node, &taken)| taken <= state.free(node)[0])
        );
        assert!(racks.len() == 3 && racks.values().all(|racks| racks.len() == 1));
        assert_eq!(found.count(), 6);
    }
    assert!(kept > 500 && lost > 100, "{kept} kept, {lost} lost");
}
