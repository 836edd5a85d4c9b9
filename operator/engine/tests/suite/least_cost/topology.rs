//! Gangs and replicas that share a rack.

use lockstep_engine::{
    ClusterNode, Names, PreemptionOptions, RunningMembers, Scope, TopologyDemand,
    TopologyStrictness, place, preempt,
};

use super::{GPUS, gang, in_one_rack, racks};

#[test]
fn a_gang_bound_to_one_rack_takes_the_rack_that_costs_least() {
    let mut case = racks(&[2, 2]);
    case.unit(10, 100, GPUS, &[0]);
    case.unit(10, 900, GPUS, &[1]);
    case.unit(10, 400, GPUS, &[2]);
    case.unit(10, 401, GPUS, &[3]);
    assert_eq!(case.victims(&gang(GPUS, 2)), [0, 2], "anywhere");
    let answer = case.answer(&in_one_rack(TopologyStrictness::Required, gang(GPUS, 2)));
    assert_eq!(answer.victims, [2, 3]);
    assert!(answer.proven);
}

#[test]
fn a_preferred_rack_is_kept_without_evictions() {
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
    demand.topology = vec![TopologyDemand {
        key: 0,
        mode: TopologyStrictness::Required,
        scope: Scope::Replica,
    }];
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
fn a_lost_member_is_replaced_in_the_rack_of_its_gang() {
    let mut case = racks(&[3, 3]);
    case.cluster.add_pod(0, &super::gpus(GPUS));
    case.cluster.add_pod(1, &super::gpus(GPUS));
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
fn a_preemptor_that_fits_nowhere_gets_the_rack_with_the_smallest_shortfall() {
    struct Words;
    impl Names for Words {
        fn resource(&self, _: usize) -> String {
            "GPUs".to_owned()
        }
        fn amount(&self, _: usize, amount: i64) -> String {
            format!("{amount} whole")
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
        "insufficient GPUs in rack r0: 2 pods need 16 whole more; preemption cannot free enough"
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
                allocatable: super::gpus(GPUS),
                domains: vec![None],
                schedulable: true,
            },
        );
    }
    let mut demand = gang(GPUS, 2);
    demand.topology = vec![TopologyDemand {
        key: 0,
        mode: TopologyStrictness::Required,
        scope: Scope::Replica,
    }];
    assert_eq!(case.victims(&demand), [0], "though the others are free");
}
