//! Local search over victim sets: repair what does not fit, give back what is not needed, exchange what is dear.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::{
    field::CandIx,
    state::{Price, State},
};
use crate::problem::{NodeIx, ShapeIx, Toll};

/// Units that together win a seat.
type Bundle = SmallVec<[CandIx; 8]>;

/// A search from one set of victims to better ones.
pub(super) struct Search<'a> {
    pub state: State<'a>,
    /// Candidates that may be evicted.
    pool: &'a [bool],
    /// Candidates that the present move must leave alone.
    barred: Vec<bool>,
    /// Rounds in which a candidate was already looked at alone.
    seen: Vec<u32>,
    round: u32,
    /// Steps after which the search ends.
    budget: u64,
}

impl<'a> Search<'a> {
    pub fn new(state: State<'a>, pool: &'a [bool], budget: u64) -> Self {
        let cands = state.field.cands.len();
        Self { state, pool, barred: vec![false; cands], seen: vec![0; cands], round: 0, budget }
    }

    /// Makes the set of victims this one.
    pub fn become_set(&mut self, gone: impl Fn(CandIx) -> bool) {
        for cand in 0..self.barred.len() {
            match (self.state.is_gone(cand), gone(cand)) {
                (false, true) => self.state.evict(cand),
                (true, false) => self.state.restore(cand),
                _ => {}
            }
        }
    }

    /// Evicts more until the gang fits: always the bundle that is cheapest for the seats it wins.
    pub fn repair(&mut self) -> bool {
        loop {
            let Some((shape, missing)) = self.state.deficit() else {
                if self.state.fits() {
                    return true;
                }
                // Counting is content but the shapes are in each other's way: any more room may help.
                let Some(cheapest) = self.evictable().min_by_key(|&c| (self.state.marginal(c), c)) else {
                    return false;
                };
                self.state.evict(cheapest);
                continue;
            };
            let Some(bundle) = self.best_bundle(shape, missing) else { return false };
            for cand in bundle {
                self.state.evict(cand);
            }
        }
    }

    /// Gives back every victim that is not needed, dearest first; never `kept`.
    pub fn reprieve(&mut self, kept: Option<CandIx>) {
        let mut order = self.state.victims();
        order.retain(|&c| Some(c) != kept);
        order.sort_by_cached_key(|&c| (Reverse(self.worth(c)), c));
        for cand in order {
            self.state.restore(cand);
            if !self.state.fits() {
                self.state.evict(cand);
            }
        }
    }

    /// What giving back a victim would save.
    fn worth(&self, cand: CandIx) -> (Price, u32) {
        (self.state.field.excess_alone_price(cand) + self.state.field.cost(cand), self.state.field.pods(cand))
    }

    /// Exchanges victims while that pays and the budget lasts.
    pub fn improve(&mut self) {
        let mut best = self.state.toll();
        let mut improved = true;
        while improved && self.state.steps < self.budget {
            improved = self.exchange_out(&mut best) | self.exchange_in(&mut best);
        }
    }

    /// For each victim: can others make the room for less?
    fn exchange_out(&mut self, best: &mut Toll) -> bool {
        let mut order = self.state.victims();
        order.sort_by_cached_key(|&c| (Reverse(self.worth(c)), c));
        let mut improved = false;
        for cand in order {
            if self.state.steps >= self.budget {
                break;
            }
            if !self.state.is_gone(cand) {
                continue;
            }
            let before = self.state.victims();
            self.state.restore(cand);
            self.barred[cand] = true;
            let fits = self.repair_below(best);
            self.barred[cand] = false;
            improved |= self.settle(fits, None, &before, best);
        }
        improved
    }

    /// For each unit that stays: does evicting it let dearer ones stay?
    fn exchange_in(&mut self, best: &mut Toll) -> bool {
        let mut improved = false;
        for cand in 0..self.pool.len() {
            if self.state.steps >= self.budget {
                break;
            }
            if self.state.is_gone(cand) || !self.pool[cand] {
                continue;
            }
            let before = self.state.victims();
            self.state.evict(cand);
            improved |= self.settle(true, Some(cand), &before, best);
        }
        improved
    }

    /// Keeps the move if it pays, else goes back to the set before it.
    fn settle(&mut self, fits: bool, kept: Option<CandIx>, before: &[CandIx], best: &mut Toll) -> bool {
        if fits {
            self.reprieve(kept);
            if kept.is_some() {
                self.reprieve(None);
            }
            let toll = self.state.toll();
            if toll < *best {
                *best = toll;
                return true;
            }
        }
        self.become_set(|c| before.binary_search(&c).is_ok());
        false
    }

