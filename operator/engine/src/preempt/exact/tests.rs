//! Proofs against trying every set.

use proptest::prelude::*;

use super::*;
use crate::preempt::{
    field::tests::{over_questions, subsets},
    state::State,
};

/// More than a question of six units takes.
const AMPLE: u64 = 100_000_000;

#[test]
fn a_proof_ends_with_the_best_set_wherever_it_starts_and_is_not_given_where_losses_are_shared_or_steps_run_out() {
    over_questions(|field, goal| {
        let count = field.cands.len();
        let pool = vec![true; count];
        let mut search = Search::new(State::new(field, goal), &pool, AMPLE);
        let mut answers: Vec<(Toll, Vec<CandIx>)> = Vec::new();
        for gone in subsets(count, (0..count).collect()) {
            search.become_set(|c| gone[c]);
            if search.state.fits() {
                answers.push((search.state.toll(), search.state.victims()));
            }
        }
        let worth = |answer: &(Toll, Vec<CandIx>)| (answer.0.pdb_excess, answer.0.lost);
        let Some(best) = answers.iter().map(worth).min() else { return Ok(false) };
        let everybody = answers.iter().max_by_key(|a| a.1.len());
        let least_work = answers.iter().min_by_key(|a| a.0.lost);
        let starts: Vec<_> = everybody.into_iter().chain(least_work).collect();
        for (start, budget) in starts.iter().flat_map(|&s| [AMPLE, 1_000, 300].map(|budget| (s, budget))) {
            let weights = (0..count).map(|c| Some(field.cost(c))).collect();
            let mut relaxation = Relaxation::new(field, goal, weights).expect("something is needed");
            let price = relaxation.solve().price;
            let mut found = start.clone();
            let proven = prove(relaxation, &mut search, &mut found, price, budget);
            let shared = (0..count).any(|c| field.unit(c).cascade.is_some());
            prop_assert!(!(proven && shared), "losses are shared");
            prop_assert!(proven || shared || budget < AMPLE, "nothing stands in the way of a proof");
            prop_assert!(answers.contains(&found), "{found:?} is no answer");
            prop_assert!(!proven || worth(&found) == best, "{found:?} where {best:?} can be had");
        }
        Ok(true)
    });
}
