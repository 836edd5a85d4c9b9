//! Several shapes that compete for nodes, for a changing set of victims: node patterns with which
//! the gang fits.

use std::rc::Rc;

use smallvec::SmallVec;

use crate::{
    placement::{
        mixture::{Effort, Mixture, MixtureFit, OneMore},
        shape_pods::by_shape,
    },
    preempt::instance::{CandidateIx, PreemptionInstance},
    problem::{Amounts, Assignment, NodeIx},
};

/// Most candidates on a node whose kind is cached.
const REMEMBERED: usize = u64::BITS as usize;

#[derive(Clone)]
pub(super) struct SeveralShapes<'a> {
    instance: &'a PreemptionInstance<'a>,
    mixture: Mixture<'a>,
    /// Nodes whose free capacity the mixture has not read yet.
    changed: Vec<NodeIx>,
    is_changed: Vec<bool>,
    /// `changed` at the last [`SeveralShapes::begin`]. Later changes of the mixture can be undone.
    at_begin: Option<Vec<NodeIx>>,
    /// Charged steps of the mixture.
    charged: u64,
    effort: Effort,
    /// Bit set of evicted candidates for each node.
    evicted_on: Vec<u64>,
    /// Bit of the candidate on its node, for each entry of the instance.
    bit_of: Vec<u64>,
    /// Cache of kinds by node and evicted candidates. A collision replaces the older entry.
    kind_cache: Vec<CachedKind>,
}

#[derive(Clone, Copy)]
struct CachedKind {
    node: NodeIx,
    evicted: u64,
    kind: usize,
}

impl<'a> SeveralShapes<'a> {
    pub fn new(instance: &'a PreemptionInstance<'a>) -> Self {
        let nodes = instance.placement.cluster.node_count();
        let positions = instance.positions_on_nodes().into_iter();
        let bit_of: Vec<u64> = positions
            .map(|at| if at < REMEMBERED { 1 << at } else { 0 })
            .collect();
        let nothing = CachedKind {
            node: NodeIx::MAX,
            evicted: 0,
            kind: 0,
        };
        Self {
            instance,
            mixture: Mixture::new(instance.placement, &by_shape(&instance.demand.needed())),
            changed: Vec::new(),
            is_changed: vec![false; nodes],
            at_begin: None,
            charged: 0,
            effort: Effort::Little,
            evicted_on: vec![0; nodes],
            kind_cache: vec![nothing; (4 * (nodes + bit_of.len())).next_power_of_two()],
            bit_of,
        }
    }

    pub fn use_full_effort(&mut self) {
        self.effort = Effort::Full;
    }

    pub fn note(&mut self, node: NodeIx) {
        if !std::mem::replace(&mut self.is_changed[node], true) {
            self.changed.push(node);
        }
    }

    pub fn toggle(&mut self, entry: usize, node: NodeIx) {
        self.evicted_on[node] ^= self.bit_of[entry];
        self.note(node);
    }

    pub fn noted(&self) -> usize {
        self.changed.len()
    }

    /// Drops the marks after the first `kept`, whose nodes have been restored.
    pub fn forget(&mut self, kept: usize) {
        for node in self.changed.drain(kept..) {
            self.is_changed[node] = false;
        }
    }

    /// Starts a change that [`SeveralShapes::undo`] reverts.
    pub fn begin(&mut self) {
        self.mixture.commit();
        self.at_begin = Some(self.changed.clone());
    }

    pub fn undo(&mut self) {
        let Some(changed) = self.at_begin.take() else {
            return;
        };
        self.mixture.undo(0);
        self.forget(0);
        for node in changed {
            self.note(node);
        }
    }

    fn catch_up(&mut self, free: &[i64]) {
        for node in std::mem::take(&mut self.changed) {
            self.is_changed[node] = false;
            let free = self.instance.placement.free_on(free, node);
            let kind = self.kind(node, self.evicted_on[node], || free.into());
            self.mixture.set(node, kind);
        }
    }

