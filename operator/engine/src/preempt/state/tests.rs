//! The state against plain counting, over every set of victims of two small questions.

use std::sync::Arc;

use smallvec::smallvec;

use super::*;
use crate::{
    cluster::{Cluster, Node},
    placement::Site,
    problem::{Demand, Pods, Scope, Shape, Topology, TopologyMode, Unit, Units},
};

/// Five nodes of four accelerators, two in each of two racks and one in none. The last takes no pod of the second shape.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new(1, 1);
    for (ix, rack) in [Some(0), Some(0), Some(1), Some(1), None].into_iter().enumerate() {
        cluster.upsert_node(ix, &Node { allocatable: smallvec![4], domains: vec![rack], schedulable: true });
    }
    cluster
}

/// Units that share budgets and restart together.
fn running(cluster: &mut Cluster) -> Units {
    let mut units = Units { units: Vec::new(), pdb_allowed: vec![1, 0], cascade_loss: vec![50, 70] };
    let mut unit = |amount: i64, nodes: &[NodeIx], cost: u64, cascade: Option<usize>, pdbs: &[(PdbIx, u32)]| {
        for &node in nodes {
            cluster.add_pod(node, &[amount]);
        }
        units.units.push(Unit {
            pods: vec![Pods { request: smallvec![amount], nodes: nodes.to_vec() }],
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

/// A pod of two accelerators and three of one, which may not go to the last node.
fn two_shapes() -> Demand {
    let mut demand = Demand::homogeneous([2].as_slice(), 1, 100);
    demand.shapes.push(Shape::new([1].as_slice(), 3));
    for shape in &mut demand.shapes {
        shape.eligible = Some(Arc::new((0..4).collect()));
    }
    Demand { min_count: 4, ..demand }
}

/// Two replicas of three pods of one accelerator, each within a rack.
fn two_replicas() -> Demand {
    let mut demand = Demand::homogeneous([1].as_slice(), 6, 100);
    demand.shapes[0].replica_size = 3;
    Demand { topology: Some(Topology { key: 0, mode: TopologyMode::Required, scope: Scope::Replica }), ..demand }
}

/// Seats of a shape on these nodes when a set is gone, and nobody of it twice.
fn seats_without(field: &Field<'_>, shape: ShapeIx, set: &[CandIx], nodes: &[NodeIx]) -> i64 {
    let free = field.room_without(set.iter().copied());
    let spec = &field.demand.shapes[shape];
    nodes.iter().map(|&node| i64::from(field.site.seats(&free, shape, spec, node))).sum()
}

#[test]
fn whatever_set_is_gone_its_cost_its_seats_and_what_one_more_unit_would_change_are_those_of_plain_counting() {
    for demand in [two_shapes(), two_replicas()] {
        let mut cluster = cluster();
        let units = running(&mut cluster);
        let site = Site::new(&cluster, &demand);
        let (field, goal) = (Field::new(&site, &units), Goal::new(&site));
        let racks = [[0, 1], [2, 3]];
        let in_racks = demand.topology.is_some();
        let supply = |ix: ShapeIx, set: &[CandIx]| match goal.shapes[ix].replica_size {
            Some(members) => racks.iter().map(|nodes| seats_without(&field, ix, set, nodes) / members).sum(),
            None => seats_without(&field, ix, set, &[0, 1, 2, 3, 4]),
        };
        let price = |set: &[CandIx]| {
            let toll = units.toll(set);
            Price::from(toll.pdb_excess) * field.excess_price + toll.lost as Price
        };
        for bits in 0u32..1 << units.units.len() {
            let set: Vec<CandIx> = (0..units.units.len()).filter(|c| bits >> c & 1 == 1).collect();
            let mut state = State::new(&field, &goal);
            for &cand in &set {
                state.evict(cand);
            }
            assert_eq!((state.victims(), state.toll(), state.price()), (set.clone(), units.toll(&set), price(&set)));
            let mut spare = 0;
            for (ix, shape) in goal.shapes.iter().enumerate() {
                assert_eq!(state.supply(ix), supply(ix, &set), "shape {ix} without {set:?}");
                spare += supply(ix, &set) - if ix == 0 { shape.need } else { 3 + 2 };
            }
            assert_eq!(state.surplus(), spare);
            for (domain, members) in racks.iter().enumerate().filter(|_| in_racks) {
                assert_eq!(state.seats_in(0, domain), seats_without(&field, 0, &set, members));
            }
            for cand in (0..units.units.len()).filter(|c| !set.contains(c)) {
                let more: Vec<CandIx> = set.iter().copied().chain([cand]).collect();
                let beyond = units.toll(&more).pdb_excess - units.toll(&set).pdb_excess;
                assert_eq!((state.marginal(cand), state.excess_beside(cand)), (price(&more) - price(&set), beyond));
                for ix in 0..goal.shapes.len() {
                    let change = (price(&more) - price(&set), supply(ix, &more) - supply(ix, &set));
                    assert_eq!(state.weigh(ix, &[cand]), change, "{cand} beside {set:?}");
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
    let together = Topology { key: 0, mode: TopologyMode::Required, scope: Scope::Gang };
    let demand = Demand { topology: Some(together), ..Demand::homogeneous([1].as_slice(), 2, 100) };
    let site = Site::new(&cluster, &demand);
    let (field, goal) = (Field::new(&site, &units), Goal::new(&site));
    let mut state = State::new(&field, &goal);
    state.evict(1);
    assert_eq!(state.steps, 2, "it runs on two nodes");
    assert!(state.fits());
    assert_eq!(state.steps, 2 + 4 * 5);
}