    /// As [`Search::repair`], but ends in failure once the price has risen to where the move cannot pay any more, even
    /// if all victims from before but the cheapest were given back.
    fn repair_below(&mut self, best: &Toll) -> bool {
        let limit = Price::from(best.pdb_excess) * self.state.field.excess_price + best.lost as Price;
        while let Some((shape, missing)) = self.state.deficit() {
            let Some(bundle) = self.best_bundle(shape, missing) else { return false };
            for cand in bundle {
                self.state.evict(cand);
            }
            if self.state.price() > limit + limit / 4 {
                return false;
            }
        }
        self.repair()
    }

    fn evictable(&self) -> impl Iterator<Item = CandIx> {
        (0..self.pool.len()).filter(|&c| self.may_go(c))
    }

    fn may_go(&self, cand: CandIx) -> bool {
        self.pool[cand] && !self.barred[cand] && !self.state.is_gone(cand)
    }

    /// The bundle with the least price per seat won, seats beyond the need not counted.
    fn best_bundle(&mut self, shape: ShapeIx, missing: i64) -> Option<Bundle> {
        self.round += 1;
        let mut best: Option<(Price, i64, Bundle)> = None;
        let field = self.state.field;
        for &node in &field.site.nodes {
            self.state.steps += 1;
            let Some(bundle) = self.bundle(shape, node) else { continue };
            if let [single] = bundle[..] {
                if self.seen[single] == self.round {
                    continue;
                }
                self.seen[single] = self.round;
            }
            let (price, won) = self.weigh(shape, &bundle);
            let won = won.min(missing);
            if won > 0 && best.as_ref().is_none_or(|(p, w, _)| price * Price::from(*w) < p * Price::from(won)) {
                best = Some((price, won, bundle));
            }
        }
        best.map(|(_, _, bundle)| bundle)
    }

    /// Price of a bundle and the seats that it wins, wherever they are.
    fn weigh(&mut self, shape: ShapeIx, bundle: &[CandIx]) -> (Price, i64) {
        let (price, supply) = (self.state.price(), self.state.supply(shape));
        for &cand in bundle {
            self.state.evict(cand);
        }
        let weighed = (self.state.price() - price, self.state.supply(shape) - supply);
        for &cand in bundle {
            self.state.restore(cand);
        }
        weighed
    }

    /// A cheap set of units on a node whose eviction makes room for one more pod of the shape there.
    fn bundle(&self, shape: ShapeIx, node: NodeIx) -> Option<Bundle> {
        let goal = &self.state.goal.shapes[shape];
        if !self.state.field.site.admits[goal.shape].contains(node) {
            return None;
        }
        let target = i64::from(self.state.seats_on(shape, node)) + 1;
        let mut missing: SmallVec<[i64; 6]> =
            self.state.room(node).iter().zip(&goal.request).map(|(&have, &r)| r * target - have).collect();
        let lacks = |missing: &[i64]| missing.iter().zip(&goal.request).any(|(&m, &r)| r > 0 && m > 0);
        let mut units: SmallVec<[(Price, CandIx, &[i64]); 8]> = SmallVec::new();
        for (cand, amounts) in self.state.field.uses_on(node).filter(|&(c, _)| self.may_go(c)) {
            let useful: i64 = amounts.iter().zip(&missing).map(|(&a, &m)| a.min(m).max(0)).sum();
            if useful > 0 {
                let rate = (self.state.marginal(cand) << 8) / Price::from(useful);
                units.push((rate, cand, amounts));
            }
        }
        units.sort_unstable_by_key(|&(rate, cand, _)| (rate, cand));
        let mut bundle: SmallVec<[(CandIx, &[i64]); 8]> = SmallVec::new();
        for &(_, cand, amounts) in &units {
            if !lacks(&missing) {
                break;
            }
            missing.iter_mut().zip(amounts).for_each(|(m, a)| *m -= a);
            bundle.push((cand, amounts));
        }
        if lacks(&missing) {
            return None;
        }
        // What was taken early may have become needless.
        bundle.retain(|&mut (_, amounts)| {
            let without: SmallVec<[i64; 6]> = missing.iter().zip(amounts).map(|(m, a)| m + a).collect();
            let needed = lacks(&without);
            if !needed {
                missing = without;
            }
            needed
        });
        Some(bundle.into_iter().map(|(cand, _)| cand).collect())
    }
}