    /// Kind of a node without these candidates, and its free capacity.
    fn kind(&mut self, node: NodeIx, evicted: u64, free: impl FnOnce() -> Amounts) -> usize {
        if self.instance.candidates_on(node) > REMEMBERED {
            return self.mixture.kind(node, &free());
        }
        // The constant of Fibonacci hashing.
        let mixed = (evicted ^ (node as u64) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = (mixed >> 32) as usize & (self.kind_cache.len() - 1);
        let cached = self.kind_cache[place];
        if (cached.node, cached.evicted) == (node, evicted) {
            return cached.kind;
        }
        let kind = self.mixture.kind(node, &free());
        self.kind_cache[place] = CachedKind {
            node,
            evicted,
            kind,
        };
        kind
    }

    /// True if patterns are found with which the gang fits. Otherwise the patterns do not change.
    pub fn fits(&mut self, free: &[i64]) -> bool {
        let instance = self.instance;
        let steps = &instance.placement.steps;
        let before = self.mixture.changes();
        let changed = self.changed.clone();
        self.catch_up(free);
        let fits = self.mixture.fits(steps.left(), self.effort) == MixtureFit::Fits;
        if !fits {
            self.mixture.undo(before);
            for node in changed {
                self.note(node);
            }
        } else if self.at_begin.is_none() {
            self.mixture.commit();
        }
        steps.spend(self.mixture.steps() - self.charged);
        self.charged = self.mixture.steps();
        fits
    }

    /// Pods of each node, after a successful [`SeveralShapes::fits`].
    pub fn assignments(&self, free: &[i64]) -> Option<Vec<Assignment>> {
        let order = &self.instance.placement.nodes;
        let settled = self.changed.is_empty();
        settled.then(|| self.mixture.assignments(free, order))?
    }

    /// Increase in value of a candidate's nodes by its eviction, at the current prices.
    pub fn worth(&mut self, free: &[i64], candidate: CandidateIx) -> i64 {
        self.catch_up(free);
        let (more, _) = self.more_with_toggled(free, candidate, 1);
        more
    }

    pub fn worth_together(&mut self, free: &[i64], candidates: &[CandidateIx]) -> i64 {
        self.catch_up(free);
        let instance = self.instance;
        let mut entries: SmallVec<[(NodeIx, usize); 16]> = SmallVec::new();
        for &candidate in candidates {
            let its = instance.entries(candidate);
            entries.extend(its.map(|(entry, node, _)| (node, entry)));
        }
        entries.sort_unstable();
        let mut more = 0;
        for on_node in entries.chunk_by(|a, b| a.0 == b.0) {
            let node = on_node[0].0;
            let bits = on_node.iter().map(|&(_, entry)| self.bit_of[entry]);
            let evicted = bits.fold(self.evicted_on[node], |all, bit| all ^ bit);
            let kind = self.kind(node, evicted, || {
                let mut then: Amounts = instance.placement.free_on(free, node).into();
                for &(_, entry) in on_node {
                    for (then, held) in then.iter_mut().zip(instance.held(entry)) {
                        *then += held;
                    }
                }
                then
            });
            more += self.mixture.worth_of(kind) - self.mixture.worth_now(node);
        }
        more
    }

    /// Value that the nodes lack for the gang to fit; at least the price of one pod.
    pub fn missing_worth(&mut self, free: &[i64]) -> i64 {
        self.catch_up(free);
        match self.mixture.surplus() {
            less if less < 0 => -less,
            _ => self.mixture.dearest_pod(),
        }
    }

    pub fn one_more(&mut self, node: NodeIx) -> Option<Rc<[OneMore]>> {
        self.mixture.one_more(node)
    }

    /// True if the current prices prove that the gang does not fit while this victim stays.
    pub fn cannot_spare(&mut self, free: &[i64], victim: CandidateIx) -> bool {
        self.catch_up(free);
        let (more, complete) = self.more_with_toggled(free, victim, -1);
        complete && self.mixture.has_all_patterns() && self.mixture.surplus() + more < 0
    }

    /// Change in value of a candidate's nodes if it is evicted (`sign` 1) or restored (-1), at the
    /// current prices. Also returns whether all their patterns are known.
    fn more_with_toggled(
        &mut self,
        free: &[i64],
        candidate: CandidateIx,
        sign: i64,
    ) -> (i64, bool) {
        let instance = self.instance;
        let (mut more, mut complete) = (0, true);
        for (entry, node, held) in instance.entries(candidate) {
            let now = instance.placement.free_on(free, node);
            let evicted = self.evicted_on[node] ^ self.bit_of[entry];
            let then = self.kind(node, evicted, || {
                now.iter().zip(held).map(|(f, h)| f + sign * h).collect()
            });
            more += self.mixture.worth_of(then) - self.mixture.worth_now(node);
            complete &= self.mixture.has_all_patterns_of(then);
        }
        (more, complete)
    }
}
