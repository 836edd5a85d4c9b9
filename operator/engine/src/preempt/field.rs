//! The question in flat tables: which candidate holds what on which node.

use std::collections::BTreeSet;

use crate::{
    infeasible::Infeasible,
    placement::Site,
    problem::{Demand, NodeIx, Unit, UnitIx, Units},
};

/// Ordinal of a candidate within its [`Field`].
pub(super) type CandIx = usize;

/// Everything about one question that no search changes.
pub(super) struct Field<'a> {
    pub site: &'a Site<'a>,
    pub units: &'a Units,
    pub demand: &'a Demand,
    /// Candidates: the units of lower priority, ascending.
    pub cands: Vec<UnitIx>,
    dims: usize,
    /// Per candidate, where its uses begin; one more at the end.
    first_use: Vec<usize>,
    use_node: Vec<NodeIx>,
    use_amount: Vec<i64>,
    /// Per node, where the candidates on it begin in `on_node`; one more at the end.
    first_on: Vec<usize>,
    on_node: Vec<CandIx>,
    /// Beside `on_node`, the entry among the uses.
    use_of: Vec<usize>,
    /// Per candidate, the work that its eviction destroys, follow-on evictions included once they are known.
    cost: Vec<i128>,
    pods: Vec<u32>,
    /// What one pod beyond a budget is worth: more than all the work there is.
    pub excess_price: i128,
}

impl<'a> Field<'a> {
    pub fn new(site: &'a Site<'a>, units: &'a Units) -> Self {
        let mut field = Self::empty(site, units);
        let nodes = site.cluster.node_count();
        let dims = field.dims;
        // Where the unit being read has its entry for a node; valid only if it is at or behind the unit's first.
        let mut entry = vec![usize::MAX; nodes];
        for (ix, unit) in units.units.iter().enumerate().filter(|(_, u)| u.priority < site.demand.priority) {
            let first = field.use_node.len();
            for pods in &unit.pods {
                for &node in pods.nodes.iter().filter(|&&n| n < nodes) {
                    let known = entry[node];
                    let at = if known != usize::MAX && known >= first {
                        known
                    } else {
                        let at = field.use_node.len();
                        entry[node] = at;
                        field.use_node.push(node);
                        field.use_amount.resize((at + 1) * dims, 0);
                        at
                    };
                    for (sum, amount) in field.use_amount[at * dims..].iter_mut().zip(&pods.request) {
                        *sum += amount;
                    }
                }
            }
            field.add_candidate(ix, i128::from(unit.cost));
        }
        field.index_by_node();
        field.price_excess();
        field
    }

