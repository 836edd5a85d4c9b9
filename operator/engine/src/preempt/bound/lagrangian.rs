//! Lagrangian relaxation: a lower bound of the cost of every victim set, and sets to start from
//! (`docs/engine.md`).
//!
//! The gang's largest shape needs `need` units of one resource, its *capacity*. A *claim* is
//! capacity that certain candidates free only together; choosing claims is a maximum closure
//! problem, solved by a minimum cut. On a node where any of several candidates suffices, capacity
//! is divided among them by their holdings.

use std::collections::BTreeMap;

use super::max_flow::{Network, UNCUTTABLE, Vertex};
use crate::{
    method::Method,
    objective::Price,
    placement::slots,
    preempt::{
        fit::{FitCondition, ShapeNeed},
        instance::{CandidateIx, PreemptionInstance},
    },
    problem::NodeIx,
};

/// Fraction bits of a multiplier, and of a price compared with it.
const FRACTION: u32 = 16;
/// Most cuts in one search for the best multiplier.
const CUTS: usize = 40;

/// Most slots of one node to represent as claims. Nodes with more slots are divided.
const MOST_CLAIMS: u32 = 16;

/// Price of a scaled lower bound, rounded up, because prices are integers.
fn round_up(scaled: i128) -> Price {
    (scaled + (1 << FRACTION) - 1) >> FRACTION
}

/// A set of candidates that is optimal at a multiplier: a solution of the Lagrangian subproblem.
#[derive(Clone, Debug)]
pub(in crate::preempt) struct PricedSet {
    pub evicted: Vec<bool>,
    pub cost: Price,
    /// Capacity after eviction of the set, including free capacity.
    pub capacity: i64,
}

impl PricedSet {
    pub fn candidates(&self) -> Vec<CandidateIx> {
        (0..self.evicted.len())
            .filter(|&c| self.evicted[c])
            .collect()
    }
}

/// Best lower bound over the multipliers.
pub(in crate::preempt) struct DualBound {
    pub bound: Price,
    /// Optimal sets of the tried multipliers.
    pub sets: Vec<PricedSet>,
}

/// Capacity that the eviction of all these candidates frees.
#[derive(Clone, Debug)]
struct Claim {
    units: Vec<CandidateIx>,
    capacity: i64,
    edge: usize,
}

/// The relaxed instance for a pool of candidates.
pub(in crate::preempt) struct Relaxation {
    pub need: i64,
    /// Capacity without evictions.
    pub base: i64,
    /// Price of each candidate. `None` if it must not be evicted or frees nothing.
    price: Vec<Option<Price>>,
    /// Capacity that each candidate frees alone on divided nodes.
    share: Vec<i64>,
    claims: Vec<Claim>,
    network: Network,
    source: Vertex,
    sink: Vertex,
    pays: Vec<usize>,
    /// Edges from cascades to the sink, with their losses.
    cascades: Vec<(usize, i128)>,
    cascade_of: Vec<Option<usize>>,
    fixed: Vec<usize>,
    /// False to measure what [`Relaxation::explore`] contributes.
    explores: bool,
}

/// Vertices 0 and 1 are source and sink.
fn candidate_vertex(candidate: CandidateIx) -> Vertex {
    2 + candidate
}

/// Capacity of the claims, by the candidates that each requires.
type ClaimSizes = BTreeMap<Vec<CandidateIx>, i64>;

impl Relaxation {
    /// The relaxation over the candidates with a price. `None` if nothing is needed.
    pub fn new(
        instance: &PreemptionInstance<'_>,
        fit: &FitCondition,
        price: Vec<Option<Price>>,
    ) -> Option<Self> {
        let need = fit.shapes.first()?;
        let dim = instance.placement.scarce[need.shape].dim;
        let pool = (0..instance.candidates.len()).filter(|&c| price[c].is_some());
        let top = instance.free_without(pool);
        let mut relaxation = Self {
            need: need.need * need.replica_size.unwrap_or(1) * need.request[dim],
            base: 0,
            share: vec![0; instance.candidates.len()],
            claims: Vec::new(),
            network: Network::new(0),
            source: 0,
            sink: 1,
            pays: Vec::new(),
            cascades: Vec::new(),
            cascade_of: (0..instance.candidates.len())
                .map(|c| instance.unit(c).cascade)
                .collect(),
            fixed: Vec::new(),
            explores: instance.placement.uses(Method::Multipliers),
            price,
        };
        let mut claims = ClaimSizes::new();
        for &node in &instance.placement.nodes {
            if instance.placement.admits[need.shape].contains(node) {
                let top = instance.placement.free_on(&top, node);
                relaxation.add_node(instance, need, (node, top), &mut claims);
            }
        }
        relaxation.connect(instance, claims);
        Some(relaxation)
    }

