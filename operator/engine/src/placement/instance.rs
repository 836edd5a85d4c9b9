//! The placement instance: a gang, and the nodes that admit it.

use std::cell::RefCell;

use smallvec::SmallVec;

use super::levels::LevelConstraint;
use super::patterns::KindTable;
use super::slots::slots;
use super::steps::{PLACEMENT_STEPS, Steps};
use crate::{
    cluster::{Cluster, take},
    infeasible::{DomainPath, Shortfall},
    method::Method,
    problem::{Demand, DimIx, NodeIx, NodeSet, Shape},
};

/// Facts about the placement of one demand that do not depend on free capacity.
pub(crate) struct PlacementInstance<'a> {
    pub cluster: &'a Cluster,
    pub demand: &'a Demand,
    /// For each shape: nodes that admit it.
    pub admits: Vec<NodeSet>,
    /// Nodes that admit any shape, in order.
    pub nodes: Vec<NodeIx>,
    /// At least one; see [`LevelConstraint::all`].
    pub constraints: Vec<LevelConstraint>,
    /// For each shape: its scarcest resource.
    pub scarce: Vec<Scarce>,
    /// Step limit of the search over several shapes, for all placements of this instance.
    pub steps: Steps,
    pub kinds: RefCell<KindTable>,
    /// Kinds of domains that this search has computed.
    pub domain_kinds: RefCell<KindTable>,
    pub without: Option<Method>,
}

/// The resource by which the fit of a shape is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scarce {
    /// The resource with the largest `part` among requested extended resources, else among all
    /// requested resources.
    pub dim: DimIx,
    /// Request of one pod divided by the total offer of admitting nodes, with [`PART_BITS`]
    /// fraction bits. 0 if the gang has one shape and the resource is obvious.
    pub part: i128,
}

/// Fraction bits of [`Scarce::part`].
const PART_BITS: u32 = 40;

impl<'a> PlacementInstance<'a> {
    pub fn new(cluster: &'a Cluster, demand: &'a Demand) -> Self {
        let mut any = NodeSet::with_capacity(cluster.node_count());
        let admits: Vec<NodeSet> = demand
            .shapes
            .iter()
            .map(|shape| {
                let mut set = cluster.schedulable_nodes().clone();
                if let Some(eligible) = &shape.eligible {
                    set.intersect_with(eligible);
                }
                set.difference_with(&demand.excluded);
                any.union_with(&set);
                set
            })
            .collect();
        let alone = demand.shapes.len() == 1;
        let shapes = demand.shapes.iter().zip(&admits);
        let scarce = shapes
            .map(|(shape, admits)| Scarce::find(cluster, shape, admits, alone))
            .collect();
        Self {
            cluster,
            demand,
            admits,
            nodes: any.ones().collect(),
            constraints: LevelConstraint::all(cluster, &demand.topology),
            scarce,
            steps: Steps::new(PLACEMENT_STEPS),
            kinds: RefCell::default(),
            domain_kinds: RefCell::default(),
            without: None,
        }
    }

    pub fn uses(&self, method: Method) -> bool {
        self.without != Some(method)
    }

