//! Placement under a topology constraint: the whole gang within one domain, and each replica within
//! one domain there.

use std::cmp::Reverse;

use super::{
    instance::PlacementInstance,
    levels::{LevelConstraint, LevelDomains},
    pack::{best_fit, fill, pack, place_anywhere},
    replica_patterns::place_by_patterns,
    replicas::{Replica, Replicas, incomplete, number, slots_in},
    shape_pods::{ShapePods, by_shape},
};
use crate::{
    infeasible::{DomainPath, Infeasible},
    method::Method,
    problem::{Assignment, DomainIx, NodeIx, ShapeIx},
};

/// Places the needed members, then optional members, or leaves `free` unchanged.
pub(super) fn place(
    instance: &PlacementInstance<'_>,
    free: &mut [i64],
    constraint: &LevelConstraint,
) -> Result<Vec<Assignment>, Infeasible> {
    match &constraint.gang {
        Some(level) => place_gang(instance, free, level, constraint),
        None => place_within(instance, free, &instance.nodes, constraint),
    }
}

/// As [`place`], on these nodes and without the constraint of the whole gang.
fn place_within(
    instance: &PlacementInstance<'_>,
    free: &mut [i64],
    nodes: &[NodeIx],
    constraint: &LevelConstraint,
) -> Result<Vec<Assignment>, Infeasible> {
    match (&constraint.replica, &constraint.spread) {
        (Some(level), _) => place_replicas(instance, free, nodes, level),
        (None, Some(level)) => place_spread(instance, free, nodes, level),
        (None, None) => place_anywhere(instance, free, nodes),
    }
}

/// Places the whole gang within the domain where most members fit, and among these where the least
/// capacity remains.
fn place_gang(
    instance: &PlacementInstance<'_>,
    free: &mut [i64],
    level: &LevelDomains,
    constraint: &LevelConstraint,
) -> Result<Vec<Assignment>, Infeasible> {
    let domains = level.group(&instance.nodes);
    let pins = pins(instance, level)?;
    let needed = by_shape(&instance.demand.needed());
    let mut left = free.to_vec();
    // Most placed pods, then least remaining slots.
    let mut best: Option<(_, Vec<Assignment>)> = None;
    let mut closest: Option<Infeasible> = None;
    let is_candidate =
        |domain: usize| pins.is_none_or(|pin| pin == domain) && !domains[domain].is_empty();
    let mut remaining = (0..domains.len()).filter(|d| is_candidate(*d)).count() as u64;
    for (domain, nodes) in domains.iter().enumerate() {
        if !is_candidate(domain) {
            continue;
        }
        // An equal share of the remaining steps, so that a hard domain leaves steps for the other
        // searches.
        let share = instance.steps.left() / (remaining + 1);
        remaining -= 1;
        let within = || place_within(instance, &mut left, nodes, constraint);
        match instance.steps.share(share, within) {
            Ok(assigned) => {
                let over: u64 = instance
                    .demand
                    .shapes
                    .iter()
                    .enumerate()
                    .flat_map(|(ix, shape)| nodes.iter().map(move |&n| (ix, shape, n)))
                    .map(|(ix, shape, n)| u64::from(instance.slots_on(&left, ix, shape, n)))
                    .sum();
                let score = (assigned.iter().map(|s| s.count).sum::<u32>(), Reverse(over));
                // Equal scores keep the domain with the smaller ordinal.
                if best.as_ref().is_none_or(|(top, _)| score > *top) {
                    best = Some((score, assigned));
                }
                for &node in nodes {
                    let before = instance.free_on(free, node);
                    instance
                        .free_on_mut(&mut left, node)
                        .copy_from_slice(before);
                }
            }
            Err(reason) => {
                let path = level.path(instance.cluster, domain);
                closest = Some(closer(closest, at_domain(reason, path)));
            }
        }
    }
    match best {
        Some((_, assigned)) => {
            for a in &assigned {
                let shape = &instance.demand.shapes[a.shape];
                instance.take(free, a.node, shape, i64::from(a.count));
            }
            Ok(assigned)
        }
        // Running members can be in a domain that accepts no new pods.
        None if needed.is_empty() => Ok(Vec::new()),
        None => Err(closest.unwrap_or_else(|| nowhere(instance, free))),
    }
}

