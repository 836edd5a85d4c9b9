//! Placement under a topology: the whole gang, or each replica, within one domain.

use super::{
    Site,
    pack::{Want, best_fit, fill, pack, wants},
};
use crate::{
    infeasible::Infeasible,
    problem::{DomainIx, KeyIx, NodeIx, Scope, Seat, ShapeIx, Topology},
};

/// The whole gang within one domain: where most members fit, then where least stays over.
pub(super) fn place_gang(site: &Site<'_>, free: &[i64], key: KeyIx) -> Result<Vec<Seat>, Infeasible> {
    let domains = site.nodes_by_domain(key);
    let pins = pins(site, key)?;
    let needed = wants(&site.demand.needed());
    // Most wished, most placed, least left over.
    let mut best: Option<(_, Vec<Seat>)> = None;
    let mut closest: Option<Infeasible> = None;
    for (domain, nodes) in domains.iter().enumerate() {
        if pins.is_some_and(|pin| pin != domain) || nodes.is_empty() {
            continue;
        }
        let mut room = free.to_vec();
        match pack(site, &mut room, nodes, &needed) {
            Ok(mut seats) => {
                fill(site, &mut room, nodes, &mut seats);
                let wish: u64 = seats.iter().map(|s| u64::from(site.wish(s.node)) * u64::from(s.count)).sum();
                let over: u64 = site
                    .demand
                    .shapes
                    .iter()
                    .enumerate()
                    .flat_map(|(ix, shape)| nodes.iter().map(move |&n| (ix, shape, n)))
                    .map(|(ix, shape, n)| u64::from(site.seats(&room, ix, shape, n)))
                    .sum();
                let score = (wish, seats.iter().map(|s| s.count).sum::<u32>(), std::cmp::Reverse(over));
                // Equal scores leave the domain of the smaller ordinal.
                if best.as_ref().is_none_or(|(top, _)| score > *top) {
                    best = Some((score, seats));
                }
            }
            Err(reason) => closest = Some(closer(closest, at_domain(reason, key, domain))),
        }
    }
    match best {
        Some((_, seats)) => Ok(seats),
        // Those that run may do so where nobody else may go any more.
        None if needed.is_empty() => Ok(Vec::new()),
        None => Err(closest.unwrap_or_else(|| nowhere(site, free))),
    }
}

/// Each replica within one domain, the fullest domain that has room for it first.
pub(super) fn place_replicas(site: &Site<'_>, free: &mut [i64], key: KeyIx) -> Result<Vec<Seat>, Infeasible> {
    let domains = site.nodes_by_domain(key);
    let before = free.to_vec();
    let needed = site.demand.needed();
    let mut order: Vec<ShapeIx> = (0..site.demand.shapes.len()).collect();
    order.sort_by_key(|&s| {
        let shape = &site.demand.shapes[s];
        std::cmp::Reverse(i64::from(shape.replica_size) * shape.request[super::scarce(shape)])
    });
    let mut first = None;
    // Rotating the order is the bounded backtracking between groups: each gets the first choice once.
    for _ in 0..order.len().max(1) {
        free.copy_from_slice(&before);
        match replicas_in_order(site, free, key, &domains, &order, &needed) {
            Ok(seats) => return Ok(seats),
            Err(reason) => first = first.or(Some(reason)),
        }
        let turn = 1.min(order.len());
        order.rotate_left(turn);
    }
    free.copy_from_slice(&before);
    match first {
        // With one shape the count of seats per domain decides; with several a miss proves nothing.
        Some(reason) if order.len() < 2 => Err(reason),
        Some(reason) => Err(if alone_impossible(site, free, key, &domains, &needed) {
            reason
        } else {
            Infeasible::GaveUp { steps: order.len() as u64 }
        }),
        None => Ok(Vec::new()),
    }
}

/// Whether some shape has no room even if it had the cluster for itself.
fn alone_impossible(site: &Site<'_>, free: &[i64], key: KeyIx, domains: &[Vec<NodeIx>], needed: &[u32]) -> bool {
    (0..site.demand.shapes.len()).any(|s| {
        let mut room = free.to_vec();
        replicas_in_order(site, &mut room, key, domains, &[s], needed).is_err()
    })
}

fn replicas_in_order(
    site: &Site<'_>,
    free: &mut [i64],
    key: KeyIx,
    domains: &[Vec<NodeIx>],
    order: &[ShapeIx],
    needed: &[u32],
) -> Result<Vec<Seat>, Infeasible> {
    let mut seats = Vec::new();
    let mut waiting = Vec::new();
    for &s in order {
        let (placed, rest) = replicas_of(site, free, key, domains, s, needed[s])?;
        seats.extend(placed);
        waiting.push((s, rest));
    }
    // What the gang would like besides comes after what every shape needs.
    for (s, rest) in waiting {
        let mut tally = Tally::new(site, free, domains, s);
        for replica in rest {
            let Some(domain) = tally.take(replica) else { continue };
            seats.extend(put(site, free, &domains[domain], s, replica));
        }
    }
    Ok(seats)
}

