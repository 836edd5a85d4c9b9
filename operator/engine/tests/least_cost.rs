//! Whom `LeastCost` takes, where the answer can be seen by hand.

use std::sync::Arc;

use lockstep_engine::{
    Algorithm, Amounts, Cluster, ClusterNode, Demand, Names, NodeSet, Pods, PreemptionAnswer,
    PreemptionOptions, RunningMembers, Scope, Spared, TopologyDemand, TopologyStrictness, Unit,
    Units, VictimOrder, explain, place, preempt,
};
use smallvec::smallvec;

const GPUS: i64 = 8;

/// Nodes of eight GPUs, so many per rack.
struct Case {
    cluster: Cluster,
    units: Units,
    options: PreemptionOptions,
}

fn racks(sizes: &[usize]) -> Case {
    let mut cluster = Cluster::new(1, 1);
    let racks = sizes
        .iter()
        .enumerate()
        .flat_map(|(rack, &size)| std::iter::repeat_n(rack, size));
    for (ix, rack) in racks.enumerate() {
        let spec = ClusterNode {
            allocatable: smallvec![GPUS],
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
    fn unit(&mut self, priority: i32, cost: u64, gpus: i64, on: &[usize]) -> &mut Unit {
        for &node in on {
            self.cluster.add_pod(node, &[gpus]);
        }
        self.units.units.push(Unit {
            pods: vec![Pods {
                request: smallvec![gpus],
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

    fn answer(&self, demand: &Demand) -> PreemptionAnswer {
        preempt(&self.cluster, &self.units, demand, &self.options)
            .expect("the gang fits after preemption")
    }

    fn victims(&self, demand: &Demand) -> Vec<usize> {
        self.answer(demand).victims
    }
}

fn gang(gpus: i64, count: u32) -> Demand {
    Demand::homogeneous([gpus].as_slice(), count, 100)
}

fn in_one_rack(mode: TopologyStrictness, demand: Demand) -> Demand {
    Demand {
        topology: Some(TopologyDemand {
            key: 0,
            mode,
            scope: Scope::Gang,
        }),
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
fn a_victim_that_would_evict_in_turn_brings_that_cost() {
    let mut case = racks(&[3]);
    // The cheapest victim would take the dear unit of still lower priority; the second finds nobody
    // below it.
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
fn follow_on_cost_is_told_where_no_victim_avoids_it() {
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
fn a_victim_that_finds_room_elsewhere_evicts_nobody() {
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
fn a_budget_is_spared_however_dear_the_others_are() {
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
fn a_gang_bound_to_one_rack_takes_the_rack_that_costs_least() {
    let mut case = racks(&[2, 2]);
    case.unit(10, 100, GPUS, &[0]);
    case.unit(10, 900, GPUS, &[1]);
    case.unit(10, 400, GPUS, &[2]);
    case.unit(10, 400, GPUS, &[3]);
    assert_eq!(case.victims(&gang(GPUS, 2)), [0, 2], "anywhere");
    let answer = case.answer(&in_one_rack(TopologyStrictness::Required, gang(GPUS, 2)));
    assert_eq!(answer.victims, [2, 3]);
    assert!(answer.proven);
}

#[test]
fn a_preferred_rack_is_kept_but_evicts_nobody() {
    let mut case = racks(&[2, 2]);
    case.unit(10, 1, GPUS, &[1]);
    case.unit(10, 1, GPUS, &[3]);
    let spread = case.answer(&in_one_rack(TopologyStrictness::Preferred, gang(GPUS, 2)));
    assert_eq!(spread.victims, [], "one free node in each rack does");
    let empty = racks(&[2, 2]);
    let nodes: Vec<usize> = place(
        &empty.cluster,
        &in_one_rack(TopologyStrictness::Preferred, gang(GPUS, 2)),
    )
    .expect("it fits")
    .assignments
    .iter()
    .map(|s| s.node)
    .collect();
    assert_eq!(nodes, [0, 1]);
}

#[test]
fn each_replica_gets_a_rack_of_its_own_where_they_must_not_be_split() {
    let mut case = racks(&[3, 3]);
    case.unit(10, 50, GPUS, &[0, 1]);
    case.unit(10, 900, GPUS, &[2]);
    case.unit(10, 60, GPUS, &[3, 4]);
    case.unit(10, 800, GPUS, &[5]);
    let mut demand = gang(GPUS, 4);
    demand.shapes[0].replica_size = 2;
    demand.topology = Some(TopologyDemand {
        key: 0,
        mode: TopologyStrictness::Required,
        scope: Scope::Replica,
    });
    let answer = case.answer(&demand);
    assert_eq!(answer.victims, [0, 2]);
    let racks: Vec<(u32, usize)> = answer
        .placement
        .assignments
        .iter()
        .map(|s| (s.replica, s.node / 3))
        .collect();
    assert!(
        racks
            .iter()
            .all(|&(replica, rack)| racks.iter().all(|&(r, k)| r != replica || k == rack)),
        "{racks:?}"
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
fn a_lost_member_is_replaced_in_the_rack_of_the_others() {
    let mut case = racks(&[3, 3]);
    case.cluster.add_pod(0, &[GPUS]);
    case.cluster.add_pod(1, &[GPUS]);
    case.unit(10, 500, GPUS, &[2]);
    let mut demand = in_one_rack(TopologyStrictness::Required, gang(GPUS, 3));
    demand.shapes[0].running = vec![
        RunningMembers {
            replica: 0,
            node: 0,
            count: 1,
        },
        RunningMembers {
            replica: 0,
            node: 1,
            count: 1,
        },
    ];
    let answer = case.answer(&demand);
    assert_eq!(answer.victims, [0], "though the other rack is free");
    assert_eq!(
        answer
            .placement
            .assignments
            .iter()
            .map(|s| s.node)
            .collect::<Vec<_>>(),
        [2]
    );
}

#[test]
fn a_gang_that_fits_nowhere_is_told_the_rack_that_comes_closest() {
    struct Words;
    impl Names for Words {
        fn resource(&self, _: usize) -> String {
            "GPUs".to_owned()
        }
        fn domain(&self, _: usize, domain: usize) -> String {
            format!("rack r{domain}")
        }
    }
    let mut case = racks(&[1, 2]);
    case.unit(500, 1, GPUS, &[2]);
    case.unit(10, 1, GPUS, &[1]);
    let demand = in_one_rack(TopologyStrictness::Required, gang(GPUS, 3));
    let reason = preempt(
        &case.cluster,
        &case.units,
        &demand,
        &PreemptionOptions::default(),
    )
    .unwrap_err();
    assert_eq!(
        reason.describe(&Words),
        "needs 16 more GPUs in rack r0 for 2 pods, after evicting everything allowed"
    );
}

#[test]
fn the_reasons_say_what_sparing_a_victim_would_cost_and_why_others_were_spared() {
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
fn whole_nodes_stay_free_for_those_who_need_them() {
    let mut case = racks(&[3]);
    case.cluster.add_pod(1, &[6]);
    let seats = place(&case.cluster, &gang(2, 1))
        .expect("it fits")
        .assignments;
    assert_eq!(seats[0].node, 1);
    case.cluster.add_pod(1, &[2]);
    let request: Amounts = smallvec![2];
    case.cluster.add_pod(0, &request);
    assert_eq!(
        place(&case.cluster, &gang(3, 2))
            .expect("it fits")
            .assignments[0]
            .node,
        0
    );
}

#[test]
fn follow_on_is_followed_as_deep_as_asked_and_takes_the_proof_with_it() {
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
fn a_victim_evicts_nobody_of_its_own_priority_in_turn() {
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
fn the_next_best_set_is_told_with_what_its_units_would_evict_in_turn() {
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
    demand.topology = Some(TopologyDemand {
        key: 0,
        mode: TopologyStrictness::Required,
        scope: Scope::Replica,
    });
    let answer = case.answer(&demand);
    assert_eq!(answer.victims, [0]);
    let reasons = explain(&case.cluster, &case.units, &demand, &case.options, &answer);
    assert_eq!(
        reasons.runner_up.map(|r| (r.victims, r.cost.lost)),
        Some((vec![1], 60))
    );
}

#[test]
fn nodes_without_a_rack_hold_no_replica_that_must_share_one() {
    let mut case = racks(&[2]);
    case.unit(10, 50, GPUS, &[0, 1]);
    for ix in [2, 3] {
        case.cluster.upsert_node(
            ix,
            &ClusterNode {
                allocatable: smallvec![GPUS],
                domains: vec![None],
                schedulable: true,
            },
        );
    }
    let mut demand = gang(GPUS, 2);
    demand.topology = Some(TopologyDemand {
        key: 0,
        mode: TopologyStrictness::Required,
        scope: Scope::Replica,
    });
    assert_eq!(case.victims(&demand), [0], "though the others are free");
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
