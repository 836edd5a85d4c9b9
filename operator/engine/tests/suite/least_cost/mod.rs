//! Victims of `LeastCost` in cases that can be checked by hand.

mod follow_on;
mod reasons;
mod topology;

use lockstep_engine::{
    Amounts, Cluster, ClusterNode, Demand, Pods, PreemptionOptions, PreemptionPlan, Scope,
    TopologyDemand, TopologyStrictness, Unit, Units, VictimOrder, place, preempt,
};
use smallvec::smallvec;

const GPUS: i64 = 8;

/// Nodes of eight GPUs in racks.
struct Case {
    cluster: Cluster,
    units: Units,
    options: PreemptionOptions,
}

fn racks(sizes: &[usize]) -> Case {
    let mut cluster = Cluster::new(4, 1);
    let racks = sizes
        .iter()
        .enumerate()
        .flat_map(|(rack, &size)| std::iter::repeat_n(rack, size));
    for (ix, rack) in racks.enumerate() {
        let spec = ClusterNode {
            allocatable: gpus(GPUS),
            domains: vec![Some(rack)],
            schedulable: true,
        };
        cluster.upsert_node(ix, &spec);
    }
    Case {
        cluster,
        units: Units::default(),
        options: PreemptionOptions::default(),
    }
}

impl Case {
    fn unit(&mut self, priority: i32, cost: u64, each: i64, on: &[usize]) -> &mut Unit {
        for &node in on {
            self.cluster.add_pod(node, &gpus(each));
        }
        self.units.units.push(Unit {
            pods: vec![Pods {
                request: gpus(each),
                nodes: on.to_vec(),
            }],
            priority,
            gang: on.len() > 1,
            cost,
            pdbs: smallvec![],
            start: 0,
            cascade: None,
            eligible: None,
            preempts: true,
        });
        self.units.units.last_mut().expect("just added")
    }

    fn answer(&self, demand: &Demand) -> PreemptionPlan {
        preempt(&self.cluster, &self.units, demand, &self.options)
            .expect("the gang fits after preemption")
    }

    fn victims(&self, demand: &Demand) -> Vec<usize> {
        self.answer(demand).victims
    }
}

/// Amounts of milli-CPU, bytes, pods and GPUs.
fn gpus(number: i64) -> Amounts {
    smallvec![0, 0, 0, number]
}

fn gang(each: i64, count: u32) -> Demand {
    Demand::homogeneous(gpus(each), count, 100)
}

fn in_one_rack(mode: TopologyStrictness, demand: Demand) -> Demand {
    Demand {
        topology: vec![TopologyDemand {
            key: 0,
            mode,
            scope: Scope::Gang,
        }],
        ..demand
    }
}

#[test]
fn of_two_equal_gangs_the_one_that_checkpointed_last_goes() {
    let mut case = racks(&[4]);
    case.unit(10, 16 * 3_600, GPUS, &[0, 1]);
    case.unit(10, 16 * 60, GPUS, &[2, 3]);
    let answer = case.answer(&gang(GPUS, 2));
    assert_eq!(answer.victims, [1]);
    assert!(answer.proven);
}

#[test]
fn strict_priority_takes_dear_work_of_low_priority_before_cheap_work_of_higher() {
    let mut case = racks(&[2]);
    case.unit(10, 9_000, GPUS, &[0]);
    case.unit(50, 10, GPUS, &[1]);
    assert_eq!(case.victims(&gang(GPUS, 1)), [0]);
    case.options.order = VictimOrder::LeastWork;
    assert_eq!(case.victims(&gang(GPUS, 1)), [1]);
}

#[test]
fn a_pod_of_a_gang_that_restarts_together_costs_the_whole_gangs_loss_once() {
    let mut case = racks(&[4]);
    case.units.cascade_loss = vec![5_000];
    case.unit(10, 10, GPUS, &[0]).cascade = Some(0);
    case.unit(10, 10, GPUS, &[1]).cascade = Some(0);
    case.unit(10, 3_000, GPUS, &[2]);
    case.unit(10, 3_000, GPUS, &[3]);
    assert_eq!(
        case.victims(&gang(GPUS, 1)),
        [2],
        "one pod of the gang would cost 5000"
    );
    let both = case.answer(&gang(GPUS, 2));
    assert_eq!(both.victims, [0, 1], "two pods of it cost no more than one");
    assert_eq!(both.cost.lost, 5_000);
}

#[test]
fn a_budget_is_spared_at_any_cost_of_other_victims() {
    let mut case = racks(&[2]);
    case.units.pdb_allowed = vec![0];
    case.unit(10, 1, GPUS, &[0]).pdbs = smallvec![(0, 1)];
    case.unit(10, 90_000, GPUS, &[1]);
    let answer = case.answer(&gang(GPUS, 1));
    assert_eq!(
        (answer.victims.as_slice(), answer.cost.pdb_excess),
        ([1].as_slice(), 0)
    );
    assert_eq!(
        case.answer(&gang(GPUS, 2)).cost.pdb_excess,
        1,
        "but it is no bar where nothing else makes room"
    );
}

#[test]
fn only_the_minimum_evicts_and_extras_take_what_is_free() {
    let mut case = racks(&[4]);
    case.unit(10, 5, GPUS, &[0]);
    case.unit(10, 7, GPUS, &[1]);
    case.unit(10, 9, GPUS, &[2]);
    let mut demand = gang(GPUS, 4);
    demand.shapes[0].min = 2;
    demand.min_count = 2;
    let answer = case.answer(&demand);
    assert_eq!(answer.victims, [0]);
    assert_eq!(answer.placement.count(), 2);
}

#[test]
fn whole_nodes_stay_free_for_gangs_that_need_them() {
    let mut case = racks(&[3]);
    case.cluster.add_pod(1, &gpus(6));
    let placed = place(&case.cluster, &gang(2, 1))
        .expect("it fits")
        .assignments;
    assert_eq!(placed[0].node, 1);
    case.cluster.add_pod(1, &gpus(2));
    let request = gpus(2);
    case.cluster.add_pod(0, &request);
    assert_eq!(
        place(&case.cluster, &gang(3, 2))
            .expect("it fits")
            .assignments[0]
            .node,
        0
    );
}
