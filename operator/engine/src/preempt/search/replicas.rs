//! Replicas that must each share a domain: a placement with which the gang fits, for a changing set
//! of victims.
//!
//! A placement of all replicas visits every node, so it is kept while victims are restored. A
//! victim on other nodes can stay. A victim on a node of a replica can stay if that replica fits
//! elsewhere.

use std::rc::Rc;

use smallvec::SmallVec;

use crate::{
    placement::{
        PlacementInstance, levels::LevelDomains, merged, pack::best_fit, place_in,
        shape_pods::ShapePods,
    },
    problem::{Assignment, DomainIx, GangPlacement, NodeIx, ShapeIx},
};

/// Steps per node of a placement of all replicas.
const PLACING: u64 = 4;
/// One placement of all replicas may take one part in so many of the steps.
const AGAIN: u64 = 16;

#[derive(Clone)]
struct PlacedReplica {
    shape: ShapeIx,
    replica: u32,
    /// Nodes with the number of its pods there.
    nodes: Vec<(NodeIx, u32)>,
}

/// The needed replicas in a placement, updated with the free capacity.
#[derive(Clone)]
pub(super) struct ReplicaPlacement<'a> {
    placement: &'a PlacementInstance<'a>,
    level: &'a LevelDomains,
    /// Usable nodes by domain.
    domains: Rc<[Vec<NodeIx>]>,
    left: Vec<i64>,
    /// Slots in `left`, by shape and node.
    slots: Vec<Vec<u32>>,
    /// Slots in `left`, by shape and domain.
    in_domain: Vec<Vec<u64>>,
    placed: Vec<PlacedReplica>,
    on_node: Vec<SmallVec<[usize; 2]>>,
    /// Nodes of placed replicas that may have lost their capacity.
    unchecked: Vec<NodeIx>,
    /// `placed` at the last [`ReplicaPlacement::begin`].
    at_begin: Vec<PlacedReplica>,
    pub steps: u64,
}

impl<'a> ReplicaPlacement<'a> {
    pub fn new(placement: &'a PlacementInstance<'a>, level: &'a LevelDomains) -> Self {
        let (nodes, shapes) = (
            placement.cluster.node_count(),
            placement.demand.shapes.len(),
        );
        let domains = level.group(&placement.nodes);
        let mut replicas = Self {
            placement,
            level,
            left: placement.cluster.free_table().to_vec(),
            slots: vec![vec![0; nodes]; shapes],
            in_domain: vec![vec![0; domains.len()]; shapes],
            domains: domains.into(),
            placed: Vec::new(),
            on_node: vec![SmallVec::new(); nodes],
            unchecked: Vec::new(),
            at_begin: Vec::new(),
            steps: 0,
        };
        for &node in &placement.nodes {
            replicas.recount(node);
        }
        replicas
    }

    pub fn shift(&mut self, node: NodeIx, amounts: &[i64], sign: i64) {
        let dims = self.placement.cluster.dims();
        for (left, amount) in self.left[node * dims..].iter_mut().zip(amounts) {
            *left += sign * amount;
        }
        if sign < 0 && !self.on_node[node].is_empty() {
            self.unchecked.push(node);
        }
        self.recount(node);
    }

    /// Starts a change that [`ReplicaPlacement::undo`] reverts.
    pub fn begin(&mut self) {
        self.at_begin = self.placed.clone();
    }

    /// Reverts to the placement at the last [`ReplicaPlacement::begin`]. The caller has reverted
    /// the free capacity.
    pub fn undo(&mut self) {
        let at_begin = std::mem::take(&mut self.at_begin);
        self.set(at_begin);
    }

    /// True if the placement is valid, after replicas without capacity have moved. Keeps the other
    /// replicas in place.
    pub fn still_fit(&mut self) -> bool {
        if self.placed.is_empty() {
            return false;
        }
        while let Some(node) = self.unchecked.pop() {
            self.steps += 1;
            while let Some(replica) = self.without_capacity(node) {
                if !self.move_elsewhere(replica) {
                    self.unchecked.push(node);
                    return false;
                }
            }
        }
        true
    }

