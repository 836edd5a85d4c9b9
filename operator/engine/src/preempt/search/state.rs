//! A victim set under change: what is free without it, how many pods of the gang fit there, and
//! what it costs.
//!
//! A *slot* is free capacity for one pod of a shape on a node.

use std::rc::Rc;

use super::several::SeveralShapes;
use crate::{
    objective::{CostCounter, EvictionCost, Price},
    placement::{merged, mixture::OneMore, pack::fill, place_in, slots},
    preempt::{
        fit::FitCondition,
        instance::{CandidateIx, PreemptionInstance},
    },
    problem::{DomainIx, GangPlacement, NodeIx, ShapeIx},
};

/// Steps of a visit of a node where several shapes compete for nodes: per shape, where its slots are counted.
const SEVERAL: u64 = 2;

/// A set of victims and its cost; sets of equal cost are ordered by their candidates.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::preempt) struct VictimSet {
    pub cost: EvictionCost,
    /// Ascending.
    pub victims: Vec<CandidateIx>,
}

/// A victim set that changes by one unit at a time. A change costs as much as the unit has nodes.
#[derive(Clone)]
pub(in crate::preempt) struct VictimState<'a> {
    pub instance: &'a PreemptionInstance<'a>,
    pub fit: &'a FitCondition,
    free: Vec<i64>,
    evicted: Vec<bool>,
    /// Candidates evicted or restored since the last [`VictimState::begin`], in order.
    journal: Vec<CandidateIx>,
    /// Per shape, slots per node.
    slots: Vec<Vec<u32>>,
    /// Per shape, slots in all; where replicas must share a domain, whole replicas over all
    /// domains.
    total: Vec<i64>,
    /// Per shape, slots per domain, where replicas must share one.
    in_domain: Vec<Vec<i64>>,
    cost: CostCounter<'a>,
    /// Where counting does not decide: patterns of the nodes on which the gang fits.
    several: Option<SeveralShapes<'a>>,
    /// Work done so far, in node visits, without the search over several shapes.
    pub steps: u64,
}

