//! Small random instances, and straightforward solutions.

pub mod oracle;
pub mod serve;

use std::sync::Arc;

use lockstep_engine::{
    Cluster, ClusterNode, Demand, EvictionCost, EvictionPolicy, KeyIx, NodeIx, NodeSet, Pods,
    RunningMembers, Scope, Shape, TopologyDemand, TopologyStrictness, Unit, UnitIx, Units, place,
};
use proptest::prelude::*;
use smallvec::{SmallVec, smallvec};

/// An instance: running work, and a gang that needs capacity.
#[derive(Clone, Debug)]
pub struct Question {
    pub cluster: Cluster,
    pub units: Units,
    pub demand: Demand,
}

/// Limits of an instance.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    pub nodes: usize,
    pub units: usize,
    pub shapes: usize,
}

pub const SMALL: Mix = Mix {
    nodes: 4,
    units: 10,
    shapes: 2,
};

const GPUS: i64 = 4;
const CPUS: i64 = 8;
const DOMAINS: usize = 2;
/// More nodes than any instance has.
const MOST_NODES: usize = 8;

#[derive(Clone, Debug)]
struct RawUnit {
    gpus: i64,
    cpus: i64,
    at: Vec<usize>,
    priority: i32,
    cost: u64,
    pdb: Option<usize>,
    cascade: bool,
}

fn raw_unit(mix: Mix) -> impl Strategy<Value = RawUnit> {
    let at = prop_oneof![
        3 => prop::collection::vec(0..mix.nodes, 1),
        2 => prop::collection::vec(0..mix.nodes, 2..4),
    ];
    let cascade = prop::bool::weighted(0.3);
    (
        1..=GPUS,
        0..=2i64,
        at,
        prop::sample::select(vec![0, 10, 10, 50, 50, 200]),
        0..1000u64,
        prop::option::of(0..2usize),
        cascade,
    )
        .prop_map(|(gpus, cpus, at, priority, cost, pdb, cascade)| RawUnit {
            gpus,
            cpus,
            at,
            priority,
            cost,
            pdb,
            cascade,
        })
}

/// No level, one, or two.
fn topology() -> impl Strategy<Value = Vec<TopologyDemand>> {
    let level = |key: KeyIx| {
        let modes = vec![TopologyStrictness::Required, TopologyStrictness::Preferred];
        let scopes = vec![Scope::Gang, Scope::Replica];
        let each = (prop::sample::select(modes), prop::sample::select(scopes));
        each.prop_map(move |(mode, scope)| TopologyDemand { key, mode, scope })
    };
    prop_oneof![
        3 => Just(Vec::new()),
        2 => level(0).prop_map(|one| vec![one]),
        1 => (level(0), level(1)).prop_map(|(outer, inner)| vec![outer, inner]),
    ]
}

/// Domains of a node for both keys: equal racks occur in both blocks.
fn domains(node: NodeIx) -> Vec<Option<usize>> {
    vec![Some(node % DOMAINS), Some(node / DOMAINS % DOMAINS)]
}

/// Domain of a node for a level: the values of the keys of all levels up to this one. `None`
/// without its own label.
pub fn domain_of(
    cluster: &Cluster,
    levels: &[TopologyDemand],
    at: usize,
    node: NodeIx,
) -> Option<Vec<Option<usize>>> {
    cluster.domain(node, levels[at].key)?;
    let outer = levels[..=at].iter();
    Some(outer.map(|l| cluster.domain(node, l.key)).collect())
}

/// Positions of the required levels of a scope.
pub fn required(levels: &[TopologyDemand], scope: Scope) -> impl Iterator<Item = usize> {
    let binds = move |at: &usize| {
        let level = &levels[*at];
        level.mode == TopologyStrictness::Required && level.scope == scope
    };
    (0..levels.len()).filter(binds)
}

#[derive(Clone, Debug)]
struct RawShape {
    gpus: i64,
    cpus: i64,
    replicas: u32,
    size: u32,
    /// Nodes of running members, if they fit.
    running: Vec<NodeIx>,
    /// A node that the shape must not use.
    refused: Option<NodeIx>,
}

