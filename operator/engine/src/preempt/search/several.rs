//! Several shapes that compete for nodes, while victims join and leave the set: the patterns of the
//! nodes on which the gang fits.

use std::rc::Rc;

use smallvec::SmallVec;

use crate::{
    placement::mixture::{Effort, Mixture, MixtureFit, OneMore},
    preempt::instance::{CandidateIx, PreemptionInstance},
    problem::{Amounts, Assignment, NodeIx},
};

/// Candidates on a node up to which its kinds are remembered by which of them are evicted.
const REMEMBERED: usize = u64::BITS as usize;

/// Patterns of the nodes, as far as they are known to hold the gang.
#[derive(Clone)]
pub(super) struct SeveralShapes<'a> {
    instance: &'a PreemptionInstance<'a>,
    mixture: Mixture<'a>,
    /// Nodes whose free capacity the mixture does not know yet.
    changed: Vec<NodeIx>,
    is_changed: Vec<bool>,
    /// The same at the last [`SeveralShapes::begin`]. What the mixture has changed since can be
    /// undone.
    at_begin: Option<Vec<NodeIx>>,
    /// Steps of the mixture that were charged.
    charged: u64,
    effort: Effort,
    /// Per node, the candidates on it that are evicted, one bit each.
    evicted_on: Vec<u64>,
    /// Per entry of the instance, the candidate's bit on the node.
    bit_of: Vec<u64>,
    /// Kinds by node and evicted candidates; what comes to the same place displaces what was there.
    known: Vec<KnownKind>,
}

/// The kind of a node with these candidates evicted.
#[derive(Clone, Copy)]
struct KnownKind {
    node: NodeIx,
    evicted: u64,
    kind: usize,
}

impl<'a> SeveralShapes<'a> {
    /// Nobody is evicted, and nothing is known of any node.
    pub fn new(instance: &'a PreemptionInstance<'a>) -> Self {
        let nodes = instance.placement.cluster.node_count();
        let positions = instance.positions_on_nodes().into_iter();
        let bit_of: Vec<u64> = positions
            .map(|at| if at < REMEMBERED { 1 << at } else { 0 })
            .collect();
        let nothing = KnownKind {
            node: NodeIx::MAX,
            evicted: 0,
            kind: 0,
        };
        Self {
            instance,
            mixture: Mixture::new(instance.placement),
            changed: Vec::new(),
            is_changed: vec![false; nodes],
            at_begin: None,
            charged: 0,
            effort: Effort::Little,
            evicted_on: vec![0; nodes],
            known: vec![nothing; (4 * (nodes + bit_of.len())).next_power_of_two()],
            bit_of,
        }
    }

    /// From now on an answer is looked for harder.
    pub fn look_harder(&mut self) {
        self.effort = Effort::Full;
    }

    /// What is free on a node has changed.
    pub fn note(&mut self, node: NodeIx) {
        if !std::mem::replace(&mut self.is_changed[node], true) {
            self.changed.push(node);
        }
    }

    /// A candidate is evicted there, or no longer.
    pub fn toggle(&mut self, entry: usize, node: NodeIx) {
        self.evicted_on[node] ^= self.bit_of[entry];
        self.note(node);
    }

    /// How many nodes were noted.
    pub fn noted(&self) -> usize {
        self.changed.len()
    }

    /// The nodes that were noted after the first so many are as they were before.
    pub fn forget(&mut self, kept: usize) {
        for node in self.changed.drain(kept..) {
            self.is_changed[node] = false;
        }
    }

    /// Makes the present set the one that [`SeveralShapes::undo`] goes back to.
    pub fn begin(&mut self) {
        self.mixture.commit();
        self.at_begin = Some(self.changed.clone());
    }

    /// The set is that of the last [`SeveralShapes::begin`] again.
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

    /// Tells the mixture what is free now.
    fn catch_up(&mut self, free: &[i64]) {
        for node in std::mem::take(&mut self.changed) {
            self.is_changed[node] = false;
            let free = self.instance.placement.free_on(free, node);
            let kind = self.kind(node, self.evicted_on[node], || free.into());
            self.mixture.set(node, kind);
        }
    }

    /// The kind of a node with these candidates evicted, and so much free then.
    fn kind(&mut self, node: NodeIx, evicted: u64, free: impl FnOnce() -> Amounts) -> usize {
        if self.instance.candidates_on(node) > REMEMBERED {
            return self.mixture.kind(node, &free());
        }
        // The constant of Fibonacci hashing.
        let mixed = (evicted ^ (node as u64) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = (mixed >> 32) as usize & (self.known.len() - 1);
        let known = self.known[place];
        if (known.node, known.evicted) == (node, evicted) {
            return known.kind;
        }
        let kind = self.mixture.kind(node, &free());
        self.known[place] = KnownKind {
            node,
            evicted,
            kind,
        };
        kind
    }

    /// Whether patterns are found on which the gang fits. Where not, the patterns stay as they were.
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

    /// The pods of each node, where the gang has just been found to fit.
    pub fn assignments(&self, free: &[i64]) -> Option<Vec<Assignment>> {
        let order = &self.instance.placement.nodes;
        let known = self.changed.is_empty();
        known.then(|| self.mixture.assignments(free, order))?
    }

    /// What the nodes of a candidate that is not evicted are worth more when it is, at the present
    /// prices.
    pub fn worth(&mut self, free: &[i64], candidate: CandidateIx) -> i64 {
        self.catch_up(free);
        let (more, _) = self.more_with_toggled(free, candidate, 1);
        more
    }

    /// As [`SeveralShapes::worth`], for candidates that go together.
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

    /// What the nodes have to be worth more for the gang to fit; where they are worth enough, a pod.
    pub fn missing_worth(&mut self, free: &[i64]) -> i64 {
        self.catch_up(free);
        match self.mixture.surplus() {
            less if less < 0 => -less,
            _ => self.mixture.dearest_pod(),
        }
    }

    /// What a node has to have free for one pod more, beside those that it takes now.
    pub fn one_more(&mut self, node: NodeIx) -> Option<Rc<[OneMore]>> {
        self.mixture.one_more(node)
    }

    /// Whether the present prices prove that the gang does not fit if this victim stays.
    pub fn cannot_spare(&mut self, free: &[i64], victim: CandidateIx) -> bool {
        self.catch_up(free);
        let (more, complete) = self.more_with_toggled(free, victim, -1);
        complete && self.mixture.knows_all() && self.mixture.surplus() + more < 0
    }

    /// What the nodes of a candidate are worth more when it is evicted (`sign` 1) or stays (-1), at the
    /// present prices; and whether all that they can hold then is known.
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
            complete &= self.mixture.knows_all_of(then);
        }
        (more, complete)
    }
}