impl<'a> VictimState<'a> {
    /// The empty set.
    pub fn new(instance: &'a PreemptionInstance<'a>, fit: &'a FitCondition) -> Self {
        let nodes = instance.placement.cluster.node_count();
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

    /// The victims, ascending.
    pub fn victims(&self) -> Vec<CandidateIx> {
        (0..self.evicted.len())
            .filter(|&c| self.evicted[c])
            .collect()
    }

    /// Free capacity of a node.
    pub fn free(&self, node: NodeIx) -> &[i64] {
        self.instance.placement.free_on(&self.free, node)
    }

    /// What evicting the set costs.
    pub fn cost(&self) -> EvictionCost {
        self.cost.cost()
    }

    pub fn price(&self) -> Price {
        self.cost.price()
    }

    /// The set as it is now.
    pub fn victim_set(&self) -> VictimSet {
        VictimSet {
            cost: self.cost(),
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

    /// Makes the present set the one that [`VictimState::undo`] goes back to.
    pub fn begin(&mut self) {
        self.journal.clear();
        if let Some(several) = &mut self.several {
            several.begin();
        }
    }

    /// Goes back to the set of the last [`VictimState::begin`].
    pub fn undo(&mut self) {
        while let Some(candidate) = self.journal.pop() {
            self.toggle(candidate);
        }
        if let Some(several) = &mut self.several {
            several.undo();
        }
    }

    /// By how much evicting these would raise the price, and a shape's supply. The set stays as it
    /// is.
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

    /// By how much the price rises when one more unit is evicted.
    pub fn marginal(&self, candidate: CandidateIx) -> Price {
        self.cost.marginal(&self.instance.cost(candidate))
    }

    /// As [`VictimState::marginal`], once these are evicted, too.
    pub fn marginal_beside(&mut self, candidate: CandidateIx, others: &[CandidateIx]) -> Price {
        // Only budgets make one unit dearer for another.
        if self.instance.unit(candidate).pdbs.is_empty() {
            return self.marginal(candidate);
        }
        self.with_cost_of(others, |state| state.marginal(candidate))
    }

    /// What is said when the cost of these is counted, too, and nothing else of them.
    fn with_cost_of<T>(&mut self, candidates: &[CandidateIx], say: impl FnOnce(&Self) -> T) -> T {
        for &candidate in candidates {
            self.cost.count(&self.instance.cost(candidate), 1);
        }
        let said = say(self);
        for &candidate in candidates {
            self.cost.count(&self.instance.cost(candidate), -1);
        }
        said
    }

    /// Pods that evicting one more unit takes beyond their budgets.
    pub fn marginal_excess(&self, candidate: CandidateIx) -> u64 {
        let unit = self.instance.unit(candidate);
        self.cost.marginal_excess(unit).unsigned_abs()
    }

    /// The first shape that lacks slots (or replicas), and how many; `None` when counting finds
    /// all.
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

    /// Slots of a shape, or replicas where they must share a domain.
    pub fn supply(&self, shape: ShapeIx) -> i64 {
        self.total[shape]
    }

    /// Whether the gang fits: by counting, and by a placement where counting does not suffice.
    pub fn fits(&mut self) -> bool {
        if self.deficit().is_some() {
            return false;
        }
        if self.fit.counting_is_exact {
            return true;
        }
        if let Some(several) = &mut self.several {
            return several.fits(&self.free);
        }
        self.steps += self.instance.placement.nodes.len() as u64 * 4;
        place_in(self.instance.placement, self.free.clone()).is_ok()
    }

    /// Whether it is known, without a closer look, that the gang does not fit if this victim stays.
    pub fn cannot_spare(&mut self, victim: CandidateIx) -> bool {
        let Some(several) = &mut self.several else {
            return false;
        };
        self.steps += SEVERAL * self.instance.uses(victim).count() as u64;
        several.cannot_spare(&self.free, victim)
    }

    /// From now on an answer is looked for harder, where several shapes compete for nodes.
    pub fn look_harder(&mut self) {
        if let Some(several) = &mut self.several {
            several.look_harder();
        }
    }

    /// Where the gang is placed, where several shapes have just been found to fit.
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

    /// What the nodes have to be worth more for several shapes to fit; where they are worth enough, a
    /// pod. `None` where shapes do not compete.
    pub fn missing_worth(&mut self) -> Option<i64> {
        let several = self.several.as_mut()?;
        Some(several.missing_worth(&self.free))
    }

    /// What a node has to have free for one pod more of a shape, beside those that it takes now. Not
    /// all of the shapes may be admitted there.
    pub fn one_more(&mut self, node: NodeIx) -> Option<Rc<[OneMore]>> {
        self.several.as_mut()?.one_more(node)
    }

    /// By how much evicting these would raise the price, and what the nodes are worth to several
    /// shapes. The set stays as it is.
    pub fn marginal_worth(&mut self, candidates: &[CandidateIx]) -> (Price, i64) {
        let price = self.price();
        let raised = self.with_cost_of(candidates, Self::price) - price;
        let uses = candidates.iter().map(|&c| self.instance.uses(c).count());
        self.steps += SEVERAL * uses.sum::<usize>() as u64;
        let several = self.several.as_mut();
        let worth = several.map_or(0, |s| s.worth_together(&self.free, candidates));
        (raised, worth)
    }

    /// Evictable candidates by price for what they are worth to several shapes, the least first;
    /// `None` where that does not matter.
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

    /// Work done so far, the search over several shapes included.
    pub fn all_steps(&self) -> u64 {
        self.steps + self.instance.placement.steps.spent()
    }

    /// Adds what a candidate holds to the free capacity (`sign` 1) or takes it (-1).
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
            self.recount(node);
        }
    }

    /// Counts the slots of a node again.
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

    /// Slots of a shape in a domain, where replicas must share one.
    pub fn slots_in(&self, shape: ShapeIx, domain: DomainIx) -> i64 {
        self.in_domain[shape][domain]
    }

    /// Slots of a shape on a node.
    pub fn slots_on(&self, shape: ShapeIx, node: NodeIx) -> u32 {
        self.slots[shape][node]
    }
}

#[cfg(test)]
mod tests;
