//! The nodes, what they have and what is left of it, kept up to date pod by pod.

use std::sync::Arc;

use crate::problem::{Amounts, DimIx, DomainIx, GangPlacement, KeyIx, NodeIx, NodeSet, Shape};

/// What the cluster knows of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    /// What the node offers, one amount per dimension.
    pub allocatable: Amounts,
    /// The node's domain for each topology key in use; `None` where it carries no label.
    pub domains: Vec<Option<DomainIx>>,
    /// Whether it takes new pods (not cordoned, ready).
    pub schedulable: bool,
}

/// Nodes with their free capacity. Every change costs O(dimensions); a copy costs nothing before one of
/// the two changes, and one flat vector then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    dims: usize,
    keys: usize,
    /// Offered less held, node after node. Below zero where pods were counted before their node, or
    /// a node shrank.
    free: Arc<Vec<i64>>,
    /// Apart from what is free: that changes with every pod.
    nodes: Arc<Nodes>,
}

/// The nodes, whatever runs on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Nodes {
    /// Offered, node after node.
    allocatable: Vec<i64>,
    /// Domain per key, node after node.
    domains: Vec<Option<DomainIx>>,
    schedulable: NodeSet,
}

impl Cluster {
    /// A cluster without nodes, for this many resource dimensions and topology keys.
    pub fn new(dims: usize, topology_keys: usize) -> Self {
        Self {
            dims,
            keys: topology_keys,
            free: Arc::default(),
            nodes: Arc::default(),
        }
    }

    /// Resource dimensions.
    pub fn dims(&self) -> usize {
        self.dims
    }

    /// Topology keys.
    pub fn topology_keys(&self) -> usize {
        self.keys
    }

    /// One more than the largest node ordinal seen; removed nodes leave a hole that offers nothing.
    pub fn node_count(&self) -> usize {
        self.nodes.schedulable.len()
    }

    /// Adds a node or changes what it offers; pods already counted on it stay counted. Missing
    /// dimensions are zero.
    pub fn upsert_node(&mut self, node: NodeIx, spec: &ClusterNode) {
        self.grow(node);
        let (free, nodes) = (
            Arc::make_mut(&mut self.free),
            Arc::make_mut(&mut self.nodes),
        );
        let base = node * self.dims;
        for dim in 0..self.dims {
            let new = spec.allocatable.get(dim).copied().unwrap_or(0);
            free[base + dim] += new - nodes.allocatable[base + dim];
            nodes.allocatable[base + dim] = new;
        }
        for key in 0..self.keys {
            nodes.domains[node * self.keys + key] = spec.domains.get(key).copied().flatten();
        }
        nodes.schedulable.set(node, spec.schedulable);
    }

    /// Takes a node away. Its pods stay counted until they are removed, so that its ordinal may
    /// come back.
    pub fn remove_node(&mut self, node: NodeIx) {
        let gone = ClusterNode {
            allocatable: Amounts::new(),
            domains: Vec::new(),
            schedulable: false,
        };
        self.upsert_node(node, &gone);
    }

    /// Counts a pod that holds capacity on a node, which need not be known yet.
    pub fn add_pod(&mut self, node: NodeIx, request: &[i64]) {
        self.hold(node, request, 1);
    }

    /// Forgets a pod counted before.
    pub fn remove_pod(&mut self, node: NodeIx, request: &[i64]) {
        self.hold(node, request, -1);
    }

    /// Reserves the capacity of a placement until its pods are counted themselves.
    pub fn reserve(&mut self, shapes: &[Shape], placement: &GangPlacement) {
        self.hold_placement(shapes, placement, 1);
    }

    /// Releases what [`Cluster::reserve`] reserved.
    pub fn release(&mut self, shapes: &[Shape], placement: &GangPlacement) {
        self.hold_placement(shapes, placement, -1);
    }

    /// What is left on a node, one amount per dimension; below zero where it is overcommitted.
    pub fn free(&self, node: NodeIx) -> &[i64] {
        self.free
            .get(node * self.dims..(node + 1) * self.dims)
            .unwrap_or(&[])
    }

    /// What a node offers, one amount per dimension.
    pub fn allocatable(&self, node: NodeIx) -> &[i64] {
        let offered = &self.nodes.allocatable;
        offered
            .get(node * self.dims..(node + 1) * self.dims)
            .unwrap_or(&[])
    }

    /// What all nodes offer of one resource.
    pub fn offered(&self, dim: DimIx) -> i128 {
        let of_nodes = self
            .nodes
            .allocatable
            .iter()
            .skip(dim)
            .step_by(self.dims.max(1));
        of_nodes.map(|&amount| i128::from(amount)).sum()
    }

    /// The domain of a node for a key.
    pub fn domain(&self, node: NodeIx, key: KeyIx) -> Option<DomainIx> {
        if key >= self.keys {
            return None;
        }
        let domain = self.nodes.domains.get(node * self.keys + key);
        domain.copied().flatten()
    }

    /// One more than the largest domain ordinal of a key.
    pub fn domain_count(&self, key: KeyIx) -> usize {
        (0..self.node_count())
            .filter_map(|n| self.domain(n, key))
            .max()
            .map_or(0, |d| d + 1)
    }

    /// Whether a node takes new pods.
    pub fn schedulable(&self, node: NodeIx) -> bool {
        self.nodes.schedulable.contains(node)
    }

    /// The nodes that take new pods.
    pub(crate) fn schedulable_nodes(&self) -> &NodeSet {
        &self.nodes.schedulable
    }

