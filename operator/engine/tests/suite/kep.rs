//! KEP-5710's published scenarios, by their number in the upstream integration tests. By default,
//! the preemptor has priority 100, low priority is 10, and pods request 1 CPU.
//!
//! Countable node constraints (a host port, pod anti-affinity, Reserve plugins) are a resource
//! here, and affinity between members is a topology. Not expressible: topology spread (two cases of
//! P19), because nothing links the counts of different nodes. P21 (condition message under a grace
//! period) concerns the executor. P17 with a member's own policy and the gate off concerns how a
//! gang is read.

use std::sync::Arc;

use lockstep_engine::{
    Cluster, ClusterNode, Demand, EvictionPolicy, Infeasible, NodeSet, Pods, PreemptionPlan,
    RunningMembers, Scope, Shape, TopologyDemand, TopologyStrictness, Unit, Units,
    preempt_kep_in_order,
};
use smallvec::smallvec;

const LOW: i32 = 10;
const HIGH: i32 = 100;
/// One CPU in halves, the unit of the cluster.
const CPU: i64 = 2;

struct Case {
    cluster: Cluster,
    units: Units,
    names: Vec<&'static str>,
}

/// Nodes with this many CPUs and one unit of a scarce resource, each in its own zone.
fn nodes(cpus: &[i64]) -> Case {
    let mut cluster = Cluster::new(2, 1);
    for (ix, cpu) in cpus.iter().enumerate() {
        let allocatable = smallvec![cpu * CPU, 1];
        cluster.upsert_node(
            ix,
            &ClusterNode {
                allocatable,
                domains: vec![Some(ix)],
                schedulable: true,
            },
        );
    }
    Case {
        cluster,
        units: Units::default(),
        names: Vec::new(),
    }
}

impl Case {
    /// Running work: one pod with this many CPUs on each node.
    fn runs(self, name: &'static str, priority: i32, gang: bool, cpus: i64, on: &[usize]) -> Self {
        self.holds(name, priority, gang, [cpus * CPU, 0], on)
    }

    /// Running work with these amounts per pod.
    fn holds(
        mut self,
        name: &'static str,
        priority: i32,
        gang: bool,
        request: [i64; 2],
        on: &[usize],
    ) -> Self {
        for &node in on {
            self.cluster.add_pod(node, &request);
        }
        self.units.units.push(Unit {
            pods: vec![Pods {
                request: request.as_slice().into(),
                nodes: on.to_vec(),
            }],
            priority,
            gang,
            cost: 1,
            pdbs: smallvec![],
            start: self.names.len() as i64,
            cascade: None,
            eligible: None,
            preempts: false,
        });
        self.names.push(name);
        self
    }

    fn pod(self, name: &'static str, priority: i32, node: usize) -> Self {
        self.runs(name, priority, false, 1, &[node])
    }

    /// A budget over these units.
    fn budget(mut self, allowed: u32, over: &[&str]) -> Self {
        let pdb = self.units.pdb_allowed.len();
        self.units.pdb_allowed.push(allowed);
        for (unit, name) in self.units.units.iter_mut().zip(&self.names) {
            if over.contains(name) {
                unit.pdbs.push((pdb, unit.pods[0].nodes.len() as u32));
            }
        }
        self
    }

    fn answer(&self, demand: &Demand) -> Result<PreemptionPlan, Infeasible> {
        let node_order: Vec<_> = (0..self.cluster.node_count()).collect();
        preempt_kep_in_order(&self.cluster, &self.units, demand, &node_order)
    }

    fn evicts(&self, demand: &Demand) -> Vec<&'static str> {
        let answer = self.answer(demand).expect("the gang fits after preemption");
        answer.victims.iter().map(|&u| self.names[u]).collect()
    }
}

/// A gang whose members all have one CPU and are all needed.
fn gang(count: u32) -> Demand {
    Demand::homogeneous([CPU, 0].as_slice(), count, HIGH)
}

/// A gang that needs one member: upstream's Basic policy, and gangs with `minCount` 1.
fn at_least_one_of(count: u32) -> Demand {
    let mut demand = gang(count);
    demand.shapes[0].min = 1;
    demand.min_count = 1;
    demand
}

#[test]
fn p1_a_gang_that_needs_the_whole_node_evicts_all_three() {
    let case = nodes(&[3])
        .pod("a", LOW, 0)
        .pod("b", LOW, 0)
        .pod("c", LOW, 0);
    assert_eq!(case.evicts(&gang(3)), ["a", "b", "c"]);
    assert_eq!(case.answer(&gang(3)).unwrap().placement.count(), 3);
}

