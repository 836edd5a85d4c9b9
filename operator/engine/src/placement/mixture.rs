//! Decides whether a gang of several shapes fits, over kinds of nodes (`docs/engine.md`).
//!
//! Every node gets one of its [patterns](super::patterns), so that together they hold the gang. If
//! the value of all nodes at some prices is less than that of the gang, the gang does not fit (weak
//! duality). At the prices of [`super::prices`], [`Mixture::repair`] exchanges patterns until the
//! gang fits.

use std::cmp::Reverse;
use std::rc::Rc;

use super::exchange::Rated;
use super::instance::PlacementInstance;
use super::kinds::Kinds;
use super::patterns::{KindIx, KindTable, Pattern, worth};
use super::prices::{even, tightest};
use super::shape_pods::ShapePods;
use crate::method::Method;
use crate::problem::{Amounts, Assignment, NodeIx, ShapeIx};

/// Most price vectors to try, with full and with little effort.
const PRICES: usize = 48;
const FEW_PRICES: usize = 8;
/// Price vectors with the smallest surplus from which patterns are repaired.
const STARTS: usize = 3;

/// Number of most valuable patterns of a node to which one more pod is added.
const DEAREST: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// For one of very many victim sets.
    Little,
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MixtureFit {
    Fits,
    DoesNotFit,
    Undecided,
}

/// A pattern for each node, updated incrementally.
#[derive(Clone)]
pub(crate) struct Mixture<'a> {
    pub(super) kinds: Kinds<'a>,
    kind_of: Vec<Option<KindIx>>,
    pub(super) nodes: Vec<i64>,
    /// Number of nodes per kind and pattern.
    pub(super) chosen: Vec<Vec<i64>>,
    /// Cached most valuable pattern per kind.
    dearest: Vec<Dearest>,
    /// Number of nodes with unknown patterns.
    incomplete: i64,
    /// Cached value of the nodes minus that of the gang.
    surplus: Option<i64>,
    /// Wanted pods of each shape minus the pods in patterns.
    pub(super) missing: Pattern,
    /// Price of a pod of each shape.
    pub(super) prices: Pattern,
    prices_version: u64,
    /// Cached result of [`Mixture::one_more`] per kind.
    one_more: Vec<Option<OneMoreAt>>,
    changes: Vec<Change>,
    pub(super) helpful: Vec<Rated>,
    pub(super) steps: u64,
}

/// Free capacity that a node needs to add a pod of a shape to one of its patterns.
#[derive(Debug)]
pub(crate) struct OneMore {
    pub shape: ShapeIx,
    pub free: Amounts,
}

/// Cached [`OneMore`] of a kind at some prices.
#[derive(Clone, Debug)]
struct OneMoreAt {
    prices_version: u64,
    all: Rc<[OneMore]>,
}

#[derive(Clone, Copy, Debug)]
struct Dearest {
    pattern: usize,
    worth: i64,
    prices_version: u64,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    /// Additional nodes of a kind with a pattern.
    Chosen(KindIx, usize, i64),
    Kind(NodeIx, Option<KindIx>),
}

impl<'a> Mixture<'a> {
    /// Starts without nodes, with these pods.
    pub fn new(instance: &'a PlacementInstance<'a>, pods: &[ShapePods]) -> Self {
        let nodes = instance.cluster.node_count();
        Self::over(Kinds::new(instance, pods), nodes)
    }

    /// A search over domains instead of nodes, and replicas instead of pods. Their kinds are passed
    /// to [`Mixture::learn`].
    pub(super) fn of_domains(
        instance: &'a PlacementInstance<'a>,
        replicas: &[ShapePods],
        domains: usize,
    ) -> Self {
        let mut kinds = Kinds::new(instance, &[]);
        kinds.to_place = replicas.to_vec();
        Self::over(kinds, domains)
    }

