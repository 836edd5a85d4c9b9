//! KEP-5710 as released in Kubernetes 1.37: removes all units of lower priority and places the gang
//! once. Then restores (reprieves) units in their place one by one, most important first.

use std::cmp::Reverse;

use super::{
    instance::{CandidateIx, PreemptionInstance, after_evicting},
    plan::{Explanation, PreemptionPlan},
};
use crate::{
    infeasible::Infeasible,
    objective::Bound,
    placement::{place_in, slots},
    problem::{Assignment, Demand, GangPlacement, NodeIx, Unit},
};

/// Places the gang by best fit, or member by member on the first node of `node_order` with
/// capacity.
pub(super) fn preempt(
    instance: &PreemptionInstance<'_>,
    node_order: Option<&[NodeIx]>,
) -> Result<PreemptionPlan, Infeasible> {
    let all: Vec<CandidateIx> = (0..instance.candidates.len()).collect();
    let (victims, placement) = if is_single_pod(instance.demand) {
        for_pod(instance, node_order).ok_or(())
    } else {
        Err(())
    }
    .or_else(|()| for_gang(instance, node_order, &all))?;
    let victims = instance.unit_ordinals(victims);
    let cost = instance.units.eviction_cost(&victims);
    Ok(PreemptionPlan {
        victims,
        placement,
        cost,
        bound: Bound::default(),
        proven: false,
        explanation: Explanation::default(),
    })
}

fn for_gang(
    instance: &PreemptionInstance<'_>,
    node_order: Option<&[NodeIx]>,
    all: &[CandidateIx],
) -> Result<(Vec<CandidateIx>, GangPlacement), Infeasible> {
    let free = instance.free_without(all.iter().copied());
    let order = node_order.filter(|_| instance.demand.topology.is_empty());
    let placement = order.and_then(|order| first_fit(instance, free.clone(), order));
    // First fit can miss a placement of several shapes. Then best fit decides.
    let placement = match placement {
        Some(placement) => placement,
        None => place_in(instance.placement, free.clone()).map_err(after_evicting)?,
    };
    let victims = reprieve(instance, free, &placement, all);
    Ok((victims, placement))
}

/// Places members one by one on the first node with capacity: as many as wanted, at least as many
/// as needed.
fn first_fit(
    instance: &PreemptionInstance<'_>,
    mut free: Vec<i64>,
    order: &[NodeIx],
) -> Option<GangPlacement> {
    let mut placement = GangPlacement::default();
    for (shape_ix, desired) in instance.demand.desired().into_iter().enumerate() {
        let shape = &instance.demand.shapes[shape_ix];
        let mut left = desired;
        for &node in order {
            let count = instance
                .placement
                .slots_on(&free, shape_ix, shape, node)
                .min(left);
            if count > 0 {
                instance
                    .placement
                    .take(&mut free, node, shape, i64::from(count));
                placement.assignments.push(Assignment {
                    shape: shape_ix,
                    replica: 0,
                    node,
                    count,
                });
                left -= count;
            }
        }
        if desired - left < instance.demand.needed()[shape_ix] {
            return None;
        }
    }
    placement.assignments.sort_unstable();
    Some(placement)
}

/// Importance of a unit, most important first: priority, gang over pod, larger gang, earlier start,
/// ordinal.
fn importance(unit: &Unit, candidate: CandidateIx) -> impl Ord + use<> {
    (
        Reverse(unit.priority),
        !unit.gang,
        Reverse(unit.pod_count()),
        unit.start,
        candidate,
    )
}

