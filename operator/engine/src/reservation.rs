//! Reservations of a waiting gang: nodes by name, chosen once.
//!
//! The gang is placed on the cluster without work that can end or be evicted ([`Blocker`]). The
//! choice removes as few blockers as possible: first work with a known end, earliest first, then
//! node by node, emptiest first. The gang keeps its reservation while it [`is_possible`].

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::{
    cluster::{Cluster, ClusterNode},
    infeasible::Infeasible,
    placement::{PLACEMENT_STEPS, min_count::MinCount, place, place_if_it_fits},
    problem::{Amounts, Demand, GangPlacement, NodeIx, Shape, TopologyStrictness},
};

/// Capacity on one node held by work that can end, or that the gang may evict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// The node.
    pub node: NodeIx,
    /// Held amounts.
    pub request: Amounts,
    /// Latest end, on the caller's time scale. `None`: unknown.
    pub ends: Option<i64>,
}

/// Chooses nodes for the members that a gang needs. `None` if they would not fit even without all
/// blockers.
///
/// `cluster`: capacity that is free for the gang, less the reservations of other gangs.
pub fn reserve(cluster: &Cluster, blockers: &[Blocker], demand: &Demand) -> Option<GangPlacement> {
    let mut order: Vec<&Blocker> = blockers
        .iter()
        .filter(|b| demand.shapes.iter().any(|s| demand.admits(s, b.node)))
        .collect();
    let mut best = place_without(cluster, &order, demand)?;
    let held = held_for_long(cluster, &order, demand);
    order.sort_by_key(|b| match b.ends {
        Some(ends) => (false, ends, 0, b.node),
        None => (true, 0, held.get(&b.node).copied().unwrap_or(0), b.node),
    });
    // More free capacity never makes the gang fit less, so bisection finds the fewest blockers to
    // remove. After a search without an answer, the last found placement remains.
    let (mut too_few, mut enough) = (0, order.len());
    while too_few < enough {
        let middle = too_few + (enough - too_few) / 2;
        if let Some(placement) = place_without(cluster, &order[..middle], demand) {
            (best, enough) = (placement, middle);
        } else {
            too_few = middle + 1;
        }
    }
    Some(best)
}

fn place_without(
    cluster: &Cluster,
    removed: &[&Blocker],
    demand: &Demand,
) -> Option<GangPlacement> {
    let mut free = cluster.clone();
    for blocker in removed {
        free.remove_pod(blocker.node, &blocker.request);
    }
    let place = |demand: &Demand| place_if_it_fits(&free, &needed_only(demand), PLACEMENT_STEPS);
    match MinCount::of(demand) {
        None => place(demand),
        Some(min_count) => {
            let place = |d: &Demand| place(d).ok_or(Infeasible::GaveUp { steps: 0 });
            min_count.first(place).ok()
        }
    }
}

/// True if the reservation covers the needed members, on nodes that admit them, and fits without
/// the blockers. Blockers on other nodes may be left out.
///
/// `cluster`: capacity that is free for the gang, less the reservations ahead of it.
pub fn is_possible(
    cluster: &Cluster,
    blockers: &[Blocker],
    demand: &Demand,
    reserved: &GangPlacement,
) -> bool {
    let divided = MinCount::of(demand).map(|min_count| min_count.as_placed(reserved));
    let demand = needed_only(divided.as_ref().unwrap_or(demand));
    let admitted = reserved.assignments.iter().all(|a| {
        demand
            .shapes
            .get(a.shape)
            .is_some_and(|shape| cluster.schedulable(a.node) && demand.admits(shape, a.node))
    });
    if !admitted || reserved.assignments.is_empty() {
        return false;
    }
    let requested = amounts_by_node(&demand.shapes, reserved);
    let mut left: BTreeMap<NodeIx, Amounts> = BTreeMap::new();
    for (&node, amounts) in &requested {
        let free = cluster.free(node).iter().zip(amounts);
        left.insert(
            node,
            free.map(|(free, requested)| free - requested).collect(),
        );
    }
    for blocker in blockers {
        let left = left.get_mut(&blocker.node).into_iter().flatten();
        for (left, amount) in left.zip(&blocker.request) {
            *left += amount;
        }
    }
    let fits = requested
        .iter()
        .zip(left.values())
        .all(|((_, requested), left)| {
            let mut each = requested.iter().zip(left);
            each.all(|(&requested, &left)| requested == 0 || left >= 0)
        });
    fits && is_complete(cluster, &demand, reserved, &requested)
}

