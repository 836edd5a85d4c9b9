//! Gangs of two to four shapes over two to four resources that fit by construction. None may be
//! refused, and few may remain unknown.
//!
//! Varies: sizes from a few accelerators to thousands of cores, spare capacity, unusable nodes,
//! nodes that refuse shapes, elastic gangs, running members, topologies of gang and replicas, step
//! limits, and whether the capacity is free or held by other work.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::runs::runner;
use crate::several_shapes::unit;
use lockstep_engine::{
    Algorithm, Amounts, Cluster, ClusterNode, Demand, GangPlacement, Infeasible, NodeSet,
    PreemptionOptions, RunningMembers, Scope, Shape, TopologyDemand, TopologyStrictness, Units,
    place_if_it_fits, place_within, preempt,
};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use smallvec::smallvec;

const DOMAINS: usize = 3;
/// Keys. Each block has racks of the same names.
const RACK: usize = 0;
const BLOCK: usize = 1;
const BLOCKS: usize = 2;
const PRIORITY: i32 = 100;
/// With fewer steps, a search may well end without an answer.
const FEW: u64 = 3_000;

/// A node and the planted pods.
#[derive(Clone, Debug)]
struct RawNode {
    /// Shapes of the pods; empty: a decoy.
    pods: Vec<usize>,
    /// Additional capacity.
    spare: Vec<i64>,
    domain: usize,
    block: usize,
    /// True if shapes that are not planted here are refused.
    choosy: bool,
    /// True if the gang must not use this decoy.
    excluded: bool,
}

#[derive(Clone, Debug)]
struct Raw {
    requests: Vec<Vec<i64>>,
    nodes: Vec<RawNode>,
    /// Optional pods of each shape.
    elastic: Vec<u32>,
    topology: Vec<TopologyDemand>,
    /// True if the first pod of each node is running.
    running: bool,
    steps: u64,
}

fn topologies() -> impl Strategy<Value = Vec<TopologyDemand>> {
    let level = |key: usize, modes: Vec<TopologyStrictness>| {
        let scopes = prop::sample::select(vec![Scope::Gang, Scope::Replica]);
        (scopes, prop::sample::select(modes)).prop_map(move |(scope, mode)| TopologyDemand {
            key,
            mode,
            scope,
        })
    };
    let block = TopologyDemand {
        key: BLOCK,
        mode: TopologyStrictness::Required,
        scope: Scope::Gang,
    };
    let replicas = TopologyDemand {
        key: RACK,
        mode: TopologyStrictness::Required,
        scope: Scope::Replica,
    };
    let any = vec![TopologyStrictness::Required, TopologyStrictness::Preferred];
    prop_oneof![
        3 => Just(Vec::new()),
        3 => level(RACK, any).prop_map(|one| vec![one]),
        1 => Just(vec![block, replicas]),
        1 => level(RACK, vec![TopologyStrictness::Preferred]).prop_map(move |rack| vec![block, rack]),
    ]
}

fn nodes(shapes: usize, dims: usize) -> impl Strategy<Value = Vec<RawNode>> {
    let pods = prop_oneof![
        4 => prop::collection::vec(0..shapes, 1..6),
        1 => prop::collection::vec(0..shapes, 6..20),
        1 => Just(Vec::new()),
    ];
    let spare = prop_oneof![
        4 => Just(vec![0; dims]),
        3 => prop::collection::vec(0..3i64, dims),
        1 => prop::collection::vec(0..40i64, dims),
    ];
    let flags = (prop::bool::weighted(0.1), prop::bool::weighted(0.3));
    let node = (pods, spare, 0..DOMAINS, 0..BLOCKS, flags).prop_map(
        |(pods, spare, domain, block, flags)| RawNode {
            pods,
            spare,
            domain,
            block,
            choosy: flags.0,
            excluded: flags.1,
        },
    );
    prop_oneof![
        4 => prop::collection::vec(node.clone(), 1..8),
        1 => prop::collection::vec(node, 8..40),
    ]
}

/// Request of one pod: nothing, a few or many of each resource.
fn requests(shapes: usize, dims: usize) -> impl Strategy<Value = Vec<Vec<i64>>> {
    let amount = prop_oneof![
        1 => Just(0),
        3 => 1..5i64,
        2 => 1..17i64,
        1 => 1..1_000i64,
    ];
    let request = prop::collection::vec(amount, dims).prop_map(|mut request| {
        if request.iter().all(|&a| a == 0) {
            request[0] = 1;
        }
        request
    });
    prop::collection::vec(request, shapes)
}