    /// These nodes as a cluster of their own, numbered in the order given.
    pub(crate) fn part(&self, nodes: &[NodeIx]) -> Self {
        let (mut free, mut part) = (Vec::new(), Nodes::default());
        for &node in nodes {
            part.allocatable.extend_from_slice(self.allocatable(node));
            free.extend_from_slice(self.free(node));
            part.domains
                .extend((0..self.keys).map(|key| self.domain(node, key)));
        }
        part.schedulable.grow(nodes.len());
        part.schedulable
            .extend((0..nodes.len()).filter(|&at| self.schedulable(nodes[at])));
        Self {
            free: Arc::new(free),
            nodes: Arc::new(part),
            ..Self::new(self.dims, self.keys)
        }
    }

    /// All free vectors, node after node: the starting point of a decision.
    pub(crate) fn free_table(&self) -> &[i64] {
        &self.free
    }

    fn hold_placement(&mut self, shapes: &[Shape], placement: &GangPlacement, sign: i64) {
        for assignment in &placement.assignments {
            if let Some(shape) = shapes.get(assignment.shape) {
                self.hold(
                    assignment.node,
                    &shape.request,
                    sign * i64::from(assignment.count),
                );
            }
        }
    }

    fn hold(&mut self, node: NodeIx, request: &[i64], times: i64) {
        self.grow(node);
        let base = node * self.dims;
        let free = Arc::make_mut(&mut self.free);
        for (free, amount) in free[base..base + self.dims].iter_mut().zip(request) {
            *free -= amount * times;
        }
    }

    fn grow(&mut self, node: NodeIx) {
        if node >= self.node_count() {
            Arc::make_mut(&mut self.free).resize((node + 1) * self.dims, 0);
            let nodes = Arc::make_mut(&mut self.nodes);
            nodes.schedulable.grow(node + 1);
            nodes.allocatable.resize((node + 1) * self.dims, 0);
            nodes.domains.resize((node + 1) * self.keys, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::problem::Assignment;

    fn node(cpu: i64, gpus: i64) -> ClusterNode {
        ClusterNode {
            allocatable: smallvec![cpu, gpus],
            domains: vec![Some(3)],
            schedulable: true,
        }
    }

    #[test]
    fn a_pod_counted_before_its_node_is_held_against_it() {
        let mut cluster = Cluster::new(2, 1);
        cluster.add_pod(4, &[100, 2]);
        cluster.upsert_node(4, &node(1000, 8));
        assert_eq!(cluster.free(4), [900, 6]);
        assert_eq!(cluster.domain(4, 0), Some(3));
        cluster.remove_pod(4, &[100, 2]);
        assert_eq!(cluster.free(4), [1000, 8]);
    }

    #[test]
    fn a_node_that_shrinks_keeps_its_pods() {
        let mut cluster = Cluster::new(2, 1);
        cluster.upsert_node(0, &node(1000, 8));
        cluster.add_pod(0, &[0, 6]);
        cluster.upsert_node(0, &node(1000, 4));
        assert_eq!(cluster.free(0), [1000, -2]);
    }

    #[test]
    fn a_removed_node_offers_nothing_and_may_come_back() {
        let mut cluster = Cluster::new(2, 1);
        cluster.upsert_node(0, &node(1000, 8));
        cluster.add_pod(0, &[10, 1]);
        cluster.remove_node(0);
        assert!(!cluster.schedulable(0));
        assert_eq!(cluster.free(0), [-10, -1]);
        cluster.upsert_node(0, &node(1000, 8));
        assert_eq!(cluster.free(0), [990, 7]);
    }

    #[test]
    fn every_node_keeps_its_own_amounts_and_domains() {
        let mut cluster = Cluster::new(2, 2);
        for ix in 0..3 {
            let amount = 10 * ix as i64;
            let spec = ClusterNode {
                allocatable: smallvec![amount + 1, amount + 2],
                domains: vec![Some(ix), Some(ix + 5)],
                schedulable: true,
            };
            cluster.upsert_node(ix, &spec);
        }
        assert_eq!(
            (
                cluster.dims(),
                cluster.topology_keys(),
                cluster.node_count()
            ),
            (2, 2, 3)
        );
        for ix in 0..3 {
            let amount = 10 * ix as i64;
            assert_eq!(cluster.allocatable(ix), [amount + 1, amount + 2]);
            assert_eq!(cluster.free(ix), cluster.allocatable(ix));
            assert_eq!(
                (cluster.domain(ix, 0), cluster.domain(ix, 1)),
                (Some(ix), Some(ix + 5))
            );
        }
        assert_eq!((cluster.domain_count(0), cluster.domain_count(1)), (3, 8));
        assert_eq!(
            (cluster.allocatable(3), cluster.domain(0, 2)),
            ([].as_slice(), None)
        );
    }

    #[test]
    fn what_is_reserved_is_held_until_it_is_released() {
        let mut cluster = Cluster::new(2, 1);
        cluster.upsert_node(0, &node(1000, 8));
        let shapes = [Shape::new([100, 2].as_slice(), 3)];
        let placement = GangPlacement {
            assignments: vec![Assignment {
                shape: 0,
                replica: 0,
                node: 0,
                count: 3,
            }],
        };
        cluster.reserve(&shapes, &placement);
        assert_eq!(cluster.free(0), [700, 2]);
        cluster.release(&shapes, &placement);
        assert_eq!(cluster.free(0), [1000, 8]);
    }
}
