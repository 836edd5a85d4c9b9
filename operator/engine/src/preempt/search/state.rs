//! A changing victim set: free capacity without it, the number of pods that fit there, and its
//! cost.
//!
//! A *slot* is free capacity for one pod of a shape on a node.

use std::rc::Rc;

use super::{replicas::ReplicaPlacement, several::SeveralShapes};
use crate::{
    objective::{CostCounter, EvictionCost, Price},
    placement::{merged, mixture::OneMore, pack::fill, shape_pods::ShapePods, slots},
    preempt::{
        fit::FitCondition,
        instance::{CandidateIx, PreemptionInstance},
    },
    problem::{Amounts, DomainIx, GangPlacement, NodeIx, ShapeIx},
};

/// Steps per visited node and shape if several shapes compete for nodes.
const SEVERAL: u64 = 2;

/// A set of victims and its cost. Sets of equal cost are ordered by their candidates.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::preempt) struct VictimSet {
    pub cost: EvictionCost,
    /// Ascending.
    pub victims: Vec<CandidateIx>,
    /// Placement of the gang that the search has found, if counting slots is not exact.
    pub placement: Option<GangPlacement>,
}

/// A victim set that changes by one unit at a time, in O(nodes of the unit).
#[derive(Clone)]
pub(in crate::preempt) struct VictimState<'a> {
    pub instance: &'a PreemptionInstance<'a>,
    pub fit: &'a FitCondition,
    free: Vec<i64>,
    evicted: Vec<bool>,
    /// Candidates evicted or restored since the last [`VictimState::begin`], in order.
    journal: Vec<CandidateIx>,
    slots: Vec<Vec<u32>>,
    /// Slots per shape; whole replicas over all domains if replicas must share a domain.
    total: Vec<i64>,
    /// Slots per shape and domain, if replicas must share a domain.
    in_domain: Vec<Vec<i64>>,
    cost: CostCounter<'a>,
    /// Node patterns with which the gang fits, if counting is not exact.
    several: Option<SeveralShapes<'a>>,
    /// Placement of replicas that must share domains, if counting is not exact.
    replicas: Option<ReplicaPlacement<'a>>,
    /// Steps in node visits, without the searches over several shapes and replicas.
    pub steps: u64,
}

impl<'a> VictimState<'a> {
    pub fn new(instance: &'a PreemptionInstance<'a>, fit: &'a FitCondition) -> Self {
        let nodes = instance.placement.cluster.node_count();
        let inexact = fit.by_replica && !fit.counting_is_exact;
        let level = instance.placement.required().replica.as_ref();
        let mut state = Self {
            instance,
            fit,
            free: instance.placement.cluster.free_table().to_vec(),
            evicted: vec![false; instance.candidates.len()],
            journal: Vec::new(),
            slots: vec![vec![0; nodes]; fit.shapes.len()],
            total: vec![0; fit.shapes.len()],
            in_domain: vec![vec![0; fit.domains.len()]; fit.shapes.len()],
            cost: CostCounter::new(instance.units, instance.weights),
            several: fit.several_shapes().then(|| SeveralShapes::new(instance)),
            replicas: level
                .filter(|_| inexact)
                .map(|level| ReplicaPlacement::new(instance.placement, level)),
            steps: 0,
        };
        for &node in &instance.placement.nodes {
            state.recount(node);
            if let Some(several) = &mut state.several {
                several.note(node);
            }
        }
        state
    }

    pub fn is_evicted(&self, candidate: CandidateIx) -> bool {
        self.evicted[candidate]
    }

    pub fn victims(&self) -> Vec<CandidateIx> {
        (0..self.evicted.len())
            .filter(|&c| self.evicted[c])
            .collect()
    }

    pub fn free(&self, node: NodeIx) -> &[i64] {
        self.instance.placement.free_on(&self.free, node)
    }

    pub fn cost(&self) -> EvictionCost {
        self.cost.cost()
    }

    pub fn price(&self) -> Price {
        self.cost.price()
    }

    pub fn victim_set(&mut self) -> VictimSet {
        let replicas = self.replicas.as_mut();
        VictimSet {
            cost: self.cost.cost(),
            placement: replicas.and_then(ReplicaPlacement::current),
            victims: self.victims(),
        }
    }

