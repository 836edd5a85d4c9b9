//! Nodes with offered and free capacity, updated pod by pod.

use std::sync::Arc;

use crate::problem::{Amounts, DimIx, DomainIx, GangPlacement, KeyIx, NodeIx, NodeSet, Shape};

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    /// Offered amounts by dimension.
    pub allocatable: Amounts,
    /// Domain for each topology key in use; `None` without the label.
    pub domains: Vec<Option<DomainIx>>,
    /// True if it accepts new pods (ready, not cordoned).
    pub schedulable: bool,
}

/// Nodes with their free capacity. A change costs O(dimensions). A clone shares the table until one
/// copy changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    dims: usize,
    keys: usize,
    /// Offered minus held capacity, node after node. Negative if pods were added before their node,
    /// or if a node shrank.
    free: Arc<Vec<i64>>,
    /// Separate from `free`, which changes with every pod.
    nodes: Arc<Nodes>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Nodes {
    /// Offered amounts, node after node.
    allocatable: Vec<i64>,
    /// Domain per key, node after node.
    domains: Vec<Option<DomainIx>>,
    schedulable: NodeSet,
    accelerators: Vec<DimIx>,
}

/// Takes pods with this request from the free capacity of a node. A negative number releases them.
pub(crate) fn take(free: &mut [i64], request: &[i64], pods: i64) {
    for (free, amount) in free.iter_mut().zip(request) {
        *free -= amount * pods;
    }
}

impl Cluster {
    /// An empty cluster with this many resource dimensions and topology keys.
    pub fn new(dims: usize, topology_keys: usize) -> Self {
        Self {
            dims,
            keys: topology_keys,
            free: Arc::default(),
            nodes: Arc::default(),
        }
    }

    /// Sets the resources for which nodes are spared: pods that request none of them prefer nodes
    /// without free amounts of them.
    pub fn set_accelerators(&mut self, dims: Vec<DimIx>) {
        Arc::make_mut(&mut self.nodes).accelerators = dims;
    }

    /// See [`Cluster::set_accelerators`].
    pub fn accelerators(&self) -> &[DimIx] {
        &self.nodes.accelerators
    }

    /// Number of resource dimensions.
    pub fn dims(&self) -> usize {
        self.dims
    }

    /// Number of topology keys.
    pub fn topology_keys(&self) -> usize {
        self.keys
    }

    /// Largest node ordinal plus one. Removed nodes remain as entries without capacity.
    pub fn node_count(&self) -> usize {
        self.nodes.schedulable.len()
    }

    /// Adds or updates a node, whose pods stay counted. Missing dimensions are zero.
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

    /// The same nodes without pods, all of which accept new pods.
    #[must_use]
    pub fn without_pods(&self) -> Self {
        let mut nodes = Nodes::clone(&self.nodes);
        nodes.schedulable = (0..self.node_count()).collect();
        Self {
            free: Arc::new(nodes.allocatable.clone()),
            nodes: Arc::new(nodes),
            ..*self
        }
    }

    /// Removes a node. Its pods count until they are removed, because the ordinal may be reused.
    pub fn remove_node(&mut self, node: NodeIx) {
        let removed = ClusterNode {
            allocatable: Amounts::new(),
            domains: Vec::new(),
            schedulable: false,
        };
        self.upsert_node(node, &removed);
    }

    /// Adds a pod that holds capacity on a node, which may be unknown.
    pub fn add_pod(&mut self, node: NodeIx, request: &[i64]) {
        self.hold(node, request, 1);
    }

    /// Removes a pod.
    pub fn remove_pod(&mut self, node: NodeIx, request: &[i64]) {
        self.hold(node, request, -1);
    }

    /// Reserves the capacity of a placement until its pods are added.
    pub fn reserve(&mut self, shapes: &[Shape], placement: &GangPlacement) {
        self.hold_placement(shapes, placement, 1);
    }

