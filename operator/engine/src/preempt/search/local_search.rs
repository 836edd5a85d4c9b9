//! Local search over victim sets: repairs a set until the gang fits, reprieves needless victims,
//! and exchanges victims for cheaper ones.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::{
    cover::{Cover, cheapest_cover},
    state::VictimState,
};
use crate::{
    method::Method,
    objective::{EvictionCost, Price},
    preempt::instance::CandidateIx,
    problem::{NodeIx, ShapeIx},
};

/// Largest distance of two victims in a pair exchange, in the order of savings.
const PAIRS_APART: usize = 8;

pub(in crate::preempt) const LAST_STEPS: u64 = 150_000;

pub(in crate::preempt) struct LocalSearch<'a> {
    pub state: VictimState<'a>,
    pub(super) pool: &'a [bool],
    /// Candidates that the current move must not evict.
    pub(super) excluded: Vec<bool>,
    /// For each candidate, the last round in which it alone was a cover.
    last_covered: Vec<u32>,
    round: u32,
    /// Nodes with the cheapest slots, as of the last [`LocalSearch::refresh_cheapest_nodes`].
    pub(super) cheapest_nodes: Vec<NodeIx>,
    /// True if moves are evaluated without short cuts.
    pub(super) thorough: bool,
    budget: u64,
}

impl<'a> LocalSearch<'a> {
    pub fn new(state: VictimState<'a>, pool: &'a [bool], budget: u64) -> Self {
        let candidates = state.instance.candidates.len();
        Self {
            state,
            pool,
            excluded: vec![false; candidates],
            last_covered: vec![0; candidates],
            round: 0,
            cheapest_nodes: Vec::new(),
            thorough: false,
            budget,
        }
    }

    pub fn set_victims(&mut self, evicted: impl Fn(CandidateIx) -> bool) {
        for candidate in 0..self.excluded.len() {
            match (self.state.is_evicted(candidate), evicted(candidate)) {
                (false, true) => self.state.evict(candidate),
                (true, false) => self.state.restore(candidate),
                _ => {}
            }
        }
    }

    /// Evicts the cover with the least price per slot until the gang fits. False if the pool is
    /// exhausted. Recomputes the cheapest nodes.
    pub fn repair(&mut self) -> bool {
        self.cheapest_nodes.clear();
        self.repair_within(Price::MAX)
    }

    /// As [`LocalSearch::repair`], but fails once the price exceeds a limit.
    fn repair_within(&mut self, limit: Price) -> bool {
        let (mut taken, mut at_once) = (Vec::new(), None);
        let mut fits = false;
        while self.state.price() <= limit {
            let cover = match self.state.deficit() {
                Some((shape, missing)) => {
                    let covers = self.evict_for_slots(shape, missing, limit);
                    if covers.is_empty() {
                        break;
                    }
                    taken.extend(covers);
                    continue;
                }
                None if self.state.fits() => {
                    fits = true;
                    break;
                }
                // Enough slots, but not in common domains.
                None if self.state.fit.by_replica && self.evict_for_replicas() => {
                    return self.state.fits();
                }
                // Enough slots, but slots of different shapes overlap.
                None if self.is_spent() => return self.evict_until_it_fits(),
                None if !self.state.instance.placement.uses(Method::Worth) => {
                    return self.evict_until_it_fits();
                }
                None => match self.best_by_worth(taken.len(), &mut at_once) {
                    None => return self.evict_until_it_fits(),
                    cover => cover,
                },
            };
            let Some(cover) = cover else {
                break;
            };
            self.evict_all(&cover);
            taken.extend(cover);
        }
        match at_once {
            Some(at_once) if self.state.instance.placement.uses(Method::AtOnce) => {
                self.finish_at_once(&at_once, &taken, limit, fits)
            }
            _ => fits,
        }
    }