    /// Places all replicas in this free capacity. False if no placement is found; the old placement
    /// then remains.
    pub fn place_again(&mut self, free: &[i64]) -> bool {
        self.steps += self.placement.nodes.len() as u64 * PLACING;
        let steps = &self.placement.steps;
        let place = || place_in(self.placement, free.to_vec());
        let Ok(whole) = steps.share(steps.left() / AGAIN, place) else {
            return false;
        };
        self.adopt(&whole);
        true
    }

    /// Replaces the placement with one that is valid in this free capacity.
    pub fn adopt(&mut self, whole: &GangPlacement) {
        self.set(self.needed_of(whole));
        self.unchecked.clear();
    }

    /// Drops the placement, and returns the needed replicas, largest first. `None` if running
    /// members bind some of them.
    pub fn clear(&mut self) -> Option<Vec<ShapePods>> {
        let demand = self.placement.demand;
        if demand.shapes.iter().any(|shape| !shape.running.is_empty()) {
            return None;
        }
        self.set(Vec::new());
        let mut replica_pods = Vec::new();
        for (shape, needed) in demand.needed().into_iter().enumerate() {
            let count = demand.shapes[shape].replica_size;
            let replicas = needed.div_ceil(count) as usize;
            replica_pods.extend(std::iter::repeat_n(ShapePods { shape, count }, replicas));
        }
        let part =
            |pods: &ShapePods| i128::from(pods.count) * self.placement.scarce[pods.shape].part;
        replica_pods.sort_by_key(|pods| std::cmp::Reverse(part(pods)));
        Some(replica_pods)
    }

    pub fn place(&mut self, pods: ShapePods, domain: DomainIx) {
        let nodes = &self.domains[domain];
        let (assigned, _) = best_fit(self.placement, &mut self.left, nodes, pods);
        let before = self.placed.iter().filter(|r| r.shape == pods.shape);
        self.placed.push(PlacedReplica {
            shape: pods.shape,
            replica: before.count() as u32,
            nodes: assigned.iter().map(|a| (a.node, a.count)).collect(),
        });
        self.index(self.placed.len() - 1, true);
    }

    pub fn domains(&self) -> Rc<[Vec<NodeIx>]> {
        Rc::clone(&self.domains)
    }

    pub fn domain(&self, node: NodeIx) -> Option<DomainIx> {
        let domain = self.level.of(node);
        domain.filter(|&domain| domain < self.domains.len())
    }

    pub fn left(&self, node: NodeIx) -> &[i64] {
        self.placement.free_on(&self.left, node)
    }

    pub fn slots_on(&self, shape: ShapeIx, node: NodeIx) -> u32 {
        self.slots[shape][node]
    }

    pub fn slots_in(&self, shape: ShapeIx, domain: DomainIx) -> u64 {
        self.in_domain[shape][domain]
    }

    pub fn current(&mut self) -> Option<GangPlacement> {
        if !self.still_fit() {
            return None;
        }
        let mut assigned = Vec::new();
        for replica in &self.placed {
            assigned.extend(replica.nodes.iter().map(|&(node, count)| Assignment {
                shape: replica.shape,
                replica: replica.replica,
                node,
                count,
            }));
        }
        Some(merged(assigned))
    }

    /// A replica on the node with too little capacity there, if any.
    fn without_capacity(&self, node: NodeIx) -> Option<usize> {
        let left = self.placement.free_on(&self.left, node);
        let lacks = |replica: &usize| {
            let shape = &self.placement.demand.shapes[self.placed[*replica].shape];
            let mut each = shape.request.iter().zip(left);
            each.any(|(&request, &left)| request > 0 && left < 0)
        };
        self.on_node[node].iter().copied().find(lacks)
    }

