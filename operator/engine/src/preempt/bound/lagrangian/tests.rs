//! Compares the relaxation with an enumeration of all sets.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::placement::PlacementInstance;
use crate::preempt::{
    PreemptionOptions, preempt,
    search::state::VictimState,
    testing::{Question, over_questions, subsets},
};

/// A set of candidates, with its cost and the resulting capacity computed directly.
struct Set {
    evicted: Vec<bool>,
    cost: i128,
    capacity: i64,
}

impl Set {
    fn new(instance: &PreemptionInstance<'_>, relaxed: &Relaxation, evicted: Vec<bool>) -> Self {
        let candidates = || (0..evicted.len()).filter(|&c| evicted[c]);
        let cascades: BTreeSet<usize> = candidates()
            .filter_map(|c| instance.unit(c).cascade)
            .collect();
        let prices: i128 = candidates().filter_map(|c| relaxed.price[c]).sum();
        let losses: i128 = cascades
            .iter()
            .map(|&c| i128::from(instance.units.cascade_loss[c]))
            .sum();
        let claimed: i64 = relaxed
            .claims
            .iter()
            .filter(|c| c.units.iter().all(|&u| evicted[u]))
            .map(|c| c.capacity)
            .sum();
        let shared: i64 = candidates().map(|c| relaxed.share[c]).sum();
        Self {
            cost: prices + losses,
            capacity: relaxed.base + shared + claimed,
            evicted,
        }
    }

    /// Cost of the set minus the earnings of its capacity beyond the need.
    fn reduced_cost(&self, multiplier: i128, need: i64) -> i128 {
        (self.cost << FRACTION) - multiplier * i128::from(self.capacity - need)
    }
}

/// Relaxation over all but about one in ten candidates.
fn relaxed(instance: &PreemptionInstance<'_>, fit: &FitCondition) -> Relaxation {
    let price = |c: CandidateIx| (instance.cost(c).lost % 10 != 9).then(|| instance.cost(c).lost);
    Relaxation::new(
        instance,
        fit,
        (0..instance.candidates.len()).map(price).collect(),
    )
    .expect("something is needed")
}

fn every_set(instance: &PreemptionInstance<'_>, relaxed: &Relaxation) -> Vec<Set> {
    let pool = (0..instance.candidates.len())
        .filter(|&c| relaxed.price[c].is_some())
        .collect();
    subsets(instance.candidates.len(), pool)
        .map(|evicted| Set::new(instance, relaxed, evicted))
        .collect()
}

/// True if the cut is exact. It may evict a unit that pays by its shares before it has paid for its
/// cascade.
fn is_exact(instance: &PreemptionInstance<'_>, relaxed: &Relaxation) -> bool {
    (0..instance.candidates.len())
        .all(|c| relaxed.share[c] == 0 || instance.unit(c).cascade.is_none())
}

#[test]
fn every_set_without_which_the_gang_fits_frees_the_capacity_that_is_needed() {
    over_questions(|instance, fit| {
        let relaxed = relaxed(instance, fit);
        let mut fitting = 0;
        for set in every_set(instance, &relaxed) {
            let mut state = VictimState::new(instance, fit);
            for candidate in (0..set.evicted.len()).filter(|&c| set.evicted[c]) {
                state.evict(candidate);
            }
            if state.fits() {
                fitting += 1;
                prop_assert!(
                    set.capacity >= relaxed.need,
                    "{:?} makes {}",
                    set.evicted,
                    set.capacity
                );
            }
        }
        Ok(fitting > 0)
    });
}

#[test]
fn overcommitment_of_a_node_is_not_required_of_other_nodes() {
    let mut question = Question::new(&[4, 2], 1, 1);
    // No slot requires a certain unit, so both nodes are divided.
    for _ in 0..2 {
        question.unit(1000, 2, &[0]);
        question.unit(10, 1, &[1]);
    }
    question.shrink(0, 3);
    let placement = PlacementInstance::new(&question.cluster, &question.demand);
    let fit = FitCondition::new(&placement);
    let instance = PreemptionInstance::new(&placement, &question.units);
    let costs = (0..instance.candidates.len()).map(|c| Some(instance.cost(c).lost));
    let mut relaxed = Relaxation::new(&instance, &fit, costs.collect()).expect("a slot is needed");
    assert_eq!(relaxed.solve().bound, 10);
}