    /// Evicts units until the gang fits, most value per price first, in growing steps. A later
    /// reprieve restores needless victims. False if the pool is exhausted.
    fn evict_until_it_fits(&mut self) -> bool {
        let mut order: Vec<CandidateIx> = self.evictable().collect();
        match self.state.by_worth(&order) {
            Some(by_worth) => order = by_worth,
            None => order.sort_by_key(|&c| (self.state.marginal(c), c)),
        }
        let mut rest = order.as_slice();
        let mut next = 1;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(next.min(rest.len()));
            self.evict_all(now);
            if self.state.fits() {
                return true;
            }
            rest = later;
            next *= 2;
        }
        false
    }

    pub fn is_spent(&self) -> bool {
        self.state.all_steps() >= self.budget
    }

    /// Restores every needless victim, largest savings first.
    pub fn reprieve(&mut self) {
        self.reprieve_except(None, false);
    }

    /// Restores needless victims except `kept`, largest savings first. With `roughly`, stops when
    /// no slot is spare; needless victims without slots can remain. Once the budget is spent,
    /// replicas move one at a time, so some needless victims can remain.
    fn reprieve_except(&mut self, kept: Option<CandidateIx>, roughly: bool) {
        for candidate in self.by_savings() {
            if roughly && self.state.surplus() == 0 {
                break;
            }
            if Some(candidate) == kept {
                continue;
            }
            if self.state.cannot_spare(candidate) {
                continue;
            }
            self.state.restore(candidate);
            let fits = if self.state.all_steps() < self.budget.max(LAST_STEPS) {
                self.state.fits()
            } else {
                self.state.still_fits()
            };
            if !fits {
                self.state.evict(candidate);
            }
        }
    }

    /// Savings of restoring a victim: its price alone, then pods.
    fn savings(&self, candidate: CandidateIx) -> (Price, u32) {
        let instance = self.state.instance;
        let cost = instance.cost(candidate);
        (
            cost.price_alone(instance.units, instance.weights),
            cost.pods,
        )
    }

    /// Exchanges victims while that pays and the budget lasts: singly, then all on a node, then in
    /// pairs. First with short cuts, then without.
    pub fn improve(&mut self) {
        let mut best = self.state.cost();
        let phases = 2 + PAIRS_APART;
        let mut idle = 0;
        self.thorough = false;
        while idle < 2 * phases && !self.is_spent() {
            self.thorough |= idle >= phases;
            let improved = match idle % phases {
                0 => self.exchange_out(Self::singles, &mut best) | self.exchange_in(&mut best),
                1 => self.exchange_out(Self::by_node, &mut best),
                _ if !self.state.instance.placement.uses(Method::Pairs) => false,
                phase => self.exchange_out(|search| search.pairs(phase - 1), &mut best),
            };
            idle = match (improved, self.thorough) {
                (false, _) => idle + 1,
                (true, false) => 0,
                (true, true) => phases,
            };
        }
    }

    /// Changes to the cheapest set found without a victim. False without such a set.
    pub fn avoid(&mut self, candidate: CandidateIx) -> bool {
        self.state.restore(candidate);
        self.excluded[candidate] = true;
        let fits = self.repair_within(Price::MAX);
        self.excluded[candidate] = false;
        if fits {
            self.reprieve();
        }
        fits
    }

    /// Tries to replace each group of victims by cheaper ones.
    fn exchange_out(
        &mut self,
        groups: impl Fn(&Self) -> Vec<Cover>,
        best: &mut EvictionCost,
    ) -> bool {
        let mut improved = false;
        self.refresh_cheapest_nodes();
        for group in groups(self) {
            if self.is_spent() {
                break;
            }
            if group.iter().any(|&c| !self.state.is_evicted(c)) {
                continue;
            }
            self.state.begin();
            for &candidate in &group {
                self.state.restore(candidate);
                self.excluded[candidate] = true;
            }
            let fits = self.repair_below(best);
            for &candidate in &group {
                self.excluded[candidate] = false;
            }
            improved |= self.accept_move(fits, None, best);
        }
        improved
    }

    /// Victims, largest savings first.
    pub fn by_savings(&self) -> Vec<CandidateIx> {
        let mut order = self.state.victims();
        order.sort_by_cached_key(|&c| (Reverse(self.savings(c)), c));
        order
    }

    fn singles(&self) -> Vec<Cover> {
        self.by_savings()
            .into_iter()
            .map(|c| SmallVec::from_slice(&[c]))
            .collect()
    }

    /// Pairs of victims at this distance in the order of savings.
    fn pairs(&self, apart: usize) -> Vec<Cover> {
        let order = self.by_savings();
        order
            .iter()
            .zip(order.iter().skip(apart))
            .map(|(&a, &b)| SmallVec::from_slice(&[a, b]))
            .collect()
    }

    /// For each node with several victims, those without capacity elsewhere. Together they can free
    /// a slot.
    fn by_node(&self) -> Vec<Cover> {
        let mut groups = Vec::new();
        for &node in &self.state.instance.placement.nodes {
            let group: Cover = self
                .state
                .instance
                .uses_on(node)
                .map(|(candidate, _)| candidate)
                .filter(|&c| self.is_local_victim(c))
                .collect();
            if group.len() > 1 {
                groups.push(group);
            }
        }
        groups
    }

    fn is_local_victim(&self, candidate: CandidateIx) -> bool {
        self.state.is_evicted(candidate) && self.state.instance.uses(candidate).nth(1).is_none()
    }

    /// Evicts a candidate outside the set if more expensive victims can then stay.
    fn exchange_in(&mut self, best: &mut EvictionCost) -> bool {
        let mut improved = false;
        for candidate in 0..self.pool.len() {
            if self.is_spent() {
                break;
            }
            if self.state.is_evicted(candidate) || !self.pool[candidate] {
                continue;
            }
            let surplus = self.state.surplus();
            self.state.begin();
            self.state.evict(candidate);
            // A unit that frees no slot cannot replace another.
            if self.state.surplus() == surplus {
                self.state.undo();
                continue;
            }
            improved |= self.accept_move(true, Some(candidate), best);
        }
        improved
    }

    /// Keeps the move if it pays; otherwise reverts it.
    fn accept_move(
        &mut self,
        fits: bool,
        kept: Option<CandidateIx>,
        best: &mut EvictionCost,
    ) -> bool {
        if fits {
            self.reprieve_except(kept, !self.thorough);
            if self.state.cost() < *best {
                self.reprieve();
                *best = self.state.cost();
                return true;
            }
        }
        self.state.undo();
        false
    }

    /// As [`LocalSearch::repair`], but fails once the move cannot pay any more, even if almost all
    /// earlier victims were restored.
    fn repair_below(&mut self, best: &EvictionCost) -> bool {
        let limit = self.state.instance.weights.scalar(best);
        self.repair_within(limit + limit / 4)
    }

    fn evictable(&self) -> impl Iterator<Item = CandidateIx> {
        (0..self.pool.len()).filter(|&c| self.may_evict(c))
    }

    fn may_evict(&self, candidate: CandidateIx) -> bool {
        self.pool[candidate] && !self.excluded[candidate] && !self.state.is_evicted(candidate)
    }

    pub(super) fn begin_round(&mut self) {
        self.round += 1;
    }

    /// True if the cover is a single unit that was a cover in this round.
    pub(super) fn repeats_single(&mut self, cover: &Cover) -> bool {
        let [single] = cover[..] else {
            return false;
        };
        std::mem::replace(&mut self.last_covered[single], self.round) == self.round
    }

    pub(super) fn evict_all(&mut self, candidates: &[CandidateIx]) {
        for &candidate in candidates {
            self.state.evict(candidate);
        }
    }

    pub(super) fn restore_all(&mut self, candidates: &[CandidateIx]) {
        for &candidate in candidates {
            self.state.restore(candidate);
        }
    }

    /// The cheapest units to evict so that one more pod of the shape fits on the node.
    pub(super) fn cover(&mut self, shape: ShapeIx, node: NodeIx) -> Option<Cover> {
        let (pool, excluded) = (self.pool, &self.excluded);
        cheapest_cover(&mut self.state, shape, node, |candidate| {
            pool[candidate] && !excluded[candidate]
        })
    }
}