    /// Adds the capacity of a node: as claims if there are few further slots and each requires
    /// certain candidates, otherwise divided among the candidates. `top`: free capacity without the
    /// whole pool.
    fn add_node(
        &mut self,
        instance: &PreemptionInstance<'_>,
        need: &ShapeNeed,
        (node, top): (NodeIx, &[i64]),
        claims: &mut ClaimSizes,
    ) {
        let dim = instance.placement.scarce[need.shape].dim;
        let per_slot = need.request[dim];
        let free = instance
            .placement
            .free_on(instance.placement.cluster.free_table(), node);
        let now = slots(free, &need.request);
        let most = slots(top, &need.request);
        if most == now {
            self.base += i64::from(now) * per_slot;
            return;
        }
        let left = self.slots_beside(instance, node, top, &need.request);
        let few = most - now <= MOST_CLAIMS && instance.placement.uses(Method::Claims);
        if few && (now + 1..=most).all(|slot| left.iter().any(|&(_, left)| left < slot)) {
            self.base += i64::from(now) * per_slot;
            for slot in now + 1..=most {
                let needed = left
                    .iter()
                    .filter(|&&(_, left)| left < slot)
                    .map(|&(c, _)| c)
                    .collect();
                *claims.entry(needed).or_default() += per_slot;
            }
        } else {
            let most = i64::from(most) * per_slot;
            // An overcommitted node contributes neither capacity nor debt.
            let free = free[dim].clamp(0, most);
            self.base += free;
            for (candidate, held) in instance.uses_on(node) {
                if self.price[candidate].is_some() {
                    self.share[candidate] += held[dim].min(most - free);
                }
            }
        }
    }

    /// For each candidate of the pool on a node, the slots if only it stays.
    fn slots_beside(
        &self,
        instance: &PreemptionInstance<'_>,
        node: NodeIx,
        top: &[i64],
        request: &[i64],
    ) -> Vec<(CandidateIx, u32)> {
        let mut free = top.to_vec();
        let mut left = Vec::new();
        for (candidate, amounts) in instance.uses_on(node) {
            if self.price[candidate].is_none() {
                continue;
            }
            for ((f, t), a) in free.iter_mut().zip(top).zip(amounts) {
                *f = t - a;
            }
            left.push((candidate, slots(&free, request)));
        }
        left
    }

    fn connect(&mut self, instance: &PreemptionInstance<'_>, claims: ClaimSizes) {
        let units = self.price.len();
        let cascades = instance.units.cascade_loss.len();
        self.network = Network::new(2 + units + cascades + claims.len());
        self.pays = (0..units)
            .map(|candidate| {
                self.network
                    .connect(candidate_vertex(candidate), self.sink, 0)
            })
            .collect();
        for (cascade, &loss) in instance.units.cascade_loss.iter().enumerate() {
            let edge = self.network.connect(2 + units + cascade, self.sink, 0);
            self.cascades.push((edge, i128::from(loss) << FRACTION));
        }
        for candidate in (0..units).filter(|&c| self.price[c].is_some()) {
            if let Some(cascade) = instance.unit(candidate).cascade {
                self.fixed.push(self.network.connect(
                    candidate_vertex(candidate),
                    2 + units + cascade,
                    UNCUTTABLE,
                ));
            }
        }
        for (ix, (needed, capacity)) in claims.into_iter().enumerate() {
            let vertex = 2 + units + cascades + ix;
            let edge = self.network.connect(self.source, vertex, 0);
            for &candidate in &needed {
                self.fixed.push(self.network.connect(
                    vertex,
                    candidate_vertex(candidate),
                    UNCUTTABLE,
                ));
            }
            self.claims.push(Claim {
                units: needed,
                capacity,
                edge,
            });
        }
    }

