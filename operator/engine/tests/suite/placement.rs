//! Placements and messages in cases that can be checked by hand.

use std::sync::Arc;

use lockstep_engine::{
    Cluster, ClusterNode, Demand, DomainPath, Infeasible, NodeSet, RunningMembers, Scope, Shape,
    TopologyDemand, TopologyStrictness, place, place_within,
};
use smallvec::smallvec;

/// Milli-CPU, bytes, pods, GPUs.
const DIMS: usize = 4;

/// Nodes with this many free CPUs and GPUs, in one rack unless `racks` is given.
fn cluster(nodes: &[(i64, i64)], racks: &[usize]) -> Cluster {
    let mut cluster = Cluster::new(DIMS, 1);
    for (ix, &(cpus, gpus)) in nodes.iter().enumerate() {
        let rack = racks.get(ix).copied().unwrap_or(0);
        let allocatable = smallvec![cpus * 1_000, 1 << 40, 100, gpus];
        cluster.upsert_node(
            ix,
            &ClusterNode {
                allocatable,
                domains: vec![Some(rack)],
                schedulable: true,
            },
        );
    }
    cluster
}

fn shape(cpus: i64, gpus: i64, count: u32) -> Shape {
    Shape::new([cpus * 1_000, 1 << 20, 1, gpus].as_slice(), count)
}

fn gang(shapes: Vec<Shape>) -> Demand {
    Demand {
        min_count: 0,
        shapes,
        ..Demand::homogeneous([1, 1, 1, 1].as_slice(), 1, 0)
    }
}

fn within_racks(scope: Scope, demand: Demand) -> Demand {
    Demand {
        topology: vec![TopologyDemand {
            key: 0,
            mode: TopologyStrictness::Required,
            scope,
        }],
        ..demand
    }
}

/// Node and count of each assignment.
fn placed(cluster: &Cluster, demand: &Demand) -> Vec<(usize, u32)> {
    place(cluster, demand)
        .expect("it fits")
        .assignments
        .iter()
        .map(|s| (s.node, s.count))
        .collect()
}

#[test]
fn demands_that_contradict_themselves_are_refused() {
    let cluster = cluster(&[(8, 8)], &[]);
    let refused = |change: &dyn Fn(&mut Demand)| {
        let mut demand = within_racks(Scope::Replica, gang(vec![shape(1, 1, 4)]));
        demand.shapes[0].replica_size = 2;
        assert!(place(&cluster, &demand).is_ok());
        change(&mut demand);
        match place(&cluster, &demand) {
            Err(Infeasible::BadDemand(reason)) => reason,
            other => panic!("accepted: {other:?}"),
        }
    };
    let dims = "a request must name every resource dimension";
    assert_eq!(refused(&|d| d.shapes[0].request.truncate(3)), dims);
    assert_eq!(refused(&|d| d.shapes[0].request.push(0)), dims);
    let asks = "a request must be positive for some resource and negative for none";
    assert_eq!(refused(&|d| d.shapes[0].request = smallvec![0; DIMS]), asks);
    assert_eq!(refused(&|d| d.shapes[0].request[3] = -1), asks);
    let more = "a shape needs or runs more pods than it counts";
    assert_eq!(refused(&|d| d.shapes[0].min = 5), more);
    assert_eq!(
        refused(&|d| d.shapes[0].running = vec![RunningMembers {
            replica: 0,
            node: 0,
            count: 5
        }]),
        more
    );
    let divides = "the replica size must divide the count of the shape";
    assert_eq!(refused(&|d| d.shapes[0].replica_size = 0), divides);
    assert_eq!(refused(&|d| d.shapes[0].replica_size = 3), divides);
    assert_eq!(
        refused(&|d| d.min_count = 5),
        "the gang needs more pods than its shapes count"
    );
    assert_eq!(
        refused(&|d| d.topology[0].key = 1),
        "the topology key is not in use"
    );
    let replica = "a running member belongs to no replica";
    assert_eq!(
        refused(&|d| d.shapes[0].running = vec![RunningMembers {
            replica: 2,
            node: 0,
            count: 1
        }]),
        replica
    );
    let crowd = "the running members of a replica are too many or in two domains";
    assert_eq!(
        refused(&|d| d.shapes[0].running = vec![RunningMembers {
            replica: 0,
            node: 0,
            count: 3
        }]),
        crowd
    );
}

