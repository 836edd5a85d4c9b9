//! Where a gang is placed.
//!
//! Pods of one shape are counted, not tried: a node has so many slots for the shape, and for a gang
//! of one shape the sum of the slots decides exactly. Several shapes are packed largest first, then
//! in other orders, then by a bounded search.

pub(crate) mod domains;
mod instance;
pub(crate) mod pack;

pub(crate) use instance::{PlacementInstance, slots};

use crate::{
    cluster::Cluster,
    infeasible::Infeasible,
    problem::{Demand, GangPlacement, Scope, TopologyStrictness},
};

/// Places a gang in free capacity, or says what is missing.
///
/// The members that the gang needs are placed all or not at all, then as many of the others as fit.
/// Full and half-full nodes and domains are used before empty ones, so that whole nodes and racks
/// stay free.
pub fn place(cluster: &Cluster, demand: &Demand) -> Result<GangPlacement, Infeasible> {
    check(cluster, demand)?;
    place_in(
        &PlacementInstance::new(cluster, demand),
        cluster.free_table().to_vec(),
    )
}

/// As [`place`], in the free capacity given: what a cluster would have after evictions. The demand
/// has been checked.
pub(crate) fn place_in(
    instance: &PlacementInstance<'_>,
    mut free: Vec<i64>,
) -> Result<GangPlacement, Infeasible> {
    let mut assigned = match instance.demand.topology {
        None => pack::place_anywhere(instance, &mut free, &instance.nodes)?,
        Some(topology) => {
            let together = match topology.scope {
                Scope::Gang => domains::place_gang(instance, &free, topology.key),
                Scope::Replica => domains::place_replicas(instance, &mut free, topology.key),
            };
            match (together, topology.mode) {
                (Err(_), TopologyStrictness::Preferred) => {
                    domains::place_spread(instance, &mut free, topology)?
                }
                (result, _) => result?,
            }
        }
    };
    assigned.sort_unstable();
    assigned.dedup_by(|next, kept| {
        let same = (next.shape, next.replica, next.node) == (kept.shape, kept.replica, kept.node);
        if same {
            kept.count += next.count;
        }
        same
    });
    Ok(GangPlacement {
        assignments: assigned,
    })
}

/// Refuses demands that contradict themselves, so that everything behind may index.
pub(crate) fn check(cluster: &Cluster, demand: &Demand) -> Result<(), Infeasible> {
    let replicas = demand.topology.is_some_and(|t| t.scope == Scope::Replica);
    for shape in &demand.shapes {
        if shape.request.len() != cluster.dims() {
            return Err(Infeasible::BadDemand(
                "a request must name every resource dimension",
            ));
        }
        if shape.request.iter().any(|&a| a < 0) || shape.request.iter().all(|&a| a == 0) {
            return Err(Infeasible::BadDemand(
                "a request must ask for something, and for nothing negative",
            ));
        }
        if shape.min > shape.count || shape.running_count() > shape.count {
            return Err(Infeasible::BadDemand(
                "a shape needs or runs more pods than it counts",
            ));
        }
        if replicas && (shape.replica_size == 0 || shape.count % shape.replica_size != 0) {
            return Err(Infeasible::BadDemand(
                "the replica size must divide the count of the shape",
            ));
        }
    }
    if demand.min_count > demand.shapes.iter().map(|s| s.count).sum() {
        return Err(Infeasible::BadDemand(
            "the gang needs more pods than its shapes count",
        ));
    }
    if demand
        .topology
        .is_some_and(|t| t.key >= cluster.topology_keys())
    {
        return Err(Infeasible::BadDemand("the topology key is not in use"));
    }
    Ok(())
}