    pub fn evict(&mut self, candidate: CandidateIx) {
        debug_assert!(!self.evicted[candidate]);
        self.journal.push(candidate);
        self.toggle(candidate);
    }

    pub fn restore(&mut self, candidate: CandidateIx) {
        debug_assert!(self.evicted[candidate]);
        self.journal.push(candidate);
        self.toggle(candidate);
    }

    /// Starts a change that [`VictimState::undo`] reverts.
    pub fn begin(&mut self) {
        self.journal.clear();
        if let Some(several) = &mut self.several {
            several.begin();
        }
        if let Some(replicas) = &mut self.replicas {
            replicas.begin();
        }
    }

    pub fn undo(&mut self) {
        while let Some(candidate) = self.journal.pop() {
            self.toggle(candidate);
        }
        if let Some(several) = &mut self.several {
            several.undo();
        }
        if let Some(replicas) = &mut self.replicas {
            replicas.undo();
        }
    }

    /// Increase of the price and of a shape's supply if these are evicted.
    pub fn marginal_of(&mut self, shape: ShapeIx, candidates: &[CandidateIx]) -> (Price, i64) {
        let (price, supply) = (self.price(), self.supply(shape));
        let noted = self.several.as_ref().map_or(0, SeveralShapes::noted);
        for &candidate in candidates {
            self.toggle(candidate);
        }
        let change = (self.price() - price, self.supply(shape) - supply);
        for &candidate in candidates {
            self.toggle(candidate);
        }
        if let Some(several) = &mut self.several {
            several.forget(noted);
        }
        change
    }

    fn toggle(&mut self, candidate: CandidateIx) {
        self.evicted[candidate] = !self.evicted[candidate];
        let sign = if self.evicted[candidate] { 1 } else { -1 };
        self.cost.count(&self.instance.cost(candidate), sign);
        self.shift(candidate, sign);
    }

    pub fn marginal(&self, candidate: CandidateIx) -> Price {
        self.cost.marginal(&self.instance.cost(candidate))
    }

    /// As [`VictimState::marginal`], assuming that `others` are evicted too.
    pub fn marginal_beside(&mut self, candidate: CandidateIx, others: &[CandidateIx]) -> Price {
        // Only budgets make a unit more expensive because of another unit.
        if self.instance.unit(candidate).pdbs.is_empty() {
            return self.marginal(candidate);
        }
        self.with_cost_of(others, |state| state.marginal(candidate))
    }

    /// Result of `measure` while the cost of these candidates counts.
    fn with_cost_of<T>(
        &mut self,
        candidates: &[CandidateIx],
        measure: impl FnOnce(&Self) -> T,
    ) -> T {
        for &candidate in candidates {
            self.cost.count(&self.instance.cost(candidate), 1);
        }
        let result = measure(self);
        for &candidate in candidates {
            self.cost.count(&self.instance.cost(candidate), -1);
        }
        result
    }

    pub fn marginal_excess(&self, candidate: CandidateIx) -> u64 {
        let unit = self.instance.unit(candidate);
        self.cost.marginal_excess(unit).unsigned_abs()
    }

    /// First shape that lacks slots (or replicas), and how many, if any.
    pub fn deficit(&self) -> Option<(ShapeIx, i64)> {
        for (ix, shape) in self.fit.shapes.iter().enumerate() {
            let missing = shape.need + shape.taken_by_larger - self.total[ix];
            if missing > 0 {
                return Some((ix, missing));
            }
        }
        None
    }

    /// Slots (or replicas) beyond the need, summed over the shapes.
    pub fn surplus(&self) -> i64 {
        self.fit
            .shapes
            .iter()
            .zip(&self.total)
            .map(|(shape, total)| total - shape.need - shape.taken_by_larger)
            .sum()
    }

    /// Slots of a shape, or replicas if they must share a domain.
    pub fn supply(&self, shape: ShapeIx) -> i64 {
        self.total[shape]
    }

    /// Starts the placement of replicas with this one, which is valid for the present victims.
    pub fn adopt(&mut self, placement: &GangPlacement) {
        if let Some(replicas) = &mut self.replicas {
            replicas.adopt(placement);
        }
    }