#[test]
fn running_members_in_two_racks_cannot_be_kept_in_one() {
    let cluster = cluster(&[(8, 8), (8, 8)], &[0, 1]);
    let runs = |replica, node| RunningMembers {
        replica,
        node,
        count: 1,
    };
    let mut demand = gang(vec![shape(1, 1, 4)]);
    demand.shapes[0].replica_size = 2;
    demand.shapes[0].running = vec![runs(0, 0), runs(0, 1)];
    for scope in [Scope::Gang, Scope::Replica] {
        let answer = place(&cluster, &within_racks(scope, demand.clone()));
        assert!(
            matches!(answer, Err(Infeasible::BadDemand(_))),
            "{answer:?}"
        );
    }
    demand.shapes[0].running[1].replica = 1;
    assert_eq!(
        placed(&cluster, &within_racks(Scope::Replica, demand)),
        [(0, 1), (1, 1)],
        "each replica where it is"
    );
}

#[test]
fn a_gang_that_runs_whole_needs_no_room_in_a_rack_whose_nodes_are_all_excluded() {
    let cluster = cluster(&[(8, 8), (8, 7)], &[0, 1]);
    let mut demand = within_racks(
        Scope::Gang,
        Demand {
            min_count: 1,
            ..gang(vec![shape(1, 1, 1)])
        },
    );
    demand.shapes[0].running = vec![RunningMembers {
        replica: 0,
        node: 1,
        count: 1,
    }];
    demand.excluded = NodeSet::from_iter([1]);
    assert_eq!(placed(&cluster, &demand), []);
}

#[test]
fn accelerators_decide_which_node_fits_best_and_not_the_cpus_beside_them() {
    let cluster = cluster(&[(4, 8), (64, 2), (4, 6)], &[]);
    assert_eq!(placed(&cluster, &gang(vec![shape(4, 2, 1)])), [(1, 1)]);
    assert_eq!(
        placed(&cluster, &gang(vec![shape(4, 0, 1)])),
        [(0, 1)],
        "a pod without any is judged by its CPUs"
    );
}

#[test]
fn the_node_that_is_filled_without_a_rest_comes_before_the_smaller_one() {
    let cluster = cluster(&[(64, 4), (64, 6), (64, 8)], &[]);
    assert_eq!(placed(&cluster, &gang(vec![shape(1, 3, 2)])), [(1, 2)]);
}

#[test]
fn the_best_fit_is_the_fullest_node_and_the_fullest_rack() {
    let nodes = cluster(&[(8, 8), (8, 1), (8, 8), (8, 8)], &[]);
    let mut demand = gang(vec![shape(1, 1, 1)]);
    assert_eq!(placed(&nodes, &demand), [(1, 1)], "the best fit");
    demand.excluded.grow(3);
    demand.excluded.insert(1);
    assert_eq!(placed(&nodes, &demand), [(0, 1)]);
    let racks = cluster(&[(8, 1), (8, 1), (8, 8), (8, 8)], &[0, 0, 1, 1]);
    let together = within_racks(Scope::Gang, gang(vec![shape(1, 1, 2)]));
    assert_eq!(placed(&racks, &together), [(0, 1), (1, 1)]);
    let mut replicas = within_racks(Scope::Replica, together);
    replicas.shapes[0].replica_size = 2;
    assert_eq!(placed(&racks, &replicas), [(0, 1), (1, 1)]);
}

