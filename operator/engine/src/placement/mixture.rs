//! Whether a gang of several shapes fits, decided over kinds of nodes.
//!
//! Every node gets one of its [patterns](super::patterns), so that together they hold the gang. With a
//! price per pod of each shape, a node is worth at most its dearest pattern; where all nodes
//! together are worth less than the gang, the gang does not fit (weak duality). The prices with the
//! smallest surplus are looked for ([`super::prices`]). They say which pattern each node
//! should have, nearly; [`Mixture::repair`] exchanges patterns until the gang fits. Where that ends
//! without an answer, [`Exhaustive`] tries what is left, as long as steps are left.

use std::cmp::Reverse;
use std::rc::Rc;

use super::exchange::Rated;
use super::exhaustive::Exhaustive;
use super::instance::PlacementInstance;
use super::kinds::Kinds;
use super::patterns::{KindIx, Pattern, worth};
use super::prices::{even, tightest};
use crate::problem::{Amounts, Assignment, NodeIx, ShapeIx};

/// Prices that are tried at most, with full effort and with little.
const PRICES: usize = 48;
const FEW_PRICES: usize = 8;
/// Prices from which the patterns are repaired, those with the smallest surplus.
const STARTS: usize = 3;
/// Price vectors that bound the exhaustive search.
const BOUNDS: usize = 6;

/// Patterns of a node beside which one more pod is weighed.
const DEAREST: usize = 4;

/// Nodes among which the exhaustive search looks, at most: it goes as deep as there are nodes.
const EXHAUSTIVE: i64 = 256;

/// How hard an answer is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// For one of very many sets of victims.
    Little,
    Full,
}

/// What is known of a gang's fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MixtureFit {
    Fits,
    DoesNotFit,
    /// The steps are spent.
    Unknown,
}

/// Patterns for nodes that change.
#[derive(Clone)]
pub(crate) struct Mixture<'a> {
    pub(super) kinds: Kinds<'a>,
    /// Per node, its kind.
    kind_of: Vec<Option<KindIx>>,
    /// Per kind, how many nodes are of it.
    pub(super) nodes: Vec<i64>,
    /// Per kind and pattern, how many nodes have it.
    pub(super) chosen: Vec<Vec<i64>>,
    /// Per kind, the dearest pattern when it was last asked for.
    dearest: Vec<Dearest>,
    /// Nodes of which not all patterns are known.
    incomplete: i64,
    /// What the nodes are worth beyond the gang, where that is known.
    surplus: Option<i64>,
    /// Pods of each shape less those that the patterns hold.
    pub(super) missing: Pattern,
    /// Per shape, the price of a pod.
    pub(super) prices: Pattern,
    /// Another number whenever the prices change.
    prices_version: u64,
    /// Per kind, what was said of one pod more when that was last asked for.
    one_more: Vec<Option<OneMoreAt>>,
    changes: Vec<Change>,
    /// Room for the exchanges of a repair.
    pub(super) helpful: Vec<Rated>,
    pub(super) steps: u64,
}

/// What a node has to have free for a pod of a shape beside one of its patterns.
#[derive(Debug)]
pub(crate) struct OneMore {
    pub shape: ShapeIx,
    pub free: Amounts,
}

/// That for a kind of nodes, as of some prices.
#[derive(Clone, Debug)]
struct OneMoreAt {
    prices_version: u64,
    all: Rc<[OneMore]>,
}

/// The dearest pattern of a kind, as of some prices.
#[derive(Clone, Copy, Debug)]
struct Dearest {
    pattern: usize,
    worth: i64,
    prices_version: u64,
}

/// A change that can be undone.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// So many more nodes of a kind have a pattern.
    Chosen(KindIx, usize, i64),
    /// A node was of this kind.
    Kind(NodeIx, Option<KindIx>),
}

impl<'a> Mixture<'a> {
    /// No nodes yet, for all that the gang needs.
    pub fn new(instance: &'a PlacementInstance<'a>) -> Self {
        let kinds = Kinds::new(instance);
        let wanted = kinds.wanted.iter();
        let missing: Pattern = wanted.map(|w| i64::from(w.count)).collect();
        Self {
            prices: even(&missing),
            kinds,
            kind_of: vec![None; instance.cluster.node_count()],
            nodes: Vec::new(),
            chosen: Vec::new(),
            dearest: Vec::new(),
            incomplete: 0,
            surplus: None,
            missing,
            prices_version: 0,
            one_more: Vec::new(),
            changes: Vec::new(),
            helpful: Vec::new(),
            steps: 0,
        }
    }