/// Units of `evicted` that cannot be restored next to the gang. `free`: capacity without all of
/// them.
fn reprieve(
    instance: &PreemptionInstance<'_>,
    mut free: Vec<i64>,
    placement: &GangPlacement,
    evicted: &[CandidateIx],
) -> Vec<CandidateIx> {
    let mut used = vec![false; instance.placement.cluster.node_count()];
    for assignment in &placement.assignments {
        used[assignment.node] = true;
        instance.placement.take(
            &mut free,
            assignment.node,
            &instance.demand.shapes[assignment.shape],
            i64::from(assignment.count),
        );
    }
    let mut order = evicted.to_vec();
    order.sort_by_cached_key(|&c| importance(instance.unit(c), c));
    let (violating, plain) = split_by_budget(instance, &order);
    let mut victims = Vec::new();
    for candidate in violating.into_iter().chain(plain) {
        let fits = instance
            .uses(candidate)
            .filter(|&(node, _)| used[node])
            .all(|(node, held)| {
                held.iter()
                    .zip(instance.placement.free_on(&free, node))
                    .all(|(&h, &f)| h == 0 || f >= h)
            });
        if fits {
            instance.add_free(&mut free, candidate, -1);
        } else {
            victims.push(candidate);
        }
    }
    victims
}

/// Splits units, most important first: units whose pods would make a budget negative, and the rest.
fn split_by_budget(
    instance: &PreemptionInstance<'_>,
    order: &[CandidateIx],
) -> (Vec<CandidateIx>, Vec<CandidateIx>) {
    let mut left: Vec<i64> = instance
        .units
        .pdb_allowed
        .iter()
        .map(|&a| i64::from(a))
        .collect();
    order.iter().partition(|&&candidate| {
        let mut violates = false;
        for &(pdb, pods) in &instance.unit(candidate).pdbs {
            left[pdb] -= i64::from(pods);
            violates |= left[pdb] < 0;
        }
        violates
    })
}

fn is_single_pod(demand: &Demand) -> bool {
    demand.topology.is_empty() && demand.desired().iter().sum::<u32>() == 1
}

/// A single pod: tries every node separately, and selects by the classic criteria.
fn for_pod(
    instance: &PreemptionInstance<'_>,
    node_order: Option<&[NodeIx]>,
) -> Option<(Vec<CandidateIx>, GangPlacement)> {
    let shape_ix = instance.demand.desired().iter().position(|&w| w > 0)?;
    let shape = &instance.demand.shapes[shape_ix];
    let mut on_node: Vec<Vec<CandidateIx>> =
        vec![Vec::new(); instance.placement.cluster.node_count()];
    for candidate in 0..instance.candidates.len() {
        for (node, _) in instance.uses(candidate) {
            on_node[node].push(candidate);
        }
    }
    let ordinal: Vec<NodeIx> = (0..on_node.len()).collect();
    let order = node_order.unwrap_or(&ordinal);
    let mut best = None;
    for &node in order
        .iter()
        .filter(|&&n| instance.placement.admits[shape_ix].contains(n))
    {
        let free = instance.free_without(on_node[node].iter().copied());
        if slots(instance.placement.free_on(&free, node), &shape.request) == 0 {
            continue;
        }
        let placement = GangPlacement {
            assignments: vec![Assignment {
                shape: shape_ix,
                replica: 0,
                node,
                count: 1,
            }],
        };
        let victims = reprieve(instance, free, &placement, &on_node[node]);
        let score = node_score(instance, &victims);
        if best.as_ref().is_none_or(|(top, _, _)| score < *top) {
            best = Some((score, victims, placement));
        }
    }
    best.map(|(_, victims, placement)| (victims, placement))
}

/// Classic criteria, smaller is better: PDB violations, highest victim priority, sum of priorities,
/// pods, latest start of the most important victim. The first node in order wins a tie.
fn node_score(instance: &PreemptionInstance<'_>, victims: &[CandidateIx]) -> impl Ord + use<> {
    let mut order = victims.to_vec();
    order.sort_by_cached_key(|&c| importance(instance.unit(c), c));
    let violations = split_by_budget(instance, &order).0.len();
    // As upstream, shifts negative priorities, so that more victims never have a smaller sum.
    let shifted = |c: &CandidateIx| i64::from(instance.unit(*c).priority) - i64::from(i32::MIN);
    (
        violations,
        order.first().map(shifted),
        order.iter().map(shifted).sum::<i64>(),
        order
            .iter()
            .map(|&c| instance.unit(c).pod_count())
            .sum::<u32>(),
        order.first().map(|&c| Reverse(instance.unit(c).start)),
    )
}