#[test]
fn a_gang_takes_the_rack_where_most_of_it_fits_then_the_one_with_least_left_over() {
    let racks = cluster(&[(8, 8), (8, 4), (8, 5), (8, 2)], &[0, 1, 2, 3]);
    let mut demand = within_racks(Scope::Gang, gang(vec![shape(1, 1, 4)]));
    assert_eq!(placed(&racks, &demand), [(1, 4)], "rack 1 is filled");
    demand.shapes[0] = Shape {
        min: 2,
        ..shape(1, 1, 6)
    };
    assert_eq!(
        placed(&racks, &demand),
        [(0, 6)],
        "rack 3 would be filled, but holds only two"
    );
}

#[test]
fn shapes_that_are_multiples_of_each_other_never_exhaust_the_search() {
    let nodes = cluster(&[(64, 3); 60], &[]);
    let demand = |small| {
        gang(vec![
            shape(2, 2, 60),
            Shape::new([1_000, 1 << 19, 0, 1].as_slice(), small),
        ])
    };
    let mut fits = demand(60);
    fits.shapes[0].request = smallvec![2_000, 1 << 20, 0, 2];
    assert_eq!(place(&nodes, &fits).expect("it fits").count(), 120);
    fits.shapes[1].count = 61;
    fits.shapes[1].min = 61;
    let Err(Infeasible::InsufficientCapacity(short)) = place(&nodes, &fits) else {
        panic!("one is too many")
    };
    assert_eq!(
        (short.shape, short.pods, short.dim, short.short_by),
        (1, 1, 3, 1)
    );
}

#[test]
fn conflicting_shapes_are_packed_in_another_order_or_by_search() {
    // Largest first by GPUs would put the three pods on the only node for the four CPUs.
    let nodes = cluster(&[(4, 3), (1, 4)], &[]);
    let demand = gang(vec![shape(1, 3, 1), shape(4, 0, 1)]);
    assert_eq!(placed(&nodes, &demand), [(1, 1), (0, 1)]);
    let both = cluster(&[(4, 4)], &[]);
    let Err(Infeasible::InsufficientCapacity(short)) = place(&both, &demand) else {
        panic!("there is one node for two")
    };
    assert_eq!(short.pods, 1);
}

#[test]
fn shapes_that_no_order_packs_are_searched_for_until_the_steps_are_spent() {
    // Each shape in full leaves too little capacity for the other.
    let nodes = cluster(&[(64, 7), (64, 5)], &[]);
    let demand = gang(vec![
        Shape {
            min: 2,
            ..shape(1, 3, 3)
        },
        shape(1, 2, 3),
    ]);
    assert_eq!(
        placed(&nodes, &demand),
        [(0, 1), (1, 1), (0, 2), (1, 1)],
        "what is needed before what is wanted besides"
    );
    // One small pod has no capacity. Prices prove that the nodes are worth less than the gang,
    // without enumeration, but not in one step.
    let (nodes, demand) = (
        cluster(&[(64, 7); 12], &[]),
        gang(vec![shape(1, 3, 12), shape(1, 2, 25)]),
    );
    let refused = place(&nodes, &demand);
    assert!(
        matches!(refused, Err(Infeasible::InsufficientCapacity(_))),
        "{refused:?}"
    );
    let given_up = place_within(&nodes, &demand, 1);
    assert!(
        matches!(given_up, Err(Infeasible::GaveUp { .. })),
        "nothing is said to be proven: {given_up:?}"
    );
}

#[test]
fn a_replica_without_usable_node_gets_the_shortfall_beside_placed_replicas() {
    let mut racks = cluster(&[(8, 8), (8, 8)], &[0, 1]);
    let spec = ClusterNode {
        allocatable: smallvec![8_000, 1 << 40, 100, 8],
        domains: vec![Some(1)],
        schedulable: false,
    };
    racks.upsert_node(1, &spec);
    let mut demand = within_racks(Scope::Replica, gang(vec![shape(1, 1, 4)]));
    demand.shapes[0].replica_size = 2;
    demand.shapes[0].running = [0, 1]
        .map(|ix| RunningMembers {
            replica: ix as u32,
            node: ix,
            count: 1,
        })
        .to_vec();
    let Err(Infeasible::InsufficientCapacity(short)) = place(&racks, &demand) else {
        panic!("rack 1 is cordoned")
    };
    assert_eq!(
        (short.pods, short.short_by, short.domain),
        (1, 1, DomainPath::new())
    );
}