    /// Steps spent so far: patterns that were looked at.
    pub fn steps(&self) -> u64 {
        self.steps + self.kinds.steps
    }

    /// Forgets what could be undone.
    pub fn commit(&mut self) {
        self.changes.clear();
    }

    /// Changes that can be undone, so far.
    pub fn changes(&self) -> usize {
        self.changes.len()
    }

    /// Undoes all changes but the first so many.
    pub fn undo(&mut self, kept: usize) {
        while self.changes.len() > kept {
            match self.changes.pop() {
                Some(Change::Chosen(kind, pattern, times)) => self.hold(kind, pattern, -times),
                Some(Change::Kind(node, kind)) => self.count(node, kind),
                None => {}
            }
        }
    }

    /// Counts a node among those of a kind.
    fn count(&mut self, node: NodeIx, kind: Option<KindIx>) {
        self.surplus = None;
        let old = std::mem::replace(&mut self.kind_of[node], kind);
        for (kind, more) in [(old, -1), (kind, 1)] {
            let Some(kind) = kind else { continue };
            self.nodes[kind] += more;
            self.incomplete += more * i64::from(!self.kinds.all[kind].complete);
        }
    }

    fn learn_kinds(&mut self) {
        for kind in self.nodes.len()..self.kinds.all.len() {
            self.nodes.push(0);
            self.chosen.push(vec![0; self.kinds.all[kind].len]);
            self.dearest.push(Dearest {
                pattern: 0,
                worth: 0,
                prices_version: u64::MAX,
            });
        }
    }

    /// The dearest pattern of a kind at the present prices.
    fn dearest(&mut self, kind: KindIx) -> Dearest {
        let known = &mut self.dearest[kind];
        if known.prices_version != self.prices_version {
            let (pattern, worth) = self.kinds.all[kind].dearest(&self.prices);
            *known = Dearest {
                pattern,
                worth,
                prices_version: self.prices_version,
            };
        }
        *known
    }

    /// The kind of a node with so much free.
    pub fn kind(&mut self, node: NodeIx, free: &[i64]) -> KindIx {
        let kind = self.kinds.of(node, free);
        self.learn_kinds();
        kind
    }

    /// What a node of this kind is worth at the present prices.
    pub fn worth_of(&mut self, kind: KindIx) -> i64 {
        self.dearest(kind).worth
    }

    /// Whether the patterns of this kind are all that there are.
    pub fn knows_all_of(&self, kind: KindIx) -> bool {
        self.kinds.all[kind].complete
    }

    /// What a node is worth at the present prices with what it had free when it was set.
    pub fn worth_now(&mut self, node: NodeIx) -> i64 {
        self.kind_of[node].map_or(0, |kind| self.dearest(kind).worth)
    }

    /// The price of the dearest pod.
    pub fn dearest_pod(&self) -> i64 {
        self.prices.iter().copied().max().unwrap_or(0)
    }

    /// What a node has to have free for one pod more than it takes now, for each shape and for its
    /// dearest patterns. Not all of the shapes may be admitted there.
    pub fn one_more(&mut self, node: NodeIx) -> Option<Rc<[OneMore]>> {
        let kind = self.kind_of[node]?;
        self.one_more.resize(self.nodes.len(), None);
        let known = self.one_more[kind].as_ref();
        if let Some(known) = known.filter(|k| k.prices_version == self.prices_version) {
            return Some(known.all.clone());
        }
        let all: Rc<[OneMore]> = self.one_more_of(kind).into();
        self.one_more[kind] = Some(OneMoreAt {
            prices_version: self.prices_version,
            all: all.clone(),
        });
        Some(all)
    }

