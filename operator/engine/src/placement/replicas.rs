//! Placement of replicas, each within one domain.
//!
//! Places one replica after the other. [`super::replica_patterns`] searches further.

use std::cmp::Reverse;

use super::{
    instance::PlacementInstance, levels::LevelDomains, pack::best_fit, shape_pods::ShapePods,
};
use crate::{
    infeasible::Infeasible,
    problem::{Assignment, DomainIx, NodeIx, ShapeIx},
};

#[derive(Clone, Copy, Debug)]
pub(super) struct Replica {
    pub ix: u32,
    pub missing: u32,
    /// Domain of its running members.
    pub domain: Option<DomainIx>,
}

/// The incomplete replicas of a shape, replicas with running members first.
pub(super) struct Incomplete {
    pub needed: Vec<Replica>,
    optional: Vec<Replica>,
}

/// Incomplete replicas of a shape, replicas with running members first.
pub(super) fn incomplete(
    instance: &PlacementInstance<'_>,
    level: &LevelDomains,
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
        let domain = level.of(running.node);
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

/// Divides assigned pods of one shape among these replicas in order.
pub(super) fn number(
    assigned: impl Iterator<Item = Assignment>,
    replicas: impl Iterator<Item = Replica>,
) -> Vec<Assignment> {
    let mut numbered = Vec::new();
    let mut replicas = replicas.filter(|r| r.missing > 0).peekable();
    for mut assignment in assigned {
        while let Some(replica) = replicas.peek_mut().filter(|_| assignment.count > 0) {
            let count = assignment.count.min(replica.missing);
            numbered.push(Assignment {
                replica: replica.ix,
                count,
                ..assignment
            });
            assignment.count -= count;
            replica.missing -= count;
            if replica.missing == 0 {
                replicas.next();
            }
        }
    }
    numbered
}

/// The replicas to place, and the domains.
pub(super) struct Replicas<'p> {
    pub instance: &'p PlacementInstance<'p>,
    level: &'p LevelDomains,
    /// Usable nodes by domain.
    pub domains: Vec<Vec<NodeIx>>,
    /// Usable nodes in no domain.
    outside: Vec<NodeIx>,
    /// For each shape: its incomplete replicas.
    pub groups: Vec<Incomplete>,
}

impl<'p> Replicas<'p> {
    pub fn new(
        instance: &'p PlacementInstance<'p>,
        nodes: &[NodeIx],
        level: &'p LevelDomains,
    ) -> Result<Self, Infeasible> {
        let mut groups = Vec::new();
        for (shape, needed) in instance.demand.needed().into_iter().enumerate() {
            let mut all = incomplete(instance, level, shape)?;
            let mut placed = 0;
            let enough = all.iter().position(|replica| {
                let enough = placed >= needed;
                placed += replica.missing;
                enough
            });
            let optional = enough.map_or_else(Vec::new, |at| all.split_off(at));
            groups.push(Incomplete {
                needed: all,
                optional,
            });
        }
        Ok(Self {
            instance,
            level,
            domains: level.group(nodes),
            outside: nodes
                .iter()
                .copied()
                .filter(|&n| level.of(n).is_none())
                .collect(),
            groups,
        })
    }

    /// Part of the scarcest resource that a replica of a shape needs.
    pub fn size(&self, shape: ShapeIx) -> i128 {
        let members = i128::from(self.instance.demand.shapes[shape].replica_size);
        members * self.instance.scarce[shape].part
    }

    /// The shapes, largest replicas first.
    pub fn largest_first(&self) -> Vec<ShapeIx> {
        let mut order: Vec<ShapeIx> = (0..self.groups.len()).collect();
        order.sort_by_key(|&shape| Reverse(self.size(shape)));
        order
    }

    /// Places as many replicas as possible within one domain, and divides the others among few
    /// domains. `None` if a needed pod is left.
    pub fn whole_or_divided(&self, free: &mut [i64]) -> Option<Vec<Assignment>> {
        let (mut assigned, mut divided) = (Vec::new(), Vec::new());
        let order = self.largest_first();
        for needed in [true, false] {
            for &shape in &order {
                let group = &self.groups[shape];
                let replicas = if needed {
                    &group.needed
                } else {
                    &group.optional
                };
                let mut tally = Tally::new(self.instance, free, &self.domains, shape);
                for &replica in replicas {
                    match tally.take(replica) {
                        Some(domain) => assigned.extend(self.put(free, domain, shape, replica)),
                        None => divided.push((shape, replica)),
                    }
                }
            }
            for (shape, replica) in divided.drain(..) {
                let (parts, missing) = self.divide(free, shape, replica);
                if needed && missing > 0 {
                    return None;
                }
                assigned.extend(parts);
            }
        }
        Some(assigned)
    }