#[test]
fn replicas_of_several_groups_get_a_shortfall_only_where_it_is_certain() {
    let racks = cluster(&[(8, 4), (8, 4)], &[0, 1]);
    let replicas = |a: Shape, b: Shape| {
        let mut demand = within_racks(Scope::Replica, gang(vec![a, b]));
        for shape in &mut demand.shapes {
            shape.replica_size = shape.count;
        }
        place(&racks, &demand)
    };
    assert!(replicas(shape(1, 1, 4), shape(2, 2, 2)).is_ok());
    let Err(Infeasible::InsufficientCapacity(short)) = replicas(shape(1, 1, 1), shape(2, 2, 3))
    else {
        panic!("no rack holds it")
    };
    assert_eq!((short.shape, short.pods, short.short_by), (1, 1, 2));
    assert!(!short.domain.is_empty());
    let both = replicas(shape(1, 3, 1), shape(1, 2, 2));
    assert!(both.is_ok(), "each has a rack: {both:?}");
    let three = replicas(shape(1, 1, 4), shape(2, 2, 3));
    assert!(
        matches!(three, Err(Infeasible::InsufficientCapacity(_))),
        "{three:?}"
    );
    let crossed = cluster(&[(8, 4)], &[0]);
    let mut demand = within_racks(Scope::Replica, gang(vec![shape(1, 3, 1), shape(1, 2, 1)]));
    for shape in &mut demand.shapes {
        shape.replica_size = 1;
    }
    let crossed = place(&crossed, &demand);
    assert!(
        matches!(crossed, Err(Infeasible::InsufficientCapacity(_))),
        "alone each would fit, and not both wherever they are: {crossed:?}"
    );
}

#[test]
fn the_shortfall_names_the_resource_that_runs_out_first() {
    let nodes = cluster(&[(8, 4), (8, 4)], &[]);
    let short = |shape: Shape| match place(&nodes, &gang(vec![shape])) {
        Err(Infeasible::InsufficientCapacity(short)) => (short.pods, short.dim, short.short_by),
        other => panic!("{other:?}"),
    };
    assert_eq!(short(shape(1, 4, 5)), (3, 3, 12));
    assert_eq!(short(shape(8, 1, 5)), (3, 0, 24_000));
    assert_eq!(
        short(shape(5, 3, 3)),
        (1, 3, 3),
        "of two that run out together the accelerators"
    );
}

/// A node can be overcommitted, for example after a loss of capacity.
#[test]
fn a_resource_that_is_overcommitted_and_not_requested_is_not_short() {
    let mut nodes = Cluster::new(DIMS, 0);
    for (node, (cpus, gpus)) in [(8, 0), (0, 8)].into_iter().enumerate() {
        let spec = ClusterNode {
            allocatable: smallvec![cpus * 1000, -1, 100, gpus],
            domains: Vec::new(),
            schedulable: true,
        };
        nodes.upsert_node(node, &spec);
    }
    let mut alone = shape(4, 4, 1);
    alone.request[1] = 0;
    let short = match place(&nodes, &gang(vec![alone])) {
        Err(Infeasible::InsufficientCapacity(short)) => short.dim,
        other => panic!("{other:?}"),
    };
    assert!([0, 3].contains(&short), "{short}");
}

#[test]
fn what_the_gang_needs_beyond_its_shapes_minima_is_taken_from_the_shapes_in_order() {
    let mut demand = gang(vec![
        Shape {
            min: 1,
            ..shape(1, 1, 4)
        },
        Shape {
            min: 2,
            ..shape(1, 1, 4)
        },
    ]);
    for (min_count, needed) in [
        (0, [1, 2]),
        (3, [1, 2]),
        (5, [3, 2]),
        (6, [4, 2]),
        (8, [4, 4]),
    ] {
        demand.min_count = min_count;
        assert_eq!(demand.needed(), needed, "of {min_count}");
    }
    demand.shapes[1].running = vec![RunningMembers {
        replica: 0,
        node: 0,
        count: 3,
    }];
    demand.min_count = 5;
    assert_eq!(
        (demand.needed(), demand.desired()),
        (vec![2, 0], vec![4, 1])
    );
}