    fn one_more_of(&self, kind: KindIx) -> Vec<OneMore> {
        let mut patterns: Vec<&[i64]> = self.kinds.all[kind].patterns().collect();
        patterns.sort_by_cached_key(|p| Reverse(worth(&self.prices, p)));
        patterns.truncate(DEAREST);
        let shapes = &self.kinds.instance.demand.shapes;
        let mut all = Vec::new();
        for pattern in patterns {
            for more in &self.kinds.wanted {
                let mut free = shapes[more.shape].request.clone();
                for (want, &pods) in self.kinds.wanted.iter().zip(pattern) {
                    for (free, each) in free.iter_mut().zip(&shapes[want.shape].request) {
                        *free += each * pods;
                    }
                }
                let shape = more.shape;
                all.push(OneMore { shape, free });
            }
        }
        all
    }

    /// What the nodes are worth at the present prices beyond the gang; below zero it does not fit.
    pub fn surplus(&mut self) -> i64 {
        if let Some(known) = self.surplus {
            return known;
        }
        let wanted = self.kinds.wanted.iter().zip(&self.prices);
        let wanted: i64 = wanted.map(|(w, price)| i64::from(w.count) * price).sum();
        let mut surplus = -wanted;
        for kind in 0..self.nodes.len() {
            if self.nodes[kind] > 0 {
                surplus += self.nodes[kind] * self.dearest(kind).worth;
            }
        }
        self.surplus = Some(surplus);
        surplus
    }

    /// A node is of this kind now.
    pub fn set(&mut self, node: NodeIx, kind: KindIx) {
        if self.kind_of[node] == Some(kind) {
            return;
        }
        if let Some(old) = self.kind_of[node]
            && let Some(pattern) = self.chosen[old].iter().rposition(|&c| c > 0)
        {
            self.choose(old, pattern, -1);
        }
        self.changes.push(Change::Kind(node, self.kind_of[node]));
        self.count(node, Some(kind));
        let dearest = self.dearest(kind).pattern;
        self.choose(kind, dearest, 1);
    }

    pub(super) fn choose(&mut self, kind: KindIx, pattern: usize, times: i64) {
        if times != 0 {
            self.changes.push(Change::Chosen(kind, pattern, times));
            self.hold(kind, pattern, times);
        }
    }