/// A replica that misses members.
#[derive(Clone, Copy)]
struct Replica {
    ix: u32,
    missing: u32,
    /// The domain where its other members run.
    domain: Option<DomainIx>,
}

/// Places replicas of one shape until `needed` pods are placed; returns those left over.
fn replicas_of(
    site: &Site<'_>,
    free: &mut [i64],
    key: KeyIx,
    domains: &[Vec<NodeIx>],
    shape: ShapeIx,
    needed: u32,
) -> Result<(Vec<Seat>, Vec<Replica>), Infeasible> {
    let mut todo = incomplete(site, key, shape)?.into_iter();
    let mut tally = Tally::new(site, free, domains, shape);
    let mut seats = Vec::new();
    let mut placed = 0;
    while placed < needed {
        let Some(replica) = todo.next() else { break };
        let Some(domain) = tally.take(replica) else {
            let missing = needed - placed;
            return Err(shortest(site, free, key, domains, shape, replica, missing));
        };
        placed += replica.missing;
        seats.extend(put(site, free, &domains[domain], shape, replica));
    }
    Ok((seats, todo.collect()))
}

/// The replicas of a shape that miss members, those with running members first.
fn incomplete(site: &Site<'_>, key: KeyIx, shape: ShapeIx) -> Result<Vec<Replica>, Infeasible> {
    let spec = &site.demand.shapes[shape];
    let mut replicas: Vec<Replica> = (0..spec.count / spec.replica_size)
        .map(|ix| Replica { ix, missing: spec.replica_size, domain: None })
        .collect();
    for running in &spec.running {
        let Some(replica) = replicas.get_mut(running.replica as usize) else {
            return Err(Infeasible::BadDemand("a running member belongs to no replica"));
        };
        let domain = site.cluster.domain(running.node, key);
        if running.count > replica.missing || (replica.domain.is_some() && replica.domain != domain) {
            return Err(Infeasible::BadDemand("the running members of a replica are too many or in two domains"));
        }
        replica.missing -= running.count;
        replica.domain = domain;
    }
    replicas.retain(|r| r.missing > 0);
    replicas.sort_by_key(|r| (r.domain.is_none(), r.ix));
    Ok(replicas)
}

fn seats_in(site: &Site<'_>, free: &[i64], nodes: &[NodeIx], shape: ShapeIx) -> u64 {
    nodes.iter().map(|&n| u64::from(site.seats(free, shape, &site.demand.shapes[shape], n))).sum()
}

/// Seats of one shape per domain while its replicas are placed.
struct Tally {
    seats: Vec<u64>,
    wish: Vec<u32>,
}

impl Tally {
    fn new(site: &Site<'_>, free: &[i64], domains: &[Vec<NodeIx>], shape: ShapeIx) -> Self {
        let wish = |nodes: &Vec<NodeIx>| nodes.iter().map(|&n| site.wish(n)).max().unwrap_or(0);
        Self {
            seats: domains.iter().map(|nodes| seats_in(site, free, nodes, shape)).collect(),
            wish: domains.iter().map(wish).collect(),
        }
    }

    /// The domain for a replica: where it was before, else the one with the fewest seats that suffice. Takes the seats.
    fn take(&mut self, replica: Replica) -> Option<DomainIx> {
        let missing = u64::from(replica.missing);
        let domain = (0..self.seats.len())
            .filter(|&d| replica.domain.is_none_or(|p| p == d) && self.seats[d] >= missing)
            .min_by_key(|&d| (std::cmp::Reverse(self.wish[d]), self.seats[d], d))?;
        self.seats[domain] -= missing;
        Some(domain)
    }
}

fn put(site: &Site<'_>, free: &mut [i64], nodes: &[NodeIx], shape: ShapeIx, replica: Replica) -> Vec<Seat> {
    let (mut seats, _) = best_fit(site, free, nodes, Want { shape, count: replica.missing });
    for seat in &mut seats {
        seat.replica = replica.ix;
    }
    seats
}

/// The domain that comes closest to holding the replica.
fn shortest(
    site: &Site<'_>,
    free: &[i64],
    key: KeyIx,
    domains: &[Vec<NodeIx>],
    shape: ShapeIx,
    replica: Replica,
    missing: u32,
) -> Infeasible {
    let seats = |&d: &DomainIx| seats_in(site, free, &domains[d], shape);
    let candidates = (0..domains.len()).filter(|&d| replica.domain.is_none_or(|p| p == d));
    let Some(domain) = candidates.max_by_key(|d| (seats(d), std::cmp::Reverse(*d))) else {
        return Infeasible::NoRoom(site.shortfall(free, shape, &site.demand.shapes[shape], &[], missing));
    };
    let lacking = replica.missing - (seats(&domain) as u32).min(replica.missing);
    let short = site.shortfall(free, shape, &site.demand.shapes[shape], &domains[domain], lacking);
    at_domain(Infeasible::NoRoom(short), key, domain)
}