/// Racks of one node with so many free accelerators each, in zones of so many racks.
fn racks_in_zones(free: &[i64], racks_per_zone: usize) -> Cluster {
    let mut cluster = Cluster::new(DIMS, 2);
    for (rack, &gpus) in free.iter().enumerate() {
        let spec = ClusterNode {
            allocatable: smallvec![64_000, 1 << 40, 100, gpus],
            domains: vec![Some(rack), Some(rack / racks_per_zone)],
            schedulable: true,
        };
        cluster.upsert_node(rack, &spec);
    }
    cluster
}

/// The number of replicas of this size that share a rack.
fn whole_replicas(cluster: &Cluster, demand: &Demand) -> usize {
    let placement = place(cluster, demand).expect("it fits");
    let Shape {
        count,
        replica_size,
        ..
    } = demand.shapes[0];
    let of = |replica: u32| {
        let assigned = placement.assignments.iter();
        assigned.filter(move |a| a.replica == replica)
    };
    for replica in 0..count / replica_size {
        let members: u32 = of(replica).map(|a| a.count).sum();
        assert_eq!(members, replica_size, "replica {replica}");
    }
    let whole = |replica: &u32| of(*replica).count() == 1;
    (0..count / replica_size).filter(whole).count()
}

#[test]
fn as_many_replicas_as_possible_share_a_preferred_rack() {
    for (free, replicas, size, whole) in [
        (vec![1, 2, 8], 3, 3, 2),
        (vec![12; 10], 11, 8, 10),
        (vec![2, 4, 2, 4], 3, 4, 2),
        (vec![15; 20], 37, 8, 20),
        ([vec![4, 4], vec![16; 19]].concat(), 39, 8, 38),
    ] {
        let cluster = racks_in_zones(&free, 100);
        let mut demand = within_racks(Scope::Replica, gang(vec![shape(0, 1, replicas * size)]));
        demand.shapes[0].replica_size = size;
        demand.topology[0].mode = TopologyStrictness::Preferred;
        assert_eq!(whole_replicas(&cluster, &demand), whole, "{free:?}");
    }
}

#[test]
fn replicas_share_their_racks_if_the_gang_has_no_room_in_one_zone() {
    let cluster = racks_in_zones(&[12; 20], 10);
    let mut demand = gang(vec![shape(0, 1, 15 * 8)]);
    demand.shapes[0].replica_size = 8;
    let level = |key, scope| TopologyDemand {
        key,
        mode: TopologyStrictness::Preferred,
        scope,
    };
    demand.topology = vec![level(1, Scope::Gang), level(0, Scope::Replica)];
    assert_eq!(whole_replicas(&cluster, &demand), 15);
}

#[test]
fn the_last_pods_of_a_spread_gang_fill_the_smallest_rack_that_holds_them() {
    let racks = cluster(&[(8, 8), (8, 7), (8, 2), (8, 1)], &[0, 1, 2, 3]);
    let mut demand = within_racks(Scope::Gang, gang(vec![shape(1, 1, 10)]));
    demand.topology[0].mode = TopologyStrictness::Preferred;
    assert_eq!(placed(&racks, &demand), [(0, 8), (2, 2)]);
}

#[test]
fn pods_without_accelerators_spare_nodes_with_free_ones() {
    let mut nodes = cluster(&[(8, 4), (8, 4), (16, 0)], &[]);
    nodes.set_accelerators(vec![3]);
    nodes.add_pod(0, &[1_000, 1, 1, 4]);
    let drivers = |count| placed(&nodes, &gang(vec![shape(2, 0, count)]));
    assert_eq!(drivers(3), [(0, 3)], "its accelerators are in use");
    assert_eq!(drivers(8), [(2, 8)]);
    assert_eq!(drivers(12), [(0, 3), (1, 1), (2, 8)]);
    assert_eq!(placed(&nodes, &gang(vec![shape(2, 1, 1)])), [(1, 1)]);
}

