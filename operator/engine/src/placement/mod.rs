//! Placement of gangs.
//!
//! Pods of one shape are counted: a node has a number of slots for the shape. For a gang of one
//! shape, the sum of the slots decides exactly. Several shapes are packed largest first, then by a
//! bounded search over patterns.

pub(crate) mod domains;
mod exchange;
mod instance;
mod kinds;
pub(crate) mod levels;
pub(crate) mod min_count;
pub(crate) mod mixture;
pub(crate) mod pack;
mod patterns;
mod prices;
mod repair;
mod replica_patterns;
mod replicas;
pub(crate) mod shape_pods;
mod slots;
mod steps;

pub(crate) use instance::{EXTENDED, PlacementInstance};
pub(crate) use slots::{slots, slots_up_to};
pub(crate) use steps::Steps;

pub use steps::PLACEMENT_STEPS;

use min_count::MinCount;

use crate::{
    cluster::Cluster,
    infeasible::Infeasible,
    problem::{Assignment, Demand, GangPlacement},
};

/// Each division of `minCount` among the shapes may take one part in so many of the steps.
const TRIAL_PART: u64 = 4;

/// Places a gang in free capacity, or returns the shortage.
///
/// Places all needed members or none, then as many optional members as fit. Uses partly filled
/// nodes first, and with a topology partly filled domains, so that whole ones stay free.
///
/// # Errors
///
/// [`Infeasible::GaveUp`] if it is unknown whether a gang of several shapes fits; [`place_within`]
/// can search longer.
pub fn place(cluster: &Cluster, demand: &Demand) -> Result<GangPlacement, Infeasible> {
    place_within(cluster, demand, PLACEMENT_STEPS)
}

/// As [`place`], with this step limit for the search over several shapes. A larger limit does not
/// change a found placement.
///
/// # Errors
///
/// As [`place`].
pub fn place_within(
    cluster: &Cluster,
    demand: &Demand,
    steps: u64,
) -> Result<GangPlacement, Infeasible> {
    check(cluster, demand)?;
    let place = |demand: &Demand, steps| {
        let mut instance = PlacementInstance::new(cluster, demand);
        instance.steps = Steps::new(steps);
        place_in_free(&instance)
    };
    match MinCount::of(demand) {
        None => place(demand, steps),
        Some(min_count) => min_count.first(|demand| place(demand, steps / TRIAL_PART)),
    }
}

/// As [`place_within`], without computing the shortage.
pub fn place_if_it_fits(cluster: &Cluster, demand: &Demand, steps: u64) -> Option<GangPlacement> {
    check(cluster, demand).ok()?;
    if MinCount::of(demand).is_some() {
        return place_within(cluster, demand, steps).ok();
    }
    let mut instance = PlacementInstance::new(cluster, demand);
    if demand.topology.is_empty() && !pack::has_slots(&instance, cluster.free_table()) {
        return None;
    }
    instance.steps = Steps::new(steps);
    place_in(&instance, cluster.free_table().to_vec()).ok()
}

/// Takes capacity for the needed members of a gang without topology. False if it does not fit;
/// `free` is then unchanged.
pub(crate) fn take_if_it_fits(cluster: &Cluster, demand: &Demand, free: &mut [i64]) -> bool {
    if check(cluster, demand).is_err() {
        return false;
    }
    let instance = PlacementInstance::new(cluster, demand);
    let needed = shape_pods::by_shape(&demand.needed());
    pack::has_slots(&instance, free)
        && pack::pack(&instance, free, &instance.nodes, &needed).is_ok()
}

/// As [`place_in`], in the current free capacity. Refuses most waiting gangs without a copy of the
/// table.
pub(crate) fn place_in_free(instance: &PlacementInstance<'_>) -> Result<GangPlacement, Infeasible> {
    let free = instance.cluster.free_table();
    if instance.demand.topology.is_empty() {
        pack::refuse_one_shape(instance, free)?;
    }
    place_in(instance, free.to_vec())
}

/// As [`place`], in the given free capacity, for example after evictions. The caller has checked
/// the demand.
pub(crate) fn place_in(
    instance: &PlacementInstance<'_>,
    mut free: Vec<i64>,
) -> Result<GangPlacement, Infeasible> {
    let mut place = |constraint| domains::place(instance, &mut free, constraint);
    let constraints = instance.with_preferred();
    let preferred = constraints.iter().enumerate().find_map(|(at, constraint)| {
        // An equal share, because the constraints after this one need steps, too.
        let share = instance.steps.left() / (constraints.len() - at + 1) as u64;
        let assigned = instance.steps.share(share, || place(constraint));
        assigned.ok()
    });
    let assigned = preferred.map_or_else(|| place(instance.required()), Ok);
    assigned.map(merged)
}

/// Sorts, and merges entries of one shape, replica and node.
pub(crate) fn merged(mut assigned: Vec<Assignment>) -> GangPlacement {
    assigned.sort_unstable();
    assigned.dedup_by(|next, kept| {
        let same = (next.shape, next.replica, next.node) == (kept.shape, kept.replica, kept.node);
        if same {
            kept.count += next.count;
        }
        same
    });
    GangPlacement {
        assignments: assigned,
    }
}

/// Rejects inconsistent demands, so that ordinals are valid indices.
pub(crate) fn check(cluster: &Cluster, demand: &Demand) -> Result<(), Infeasible> {
    let replicas = demand.by_replica();
    for shape in &demand.shapes {
        if shape.request.len() != cluster.dims() {
            return Err(Infeasible::BadDemand(
                "a request must name every resource dimension",
            ));
        }
        if shape.request.iter().any(|&a| a < 0) || shape.request.iter().all(|&a| a == 0) {
            return Err(Infeasible::BadDemand(
                "a request must be positive for some resource and negative for none",
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
    let mut levels = demand.topology.iter();
    if levels.any(|level| level.key >= cluster.topology_keys()) {
        return Err(Infeasible::BadDemand("the topology key is not in use"));
    }
    Ok(())
}