/// Places each replica within one domain: the needed replicas or none, then as many optional ones
/// as fit.
fn place_replicas(
    instance: &PlacementInstance<'_>,
    free: &mut [i64],
    nodes: &[NodeIx],
    level: &LevelDomains,
) -> Result<Vec<Assignment>, Infeasible> {
    let replicas = Replicas::new(instance, nodes, level)?;
    let mut order = replicas.largest_first();
    let before = free.to_vec();
    let mut first = None;
    // Each shape is placed first once.
    for _ in 0..order.len() {
        match replicas.one_by_one(free, &order) {
            Ok(assigned) => return Ok(replicas.with_optional(free, &order, assigned)),
            Err(reason) => first = first.or(Some(reason)),
        }
        free.copy_from_slice(&before);
        order.rotate_left(1);
    }
    let Some(reason) = first else {
        return Ok(Vec::new());
    };
    if !instance.uses(Method::ReplicaPatterns) {
        return Err(Infeasible::GaveUp { steps: 0 });
    }
    if order
        .iter()
        .any(|&shape| replicas.never_fits_alone(free, shape))
    {
        return Err(reason);
    }
    match place_by_patterns(&replicas, free, &order) {
        Ok(Some(assigned)) => Ok(replicas.with_optional(free, &order, assigned)),
        other => {
            free.copy_from_slice(&before);
            Err(other.err().unwrap_or(reason))
        }
    }
}

/// As [`place_within`] under a preferred level that is left out. As many replicas as possible still
/// share a domain.
fn place_spread(
    instance: &PlacementInstance<'_>,
    free: &mut [i64],
    nodes: &[NodeIx],
    level: &LevelDomains,
) -> Result<Vec<Assignment>, Infeasible> {
    if instance.demand.by_replica()
        && let Ok(replicas) = Replicas::new(instance, nodes, level)
    {
        let before = free.to_vec();
        if let Some(assigned) = replicas.whole_or_divided(free) {
            return Ok(assigned);
        }
        free.copy_from_slice(&before);
    }
    place_in_few_domains(instance, free, nodes, level)
}

/// Ignores domain borders, but fills domains with the most slots first, so that the gang spans few
/// domains. The last pods fill the domain with the fewest sufficient slots.
fn place_in_few_domains(
    instance: &PlacementInstance<'_>,
    free: &mut [i64],
    nodes: &[NodeIx],
    level: &LevelDomains,
) -> Result<Vec<Assignment>, Infeasible> {
    let shapes = instance.demand.shapes.len();
    let domains = level.group(nodes);
    let slots = |nodes: &[NodeIx]| -> Vec<u64> {
        let each = 0..shapes;
        each.map(|shape| slots_in(instance, free, nodes, shape))
            .collect()
    };
    let mut domains: Vec<(Vec<u64>, Vec<NodeIx>)> = domains
        .into_iter()
        .map(|nodes| (slots(&nodes), nodes))
        .collect();
    // Equal domains are used in their order.
    domains.reverse();
    domains.sort_by_key(|(slots, _)| slots.iter().sum::<u64>());
    let mut left = instance.demand.needed();
    let mut assigned = Vec::new();
    let before = free.to_vec();
    while left.iter().any(|&missing| missing > 0) && !domains.is_empty() {
        let holds_all = |(slots, _): &(Vec<u64>, Vec<NodeIx>)| {
            let mut each = slots.iter().zip(&left);
            each.all(|(&slots, &missing)| slots >= u64::from(missing))
        };
        let last = domains.iter().position(holds_all);
        let (_, in_domain) = domains.remove(last.unwrap_or(domains.len() - 1));
        for (shape, missing) in left.iter_mut().enumerate() {
            let pods = ShapePods {
                shape,
                count: *missing,
            };
            let (placed, rest) = best_fit(instance, free, &in_domain, pods);
            assigned.extend(placed);
            *missing = rest;
        }
    }
    if left.iter().any(|&m| m > 0) {
        // Some nodes have no domain, or the shapes compete. The constraint is only a preference.
        free.copy_from_slice(&before);
        assigned = pack(instance, free, nodes, &by_shape(&instance.demand.needed()))?;
    }
    fill(instance, free, nodes, &mut assigned);
    if instance.demand.by_replica() {
        assigned = number_replicas(instance, level, assigned)?;
    }
    Ok(assigned)
}

