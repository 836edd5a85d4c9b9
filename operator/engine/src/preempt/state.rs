//! A set of victims under change: what is free, how many seats that makes, and what it costs.

use super::{
    field::{CandIx, Field},
    goal::Goal,
};
use crate::{
    placement::{place_in, seats},
    problem::{DomainIx, NodeIx, PdbIx, ShapeIx, Toll},
};

/// Price of a set in one number: PDB excess outweighs all work, gangs and pods break ties only in [`Toll`].
pub(super) type Price = i128;

/// A set of victims, kept up to date step by step.
#[derive(Clone)]
pub(super) struct State<'a> {
    pub field: &'a Field<'a>,
    pub goal: &'a Goal,
    free: Vec<i64>,
    gone: Vec<bool>,
    /// Candidates evicted or restored since the last [`State::begin`], in order.
    journal: Vec<CandIx>,
    /// Per shape, seats per node.
    seats: Vec<Vec<u32>>,
    /// Per shape, seats in all; under a goal of replicas, whole replicas over all domains.
    total: Vec<i64>,
    /// Per shape, seats per domain, under a goal of replicas.
    in_domain: Vec<Vec<i64>>,
    hits: Vec<i64>,
    cascades: Vec<u32>,
    excess: i64,
    lost: i128,
    gangs: u32,
    pods: u32,
    /// Work done so far, in node visits.
    pub steps: u64,
}

impl<'a> State<'a> {
    /// Nobody evicted.
    pub fn new(field: &'a Field<'a>, goal: &'a Goal) -> Self {
        let nodes = field.site.cluster.node_count();
        let mut state = Self {
            field,
            goal,
            free: field.site.cluster.free_table().to_vec(),
            gone: vec![false; field.cands.len()],
            journal: Vec::new(),
            seats: vec![vec![0; nodes]; goal.shapes.len()],
            total: vec![0; goal.shapes.len()],
            in_domain: vec![vec![0; goal.domains.len()]; goal.shapes.len()],
            hits: vec![0; field.units.pdb_allowed.len()],
            cascades: vec![0; field.units.cascade_loss.len()],
            excess: 0,
            lost: 0,
            gangs: 0,
            pods: 0,
            steps: 0,
        };
        for &node in &field.site.nodes {
            state.recount(node);
        }
        state
    }

    pub fn is_gone(&self, cand: CandIx) -> bool {
        self.gone[cand]
    }

    /// The victims, ascending.
    pub fn victims(&self) -> Vec<CandIx> {
        (0..self.gone.len()).filter(|&c| self.gone[c]).collect()
    }

    /// Free room of a node.
    pub fn room(&self, node: NodeIx) -> &[i64] {
        self.field.site.room(&self.free, node)
    }

    pub fn toll(&self) -> Toll {
        Toll {
            pdb_excess: self.excess.unsigned_abs(),
            lost: self.lost.unsigned_abs(),
            gangs: self.gangs,
            pods: self.pods,
        }
    }

    pub fn price(&self) -> Price {
        i128::from(self.excess) * self.field.excess_price + self.lost
    }

    pub fn evict(&mut self, cand: CandIx) {
        debug_assert!(!self.gone[cand]);
        self.journal.push(cand);
        self.toggle(cand);
    }

    pub fn restore(&mut self, cand: CandIx) {
        debug_assert!(self.gone[cand]);
        self.journal.push(cand);
        self.toggle(cand);
    }

    /// Makes the present set the one that [`State::undo`] goes back to.
    pub fn begin(&mut self) {
        self.journal.clear();
    }

    /// Goes back to the set of the last [`State::begin`].
    pub fn undo(&mut self) {
        while let Some(cand) = self.journal.pop() {
            self.toggle(cand);
        }
    }

    /// What evicting these would change: the price, and a shape's supply. The set stays as it is.
    pub fn weigh(&mut self, shape: ShapeIx, cands: &[CandIx]) -> (Price, i64) {
        let (price, supply) = (self.price(), self.supply(shape));
        for &cand in cands {
            self.toggle(cand);
        }
        let weighed = (self.price() - price, self.supply(shape) - supply);
        for &cand in cands {
            self.toggle(cand);
        }
        weighed
    }

    fn toggle(&mut self, cand: CandIx) {
        self.gone[cand] = !self.gone[cand];
        let sign = if self.gone[cand] { 1 } else { -1 };
        self.charge(cand, sign);
        self.shift(cand, sign);
    }