#[test]
fn an_eligible_set_smaller_than_the_cluster_leaves_the_other_nodes_alone() {
    let nodes = cluster(&[(8, 8), (8, 1)], &[]);
    let mut demand = gang(vec![shape(1, 1, 3)]);
    let mut second = NodeSet::with_capacity(2);
    second.insert(1);
    demand.shapes[0].eligible = Some(Arc::new(second));
    let Err(Infeasible::InsufficientCapacity(short)) = place(&nodes, &demand) else {
        panic!("node 1 has one GPU")
    };
    assert_eq!((short.pods, short.dim), (2, 3));
}

#[test]
fn a_gang_that_no_rack_holds_gets_the_rack_with_the_smallest_shortfall() {
    let racks = cluster(&[(8, 2), (8, 3), (8, 1)], &[0, 1, 2]);
    for scope in [Scope::Gang, Scope::Replica] {
        let demand = within_racks(scope, gang(vec![shape(1, 1, 4)]));
        let Err(Infeasible::InsufficientCapacity(short)) = place(&racks, &demand) else {
            panic!("no rack holds four")
        };
        assert_eq!(
            (&short.domain[..], short.pods, short.short_by),
            (&[(0, 1)][..], 1, 1)
        );
        assert_eq!(
            Infeasible::InsufficientCapacity(short).to_string(),
            "1 pods of shape 0 do not fit: resource 3 is short by 1 in domain 1 of key 0"
        );
    }
    let mut unlabelled = racks.clone();
    for ix in 0..3 {
        let spec = ClusterNode {
            allocatable: smallvec![8_000, 1 << 40, 100, 8],
            domains: vec![None],
            schedulable: true,
        };
        unlabelled.upsert_node(ix, &spec);
    }
    let mut demand = within_racks(
        Scope::Gang,
        gang(vec![
            Shape {
                min: 0,
                ..shape(1, 1, 1)
            },
            shape(1, 1, 4),
        ]),
    );
    demand.min_count = 4;
    let Err(Infeasible::InsufficientCapacity(short)) = place(&unlabelled, &demand) else {
        panic!("no node has a rack")
    };
    assert_eq!((short.shape, short.pods), (1, 4));
    assert!(short.domain.is_empty());
}

#[test]
fn a_pod_fills_the_node_with_fewest_free_accelerators_regardless_of_network_devices() {
    // CPU, memory, pods, GPUs, and shared network devices: one of a thousand per pod.
    let mut cluster = Cluster::new(5, 0);
    for node in 0..2 {
        let spec = ClusterNode {
            allocatable: smallvec![64_000, 1 << 40, 100, 8, 1000],
            domains: Vec::new(),
            schedulable: true,
        };
        cluster.upsert_node(node, &spec);
    }
    // Six GPUs are free on the first node, which has more pods, and two on the second.
    for _ in 0..2 {
        cluster.add_pod(0, &[1_000, 1 << 20, 1, 1, 1]);
    }
    cluster.add_pod(1, &[1_000, 1 << 20, 1, 6, 1]);
    let demand = Demand::homogeneous([1_000, 1 << 20, 1, 2, 1].as_slice(), 1, 0);
    assert_eq!(placed(&cluster, &demand), [(1, 1)]);
}

#[test]
fn a_resource_that_is_free_on_other_nodes_is_not_named_as_missing() {
    // One node has GPUs and too little CPU, the other one CPU and no GPUs.
    let cluster = cluster(&[(1, 8), (64, 0)], &[]);
    let missing = |shape| {
        let short = place(&cluster, &gang(vec![shape])).unwrap_err();
        short.shortfall().map(|s| (s.dim, s.pods))
    };
    assert_eq!(missing(shape(4, 8, 1)), Some((0, 1)));
    assert_eq!(missing(shape(1, 8, 2)), Some((3, 1)));
}