#[test]
fn p2_so_do_basic_members() {
    let case = nodes(&[3])
        .pod("a", LOW, 0)
        .pod("b", LOW, 0)
        .pod("c", LOW, 0);
    assert_eq!(case.evicts(&at_least_one_of(3)), ["a", "b", "c"]);
}

#[test]
fn p3_only_the_pod_in_the_way_is_evicted() {
    let case = nodes(&[2, 2])
        .runs("low-1", LOW, false, 2, &[0])
        .pod("low-2", LOW, 1);
    assert_eq!(case.evicts(&gang(3)), ["low-1"]);
}

#[test]
fn p4_the_placement_decides_and_not_the_lowest_priority_in_the_cluster() {
    let case = nodes(&[2, 2]).pod("low", 10, 0).pod("very-low", 5, 1);
    assert_eq!(case.evicts(&gang(3)), ["low"]);
}

#[test]
fn p5_a_budget_spares_its_pods_while_other_pods_suffice() {
    let case = nodes(&[3])
        .pod("low-1", LOW, 0)
        .pod("low-2", LOW, 0)
        .pod("low-3", LOW, 0)
        .budget(0, &["low-1", "low-2"]);
    assert_eq!(
        case.evicts(&Demand::homogeneous([CPU / 2, 0].as_slice(), 2, HIGH)),
        ["low-3"]
    );
}

#[test]
fn p6_a_gang_over_two_nodes_evicts_all_four() {
    let case = nodes(&[2, 2])
        .pod("a", LOW, 0)
        .pod("b", LOW, 0)
        .pod("c", LOW, 1)
        .pod("d", LOW, 1);
    assert_eq!(case.evicts(&gang(4)), ["a", "b", "c", "d"]);
}

#[test]
fn p7_no_pod_is_evicted_if_a_pod_of_higher_priority_is_in_the_way() {
    let case = nodes(&[3])
        .pod("mid", 500, 0)
        .pod("low-1", LOW, 0)
        .pod("low-2", LOW, 0);
    let reason = case.answer(&gang(3)).unwrap_err();
    let short = reason.shortfall().expect("a shortfall");
    assert_eq!((short.pods, short.short_by, short.evicting), (1, CPU, true));
}

#[test]
fn p8_the_more_important_pod_is_reprieved() {
    let case = nodes(&[3])
        .pod("mid", 50, 0)
        .pod("low-1", LOW, 0)
        .pod("low-2", LOW, 0);
    assert_eq!(case.evicts(&gang(2)), ["low-1", "low-2"]);
}

#[test]
fn p9_p10_a_group_in_mode_all_goes_whole_for_one_cpu() {
    let case = nodes(&[3]).runs("victim", LOW, true, 1, &[0, 0, 0]);
    assert_eq!(case.evicts(&gang(1)), ["victim"]);
    assert_eq!(case.answer(&gang(1)).unwrap().cost.pods, 3);
}

#[test]
fn p11_members_beyond_the_minimum_run_where_evicting_is_allowed() {
    let case = nodes(&[1, 1, 1, 1])
        .pod("a", LOW, 0)
        .pod("b", LOW, 1)
        .pod("c", 200, 2)
        .pod("d", 200, 3);
    assert_eq!(case.evicts(&at_least_one_of(3)), ["a", "b"]);
    assert_eq!(
        case.answer(&at_least_one_of(3)).unwrap().placement.count(),
        2
    );
}

#[test]
fn p12_a_gang_and_a_pod_go_when_both_are_needed() {
    let case = nodes(&[1, 1, 1])
        .runs("gang", 50, true, 1, &[0, 1])
        .pod("low", LOW, 2);
    assert_eq!(case.evicts(&gang(3)), ["gang", "low"]);
}

#[test]
fn p13_a_gang_of_higher_priority_stays_and_one_member_waits() {
    let case =
        nodes(&[1, 1, 1, 1])
            .runs("pg", 50, true, 1, &[0, 1])
            .runs("pg2", 200, true, 1, &[2, 3]);
    assert_eq!(case.evicts(&at_least_one_of(3)), ["pg"]);
    assert_eq!(
        case.answer(&at_least_one_of(3)).unwrap().placement.count(),
        2
    );
}

#[test]
fn p14_reprieve_does_not_lower_the_number_of_members() {
    let case = nodes(&[1, 1, 1])
        .pod("p1", 10, 0)
        .pod("p2", 50, 1)
        .pod("p3", 50, 2);
    assert_eq!(case.evicts(&at_least_one_of(3)), ["p1", "p2", "p3"]);
}

