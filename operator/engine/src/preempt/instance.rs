//! The preemption instance: which candidate holds what on which node, in flat tables.

use std::collections::BTreeSet;

use crate::{
    cluster::Cluster,
    infeasible::Infeasible,
    objective::{Price, UnitCost, Weights},
    placement::PlacementInstance,
    problem::{Demand, DomainIx, GangPlacement, KeyIx, NodeIx, Unit, UnitIx, Units},
};

/// Ordinal of a candidate within its [`PreemptionInstance`].
pub(super) type CandidateIx = usize;

/// Everything about one question that no search changes.
pub(super) struct PreemptionInstance<'a> {
    pub placement: &'a PlacementInstance<'a>,
    pub units: &'a Units,
    pub demand: &'a Demand,
    /// The units of lower priority than the gang's, ascending.
    pub candidates: Vec<UnitIx>,
    pub weights: Weights,
    dims: usize,
    /// Per candidate, where its uses begin; one more at the end.
    first_use: Vec<usize>,
    use_node: Vec<NodeIx>,
    use_amount: Vec<i64>,
    /// Per node, where the candidates on it begin in `on_node`; one more at the end.
    first_on: Vec<usize>,
    on_node: Vec<CandidateIx>,
    /// Beside `on_node`, the entry among the uses.
    use_of: Vec<usize>,
    /// Per candidate, the work that its eviction destroys: known follow-on evictions included, its
    /// cascade left out.
    lost: Vec<Price>,
    pods: Vec<u32>,
}

impl<'a> PreemptionInstance<'a> {
    pub fn new(placement: &'a PlacementInstance<'a>, units: &'a Units) -> Self {
        let mut instance = Self::empty(placement, units);
        // Where the unit being read has its entry for a node; valid only if it is at or behind the
        // unit's first.
        let mut entry = vec![usize::MAX; placement.cluster.node_count()];
        for (ix, unit) in units.units.iter().enumerate() {
            if unit.priority < placement.demand.priority {
                instance.add_uses(unit, &mut entry);
                instance.add_candidate(ix, Price::from(unit.cost));
            }
        }
        instance.index_by_node();
        instance.set_weights();
        instance
    }

