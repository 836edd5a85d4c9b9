//! A relaxation of the question that a minimum cut solves: what seats are worth, which units pay at that price, and how
//! little any answer must cost.
//!
//! The gang's largest shape needs `K` seats. Each seat gets a price; a unit is evicted when the seats that it helps to free
//! are worth more than the unit costs. On most nodes a seat needs certain units gone (a *claim*): which claims pay
//! together is a closure problem, solved by a cut. On a node where any of several units would do, seats are divided among
//! the units by what they hold. Every price gives a lower bound (Lagrange); the best price is found by Newton's method on
//! the concave bound, and the sets that pay near it are the material of good answers.

use std::collections::BTreeMap;

use super::{
    field::{CandIx, Field},
    flow::{Network, UNCUTTABLE, Vertex},
    goal::Goal,
};
use crate::{
    placement::{scarce, seats},
    problem::NodeIx,
};

/// Fraction bits of a price.
pub(super) const FRACTION: u32 = 16;
/// Cuts of one search for the best price.
const CUTS: usize = 40;

/// Seats of one node beyond which it is divided rather than claimed seat by seat.
const MOST_CLAIMS: u32 = 16;

/// A set of candidates that pays at some price.
#[derive(Clone, Debug)]
pub(super) struct Paying {
    pub gone: Vec<bool>,
    /// Sum of the weights.
    pub cost: i128,
    /// Room it makes in the judged dimension, what is free now included.
    pub room: i64,
    /// The price per unit of room, with [`FRACTION`] bits.
    pub price: i128,
}

/// What the search for the best price found.
pub(super) struct Priced {
    /// What any answer weighs at least.
    pub bound: i128,
    /// The price that says so.
    pub price: i128,
    /// The sets that pay at the prices tried.
    pub sets: Vec<Paying>,
}

/// Seats that need the same units gone.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub units: Vec<CandIx>,
    /// Room in the judged dimension that is won.
    pub room: i64,
    vertex: Vertex,
    edge: usize,
}

/// The relaxed question for one pool of candidates.
pub(super) struct Relaxation {
    /// Room needed in the judged dimension.
    pub need: i64,
    /// Room there is without evictions.
    pub base: i64,
    /// Price of evicting each candidate; `None` where it may not go or frees nothing.
    weight: Vec<Option<i128>>,
    /// Per candidate, room that it frees by itself on divided nodes.
    pub share: Vec<i64>,
    pub claims: Vec<Claim>,
    network: Network,
    source: Vertex,
    sink: Vertex,
    /// Per candidate, its edge to the sink.
    pays: Vec<usize>,
    /// Cascades' edges to the sink, with their losses.
    cascades: Vec<(usize, i128)>,
    cascade_of: Vec<Option<usize>>,
    /// Candidates that stay, whatever they would pay.
    barred: Vec<bool>,
    /// Edges that no cut pays.
    fixed: Vec<usize>,
}

impl Relaxation {
    /// The question over the candidates with a weight.
    pub fn new(field: &Field<'_>, goal: &Goal, weight: Vec<Option<i128>>) -> Option<Self> {
        let shape = goal.shapes.first()?;
        let dim = scarce(&field.site.demand.shapes[shape.shape]);
        let per_seat = shape.request[dim];
        let pool = (0..field.cands.len()).filter(|&c| weight[c].is_some());
        let top = field.room_without(pool);
        let mut relaxation = Self {
            need: shape.need * shape.replica_size.unwrap_or(1) * per_seat,
            base: 0,
            share: vec![0; field.cands.len()],
            claims: Vec::new(),
            network: Network::new(0),
            source: 0,
            sink: 1,
            pays: Vec::new(),
            cascades: Vec::new(),
            cascade_of: (0..field.cands.len()).map(|c| field.unit(c).cascade).collect(),
            barred: vec![false; field.cands.len()],
            fixed: Vec::new(),
            weight,
        };
        let mut claims: BTreeMap<Vec<CandIx>, i64> = BTreeMap::new();
        for &node in field.site.nodes.iter().filter(|&&n| field.site.admits[shape.shape].contains(n)) {
            let now = seats(field.site.room(field.site.cluster.free_table(), node), &shape.request);
            let most = seats(field.site.room(&top, node), &shape.request);
            if most == now {
                relaxation.base += i64::from(now) * per_seat;
                continue;
            }
            let levels = relaxation.levels(field, node, field.site.room(&top, node), &shape.request);
            let few = most - now <= MOST_CLAIMS;
            if few && (now + 1..=most).all(|seat| levels.iter().any(|&(_, left)| left < seat)) {
                relaxation.base += i64::from(now) * per_seat;
                for seat in now + 1..=most {
                    let needed = levels.iter().filter(|&&(_, left)| left < seat).map(|&(c, _)| c).collect();
                    *claims.entry(needed).or_default() += per_seat;
                }
            } else {
                let most = i64::from(most) * per_seat;
                let free = field.site.room(field.site.cluster.free_table(), node)[dim].min(most);
                relaxation.base += free;
                for (cand, held) in relaxation.held(field, node, dim) {
                    relaxation.share[cand] += held.min(most - free);
                }
            }
        }
        relaxation.connect(field, claims);
        Some(relaxation)
    }

