//! The engine's answers compared with optima proven by another solver.

use lockstep_bench::{arms::ARMS, instance::Instance, ratio::ratio_greedy};
use lockstep_engine::{
    PreemptionOptions, PreemptionPlan, VictimOrder, preempt, preempt_kep_in_order,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Known {
    name: String,
    strict: Optimum,
    least_work: Optimum,
    /// Victims according to KEP-5710 with first fit, by an independent implementation. Empty for
    /// two shapes.
    #[serde(default)]
    kep: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Optimum {
    pdb_excess: u64,
    lost: u128,
}

fn fixtures() -> Vec<(Instance, Known)> {
    let instances = include_str!("../fixtures/instances.jsonl").lines();
    let known = include_str!("../fixtures/optima.jsonl").lines();
    instances
        .zip(known)
        .map(|(instance, known)| {
            let instance: Instance = serde_json::from_str(instance).expect("a valid instance");
            let known: Known = serde_json::from_str(known).expect("a valid line");
            assert_eq!(instance.name, known.name);
            (instance, known)
        })
        .collect()
}

/// Gangs of two shapes, and their known optima.
fn two_shapes() -> (Vec<Instance>, Vec<Known>) {
    let instances = include_str!("../fixtures/two-shapes.jsonl").lines();
    let optima = include_str!("../quality/optima.jsonl").lines();
    (
        instances
            .map(|line| serde_json::from_str(line).expect("a valid instance"))
            .collect(),
        optima
            .map(|line| serde_json::from_str(line).expect("a valid line"))
            .collect(),
    )
}

fn answer(instance: &Instance, options: &PreemptionOptions) -> PreemptionPlan {
    let (units, _) = instance.units();
    preempt(&instance.cluster(), &units, &instance.demand(), options)
        .expect("every instance can be answered")
}

/// Checks the answers under both orders: within a tenth of the optimum, without more PDB excess and
/// without a false claim. Returns the numbers of optimal answers and of answers claimed to be
/// optimal.
fn check<'a>(known: impl Iterator<Item = (&'a Instance, &'a Known)>) -> (u32, u32) {
    let mut proven = 0;
    let mut exact = 0;
    for (instance, known) in known {
        for (order, optimum) in [
            (VictimOrder::StrictPriority, known.strict),
            (VictimOrder::LeastWork, known.least_work),
        ] {
            let options = PreemptionOptions {
                order,
                ..PreemptionOptions::default()
            };
            let answer = answer(instance, &options);
            let mine = Optimum {
                pdb_excess: answer.cost.pdb_excess,
                lost: answer.cost.lost,
            };
            let name = &instance.name;
            assert_eq!(mine.pdb_excess, optimum.pdb_excess, "{name}, {order:?}");
            assert!(
                mine.lost >= optimum.lost && mine.lost * 10 <= optimum.lost * 11,
                "{name}: {mine:?}, {optimum:?}"
            );
            let bound = Optimum {
                pdb_excess: answer.bound.pdb_excess,
                lost: answer.bound.lost,
            };
            assert!(
                bound <= optimum,
                "{name}: bound {bound:?} above {optimum:?}"
            );
            assert!(
                !answer.proven || mine == optimum,
                "{name}: claimed as proven"
            );
            proven += u32::from(answer.proven);
            exact += u32::from(mine == optimum);
        }
    }
    (exact, proven)
}

#[test]
fn answers_are_within_a_tenth_of_the_optimum_without_more_excess_or_false_proofs() {
    let fixtures = fixtures();
    let (exact, proven) = check(fixtures.iter().map(|(i, known)| (i, known)));
    assert!(
        exact >= 37 && proven >= 5,
        "{exact} exact, {proven} proven, of 40"
    );
}

#[test]
fn victims_for_gangs_of_two_shapes_come_within_a_tenth_of_the_optimum_too() {
    let (instances, optima) = two_shapes();
    let (exact, proven) = check(instances.iter().map(|instance| {
        let known = optima.iter().find(|o| o.name == instance.name);
        (instance, known.expect("its optimum is known"))
    }));
    assert!(
        exact >= 21 && proven >= 2,
        "{exact} exact, {proven} proven, of 26"
    );
}

#[test]
fn kep_with_first_fit_takes_the_same_victims_as_an_independent_implementation() {
    for (instance, known) in fixtures() {
        let node_order: Vec<_> = (0..instance.nodes.len()).collect();
        let (units, names) = instance.units();
        let (cluster, demand) = (instance.cluster(), instance.demand());
        let answer = preempt_kep_in_order(&cluster, &units, &demand, &node_order)
            .expect("every instance can be answered");
        let mut victims: Vec<&String> = answer.victims.iter().map(|&u| &names[u]).collect();
        victims.sort();
        assert_eq!(
            victims,
            known.kep.iter().collect::<Vec<_>>(),
            "{}",
            instance.name
        );
    }
}

#[test]
fn the_ratio_greedy_makes_room_and_loses_more_than_the_engine() {
    let (mut greedy, mut engine) = (0, 0);
    for (instance, _) in fixtures() {
        let (units, _) = instance.units();
        let victims = ratio_greedy(&instance.cluster(), &units, &instance.demand())
            .expect("room without candidates");
        greedy += units.eviction_cost(&victims).lost;
        engine += answer(
            &instance,
            &PreemptionOptions {
                order: VictimOrder::LeastWork,
                ..PreemptionOptions::default()
            },
        )
        .cost
        .lost;
    }
    assert!(engine * 20 < greedy * 19, "{engine} against {greedy}");
}

#[test]
fn every_arm_answers_validly_and_none_is_better_than_the_optimum() {
    let (instances, optima) = two_shapes();
    for (arm, method) in ARMS {
        let options = PreemptionOptions {
            without: Some(method),
            ..PreemptionOptions::default()
        };
        for instance in &instances {
            let answer = answer(instance, &options);
            let optimum = optima.iter().find(|o| o.name == instance.name);
            let optimum = optimum.expect("its optimum is known").strict;
            let mine = Optimum {
                pdb_excess: answer.cost.pdb_excess,
                lost: answer.cost.lost,
            };
            assert!(mine >= optimum, "{arm}, {}: {mine:?}", instance.name);
        }
    }
}
