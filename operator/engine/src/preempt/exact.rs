//! Branch and bound: the best set of victims, proven, where that is cheap.
//!
//! A branch decides for some units that they go and for others that they stay. The relaxation with those decisions bounds
//! what the branch can offer; pods beyond a budget are charged to the units not yet decided as if each were the next one
//! to go, which they never undercut because excess only grows faster.

use super::{
    field::CandIx,
    relax::{FRACTION, Paying, Relaxation},
    search::Search,
    state::Price,
};
use crate::problem::Toll;

/// Sixteenths of the parent's price that are tried for a branch's bound.
const PRICES: [i128; 3] = [16, 14, 18];

/// Visits of an edge in one cut, roughly.
const STEPS_PER_EDGE: u64 = 2;

/// What is decided of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open,
    Goes,
    Stays,
}

pub(super) struct Exact<'s, 'a> {
    relaxation: Relaxation,
    search: &'s mut Search<'a>,
    fate: Vec<Fate>,
    open: Vec<CandIx>,
    /// Units decided to go, in the order of the decisions.
    goes: Vec<CandIx>,
    best: (Toll, Vec<CandIx>),
    steps: u64,
    budget: u64,
}

/// Improves `best` over the pool of the relaxation; true when nothing with less excess, or equal excess and less work lost,
/// exists in it. Spends at most `budget` steps, and none where they would not even look at every unit once, or where
/// counting seats does not decide.
pub(super) fn prove(
    relaxation: Relaxation,
    search: &mut Search<'_>,
    best: &mut (Toll, Vec<CandIx>),
    price: i128,
    budget: u64,
) -> bool {
    let cands = search.state.field.cands.len();
    let open: Vec<CandIx> = (0..cands).filter(|&c| relaxation.weight(c).is_some()).collect();
    let one_look = relaxation.size() * STEPS_PER_EDGE * PRICES.len() as u64;
    if relaxation.has_cascades() || !search.state.goal.counting_decides || one_look * open.len() as u64 > budget {
        return false;
    }
    let fate = vec![Fate::Open; cands];
    let mut exact = Exact { relaxation, search, fate, open, goes: Vec::new(), best: best.clone(), steps: 0, budget };
    exact.settle_units(price);
    exact.branch(price);
    *best = exact.best;
    exact.steps < exact.budget
}

impl Exact<'_, '_> {
    fn price_of_best(&self) -> Price {
        Price::from(self.best.0.pdb_excess) * self.search.state.field.excess_price + self.best.0.lost as Price
    }

    /// Decides units for good whose other fate cannot beat the best.
    fn settle_units(&mut self, price: i128) {
        let Some((_, paying, price)) = self.bound(price) else { return };
        for cand in self.open.clone() {
            let other = if paying.gone[cand] { Fate::Stays } else { Fate::Goes };
            self.decide(cand, other);
            let hopeless = self.bound(price).is_none();
            self.undo(cand);
            if hopeless && self.steps < self.budget {
                self.decide(cand, if other == Fate::Goes { Fate::Stays } else { Fate::Goes });
            }
        }
    }

    fn branch(&mut self, price: i128) {
        if self.steps >= self.budget {
            return;
        }
        let Some((_, paying, price)) = self.bound(price) else { return };
        self.try_set(&paying);
        let open = || self.open.iter().copied().filter(|&c| self.fate[c] == Fate::Open);
        let weight = |c: CandIx| self.relaxation.weight(c).unwrap_or(0);
        // The heaviest unit that pays moves the bound most; where none pays, any unit may be needed.
        let Some(cand) = open().max_by_key(|&c| (paying.gone[c], weight(c), std::cmp::Reverse(c))) else { return };
        for fate in [Fate::Stays, Fate::Goes] {
            self.decide(cand, fate);
            self.branch(price);
            self.undo(cand);
        }
    }

    /// The best bound at a few prices, the set that pays there and that price; nothing when the branch cannot beat the
    /// best answer.
    fn bound(&mut self, price: i128) -> Option<(Price, Paying, i128)> {
        let decided: Vec<CandIx> = self.goes.clone();
        self.search.become_set(|c| decided.contains(&c));
        let sunk = self.search.state.price();
        for cand in self.open.iter().copied() {
            match self.fate[cand] {
                Fate::Open => self.relaxation.set_weight(cand, self.search.state.marginal(cand)),
                Fate::Goes => self.relaxation.set_weight(cand, 0),
                Fate::Stays => {}
            }
        }
        let mut top: Option<(Price, Paying, i128)> = None;
        for sixteenths in PRICES {
            let price = price * sixteenths / 16;
            let (bound, paying) = self.relaxation.cut(price);
            self.steps += self.relaxation.size() * STEPS_PER_EDGE;
            let bound = sunk + ((bound + (1 << FRACTION) - 1) >> FRACTION);
            if bound >= self.price_of_best() {
                return None;
            }
            if top.as_ref().is_none_or(|(known, ..)| bound > *known) {
                top = Some((bound, paying, price));
            }
        }
        top
    }

    /// Takes the paying set, with what is decided, as an answer if it is a better one.
    fn try_set(&mut self, paying: &Paying) {
        let fate = &self.fate;
        self.search.become_set(|c| fate[c] == Fate::Goes || (paying.gone[c] && fate[c] == Fate::Open));
        if self.search.state.fits() {
            self.search.reprieve();
            let found = (self.search.state.toll(), self.search.state.victims());
            if found < self.best {
                self.best = found;
            }
        }
    }

    fn decide(&mut self, cand: CandIx, fate: Fate) {
        self.fate[cand] = fate;
        match fate {
            Fate::Goes => self.goes.push(cand),
            Fate::Stays => self.relaxation.bar(cand, true),
            Fate::Open => {}
        }
    }

    fn undo(&mut self, cand: CandIx) {
        match self.fate[cand] {
            Fate::Goes => self.goes.retain(|&c| c != cand),
            Fate::Stays => self.relaxation.bar(cand, false),
            Fate::Open => {}
        }
        self.fate[cand] = Fate::Open;
    }
}

#[cfg(test)]
mod tests;