fn shape(mix: Mix) -> impl Strategy<Value = RawShape> {
    let running =
        prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec(0..mix.nodes, 1..5)];
    let refused = prop::option::weighted(0.2, 0..mix.nodes);
    (1..=GPUS, 0..=3i64, 1..4u32, 1..4u32, running, refused).prop_map(
        |(gpus, cpus, replicas, size, running, refused)| RawShape {
            gpus,
            cpus,
            replicas,
            size,
            running,
            refused,
        },
    )
}

/// Random instances. Units that do not fit are left out. Some nodes have lost accelerators since,
/// so they are overcommitted.
pub fn question(mix: Mix) -> impl Strategy<Value = Question> {
    let shapes = prop::collection::vec(shape(mix), 1..=mix.shapes);
    let excluded = prop::option::weighted(0.1, 0..mix.nodes);
    (
        2..=mix.nodes,
        prop::collection::vec(raw_unit(mix), mix.units / 2..=mix.units),
        shapes,
        topology(),
        prop::collection::vec(0..3u32, 2),
        (
            prop::bool::weighted(0.95),
            0..3u32,
            prop::sample::select(vec![50, 100, 100, 100]),
            excluded,
        ),
        (
            prop::bool::weighted(0.3),
            prop::collection::vec((0..mix.nodes, 0..GPUS), 0..3),
            prop::bool::weighted(0.15),
        ),
    )
        .prop_map(
            |(
                nodes,
                raw,
                shapes,
                topology,
                pdb_allowed,
                (preempts, elastic, priority, excluded),
                (cascades, lost, shrinks),
            )| {
                let mut cluster = Cluster::new(2, 2);
                for ix in 0..nodes {
                    let spec = ClusterNode {
                        allocatable: smallvec![CPUS, GPUS],
                        domains: domains(ix),
                        schedulable: true,
                    };
                    cluster.upsert_node(ix, &spec);
                }
                let running: Vec<Vec<NodeIx>> = shapes.iter().map(|s| s.running.clone()).collect();
                let mut demand = demand(shapes, topology, preempts, elastic, priority);
                for (shape, nodes) in running.into_iter().enumerate() {
                    for node in nodes {
                        run_member(&mut cluster, &mut demand, shape, node);
                    }
                }
                let mut units = Units {
                    units: Vec::new(),
                    pdb_allowed,
                    cascade_loss: vec![700],
                };
                for (ix, mut raw) in raw.into_iter().enumerate() {
                    raw.cascade &= cascades;
                    add_unit(&mut cluster, &mut units, raw, ix as i64);
                }
                for (node, gpus) in lost {
                    if shrinks && node < nodes {
                        let spec = ClusterNode {
                            allocatable: smallvec![CPUS, gpus],
                            domains: domains(node),
                            schedulable: true,
                        };
                        cluster.upsert_node(node, &spec);
                    }
                }
                demand.excluded.extend(excluded);
                Question {
                    cluster,
                    units,
                    demand,
                }
            },
        )
}

fn add_unit(cluster: &mut Cluster, units: &mut Units, raw: RawUnit, start: i64) {
    let request: SmallVec<[i64; 6]> = smallvec![raw.cpus, raw.gpus];
    let mut placed = Vec::new();
    for node in raw.at {
        let free = cluster.free(node);
        if free.len() == 2 && free[0] >= raw.cpus && free[1] >= raw.gpus {
            cluster.add_pod(node, &request);
            placed.push(node);
        }
    }
    if placed.is_empty() {
        return;
    }
    units.units.push(Unit {
        gang: placed.len() > 1,
        pdbs: raw
            .pdb
            .map(|p| (p, placed.len() as u32))
            .into_iter()
            .collect(),
        pods: vec![Pods {
            request,
            nodes: placed,
        }],
        priority: raw.priority,
        cost: raw.cost,
        start,
        cascade: raw.cascade.then_some(0),
        eligible: None,
        preempts: false,
    });
}

