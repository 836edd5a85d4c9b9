//! The preemption instance: amounts held by candidates per node, in flat tables.

use std::collections::BTreeSet;

use crate::{
    cluster::Cluster,
    infeasible::Infeasible,
    objective::{Price, UnitCost, Weights},
    placement::{PlacementInstance, levels::LevelDomains},
    problem::{
        Demand, DomainIx, GangPlacement, NodeIx, Scope, TopologyDemand, TopologyStrictness, Unit,
        UnitIx, Units,
    },
};

pub(super) type CandidateIx = usize;

/// Everything about one decision that searches do not change.
pub(super) struct PreemptionInstance<'a> {
    pub placement: &'a PlacementInstance<'a>,
    pub units: &'a Units,
    pub demand: &'a Demand,
    /// Units of lower priority than the gang's, ascending.
    pub candidates: Vec<UnitIx>,
    pub weights: Weights,
    dims: usize,
    /// Start of each candidate's entries, with a sentinel.
    first_use: Vec<usize>,
    use_node: Vec<NodeIx>,
    use_amount: Vec<i64>,
    /// Start of each node's candidates in `on_node`, with a sentinel.
    first_on: Vec<usize>,
    on_node: Vec<CandidateIx>,
    /// Entry for each element of `on_node`.
    use_of: Vec<usize>,
    /// Work lost by the eviction of each candidate, with known follow-on evictions and without its
    /// cascade.
    lost: Vec<Price>,
    pods: Vec<u32>,
}

impl<'a> PreemptionInstance<'a> {
    pub fn new(placement: &'a PlacementInstance<'a>, units: &'a Units) -> Self {
        Self::among(placement, units, |_| true)
    }

    /// As [`PreemptionInstance::new`], with only these units as candidates.
    pub fn among(
        placement: &'a PlacementInstance<'a>,
        units: &'a Units,
        is_candidate: impl Fn(UnitIx) -> bool,
    ) -> Self {
        let mut instance = Self::empty(placement, units);
        // Current unit's entry for each node. Valid from the unit's first entry on.
        let mut entry = vec![usize::MAX; placement.cluster.node_count()];
        for (ix, unit) in units.units.iter().enumerate() {
            if unit.priority < placement.demand.priority && is_candidate(ix) {
                instance.add_uses(unit, &mut entry);
                instance.add_candidate(ix, Price::from(unit.cost));
            }
        }
        instance.index_by_node();
        instance.set_weights();
        instance
    }

