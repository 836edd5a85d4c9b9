//! Gangs of several shapes that need some of their members: any members count.

use std::sync::Arc;

use lockstep_engine::{
    Cluster, ClusterNode, Demand, Infeasible, Pods, PreemptionOptions, Shape, Unit, Units, explain,
    is_possible, place, preempt, reserve,
};
use proptest::{collection::vec, prelude::*};
use smallvec::smallvec;

/// Nodes of one accelerator. The first `kinds[0]` nodes admit the first shape, and so on.
struct Kinds {
    cluster: Cluster,
    demand: Demand,
}

impl Kinds {
    /// So many nodes of each kind, and a gang with `count` pods of each shape.
    fn new(kinds: &[usize], count: u32, min_count: u32) -> Self {
        let mut cluster = Cluster::new(1, 0);
        let mut shapes = Vec::new();
        let mut next = 0;
        for &nodes in kinds {
            for node in next..next + nodes {
                let spec = ClusterNode {
                    allocatable: smallvec![1],
                    domains: Vec::new(),
                    schedulable: true,
                };
                cluster.upsert_node(node, &spec);
            }
            shapes.push(Shape {
                min: 0,
                eligible: Some(Arc::new((next..next + nodes).collect())),
                ..Shape::new([1].as_slice(), count)
            });
            next += nodes;
        }
        let demand = Demand {
            shapes,
            min_count,
            ..Demand::homogeneous([1].as_slice(), 1, 100)
        };
        Self { cluster, demand }
    }

    /// Pods of lower priority and this cost on these nodes.
    fn hold(&mut self, nodes: std::ops::Range<usize>, cost: u64) -> Units {
        let unit = |node: usize| Unit {
            pods: vec![Pods {
                request: smallvec![1],
                nodes: vec![node],
            }],
            priority: 0,
            gang: false,
            cost,
            pdbs: smallvec![],
            start: 0,
            cascade: None,
            eligible: None,
            preempts: false,
        };
        nodes
            .clone()
            .for_each(|node| self.cluster.add_pod(node, &[1]));
        Units {
            units: nodes.map(unit).collect(),
            ..Units::default()
        }
    }
}

#[test]
fn any_members_count_if_they_fit() {
    for (kinds, count, min_count) in [
        (vec![1, 4], 4, 5),
        (vec![4, 1], 4, 5),
        (vec![2, 0, 9], 9, 11),
        (vec![1, 2, 3, 4], 5, 10),
        (vec![37, 200], 200, 237),
    ] {
        let fits = Kinds::new(&kinds, count, min_count);
        let placed = place(&fits.cluster, &fits.demand).map(|p| p.count());
        assert_eq!(placed, Ok(min_count), "{kinds:?}");
        let more = Kinds::new(&kinds, count, min_count + 1);
        let refused = place(&more.cluster, &more.demand);
        let short = matches!(refused, Err(Infeasible::InsufficientCapacity(_)));
        assert!(short, "{kinds:?}: {refused:?}");
    }
}

#[test]
fn shapes_that_compete_for_nodes_are_divided_by_search() {
    // Nodes of five: a pod of three and one of two, or two of two.
    let mut cluster = Cluster::new(1, 0);
    for node in 0..6 {
        let spec = ClusterNode {
            allocatable: smallvec![5],
            domains: Vec::new(),
            schedulable: true,
        };
        cluster.upsert_node(node, &spec);
    }
    let shape = |size: i64, count| Shape {
        min: 0,
        ..Shape::new([size].as_slice(), count)
    };
    let gang = |min_count| Demand {
        shapes: vec![shape(3, 12), shape(2, 12)],
        min_count,
        ..Demand::homogeneous([1].as_slice(), 1, 100)
    };
    assert!(place(&cluster, &gang(12)).is_ok());
    assert!(matches!(
        place(&cluster, &gang(13)),
        Err(Infeasible::InsufficientCapacity(_))
    ));
}

#[test]
fn no_unit_is_evicted_for_a_gang_that_fits_with_other_members() {
    let mut kinds = Kinds::new(&[4, 4], 4, 5);
    let units = kinds.hold(1..4, 1);
    let options = PreemptionOptions::default();
    let answer = preempt(&kinds.cluster, &units, &kinds.demand, &options).unwrap();
    assert!(answer.victims.is_empty() && answer.proven);
}

