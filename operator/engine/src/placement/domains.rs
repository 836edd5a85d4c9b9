//! Placement under a topology constraint: the whole gang, or each replica, within one domain.

use super::{
    instance::PlacementInstance,
    pack::{best_fit, fill, pack},
    want::{Want, wants},
};
use crate::{
    infeasible::Infeasible,
    problem::{Assignment, DomainIx, KeyIx, NodeIx, Scope, ShapeIx, TopologyDemand},
};

/// Places the whole gang within the domain where most members fit, and among these where the least
/// capacity remains.
pub(super) fn place_gang(
    instance: &PlacementInstance<'_>,
    free: &[i64],
    key: KeyIx,
) -> Result<Vec<Assignment>, Infeasible> {
    let domains = instance.nodes_by_domain(key);
    let pins = pins(instance, key)?;
    let needed = wants(&instance.demand.needed());
    // Most placed pods, then least remaining slots.
    let mut best: Option<(_, Vec<Assignment>)> = None;
    let mut closest: Option<Infeasible> = None;
    let asked = |domain: usize| pins.is_none_or(|pin| pin == domain) && !domains[domain].is_empty();
    let mut still_asked = (0..domains.len()).filter(|d| asked(*d)).count() as u64;
    for (domain, nodes) in domains.iter().enumerate() {
        if !asked(domain) {
            continue;
        }
        let mut left = free.to_vec();
        // An equal share of the remaining steps, so that a hard domain leaves steps for the other
        // searches.
        let share = instance.steps.left() / (still_asked + 1);
        still_asked -= 1;
        let packed = instance
            .steps
            .share(share, || pack(instance, &mut left, nodes, &needed));
        match packed {
            Ok(mut assigned) => {
                fill(instance, &mut left, nodes, &mut assigned);
                let over: u64 = instance
                    .demand
                    .shapes
                    .iter()
                    .enumerate()
                    .flat_map(|(ix, shape)| nodes.iter().map(move |&n| (ix, shape, n)))
                    .map(|(ix, shape, n)| u64::from(instance.slots_on(&left, ix, shape, n)))
                    .sum();
                let score = (
                    assigned.iter().map(|s| s.count).sum::<u32>(),
                    std::cmp::Reverse(over),
                );
                // Equal scores keep the domain with the smaller ordinal.
                if best.as_ref().is_none_or(|(top, _)| score > *top) {
                    best = Some((score, assigned));
                }
            }
            Err(reason) => closest = Some(closer(closest, at_domain(reason, key, domain))),
        }
    }
    match best {
        Some((_, assigned)) => Ok(assigned),
        // Running members can be in a domain that accepts no new pods.
        None if needed.is_empty() => Ok(Vec::new()),
        None => Err(closest.unwrap_or_else(|| nowhere(instance, free))),
    }
}

/// Places each replica within one domain, the fullest domain with enough slots first.
pub(super) fn place_replicas(
    instance: &PlacementInstance<'_>,
    free: &mut [i64],
    key: KeyIx,
) -> Result<Vec<Assignment>, Infeasible> {
    let domains = instance.nodes_by_domain(key);
    let before = free.to_vec();
    let needed = instance.demand.needed();
    let mut order: Vec<ShapeIx> = (0..instance.demand.shapes.len()).collect();
    order.sort_by_key(|&s| {
        let members = i128::from(instance.demand.shapes[s].replica_size);
        std::cmp::Reverse(members * instance.scarce[s].part)
    });
    let mut first = None;
    // Bounded backtracking: a rotated order gives each shape the first choice once.
    for _ in 0..order.len().max(1) {
        free.copy_from_slice(&before);
        match replicas_in_order(instance, free, key, &domains, &order, &needed) {
            Ok(assigned) => return Ok(assigned),
            Err(reason) => first = first.or(Some(reason)),
        }
        let turn = 1.min(order.len());
        order.rotate_left(turn);
    }
    free.copy_from_slice(&before);
    match first {
        // With one shape, the slots per domain decide. With several, a failure proves nothing.
        Some(reason) if order.len() < 2 => Err(reason),
        Some(reason) => Err(
            if alone_impossible(instance, free, key, &domains, &needed)
                || apart_impossible(instance, free, &needed)
            {
                reason
            } else {
                Infeasible::GaveUp {
                    steps: order.len() as u64,
                }
            },
        ),
        None => Ok(Vec::new()),
    }
}