    /// The same decision on a part of the nodes. `placement`: that part. `nodes`: its nodes in the
    /// whole instance. `local`: ordinal in the part. Leaves out candidates without capacity there.
    fn within<'p>(
        &self,
        placement: &'p PlacementInstance<'p>,
        nodes: &[NodeIx],
        local: impl Fn(NodeIx) -> Option<NodeIx>,
    ) -> PreemptionInstance<'p>
    where
        'a: 'p,
    {
        let touching: BTreeSet<CandidateIx> = nodes
            .iter()
            .flat_map(|&n| self.uses_on(n).map(|(candidate, _)| candidate))
            .collect();
        let mut instance = PreemptionInstance::empty(placement, self.units);
        for candidate in touching {
            for (node, amounts) in self.uses(candidate) {
                if let Some(node) = local(node) {
                    instance.use_node.push(node);
                    instance.use_amount.extend_from_slice(amounts);
                }
            }
            instance.add_candidate(self.candidates[candidate], self.lost[candidate]);
        }
        instance.index_by_node();
        // Equal weights make costs in different domains comparable.
        instance.weights = self.weights;
        instance
    }

    fn empty(placement: &'a PlacementInstance<'a>, units: &'a Units) -> Self {
        Self {
            placement,
            units,
            demand: placement.demand,
            candidates: Vec::new(),
            weights: Weights::excess_first(0),
            dims: placement.cluster.dims(),
            first_use: vec![0],
            use_node: Vec::new(),
            use_amount: Vec::new(),
            first_on: Vec::new(),
            on_node: Vec::new(),
            use_of: Vec::new(),
            lost: Vec::new(),
            pods: Vec::new(),
        }
    }

    /// Appends the entries of a unit, one per node. `entry`: last entry for each node.
    fn add_uses(&mut self, unit: &Unit, entry: &mut [usize]) {
        let (first, nodes) = (self.use_node.len(), entry.len());
        for pods in &unit.pods {
            for &node in pods.nodes.iter().filter(|&&n| n < nodes) {
                if entry[node] == usize::MAX || entry[node] < first {
                    entry[node] = self.use_node.len();
                    self.use_node.push(node);
                    self.use_amount.resize(self.use_node.len() * self.dims, 0);
                }
                let held = &mut self.use_amount[entry[node] * self.dims..];
                for (sum, amount) in held.iter_mut().zip(&pods.request) {
                    *sum += amount;
                }
            }
        }
    }

    fn add_candidate(&mut self, unit: UnitIx, lost: Price) {
        self.candidates.push(unit);
        self.lost.push(lost);
        self.pods.push(self.units.units[unit].pod_count());
        self.first_use.push(self.use_node.len());
    }

    fn index_by_node(&mut self) {
        let nodes = self.placement.cluster.node_count();
        self.first_on = vec![0; nodes + 1];
        for &node in &self.use_node {
            self.first_on[node + 1] += 1;
        }
        for node in 0..nodes {
            self.first_on[node + 1] += self.first_on[node];
        }
        let mut next = self.first_on.clone();
        self.on_node = vec![0; self.use_node.len()];
        self.use_of = vec![0; self.use_node.len()];
        for candidate in 0..self.candidates.len() {
            for at in self.first_use[candidate]..self.first_use[candidate + 1] {
                let node = self.use_node[at];
                self.on_node[next[node]] = candidate;
                self.use_of[next[node]] = at;
                next[node] += 1;
            }
        }
    }

    fn set_weights(&mut self) {
        let cascades: Price = self
            .units
            .cascade_loss
            .iter()
            .map(|&l| Price::from(l))
            .sum();
        self.weights = Weights::excess_first(cascades + self.lost.iter().sum::<Price>());
    }

    pub fn add_follow_on(&mut self, candidate: CandidateIx, lost: Price) {
        self.lost[candidate] += lost;
        self.set_weights();
    }

    pub fn cost(&self, candidate: CandidateIx) -> UnitCost<'a> {
        UnitCost {
            unit: self.unit(candidate),
            lost: self.lost[candidate],
            pods: self.pods[candidate],
        }
    }

    pub fn excess_alone(&self, candidate: CandidateIx) -> i64 {
        self.units.excess_alone(self.unit(candidate))
    }

    /// Candidates with capacity on a node, ascending, and their amounts there.
    pub fn uses_on(&self, node: NodeIx) -> impl Iterator<Item = (CandidateIx, &[i64])> {
        (self.first_on[node]..self.first_on[node + 1]).map(|at| {
            let entry = self.use_of[at];
            (self.on_node[at], self.held(entry))
        })
    }

    pub fn unit(&self, candidate: CandidateIx) -> &'a Unit {
        &self.units.units[self.candidates[candidate]]
    }

    /// Nodes and amounts of a candidate, each node once.
    pub fn uses(&self, candidate: CandidateIx) -> impl Iterator<Item = (NodeIx, &[i64])> {
        self.entries(candidate).map(|(_, node, held)| (node, held))
    }

    /// As [`PreemptionInstance::uses`], with the ordinal of each entry.
    pub fn entries(&self, candidate: CandidateIx) -> impl Iterator<Item = (usize, NodeIx, &[i64])> {
        (self.first_use[candidate]..self.first_use[candidate + 1])
            .map(|at| (at, self.use_node[at], self.held(at)))
    }

    pub fn held(&self, entry: usize) -> &[i64] {
        &self.use_amount[entry * self.dims..(entry + 1) * self.dims]
    }

    pub fn candidates_on(&self, node: NodeIx) -> usize {
        self.first_on[node + 1] - self.first_on[node]
    }

    /// For each entry of [`PreemptionInstance::entries`], the number of earlier candidates on its
    /// node.
    pub fn positions_on_nodes(&self) -> Vec<usize> {
        let mut positions = vec![0; self.use_node.len()];
        for (at, &entry) in self.use_of.iter().enumerate() {
            positions[entry] = at - self.first_on[self.use_node[entry]];
        }
        positions
    }

    pub fn free_without(&self, evicted: impl IntoIterator<Item = CandidateIx>) -> Vec<i64> {
        let mut free = self.placement.cluster.free_table().to_vec();
        for candidate in evicted {
            self.add_free(&mut free, candidate, 1);
        }
        free
    }

    /// Adds the candidate's amounts to the free capacity; with -1, subtracts them.
    pub fn add_free(&self, free: &mut [i64], candidate: CandidateIx, sign: i64) {
        for (node, amounts) in self.uses(candidate) {
            for (f, a) in free[node * self.dims..].iter_mut().zip(amounts) {
                *f += sign * a;
            }
        }
    }

    pub fn unit_ordinals(&self, candidates: impl IntoIterator<Item = CandidateIx>) -> Vec<UnitIx> {
        let mut units: Vec<UnitIx> = candidates.into_iter().map(|c| self.candidates[c]).collect();
        units.sort_unstable();
        units
    }

    /// One flag per candidate: true up to this priority.
    pub fn candidates_up_to(&self, priority_bound: Option<i32>) -> Vec<bool> {
        (0..self.candidates.len())
            .map(|c| priority_bound.is_none_or(|bound| self.unit(c).priority <= bound))
            .collect()
    }
}

