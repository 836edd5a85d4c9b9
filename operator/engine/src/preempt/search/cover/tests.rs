//! Tests of the greedy cover on a node.

use super::*;
use crate::{
    placement::PlacementInstance,
    preempt::{fit::FitCondition, instance::PreemptionInstance, testing::Question},
};

/// Cover for one slot on the first node, and its steps.
fn cover_of_question(question: &Question) -> (Cover, u64) {
    let site = PlacementInstance::new(&question.cluster, &question.demand);
    let (instance, fit) = (
        PreemptionInstance::new(&site, &question.units),
        FitCondition::new(&site),
    );
    let mut state = VictimState::new(&instance, &fit);
    let cover = cheapest_cover(&mut state, 0, 0, |_| true).expect("there are enough");
    (cover, state.steps)
}

#[test]
fn a_node_is_freed_by_the_cheapest_sufficient_units_at_one_step_per_unit() {
    let mut question = Question::new(&[8], 1, 4);
    for (cost, amount) in [(1, 1), (50, 3), (20, 4)] {
        question.unit(cost, amount, &[0]);
    }
    let (cover, steps) = cover_of_question(&question);
    assert_eq!(
        cover.as_slice(),
        [2],
        "the first comes cheapest by what it frees, and is needless beside the third"
    );
    assert_eq!(steps, 3);
}

#[test]
fn a_second_unit_of_one_budget_is_taken_only_if_other_units_do_not_suffice() {
    for (others, expected) in [(true, &[0, 2][..]), (false, &[0, 1][..])] {
        let mut question = Question::new(&[8], 1, 6);
        for cost in [1, 2] {
            question.unit(cost, 4, &[0]).pdbs.push((0, 1));
        }
        question.units.pdb_allowed = vec![1];
        if others {
            question.shrink(0, 12);
            question.unit(90, 4, &[0]);
        }
        let (cover, _) = cover_of_question(&question);
        assert_eq!(cover.as_slice(), expected, "others: {others}");
    }
}

#[test]
fn victims_that_together_exceed_a_budget_precede_a_victim_with_a_larger_excess() {
    let mut question = Question::new(&[12], 1, 6);
    for cost in [1, 2] {
        question.unit(cost, 4, &[0]).pdbs.push((0, 1));
    }
    question.unit(1, 4, &[0]).pdbs.push((1, 8));
    question.units.pdb_allowed = vec![1, 0];
    let (cover, _) = cover_of_question(&question);
    assert_eq!(cover.as_slice(), [0, 1]);
}