    /// The same gang on a part of the cluster. `part` has these nodes in this order. `demand` is
    /// this demand without its redundant parts.
    pub fn within<'p>(
        &self,
        nodes: &[NodeIx],
        part: &'p Cluster,
        demand: &'p Demand,
    ) -> PlacementInstance<'p> {
        let admits: Vec<NodeSet> = self
            .admits
            .iter()
            .map(|set| positions_in(nodes, set))
            .collect();
        let mut any = NodeSet::with_capacity(nodes.len());
        for set in &admits {
            any.union_with(set);
        }
        PlacementInstance {
            cluster: part,
            demand,
            admits,
            nodes: any.ones().collect(),
            constraints: LevelConstraint::all(part, &demand.topology),
            scarce: self.scarce.clone(),
            steps: Steps::new(PLACEMENT_STEPS),
            kinds: RefCell::default(),
            domain_kinds: RefCell::default(),
            without: self.without,
        }
    }

    /// The constraints with preferred levels, in the order in which they are tried.
    pub fn with_preferred(&self) -> &[LevelConstraint] {
        &self.constraints[..self.constraints.len() - 1]
    }

    /// The constraint of the required levels.
    pub fn required(&self) -> &LevelConstraint {
        &self.constraints[self.constraints.len() - 1]
    }

    pub fn slots_on(&self, free: &[i64], shape_ix: usize, shape: &Shape, node: NodeIx) -> u32 {
        if self.admits[shape_ix].contains(node) {
            slots(self.free_on(free, node), &shape.request)
        } else {
            0
        }
    }

    pub fn free_on<'t>(&self, free: &'t [i64], node: NodeIx) -> &'t [i64] {
        let dims = self.cluster.dims();
        &free[node * dims..(node + 1) * dims]
    }

    pub fn free_on_mut<'t>(&self, free: &'t mut [i64], node: NodeIx) -> &'t mut [i64] {
        let dims = self.cluster.dims();
        &mut free[node * dims..(node + 1) * dims]
    }

    /// Takes capacity for pods of a shape. A negative count releases it.
    pub fn take(&self, free: &mut [i64], node: NodeIx, shape: &Shape, count: i64) {
        take(self.free_on_mut(free, node), &shape.request, count);
    }

    /// The tightest reason why a shape has too few slots on these nodes.
    pub fn shortfall(
        &self,
        free: &[i64],
        shape_ix: usize,
        nodes: &[NodeIx],
        missing: u32,
    ) -> Shortfall {
        let shape = &self.demand.shapes[shape_ix];
        let requested: SmallVec<[DimIx; 6]> = (0..shape.request.len())
            .filter(|&dim| shape.request[dim] > 0)
            .collect();
        // Pods that would fit by this dimension alone. One pass over the nodes serves all
        // dimensions.
        let mut alone: SmallVec<[i64; 6]> = requested.iter().map(|_| 0).collect();
        for &node in nodes {
            if !self.admits[shape_ix].contains(node) {
                continue;
            }
            let left = self.free_on(free, node);
            for (alone, &dim) in alone.iter_mut().zip(&requested) {
                let (left, each) = (left[dim], shape.request[dim]);
                // This avoids the expensive division: most nodes are full, and pods request 1 pod.
                *alone += match each {
                    1 => left.max(0),
                    _ if left < each => 0,
                    _ => left / each,
                };
            }
        }
        // Accelerators, which follow CPU and memory, win a tie: messages about them are more
        // useful.
        let tightest = requested
            .iter()
            .zip(&alone)
            .rev()
            .min_by_key(|(_, alone)| **alone);
        let (mut dim, least) = tightest.map_or((0, 0), |(&dim, &alone)| (dim, alone));
        // No resource is short alone, but each where another one is free.
        let fitting = || -> i64 {
            let slots = nodes
                .iter()
                .map(|&node| self.slots_on(free, shape_ix, shape, node));
            slots.map(i64::from).sum()
        };
        if least >= i64::from(missing) && least >= i64::from(missing) + fitting() {
            dim = self
                .nearest_miss(free, shape_ix, shape, nodes)
                .unwrap_or(dim);
        }
        Shortfall {
            shape: shape_ix,
            pods: missing,
            dim,
            short_by: i64::from(missing) * shape.request[dim],
            domain: DomainPath::new(),
            evicting: false,
        }
    }
}

impl PlacementInstance<'_> {
    /// The resource that is missing most on the node that misses the smallest part of a request.
    fn nearest_miss(
        &self,
        free: &[i64],
        shape_ix: usize,
        shape: &Shape,
        nodes: &[NodeIx],
    ) -> Option<DimIx> {
        let nodes = nodes
            .iter()
            .filter(|&&node| self.admits[shape_ix].contains(node));
        let misses = nodes.filter_map(|&node| {
            let free = self.free_on(free, node).iter();
            let each = free.zip(&shape.request).enumerate();
            let parts =
                // An overcommitted resource that is not requested is no miss.
                each.filter(|(_, (free, request))| **request > 0 && free < request)
                    .map(|(dim, (free, request))| {
                        let missing = i128::from(request - free.max(&0));
                        ((missing << PART_BITS) / i128::from(*request), dim)
                    });
            let parts: SmallVec<[(i128, DimIx); 6]> = parts.collect();
            let (_, dim) = parts.iter().max()?;
            Some((parts.iter().map(|(part, _)| part).sum::<i128>(), *dim))
        });
        misses.min_by_key(|(sum, _)| *sum).map(|(_, dim)| dim)
    }
}

