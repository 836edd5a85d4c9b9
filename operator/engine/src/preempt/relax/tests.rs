//! The relaxation against trying every set.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::preempt::{
    field::tests::{over_questions, subsets},
    knapsack::bound_of_pieces,
    state::State,
};

/// A set of candidates with what it weighs and the room there is without it, added up from the question.
struct Set {
    gone: Vec<bool>,
    cost: i128,
    room: i64,
}

impl Set {
    fn new(field: &Field<'_>, relaxed: &Relaxation, gone: Vec<bool>) -> Self {
        let cands = || (0..gone.len()).filter(|&c| gone[c]);
        let cascades: BTreeSet<usize> = cands().filter_map(|c| field.unit(c).cascade).collect();
        let weights: i128 = cands().filter_map(|c| relaxed.weight(c)).sum();
        let losses: i128 = cascades.iter().map(|&c| i128::from(field.units.cascade_loss[c])).sum();
        let claimed: i64 = relaxed.claims.iter().filter(|c| c.units.iter().all(|&u| gone[u])).map(|c| c.room).sum();
        let shared: i64 = cands().map(|c| relaxed.share[c]).sum();
        Self { cost: weights + losses, room: relaxed.base + shared + claimed, gone }
    }

    /// What the set weighs less what its room beyond the need is worth.
    fn dear(&self, price: i128, need: i64) -> i128 {
        (self.cost << FRACTION) - price * i128::from(self.room - need)
    }
}

/// The question over all candidates but one in ten.
fn relaxed(field: &Field<'_>, goal: &Goal) -> Relaxation {
    let weight = |c: CandIx| (field.cost(c) % 10 != 9).then(|| field.cost(c));
    Relaxation::new(field, goal, (0..field.cands.len()).map(weight).collect()).expect("something is needed")
}

fn every_set(field: &Field<'_>, relaxed: &Relaxation) -> Vec<Set> {
    let pool = (0..field.cands.len()).filter(|&c| relaxed.weight(c).is_some()).collect();
    subsets(field.cands.len(), pool).map(|gone| Set::new(field, relaxed, gone)).collect()
}

/// Whether a cut says exactly what is best at a price: it lets a unit that pays by its shares go before its cascade is paid.
fn is_exact(field: &Field<'_>, relaxed: &Relaxation) -> bool {
    !relaxed.has_cascades() || (0..field.cands.len()).all(|c| relaxed.share[c] == 0 || field.unit(c).cascade.is_none())
}

#[test]
fn whoever_makes_the_gang_fit_makes_the_room_that_is_needed() {
    over_questions(|field, goal| {
        let relaxed = relaxed(field, goal);
        let mut fitting = 0;
        for set in every_set(field, &relaxed) {
            let mut state = State::new(field, goal);
            for cand in (0..set.gone.len()).filter(|&c| set.gone[c]) {
                state.evict(cand);
            }
            if state.fits() {
                fitting += 1;
                prop_assert!(set.room >= relaxed.need, "{:?} makes {}", set.gone, set.room);
            }
        }
        Ok(fitting > 0)
    });
}

#[test]
fn at_every_price_the_cut_finds_the_set_that_pays_most_without_those_that_must_stay() {
    over_questions(|field, goal| {
        let mut relaxed = relaxed(field, goal);
        let sets = every_set(field, &relaxed);
        let exact = is_exact(field, &relaxed);
        for barred in [None, (0..field.cands.len()).find(|&c| relaxed.weight(c).is_some())] {
            if let Some(cand) = barred {
                relaxed.bar(cand, true);
            }
            for eighths in [1, 8, 20, 33, 64, 100, 160, 400] {
                let price = (eighths << FRACTION) / 8;
                let (bound, paying) = relaxed.cut(price);
                for set in sets.iter().filter(|s| barred.is_none_or(|c| !s.gone[c])) {
                    prop_assert!(bound <= set.dear(price, relaxed.need), "{bound} at {price}: {:?}", set.gone);
                }
                let found = Set::new(field, &relaxed, paying.gone);
                prop_assert_eq!((paying.cost, paying.price), (found.cost, price));
                prop_assert!(barred.is_none_or(|c| !found.gone[c]), "{barred:?} goes");
                if exact {
                    prop_assert_eq!((paying.room, bound), (found.room, found.dear(price, relaxed.need)));
                }
            }
        }
        Ok(exact && !relaxed.claims.is_empty())
    });
}

#[test]
fn the_bound_is_below_every_answer_and_no_other_price_gives_a_better_one() {
    over_questions(|field, goal| {
        let mut relaxed = relaxed(field, goal);
        let sets = every_set(field, &relaxed);
        let enough = sets.iter().filter(|s| s.room >= relaxed.need);
        let Some(least) = enough.map(|s| s.cost).min() else { return Ok(false) };
        let priced = relaxed.solve();
        prop_assert!(priced.bound <= least, "{} for {least}", priced.bound);
        // Pieces chosen by their prices alone, some of them enumerated, all of them.
        for enumerable in 0..=field.cands.len() {
            let chosen = bound_of_pieces(&relaxed, &priced.sets, enumerable);
            prop_assert!(chosen <= least, "{chosen} for {least}, up to {enumerable}");
            prop_assert!(chosen >= priced.bound || relaxed.has_cascades(), "{chosen} for {}", priced.bound);
            prop_assert!(chosen == least || relaxed.has_cascades() || enumerable < field.cands.len(), "{chosen}");
        }
        // With a unit that frees nothing, the first price may be one at which all others pay.
        let frees = |c: CandIx| relaxed.share[c] > 0 || relaxed.claims.iter().any(|claim| claim.units.contains(&c));
        let useful = (0..field.cands.len()).all(|c| relaxed.weight(c).is_none() || frees(c));
        if !useful || !is_exact(field, &relaxed) {
            return Ok(false);
        }
        for shift in (0..=FRACTION + 6).step_by(2) {
            for price in [priced.price - (1 << shift), priced.price + (1 << shift)] {
                let (bound, _) = relaxed.cut(price.max(0));
                prop_assert!(bound <= priced.bound << FRACTION, "{bound} at {price}, {} at the best", priced.bound);
            }
        }
        Ok(true)
    });
}