    /// True if the gang fits: by counting, or by a trial placement if counting is not exact.
    pub fn fits(&mut self) -> bool {
        if self.still_fits() {
            return true;
        }
        let enough_slots = self.deficit().is_none();
        let replicas = self.replicas.as_mut().filter(|_| enough_slots);
        replicas.is_some_and(|replicas| replicas.place_again(&self.free))
    }

    /// As [`VictimState::fits`], without placing all replicas again. Can return false for a gang
    /// that fits.
    pub fn still_fits(&mut self) -> bool {
        if self.deficit().is_some() {
            return false;
        }
        if let Some(several) = &mut self.several {
            return several.fits(&self.free);
        }
        let replicas = self.replicas.as_mut();
        replicas.is_none_or(ReplicaPlacement::still_fit)
    }

    /// True if a cheap check proves that the gang does not fit while this victim stays.
    pub fn cannot_spare(&mut self, victim: CandidateIx) -> bool {
        let Some(several) = &mut self.several else {
            return false;
        };
        self.steps += SEVERAL * self.instance.uses(victim).count() as u64;
        several.cannot_spare(&self.free, victim)
    }

    /// From now on, searches with full effort if several shapes compete for nodes.
    pub fn use_full_effort(&mut self) {
        if let Some(several) = &mut self.several {
            several.use_full_effort();
        }
    }

    pub fn patterns(&self) -> Option<GangPlacement> {
        let placement = self.instance.placement;
        let mut free = self.free.clone();
        let mut assigned = self.several.as_ref()?.assignments(&free)?;
        for a in &assigned {
            let shape = &placement.demand.shapes[a.shape];
            placement.take(&mut free, a.node, shape, i64::from(a.count));
        }
        fill(placement, &mut free, &placement.nodes, &mut assigned);
        Some(merged(assigned))
    }

    /// Value that the nodes lack for several shapes to fit; at least the price of one pod. `None`
    /// if shapes do not compete.
    pub fn missing_worth(&mut self) -> Option<i64> {
        let several = self.several.as_mut()?;
        Some(several.missing_worth(&self.free))
    }

    /// Free capacity that a node needs for one more pod, for each shape (admitted or not).
    pub fn one_more(&mut self, node: NodeIx) -> Option<Rc<[OneMore]>> {
        self.several.as_mut()?.one_more(node)
    }

    /// Increase of the price, and of the value of the nodes, if these are evicted.
    pub fn marginal_worth(&mut self, candidates: &[CandidateIx]) -> (Price, i64) {
        let price = self.price();
        let raised = self.with_cost_of(candidates, Self::price) - price;
        let uses = candidates.iter().map(|&c| self.instance.uses(c).count());
        self.steps += SEVERAL * uses.sum::<usize>() as u64;
        let several = self.several.as_mut();
        let worth = several.map_or(0, |s| s.worth_together(&self.free, candidates));
        (raised, worth)
    }

    /// Evictable candidates by price per value to several shapes, least first. `None` if shapes do
    /// not compete.
    pub fn by_worth(&mut self, candidates: &[CandidateIx]) -> Option<Vec<CandidateIx>> {
        let several = self.several.as_mut()?;
        let mut rated: Vec<(Price, Price, CandidateIx)> = Vec::new();
        for &candidate in candidates {
            self.steps += SEVERAL * self.instance.uses(candidate).count() as u64;
            let worth = several.worth(&self.free, candidate);
            let price = self.cost.marginal(&self.instance.cost(candidate));
            rated.push((price, Price::from(worth), candidate));
        }
        rated.sort_by(|a, b| {
            let useless = (a.1 <= 0).cmp(&(b.1 <= 0));
            let rate = (a.0 * b.1.max(1)).cmp(&(b.0 * a.1.max(1)));
            useless.then(rate).then(a.2.cmp(&b.2))
        });
        Some(
            rated
                .into_iter()
                .map(|(_, _, candidate)| candidate)
                .collect(),
        )
    }

    /// Steps including the searches over several shapes and replicas.
    pub fn all_steps(&self) -> u64 {
        let replicas = self.replicas.as_ref().map_or(0, |replicas| replicas.steps);
        self.steps + replicas + self.instance.placement.steps.spent()
    }

