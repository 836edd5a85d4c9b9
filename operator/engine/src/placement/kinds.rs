//! Nodes by what they can hold of a gang of several shapes.
//!
//! A *pattern* says how many pods of each shape a node takes at once; only patterns to which no pod
//! can be added count. Nodes with the same patterns are of one *kind*: a search looks at kinds, and
//! there are few of them however many nodes there are.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use smallvec::SmallVec;

use super::instance::{PlacementInstance, slots};
use super::want::Want;
use crate::problem::NodeIx;

/// Pods of each wanted shape, in the order of the wants.
pub(crate) type Pattern = SmallVec<[i64; 4]>;
/// Ordinal of a kind.
pub(crate) type KindIx = usize;

/// Patterns of one kind at most. Kinds that have more keep these, and what is found for them is
/// still right; only that nothing else exists cannot be said any more.
const PATTERNS: usize = 256;

/// Steps of finding out the kind of a node.
const LOOKUP: u64 = 4;

/// A hash of a few numbers: they are our own, so that nobody chooses them to collide.
#[derive(Clone, Copy, Debug, Default)]
struct Mixing(u64);

impl Hasher for Mixing {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        // The constant of Fibonacci hashing.
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

/// The patterns of a kind.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    /// None is a part of another.
    pub patterns: Vec<Pattern>,
    /// Whether these are all.
    pub complete: bool,
}

/// The kinds seen so far.
#[derive(Clone)]
pub(super) struct Kinds<'a> {
    pub instance: &'a PlacementInstance<'a>,
    pub wanted: Vec<Want>,
    pub all: Vec<Kind>,
    by_free: HashMap<SmallVec<[i64; 8]>, KindIx, BuildHasherDefault<Mixing>>,
    by_patterns: HashMap<Vec<Pattern>, KindIx>,
    /// Patterns that were looked at.
    pub steps: u64,
}

impl<'a> Kinds<'a> {
    pub fn new(instance: &'a PlacementInstance<'a>, wanted: Vec<Want>) -> Self {
        Self {
            instance,
            wanted,
            all: Vec::new(),
            by_free: HashMap::default(),
            by_patterns: HashMap::new(),
            steps: 0,
        }
    }

    /// The kind of a node with so much free.
    pub fn of(&mut self, node: NodeIx, free: &[i64]) -> KindIx {
        self.steps += LOOKUP;
        let most = |at: usize| {
            let want = &self.wanted[at];
            if !self.instance.admits[want.shape].contains(node) {
                return 0;
            }
            let request = &self.instance.demand.shapes[want.shape].request;
            i64::from(slots(free, request).min(want.count))
        };
        let most: Pattern = (0..self.wanted.len()).map(most).collect();
        // What is free matters only where a pod fits, and which shapes may come says `most`.
        let mut key: SmallVec<[i64; 8]> = most.iter().copied().collect();
        if most.iter().any(|&m| m > 0) {
            key.extend_from_slice(free);
        }
        if let Some(&kind) = self.by_free.get(&key) {
            return kind;
        }
        let (patterns, complete) = self.patterns(free, &most);
        let next = self.all.len();
        let kind = *self.by_patterns.entry(patterns.clone()).or_insert(next);
        if kind == next {
            self.all.push(Kind { patterns, complete });
        }
        self.by_free.insert(key, kind);
        kind
    }

    /// All patterns for so much free capacity, in descending order, and whether these are all.
    fn patterns(&mut self, free: &[i64], most: &Pattern) -> (Vec<Pattern>, bool) {
        let mut found = Vec::new();
        let mut complete = true;
        let mut left: SmallVec<[i64; 8]> = free.iter().copied().collect();
        let mut pattern = Pattern::from_elem(0, most.len());
        self.extend(&mut left, most, 0, &mut pattern, &mut found, &mut complete);
        self.steps += found.len() as u64;
        let part_of = |a: &Pattern, b: &Pattern| a.iter().zip(b).all(|(a, b)| a <= b);
        let mut kept: Vec<Pattern> = Vec::new();
        // In descending order a pattern is never a part of a later one, unless they are equal.
        for pattern in found {
            if !kept.iter().any(|known| part_of(&pattern, known)) {
                kept.push(pattern);
            }
        }
        (kept, complete)
    }

    fn extend(
        &self,
        left: &mut SmallVec<[i64; 8]>,
        most: &Pattern,
        at: usize,
        pattern: &mut Pattern,
        found: &mut Vec<Pattern>,
        complete: &mut bool,
    ) {
        if found.len() >= PATTERNS {
            *complete = false;
            return;
        }
        let Some(want) = self.wanted.get(at) else {
            found.push(pattern.clone());
            return;
        };
        let request = &self.instance.demand.shapes[want.shape].request;
        let here = i64::from(slots(left, request)).min(most[at]);
        // The last shape takes all that it can: less would be a part of that.
        let least = if at + 1 == most.len() { here } else { 0 };
        for count in (least..=here).rev() {
            pattern[at] = count;
            for (left, amount) in left.iter_mut().zip(request) {
                *left -= amount * count;
            }
            self.extend(left, most, at + 1, pattern, found, complete);
            for (left, amount) in left.iter_mut().zip(request) {
                *left += amount * count;
            }
        }
        pattern[at] = 0;
    }
}

/// What a pattern is worth at these prices.
pub(super) fn worth(prices: &Pattern, pattern: &Pattern) -> i64 {
    let each = prices.iter().zip(pattern);
    each.map(|(price, count)| price * count).sum()
}
