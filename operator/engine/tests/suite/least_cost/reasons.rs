//! Reasons for victims and for spared units.

use lockstep_engine::{
    Algorithm, Demand, PreemptionOptions, Scope, Spared, TopologyDemand, TopologyStrictness,
    VictimOrder, explain, preempt,
};
use smallvec::smallvec;

use super::{GPUS, gang, in_one_rack, racks};

#[test]
fn the_reasons_give_the_cost_of_sparing_a_victim_and_why_other_units_were_spared() {
    let mut case = racks(&[5]);
    case.units.pdb_allowed = vec![0];
    case.unit(10, 100, GPUS, &[0]);
    case.unit(10, 250, GPUS, &[1]);
    case.unit(10, 1, GPUS, &[2]).pdbs = smallvec![(0, 1)];
    case.unit(50, 1, GPUS, &[3]);
    case.unit(10, 1, 0, &[4]);
    case.unit(500, 1, GPUS, &[4]);
    let demand = gang(GPUS, 1);
    let answer = case.answer(&demand);
    let reasons = explain(&case.cluster, &case.units, &demand, &case.options, &answer);
    assert_eq!(answer.victims, [0]);
    assert_eq!(reasons.taken.len(), 1);
    assert_eq!(reasons.taken[0].nodes, [0]);
    assert_eq!(reasons.taken[0].without_it.map(|t| t.lost), Some(250));
    assert_eq!(
        reasons.runner_up.map(|r| (r.victims, r.cost.lost)),
        Some((vec![1], 250))
    );
    assert_eq!(
        reasons.spared,
        [
            (1, Spared::Dearer),
            (2, Spared::OverBudget { pods: 1 }),
            (3, Spared::AbovePriorityBound),
            (4, Spared::NoUse)
        ]
    );
}

#[test]
fn the_next_best_set_is_reported_with_its_follow_on_evictions() {
    let mut case = racks(&[3]);
    case.unit(20, 100, GPUS, &[0]);
    case.unit(5, 700, GPUS, &[1]).preempts = false;
    case.unit(20, 300, GPUS, &[2]).preempts = false;
    let next_best = |options: &PreemptionOptions| {
        let demand = gang(GPUS, 1);
        let answer = preempt(&case.cluster, &case.units, &demand, options).expect("it fits");
        let next = explain(&case.cluster, &case.units, &demand, options, &answer)
            .runner_up
            .expect("there is one");
        (next.victims, next.cost.lost)
    };
    let mut options = PreemptionOptions {
        order: VictimOrder::LeastWork,
        ..PreemptionOptions::default()
    };
    assert_eq!(next_best(&options), (vec![2], 300));
    options.follow_on_depth = 2;
    assert_eq!(next_best(&options), (vec![0], 800));
    options.algorithm = Algorithm::Kep;
    assert_eq!(
        next_best(&options),
        (vec![0], 100),
        "the KEP's algorithm looks at nobody's next move"
    );
}

#[test]
fn the_next_best_set_is_the_cheapest_of_those_that_spare_a_victim() {
    let mut case = racks(&[6]);
    case.unit(10, 300, GPUS, &[0, 1]);
    case.unit(10, 100, GPUS, &[2]);
    case.unit(10, 150, GPUS, &[3]);
    case.unit(10, 1_000, GPUS, &[4, 5]);
    let demand = gang(GPUS, 3);
    let answer = case.answer(&demand);
    assert_eq!(answer.victims, [0, 1]);
    let reasons = explain(&case.cluster, &case.units, &demand, &case.options, &answer);
    let without: Vec<Option<u128>> = reasons
        .taken
        .iter()
        .map(|t| t.without_it.map(|cost| cost.lost))
        .collect();
    assert_eq!(without, [Some(1_100), Some(450)]);
    assert_eq!(
        reasons.runner_up.map(|r| (r.victims, r.cost.lost)),
        Some((vec![0, 2], 450))
    );
}

#[test]
fn sparing_the_victims_of_a_replica_is_worked_out_in_the_other_racks() {
    let mut case = racks(&[2, 2, 2]);
    case.unit(10, 50, GPUS, &[0, 1]);
    case.unit(10, 60, GPUS, &[2, 3]);
    case.unit(10, 100, GPUS, &[4]);
    case.unit(10, 100, GPUS, &[5]);
    let mut demand = gang(GPUS, 2);
    demand.topology = vec![TopologyDemand {
        key: 0,
        mode: TopologyStrictness::Required,
        scope: Scope::Replica,
    }];
    let answer = case.answer(&demand);
    assert_eq!(answer.victims, [0]);
    let reasons = explain(&case.cluster, &case.units, &demand, &case.options, &answer);
    assert_eq!(
        reasons.runner_up.map(|r| (r.victims, r.cost.lost)),
        Some((vec![1], 60))
    );
}

#[test]
fn the_reasons_of_a_gang_bound_to_a_rack_compare_within_that_rack() {
    let mut case = racks(&[2, 2]);
    case.unit(10, 50, GPUS, &[0]);
    case.unit(10, 60, GPUS, &[1]);
    case.unit(10, 10, GPUS, &[2]);
    case.unit(10, 400, GPUS, &[3]);
    let next_best = |demand: &Demand| {
        let answer = case.answer(demand);
        let reasons = explain(&case.cluster, &case.units, demand, &case.options, &answer);
        let nodes = reasons
            .taken
            .iter()
            .map(|t| t.nodes.clone())
            .collect::<Vec<_>>();
        (
            nodes,
            reasons.taken[0].without_it.map(|t| t.lost),
            reasons.spared.len(),
        )
    };
    let wherever = gang(GPUS, 1);
    assert_eq!(next_best(&wherever), (vec![vec![2]], Some(50), 3));
    assert_eq!(
        next_best(&in_one_rack(
            TopologyStrictness::Preferred,
            wherever.clone()
        )),
        (vec![vec![2]], Some(50), 3)
    );
    assert_eq!(
        next_best(&in_one_rack(TopologyStrictness::Required, wherever)),
        (vec![vec![2]], Some(400), 1)
    );
}

#[test]
fn sparing_is_worked_out_for_the_dearest_32_victims() {
    let mut case = racks(&[42]);
    for node in 0..42 {
        case.unit(
            10,
            100 + node,
            GPUS,
            &[usize::try_from(node).expect("small")],
        );
    }
    let demand = gang(GPUS, 40);
    let answer = case.answer(&demand);
    let reasons = explain(&case.cluster, &case.units, &demand, &case.options, &answer);
    let worked_out: Vec<usize> = reasons
        .taken
        .iter()
        .filter(|t| t.without_it.is_some())
        .map(|t| t.unit)
        .collect();
    assert_eq!(worked_out, (8..40).collect::<Vec<_>>());
}
