//! Small random instances for unit tests.

use proptest::{prelude::*, test_runner::TestCaseError};
use smallvec::smallvec;

use super::{
    fit::FitCondition,
    instance::{CandidateIx, PreemptionInstance},
};
use crate::{
    cluster::{Cluster, ClusterNode},
    placement::PlacementInstance,
    problem::{Demand, NodeIx, Pods, Unit, Units},
    test_runner::runner,
};

/// Nodes with one resource, running units, and a gang to place.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub cluster: Cluster,
    pub units: Units,
    pub demand: Demand,
}

impl Question {
    /// Empty nodes with these offers, and a gang of `pods` pods with this request.
    pub fn new(nodes: &[i64], pods: u32, request: i64) -> Self {
        let mut cluster = Cluster::new(1, 0);
        for (node, &amount) in nodes.iter().enumerate() {
            let spec = ClusterNode {
                allocatable: smallvec![amount],
                domains: Vec::new(),
                schedulable: true,
            };
            cluster.upsert_node(node, &spec);
        }
        let demand = Demand::homogeneous([request].as_slice(), pods, 100);
        Self {
            cluster,
            units: Units::default(),
            demand,
        }
    }

    /// Reduces the offer of a node, regardless of its pods.
    pub fn shrink(&mut self, node: NodeIx, amount: i64) {
        let spec = ClusterNode {
            allocatable: smallvec![amount],
            domains: Vec::new(),
            schedulable: true,
        };
        self.cluster.upsert_node(node, &spec);
    }

    pub fn unit(&mut self, cost: u64, amount: i64, on: &[NodeIx]) -> &mut Unit {
        for &node in on {
            self.cluster.add_pod(node, &[amount]);
        }
        self.units.units.push(Unit {
            pods: vec![Pods {
                request: smallvec![amount],
                nodes: on.to_vec(),
            }],
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

/// Random instances. Units hold free capacity only, but some nodes have shrunk afterwards.
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
        prop::option::weighted(0.5, (0..4usize, 0..=4i64)),
    )
        .prop_map(
            |(nodes, units, (pods, request), allowed, losses, shrunken)| {
                let mut question = Question::new(&nodes, pods, request);
                question.units.pdb_allowed = allowed;
                for (amount, mut on, cost, budget, cascade) in units {
                    on.retain(|&node| {
                        question
                            .cluster
                            .free(node)
                            .first()
                            .is_some_and(|&free| free >= amount)
                    });
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
                if let Some((node, amount)) = shrunken.filter(|(node, _)| *node < nodes.len()) {
                    question.shrink(node, amount);
                }
                question
            },
        )
}

/// Runs `check` on the same random instances each time. It returns whether an instance was useful;
/// more than half must be.
pub(super) fn over_questions(
    check: impl Fn(&PreemptionInstance<'_>, &FitCondition) -> Result<bool, TestCaseError>,
) {
    let (checked, useful) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let result = runner().run(&questions(), |question| {
        let placement = PlacementInstance::new(&question.cluster, &question.demand);
        let fit = FitCondition::new(&placement);
        checked.set(checked.get() + 1);
        useful.set(
            useful.get()
                + u32::from(check(
                    &PreemptionInstance::new(&placement, &question.units),
                    &fit,
                )?),
        );
        Ok(())
    });
    assert_eq!(result.map_err(|error| error.to_string()), Ok(()));
    assert!(
        useful.get() * 2 > checked.get(),
        "{} of {}",
        useful.get(),
        checked.get()
    );
}

/// All subsets of these candidates, as one flag per candidate.
pub(super) fn subsets(count: usize, pool: Vec<CandidateIx>) -> impl Iterator<Item = Vec<bool>> {
    (0u32..1 << pool.len()).map(move |bits| {
        let mut evicted = vec![false; count];
        for (at, &candidate) in pool.iter().enumerate() {
            evicted[candidate] = bits >> at & 1 == 1;
        }
        evicted
    })
}