/// True if a shape does not fit even alone.
fn alone_impossible(
    instance: &PlacementInstance<'_>,
    free: &[i64],
    key: KeyIx,
    domains: &[Vec<NodeIx>],
    needed: &[u32],
) -> bool {
    (0..instance.demand.shapes.len()).any(|s| {
        let mut left = free.to_vec();
        replicas_in_order(instance, &mut left, key, domains, &[s], needed).is_err()
    })
}

/// True if the members do not fit even without the constraint.
fn apart_impossible(instance: &PlacementInstance<'_>, free: &[i64], needed: &[u32]) -> bool {
    let mut left = free.to_vec();
    let packed = pack(instance, &mut left, &instance.nodes, &wants(needed));
    matches!(packed, Err(Infeasible::InsufficientCapacity(_)))
}

fn replicas_in_order(
    instance: &PlacementInstance<'_>,
    free: &mut [i64],
    key: KeyIx,
    domains: &[Vec<NodeIx>],
    order: &[ShapeIx],
    needed: &[u32],
) -> Result<Vec<Assignment>, Infeasible> {
    let mut assigned = Vec::new();
    let mut waiting = Vec::new();
    for &s in order {
        let (placed, rest) = replicas_of(instance, free, key, domains, s, needed[s])?;
        assigned.extend(placed);
        waiting.push((s, rest));
    }
    // Optional members follow after the needed members of every shape.
    for (s, rest) in waiting {
        let mut tally = Tally::new(instance, free, domains, s);
        for replica in rest {
            let Some(domain) = tally.take(replica) else {
                continue;
            };
            assigned.extend(put(instance, free, &domains[domain], s, replica));
        }
    }
    Ok(assigned)
}

#[derive(Clone, Copy)]
struct Replica {
    ix: u32,
    missing: u32,
    domain: Option<DomainIx>,
}

/// Places replicas of one shape until `needed` pods are placed. Returns the remaining replicas.
fn replicas_of(
    instance: &PlacementInstance<'_>,
    free: &mut [i64],
    key: KeyIx,
    domains: &[Vec<NodeIx>],
    shape: ShapeIx,
    needed: u32,
) -> Result<(Vec<Assignment>, Vec<Replica>), Infeasible> {
    let mut todo = incomplete(instance, key, shape)?.into_iter();
    let mut tally = Tally::new(instance, free, domains, shape);
    let mut assigned = Vec::new();
    let mut placed = 0;
    while placed < needed {
        let Some(replica) = todo.next() else { break };
        let Some(domain) = tally.take(replica) else {
            let missing = needed - placed;
            return Err(shortest(
                instance, free, key, domains, shape, replica, missing,
            ));
        };
        placed += replica.missing;
        assigned.extend(put(instance, free, &domains[domain], shape, replica));
    }
    Ok((assigned, todo.collect()))
}

/// Incomplete replicas of a shape, replicas with running members first.
fn incomplete(
    instance: &PlacementInstance<'_>,
    key: KeyIx,
    shape: ShapeIx,
) -> Result<Vec<Replica>, Infeasible> {
    let spec = &instance.demand.shapes[shape];
    let mut replicas: Vec<Replica> = (0..spec.count / spec.replica_size)
        .map(|ix| Replica {
            ix,
            missing: spec.replica_size,
            domain: None,
        })
        .collect();
    for running in &spec.running {
        let Some(replica) = replicas.get_mut(running.replica as usize) else {
            return Err(Infeasible::BadDemand(
                "a running member belongs to no replica",
            ));
        };
        let domain = instance.cluster.domain(running.node, key);
        if running.count > replica.missing || (replica.domain.is_some() && replica.domain != domain)
        {
            return Err(Infeasible::BadDemand(
                "the running members of a replica are too many or in two domains",
            ));
        }
        replica.missing -= running.count;
        replica.domain = domain;
    }
    replicas.retain(|r| r.missing > 0);
    replicas.sort_by_key(|r| (r.domain.is_none(), r.ix));
    Ok(replicas)
}

