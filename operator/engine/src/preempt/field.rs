//! The question in flat tables: which candidate holds what on which node.

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
}

impl<'a> Field<'a> {
    pub fn new(site: &'a Site<'a>, units: &'a Units, demand: &'a Demand) -> Self {
        let dims = site.cluster.dims();
        let mut field = Self {
            site,
            units,
            demand,
            cands: Vec::new(),
            dims,
            first_use: vec![0],
            use_node: Vec::new(),
            use_amount: Vec::new(),
        };
        let nodes = site.cluster.node_count();
        // Where the unit being read has its entry for a node; valid only if it is at or behind the unit's first.
        let mut entry = vec![usize::MAX; nodes];
        for (ix, unit) in units.units.iter().enumerate().filter(|(_, u)| u.priority < demand.priority) {
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
            field.cands.push(ix);
            field.first_use.push(field.use_node.len());
        }
        field
    }

    pub fn unit(&self, cand: CandIx) -> &'a Unit {
        &self.units.units[self.cands[cand]]
    }

    /// What a candidate holds: node and amounts, each node once.
    pub fn uses(&self, cand: CandIx) -> impl Iterator<Item = (NodeIx, &[i64])> {
        (self.first_use[cand]..self.first_use[cand + 1])
            .map(|at| (self.use_node[at], &self.use_amount[at * self.dims..(at + 1) * self.dims]))
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