/// Latest time at which a reservation can be used: when all work with a known end has ended. `None`
/// if that is not enough, or nothing has to end. `cluster` and `blockers` as in [`is_possible`].
pub fn starts_at(
    cluster: &Cluster,
    blockers: &[Blocker],
    shapes: &[Shape],
    reserved: &GangPlacement,
) -> Option<i64> {
    let requested = amounts_by_node(shapes, reserved);
    let mut ending: BTreeMap<NodeIx, Vec<(i64, &Amounts)>> = BTreeMap::new();
    for blocker in blockers {
        if let Some(ends) = blocker
            .ends
            .filter(|_| requested.contains_key(&blocker.node))
        {
            let on_node = ending.entry(blocker.node).or_default();
            on_node.push((ends, &blocker.request));
        }
    }
    let mut start = None;
    for (node, amounts) in &requested {
        let mut on_node = ending.remove(node).unwrap_or_default();
        on_node.sort_by_key(|&(ends, _)| Reverse(ends));
        let mut left: Amounts = cluster.free(*node).iter().copied().collect();
        for (free, requested) in left.iter_mut().zip(amounts) {
            *free -= requested;
        }
        let short = |left: &Amounts| left.iter().zip(amounts).any(|(&l, &a)| a > 0 && l < 0);
        while short(&left) {
            let (ends, released) = on_node.pop()?;
            for (free, amount) in left.iter_mut().zip(released) {
                *free += amount;
            }
            start = start.max(Some(ends));
        }
    }
    start
}

/// Amounts of these pods by node.
pub fn amounts_by_node(shapes: &[Shape], placement: &GangPlacement) -> BTreeMap<NodeIx, Amounts> {
    let mut out: BTreeMap<NodeIx, Amounts> = BTreeMap::new();
    for assigned in &placement.assignments {
        let Some(shape) = shapes.get(assigned.shape) else {
            continue;
        };
        let on_node = out.entry(assigned.node).or_default();
        on_node.resize(shape.request.len(), 0);
        for (sum, amount) in on_node.iter_mut().zip(&shape.request) {
            *sum += amount * i64::from(assigned.count);
        }
    }
    out
}

/// The demand without optional members. Under replica scope all members count, because replicas
/// have one size.
fn needed_only(demand: &Demand) -> Demand {
    let mut out = demand.clone();
    if !demand.by_replica() {
        for (shape, needed) in out.shapes.iter_mut().zip(demand.needed()) {
            shape.count = shape.running_count() + needed;
            shape.min = shape.count;
        }
    }
    out
}

/// Largest fraction of each node's requested resources, in thousandths, held by work without a
/// known end.
fn held_for_long(
    cluster: &Cluster,
    blockers: &[&Blocker],
    demand: &Demand,
) -> BTreeMap<NodeIx, i64> {
    let mut held: BTreeMap<NodeIx, Amounts> = BTreeMap::new();
    for blocker in blockers.iter().filter(|b| b.ends.is_none()) {
        let on_node = held.entry(blocker.node).or_default();
        on_node.resize(cluster.dims(), 0);
        for (sum, amount) in on_node.iter_mut().zip(&blocker.request) {
            *sum += amount;
        }
    }
    let shares = held.into_iter().map(|(node, held)| {
        let offered = cluster.allocatable(node);
        (node, largest_share(&held, offered, demand))
    });
    shares.collect()
}