    /// Moves a replica to the domain with the fewest sufficient slots. False without such a domain,
    /// or if running members bind the replica.
    fn move_elsewhere(&mut self, replica: usize) -> bool {
        let shape = self.placed[replica].shape;
        if !self.placement.demand.shapes[shape].running.is_empty() {
            return false;
        }
        let count = self.placed[replica]
            .nodes
            .iter()
            .map(|(_, count)| count)
            .sum();
        self.take(replica, -1);
        self.steps += self.domains.len() as u64;
        let slots = self.in_domain[shape].iter().copied().enumerate();
        let sufficient = slots.filter(|&(_, slots)| slots >= u64::from(count));
        let chosen = sufficient.min_by_key(|&(domain, slots)| (slots, domain));
        let Some((domain, _)) = chosen else {
            self.take(replica, 1);
            return false;
        };
        let nodes = &self.domains[domain];
        self.steps += nodes.len() as u64;
        let pods = ShapePods { shape, count };
        let (assigned, _) = best_fit(self.placement, &mut self.left, nodes, pods);
        self.placed[replica].nodes = assigned.iter().map(|a| (a.node, a.count)).collect();
        self.index(replica, true);
        true
    }

    fn set(&mut self, new: Vec<PlacedReplica>) {
        for replica in 0..self.placed.len() {
            self.take(replica, -1);
        }
        self.placed = new;
        self.unchecked.clear();
        for replica in 0..self.placed.len() {
            self.take(replica, 1);
            let nodes = self.placed[replica].nodes.iter();
            self.unchecked.extend(nodes.map(|&(node, _)| node));
        }
    }

    /// Takes the capacity of a replica on its nodes; with -1, releases it.
    fn take(&mut self, replica: usize, sign: i64) {
        let PlacedReplica { shape, nodes, .. } = &self.placed[replica];
        let spec = &self.placement.demand.shapes[*shape];
        for &(node, count) in nodes {
            let count = sign * i64::from(count);
            self.placement.take(&mut self.left, node, spec, count);
        }
        self.index(replica, sign > 0);
    }

    /// Adds a replica to its nodes or removes it, after their capacity has changed.
    fn index(&mut self, replica: usize, placed: bool) {
        for at in 0..self.placed[replica].nodes.len() {
            let (node, _) = self.placed[replica].nodes[at];
            if placed {
                self.on_node[node].push(replica);
            } else {
                self.on_node[node].retain(|other| *other != replica);
            }
            self.recount(node);
        }
    }

    fn recount(&mut self, node: NodeIx) {
        let Some(domain) = self.domain(node) else {
            return;
        };
        for (ix, shape) in self.placement.demand.shapes.iter().enumerate() {
            let now = self.placement.slots_on(&self.left, ix, shape, node);
            let before = std::mem::replace(&mut self.slots[ix][node], now);
            if now != before {
                let slots = &mut self.in_domain[ix][domain];
                *slots = *slots + u64::from(now) - u64::from(before);
            }
        }
    }

    /// As many replicas of a placement as the gang needs.
    fn needed_of(&self, whole: &GangPlacement) -> Vec<PlacedReplica> {
        let mut needed = self.placement.demand.needed();
        let each = whole
            .assignments
            .chunk_by(|a, b| (a.shape, a.replica) == (b.shape, b.replica));
        let mut placed = Vec::new();
        for pods in each {
            let shape = pods[0].shape;
            if needed[shape] > 0 {
                let count = pods.iter().map(|a| a.count).sum();
                needed[shape] = needed[shape].saturating_sub(count);
                placed.push(PlacedReplica {
                    shape,
                    replica: pods[0].replica,
                    nodes: pods.iter().map(|a| (a.node, a.count)).collect(),
                });
            }
        }
        placed
    }
}

#[cfg(test)]
mod tests;
