//! The placement instance: a gang, and the nodes that admit it.

use crate::{
    cluster::Cluster,
    infeasible::Shortfall,
    problem::{Demand, KeyIx, NodeIx, NodeSet, Shape},
};

/// The placement instance: what stays the same while one demand is placed, whatever is free.
pub(crate) struct PlacementInstance<'a> {
    pub cluster: &'a Cluster,
    pub demand: &'a Demand,
    /// Per shape: nodes that admit it.
    pub admits: Vec<NodeSet>,
    /// Nodes that admit any shape, in order.
    pub nodes: Vec<NodeIx>,
}

impl<'a> PlacementInstance<'a> {
    pub fn new(cluster: &'a Cluster, demand: &'a Demand) -> Self {
        let mut any = NodeSet::with_capacity(cluster.node_count());
        let admits: Vec<NodeSet> = demand
            .shapes
            .iter()
            .map(|shape| {
                let set: NodeSet = (0..cluster.node_count())
                    .filter(|&n| cluster.schedulable(n) && demand.admits(shape, n))
                    .collect();
                any.union_with(&set);
                set
            })
            .collect();
        Self {
            cluster,
            demand,
            admits,
            nodes: any.ones().collect(),
        }
    }

    /// The same gang over a part of the cluster: `part` holds these nodes in this order, `demand`
    /// is this one's without what the part makes needless.
    pub fn within<'p>(
        &self,
        nodes: &[NodeIx],
        part: &'p Cluster,
        demand: &'p Demand,
    ) -> PlacementInstance<'p> {
        let local = |set: &NodeSet| {
            (0..nodes.len())
                .filter(|&at| set.contains(nodes[at]))
                .collect()
        };
        let admits = self.admits.iter().map(local).collect();
        PlacementInstance {
            cluster: part,
            demand,
            admits,
            nodes: (0..nodes.len()).collect(),
        }
    }

    /// The usable nodes of each domain of a key; nodes without a value are left out.
    pub fn nodes_by_domain(&self, key: KeyIx) -> Vec<Vec<NodeIx>> {
        let mut domains: Vec<Vec<NodeIx>> = Vec::new();
        for &node in &self.nodes {
            if let Some(domain) = self.cluster.domain(node, key) {
                if domain >= domains.len() {
                    domains.resize(domain + 1, Vec::new());
                }
                domains[domain].push(node);
            }
        }
        domains
    }

    /// Slots for a shape on a node with this table of free capacity.
    pub fn slots_on(&self, free: &[i64], shape_ix: usize, shape: &Shape, node: NodeIx) -> u32 {
        if self.admits[shape_ix].contains(node) {
            slots(self.free_on(free, node), &shape.request)
        } else {
            0
        }
    }

    /// A node's part of a table of free capacity.
    pub fn free_on<'t>(&self, free: &'t [i64], node: NodeIx) -> &'t [i64] {
        let dims = self.cluster.dims();
        &free[node * dims..(node + 1) * dims]
    }

    /// Takes (or, with a negative count, releases) capacity for pods of a shape on a node.
    pub fn take(&self, free: &mut [i64], node: NodeIx, shape: &Shape, count: i64) {
        let dims = self.cluster.dims();
        for (f, r) in free[node * dims..(node + 1) * dims]
            .iter_mut()
            .zip(&shape.request)
        {
            *f -= r * count;
        }
    }

    /// The tightest reason why a shape finds fewer slots than it needs on these nodes.
    pub fn shortfall(
        &self,
        free: &[i64],
        shape_ix: usize,
        shape: &Shape,
        nodes: &[NodeIx],
        missing: u32,
    ) -> Shortfall {
        let admitted = || nodes.iter().filter(|&&n| self.admits[shape_ix].contains(n));
        let alone = |dim: usize| -> i64 {
            admitted()
                .map(|&n| self.free_on(free, n)[dim].max(0) / shape.request[dim])
                .sum()
        };
        // A later dimension wins a tie: accelerators come after CPU and memory, and are what people
        // look for.
        let dim = (0..shape.request.len())
            .rev()
            .filter(|&dim| shape.request[dim] > 0)
            .min_by_key(|&dim| alone(dim))
            .unwrap_or(0);
        Shortfall {
            shape: shape_ix,
            pods: missing,
            dim,
            short_by: i64::from(missing) * shape.request[dim],
            domain: None,
            evicting: false,
        }
    }
}

/// How many pods that ask for `request` fit into `free`.
pub(crate) fn slots(free: &[i64], request: &[i64]) -> u32 {
    let mut most = i64::from(u32::MAX);
    for (&have, &want) in free.iter().zip(request) {
        if want > 0 {
            if have < want {
                return 0;
            }
            most = most.min(have / want);
        }
    }
    most as u32
}

/// The dimension by which fit is judged: the last accelerator-like one that the shape asks for,
/// else the first asked.
pub(crate) fn deciding_dim(shape: &Shape) -> usize {
    /// Milli-CPU, bytes and pods come first in every cluster; what follows is an extended resource.
    const EXTENDED: usize = 3;
    let asked = |&dim: &usize| shape.request[dim] > 0;
    (EXTENDED..shape.request.len())
        .rev()
        .find(asked)
        .or_else(|| (0..shape.request.len()).find(asked))
        .unwrap_or(0)
}
