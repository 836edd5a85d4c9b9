//! Gangs of two to four shapes with a planted answer: each fits, by construction.
//!
//! The nodes for the gang are filled with random members until no further member fits. The
//! remaining capacity is removed, so that few other packings exist. Nodes come in three kinds.
//! Everything else in the cluster is full.

use lockstep_engine::{Amounts, Cluster, ClusterNode, Demand, NodeIx, Pods, Shape, Unit, Units};
use smallvec::smallvec;

use crate::scenes::{Dice, Scene};

const GIB: i64 = 1 << 30;
/// Capacity of nodes: milli-CPU, bytes, pods, GPUs.
const KINDS: [[i64; 4]; 3] = [
    [64_000, 512 * GIB, 110, 8],
    [96_000, 768 * GIB, 110, 8],
    [48_000, 256 * GIB, 110, 4],
];

/// State of the nodes for the planted gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// The nodes are free.
    Free,
    /// Work of lower priority runs on these nodes and on the same number of other nodes.
    Held,
    /// The gang has one member more than planted, and nothing else is free, so that the answer is
    /// usually no.
    Short,
}

/// A gang of this number of shapes on a share of the nodes (in tenths).
pub fn planted(
    seed: u64,
    nodes: usize,
    shapes: usize,
    tenths: usize,
    room: Room,
) -> (Scene, Demand) {
    let mut dice = Dice::new(seed * 7_919 + nodes as u64 * 31 + shapes as u64);
    (0..8).for_each(|_| {
        dice.roll(2);
    });
    let shapes: Vec<Amounts> = (0..shapes).map(|ix| shape(&mut dice, ix)).collect();
    let (used, mut order): (_, Vec<NodeIx>) = ((nodes * tenths / 10).max(1), (0..nodes).collect());
    for at in (1..nodes).rev() {
        order.swap(at, dice.roll(at as u64 + 1) as usize);
    }
    let mut counts = vec![0_u32; shapes.len()];
    let mut cluster = Cluster::new(4, 0);
    let mut units = Units::default();
    let mut planted_on = Vec::new();
    for node in 0..nodes {
        let kind = KINDS[dice.roll(3) as usize];
        let spec = ClusterNode {
            allocatable: Amounts::from_slice(&kind),
            domains: Vec::new(),
            schedulable: true,
        };
        cluster.upsert_node(node, &spec);
        // Some capacity remains in use on most nodes.
        let stays: Amounts = smallvec![
            500 * dice.roll(9) as i64,
            GIB * dice.roll(17) as i64,
            3,
            dice.roll(5) as i64 / 4
        ];
        cluster.add_pod(node, &stays);
    }
    for (at, &node) in order.iter().enumerate() {
        let mut held: Amounts = smallvec![0; 4];
        if at < used {
            let mut left: Amounts = cluster.free(node).into();
            loop {
                let fitting: Vec<usize> = (0..shapes.len())
                    .filter(|&s| left.iter().zip(&shapes[s]).all(|(l, a)| l >= a))
                    .collect();
                if fitting.is_empty() {
                    break;
                }
                let s = fitting[dice.roll(fitting.len() as u64) as usize];
                counts[s] += 1;
                for ((l, h), a) in left.iter_mut().zip(&mut held).zip(&shapes[s]) {
                    *l -= a;
                    *h += a;
                }
            }
            // Half of the remaining capacity is removed, for little slack.
            let lost: Amounts = left.iter().map(|l| l - l / 2).collect();
            cluster.add_pod(node, &lost);
            planted_on.push((node, held));
        } else if room == Room::Held && at < 2 * used {
            let free: Amounts = cluster.free(node).into();
            planted_on.push((node, free));
        } else {
            let free: Amounts = cluster.free(node).into();
            cluster.add_pod(node, &free);
        }
    }
    if room == Room::Held {
        // Gangs of up to eight nodes use all of it.
        let mut rest = planted_on.as_slice();
        while !rest.is_empty() {
            let (own, more) = rest.split_at((1 + dice.roll(8) as usize).min(rest.len()));
            rest = more;
            let gpus: i64 = own.iter().map(|(_, held)| held[3]).sum();
            for (node, held) in own {
                cluster.add_pod(*node, held);
            }
            units.units.push(Unit {
                pods: own
                    .iter()
                    .map(|(node, held)| Pods {
                        request: held.clone(),
                        nodes: vec![*node],
                    })
                    .collect(),
                priority: 10,
                gang: own.len() > 1,
                cost: gpus.unsigned_abs() * (60 + dice.roll(7_200)),
                pdbs: smallvec![],
                start: dice.roll(86_400) as i64,
                cascade: None,
                eligible: None,
                preempts: false,
            });
        }
    }
    let more = u32::from(room == Room::Short);
    let shapes: Vec<Shape> = shapes
        .into_iter()
        .zip(counts)
        .filter(|&(_, count)| count > 0)
        .enumerate()
        .map(|(ix, (request, count))| Shape::new(request, count + if ix == 0 { more } else { 0 }))
        .collect();
    let demand = Demand {
        min_count: shapes.iter().map(|s| s.count).sum(),
        shapes,
        ..Demand::homogeneous([1].as_slice(), 1, 100)
    };
    (Scene { cluster, units }, demand)
}

/// A shape between a driver without GPUs and a trainer that fills a node.
fn shape(dice: &mut Dice, ix: usize) -> Amounts {
    let gpus = if ix == 0 {
        2 + dice.roll(4)
    } else {
        dice.roll(5)
    } as i64;
    let cpu = 1_000 * (1 + dice.roll(6) as i64) * gpus.max(2);
    smallvec![
        cpu,
        GIB * (4 + 4 * dice.roll(12) as i64) * gpus.max(1),
        1,
        gpus
    ]
}