#[test]
fn p15_the_most_important_victim_survives_off_the_placement() {
    let case = nodes(&[1, 1, 1, 1])
        .pod("a", 10, 0)
        .pod("b", 10, 1)
        .pod("c", 10, 2)
        .pod("mid", 50, 3);
    assert_eq!(case.evicts(&at_least_one_of(3)), ["a", "b", "c"]);
}

#[test]
fn p17_the_gangs_policy_decides_whether_it_evicts() {
    let case = nodes(&[3])
        .pod("a", LOW, 0)
        .pod("b", LOW, 0)
        .pod("c", LOW, 0);
    let never = Demand {
        preemption: EvictionPolicy::Never,
        ..gang(3)
    };
    assert!(matches!(
        case.answer(&never),
        Err(Infeasible::MayNotPreempt(_))
    ));
    assert_eq!(case.evicts(&gang(3)), ["a", "b", "c"]);
}

#[test]
fn p18_only_eligible_nodes_are_cleared() {
    let case = nodes(&[2, 2])
        .runs("ten", 10, false, 2, &[0])
        .runs("five", 5, false, 2, &[1]);
    let mut demand = gang(2);
    let mut second = NodeSet::with_capacity(2);
    second.insert(1);
    demand.shapes[0].eligible = Some(Arc::new(second));
    assert_eq!(case.evicts(&demand), ["five"]);
    assert_eq!(
        case.evicts(&gang(2)),
        ["ten"],
        "without the selector the first node is taken"
    );
}

/// Required affinity between members by zone.
fn in_one_zone(demand: Demand) -> Demand {
    Demand {
        topology: vec![TopologyDemand {
            key: 0,
            mode: TopologyStrictness::Required,
            scope: Scope::Gang,
        }],
        ..demand
    }
}

#[test]
fn p16_members_that_must_share_a_zone_take_the_one_where_all_of_them_fit() {
    let case = nodes(&[2, 3])
        .runs("va", 50, false, 2, &[0])
        .runs("vb", LOW, false, 3, &[1]);
    let basic = in_one_zone(at_least_one_of(3));
    assert_eq!(case.evicts(&basic), ["vb"]);
    assert_eq!(case.answer(&basic).unwrap().placement.count(), 3);
    let case = nodes(&[3, 4])
        .runs("va", 50, false, 3, &[0])
        .runs("vb", LOW, false, 4, &[1]);
    assert_eq!(case.evicts(&in_one_zone(gang(4))), ["vb"]);
}

#[test]
fn p19_a_pod_with_the_port_or_anti_affinity_is_evicted_even_if_cpus_suffice() {
    let case = nodes(&[4])
        .holds("port", 50, false, [CPU, 1], &[0])
        .pod("other", LOW, 0);
    let with_port = Demand::homogeneous([CPU, 1].as_slice(), 1, HIGH);
    assert_eq!(case.evicts(&with_port), ["port"]);
    let case = nodes(&[4, 4]).holds("a", LOW, false, [CPU, 1], &[0]).holds(
        "b",
        LOW,
        false,
        [CPU, 1],
        &[1],
    );
    let apart = Demand::homogeneous([CPU, 1].as_slice(), 2, HIGH);
    assert_eq!(case.evicts(&apart), ["a", "b"]);
    assert_eq!(
        case.answer(&apart).unwrap().placement.assignments.len(),
        2,
        "members that must not sit together do not"
    );
}

#[test]
fn p20_reprieve_honours_what_a_reserve_plugin_counts() {
    let case = nodes(&[3])
        .holds("taker", 15, false, [CPU, 1], &[0])
        .pod("plain", LOW, 0);
    let counted = Demand::homogeneous([CPU, 1].as_slice(), 1, HIGH);
    assert_eq!(case.evicts(&counted), ["taker"]);
}