    /// Per candidate of the pool on a node, the seats that are left when it alone stays.
    fn levels(&self, field: &Field<'_>, node: NodeIx, top: &[i64], request: &[i64]) -> Vec<(CandIx, u32)> {
        let mut room = top.to_vec();
        self.on_node(field, node)
            .map(|(cand, amounts)| {
                for ((r, t), a) in room.iter_mut().zip(top).zip(amounts) {
                    *r = t - a;
                }
                (cand, seats(&room, request))
            })
            .collect()
    }

    fn held(&self, field: &Field<'_>, node: NodeIx, dim: usize) -> Vec<(CandIx, i64)> {
        self.on_node(field, node).map(|(cand, amounts)| (cand, amounts[dim])).collect()
    }

    fn on_node<'f>(&self, field: &'f Field<'_>, node: NodeIx) -> impl Iterator<Item = (CandIx, &'f [i64])> {
        field.uses_on(node).filter(|&(cand, _)| self.weight[cand].is_some())
    }

    fn connect(&mut self, field: &Field<'_>, claims: BTreeMap<Vec<CandIx>, i64>) {
        let units = self.weight.len();
        let cascades = field.units.cascade_loss.len();
        let vertex_of = |cand: CandIx| 2 + cand;
        self.network = Network::new(2 + units + cascades + claims.len());
        self.pays = (0..units).map(|cand| self.network.connect(vertex_of(cand), self.sink, 0)).collect();
        for (cascade, &loss) in field.units.cascade_loss.iter().enumerate() {
            let edge = self.network.connect(2 + units + cascade, self.sink, 0);
            self.cascades.push((edge, i128::from(loss) << FRACTION));
        }
        for cand in (0..units).filter(|&c| self.weight[c].is_some()) {
            if let Some(cascade) = field.unit(cand).cascade {
                self.fixed.push(self.network.connect(vertex_of(cand), 2 + units + cascade, UNCUTTABLE));
            }
        }
        for (ix, (needed, room)) in claims.into_iter().enumerate() {
            let vertex = 2 + units + cascades + ix;
            let edge = self.network.connect(self.source, vertex, 0);
            for &cand in &needed {
                self.fixed.push(self.network.connect(vertex, vertex_of(cand), UNCUTTABLE));
            }
            self.claims.push(Claim { units: needed, room, vertex, edge });
        }
    }

    /// Solves the relaxation at a price per unit of room (with [`FRACTION`] bits): a lower bound of what any answer weighs,
    /// and the set that pays.
    pub fn cut(&mut self, price: i128) -> (i128, Paying) {
        // A unit whose shares pay for it is taken for them; in a cascade it first has to pay for the cascade.
        let mut offered = 0;
        for &(edge, loss) in &self.cascades {
            self.network.reset(edge, loss);
        }
        for &edge in &self.fixed {
            self.network.reset(edge, UNCUTTABLE);
        }
        let mut taken = vec![false; self.weight.len()];
        let mut bound = price * i128::from(self.need - self.base);
        for (cand, weight) in self.weight.iter().enumerate() {
            let Some(weight) = weight else { continue };
            if self.barred[cand] {
                self.network.reset(self.pays[cand], UNCUTTABLE);
                continue;
            }
            let left = (weight << FRACTION) - price * i128::from(self.share[cand]);
            self.network.reset(self.pays[cand], left.max(0));
            if left <= 0 {
                bound += left;
                taken[cand] = self.share[cand] > 0;
            }
        }
        for claim in &self.claims {
            self.network.reset(claim.edge, price * i128::from(claim.room));
            offered += price * i128::from(claim.room);
        }
        bound += self.network.max_flow(self.source, self.sink) - offered;
        for (cand, gone) in taken.iter_mut().enumerate() {
            *gone |= self.network.on_source_side(2 + cand);
        }
        let shared: i64 = (0..taken.len()).filter(|&c| taken[c]).map(|c| self.share[c]).sum();
        let mut paying = Paying { cost: self.cost(&taken), room: self.base + shared, gone: taken, price };
        let claimed = self.claims.iter().filter(|c| self.network.on_source_side(c.vertex));
        paying.room += claimed.map(|c| c.room).sum::<i64>();
        (bound, paying)
    }

    /// The best lower bound, its price, and the sets that pay at that and other prices.
    pub fn solve(&mut self) -> Priced {
        let nobody = Paying { gone: vec![false; self.weight.len()], cost: 0, room: self.base, price: 0 };
        let everybody = self.everybody();
        let (mut below, mut above) = (nobody, everybody);
        let mut best = (0, 0);
        let mut sets = Vec::new();
        for _ in 0..CUTS {
            if above.room <= below.room || above.cost <= below.cost {
                break;
            }
            let price = ((above.cost - below.cost) << FRACTION) / i128::from(above.room - below.room);
            let (bound, paying) = self.cut(price);
            best = best.max((bound, price));
            sets.push(paying.clone());
            let side = if paying.room >= self.need { &mut above } else { &mut below };
            if side.room == paying.room {
                self.explore(price, &mut sets);
                break;
            }
            *side = paying;
        }
        // A sum of integers that is at least this is at least the next integer.
        Priced { bound: (best.0 + (1 << FRACTION) - 1) >> FRACTION, price: best.1, sets }
    }

    /// Sets that pay at prices around the best one: pieces to fill the last gap with.
    fn explore(&mut self, price: i128, sets: &mut Vec<Paying>) {
        /// Sixteenths of the best price.
        const AROUND: [i128; 12] = [4, 8, 11, 13, 14, 15, 17, 18, 20, 24, 32, 64];
        for sixteenths in AROUND {
            let (_, paying) = self.cut(price * sixteenths / 16);
            sets.push(paying);
        }
    }

    fn everybody(&self) -> Paying {
        let gone: Vec<bool> = self.weight.iter().map(Option::is_some).collect();
        Paying {
            cost: self.cost(&gone),
            room: self.base + self.share.iter().sum::<i64>() + self.claims.iter().map(|c| c.room).sum::<i64>(),
            price: 0,
            gone,
        }
    }

    fn cost(&self, gone: &[bool]) -> i128 {
        let mut paid = vec![false; self.cascades.len()];
        let mut sum = 0;
        for (cand, _) in gone.iter().enumerate().filter(|(_, g)| **g) {
            sum += self.weight[cand].unwrap_or(0);
            if let Some(cascade) = self.cascade_of[cand]
                && !std::mem::replace(&mut paid[cascade], true)
            {
                sum += self.cascades[cascade].1 >> FRACTION;
            }
        }
        sum
    }

    /// Whether some candidates cost more together than the sum of their weights.
    pub fn has_cascades(&self) -> bool {
        self.weight.iter().zip(&self.cascade_of).any(|(weight, cascade)| weight.is_some() && cascade.is_some())
    }

    /// Edges that a cut looks at, at least once each.
    pub fn size(&self) -> u64 {
        (self.fixed.len() + self.claims.len() + self.pays.len()) as u64
    }

    /// Changes what evicting a candidate of the pool weighs.
    pub fn set_weight(&mut self, cand: CandIx, weight: i128) {
        self.weight[cand] = Some(weight);
    }

    /// Says whether a candidate of the pool must stay.
    pub fn bar(&mut self, cand: CandIx, barred: bool) {
        self.barred[cand] = barred;
    }

    /// What evicting a candidate weighs here.
    pub fn weight(&self, cand: CandIx) -> Option<i128> {
        self.weight[cand]
    }
}

#[cfg(test)]
mod tests;