#[test]
fn victims_are_chosen_among_all_divisions() {
    for (nodes, min_count) in [(4, 5), (40, 45)] {
        let mut kinds = Kinds::new(&[nodes, nodes], nodes as u32, min_count);
        let mut units = kinds.hold(0..nodes, 1_000);
        let cheap = kinds.hold(nodes..2 * nodes, 1);
        units.units.extend(cheap.units);
        let options = PreemptionOptions::default();
        let answer = preempt(&kinds.cluster, &units, &kinds.demand, &options).unwrap();
        let expensive = u128::from(min_count) - nodes as u128;
        assert_eq!(answer.cost.lost, expensive * 1_000 + nodes as u128);
        let reasons = explain(&kinds.cluster, &units, &kinds.demand, &options, &answer);
        assert_eq!(reasons.taken.len(), answer.victims.len());
    }
}

/// Groups of eight on kinds of eight nodes, of which one to three are free and the others hold
/// pods with different costs.
fn groups_of_eight(groups: usize) -> (Kinds, Units, Vec<u64>) {
    let free = |group: usize| group % 3 + 1;
    let mut kinds = Kinds::new(&vec![8; groups], 8, 0);
    let (mut units, mut costs) = (Units::default(), Vec::new());
    for group in 0..groups {
        for node in free(group)..8 {
            let cost = 8 * (120 + 60 * (30 - (node * 7 + group * 3) as u64 % 29));
            let held = kinds.hold(group * 8 + node..group * 8 + node + 1, cost);
            units.units.extend(held.units);
            costs.push(cost);
        }
    }
    kinds.demand.min_count = (0..groups).map(|group| free(group) as u32).sum();
    costs.sort_unstable();
    (kinds, units, costs)
}

#[test]
fn the_cheapest_pods_of_all_groups_are_evicted() {
    for groups in [3, 4, 5, 6, 8] {
        for more in [2, 8, 16] {
            let (mut kinds, units, costs) = groups_of_eight(groups);
            kinds.demand.min_count += more;
            let options = PreemptionOptions::default();
            let answer = preempt(&kinds.cluster, &units, &kinds.demand, &options).unwrap();
            let least: u64 = costs[..more as usize].iter().sum();
            assert_eq!(
                answer.cost.lost,
                u128::from(least),
                "{groups} groups, {more} more"
            );
        }
    }
}

proptest! {
    #[test]
    fn the_cheapest_pods_of_random_groups_are_evicted(
        groups in vec(vec(prop_oneof![Just(0), 1..1_000u64], 1..4), 3..9),
        part in 1..100usize,
    ) {
        let nodes: Vec<usize> = groups.iter().map(Vec::len).collect();
        let mut costs: Vec<u64> = groups.into_iter().flatten().collect();
        let min_count = (costs.len() * part).div_ceil(100);
        let mut kinds = Kinds::new(&nodes, 8, min_count as u32);
        let mut units = Units::default();
        for (node, &cost) in costs.iter().enumerate().filter(|(_, cost)| **cost > 0) {
            units.units.extend(kinds.hold(node..node + 1, cost).units);
        }
        let options = PreemptionOptions::default();
        let answer = preempt(&kinds.cluster, &units, &kinds.demand, &options).unwrap();
        costs.sort_unstable();
        let least: u64 = costs[..min_count].iter().sum();
        prop_assert_eq!(answer.cost.lost, u128::from(least));
    }
}

#[test]
fn the_shortage_is_that_of_the_division_with_the_most_placed_pods() {
    for groups in [3, 5, 8] {
        let (mut kinds, _, _) = groups_of_eight(groups);
        kinds.demand.min_count += 1;
        let short = place(&kinds.cluster, &kinds.demand).unwrap_err();
        assert_eq!(
            short.shortfall().map(|s| (s.pods, s.short_by)),
            Some((1, 1))
        );
    }
}

#[test]
fn a_reservation_holds_any_members_that_are_enough() {
    let mut kinds = Kinds::new(&[1, 4], 4, 5);
    kinds.hold(0..5, 1);
    assert_eq!(reserve(&kinds.cluster, &[], &kinds.demand), None);
    let blockers: Vec<_> = (0..5)
        .map(|node| lockstep_engine::Blocker {
            node,
            request: smallvec![1],
            ends: None,
        })
        .collect();
    let reserved = reserve(&kinds.cluster, &blockers, &kinds.demand).unwrap();
    assert_eq!(reserved.count(), 5);
    assert!(is_possible(
        &kinds.cluster,
        &blockers,
        &kinds.demand,
        &reserved
    ));
}