/// Starts a member on a node if the node has capacity, the gang has a member left, and the topology
/// permits it.
fn run_member(cluster: &mut Cluster, demand: &mut Demand, shape: usize, node: NodeIx) {
    let together = |scope: Scope, other: NodeIx| {
        required(&demand.topology, scope).all(|at| {
            let domain = |node| domain_of(cluster, &demand.topology, at, node);
            domain(other) == domain(node)
        })
    };
    let spec = &demand.shapes[shape];
    let mut running = demand.shapes.iter().flat_map(|s| &s.running);
    if !oracle::one_more_fits(cluster, demand, spec, node)
        || !running.all(|r| together(Scope::Gang, r.node))
    {
        return;
    }
    let (replicas, size) = if demand.by_replica() {
        (spec.count / spec.replica_size, spec.replica_size)
    } else {
        (1, spec.count)
    };
    let replica = (0..replicas).find(|&replica| {
        let members = || spec.running.iter().filter(|r| r.replica == replica);
        let together = members().all(|r| together(Scope::Replica, r.node));
        members().map(|r| r.count).sum::<u32>() < size && together
    });
    let Some(replica) = replica else { return };
    cluster.add_pod(node, &spec.request);
    let running = &mut demand.shapes[shape].running;
    match running
        .iter_mut()
        .find(|r| (r.replica, r.node) == (replica, node))
    {
        Some(known) => known.count += 1,
        None => running.push(RunningMembers {
            replica,
            node,
            count: 1,
        }),
    }
}

fn demand(
    shapes: Vec<RawShape>,
    topology: Vec<TopologyDemand>,
    preempts: bool,
    elastic: u32,
    priority: i32,
) -> Demand {
    let mut shapes: Vec<Shape> = shapes
        .into_iter()
        .map(|raw| {
            let mut shape = Shape::new([raw.cpus, raw.gpus].as_slice(), raw.replicas * raw.size);
            shape.replica_size = raw.size;
            shape.eligible = raw.refused.map(|node| {
                let mut all: NodeSet = (0..MOST_NODES).collect();
                all.remove(node);
                Arc::new(all)
            });
            shape.min = shape.count.saturating_sub(elastic).max(1);
            shape
        })
        .collect();
    let min_count = shapes.iter().map(|s| s.min).sum();
    if elastic == 2 {
        // Any members count.
        for shape in &mut shapes {
            shape.min = 0;
        }
    }
    Demand {
        min_count,
        shapes,
        priority,
        preemption: if preempts {
            EvictionPolicy::LowerPriority
        } else {
            EvictionPolicy::Never
        },
        topology,
        excluded: NodeSet::new(),
    }
}

impl Question {
    pub fn without(&self, victims: &[UnitIx]) -> Cluster {
        let mut cluster = self.cluster.clone();
        for &unit in victims {
            for pods in &self.units.units[unit].pods {
                for &node in &pods.nodes {
                    cluster.remove_pod(node, &pods.request);
                }
            }
        }
        cluster
    }

    pub fn candidates(&self) -> Vec<UnitIx> {
        (0..self.units.units.len())
            .filter(|&u| self.units.units[u].priority < self.demand.priority)
            .collect()
    }

    /// True if the gang fits without these units.
    pub fn fits_without(&self, victims: &[UnitIx]) -> bool {
        place(&self.without(victims), &self.demand).is_ok()
    }

    /// Least cost of all candidate sets up to a priority, by enumeration.
    pub fn best_by_enumeration(&self, bound: Option<i32>) -> Option<EvictionCost> {
        let pool: Vec<UnitIx> = self
            .candidates()
            .into_iter()
            .filter(|&u| bound.is_none_or(|b| self.units.units[u].priority <= b))
            .collect();
        (0u32..1 << pool.len())
            .filter_map(|bits| {
                let set: Vec<UnitIx> = pool
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| bits >> i & 1 == 1)
                    .map(|(_, &u)| u)
                    .collect();
                self.fits_without(&set)
                    .then(|| self.units.eviction_cost(&set))
            })
            .min()
    }
}
