//! Follow-on evictions.

use std::sync::Arc;

use lockstep_engine::{NodeSet, PreemptionOptions, VictimOrder};

use super::{GPUS, gang, racks};

#[test]
fn a_victim_that_would_evict_in_turn_brings_that_cost() {
    let mut case = racks(&[3]);
    // The cheapest victim would evict the expensive unit of even lower priority. The second finds
    // no unit of lower priority.
    case.unit(20, 100, GPUS, &[0]);
    case.unit(5, 700, GPUS, &[1]).preempts = false;
    case.unit(20, 300, GPUS, &[2]).preempts = false;
    case.options.order = VictimOrder::LeastWork;
    assert_eq!(case.victims(&gang(GPUS, 1)), [0]);
    case.options.follow_on_depth = 2;
    let answer = case.answer(&gang(GPUS, 1));
    assert_eq!(answer.victims, [2]);
    assert_eq!(answer.cost.lost, 300);
}

#[test]
fn a_set_that_disappoints_does_not_end_the_search() {
    let mut case = racks(&[4]);
    case.unit(20, 100, GPUS, &[0]);
    case.unit(20, 150, GPUS, &[1]);
    case.unit(20, 300, GPUS, &[2]).preempts = false;
    case.unit(5, 700, GPUS, &[3]).preempts = false;
    case.options.order = VictimOrder::LeastWork;
    case.options.follow_on_depth = 1;
    let answer = case.answer(&gang(GPUS, 1));
    assert_eq!(
        (answer.victims.as_slice(), answer.cost.lost),
        (&[2][..], 300)
    );
}

#[test]
fn follow_on_cost_is_reported_if_no_victim_avoids_it() {
    let mut case = racks(&[2]);
    case.unit(20, 100, GPUS, &[0]);
    case.unit(5, 700, GPUS, &[1]);
    case.options.follow_on_depth = 1;
    let mut demand = gang(GPUS, 1);
    demand.excluded.grow(2);
    demand.excluded.insert(1);
    let answer = case.answer(&demand);
    assert_eq!(
        (answer.victims.as_slice(), answer.cost.lost),
        ([0].as_slice(), 800)
    );
    let told = &answer.explanation.follow_on[0];
    assert_eq!(
        (told.victim, told.evicts.as_slice(), told.lost),
        (0, [1].as_slice(), 700)
    );
}

#[test]
fn a_victim_with_room_elsewhere_has_no_follow_on_evictions() {
    let mut case = racks(&[3]);
    case.unit(20, 100, 4, &[0]);
    case.unit(20, 200, 4, &[1]);
    case.unit(5, 900, GPUS, &[2]);
    case.options = PreemptionOptions {
        order: VictimOrder::LeastWork,
        follow_on_depth: 1,
        ..PreemptionOptions::default()
    };
    let answer = case.answer(&gang(GPUS, 1));
    assert_eq!(answer.victims, [0]);
    assert_eq!(
        (answer.cost.lost, answer.explanation.follow_on.len()),
        (100, 0)
    );
}

#[test]
fn follow_on_evictions_are_searched_to_the_given_depth_and_void_the_proof() {
    let mut case = racks(&[3]);
    let only_second: NodeSet = [1].into_iter().collect();
    case.unit(30, 100, GPUS, &[0]).eligible = Some(Arc::new(only_second));
    case.unit(20, 700, GPUS, &[1]);
    case.unit(10, 50, GPUS, &[2]);
    let mut demand = gang(GPUS, 1);
    demand.excluded.extend([1, 2]);
    let mut told = |depth| {
        case.options.follow_on_depth = depth;
        let answer = case.answer(&demand);
        let evicts = answer
            .explanation
            .follow_on
            .first()
            .map_or(Vec::new(), |f| f.evicts.clone());
        (answer.cost.lost, evicts, answer.proven)
    };
    assert_eq!(told(0), (100, vec![], true));
    assert_eq!(told(1), (800, vec![1], false));
    assert_eq!(told(2), (850, vec![1, 2], false));
    assert_eq!(told(3), (850, vec![1, 2], false));
}

#[test]
fn a_victim_evicts_no_unit_of_its_own_priority_in_turn() {
    let mut case = racks(&[2]);
    case.unit(20, 100, GPUS, &[0]);
    case.unit(20, 200, GPUS, &[1]);
    case.options.follow_on_depth = 1;
    let answer = case.answer(&gang(GPUS, 1));
    assert_eq!(
        (answer.victims.as_slice(), answer.cost.lost),
        ([0].as_slice(), 100)
    );
}

#[test]
fn capacity_that_one_victim_frees_serves_the_next() {
    let mut case = racks(&[4]);
    for node in [0, 1] {
        case.unit(20, 100, GPUS, &[node]);
    }
    case.unit(5, 700, GPUS, &[2, 3]);
    case.options.follow_on_depth = 1;
    let mut demand = gang(GPUS, 2);
    demand.excluded.extend([2, 3]);
    let answer = case.answer(&demand);
    assert_eq!(answer.victims, [0, 1]);
    let follow_on = answer.explanation.follow_on;
    assert_eq!((answer.cost.lost, follow_on.len()), (900, 1));
}

#[test]
fn a_victim_that_may_not_preempt_takes_capacity_that_another_victim_freed() {
    let mut case = racks(&[6]);
    case.unit(20, 100, GPUS, &[0]);
    case.unit(20, 100, GPUS, &[1]).preempts = false;
    case.unit(20, 100, GPUS, &[2]);
    case.unit(5, 700, GPUS, &[3, 4]);
    case.unit(5, 800, GPUS, &[5]);
    case.options.follow_on_depth = 1;
    let mut demand = gang(GPUS, 3);
    demand.excluded.extend([3, 4, 5]);
    let answer = case.answer(&demand);
    assert_eq!((answer.victims, answer.cost.lost), (vec![0, 1, 2], 1_800));
}

#[test]
fn without_follow_on_cost_the_answer_keeps_its_proof() {
    let mut case = racks(&[2]);
    case.unit(20, 100, GPUS, &[0]);
    case.unit(20, 200, GPUS, &[1]);
    case.options.follow_on_depth = 2;
    let answer = case.answer(&gang(GPUS, 1));
    assert_eq!(
        (answer.victims.as_slice(), answer.proven),
        ([0].as_slice(), true)
    );
}

#[test]
fn a_victim_takes_no_room_from_another_victim_that_is_gone_already() {
    let mut case = racks(&[3]);
    case.unit(20, 100, GPUS, &[0]);
    case.unit(5, 1, GPUS, &[1]);
    case.unit(10, 700, GPUS, &[2]);
    case.options.follow_on_depth = 1;
    let mut demand = gang(GPUS, 2);
    demand.excluded.extend([2]);
    let answer = case.answer(&demand);
    assert_eq!(
        (answer.victims.as_slice(), answer.cost.lost),
        ([0, 1].as_slice(), 801)
    );
    assert_eq!(answer.explanation.follow_on[0].evicts, [2]);
}