    fn hold(&mut self, kind: KindIx, pattern: usize, times: i64) {
        self.chosen[kind][pattern] += times;
        let held = self.kinds.all[kind].pattern(pattern);
        for (missing, held) in self.missing.iter_mut().zip(held) {
            *missing -= held * times;
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.missing.iter().all(|&m| m <= 0)
    }

    /// Whether the gang fits, in so many steps; with little effort many a gang is not known to fit
    /// that does.
    pub fn fits(&mut self, steps: u64, effort: Effort) -> MixtureFit {
        let end = self.steps().saturating_add(steps);
        if self.is_complete() {
            return MixtureFit::Fits;
        }
        if self.surplus() < 0 && self.knows_all() {
            return MixtureFit::DoesNotFit;
        }
        self.steps += self.nodes.len() as u64;
        if self.steps() >= end {
            return MixtureFit::Unknown;
        }
        if self.repair(end, Effort::Little) {
            return MixtureFit::Fits;
        }
        let rounds = match effort {
            Effort::Little => FEW_PRICES,
            Effort::Full => PRICES,
        };
        let (tried, spent) = tightest(
            &self.kinds.all,
            &self.nodes,
            &self.wanted(),
            &self.prices,
            rounds,
            end.saturating_sub(self.steps()),
        );
        self.steps += spent;
        let Some((surplus, least)) = tried.first() else {
            return MixtureFit::Unknown;
        };
        if *surplus < 0 && self.knows_all() {
            self.restart(least);
            return MixtureFit::DoesNotFit;
        }
        let starts = match effort {
            Effort::Little => 1,
            Effort::Full => STARTS,
        };
        for (_, prices) in tried.iter().take(starts) {
            self.restart(prices);
            if self.is_complete() || self.repair(end, effort) {
                return MixtureFit::Fits;
            }
        }
        if effort == Effort::Little || self.nodes.iter().sum::<i64>() > EXHAUSTIVE {
            return MixtureFit::Unknown;
        }
        let bounds: Vec<Pattern> = tried.into_iter().take(BOUNDS).map(|(_, p)| p).collect();
        self.try_all(&bounds, end)
    }

    /// Tries all patterns of all nodes.
    fn try_all(&mut self, bounds: &[Pattern], end: u64) -> MixtureFit {
        let limit = end.saturating_sub(self.steps());
        let mut search = Exhaustive::new(&self.kinds.all, &self.nodes, bounds, limit);
        let found = search.search(0, self.wanted());
        let (order, path, spent) = (search.order.clone(), search.path.clone(), search.is_spent());
        self.steps += search.steps;
        if !found {
            return if self.knows_all() && !spent {
                MixtureFit::DoesNotFit
            } else {
                MixtureFit::Unknown
            };
        }
        for kind in 0..self.nodes.len() {
            for pattern in 0..self.chosen[kind].len() {
                self.choose(kind, pattern, -self.chosen[kind][pattern]);
            }
        }
        let mut rest = self.nodes.clone();
        for (&kind, &pattern) in order.iter().zip(&path) {
            self.choose(kind, pattern, 1);
            rest[kind] -= 1;
        }
        for (kind, &nodes) in rest.iter().enumerate() {
            let dearest = self.dearest(kind).pattern;
            self.choose(kind, dearest, nodes);
        }
        MixtureFit::Fits
    }

    fn wanted(&self) -> Pattern {
        let wanted = self.kinds.wanted.iter();
        wanted.map(|w| i64::from(w.count)).collect()
    }

    /// Whether the patterns of the nodes are all that there are.
    pub fn knows_all(&self) -> bool {
        self.incomplete == 0
    }

    pub(super) fn worth(&self, pattern: &[i64]) -> i64 {
        worth(&self.prices, pattern)
    }

    /// Gives every node its dearest pattern at these prices.
    fn restart(&mut self, prices: &Pattern) {
        self.prices.clone_from(prices);
        self.prices_version += 1;
        self.surplus = None;
        for kind in 0..self.nodes.len() {
            if self.nodes[kind] == 0 {
                continue;
            }
            self.steps += self.chosen[kind].len() as u64;
            for pattern in 0..self.chosen[kind].len() {
                let times = self.chosen[kind][pattern];
                self.choose(kind, pattern, -times);
            }
            let dearest = self.dearest(kind).pattern;
            self.choose(kind, dearest, self.nodes[kind]);
        }
    }

    /// The pods of each node; `None` unless the gang fits. Of the nodes of a kind the fullest get
    /// the most; what is too much is left out where most is free.
    pub fn assignments(&self, free: &[i64], order: &[NodeIx]) -> Option<Vec<Assignment>> {
        let instance = self.kinds.instance;
        let first = self.kinds.wanted.first().filter(|_| self.is_complete())?;
        let dim = instance.scarce[first.shape].dim;
        let mut nodes: Vec<(i64, usize, NodeIx)> = order
            .iter()
            .enumerate()
            .map(|(position, &node)| (instance.free_on(free, node)[dim], position, node))
            .collect();
        nodes.sort_unstable();
        let mut left = self.chosen.clone();
        let mut held: Vec<(NodeIx, Pattern)> = Vec::new();
        for (_, _, node) in nodes {
            let Some(kind) = self.kind_of[node] else {
                continue;
            };
            let patterns = &self.kinds.all[kind];
            let best = (0..patterns.len)
                .filter(|&p| left[kind][p] > 0)
                .max_by_key(|&p| (self.worth(patterns.pattern(p)), Reverse(p)));
            if let Some(best) = best {
                left[kind][best] -= 1;
                held.push((node, patterns.pattern(best).into()));
            }
        }
        let mut over: Pattern = self.missing.iter().map(|m| -m).collect();
        for (_, pattern) in held.iter_mut().rev() {
            for (count, over) in pattern.iter_mut().zip(&mut over) {
                let less = (*count).min(*over);
                *count -= less;
                *over -= less;
            }
        }
        let mut assigned = Vec::new();
        for (node, pattern) in held {
            for (want, count) in self.kinds.wanted.iter().zip(pattern) {
                if count > 0 {
                    assigned.push(Assignment {
                        shape: want.shape,
                        replica: 0,
                        node,
                        count: count as u32,
                    });
                }
            }
        }
        Some(assigned)
    }
}