    /// The same question over a part of the nodes: `site` is that part, `nodes` are its nodes here, and `local` says where
    /// in it a node is. Who holds nothing there is no candidate.
    pub fn within<'p>(
        &self,
        site: &'p Site<'p>,
        nodes: &[NodeIx],
        local: impl Fn(NodeIx) -> Option<NodeIx>,
    ) -> Field<'p>
    where
        'a: 'p,
    {
        let here: BTreeSet<CandIx> = nodes.iter().flat_map(|&n| self.uses_on(n).map(|(cand, _)| cand)).collect();
        let mut field = Field::empty(site, self.units);
        for cand in here {
            for (node, amounts) in self.uses(cand) {
                if let Some(node) = local(node) {
                    field.use_node.push(node);
                    field.use_amount.extend_from_slice(amounts);
                }
            }
            field.add_candidate(self.cands[cand], self.cost[cand]);
        }
        field.index_by_node();
        // The same price everywhere, so that tolls of different parts compare.
        field.excess_price = self.excess_price;
        field
    }

    fn empty(site: &'a Site<'a>, units: &'a Units) -> Self {
        Self {
            site,
            units,
            demand: site.demand,
            cands: Vec::new(),
            dims: site.cluster.dims(),
            first_use: vec![0],
            use_node: Vec::new(),
            use_amount: Vec::new(),
            first_on: Vec::new(),
            on_node: Vec::new(),
            use_of: Vec::new(),
            cost: Vec::new(),
            pods: Vec::new(),
            excess_price: 1,
        }
    }

    /// Ends the uses that were just added as those of this unit.
    fn add_candidate(&mut self, unit: UnitIx, cost: i128) {
        self.cands.push(unit);
        self.cost.push(cost);
        self.pods.push(self.units.units[unit].pod_count());
        self.first_use.push(self.use_node.len());
    }

    fn index_by_node(&mut self) {
        let nodes = self.site.cluster.node_count();
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
        for cand in 0..self.cands.len() {
            for at in self.first_use[cand]..self.first_use[cand + 1] {
                let node = self.use_node[at];
                self.on_node[next[node]] = cand;
                self.use_of[next[node]] = at;
                next[node] += 1;
            }
        }
    }

    fn price_excess(&mut self) {
        let cascades: i128 = self.units.cascade_loss.iter().map(|&l| i128::from(l)).sum();
        self.excess_price = 1 + cascades + self.cost.iter().sum::<i128>();
    }

    /// Adds work that evicting a candidate destroys elsewhere.
    pub fn add_cost(&mut self, cand: CandIx, more: i128) {
        self.cost[cand] += more;
        self.price_excess();
    }

    /// Work that evicting a candidate destroys, its cascade left out.
    pub fn cost(&self, cand: CandIx) -> i128 {
        self.cost[cand]
    }

    /// Pods of a candidate.
    pub fn pods(&self, cand: CandIx) -> u32 {
        self.pods[cand]
    }

    /// Candidates that hold something on a node, ascending, and what they hold there.
    pub fn uses_on(&self, node: NodeIx) -> impl Iterator<Item = (CandIx, &[i64])> {
        (self.first_on[node]..self.first_on[node + 1]).map(|at| {
            let entry = self.use_of[at];
            (self.on_node[at], &self.use_amount[entry * self.dims..(entry + 1) * self.dims])
        })
    }

    /// Pods beyond their budgets that a candidate costs even when nobody else is evicted.
    pub fn excess_alone(&self, cand: CandIx) -> i64 {
        let over = |&(pdb, pods): &(usize, u32)| i64::from(pods.saturating_sub(self.units.pdb_allowed[pdb]));
        self.unit(cand).pdbs.iter().map(over).sum()
    }

    pub fn unit(&self, cand: CandIx) -> &'a Unit {
        &self.units.units[self.cands[cand]]
    }

    /// What a candidate holds: node and amounts, each node once.
    pub fn uses(&self, cand: CandIx) -> impl Iterator<Item = (NodeIx, &[i64])> {
        (self.first_use[cand]..self.first_use[cand + 1])
            .map(|at| (self.use_node[at], &self.use_amount[at * self.dims..(at + 1) * self.dims]))
    }

    /// What those pods are worth.
    pub fn excess_alone_price(&self, cand: CandIx) -> i128 {
        i128::from(self.excess_alone(cand)) * self.excess_price
    }

    /// Free room when these candidates are gone.
    pub fn room_without(&self, gone: impl IntoIterator<Item = CandIx>) -> Vec<i64> {
        let mut free = self.site.cluster.free_table().to_vec();
        for cand in gone {
            self.give(&mut free, cand, 1);
        }
        free
    }

    /// Gives a candidate's room to the table, or takes it back with -1.
    pub fn give(&self, free: &mut [i64], cand: CandIx, sign: i64) {
        for (node, amounts) in self.uses(cand) {
            for (f, a) in free[node * self.dims..].iter_mut().zip(amounts) {
                *f += sign * a;
            }
        }
    }

    /// Ordinals of units for candidates, ascending.
    pub fn unit_ordinals(&self, cands: impl IntoIterator<Item = CandIx>) -> Vec<UnitIx> {
        let mut units: Vec<UnitIx> = cands.into_iter().map(|c| self.cands[c]).collect();
        units.sort_unstable();
        units
    }
}

/// Says of a shortfall that it remains with all candidates gone.
pub(super) fn after_evicting(reason: Infeasible) -> Infeasible {
    match reason {
        Infeasible::NoRoom(mut short) => {
            short.evicting = true;
            Infeasible::NoRoom(short)
        }
        other => other,
    }
}

#[cfg(test)]
pub(super) mod tests;