fn positions_in(nodes: &[NodeIx], set: &NodeSet) -> NodeSet {
    let positions = 0..nodes.len();
    positions.filter(|&at| set.contains(nodes[at])).collect()
}

/// Number of the first dimensions of every cluster: milli-CPU, bytes and pods. Extended resources
/// follow.
pub(crate) const EXTENDED: usize = 3;

impl Scarce {
    /// Scarcest resource of a shape on admitting nodes. `alone`: the gang has one shape.
    fn find(cluster: &Cluster, shape: &Shape, admits: &NodeSet, alone: bool) -> Self {
        let clear = Self::only_choice(shape).filter(|_| alone);
        clear.unwrap_or_else(|| Self::of(cluster, shape, admits))
    }

    /// The requested extended resource, if it is the only one. Does not compute `part`.
    fn only_choice(shape: &Shape) -> Option<Self> {
        let mut requested = (EXTENDED..shape.request.len()).filter(|&dim| shape.request[dim] > 0);
        let dim = requested.next()?;
        requested.next().is_none().then_some(Self { dim, part: 0 })
    }

    fn of(cluster: &Cluster, shape: &Shape, admits: &NodeSet) -> Self {
        let requested: Vec<DimIx> = (0..shape.request.len())
            .filter(|&dim| shape.request[dim] > 0)
            .collect();
        let extended = requested.iter().any(|&dim| dim >= EXTENDED);
        let mut offered = vec![0_i128; shape.request.len()];
        for node in admits.ones() {
            for (sum, &amount) in offered.iter_mut().zip(cluster.allocatable(node)) {
                *sum += i128::from(amount.max(0));
            }
        }
        let part = |dim: DimIx| (i128::from(shape.request[dim]) << PART_BITS) / offered[dim].max(1);
        // The last extended resource wins a tie, else the first resource.
        let dim = if extended {
            let judged = requested.iter().copied().filter(|&dim| dim >= EXTENDED);
            judged.max_by_key(|&dim| part(dim))
        } else {
            requested.iter().rev().copied().max_by_key(|&dim| part(dim))
        };
        let dim = dim.unwrap_or(0);
        let part = if requested.is_empty() { 0 } else { part(dim) };
        Self { dim, part }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ClusterNode;

    /// CPU, memory, pods, GPUs, and shared network devices.
    const OFFERED: [i64; 5] = [64_000, 1 << 39, 110, 8, 1000];

    fn scarce(requests: &[[i64; 5]]) -> Vec<Scarce> {
        let mut cluster = Cluster::new(5, 0);
        for node in 0..4 {
            let spec = ClusterNode {
                allocatable: OFFERED.as_slice().into(),
                domains: Vec::new(),
                schedulable: true,
            };
            cluster.upsert_node(node, &spec);
        }
        let mut demand = Demand::homogeneous(requests[0].as_slice(), 1, 0);
        let shapes = requests.iter().map(|r| Shape::new(r.as_slice(), 1));
        demand.shapes = shapes.collect();
        PlacementInstance::new(&cluster, &demand).scarce
    }

    #[test]
    fn accelerators_decide_beside_shared_network_devices_and_else_what_is_scarcest() {
        let trainer = [48_000, 1 << 36, 1, 8, 1];
        let driver = [4_000, 1 << 38, 1, 0, 0];
        let web = [16_000, 1 << 30, 1, 0, 0];
        let dims: Vec<DimIx> = scarce(&[trainer, driver, web])
            .iter()
            .map(|s| s.dim)
            .collect();
        assert_eq!(dims, [3, 1, 0]);
    }

    #[test]
    fn a_driver_with_much_memory_is_not_larger_than_a_trainer() {
        let trainer = [48_000, 1 << 36, 1, 8, 1];
        let driver = [4_000, 1 << 38, 1, 0, 0];
        let both = scarce(&[driver, trainer]);
        assert!(both[0].part < both[1].part, "{both:?}");
    }
}