/// Without regard to domain borders, but filling the roomiest domains first so that few are touched.
pub(super) fn place_spread(site: &Site<'_>, free: &mut [i64], topology: Topology) -> Result<Vec<Seat>, Infeasible> {
    let mut domains = site.nodes_by_domain(topology.key);
    let total =
        |nodes: &Vec<NodeIx>| -> u64 { (0..site.demand.shapes.len()).map(|s| seats_in(site, free, nodes, s)).sum() };
    domains.sort_by_cached_key(|nodes| std::cmp::Reverse(total(nodes)));
    let mut left = site.demand.needed();
    let mut seats = Vec::new();
    let before = free.to_vec();
    for nodes in &domains {
        for (shape, missing) in left.iter_mut().enumerate() {
            let (placed, rest) = best_fit(site, free, nodes, Want { shape, count: *missing });
            seats.extend(placed);
            *missing = rest;
        }
    }
    if left.iter().any(|&m| m > 0) {
        // Nodes without a domain, or shapes in each other's way: the topology was only a preference.
        free.copy_from_slice(&before);
        seats = pack(site, free, &site.nodes, &wants(&site.demand.needed()))?;
    }
    fill(site, free, &site.nodes, &mut seats);
    Ok(if topology.scope == Scope::Replica { number_replicas(site, topology.key, seats)? } else { seats })
}

/// Gives seats that were chosen without regard to replicas to the replicas in order, neighbours together.
fn number_replicas(site: &Site<'_>, key: KeyIx, mut seats: Vec<Seat>) -> Result<Vec<Seat>, Infeasible> {
    seats.sort_by_key(|s| (s.shape, site.cluster.domain(s.node, key), s.node));
    let mut numbered = Vec::new();
    for shape in 0..site.demand.shapes.len() {
        let mut replicas = incomplete(site, key, shape).or_else(|_| spread_replicas(site, shape))?;
        let mut at = 0;
        for mut seat in seats.iter().copied().filter(|s| s.shape == shape) {
            while seat.count > 0 && at < replicas.len() {
                let count = seat.count.min(replicas[at].missing);
                numbered.push(Seat { replica: replicas[at].ix, count, ..seat });
                seat.count -= count;
                replicas[at].missing -= count;
                at += usize::from(replicas[at].missing == 0);
            }
        }
    }
    Ok(numbered)
}

/// As [`incomplete`], for replicas that a preference has already spread over domains.
fn spread_replicas(site: &Site<'_>, shape: ShapeIx) -> Result<Vec<Replica>, Infeasible> {
    let spec = &site.demand.shapes[shape];
    let mut missing = vec![spec.replica_size; (spec.count / spec.replica_size) as usize];
    for running in &spec.running {
        let replica = missing.get_mut(running.replica as usize);
        let replica = replica.ok_or(Infeasible::BadDemand("a running member belongs to no replica"))?;
        *replica = replica.saturating_sub(running.count);
    }
    let replicas = missing.iter().zip(0u32..).map(|(&missing, ix)| Replica { ix, missing, domain: None });
    Ok(replicas.filter(|r| r.missing > 0).collect())
}

/// The domain that running members pin the gang to.
pub(crate) fn pins(site: &Site<'_>, key: KeyIx) -> Result<Option<DomainIx>, Infeasible> {
    let mut pin = None;
    for running in site.demand.shapes.iter().flat_map(|s| &s.running) {
        let domain = site.cluster.domain(running.node, key);
        if domain.is_none() || (pin.is_some() && pin != domain) {
            return Err(Infeasible::BadDemand("the running members of the gang do not share a domain"));
        }
        pin = domain;
    }
    Ok(pin)
}

fn at_domain(reason: Infeasible, key: KeyIx, domain: DomainIx) -> Infeasible {
    match reason {
        Infeasible::NoRoom(mut short) => {
            short.domain = Some((key, domain));
            Infeasible::NoRoom(short)
        }
        other => other,
    }
}

/// Of two reasons the one to show: a search that gave up leaves hope, else the smaller shortfall.
fn closer(known: Option<Infeasible>, new: Infeasible) -> Infeasible {
    match (known, new) {
        (Some(Infeasible::NoRoom(a)), Infeasible::NoRoom(b)) => Infeasible::NoRoom(if b.pods < a.pods { b } else { a }),
        (None | Some(Infeasible::NoRoom(_)), new) => new,
        (Some(known), _) => known,
    }
}

/// No domain has a usable node.
fn nowhere(site: &Site<'_>, free: &[i64]) -> Infeasible {
    let needed = site.demand.needed();
    let shape = needed.iter().position(|&n| n > 0).unwrap_or(0);
    match site.demand.shapes.get(shape) {
        Some(spec) => Infeasible::NoRoom(site.shortfall(free, shape, spec, &[], needed[shape])),
        None => Infeasible::BadDemand("the gang has no pods"),
    }
}