/// Divides assigned pods among the replicas in order, neighbours together.
fn number_replicas(
    instance: &PlacementInstance<'_>,
    level: &LevelDomains,
    mut assigned: Vec<Assignment>,
) -> Result<Vec<Assignment>, Infeasible> {
    assigned.sort_by_key(|s| (s.shape, level.of(s.node), s.node));
    let mut numbered = Vec::new();
    for shape in 0..instance.demand.shapes.len() {
        let replicas =
            incomplete(instance, level, shape).or_else(|_| spread_replicas(instance, shape))?;
        let of_shape = assigned.iter().filter(|s| s.shape == shape);
        numbered.extend(number(of_shape.copied(), replicas.into_iter()));
    }
    Ok(numbered)
}

/// As [`incomplete`], for replicas that span several domains under a preference.
fn spread_replicas(
    instance: &PlacementInstance<'_>,
    shape: ShapeIx,
) -> Result<Vec<Replica>, Infeasible> {
    let spec = &instance.demand.shapes[shape];
    let mut missing = vec![spec.replica_size; (spec.count / spec.replica_size) as usize];
    for running in &spec.running {
        let replica = missing
            .get_mut(running.replica as usize)
            .ok_or(Infeasible::BadDemand(
                "a running member belongs to no replica",
            ))?;
        *replica = replica.saturating_sub(running.count);
    }
    let replicas = missing.iter().zip(0u32..).map(|(&missing, ix)| Replica {
        ix,
        missing,
        domain: None,
    });
    Ok(replicas.filter(|r| r.missing > 0).collect())
}

pub(crate) fn pins(
    instance: &PlacementInstance<'_>,
    level: &LevelDomains,
) -> Result<Option<DomainIx>, Infeasible> {
    let mut pin = None;
    for running in instance.demand.shapes.iter().flat_map(|s| &s.running) {
        let domain = level.of(running.node);
        if domain.is_none() || (pin.is_some() && pin != domain) {
            return Err(Infeasible::BadDemand(
                "the running members of the gang do not share a domain",
            ));
        }
        pin = domain;
    }
    Ok(pin)
}

/// Adds the domain of the gang, unless the reason names the domain of a replica there.
fn at_domain(reason: Infeasible, path: DomainPath) -> Infeasible {
    match reason {
        Infeasible::InsufficientCapacity(mut short) if short.domain.is_empty() => {
            short.domain = path;
            Infeasible::InsufficientCapacity(short)
        }
        other => other,
    }
}

/// The reason to report: an inconclusive search, else the smaller shortage.
fn closer(first: Option<Infeasible>, new: Infeasible) -> Infeasible {
    match (first, new) {
        (Some(Infeasible::InsufficientCapacity(a)), Infeasible::InsufficientCapacity(b)) => {
            Infeasible::InsufficientCapacity(if b.pods < a.pods { b } else { a })
        }
        (None | Some(Infeasible::InsufficientCapacity(_)), new) => new,
        (Some(first), _) => first,
    }
}

fn nowhere(instance: &PlacementInstance<'_>, free: &[i64]) -> Infeasible {
    let needed = instance.demand.needed();
    let shape = needed.iter().position(|&n| n > 0).unwrap_or(0);
    match needed.get(shape) {
        Some(&missing) => {
            Infeasible::InsufficientCapacity(instance.shortfall(free, shape, &[], missing))
        }
        None => Infeasible::BadDemand("the gang has no pods"),
    }
}
