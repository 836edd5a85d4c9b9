//! Deterministic clusters of any size for the time benchmarks.

use lockstep_engine::{
    Amounts, Cluster, ClusterNode, Demand, NodeIx, Pods, Scope, Shape, TopologyDemand,
    TopologyStrictness, Unit, Units,
};
use smallvec::smallvec;

/// Nodes of a rack.
pub const RACK: usize = 16;
/// Small pods in addition to the training pods on every node: a cluster of 5,000 nodes has 100,000
/// pods.
const SMALL_PODS: usize = 19;
const GIB: i64 = 1 << 30;

/// A cluster with work on it.
pub struct Scene {
    /// The index.
    pub cluster: Cluster,
    /// Candidates for eviction.
    pub units: Units,
}

/// A deterministic source of random numbers (an LCG by Knuth).
pub struct Dice(u64);

impl Dice {
    /// Starts with a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `below`.
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below.max(1)
    }
}

/// Milli-CPU, bytes, pods, GPUs of a training pod with this number of GPUs.
pub fn training(gpus: i64) -> Amounts {
    smallvec![4_000 * gpus, 32 * GIB * gpus, 1, gpus]
}

/// A small pod without accelerators.
fn small() -> Amounts {
    smallvec![200, GIB / 2, 1, 0]
}

/// Nodes of 8 GPUs in racks of 16, in blocks of 16 racks, with their small pods and no training work.
pub fn idle(nodes: usize) -> Scene {
    let mut cluster = Cluster::new(4, 2);
    for ix in 0..nodes {
        let spec = ClusterNode {
            allocatable: smallvec![64_000, 512 * GIB, 110, 8],
            domains: vec![Some(ix / RACK), Some(ix / RACK / RACK)],
            schedulable: true,
        };
        cluster.upsert_node(ix, &spec);
        for _ in 0..SMALL_PODS {
            cluster.add_pod(ix, &small());
        }
    }
    Scene {
        cluster,
        units: Units::default(),
    }
}

/// As [`idle`], with gangs of whole nodes on all nodes but one in sixteen. A tenth of the used
/// nodes run single pods of one GPU instead.
pub fn busy(nodes: usize, gangs: usize) -> Scene {
    pods_of(nodes, gangs, 1)
}

/// As [`busy`], with this number of pods of each gang on each of its nodes. The number divides 8.
pub fn pods_of(nodes: usize, gangs: usize, pods_per_node: usize) -> Scene {
    let mut scene = idle(nodes);
    let mut dice = Dice::new(nodes as u64 * 31 + gangs as u64);
    let mut order: Vec<NodeIx> = (0..nodes).filter(|n| n % RACK != 0).collect();
    // Most gangs use neighbouring nodes. Some are scattered.
    for _ in 0..nodes / 8 {
        let (a, b) = (
            dice.roll(order.len() as u64) as usize,
            dice.roll(order.len() as u64) as usize,
        );
        order.swap(a, b);
    }
    let mixed = order.split_off(order.len() - order.len() / 10);
    let share = (order.len() / gangs.max(1)).max(1);
    for chunk in order.chunks(share) {
        let on: Vec<NodeIx> = chunk
            .iter()
            .flat_map(|&n| std::iter::repeat_n(n, pods_per_node))
            .collect();
        add(
            &mut scene,
            &mut dice,
            &training(8 / pods_per_node as i64),
            &on,
            chunk.len() as u64 * 8,
        );
    }
    for node in mixed {
        for _ in 0..8 {
            add(&mut scene, &mut dice, &training(1), &[node], 1);
        }
    }
    scene
}

/// As [`idle`], with eight single pods of one GPU on each node.
pub fn single_pods(seed: u64, nodes: usize) -> Scene {
    let mut scene = idle(nodes);
    let mut dice = Dice::new(seed * 6_271 + nodes as u64);
    for node in 0..nodes {
        for _ in 0..8 {
            add(&mut scene, &mut dice, &training(1), &[node], 1);
        }
    }
    scene
}