fn slots_in(
    instance: &PlacementInstance<'_>,
    free: &[i64],
    nodes: &[NodeIx],
    shape: ShapeIx,
) -> u64 {
    nodes
        .iter()
        .map(|&n| u64::from(instance.slots_on(free, shape, &instance.demand.shapes[shape], n)))
        .sum()
}

fn slots_of_all(instance: &PlacementInstance<'_>, free: &[i64], nodes: &[NodeIx]) -> u64 {
    let shapes = 0..instance.demand.shapes.len();
    shapes.map(|s| slots_in(instance, free, nodes, s)).sum()
}

struct Tally {
    slots: Vec<u64>,
}

impl Tally {
    fn new(
        instance: &PlacementInstance<'_>,
        free: &[i64],
        domains: &[Vec<NodeIx>],
        shape: ShapeIx,
    ) -> Self {
        Self {
            slots: domains
                .iter()
                .map(|nodes| slots_in(instance, free, nodes, shape))
                .collect(),
        }
    }

    /// Takes the slots of a replica in the domain of its running members, else in the domain with
    /// the fewest sufficient slots.
    fn take(&mut self, replica: Replica) -> Option<DomainIx> {
        let missing = u64::from(replica.missing);
        let domain = (0..self.slots.len())
            .filter(|&d| replica.domain.is_none_or(|p| p == d) && self.slots[d] >= missing)
            .min_by_key(|&d| (self.slots[d], d))?;
        self.slots[domain] -= missing;
        Some(domain)
    }
}

fn put(
    instance: &PlacementInstance<'_>,
    free: &mut [i64],
    nodes: &[NodeIx],
    shape: ShapeIx,
    replica: Replica,
) -> Vec<Assignment> {
    let (mut assigned, _) = best_fit(
        instance,
        free,
        nodes,
        Want {
            shape,
            count: replica.missing,
        },
    );
    for assignment in &mut assigned {
        assignment.replica = replica.ix;
    }
    assigned
}

/// Shortage in the domain with the most slots for the replica.
fn shortest(
    instance: &PlacementInstance<'_>,
    free: &[i64],
    key: KeyIx,
    domains: &[Vec<NodeIx>],
    shape: ShapeIx,
    replica: Replica,
    missing: u32,
) -> Infeasible {
    let slots = |&d: &DomainIx| slots_in(instance, free, &domains[d], shape);
    let candidates = (0..domains.len()).filter(|&d| replica.domain.is_none_or(|p| p == d));
    let Some(domain) = candidates.max_by_key(|d| (slots(d), std::cmp::Reverse(*d))) else {
        return Infeasible::InsufficientCapacity(instance.shortfall(
            free,
            shape,
            &instance.demand.shapes[shape],
            &[],
            missing,
        ));
    };
    let lacking = replica.missing - (slots(&domain) as u32).min(replica.missing);
    let short = instance.shortfall(
        free,
        shape,
        &instance.demand.shapes[shape],
        &domains[domain],
        lacking,
    );
    at_domain(Infeasible::InsufficientCapacity(short), key, domain)
}

