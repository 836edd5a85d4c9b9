//! Branch and bound: finds and proves the best set of victims if that is cheap.
//!
//! A branch fixes some units as evicted and some as kept. The relaxation under these decisions
//! bounds every set of the branch. Each undecided unit is charged for PDB excess as if it were
//! evicted next. That is a lower bound, because the excess of a set is at least the sum of these
//! charges.

use std::cmp::Reverse;

use super::lagrangian::{PricedSet, Relaxation, round_up};
use crate::{
    objective::Price,
    preempt::{
        instance::CandidateIx,
        search::{local_search::LocalSearch, state::VictimSet},
    },
};

/// Sixteenths of the parent's multiplier to try for a branch.
const MULTIPLIERS: [i128; 3] = [16, 14, 18];

/// Approximate visits of an edge in one cut.
const STEPS_PER_EDGE: u64 = 2;

/// Value of a unit's 0-1 variable in a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Undecided,
    Evicted,
    Kept,
}

struct BranchAndBound<'s, 'a> {
    relaxation: Relaxation,
    search: &'s mut LocalSearch<'a>,
    decisions: Vec<Decision>,
    variables: Vec<CandidateIx>,
    /// Units fixed as evicted, in the order of the decisions.
    decided_evicted: Vec<CandidateIx>,
    incumbent: VictimSet,
    steps: u64,
    budget: u64,
}

struct BranchBound {
    bound: Price,
    set: PricedSet,
    multiplier: i128,
}

/// Improves `best` over the pool of the relaxation. True if no set has less excess, or equal excess
/// and less lost work. Spends at most `budget` steps. False at once if these do not suffice to
/// visit every unit, or if counting slots is not exact.
pub(in crate::preempt) fn prove(
    relaxation: Relaxation,
    search: &mut LocalSearch<'_>,
    best: &mut VictimSet,
    multiplier: i128,
    budget: u64,
) -> bool {
    let candidates = search.state.instance.candidates.len();
    let variables: Vec<CandidateIx> = (0..candidates)
        .filter(|&c| relaxation.price(c).is_some())
        .collect();
    let one_look = relaxation.size() * STEPS_PER_EDGE * MULTIPLIERS.len() as u64;
    if relaxation.has_cascades()
        || !search.state.fit.counting_is_exact
        || one_look * variables.len() as u64 > budget
    {
        return false;
    }
    let mut tree = BranchAndBound {
        relaxation,
        search,
        decisions: vec![Decision::Undecided; candidates],
        variables,
        decided_evicted: Vec::new(),
        incumbent: best.clone(),
        steps: 0,
        budget,
    };
    tree.fix_variables(multiplier);
    tree.branch(multiplier);
    *best = tree.incumbent;
    tree.steps < tree.budget
}

impl BranchAndBound<'_, '_> {
    /// Fixes units whose other value cannot improve the incumbent.
    fn fix_variables(&mut self, multiplier: i128) {
        let Some(root) = self.bound(multiplier) else {
            return;
        };
        for candidate in self.variables.clone() {
            let (likely, other) = if root.set.evicted[candidate] {
                (Decision::Evicted, Decision::Kept)
            } else {
                (Decision::Kept, Decision::Evicted)
            };
            self.decide(candidate, other);
            let hopeless = self.bound(root.multiplier).is_none();
            self.undo(candidate);
            if hopeless && self.steps < self.budget {
                self.decide(candidate, likely);
            }
        }
    }

    fn branch(&mut self, multiplier: i128) {
        if self.steps >= self.budget {
            return;
        }
        let Some(node) = self.bound(multiplier) else {
            return;
        };
        self.try_set(&node.set);
        let Some(candidate) = self.branching_variable(&node.set) else {
            return;
        };
        for decision in [Decision::Kept, Decision::Evicted] {
            self.decide(candidate, decision);
            self.branch(node.multiplier);
            self.undo(candidate);
        }
    }

    /// Next unit to branch on: the most expensive undecided unit of the optimal set, which changes
    /// the bound most, else any.
    fn branching_variable(&self, set: &PricedSet) -> Option<CandidateIx> {
        self.variables
            .iter()
            .copied()
            .filter(|&c| self.decisions[c] == Decision::Undecided)
            .max_by_key(|&c| {
                let price = self.relaxation.price(c).unwrap_or(0);
                (set.evicted[c], price, Reverse(c))
            })
    }

    /// Best bound of the current branch at a few multipliers. `None` if the branch cannot improve
    /// the incumbent.
    fn bound(&mut self, multiplier: i128) -> Option<BranchBound> {
        let decided = self.decided_evicted.clone();
        self.search.set_victims(|c| decided.contains(&c));
        let sunk = self.search.state.price();
        for &candidate in &self.variables {
            match self.decisions[candidate] {
                Decision::Undecided => {
                    let price = self.search.state.marginal(candidate);
                    self.relaxation.set_price(candidate, price);
                }
                Decision::Evicted => self.relaxation.set_price(candidate, 0),
                Decision::Kept => {}
            }
        }
        let limit = self
            .search
            .state
            .instance
            .weights
            .scalar(&self.incumbent.cost);
        let mut best: Option<BranchBound> = None;
        for sixteenths in MULTIPLIERS {
            let multiplier = multiplier * sixteenths / 16;
            let (bound, set) = self.relaxation.cut(multiplier);
            self.steps += self.relaxation.size() * STEPS_PER_EDGE;
            let bound = sunk + round_up(bound);
            if bound >= limit {
                return None;
            }
            if best.as_ref().is_none_or(|known| bound > known.bound) {
                best = Some(BranchBound {
                    bound,
                    set,
                    multiplier,
                });
            }
        }
        best
    }

    /// Makes the relaxation's optimal set, with all decisions, the incumbent if it is feasible and
    /// better.
    fn try_set(&mut self, set: &PricedSet) {
        let decisions = &self.decisions;
        self.search.set_victims(|c| match decisions[c] {
            Decision::Evicted => true,
            Decision::Kept => false,
            Decision::Undecided => set.evicted[c],
        });
        if self.search.state.fits() {
            self.search.reprieve();
            let found = self.search.state.victim_set();
            if found < self.incumbent {
                self.incumbent = found;
            }
        }
    }

    fn decide(&mut self, candidate: CandidateIx, decision: Decision) {
        self.decisions[candidate] = decision;
        match decision {
            Decision::Evicted => self.decided_evicted.push(candidate),
            Decision::Kept => self.relaxation.exclude(candidate, true),
            Decision::Undecided => {}
        }
    }

    fn undo(&mut self, candidate: CandidateIx) {
        match self.decisions[candidate] {
            Decision::Evicted => self.decided_evicted.retain(|&c| c != candidate),
            Decision::Kept => self.relaxation.exclude(candidate, false),
            Decision::Undecided => {}
        }
        self.decisions[candidate] = Decision::Undecided;
    }
}

#[cfg(test)]
mod tests;