    fn shift(&mut self, candidate: CandidateIx, sign: i64) {
        let instance = self.instance;
        let dims = instance.placement.cluster.dims();
        let each = if self.several.is_some() {
            SEVERAL * self.fit.shapes.len() as u64
        } else {
            1
        };
        for (entry, node, amounts) in instance.entries(candidate) {
            self.steps += each;
            for (f, a) in self.free[node * dims..].iter_mut().zip(amounts) {
                *f += sign * a;
            }
            if let Some(several) = &mut self.several {
                several.toggle(entry, node);
            }
            if let Some(replicas) = &mut self.replicas {
                replicas.shift(node, amounts, sign);
            }
            self.recount(node);
        }
    }

    fn recount(&mut self, node: NodeIx) {
        for (ix, shape) in self.fit.shapes.iter().enumerate() {
            let now = if self.instance.placement.admits[shape.shape].contains(node) {
                slots(
                    self.instance.placement.free_on(&self.free, node),
                    &shape.request,
                )
            } else {
                0
            };
            let delta = i64::from(now) - i64::from(self.slots[ix][node]);
            self.slots[ix][node] = now;
            if delta == 0 {
                continue;
            }
            match (self.fit.domain_of.get(node), shape.replica_size) {
                (Some(&Some(domain)), Some(size)) => {
                    let slots = &mut self.in_domain[ix][domain];
                    self.total[ix] += (*slots + delta) / size - *slots / size;
                    *slots += delta;
                }
                (Some(None), Some(_)) => {}
                _ => self.total[ix] += delta,
            }
        }
    }

    /// Drops the placement of replicas, and returns the replicas to place, largest first. `None` if
    /// counting is exact, or running members bind the replicas.
    pub fn replicas_to_place(&mut self) -> Option<Vec<ShapePods>> {
        self.replicas.as_mut()?.clear()
    }

    pub fn place_replica(&mut self, pods: ShapePods, domain: DomainIx) {
        if let Some(replicas) = &mut self.replicas {
            replicas.place(pods, domain);
        }
    }

    pub fn replica_domains(&self) -> Rc<[Vec<NodeIx>]> {
        let replicas = self.replicas.as_ref();
        replicas.map_or_else(|| Rc::new([]) as Rc<_>, ReplicaPlacement::domains)
    }

    /// Domains of a candidate's nodes.
    pub fn domains_of(&self, candidate: CandidateIx) -> Vec<DomainIx> {
        let nodes = self.instance.uses(candidate).map(|(node, _)| node);
        let replicas = self.replicas.as_ref();
        nodes.filter_map(|node| replicas?.domain(node)).collect()
    }

    pub fn slots_left(&self, shape: ShapeIx, node: NodeIx) -> u32 {
        let replicas = self.replicas.as_ref();
        replicas.map_or(0, |replicas| replicas.slots_on(shape, node))
    }

    pub fn slots_left_in(&self, shape: ShapeIx, domain: DomainIx) -> u64 {
        let replicas = self.replicas.as_ref();
        replicas.map_or(0, |replicas| replicas.slots_in(shape, domain))
    }

    /// Free capacity that a node needs for one more pod after the placed replicas. `None` if the
    /// node does not admit the shape.
    pub fn capacity_for_one_more(&self, shape: ShapeIx, node: NodeIx) -> Option<Amounts> {
        let placement = self.instance.placement;
        let request = &placement.demand.shapes[shape].request;
        let left = self.replicas.as_ref()?.left(node);
        let pods = i64::from(self.slots_left(shape, node)) + 1;
        let each = self.free(node).iter().zip(left).zip(request);
        let required = each.map(|((free, left), request)| free - left + request * pods);
        placement.admits[shape]
            .contains(node)
            .then(|| required.collect())
    }

    pub fn slots_in(&self, shape: ShapeIx, domain: DomainIx) -> i64 {
        self.in_domain[shape][domain]
    }

    pub fn slots_on(&self, shape: ShapeIx, node: NodeIx) -> u32 {
        self.slots[shape][node]
    }
}

#[cfg(test)]
mod tests;