/// Ignores domain borders, but fills domains with the most slots first, so that the gang spans few
/// domains.
pub(super) fn place_spread(
    instance: &PlacementInstance<'_>,
    free: &mut [i64],
    topology: TopologyDemand,
) -> Result<Vec<Assignment>, Infeasible> {
    let mut domains = instance.nodes_by_domain(topology.key);
    domains.sort_by_cached_key(|nodes| std::cmp::Reverse(slots_of_all(instance, free, nodes)));
    let mut left = instance.demand.needed();
    let mut assigned = Vec::new();
    let before = free.to_vec();
    for nodes in &domains {
        for (shape, missing) in left.iter_mut().enumerate() {
            let (placed, rest) = best_fit(
                instance,
                free,
                nodes,
                Want {
                    shape,
                    count: *missing,
                },
            );
            assigned.extend(placed);
            *missing = rest;
        }
    }
    if left.iter().any(|&m| m > 0) {
        // Some nodes have no domain, or the shapes compete. The constraint is only a preference.
        free.copy_from_slice(&before);
        assigned = pack(
            instance,
            free,
            &instance.nodes,
            &wants(&instance.demand.needed()),
        )?;
    }
    fill(instance, free, &instance.nodes, &mut assigned);
    Ok(if topology.scope == Scope::Replica {
        number_replicas(instance, topology.key, assigned)?
    } else {
        assigned
    })
}

/// Divides assigned pods among the replicas in order, neighbours together.
fn number_replicas(
    instance: &PlacementInstance<'_>,
    key: KeyIx,
    mut assigned: Vec<Assignment>,
) -> Result<Vec<Assignment>, Infeasible> {
    assigned.sort_by_key(|s| (s.shape, instance.cluster.domain(s.node, key), s.node));
    let mut numbered = Vec::new();
    for shape in 0..instance.demand.shapes.len() {
        let mut replicas =
            incomplete(instance, key, shape).or_else(|_| spread_replicas(instance, shape))?;
        let mut at = 0;
        for mut assignment in assigned.iter().copied().filter(|s| s.shape == shape) {
            while assignment.count > 0 && at < replicas.len() {
                let count = assignment.count.min(replicas[at].missing);
                numbered.push(Assignment {
                    replica: replicas[at].ix,
                    count,
                    ..assignment
                });
                assignment.count -= count;
                replicas[at].missing -= count;
                at += usize::from(replicas[at].missing == 0);
            }
        }
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
        let replica = missing.get_mut(running.replica as usize);
        let replica = replica.ok_or(Infeasible::BadDemand(
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
    key: KeyIx,
) -> Result<Option<DomainIx>, Infeasible> {
    let mut pin = None;
    for running in instance.demand.shapes.iter().flat_map(|s| &s.running) {
        let domain = instance.cluster.domain(running.node, key);
        if domain.is_none() || (pin.is_some() && pin != domain) {
            return Err(Infeasible::BadDemand(
                "the running members of the gang do not share a domain",
            ));
        }
        pin = domain;
    }
    Ok(pin)
}

fn at_domain(reason: Infeasible, key: KeyIx, domain: DomainIx) -> Infeasible {
    match reason {
        Infeasible::InsufficientCapacity(mut short) => {
            short.domain = Some((key, domain));
            Infeasible::InsufficientCapacity(short)
        }
        other => other,
    }
}

/// The reason to report: an inconclusive search, else the smaller shortage.
fn closer(known: Option<Infeasible>, new: Infeasible) -> Infeasible {
    match (known, new) {
        (Some(Infeasible::InsufficientCapacity(a)), Infeasible::InsufficientCapacity(b)) => {
            Infeasible::InsufficientCapacity(if b.pods < a.pods { b } else { a })
        }
        (None | Some(Infeasible::InsufficientCapacity(_)), new) => new,
        (Some(known), _) => known,
    }
}

fn nowhere(instance: &PlacementInstance<'_>, free: &[i64]) -> Infeasible {
    let needed = instance.demand.needed();
    let shape = needed.iter().position(|&n| n > 0).unwrap_or(0);
    match instance.demand.shapes.get(shape) {
        Some(spec) => Infeasible::InsufficientCapacity(instance.shortfall(
            free,
            shape,
            spec,
            &[],
            needed[shape],
        )),
        None => Infeasible::BadDemand("the gang has no pods"),
    }
}