/// One instance per topology domain, each on its own cluster: the work for a domain depends only on
/// its size.
pub(super) struct DomainInstances {
    /// The demand without the levels that bind the whole gang, since each cluster is one domain.
    demand: Demand,
    /// Nodes of each domain in the whole cluster.
    nodes: Vec<Vec<NodeIx>>,
    clusters: Vec<Cluster>,
    /// Domain and local ordinal of each node of the whole cluster.
    local: Vec<Option<(DomainIx, NodeIx)>>,
}

impl DomainInstances {
    pub fn new(whole: &PlacementInstance<'_>, level: &LevelDomains) -> Self {
        let mut nodes = level.group(&whole.nodes);
        let mut demand = whole.demand.clone();
        let binds_gang =
            |l: &TopologyDemand| l.mode == TopologyStrictness::Required && l.scope == Scope::Gang;
        demand.topology.retain(|level| !binds_gang(level));
        if !demand.topology.is_empty() {
            // The nodes of running members decide about their replicas, even if they admit no pods.
            let running = demand.shapes.iter().flat_map(|shape| &shape.running);
            let running: BTreeSet<NodeIx> = running.map(|running| running.node).collect();
            for node in running {
                let domain = level.of(node).and_then(|domain| nodes.get_mut(domain));
                if let Some(domain) = domain.filter(|d| !d.contains(&node)) {
                    domain.push(node);
                }
            }
        }
        let mut local = vec![None; whole.cluster.node_count()];
        for (domain, members) in nodes.iter().enumerate() {
            for (ordinal, &node) in members.iter().enumerate() {
                local[node] = Some((domain, ordinal));
            }
        }
        for running in demand.shapes.iter_mut().flat_map(|s| &mut s.running) {
            let in_domain = local.get(running.node).copied().flatten();
            running.node = in_domain.map_or(running.node, |(_, ordinal)| ordinal);
        }
        Self {
            demand,
            clusters: nodes
                .iter()
                .map(|members| whole.cluster.part(members))
                .collect(),
            nodes,
            local,
        }
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn nodes(&self, domain: DomainIx) -> &[NodeIx] {
        &self.nodes[domain]
    }

    pub fn placement<'p>(
        &'p self,
        whole: &PlacementInstance<'_>,
        domain: DomainIx,
    ) -> PlacementInstance<'p> {
        whole.within(&self.nodes[domain], &self.clusters[domain], &self.demand)
    }

    pub fn preemption<'p>(
        &self,
        whole: &PreemptionInstance<'p>,
        placement: &'p PlacementInstance<'p>,
        domain: DomainIx,
    ) -> PreemptionInstance<'p> {
        whole.within(placement, &self.nodes[domain], |node| {
            self.local[node]
                .filter(|&(d, _)| d == domain)
                .map(|(_, ordinal)| ordinal)
        })
    }

    pub fn to_whole(&self, domain: DomainIx, placement: &mut GangPlacement) {
        for assignment in &mut placement.assignments {
            assignment.node = self.nodes[domain][assignment.node];
        }
        placement.assignments.sort_unstable();
    }
}

/// Marks a shortfall as remaining after all evictions.
pub(super) fn after_evicting(reason: Infeasible) -> Infeasible {
    match reason {
        Infeasible::InsufficientCapacity(mut short) => {
            short.evicting = true;
            Infeasible::InsufficientCapacity(short)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
