//! Small questions for tests, and what one pod beyond a budget weighs in them.

use proptest::{prelude::*, test_runner::TestCaseError};
use smallvec::smallvec;

use super::*;
use crate::{
    cluster::{Cluster, Node},
    preempt::{Options, explain, goal::Goal, preempt, state::State},
    problem::{Pods, Toll},
    runs::runner,
};

/// What runs on a few nodes with one resource, and a gang that wants room there.
#[derive(Clone, Debug)]
pub(in crate::preempt) struct Question {
    pub cluster: Cluster,
    pub units: Units,
    pub demand: Demand,
}

impl Question {
    /// Empty nodes that offer so much each, and a gang of so many pods that ask for so much each.
    pub fn new(nodes: &[i64], pods: u32, request: i64) -> Self {
        let mut cluster = Cluster::new(1, 0);
        for (node, &amount) in nodes.iter().enumerate() {
            let spec = Node { allocatable: smallvec![amount], domains: Vec::new(), schedulable: true };
            cluster.upsert_node(node, &spec);
        }
        let demand = Demand::homogeneous([request].as_slice(), pods, 100);
        Self { cluster, units: Units::default(), demand }
    }

    /// Adds a unit with one pod on each of these nodes.
    pub fn unit(&mut self, cost: u64, amount: i64, on: &[NodeIx]) -> &mut Unit {
        for &node in on {
            self.cluster.add_pod(node, &[amount]);
        }
        self.units.units.push(Unit {
            pods: vec![Pods { request: smallvec![amount], nodes: on.to_vec() }],
            priority: 10,
            gang: on.len() > 1,
            cost,
            pdbs: smallvec![],
            start: 0,
            cascade: None,
            eligible: None,
            preempts: false,
        });
        self.units.units.last_mut().expect("just added")
    }
}

/// Random questions; a unit holds only what there is room for.
fn questions() -> impl Strategy<Value = Question> {
    let unit = (
        1..=4i64,
        prop::collection::vec(0..4usize, 1..=3),
        0..60u64,
        prop::option::weighted(0.4, 0..2usize),
        prop::option::weighted(0.5, 0..2usize),
    );
    (
        prop::collection::vec(3..=8i64, 2..=4),
        prop::collection::vec(unit, 2..=6),
        (1..=5u32, 1..=4i64),
        prop::collection::vec(0..2u32, 2),
        prop::option::weighted(0.3, prop::collection::vec(1..60u64, 2)),
    )
        .prop_map(|(nodes, units, (pods, request), allowed, losses)| {
            let mut question = Question::new(&nodes, pods, request);
            question.units.pdb_allowed = allowed;
            for (amount, mut on, cost, budget, cascade) in units {
                on.retain(|&node| question.cluster.free(node).first().is_some_and(|&free| free >= amount));
                on.sort_unstable();
                on.dedup();
                if on.is_empty() {
                    continue;
                }
                let pods = on.len() as u32;
                let unit = question.unit(cost, amount, &on);
                unit.pdbs = budget.map(|b| (b, pods)).into_iter().collect();
                unit.cascade = cascade.filter(|_| losses.is_some());
            }
            question.units.cascade_loss = losses.unwrap_or_default();
            question
        })
}

/// Runs `check` on random questions, always the same ones. It says whether a question was worth asking: more than half are.
pub(in crate::preempt) fn over_questions(check: impl Fn(&Field<'_>, &Goal) -> Result<bool, TestCaseError>) {
    let (asked, worth) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let result = runner().run(&questions(), |question| {
        let site = Site::new(&question.cluster, &question.demand);
        let goal = Goal::new(&site);
        asked.set(asked.get() + 1);
        worth.set(worth.get() + u32::from(check(&Field::new(&site, &question.units), &goal)?));
        Ok(())
    });
    assert_eq!(result.map_err(|error| error.to_string()), Ok(()));
    assert!(worth.get() * 2 > asked.get(), "{} of {}", worth.get(), asked.get());
}

/// All sets of these candidates, as one flag per candidate.
pub(in crate::preempt) fn subsets(count: usize, pool: Vec<CandIx>) -> impl Iterator<Item = Vec<bool>> {
    (0u32..1 << pool.len()).map(move |bits| {
        let mut gone = vec![false; count];
        for (at, &cand) in pool.iter().enumerate() {
            gone[cand] = bits >> at & 1 == 1;
        }
        gone
    })
}

#[test]
fn one_pod_beyond_a_budget_weighs_more_than_all_the_work_there_is() {
    over_questions(|field, goal| {
        let mut state = State::new(field, goal);
        for cand in 0..field.cands.len() {
            state.evict(cand);
        }
        let Toll { lost, .. } = state.toll();
        prop_assert!(field.excess_price.unsigned_abs() > lost, "{} for {lost}", field.excess_price);
        Ok(lost > 0)
    });
}

#[test]
fn what_a_victim_causes_elsewhere_is_added_to_its_work_and_stays_below_a_budget() {
    let mut question = Question::new(&[8, 8], 1, 8);
    question.unit(0, 8, &[0]);
    question.unit(300, 8, &[1]);
    let site = Site::new(&question.cluster, &question.demand);
    let mut field = Field::new(&site, &question.units);
    field.add_cost(0, 700);
    field.add_cost(1, 50);
    assert_eq!((field.cost(0), field.cost(1)), (700, 350));
    assert!(field.excess_price > 1_050);
}

#[test]
fn sparing_is_worked_out_first_for_victims_that_break_a_budget() {
    // 32 victims within budgets, 8 that lose nothing and each break one, and 2 spared units that break theirs by more.
    let mut question = Question::new(&[8; 42], 40, 8);
    question.units.pdb_allowed = vec![0; 42];
    for node in 0..42 {
        let beyond = [0, 1, 2][usize::from(node >= 32) + usize::from(node >= 40)];
        let cost = if beyond == 0 { 100 } else { 0 };
        let unit = question.unit(cost, 8, &[node]);
        unit.pdbs.extend((beyond > 0).then_some((node, beyond)));
    }
    let Question { cluster, units, demand } = &question;
    let options = Options::default();
    let answer = preempt(cluster, units, demand, &options).expect("it fits");
    assert_eq!(answer.victims, (0..40).collect::<Vec<_>>());
    let reasons = explain(cluster, units, demand, &options, &answer);
    let told = |unit: UnitIx| reasons.taken.iter().any(|t| t.unit == unit && t.without_it.is_some());
    assert!((32..40).all(told), "{:?}", reasons.taken);
}
