//! Gangs whose replicas must each share a rack, with a planted answer: each fits, by construction.
//!
//! Replicas drawn at random fill racks of 16 nodes until no more fit. Filler pods take what is left
//! over, so that the planted gang fills at least 95 % of the capacity that it may use.

use lockstep_engine::{
    Amounts, Cluster, ClusterNode, Demand, NodeIx, Pods, Scope, Shape, TopologyDemand,
    TopologyStrictness, Unit, Units,
};
use smallvec::smallvec;

use crate::scenes::{Dice, RACK, Scene};

const GIB: i64 = 1 << 30;
/// Offer of a node: milli-CPU, bytes, pods, GPUs.
const NODE: [i64; 4] = [128_000, 1_024 * GIB, 110, 8];
/// One part in so many of the capacity may remain free.
const SPARE: i64 = 20;

/// Work on the racks of the planted gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// None: the gang fits into free capacity.
    No,
    /// Pods of lower priority hold the capacity of every planted replica.
    ByPods,
}

/// A group to plant.
struct Group {
    request: Amounts,
    /// Pods of a replica.
    size: u32,
    replicas: u32,
}

/// A gang of two or three groups over this many racks.
///
/// # Panics
/// A planted replica does not fit.
pub fn planted_in_racks(seed: u64, racks: usize, held: Held) -> (Scene, Demand) {
    let mut dice = Dice::new(seed * 7_919 + racks as u64);
    (0..8).for_each(|_| {
        dice.roll(2);
    });
    let mut groups = groups(&mut dice, seed);
    let mut scene = Scene {
        cluster: Cluster::new(4, 1),
        units: Units::default(),
    };
    let whole_nodes = groups.iter().all(|g| g.request[3] == 8);
    let (mut offered, mut spare) = (0, 0);
    for rack in 0..racks {
        let nodes: Vec<NodeIx> = (rack * RACK..(rack + 1) * RACK).collect();
        let mut left = Vec::new();
        for &node in &nodes {
            let spec = ClusterNode {
                allocatable: Amounts::from_slice(&NODE),
                domains: vec![Some(rack)],
                schedulable: true,
            };
            scene.cluster.upsert_node(node, &spec);
            hold_a_part(&mut scene.cluster, &mut dice, node, whole_nodes);
            left.push(Amounts::from_slice(scene.cluster.free(node)));
        }
        offered += left.iter().map(|l| l[3]).sum::<i64>();
        while let Some(group) = any_that_fits(&groups, &left, &mut dice) {
            let group = &mut groups[group];
            put(&mut left, group).expect("the replica fits");
            group.replicas += 1;
        }
        // Filler pods on the emptiest nodes.
        spare += left.iter().map(|l| l[3]).sum::<i64>();
        for at in 0..left.len() {
            if spare * SPARE > offered {
                let filler = left[at].clone();
                scene.cluster.add_pod(nodes[at], &filler);
                spare -= filler[3];
                left[at] = smallvec![0; 4];
            }
        }
        if held == Held::ByPods {
            for (&node, left) in nodes.iter().zip(&left) {
                let free = scene.cluster.free(node).iter();
                let planted: Amounts = free.zip(left).map(|(f, l)| f - l).collect();
                if planted[3] > 0 {
                    hold(&mut scene, &mut dice, node, &planted);
                }
            }
        }
    }
    (scene, demand(groups))
}

/// Two or three groups: of whole nodes, of parts of nodes that are multiples of each other, or of
/// any parts.
fn groups(dice: &mut Dice, seed: u64) -> Vec<Group> {
    let count = 2 + seed % 2;
    let mut sizes: Vec<u32> = (2..=8).collect();
    let mut gpus: Vec<i64> = match seed / 2 % 3 {
        0 => vec![8; 3],
        1 => vec![8, 4, 2],
        _ => (1..=7).collect(),
    };
    let mut draw = |from: usize| dice.roll(from as u64) as usize;
    let groups = (0..count).map(|_| {
        let gpus = gpus.swap_remove(draw(gpus.len()));
        let cpu_each = if seed / 2 % 3 == 1 {
            8
        } else {
            6 + draw(8) as i64
        };
        Group {
            request: smallvec![1_000 * cpu_each * gpus, 32 * GIB * gpus, 1, gpus],
            size: sizes.swap_remove(draw(sizes.len())),
            replicas: 0,
        }
    });
    groups.collect()
}

/// Work that stays: on some nodes all GPUs, and on others a part.
fn hold_a_part(cluster: &mut Cluster, dice: &mut Dice, node: NodeIx, whole_nodes: bool) {
    let gpus = match dice.roll(8) {
        0 => 8,
        1 | 2 if !whole_nodes => dice.roll(8) as i64,
        _ => 0,
    };
    let stays: Amounts = smallvec![1_000 * (gpus + dice.roll(9) as i64), GIB * 16, 3, gpus];
    cluster.add_pod(node, &stays);
}

/// A group with a replica that fits into the rack.
fn any_that_fits(groups: &[Group], left: &[Amounts], dice: &mut Dice) -> Option<usize> {
    let fitting = (0..groups.len()).filter(|&g| put(&mut left.to_vec(), &groups[g]).is_some());
    let fitting: Vec<usize> = fitting.collect();
    let chosen = dice.roll(fitting.len() as u64) as usize;
    fitting.get(chosen).copied()
}

/// Puts the pods of a replica one by one on the node with least GPUs. `None` if they do not fit.
fn put(left: &mut [Amounts], group: &Group) -> Option<()> {
    for _ in 0..group.size {
        let fits = |l: &&mut Amounts| l.iter().zip(&group.request).all(|(l, r)| l >= r);
        let node = left.iter_mut().filter(fits).min_by_key(|l| l[3])?;
        for (left, request) in node.iter_mut().zip(&group.request) {
            *left -= request;
        }
    }
    Some(())
}

/// Two pods of lower priority hold the amounts on a node.
fn hold(scene: &mut Scene, dice: &mut Dice, node: NodeIx, amounts: &Amounts) {
    let half: Amounts = amounts.iter().map(|a| a / 2).collect();
    let rest: Amounts = amounts.iter().zip(&half).map(|(a, h)| a - h).collect();
    for request in [half, rest] {
        scene.cluster.add_pod(node, &request);
        scene.units.units.push(Unit {
            priority: [0, 10][dice.roll(2) as usize],
            gang: false,
            cost: request[3].unsigned_abs() * (60 + dice.roll(7_200)),
            pods: vec![Pods {
                request,
                nodes: vec![node],
            }],
            pdbs: smallvec![],
            start: dice.roll(86_400) as i64,
            cascade: None,
            eligible: None,
            preempts: false,
        });
    }
}

fn demand(groups: Vec<Group>) -> Demand {
    let planted = groups.into_iter().filter(|g| g.replicas > 0);
    let shapes: Vec<Shape> = planted
        .map(|g| Shape {
            replica_size: g.size,
            ..Shape::new(g.request, g.size * g.replicas)
        })
        .collect();
    Demand {
        min_count: shapes.iter().map(|s| s.count).sum(),
        shapes,
        topology: vec![TopologyDemand {
            key: 0,
            mode: TopologyStrictness::Required,
            scope: Scope::Replica,
        }],
        ..Demand::homogeneous([1].as_slice(), 1, 100)
    }
}