#[test]
fn a_cheaper_set_of_equal_capacity_does_not_end_the_search_for_the_multiplier() {
    let mut question = Question::new(&[1, 1, 1], 1, 1);
    for (node, cost) in [1, 10, 100].into_iter().enumerate() {
        question.unit(cost, 1, &[node]);
    }
    // The last unit is part of the pool and frees nothing.
    question.shrink(2, 0);
    let placement = PlacementInstance::new(&question.cluster, &question.demand);
    let fit = FitCondition::new(&placement);
    let instance = PreemptionInstance::new(&placement, &question.units);
    let costs = (0..instance.candidates.len()).map(|c| Some(instance.cost(c).lost));
    let mut relaxed = Relaxation::new(&instance, &fit, costs.collect()).expect("a slot is needed");
    assert_eq!(relaxed.solve().bound, 1);
}

#[test]
fn at_every_price_the_cut_finds_the_set_that_pays_most() {
    over_questions(|instance, fit| {
        let mut relaxed = relaxed(instance, fit);
        let sets = every_set(instance, &relaxed);
        let exact = is_exact(instance, &relaxed);
        for eighths in [1, 8, 20, 33, 64, 100, 160, 400] {
            let multiplier = (eighths << FRACTION) / 8;
            let (bound, priced_set) = relaxed.cut(multiplier);
            for set in &sets {
                prop_assert!(
                    bound <= set.reduced_cost(multiplier, relaxed.need),
                    "{bound} at {multiplier}: {:?}",
                    set.evicted
                );
            }
            let found = Set::new(instance, &relaxed, priced_set.evicted);
            prop_assert_eq!(
                (priced_set.cost, priced_set.capacity),
                (found.cost, found.capacity)
            );
            if exact {
                prop_assert_eq!(bound, found.reduced_cost(multiplier, relaxed.need));
            }
        }
        Ok(exact && !relaxed.claims.is_empty())
    });
}

#[test]
fn the_bound_is_below_every_answer_and_no_other_price_gives_a_better_one() {
    over_questions(|instance, fit| {
        let mut relaxed = relaxed(instance, fit);
        let sets = every_set(instance, &relaxed);
        let enough = sets.iter().filter(|s| s.capacity >= relaxed.need);
        let Some(least) = enough.map(|s| s.cost).min() else {
            return Ok(false);
        };
        let dual = relaxed.solve();
        prop_assert!(dual.bound <= least, "{} for {least}", dual.bound);
        if !is_exact(instance, &relaxed) {
            return Ok(false);
        }
        for eighths in 0..=800 {
            let multiplier = (eighths << FRACTION) / 8;
            let (bound, _) = relaxed.cut(multiplier);
            prop_assert!(
                bound <= dual.bound << FRACTION,
                "{bound} at {multiplier}, {} at the best",
                dual.bound
            );
        }
        Ok(true)
    });
}

#[test]
fn the_example_of_the_engine_page() {
    let mut question = Question::new(&[8, 8, 8, 8], 2, 8);
    question.unit(900, 8, &[0, 1]);
    question.unit(100, 4, &[2]);
    question.unit(200, 4, &[2]);
    question.unit(500, 8, &[3]);
    let placement = PlacementInstance::new(&question.cluster, &question.demand);
    let instance = PreemptionInstance::new(&placement, &question.units);
    let prices = (0..4).map(|c| Some(instance.cost(c).lost)).collect();
    let fit = FitCondition::new(&placement);
    let mut relaxation = Relaxation::new(&instance, &fit, prices).expect("something is needed");
    let claims: Vec<_> = relaxation
        .claims
        .iter()
        .map(|claim| (claim.units.clone(), claim.capacity))
        .collect();
    assert_eq!(claims, [(vec![0], 16), (vec![1, 2], 8), (vec![3], 8)]);
    let (bound, _) = relaxation.cut((900 << FRACTION) / 16);
    assert_eq!((bound, relaxation.solve().bound), (750 << FRACTION, 750));
    let options = PreemptionOptions::default();
    let plan = preempt(
        &question.cluster,
        &question.units,
        &question.demand,
        &options,
    )
    .expect("it fits");
    assert_eq!(
        (plan.victims, plan.cost.lost, plan.bound.lost),
        (vec![1, 2, 3], 800, 750)
    );
}
