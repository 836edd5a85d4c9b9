//! Where a gang goes.
//!
//! Pods of one shape are counted, not tried: a node has so many seats for the shape, and for a gang of one shape the sum
//! of the seats decides exactly. Several shapes are packed largest first, then in other orders, then by a bounded search.

pub(crate) mod domains;
pub(crate) mod pack;

use crate::{
    cluster::Cluster,
    infeasible::{Infeasible, Shortfall},
    problem::{Demand, KeyIx, NodeIx, NodeSet, Placement, Scope, Shape, TopologyMode},
};

/// Places a gang in the free room, or says what is missing.
///
/// The members that the gang needs are placed all or not at all, then as many of the others as fit. Full and half-full
/// nodes and domains are used before empty ones, so that whole nodes and racks stay free.
pub fn place(cluster: &Cluster, demand: &Demand) -> Result<Placement, Infeasible> {
    check(cluster, demand)?;
    place_in(&Site::new(cluster, demand), cluster.free_table().to_vec())
}

/// As [`place`], in the room given: what a cluster would have after evictions. The demand has been checked.
pub(crate) fn place_in(site: &Site<'_>, free: Vec<i64>) -> Result<Placement, Infeasible> {
    if site.wish.is_empty() {
        return place_once(site, free);
    }
    match place_once(site, free.clone()) {
        // A wish must not cost the gang its place.
        Err(Infeasible::GaveUp { .. }) => place_once(&site.without_wishes(), free),
        result => result,
    }
}

fn place_once(site: &Site<'_>, mut free: Vec<i64>) -> Result<Placement, Infeasible> {
    let mut seats = match site.demand.topology {
        None => pack::place_anywhere(site, &mut free, &site.nodes)?,
        Some(topology) => {
            let together = match topology.scope {
                Scope::Gang => domains::place_gang(site, &free, topology.key),
                Scope::Replica => domains::place_replicas(site, &mut free, topology.key),
            };
            match (together, topology.mode) {
                (Err(_), TopologyMode::Preferred) => domains::place_spread(site, &mut free, topology)?,
                (result, _) => result?,
            }
        }
    };
    seats.sort_unstable();
    seats.dedup_by(|next, kept| {
        let same = (next.shape, next.replica, next.node) == (kept.shape, kept.replica, kept.node);
        if same {
            kept.count += next.count;
        }
        same
    });
    Ok(Placement { seats })
}

/// Refuses demands that contradict themselves, so that everything behind may index.
pub(crate) fn check(cluster: &Cluster, demand: &Demand) -> Result<(), Infeasible> {
    let replicas = demand.topology.is_some_and(|t| t.scope == Scope::Replica);
    for shape in &demand.shapes {
        if shape.request.len() != cluster.dims() {
            return Err(Infeasible::BadDemand("a request must name every resource dimension"));
        }
        if shape.request.iter().any(|&a| a < 0) || shape.request.iter().all(|&a| a == 0) {
            return Err(Infeasible::BadDemand("a request must ask for something, and for nothing negative"));
        }
        if shape.min > shape.count || shape.running_count() > shape.count {
            return Err(Infeasible::BadDemand("a shape needs or runs more pods than it counts"));
        }
        if replicas && (shape.replica_size == 0 || shape.count % shape.replica_size != 0) {
            return Err(Infeasible::BadDemand("the replica size must divide the count of the shape"));
        }
    }
    if demand.min_count > demand.shapes.iter().map(|s| s.count).sum() {
        return Err(Infeasible::BadDemand("the gang needs more pods than its shapes count"));
    }
    if demand.topology.is_some_and(|t| t.key >= cluster.topology_keys()) {
        return Err(Infeasible::BadDemand("the topology key is not in use"));
    }
    Ok(())
}

/// What stays the same while one demand is placed, in whatever room.
pub(crate) struct Site<'a> {
    pub cluster: &'a Cluster,
    pub demand: &'a Demand,
    /// Per shape: nodes that admit it.
    pub admits: Vec<NodeSet>,
    /// Nodes that admit any shape, in order.
    pub nodes: Vec<NodeIx>,
    /// Per node: how much the gang would like to be there again; 0 is not at all. Empty without wishes.
    pub wish: Vec<u32>,
}

