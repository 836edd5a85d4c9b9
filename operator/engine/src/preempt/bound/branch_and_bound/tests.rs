//! Compares proofs with an enumeration of all sets.

use proptest::prelude::*;

use super::*;
use crate::preempt::{
    search::state::VictimState,
    testing::{over_questions, subsets},
};

/// More steps than an instance of six units needs.
const AMPLE: u64 = 100_000_000;

#[test]
fn a_proof_finds_the_best_set_from_any_start_except_with_shared_losses_or_few_steps() {
    over_questions(|instance, fit| {
        let count = instance.candidates.len();
        let pool = vec![true; count];
        let mut search = LocalSearch::new(VictimState::new(instance, fit), &pool, AMPLE);
        let mut answers: Vec<VictimSet> = Vec::new();
        for evicted in subsets(count, (0..count).collect()) {
            search.set_victims(|c| evicted[c]);
            if search.state.fits() {
                answers.push(search.state.victim_set());
            }
        }
        let objective = |answer: &VictimSet| (answer.cost.pdb_excess, answer.cost.lost);
        let Some(best) = answers.iter().map(objective).min() else {
            return Ok(false);
        };
        let largest = answers.iter().max_by_key(|a| a.victims.len());
        let least_work = answers.iter().min_by_key(|a| a.cost.lost);
        let starts: Vec<_> = largest.into_iter().chain(least_work).collect();
        for (start, budget) in starts
            .iter()
            .flat_map(|&s| [AMPLE, 1_000, 300].map(|budget| (s, budget)))
        {
            let weights = (0..count).map(|c| Some(instance.cost(c).lost)).collect();
            let mut relaxation =
                Relaxation::new(instance, fit, weights).expect("something is needed");
            let multiplier = relaxation.solve(false).multiplier;
            let mut found = start.clone();
            let proven = prove(relaxation, &mut search, &mut found, multiplier, budget);
            let shared = (0..count).any(|c| instance.unit(c).cascade.is_some());
            prop_assert!(!(proven && shared), "losses are shared");
            prop_assert!(
                proven || shared || budget < AMPLE,
                "nothing stands in the way of a proof"
            );
            prop_assert!(answers.contains(&found), "{found:?} is no answer");
            prop_assert!(
                !proven || objective(&found) == best,
                "{found:?} where {best:?} can be had"
            );
        }
        Ok(true)
    });
}
