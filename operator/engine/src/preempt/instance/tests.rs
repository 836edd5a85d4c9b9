//! Weights of the instance.

use proptest::prelude::*;

use super::*;
use crate::{
    objective::EvictionCost,
    preempt::{
        PreemptionOptions, explain, preempt,
        search::state::VictimState,
        testing::{Question, over_questions},
    },
};

#[test]
fn one_pod_beyond_a_budget_weighs_more_than_all_the_work_there_is() {
    over_questions(|instance, fit| {
        let mut state = VictimState::new(instance, fit);
        for candidate in 0..instance.candidates.len() {
            state.evict(candidate);
        }
        let EvictionCost { lost, .. } = state.cost();
        prop_assert!(
            instance.weights.excess.unsigned_abs() > lost,
            "{} for {lost}",
            instance.weights.excess
        );
        Ok(lost > 0)
    });
}

#[test]
fn what_a_victim_causes_elsewhere_is_added_to_its_work_and_stays_below_a_budget() {
    let mut question = Question::new(&[8, 8], 1, 8);
    question.unit(0, 8, &[0]);
    question.unit(300, 8, &[1]);
    let placement = PlacementInstance::new(&question.cluster, &question.demand);
    let mut instance = PreemptionInstance::new(&placement, &question.units);
    instance.add_follow_on(0, 700);
    instance.add_follow_on(1, 50);
    assert_eq!((instance.cost(0).lost, instance.cost(1).lost), (700, 350));
    assert!(instance.weights.excess > 1_050);
}

#[test]
fn sparing_is_worked_out_first_for_victims_that_break_a_budget() {
    // 32 victims within budgets, 8 that lose nothing and each exceed one, and 2 spared units that
    // exceed theirs by more.
    let mut question = Question::new(&[8; 42], 40, 8);
    question.units.pdb_allowed = vec![0; 42];
    for node in 0..42 {
        let beyond = [0, 1, 2][usize::from(node >= 32) + usize::from(node >= 40)];
        let cost = if beyond == 0 { 100 } else { 0 };
        let unit = question.unit(cost, 8, &[node]);
        unit.pdbs.extend((beyond > 0).then_some((node, beyond)));
    }
    let Question {
        cluster,
        units,
        demand,
    } = &question;
    let options = PreemptionOptions::default();
    let plan = preempt(cluster, units, demand, &options).expect("it fits");
    assert_eq!(plan.victims, (0..40).collect::<Vec<_>>());
    let reasons = explain(cluster, units, demand, &options, &plan);
    let worked_out = |unit: UnitIx| {
        reasons
            .taken
            .iter()
            .any(|t| t.unit == unit && t.without_it.is_some())
    };
    assert!((32..40).all(worked_out), "{:?}", reasons.taken);
}