fn add(scene: &mut Scene, dice: &mut Dice, request: &Amounts, nodes: &[NodeIx], gpus: u64) {
    for &node in nodes {
        scene.cluster.add_pod(node, request);
    }
    scene.units.units.push(Unit {
        pods: vec![Pods {
            request: request.clone(),
            nodes: nodes.to_vec(),
        }],
        priority: [0, 10, 50][dice.roll(3) as usize],
        gang: nodes.len() > 1,
        cost: gpus * (60 + dice.roll(7_200)),
        pdbs: smallvec![],
        start: dice.roll(86_400) as i64,
        cascade: None,
        eligible: None,
        preempts: true,
    });
}

/// Nodes of 8 GPUs in racks of 16, filled by single pods of one to eight GPUs: few nodes are equal,
/// and no rack is free.
pub fn fragmented(seed: u64, nodes: usize) -> Scene {
    let mut dice = Dice::new(seed * 7_919 + nodes as u64);
    let mut cluster = Cluster::new(4, 1);
    let mut units = Units::default();
    for node in 0..nodes {
        let spec = ClusterNode {
            allocatable: smallvec![128_000, 1_024 * GIB, 110, 8],
            domains: vec![Some(node / RACK)],
            schedulable: true,
        };
        cluster.upsert_node(node, &spec);
        // Pods that cannot be evicted.
        let pods = 2 + dice.roll(5) as i64;
        let cpu = 300 * pods + dice.roll(2_000) as i64;
        let stays: Amounts = smallvec![cpu, pods * 2 * GIB, pods, 0];
        cluster.add_pod(node, &stays);
        let mut gpus = 8;
        while gpus > 0 && dice.roll(12) > 0 {
            let held = gpus.min([1, 1, 2, 2, 4, 4, 8][dice.roll(7) as usize]);
            gpus -= held;
            let cpu = 1_000 * held * (4 + dice.roll(8) as i64);
            let memory = GIB * held * (16 + dice.roll(64) as i64);
            let request: Amounts = smallvec![cpu, memory, 1, held];
            cluster.add_pod(node, &request);
            units.units.push(Unit {
                pods: vec![Pods {
                    request,
                    nodes: vec![node],
                }],
                priority: [0, 10][dice.roll(2) as usize],
                gang: false,
                cost: held.unsigned_abs() * (60 + dice.roll(1_740)),
                pdbs: smallvec![],
                start: dice.roll(86_400) as i64,
                cascade: None,
                eligible: None,
                preempts: true,
            });
        }
    }
    Scene { cluster, units }
}

/// Replicas of eight whole nodes and of four half nodes, each within one rack.
pub fn replicas_in_racks(whole: u32, half: u32) -> Demand {
    let replicas = |request: Amounts, size: u32, count: u32| Shape {
        replica_size: size,
        ..Shape::new(request, size * count)
    };
    let shapes = vec![
        replicas(smallvec![96_000, 256 * GIB, 1, 8], 8, whole),
        replicas(smallvec![60_000, 128 * GIB, 1, 4], 4, half),
    ];
    Demand {
        min_count: shapes.iter().map(|s| s.count).sum(),
        shapes,
        topology: vec![TopologyDemand {
            key: 0,
            mode: TopologyStrictness::Required,
            scope: Scope::Replica,
        }],
        ..gang(8, 1)
    }
}

/// A gang of pods with this number of GPUs each.
pub fn gang(gpus: i64, members: u32) -> Demand {
    Demand::homogeneous(training(gpus), members, 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_engine::{PreemptionOptions, preempt};

    #[test]
    fn a_gang_of_a_fifth_of_the_nodes_evicts_all_single_pods_of_its_nodes() {
        let (scene, demand) = (single_pods(1, 50), gang(8, 10));
        let options = PreemptionOptions::default();
        let answer = preempt(&scene.cluster, &scene.units, &demand, &options).unwrap();
        assert_eq!((scene.units.units.len(), answer.victims.len()), (400, 80));
    }
}