    /// Solves the subproblem at a multiplier. Returns a lower bound of the cost of any set (with
    /// [`FRACTION`] bits), and the optimal set.
    pub fn cut(&mut self, multiplier: i128) -> (i128, PricedSet) {
        let mut bound = multiplier * i128::from(self.need - self.base);
        let (mut evicted, surplus) = self.set_capacities(multiplier);
        bound -= surplus;
        let mut offered = 0;
        for claim in &self.claims {
            let earned = multiplier * i128::from(claim.capacity);
            self.network.reset(claim.edge, earned);
            offered += earned;
        }
        bound += self.network.max_flow(self.source, self.sink) - offered;
        let mut capacity = self.base;
        for (candidate, evicted) in evicted.iter_mut().enumerate() {
            *evicted |= self.network.on_source_side(candidate_vertex(candidate));
            if *evicted {
                capacity += self.share[candidate];
            }
        }
        for claim in &self.claims {
            if claim.units.iter().all(|&unit| evicted[unit]) {
                capacity += claim.capacity;
            }
        }
        let set = PricedSet {
            cost: self.cost(&evicted),
            capacity,
            evicted,
        };
        (bound, set)
    }

    /// Sets the capacities of all edges except claims. Returns the candidates whose shares earn
    /// their price, and the total excess earnings. A candidate in a cascade must also pay for it.
    fn set_capacities(&mut self, multiplier: i128) -> (Vec<bool>, i128) {
        for &(edge, loss) in &self.cascades {
            self.network.reset(edge, loss);
        }
        for &edge in &self.fixed {
            self.network.reset(edge, UNCUTTABLE);
        }
        let mut taken = vec![false; self.price.len()];
        let mut surplus = 0;
        for (candidate, price) in self.price.iter().enumerate() {
            let Some(price) = price else { continue };
            let left = (price << FRACTION) - multiplier * i128::from(self.share[candidate]);
            self.network.reset(self.pays[candidate], left.max(0));
            if left <= 0 {
                surplus -= left;
                taken[candidate] = self.share[candidate] > 0;
            }
        }
        (taken, surplus)
    }

    /// Searches for the best multiplier.
    pub fn solve(&mut self) -> DualBound {
        let nothing = PricedSet {
            evicted: vec![false; self.price.len()],
            cost: 0,
            capacity: self.base,
        };
        let (mut below, mut above) = (nothing, self.whole_pool());
        let mut best = 0;
        let mut sets = Vec::new();
        for _ in 0..CUTS {
            if above.capacity <= below.capacity || above.cost <= below.cost {
                break;
            }
            let multiplier = ((above.cost - below.cost) << FRACTION)
                / i128::from(above.capacity - below.capacity);
            let (bound, priced_set) = self.cut(multiplier);
            best = best.max(bound);
            sets.push(priced_set.clone());
            let side = if priced_set.capacity >= self.need {
                &mut above
            } else {
                &mut below
            };
            if (side.capacity, side.cost) == (priced_set.capacity, priced_set.cost) {
                if self.explores {
                    self.explore(multiplier, &mut sets);
                }
                break;
            }
            *side = priced_set;
        }
        DualBound {
            bound: round_up(best),
            sets,
        }
    }

    /// Adds optimal sets at multipliers around the best one, to fill the last gap.
    fn explore(&mut self, multiplier: i128, sets: &mut Vec<PricedSet>) {
        /// Sixteenths of the best multiplier.
        const AROUND: [i128; 12] = [4, 8, 11, 13, 14, 15, 17, 18, 20, 24, 32, 64];
        for sixteenths in AROUND {
            let (_, priced_set) = self.cut(multiplier * sixteenths / 16);
            sets.push(priced_set);
        }
    }

    fn whole_pool(&self) -> PricedSet {
        let evicted: Vec<bool> = self.price.iter().map(Option::is_some).collect();
        PricedSet {
            cost: self.cost(&evicted),
            capacity: self.base
                + self.share.iter().sum::<i64>()
                + self.claims.iter().map(|c| c.capacity).sum::<i64>(),
            evicted,
        }
    }

    fn cost(&self, evicted: &[bool]) -> Price {
        let mut paid = vec![false; self.cascades.len()];
        let mut sum = 0;
        for candidate in (0..evicted.len()).filter(|&c| evicted[c]) {
            sum += self.price[candidate].unwrap_or(0);
            if let Some(cascade) = self.cascade_of[candidate]
                && !std::mem::replace(&mut paid[cascade], true)
            {
                sum += self.cascades[cascade].1 >> FRACTION;
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests;