    /// Reverts [`Cluster::reserve`].
    pub fn release(&mut self, shapes: &[Shape], placement: &GangPlacement) {
        self.hold_placement(shapes, placement, -1);
    }

    /// Free amounts of a node by dimension. Negative if overcommitted.
    pub fn free(&self, node: NodeIx) -> &[i64] {
        self.free
            .get(node * self.dims..(node + 1) * self.dims)
            .unwrap_or(&[])
    }

    /// Offered amounts of a node by dimension.
    pub fn allocatable(&self, node: NodeIx) -> &[i64] {
        let offered = &self.nodes.allocatable;
        offered
            .get(node * self.dims..(node + 1) * self.dims)
            .unwrap_or(&[])
    }

    /// Sum over all nodes of one offered resource.
    pub fn offered(&self, dim: DimIx) -> i128 {
        let of_nodes = self
            .nodes
            .allocatable
            .iter()
            .skip(dim)
            .step_by(self.dims.max(1));
        of_nodes.map(|&amount| i128::from(amount)).sum()
    }

    /// Domain of a node for a key.
    pub fn domain(&self, node: NodeIx, key: KeyIx) -> Option<DomainIx> {
        if key >= self.keys {
            return None;
        }
        let domain = self.nodes.domains.get(node * self.keys + key);
        domain.copied().flatten()
    }

    /// Largest domain ordinal of a key plus one.
    pub fn domain_count(&self, key: KeyIx) -> usize {
        (0..self.node_count())
            .filter_map(|n| self.domain(n, key))
            .max()
            .map_or(0, |d| d + 1)
    }

    /// Makes the node accept new pods.
    pub fn permit(&mut self, node: NodeIx) {
        Arc::make_mut(&mut self.nodes).schedulable.insert(node);
    }

    /// True if the node accepts new pods.
    pub fn schedulable(&self, node: NodeIx) -> bool {
        self.nodes.schedulable.contains(node)
    }

    pub(crate) fn schedulable_nodes(&self) -> &NodeSet {
        &self.nodes.schedulable
    }

    /// A cluster of these nodes, numbered in this order.
    pub(crate) fn part(&self, nodes: &[NodeIx]) -> Self {
        let (mut free, mut part) = (Vec::new(), Nodes::default());
        for &node in nodes {
            part.allocatable.extend_from_slice(self.allocatable(node));
            free.extend_from_slice(self.free(node));
            part.domains
                .extend((0..self.keys).map(|key| self.domain(node, key)));
        }
        part.accelerators.clone_from(&self.nodes.accelerators);
        part.schedulable.grow(nodes.len());
        part.schedulable
            .extend((0..nodes.len()).filter(|&at| self.schedulable(nodes[at])));
        Self {
            free: Arc::new(free),
            nodes: Arc::new(part),
            ..Self::new(self.dims, self.keys)
        }
    }

    pub(crate) fn free_table(&self) -> &[i64] {
        &self.free
    }

    /// The same nodes with this free capacity.
    pub(crate) fn with_free_table(&self, free: Vec<i64>) -> Self {
        Self {
            free: Arc::new(free),
            ..self.clone()
        }
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
        take(&mut free[base..base + self.dims], request, times);
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
    fn without_pods_all_offered_amounts_are_free_on_every_node() {
        let mut cluster = Cluster::new(2, 1);
        let not_ready = ClusterNode {
            schedulable: false,
            ..node(1000, 8)
        };
        cluster.upsert_node(0, &not_ready);
        cluster.upsert_node(1, &node(500, 4));
        cluster.add_pod(1, &[100, 4]);
        let empty = cluster.without_pods();
        assert_eq!(
            (empty.free(0), empty.free(1)),
            (&[1000, 8][..], &[500, 4][..])
        );
        assert!(empty.schedulable(0) && empty.schedulable(1));
        assert_eq!(
            (cluster.free(1), cluster.schedulable(0)),
            (&[400, 0][..], false)
        );
        assert_eq!(empty.domain(1, 0), Some(3));
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