impl<'a> Site<'a> {
    pub fn new(cluster: &'a Cluster, demand: &'a Demand) -> Self {
        let mut any = NodeSet::with_capacity(cluster.node_count());
        let admits: Vec<NodeSet> = demand
            .shapes
            .iter()
            .map(|shape| {
                let set: NodeSet =
                    (0..cluster.node_count()).filter(|&n| cluster.schedulable(n) && demand.admits(shape, n)).collect();
                any.union_with(&set);
                set
            })
            .collect();
        let mut wish = Vec::new();
        if !demand.previous.is_empty() {
            wish = vec![0; cluster.node_count()];
            for (rank, &node) in demand.previous.iter().enumerate() {
                if let Some(w) = wish.get_mut(node) {
                    *w = (*w).max((demand.previous.len() - rank) as u32);
                }
            }
        }
        Self { cluster, demand, admits, nodes: any.ones().collect(), wish }
    }

    /// The same gang over a part of the cluster: `part` holds these nodes in this order, `demand` is this one's without
    /// what the part makes needless.
    pub fn within<'p>(&self, nodes: &[NodeIx], part: &'p Cluster, demand: &'p Demand) -> Site<'p> {
        let local = |set: &NodeSet| (0..nodes.len()).filter(|&at| set.contains(nodes[at])).collect();
        let wish = if self.wish.is_empty() { Vec::new() } else { nodes.iter().map(|&n| self.wish(n)).collect() };
        let admits = self.admits.iter().map(local).collect();
        Site { cluster: part, demand, admits, nodes: (0..nodes.len()).collect(), wish }
    }

    fn without_wishes(&self) -> Self {
        Self { wish: Vec::new(), admits: self.admits.clone(), nodes: self.nodes.clone(), ..*self }
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

    /// How much the gang would like to be on a node again.
    pub fn wish(&self, node: NodeIx) -> u32 {
        self.wish.get(node).copied().unwrap_or(0)
    }

    /// Seats for a shape on a node with this table of free room.
    pub fn seats(&self, free: &[i64], shape_ix: usize, shape: &Shape, node: NodeIx) -> u32 {
        if self.admits[shape_ix].contains(node) { seats(self.room(free, node), &shape.request) } else { 0 }
    }

    /// A node's part of a table of free room.
    pub fn room<'t>(&self, free: &'t [i64], node: NodeIx) -> &'t [i64] {
        let dims = self.cluster.dims();
        &free[node * dims..(node + 1) * dims]
    }

    /// Takes (or, with a negative count, gives back) room for pods of a shape on a node.
    pub fn take(&self, free: &mut [i64], node: NodeIx, shape: &Shape, count: i64) {
        let dims = self.cluster.dims();
        for (f, r) in free[node * dims..(node + 1) * dims].iter_mut().zip(&shape.request) {
            *f -= r * count;
        }
    }

    /// The tightest reason why a shape finds fewer seats than it needs on these nodes.
    pub fn shortfall(&self, free: &[i64], shape_ix: usize, shape: &Shape, nodes: &[NodeIx], missing: u32) -> Shortfall {
        let admitted = || nodes.iter().filter(|&&n| self.admits[shape_ix].contains(n));
        let alone =
            |dim: usize| -> i64 { admitted().map(|&n| self.room(free, n)[dim].max(0) / shape.request[dim]).sum() };
        // A later dimension wins a tie: accelerators come after CPU and memory, and are what people look for.
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

/// How many pods that ask for `request` fit in `room`.
pub(crate) fn seats(room: &[i64], request: &[i64]) -> u32 {
    let mut most = i64::from(u32::MAX);
    for (&have, &want) in room.iter().zip(request) {
        if want > 0 {
            if have < want {
                return 0;
            }
            most = most.min(have / want);
        }
    }
    most as u32
}

/// The dimension by which fit is judged: the last accelerator-like one that the shape asks for, else the first asked.
pub(crate) fn scarce(shape: &Shape) -> usize {
    /// Milli-CPU, bytes and pods come first in every cluster; what follows is an extended resource.
    const EXTENDED: usize = 3;
    let asked = |&dim: &usize| shape.request[dim] > 0;
    (EXTENDED..shape.request.len()).rev().find(asked).or_else(|| (0..shape.request.len()).find(asked)).unwrap_or(0)
}