#[test]
fn p22_a_better_node_that_frees_up_while_victims_terminate_changes_nothing() {
    let mut case = nodes(&[3, 2])
        .runs("a", LOW, false, 3, &[0])
        .runs("b", LOW, false, 2, &[1]);
    let mut demand = gang(2);
    let first = case.answer(&demand).unwrap();
    assert_eq!(
        (
            first.victims.as_slice(),
            first.placement.assignments[0].node
        ),
        ([0].as_slice(), 0)
    );
    case.cluster.remove_pod(1, &[2 * CPU, 0]);
    case.cluster.remove_pod(0, &[3 * CPU, 0]);
    case.units.units.clear();
    assert_eq!(
        case.answer(&demand).unwrap().placement.assignments[0].node,
        1,
        "asked again it would fill the other node"
    );
    // The caller restricts the gang to the decided nodes.
    let nodes: NodeSet = first.placement.assignments.iter().map(|s| s.node).collect();
    demand.shapes[0].eligible = Some(Arc::new(nodes));
    let again = case.answer(&demand).unwrap();
    assert_eq!(
        (again.victims, again.placement),
        (Vec::new(), first.placement)
    );
}

#[test]
fn a_single_pod_tries_every_node_and_takes_the_one_whose_victims_matter_least() {
    let case = nodes(&[1, 1, 1])
        .pod("mid", 50, 0)
        .pod("low", LOW, 1)
        .pod("other", 60, 2);
    assert_eq!(case.evicts(&gang(1)), ["low"]);
}

#[test]
fn a_single_pod_evicts_a_whole_gang_of_mode_all() {
    let case = nodes(&[1, 1]).runs("gang", LOW, true, 1, &[0, 1]);
    assert_eq!(case.evicts(&gang(1)), ["gang"]);
}

#[test]
fn a_single_pod_prefers_a_node_without_a_broken_budget() {
    let case = nodes(&[1, 1])
        .pod("guarded", 5, 0)
        .pod("free", LOW, 1)
        .budget(0, &["guarded"]);
    assert_eq!(case.evicts(&gang(1)), ["free"]);
}

#[test]
fn members_go_to_the_first_nodes_of_the_order_that_have_room() {
    let case = nodes(&[2, 2, 2])
        .runs("keep", 500, false, 2, &[0])
        .runs("b", LOW, false, 2, &[1])
        .runs("c", LOW, false, 2, &[2]);
    let evicts = |order: &[usize], demand: &Demand| {
        preempt_kep_in_order(&case.cluster, &case.units, demand, order)
            .expect("the gang fits after preemption")
    };
    assert_eq!(evicts(&[0, 1, 2], &gang(2)).victims, [1]);
    assert_eq!(evicts(&[2, 1, 0], &gang(2)).victims, [2]);
    assert_eq!(
        evicts(&[9, 2, 1], &gang(2)).victims,
        [2],
        "an order may name nodes that are gone"
    );
    // The smaller shape takes the capacity of the larger one; then best fit decides.
    let mut two = gang(1);
    two.shapes.push(Shape::new([2 * CPU, 0].as_slice(), 1));
    two.shapes.push(Shape::new([CPU, 0].as_slice(), 1));
    two.min_count = 3;
    let answer = evicts(&[1, 2], &two);
    assert_eq!(
        (answer.victims.as_slice(), answer.placement.count()),
        ([1, 2].as_slice(), 3)
    );
}

#[test]
fn at_equal_priority_the_gang_is_reprieved_before_the_pod_with_or_without_budget() {
    let case = nodes(&[2])
        .pod("pod", LOW, 0)
        .runs("gang", LOW, true, 1, &[0]);
    assert_eq!(case.evicts(&gang(1)), ["pod"]);
    let case = nodes(&[2])
        .pod("guarded", LOW, 0)
        .pod("mid", 50, 0)
        .budget(1, &["guarded"]);
    assert_eq!(case.evicts(&gang(1)), ["guarded"]);
}

#[test]
fn for_a_single_pod_one_victim_counts_less_than_two_and_the_first_node_wins_a_tie() {
    let two_cpus = Demand::homogeneous([2 * CPU, 0].as_slice(), 1, HIGH);
    let case = nodes(&[2, 2])
        .pod("a", LOW, 0)
        .pod("b", -5, 0)
        .runs("c", LOW, false, 2, &[1]);
    assert_eq!(case.evicts(&two_cpus), ["c"]);
    let mut case = nodes(&[1, 1]).pod("a", LOW, 0).pod("b", LOW, 1);
    case.units.units[1].start = 0;
    assert_eq!(case.evicts(&gang(1)), ["a"]);
    let mut with_running = gang(1);
    with_running.shapes[0].running = vec![RunningMembers {
        replica: 0,
        node: 0,
        count: 1,
    }];
    with_running.shapes.push(Shape::new([CPU, 0].as_slice(), 1));
    with_running.min_count = 2;
    assert_eq!(
        case.evicts(&with_running),
        ["a"],
        "the pod that is missing is of the second shape"
    );
}