fn raws() -> impl Strategy<Value = Raw> {
    (2..5usize, 2..5usize).prop_flat_map(|(shapes, dims)| {
        (
            requests(shapes, dims),
            nodes(shapes, dims),
            prop::collection::vec(0..3u32, shapes),
            topologies(),
            prop::bool::weighted(0.2),
            prop_oneof![3 => Just(1_000_000), 1 => 0..FEW],
        )
            .prop_map(|(requests, nodes, elastic, topology, running, steps)| Raw {
                requests,
                nodes,
                elastic,
                topology,
                running,
                steps,
            })
    })
}

/// A gang that fits, and the units that hold its capacity, if any.
struct Question {
    cluster: Cluster,
    demand: Demand,
    units: Units,
}

/// True if a level requires a domain of the key for the scope.
fn binds(raw: &Raw, key: usize, scope: Scope) -> bool {
    let mode = TopologyStrictness::Required;
    raw.topology.contains(&TopologyDemand { key, mode, scope })
}

/// `None`: nothing is planted.
fn question(mut raw: Raw, held: bool) -> Option<Question> {
    let dims = raw.requests[0].len();
    let shapes = raw.requests.len();
    // All planted pods are in one domain; other domains contain decoys.
    let (one_rack, one_block) = (
        binds(&raw, RACK, Scope::Gang),
        binds(&raw, BLOCK, Scope::Gang),
    );
    let decoy = |n: &&mut RawNode| one_rack && n.domain != 0 || one_block && n.block != 0;
    for node in raw.nodes.iter_mut().filter(decoy) {
        node.pods.clear();
    }
    if binds(&raw, RACK, Scope::Replica) {
        raw.running = false;
    }
    let mut per_domain = vec![[0_u32; DOMAINS]; shapes];
    for node in &raw.nodes {
        for &shape in &node.pods {
            per_domain[shape][node.domain] += 1;
        }
    }
    let count = |shape: usize| per_domain[shape].iter().sum::<u32>();
    let planted: Vec<usize> = (0..shapes).filter(|&s| count(s) > 0).collect();
    let ordinal = |shape: usize| planted.partition_point(|&s| s < shape);
    if planted.is_empty() {
        return None;
    }
    let mut desired: Vec<Shape> = planted
        .iter()
        .map(|&shape| {
            let mut all = Shape::new(raw.requests[shape].as_slice(), count(shape));
            all.min = all.count.saturating_sub(raw.elastic[shape]);
            all.replica_size = per_domain[shape].into_iter().fold(0, gcd);
            let refuse = |n: &RawNode| n.choosy && !n.pods.contains(&shape);
            let admitted: NodeSet = (0..raw.nodes.len())
                .filter(|&n| !refuse(&raw.nodes[n]))
                .collect();
            all.eligible = raw.nodes.iter().any(refuse).then(|| Arc::new(admitted));
            all
        })
        .collect();
    let mut cluster = Cluster::new(dims, 2);
    let mut units = Units::default();
    let mut excluded = NodeSet::with_capacity(raw.nodes.len());
    for (ix, node) in raw.nodes.iter().enumerate() {
        let mut held_there: Amounts = smallvec![0; dims];
        for &shape in &node.pods {
            for (held, each) in held_there.iter_mut().zip(&raw.requests[shape]) {
                *held += each;
            }
        }
        let allocatable: Amounts = held_there
            .iter()
            .zip(&node.spare)
            .map(|(h, s)| h + s)
            .collect();
        let spec = ClusterNode {
            allocatable,
            domains: vec![Some(node.domain), Some(node.block)],
            schedulable: true,
        };
        cluster.upsert_node(ix, &spec);
        if node.pods.is_empty() && node.excluded {
            excluded.grow_and_insert(ix);
        }
        if let Some(&first) = node.pods.first().filter(|_| raw.running) {
            let request = &raw.requests[first];
            cluster.add_pod(ix, request);
            held_there
                .iter_mut()
                .zip(request)
                .for_each(|(h, r)| *h -= r);
            desired[ordinal(first)].running.push(RunningMembers {
                replica: 0,
                node: ix,
                count: 1,
            });
        }
        if held && held_there.iter().any(|&h| h > 0) {
            cluster.add_pod(ix, &held_there);
            units
                .units
                .push(unit(vec![(ix, held_there)], 10 + ix as u64 * 37 % 50));
        }
    }
    let demand = Demand {
        min_count: desired.iter().map(|s| s.min).sum(),
        shapes: desired,
        topology: raw.topology,
        excluded,
        ..Demand::homogeneous([1].as_slice(), 1, PRIORITY)
    };
    Some(Question {
        cluster,
        demand,
        units,
    })
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Checks a placement: capacity, admission, needed members, and topology.
fn is_right(cluster: &Cluster, demand: &Demand, placement: &GangPlacement) -> Result<(), String> {
    let mut after = cluster.clone();
    after.reserve(&demand.shapes, placement);
    for node in 0..after.node_count() {
        let used = placement.assignments.iter().any(|a| a.node == node);
        if used && after.free(node).iter().any(|&f| f < 0) {
            return Err(format!("node {node} has no room"));
        }
    }
    let refused = |a: &lockstep_engine::Assignment| !demand.admits(&demand.shapes[a.shape], a.node);
    if let Some(wrong) = placement.assignments.iter().find(|a| refused(a)) {
        return Err(format!("{wrong:?} is not admitted"));
    }
    for (shape, needed) in demand.needed().into_iter().enumerate() {
        let of_shape = placement.assignments.iter().filter(|a| a.shape == shape);
        let count: u32 = of_shape.map(|a| a.count).sum();
        if count < needed {
            return Err(format!("{count} of {needed} of shape {shape}"));
        }
    }
    for (at, level) in demand.topology.iter().enumerate() {
        if level.mode == TopologyStrictness::Required {
            is_together(cluster, demand, at, placement)?;
        }
    }
    Ok(())
}

/// Checks a required level: running and placed members that must share a domain do.
fn is_together(
    cluster: &Cluster,
    demand: &Demand,
    at: usize,
    placement: &GangPlacement,
) -> Result<(), String> {
    let level = demand.topology[at];
    let domain = |node: usize| -> Option<Vec<usize>> {
        let outer = demand.topology[..=at].iter();
        outer.map(|l| cluster.domain(node, l.key)).collect()
    };
    let running = demand.shapes.iter().enumerate().flat_map(|(shape, s)| {
        let each = s.running.iter();
        each.map(move |r| (shape, r.replica, r.node))
    });
    let placed = placement
        .assignments
        .iter()
        .map(|a| (a.shape, a.replica, a.node));
    let mut domains: BTreeMap<(usize, u32), Vec<usize>> = BTreeMap::new();
    for (shape, replica, node) in running.chain(placed) {
        let Some(domain) = domain(node) else {
            return Err(format!("node {node} is in no domain of level {at}"));
        };
        let group = match level.scope {
            Scope::Gang => (0, 0),
            Scope::Replica => (shape, replica),
        };
        if *domains.entry(group).or_insert_with(|| domain.clone()) != domain {
            return Err(format!("node {node} is apart from {group:?} at level {at}"));
        }
    }
    Ok(())
}

/// Coverage, and the number of unknown answers.
#[derive(Default)]
struct Seen {
    asked: usize,
    /// Answers with the usual steps, and how many of them are unknown.
    answers: usize,
    unknown: usize,
    parts: BTreeMap<&'static str, usize>,
}

impl Seen {
    fn note(&mut self, raw: &Raw, question: &Question) {
        self.asked += 1;
        let shapes = question.demand.shapes.len();
        let part = match (&*raw.topology, binds(raw, RACK, Scope::Replica)) {
            ([], _) => "no topology",
            ([_], true) => "replicas together",
            ([_, _], true) => "replicas together in a block",
            ([_, _], false) => "block and preferred rack",
            _ if binds(raw, RACK, Scope::Gang) => "gang together",
            _ => "preferred",
        };
        let number = match shapes {
            1 => "one shape",
            2 => "two shapes",
            3 => "three shapes",
            _ => "four shapes",
        };
        let some = |holds: bool, name: &'static str| holds.then_some(name);
        let all = [
            Some(part),
            Some(number),
            some(raw.requests[0].len() == 4, "four resources"),
            some(raw.nodes.len() >= 8, "many nodes"),
            some(raw.running, "running"),
            some(raw.elastic.iter().any(|&e| e > 0), "elastic"),
            some(raw.steps < FEW, "few steps"),
            some(
                question.demand.shapes.iter().any(|s| s.eligible.is_some()),
                "choosy",
            ),
            some(question.demand.excluded.count_ones(..) > 0, "excluded"),
        ];
        for part in all.into_iter().flatten() {
            *self.parts.entry(part).or_default() += 1;
        }
    }

    /// Counts an answer with this step limit.
    fn count<T>(&mut self, steps: u64, answer: &Result<T, Infeasible>) {
        let unknown = matches!(answer, Err(Infeasible::GaveUp { .. }));
        if steps >= FEW {
            self.answers += 1;
            self.unknown += usize::from(unknown);
        }
    }

    /// At most 2 % unknown, and every part was covered.
    fn assert_mixed(self) {
        let Self {
            answers, unknown, ..
        } = self;
        println!("{unknown} of {answers} unknown; {:?}", self.parts);
        for part in MIX {
            let times = self.parts.get(part).copied().unwrap_or_default();
            assert!(times >= self.asked / 30, "hardly any is {part}: {times}");
        }
        assert!(
            unknown <= 1 + answers / 50,
            "{unknown} of {answers} unknown"
        );
    }
}

const MIX: [&str; 14] = [
    "no topology",
    "replicas together in a block",
    "block and preferred rack",
    "preferred",
    "gang together",
    "replicas together",
    "two shapes",
    "three shapes",
    "four shapes",
    "four resources",
    "many nodes",
    "running",
    "elastic",
    "choosy",
];

/// Runs a fraction of the usual number of cases.
fn over(part: u32, check: impl Fn(Raw, &mut Seen) -> Result<(), TestCaseError>) {
    let mut config = runner().config().clone();
    config.cases = config.cases / part + 1;
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let seen = RefCell::new(Seen::default());
    let held = TestRunner::new_with_rng(config, rng)
        .run(&raws(), |raw| check(raw, &mut seen.borrow_mut()));
    assert_eq!(held.map_err(|why| why.to_string()), Ok(()));
    seen.into_inner().assert_mixed();
}

#[test]
fn no_gang_that_fits_is_refused() {
    over(3, |raw, seen| {
        let Some(question) = question(raw.clone(), false) else {
            return Ok(());
        };
        seen.note(&raw, &question);
        let Question {
            cluster, demand, ..
        } = &question;
        let answer = place_within(cluster, demand, raw.steps);
        seen.count(raw.steps, &answer);
        match &answer {
            Ok(placement) => {
                prop_assert_eq!(is_right(cluster, demand, placement), Ok(()));
            }
            Err(Infeasible::GaveUp { .. }) => {}
            Err(no) => prop_assert!(false, "it fits: {no}"),
        }
        let quick = place_if_it_fits(cluster, demand, raw.steps);
        prop_assert_eq!(quick, answer.ok());
        Ok(())
    });
}

#[test]
fn no_gang_that_fits_without_its_victims_is_refused() {
    // Each case costs as much as ten without victims.
    over(10, |raw, seen| {
        let Some(question) = question(raw.clone(), true) else {
            return Ok(());
        };
        seen.note(&raw, &question);
        let Question {
            cluster,
            demand,
            units,
        } = &question;
        for algorithm in [Algorithm::LeastCost, Algorithm::Kep] {
            let usual = PreemptionOptions::default();
            let options = PreemptionOptions {
                algorithm,
                work_budget: raw.steps.min(usual.work_budget),
                ..usual
            };
            let answer = preempt(cluster, units, demand, &options);
            seen.count(raw.steps, &answer);
            match answer {
                Ok(answer) => {
                    let mut after = cluster.clone();
                    for &victim in &answer.victims {
                        for pods in &units.units[victim].pods {
                            after.remove_pod(pods.nodes[0], &pods.request);
                        }
                    }
                    prop_assert_eq!(is_right(&after, demand, &answer.placement), Ok(()));
                }
                Err(Infeasible::GaveUp { .. }) => {}
                Err(no) => prop_assert!(false, "{algorithm:?}: it fits: {no}"),
            }
        }
        Ok(())
    });
}
