//! Exhaustive search for node patterns that hold a gang of several shapes.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::rc::Rc;

use smallvec::SmallVec;

use super::patterns::{Kind, KindIx, Pattern, worth};

/// Depth-first search over the pattern of each node. The outcome depends only on the position and
/// the missing pods, so each such state is visited once.
pub(super) struct Exhaustive<'k> {
    kinds: &'k [Rc<Kind>],
    /// Kind of each node; kinds with few patterns first.
    pub order: Vec<KindIx>,
    /// For each price vector: upper bound of the value of the nodes from each position on.
    bounds: Vec<(Pattern, Vec<i64>)>,
    hopeless: HashSet<(usize, Pattern)>,
    pub path: Vec<usize>,
    pub steps: u64,
    limit: u64,
}

impl<'k> Exhaustive<'k> {
    /// Searches `nodes` nodes of each kind, within `limit` steps. `prices` bound the value of the
    /// remaining nodes.
    pub fn new(kinds: &'k [Rc<Kind>], nodes: &[i64], prices: &[Pattern], limit: u64) -> Self {
        let holds = |k: &KindIx| kinds[*k].pattern(0).iter().any(|&c| c > 0);
        let mut used: Vec<KindIx> = (0..nodes.len()).filter(|&k| nodes[k] > 0).collect();
        used.retain(holds);
        used.sort_by_key(|&k| (kinds[k].len, k));
        let order: Vec<KindIx> = used
            .iter()
            .flat_map(|&k| std::iter::repeat_n(k, nodes[k] as usize))
            .collect();
        let shapes = prices.first().map_or(0, SmallVec::len);
        // One price vector per shape, in addition to the given ones.
        let single = (0..shapes).map(|at| {
            let mut price = Pattern::from_elem(0, shapes);
            price[at] = 1;
            price
        });
        let bounds = prices.iter().cloned().chain(single).map(|prices| {
            let behind = most_behind(kinds, &order, &prices);
            (prices, behind)
        });
        Self {
            kinds,
            bounds: bounds.collect(),
            order,
            hopeless: HashSet::new(),
            path: Vec::new(),
            steps: 0,
            limit,
        }
    }

    /// True if no step is left. A failed search then proves nothing.
    pub fn is_spent(&self) -> bool {
        self.steps >= self.limit
    }

    /// Finds patterns that hold the missing pods, for the nodes from a position on.
    pub fn search(&mut self, at: usize, missing: Pattern) -> bool {
        if missing.iter().all(|&m| m == 0) {
            return true;
        }
        self.steps += self.bounds.len() as u64;
        let mut bounds = self.bounds.iter();
        if at == self.order.len()
            || self.is_spent()
            || bounds.any(|(prices, behind)| behind[at] < worth(prices, &missing))
            || self.hopeless.contains(&(at, missing.clone()))
        {
            return false;
        }
        let kind = &self.kinds[self.order[at]];
        let (prices, behind) = &self.bounds[0];
        // Among equal patterns, the one that leaves the mix of missing pods as it is.
        let (here, all) = (behind[at] - behind[at + 1], behind[at]);
        let unbalance = |pattern: &[i64]| -> i128 {
            let each = prices.iter().zip(pattern).zip(&missing);
            each.map(|((&price, &pods), &missing)| {
                let uneven =
                    i128::from(pods) * i128::from(all) - i128::from(missing) * i128::from(here);
                uneven.abs() * i128::from(price)
            })
            .sum()
        };
        let mut tries: Vec<(Reverse<i64>, i128, usize)> = Vec::new();
        for (ix, pattern) in kind.patterns().enumerate() {
            let useful: Pattern = pattern
                .iter()
                .zip(&missing)
                .map(|(p, m)| *p.min(m))
                .collect();
            tries.push((Reverse(worth(prices, &useful)), unbalance(pattern), ix));
        }
        tries.sort_unstable();
        for (_, _, pattern) in tries {
            let left = missing.iter().zip(kind.pattern(pattern));
            let left = left
                .map(|(missing, held)| (missing - held).max(0))
                .collect();
            self.path.push(pattern);
            if self.search(at + 1, left) {
                return true;
            }
            self.path.pop();
        }
        if !self.is_spent() {
            self.hopeless.insert((at, missing));
        }
        false
    }
}

/// Upper bound of the value of the nodes from each position on.
fn most_behind(kinds: &[Rc<Kind>], order: &[KindIx], prices: &Pattern) -> Vec<i64> {
    let mut behind = vec![0; order.len() + 1];
    for at in (0..order.len()).rev() {
        let (_, most) = kinds[order[at]].dearest(prices);
        behind[at] = behind[at + 1] + most;
    }
    behind
}