    fn over(kinds: Kinds<'a>, nodes: usize) -> Self {
        let to_place = kinds.to_place.iter();
        let missing: Pattern = to_place.map(|w| i64::from(w.count)).collect();
        Self {
            prices: even(&missing),
            kinds,
            kind_of: vec![None; nodes],
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

    /// Visited patterns.
    pub fn steps(&self) -> u64 {
        self.steps + self.kinds.steps
    }

    pub fn commit(&mut self) {
        self.changes.clear();
    }

    pub fn changes(&self) -> usize {
        self.changes.len()
    }

    /// Undoes all changes after the first `kept`.
    pub fn undo(&mut self, kept: usize) {
        while self.changes.len() > kept {
            match self.changes.pop() {
                Some(Change::Chosen(kind, pattern, times)) => self.hold(kind, pattern, -times),
                Some(Change::Kind(node, kind)) => self.count(node, kind),
                None => {}
            }
        }
    }

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

    fn dearest(&mut self, kind: KindIx) -> Dearest {
        let cached = &mut self.dearest[kind];
        if cached.prices_version != self.prices_version {
            let (pattern, worth) = self.kinds.all[kind].dearest(&self.prices);
            *cached = Dearest {
                pattern,
                worth,
                prices_version: self.prices_version,
            };
        }
        *cached
    }

    /// Adds the kinds that are new in a table of domains.
    pub(super) fn learn(&mut self, table: &KindTable) {
        let new = &table.all[self.kinds.all.len()..];
        self.kinds.all.extend_from_slice(new);
        self.learn_kinds();
    }

    pub fn kind(&mut self, node: NodeIx, free: &[i64]) -> KindIx {
        let kind = self.kinds.of(node, free);
        self.learn_kinds();
        kind
    }

    pub fn worth_of(&mut self, kind: KindIx) -> i64 {
        self.dearest(kind).worth
    }

    /// True if all patterns of this kind are known.
    pub fn has_all_patterns_of(&self, kind: KindIx) -> bool {
        self.kinds.all[kind].complete
    }

    /// Value of a node at the current prices, with the free capacity of the last `set`.
    pub fn worth_now(&mut self, node: NodeIx) -> i64 {
        self.kind_of[node].map_or(0, |kind| self.dearest(kind).worth)
    }

    pub fn dearest_pod(&self) -> i64 {
        self.prices.iter().copied().max().unwrap_or(0)
    }

    /// Free capacity that a node needs for one more pod, for each shape (admitted or not) and each
    /// of its most valuable patterns.
    pub fn one_more(&mut self, node: NodeIx) -> Option<Rc<[OneMore]>> {
        let kind = self.kind_of[node]?;
        self.one_more.resize(self.nodes.len(), None);
        let cached = self.one_more[kind].as_ref();
        if let Some(cached) = cached.filter(|k| k.prices_version == self.prices_version) {
            return Some(cached.all.clone());
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
            for more in &self.kinds.to_place {
                let mut free = shapes[more.shape].request.clone();
                for (pods, &count) in self.kinds.to_place.iter().zip(pattern) {
                    for (free, each) in free.iter_mut().zip(&shapes[pods.shape].request) {
                        *free += each * count;
                    }
                }
                let shape = more.shape;
                all.push(OneMore { shape, free });
            }
        }
        all
    }

    /// Value of the nodes at the current prices minus that of the gang. If negative, the gang does
    /// not fit.
    pub fn surplus(&mut self) -> i64 {
        if let Some(cached) = self.surplus {
            return cached;
        }
        let needed: i64 = self
            .kinds
            .to_place
            .iter()
            .zip(&self.prices)
            .map(|(w, price)| i64::from(w.count) * price)
            .sum();
        let mut surplus = -needed;
        for kind in 0..self.nodes.len() {
            if self.nodes[kind] > 0 {
                surplus += self.nodes[kind] * self.dearest(kind).worth;
            }
        }
        self.surplus = Some(surplus);
        surplus
    }

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

    /// Whether the gang fits, within this number of steps. With little effort, many fits remain
    /// unknown.
    pub fn fits(&mut self, steps: u64, effort: Effort) -> MixtureFit {
        let end = self.steps().saturating_add(steps);
        if self.is_complete() {
            return MixtureFit::Fits;
        }
        if self.surplus() < 0 && self.has_all_patterns() {
            return MixtureFit::DoesNotFit;
        }
        self.steps += self.nodes.iter().filter(|nodes| **nodes > 0).count() as u64;
        if self.steps() >= end {
            return MixtureFit::Undecided;
        }
        if self.repair(end, Effort::Little) {
            return MixtureFit::Fits;
        }
        if !self.kinds.instance.uses(Method::Prices) {
            return MixtureFit::Undecided;
        }
        let rounds = match effort {
            Effort::Little => FEW_PRICES,
            Effort::Full => PRICES,
        };
        let (tried, spent) = tightest(
            &self.kinds.all,
            &self.nodes,
            &self.to_place(),
            &self.prices,
            rounds,
            end.saturating_sub(self.steps()),
        );
        self.steps += spent;
        let Some((surplus, least)) = tried.first() else {
            return MixtureFit::Undecided;
        };
        if *surplus < 0 && self.has_all_patterns() {
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
        MixtureFit::Undecided
    }

    fn to_place(&self) -> Pattern {
        let counts = self.kinds.to_place.iter();
        counts.map(|w| i64::from(w.count)).collect()
    }

    pub fn has_all_patterns(&self) -> bool {
        self.incomplete == 0
    }

    pub(super) fn worth(&self, pattern: &[i64]) -> i64 {
        worth(&self.prices, pattern)
    }

    /// Resets every node to its most valuable pattern at these prices.
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

    /// Pods of each node; `None` if the gang does not fit.
    pub fn assignments(&self, free: &[i64], order: &[NodeIx]) -> Option<Vec<Assignment>> {
        let instance = self.kinds.instance;
        let first = self.kinds.to_place.first().filter(|_| self.is_complete())?;
        let dim = instance.scarce[first.shape].dim;
        let mut nodes = order.to_vec();
        nodes.sort_by_key(|&node| instance.free_on(free, node)[dim]);
        let mut assigned = Vec::new();
        for (node, pattern) in self.pattern_by_node(&nodes) {
            for (pods, count) in self.kinds.to_place.iter().zip(pattern) {
                if count > 0 {
                    assigned.push(Assignment {
                        shape: pods.shape,
                        replica: 0,
                        node,
                        count: count as u32,
                    });
                }
            }
        }
        Some(assigned)
    }

    /// Pods of each node, after a search that found patterns. Among nodes of a kind, the first get
    /// larger patterns. Drops surplus pods from the last nodes.
    pub fn pattern_by_node(&self, order: &[NodeIx]) -> Vec<(NodeIx, Pattern)> {
        let mut left = self.chosen.clone();
        let mut held: Vec<(NodeIx, Pattern)> = Vec::new();
        for &node in order {
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
        held
    }
}