    /// The same question over a part of the nodes: `placement` is that part, `nodes` are its nodes
    /// here, and `local` says where in it a node is. Candidates that hold nothing there are left
    /// out.
    fn within<'p>(
        &self,
        placement: &'p PlacementInstance<'p>,
        nodes: &[NodeIx],
        local: impl Fn(NodeIx) -> Option<NodeIx>,
    ) -> PreemptionInstance<'p>
    where
        'a: 'p,
    {
        let here: BTreeSet<CandidateIx> = nodes
            .iter()
            .flat_map(|&n| self.uses_on(n).map(|(candidate, _)| candidate))
            .collect();
        let mut instance = PreemptionInstance::empty(placement, self.units);
        for candidate in here {
            for (node, amounts) in self.uses(candidate) {
                if let Some(node) = local(node) {
                    instance.use_node.push(node);
                    instance.use_amount.extend_from_slice(amounts);
                }
            }
            instance.add_candidate(self.candidates[candidate], self.lost[candidate]);
        }
        instance.index_by_node();
        // The same weights everywhere, so that costs in different domains compare.
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

    /// Appends what a unit holds, one use per node. `entry` says where the last unit that was read
    /// has its use of a node.
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

    /// Makes the uses that were just added those of this unit.
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

    /// Adds work that evicting a candidate destroys elsewhere.
    pub fn add_follow_on(&mut self, candidate: CandidateIx, lost: Price) {
        self.lost[candidate] += lost;
        self.set_weights();
    }

    /// What the eviction of a candidate contributes to the cost of a set.
    pub fn cost(&self, candidate: CandidateIx) -> UnitCost<'a> {
        UnitCost {
            unit: self.unit(candidate),
            lost: self.lost[candidate],
            pods: self.pods[candidate],
        }
    }

    /// Pods beyond their budgets that a candidate costs even when nothing else is evicted.
    pub fn excess_alone(&self, candidate: CandidateIx) -> i64 {
        self.units.excess_alone(self.unit(candidate))
    }

    /// Candidates that hold something on a node, ascending, and what they hold there.
    pub fn uses_on(&self, node: NodeIx) -> impl Iterator<Item = (CandidateIx, &[i64])> {
        (self.first_on[node]..self.first_on[node + 1]).map(|at| {
            let entry = self.use_of[at];
            (self.on_node[at], self.held(entry))
        })
    }

    pub fn unit(&self, candidate: CandidateIx) -> &'a Unit {
        &self.units.units[self.candidates[candidate]]
    }

    /// What a candidate holds: node and amounts, each node once.
    pub fn uses(&self, candidate: CandidateIx) -> impl Iterator<Item = (NodeIx, &[i64])> {
        self.entries(candidate).map(|(_, node, held)| (node, held))
    }

    /// As [`PreemptionInstance::uses`], with the ordinal of each entry.
    pub fn entries(&self, candidate: CandidateIx) -> impl Iterator<Item = (usize, NodeIx, &[i64])> {
        (self.first_use[candidate]..self.first_use[candidate + 1])
            .map(|at| (at, self.use_node[at], self.held(at)))
    }

    /// What the candidate of an entry holds on its node.
    pub fn held(&self, entry: usize) -> &[i64] {
        &self.use_amount[entry * self.dims..(entry + 1) * self.dims]
    }

    /// How many candidates hold something on a node.
    pub fn candidates_on(&self, node: NodeIx) -> usize {
        self.first_on[node + 1] - self.first_on[node]
    }

    /// Per entry of [`PreemptionInstance::entries`], how many candidates come before it on its node.
    pub fn positions_on_nodes(&self) -> Vec<usize> {
        let mut positions = vec![0; self.use_node.len()];
        for (at, &entry) in self.use_of.iter().enumerate() {
            positions[entry] = at - self.first_on[self.use_node[entry]];
        }
        positions
    }

    /// Free capacity when these candidates are evicted.
    pub fn free_without(&self, evicted: impl IntoIterator<Item = CandidateIx>) -> Vec<i64> {
        let mut free = self.placement.cluster.free_table().to_vec();
        for candidate in evicted {
            self.add_free(&mut free, candidate, 1);
        }
        free
    }

    /// Adds what a candidate holds to the free capacity, or takes it again with -1.
    pub fn add_free(&self, free: &mut [i64], candidate: CandidateIx, sign: i64) {
        for (node, amounts) in self.uses(candidate) {
            for (f, a) in free[node * self.dims..].iter_mut().zip(amounts) {
                *f += sign * a;
            }
        }
    }

    /// Ordinals of units for candidates, ascending.
    pub fn unit_ordinals(&self, candidates: impl IntoIterator<Item = CandidateIx>) -> Vec<UnitIx> {
        let mut units: Vec<UnitIx> = candidates.into_iter().map(|c| self.candidates[c]).collect();
        units.sort_unstable();
        units
    }

    /// The candidates up to a priority, as one flag per candidate.
    pub fn candidates_up_to(&self, priority_bound: Option<i32>) -> Vec<bool> {
        (0..self.candidates.len())
            .map(|c| priority_bound.is_none_or(|bound| self.unit(c).priority <= bound))
            .collect()
    }
}

/// The question once per topology domain, each over a cluster of its own: the work for a domain
/// depends on its own size only.
pub(super) struct DomainInstances {
    /// The gang without its topology: each of these clusters is one domain.
    demand: Demand,
    /// Per domain, its nodes in the whole cluster.
    nodes: Vec<Vec<NodeIx>>,
    clusters: Vec<Cluster>,
    /// Per node of the whole cluster, its domain and its ordinal there.
    local: Vec<Option<(DomainIx, NodeIx)>>,
}

impl DomainInstances {
    pub fn new(whole: &PlacementInstance<'_>, key: KeyIx) -> Self {
        let nodes = whole.nodes_by_domain(key);
        let mut local = vec![None; whole.cluster.node_count()];
        for (domain, members) in nodes.iter().enumerate() {
            for (ordinal, &node) in members.iter().enumerate() {
                local[node] = Some((domain, ordinal));
            }
        }
        Self {
            demand: Demand {
                topology: None,
                ..whole.demand.clone()
            },
            clusters: nodes
                .iter()
                .map(|members| whole.cluster.part(members))
                .collect(),
            nodes,
            local,
        }
    }

    /// Number of domains, those without usable nodes included.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The nodes of a domain, in the order of their ordinals there.
    pub fn nodes(&self, domain: DomainIx) -> &[NodeIx] {
        &self.nodes[domain]
    }

    /// The placement of the gang in one domain.
    pub fn placement<'p>(
        &'p self,
        whole: &PlacementInstance<'_>,
        domain: DomainIx,
    ) -> PlacementInstance<'p> {
        whole.within(&self.nodes[domain], &self.clusters[domain], &self.demand)
    }

    /// The preemption in one domain; `placement` is that of the domain.
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

    /// Turns the node ordinals of a domain's placement into those of the whole cluster.
    pub fn to_whole(&self, domain: DomainIx, placement: &mut GangPlacement) {
        for assignment in &mut placement.assignments {
            assignment.node = self.nodes[domain][assignment.node];
        }
        placement.assignments.sort_unstable();
    }
}

/// Says of a shortfall that it remains with all candidates evicted.
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