    /// Price of evicting one more unit.
    pub fn marginal(&self, cand: CandIx) -> Price {
        let unit = self.field.unit(cand);
        let lost = match unit.cascade {
            None => self.field.cost(cand),
            Some(c) if self.cascades[c] == 0 => i128::from(self.field.units.cascade_loss[c]),
            Some(_) => 0,
        };
        Price::from(self.excess_beside(cand)) * self.field.excess_price + lost
    }

    /// Pods that evicting one more unit takes beyond their budgets.
    pub fn excess_beside(&self, cand: CandIx) -> u64 {
        let beyond = |&(pdb, pods): &(PdbIx, u32)| {
            let over = self.hits[pdb] - i64::from(self.field.units.pdb_allowed[pdb]);
            ((over + i64::from(pods)).max(0) - over.max(0)).unsigned_abs()
        };
        self.field.unit(cand).pdbs.iter().map(beyond).sum()
    }

    /// Seats still missing for the first shape that lacks some; `None` when counting finds all.
    pub fn deficit(&self) -> Option<(ShapeIx, i64)> {
        for (ix, shape) in self.goal.shapes.iter().enumerate() {
            let missing = shape.need + shape.behind - self.total[ix];
            if missing > 0 {
                return Some((ix, missing));
            }
        }
        None
    }

    /// Seats beyond the need, summed over the shapes.
    pub fn surplus(&self) -> i64 {
        self.goal.shapes.iter().zip(&self.total).map(|(shape, total)| total - shape.need - shape.behind).sum()
    }

    /// What counts towards a shape's deficit.
    pub fn supply(&self, shape: ShapeIx) -> i64 {
        self.total[shape]
    }

    /// Whether the gang fits.
    pub fn fits(&mut self) -> bool {
        if self.deficit().is_some() {
            return false;
        }
        self.goal.counting_decides || {
            self.steps += self.field.site.nodes.len() as u64 * 4;
            place_in(self.field.site, self.free.clone()).is_ok()
        }
    }

    fn charge(&mut self, cand: CandIx, sign: i64) {
        let unit = self.field.unit(cand);
        for &(pdb, pods) in &unit.pdbs {
            let allowed = i64::from(self.field.units.pdb_allowed[pdb]);
            let before = (self.hits[pdb] - allowed).max(0);
            self.hits[pdb] += sign * i64::from(pods);
            self.excess += (self.hits[pdb] - allowed).max(0) - before;
        }
        match unit.cascade {
            None => self.lost += i128::from(sign) * self.field.cost(cand),
            Some(c) => {
                let touched = self.cascades[c] > 0;
                self.cascades[c] = self.cascades[c].wrapping_add_signed(sign as i32);
                let loss = i128::from(self.field.units.cascade_loss[c]);
                match (touched, self.cascades[c] > 0) {
                    (false, true) => self.lost += loss,
                    (true, false) => self.lost -= loss,
                    _ => {}
                }
            }
        }
        self.gangs = self.gangs.wrapping_add_signed(sign as i32 * i32::from(unit.gang));
        self.pods = self.pods.wrapping_add_signed(sign as i32 * self.field.pods(cand) as i32);
    }

    fn shift(&mut self, cand: CandIx, sign: i64) {
        let field = self.field;
        let dims = field.site.cluster.dims();
        for (node, amounts) in field.uses(cand) {
            self.steps += 1;
            for (f, a) in self.free[node * dims..].iter_mut().zip(amounts) {
                *f += sign * a;
            }
            self.recount(node);
        }
    }

    fn recount(&mut self, node: NodeIx) {
        for (ix, shape) in self.goal.shapes.iter().enumerate() {
            let now = if self.field.site.admits[shape.shape].contains(node) {
                seats(self.field.site.room(&self.free, node), &shape.request)
            } else {
                0
            };
            let delta = i64::from(now) - i64::from(self.seats[ix][node]);
            self.seats[ix][node] = now;
            if delta == 0 {
                continue;
            }
            match (self.goal.domain_of.get(node), shape.replica_size) {
                (Some(&Some(domain)), Some(size)) => {
                    let seats = &mut self.in_domain[ix][domain];
                    self.total[ix] += (*seats + delta) / size - *seats / size;
                    *seats += delta;
                }
                (Some(None), Some(_)) => {}
                _ => self.total[ix] += delta,
            }
        }
    }

    /// Seats of a shape in a domain, under a goal of replicas.
    pub fn seats_in(&self, shape: ShapeIx, domain: DomainIx) -> i64 {
        self.in_domain[shape][domain]
    }

    /// Seats of a shape on a node.
    pub fn seats_on(&self, shape: ShapeIx, node: NodeIx) -> u32 {
        self.seats[shape][node]
    }
}

#[cfg(test)]
mod tests;