    /// Places a replica beside its running members, then in domains with the most slots. Returns
    /// the number of pods that are left, too.
    fn divide(
        &self,
        free: &mut [i64],
        shape: ShapeIx,
        mut replica: Replica,
    ) -> (Vec<Assignment>, u32) {
        let slots = |nodes: &[NodeIx]| slots_in(self.instance, free, nodes, shape);
        let each = self.domains.iter().enumerate();
        let mut domains: Vec<_> = each
            .map(|(ix, nodes)| (replica.domain != Some(ix), Reverse(slots(nodes)), nodes))
            .collect();
        domains.sort_by_key(|&(foreign, slots, _)| (foreign, slots));
        let mut assigned = Vec::new();
        let nodes = domains.into_iter().map(|(.., nodes)| nodes);
        for nodes in nodes.chain([&self.outside]) {
            let (parts, missing) = self.put_in(free, nodes, shape, replica);
            assigned.extend(parts);
            replica.missing = missing;
            if missing == 0 {
                break;
            }
        }
        (assigned, replica.missing)
    }

    /// Places the needed replicas in this order of shapes, each in the fullest domain with enough
    /// slots.
    pub fn one_by_one(
        &self,
        free: &mut [i64],
        order: &[ShapeIx],
    ) -> Result<Vec<Assignment>, Infeasible> {
        let mut assigned = Vec::new();
        for &shape in order {
            let replicas = &self.groups[shape].needed;
            let mut tally = Tally::new(self.instance, free, &self.domains, shape);
            for (at, &replica) in replicas.iter().enumerate() {
                let Some(domain) = tally.take(replica) else {
                    let missing = replicas[at..].iter().map(|r| r.missing).sum();
                    return Err(self.shortest(free, shape, replica, missing));
                };
                assigned.extend(self.put(free, domain, shape, replica));
            }
        }
        Ok(assigned)
    }

    /// Adds the optional replicas that fit.
    pub fn with_optional(
        &self,
        free: &mut [i64],
        order: &[ShapeIx],
        mut assigned: Vec<Assignment>,
    ) -> Vec<Assignment> {
        for &shape in order {
            let replicas = &self.groups[shape].optional;
            if replicas.is_empty() {
                continue;
            }
            let mut tally = Tally::new(self.instance, free, &self.domains, shape);
            for &replica in replicas {
                if let Some(domain) = tally.take(replica) {
                    assigned.extend(self.put(free, domain, shape, replica));
                }
            }
        }
        assigned
    }

    /// True if the needed replicas of a shape do not fit even without the other shapes. For one
    /// shape, the slots per domain decide.
    pub fn never_fits_alone(&self, free: &[i64], shape: ShapeIx) -> bool {
        let mut left = free.to_vec();
        self.one_by_one(&mut left, &[shape]).is_err()
    }

    fn put(
        &self,
        free: &mut [i64],
        domain: DomainIx,
        shape: ShapeIx,
        replica: Replica,
    ) -> Vec<Assignment> {
        self.put_in(free, &self.domains[domain], shape, replica).0
    }

    /// Places a replica on these nodes. Returns the number of pods that are left, too.
    fn put_in(
        &self,
        free: &mut [i64],
        nodes: &[NodeIx],
        shape: ShapeIx,
        replica: Replica,
    ) -> (Vec<Assignment>, u32) {
        let count = replica.missing;
        let (mut assigned, left) = best_fit(self.instance, free, nodes, ShapePods { shape, count });
        for assignment in &mut assigned {
            assignment.replica = replica.ix;
        }
        (assigned, left)
    }

    /// Shortage in the domain with the most slots for the replica.
    fn shortest(&self, free: &[i64], shape: ShapeIx, replica: Replica, missing: u32) -> Infeasible {
        let slots = |&d: &DomainIx| slots_in(self.instance, free, &self.domains[d], shape);
        let candidates = (0..self.domains.len()).filter(|&d| replica.domain.is_none_or(|p| p == d));
        let Some(domain) =
            candidates.max_by_key(|d| (slots(d), !self.domains[*d].is_empty(), Reverse(*d)))
        else {
            let short = self.instance.shortfall(free, shape, &[], missing);
            return Infeasible::InsufficientCapacity(short);
        };
        let lacking = replica.missing - (slots(&domain) as u32).min(replica.missing);
        let nodes = &self.domains[domain];
        let mut short = self.instance.shortfall(free, shape, nodes, lacking);
        short.domain = self.level.path(self.instance.cluster, domain);
        Infeasible::InsufficientCapacity(short)
    }
}

pub(super) fn slots_in(
    instance: &PlacementInstance<'_>,
    free: &[i64],
    nodes: &[NodeIx],
    shape: ShapeIx,
) -> u64 {
    let spec = &instance.demand.shapes[shape];
    let each = nodes.iter();
    each.map(|&n| u64::from(instance.slots_on(free, shape, spec, n)))
        .sum()
}

/// Slots of a shape per domain, less those of placed replicas.
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
        let each = domains.iter();
        Self {
            slots: each
                .map(|nodes| slots_in(instance, free, nodes, shape))
                .collect(),
        }
    }

    /// Takes the slots of a replica in a domain: that of its running members, else the one with the
    /// fewest sufficient slots.
    fn take(&mut self, replica: Replica) -> Option<DomainIx> {
        let missing = u64::from(replica.missing);
        let domain = (0..self.slots.len())
            .filter(|&d| replica.domain.is_none_or(|p| p == d) && self.slots[d] >= missing)
            .min_by_key(|&d| (self.slots[d], d))?;
        self.slots[domain] -= missing;
        Some(domain)
    }
}