/// Largest held fraction over requested resources, in thousandths of the offer.
fn largest_share(held: &[i64], offered: &[i64], demand: &Demand) -> i64 {
    let is_requested = |dim: usize| demand.shapes.iter().any(|s| s.request[dim] > 0);
    let each = held.iter().zip(offered).enumerate();
    each.filter(|&(dim, _)| is_requested(dim))
        .map(|(_, (&held, &all))| held.saturating_mul(1000) / all.max(1))
        .max()
        .unwrap_or(0)
}

/// True if the reservation covers exactly the needed members and satisfies the topology constraint.
fn is_complete(
    cluster: &Cluster,
    demand: &Demand,
    reserved: &GangPlacement,
    requested: &BTreeMap<NodeIx, Amounts>,
) -> bool {
    let replicas = demand.by_replica();
    let mut levels = demand.topology.iter();
    let required = levels.any(|level| level.mode == TopologyStrictness::Required);
    if !replicas {
        let needed = demand.needed();
        if (0..needed.len()).any(|shape| reserved.count_of(shape) != needed[shape]) {
            return false;
        }
        if !required {
            return true;
        }
    }
    // Places the gang again on the reserved capacity alone.
    let mut only = Cluster::new(cluster.dims(), cluster.topology_keys());
    for (&node, amounts) in requested {
        let keys = 0..cluster.topology_keys();
        let spec = ClusterNode {
            allocatable: amounts.clone(),
            domains: keys.map(|key| cluster.domain(node, key)).collect(),
            schedulable: true,
        };
        only.upsert_node(node, &spec);
    }
    for running in demand.shapes.iter().flat_map(|s| &s.running) {
        let keys = 0..cluster.topology_keys();
        if !requested.contains_key(&running.node) {
            let spec = ClusterNode {
                allocatable: Amounts::new(),
                domains: keys.map(|key| cluster.domain(running.node, key)).collect(),
                schedulable: false,
            };
            only.upsert_node(running.node, &spec);
        }
    }
    place(&only, demand).is_ok_and(|placed| placed.count() == reserved.count())
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::problem::{Assignment, Scope, TopologyDemand};

    /// Nodes of four accelerators, in racks of two.
    fn cluster(nodes: usize) -> Cluster {
        let mut cluster = Cluster::new(1, 1);
        for node in 0..nodes {
            let spec = ClusterNode {
                allocatable: smallvec![4],
                domains: vec![Some(node / 2)],
                schedulable: true,
            };
            cluster.upsert_node(node, &spec);
        }
        cluster
    }

    /// Work that holds these amounts on these nodes.
    fn work(cluster: &mut Cluster, held: &[(NodeIx, i64, Option<i64>)]) -> Vec<Blocker> {
        let each = held.iter().map(|&(node, amount, ends)| {
            cluster.add_pod(node, &[amount]);
            Blocker {
                node,
                request: smallvec![amount],
                ends,
            }
        });
        each.collect()
    }

    fn gang(gpus: i64, count: u32) -> Demand {
        Demand::homogeneous([gpus].as_slice(), count, 10)
    }

    fn nodes(placement: &GangPlacement) -> Vec<NodeIx> {
        placement.assignments.iter().map(|a| a.node).collect()
    }

    #[test]
    fn what_stays_for_ever_leaves_nothing_to_reserve() {
        let mut busy = cluster(2);
        busy.add_pod(0, &[1]);
        busy.add_pod(1, &[1]);
        assert_eq!(reserve(&busy, &[], &gang(4, 1)), None);
    }

    #[test]
    fn free_nodes_come_before_busy_ones_and_emptier_before_fuller() {
        let mut busy = cluster(4);
        let blockers = work(&mut busy, &[(0, 4, None), (1, 3, None), (2, 2, None)]);
        let reserved = reserve(&busy, &blockers, &gang(4, 2)).unwrap();
        assert_eq!(nodes(&reserved), [2, 3]);
    }

    #[test]
    fn what_ends_soon_is_waited_for_before_what_ends_later_or_at_an_unknown_time() {
        let mut busy = cluster(3);
        let blockers = work(
            &mut busy,
            &[(0, 1, None), (1, 4, Some(900)), (2, 4, Some(60))],
        );
        let reserved = reserve(&busy, &blockers, &gang(4, 1)).unwrap();
        assert_eq!(nodes(&reserved), [2]);
        let shapes = gang(4, 1).shapes;
        assert_eq!(starts_at(&busy, &blockers, &shapes, &reserved), Some(60));
    }

    #[test]
    fn a_start_is_known_only_when_known_ends_leave_enough() {
        let mut busy = cluster(1);
        let blockers = work(&mut busy, &[(0, 1, None), (0, 1, Some(5)), (0, 2, Some(9))]);
        let start = |gpus| {
            let demand = gang(gpus, 1);
            let reserved = reserve(&busy, &blockers, &demand).unwrap();
            starts_at(&busy, &blockers, &demand.shapes, &reserved)
        };
        assert_eq!((start(1), start(3), start(4)), (Some(5), Some(9), None));
    }

    #[test]
    fn only_needed_members_are_reserved_for() {
        let mut busy = cluster(3);
        let blockers = work(&mut busy, &[(0, 4, None), (1, 4, None), (2, 4, None)]);
        let elastic = Demand {
            min_count: 1,
            shapes: vec![Shape {
                min: 0,
                ..Shape::new([4].as_slice(), 3)
            }],
            ..gang(4, 3)
        };
        assert_eq!(reserve(&busy, &blockers, &elastic).unwrap().count(), 1);
    }

    #[test]
    fn a_reservation_holds_until_a_node_becomes_unusable_or_the_demand_changes() {
        let mut busy = cluster(2);
        let blockers = work(&mut busy, &[(0, 4, None), (1, 4, None)]);
        let demand = gang(4, 2);
        let reserved = reserve(&busy, &blockers, &demand).unwrap();
        let possible = |c: &Cluster, b: &[Blocker], d: &Demand| is_possible(c, b, d, &reserved);
        assert!(possible(&busy, &blockers, &demand));
        assert!(
            !possible(&busy, &blockers, &gang(4, 1)),
            "more than it needs"
        );
        assert!(
            !possible(&busy, &blockers, &gang(4, 3)),
            "less than it needs"
        );
        assert!(
            !possible(&busy, &blockers[1..], &demand),
            "something stays for ever"
        );
        let excluding = Demand {
            excluded: [1].into_iter().collect(),
            ..demand.clone()
        };
        assert!(!possible(&busy, &blockers, &excluding), "a node refuses it");
        let mut cordoned = busy.clone();
        let spec = ClusterNode {
            allocatable: smallvec![4],
            domains: vec![Some(0)],
            schedulable: false,
        };
        cordoned.upsert_node(1, &spec);
        assert!(
            !possible(&cordoned, &blockers, &demand),
            "a node is cordoned"
        );
        assert!(!is_possible(
            &busy,
            &blockers,
            &demand,
            &GangPlacement::default()
        ));
    }

    #[test]
    fn a_reservation_that_tears_the_gang_apart_is_not_possible() {
        let empty = cluster(4);
        let together = Demand {
            topology: vec![TopologyDemand {
                key: 0,
                mode: TopologyStrictness::Required,
                scope: Scope::Gang,
            }],
            ..gang(4, 2)
        };
        let on = |nodes: [NodeIx; 2]| GangPlacement {
            assignments: nodes
                .map(|node| Assignment {
                    shape: 0,
                    replica: 0,
                    node,
                    count: 1,
                })
                .into(),
        };
        assert!(is_possible(&empty, &[], &together, &on([2, 3])));
        assert!(!is_possible(&empty, &[], &together, &on([1, 2])));
        assert!(is_possible(&empty, &[], &gang(4, 2), &on([1, 2])));
    }
}
