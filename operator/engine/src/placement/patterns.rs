//! Patterns of a gang of several shapes on a node.
//!
//! A *pattern* is a number of pods per shape that a node takes together. Only maximal patterns
//! count. Nodes with the same patterns form a *kind*. Even many nodes have few kinds, which a
//! search visits.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use smallvec::SmallVec;

use super::slots::slots;

/// Pods of each wanted shape, in the order of the wants.
pub(crate) type Pattern = SmallVec<[i64; 4]>;
pub(crate) type KindIx = usize;

/// Most visited patterns of one kind. With more, placements remain correct, but no search can prove
/// infeasibility.
const PATTERNS: usize = 256;

/// Maximal patterns of a kind, in descending order.
#[derive(Debug)]
pub(super) struct Kind {
    /// Pods of each wanted shape, pattern after pattern.
    counts: Vec<i64>,
    shapes: usize,
    /// Largest count of each wanted shape in any pattern.
    pub most: Pattern,
    pub len: usize,
    pub complete: bool,
}

impl Kind {
    /// Kind of a node with this free capacity, and the number of visited patterns. `most`: upper
    /// bound of pods per shape.
    pub fn new(requests: &[&[i64]], most: &[i64], free: &[i64]) -> (Self, u64) {
        let mut left: SmallVec<[i64; 8]> = free.into();
        let mut pattern = Pattern::from_elem(0, most.len());
        let mut all = Enumeration {
            requests,
            most,
            left: &mut left,
            pattern: &mut pattern,
            looked_at: 0,
            kind: Self {
                shapes: most.len(),
                most: Pattern::from_elem(0, most.len()),
                ..Self::of(&[], false)
            },
        };
        all.kind.complete = all.extend(0);
        (all.kind, all.looked_at as u64)
    }

    /// Kind with these maximal patterns in descending order.
    pub fn of(patterns: &[Pattern], complete: bool) -> Self {
        let shapes = patterns.first().map_or(0, SmallVec::len);
        let mut kind = Self {
            counts: Vec::new(),
            shapes,
            most: Pattern::from_elem(0, shapes),
            len: 0,
            complete,
        };
        for pattern in patterns {
            kind.keep(pattern);
        }
        kind
    }

    fn keep(&mut self, pattern: &[i64]) {
        self.len += 1;
        self.counts.extend_from_slice(pattern);
        for (most, &count) in self.most.iter_mut().zip(pattern) {
            *most = count.max(*most);
        }
    }

    pub fn pattern(&self, at: usize) -> &[i64] {
        &self.counts[at * self.shapes..(at + 1) * self.shapes]
    }

    pub fn patterns(&self) -> impl ExactSizeIterator<Item = &[i64]> {
        (0..self.len).map(|at| self.pattern(at))
    }

    /// Most valuable pattern at these prices (the first of equals), and its value.
    pub fn dearest(&self, prices: &[i64]) -> (usize, i64) {
        // Hot path: a constant number of shapes halves the time.
        match *prices {
            [a, b] => dearest(self.rows(), &[a, b]),
            [a, b, c] => dearest(self.rows(), &[a, b, c]),
            [a, b, c, d] => dearest(self.rows(), &[a, b, c, d]),
            _ => dearest(&self.patterns().collect::<Vec<_>>(), &prices),
        }
    }

    /// The patterns as arrays, if the number of shapes matches.
    pub fn rows<const SHAPES: usize>(&self) -> &[[i64; SHAPES]] {
        self.counts.as_chunks().0
    }
}

fn dearest<P: AsRef<[i64]>>(patterns: &[P], prices: &P) -> (usize, i64) {
    let mut best = (0, i64::MIN);
    for (at, pattern) in patterns.iter().enumerate() {
        let value = worth(prices.as_ref(), pattern.as_ref());
        if value > best.1 {
            best = (at, value);
        }
    }
    best
}

#[derive(Debug, Default)]
pub(crate) struct KindTable {
    pub(super) all: Vec<Rc<Kind>>,
    by_node: HashMap<NodeState, KindIx, BuildHasherDefault<Mixing>>,
    by_counts: HashMap<Vec<i64>, KindIx, BuildHasherDefault<Mixing>>,
}

/// What decides the kind of a node: admitted shapes and free capacity.
pub(super) type NodeState = SmallVec<[i64; 8]>;

impl KindTable {
    pub(super) fn lookup(&self, state: &NodeState) -> Option<KindIx> {
        self.by_node.get(state).copied()
    }

    /// Kind of a node or domain. `make` computes a new kind.
    pub(super) fn kind(&mut self, state: NodeState, make: impl FnOnce() -> Kind) -> KindIx {
        if let Some(kind) = self.lookup(&state) {
            return kind;
        }
        let (kind, next) = (make(), self.all.len());
        let mut counts = kind.counts.clone();
        counts.push(i64::from(kind.complete));
        let ix = *self.by_counts.entry(counts).or_insert(next);
        if ix == next {
            self.all.push(Rc::new(kind));
        }
        self.by_node.insert(state, ix);
        ix
    }
}

/// Hash of a few trusted numbers. No input can provoke collisions.
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

struct Enumeration<'r> {
    requests: &'r [&'r [i64]],
    most: &'r [i64],
    /// Free capacity without the pattern.
    left: &'r mut [i64],
    pattern: &'r mut [i64],
    looked_at: usize,
    kind: Kind,
}

impl Enumeration<'_> {
    /// Enumerates all counts of the shapes from a position on. False if the limit was reached.
    fn extend(&mut self, at: usize) -> bool {
        if self.looked_at >= PATTERNS {
            return false;
        }
        if at == self.most.len() {
            self.looked_at += 1;
            self.kind.keep(self.pattern);
            return true;
        }
        let fitting = i64::from(slots(self.left, self.requests[at])).min(self.most[at]);
        if at + 1 == self.most.len() {
            // The last shape takes all remaining capacity; fewer pods are not maximal.
            self.looked_at += 1;
            self.pattern[at] = fitting;
            if !self.takes_more(at, fitting) {
                self.kind.keep(self.pattern);
            }
            return true;
        }
        let mut complete = true;
        self.put(at, fitting);
        for count in (0..=fitting).rev() {
            complete &= self.extend(at + 1);
            if count > 0 {
                self.put(at, -1);
            }
        }
        complete
    }

    fn put(&mut self, at: usize, count: i64) {
        self.pattern[at] += count;
        for (left, amount) in self.left.iter_mut().zip(self.requests[at]) {
            *left -= amount * count;
        }
    }

    /// True if a pod can be added, so the pattern is not maximal. `left` excludes the pods of the
    /// last shape.
    fn takes_more(&self, last: usize, held: i64) -> bool {
        let by_last = self.requests[last];
        (0..last).any(|at| {
            let mut amounts = self.left.iter().zip(self.requests[at]).zip(by_last);
            self.pattern[at] < self.most[at]
                && amounts
                    .all(|((left, amount), last)| *amount == 0 || left - last * held >= *amount)
        })
    }
}

pub(super) fn worth(prices: &[i64], pattern: &[i64]) -> i64 {
    let each = prices.iter().zip(pattern);
    each.map(|(price, count)| price * count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTS: [&[i64]; 3] = [&[3, 2], &[1, 1], &[2, 0]];
    const MOST: [i64; 3] = [2, 9, 3];

    /// True if pods of these counts fit and are within bounds.
    fn fit(counts: &[i64], free: &[i64]) -> bool {
        let used = |dim: usize| -> i64 {
            let each = counts.iter().zip(&REQUESTS);
            each.map(|(count, request)| count * request[dim]).sum()
        };
        counts.iter().zip(&MOST).all(|(c, m)| c <= m) && (0..2).all(|dim| used(dim) <= free[dim])
    }

    #[test]
    fn patterns_are_all_maximal_counts_that_fit_in_descending_order() {
        for (cores, gpus) in (0..=12).flat_map(|cores| (0..=8).map(move |gpus| (cores, gpus))) {
            let free = [cores, gpus];
            let most: Vec<i64> = (0..3)
                .map(|shape| i64::from(slots(&free, REQUESTS[shape])).min(MOST[shape]))
                .collect();
            let (kind, looked_at) = Kind::new(&REQUESTS, &most, &free);
            let mut plain: Vec<Vec<i64>> = Vec::new();
            for counts in (0..3 * 10 * 4).map(|n| vec![n / 40, n / 4 % 10, n % 4]) {
                let more = (0..3).map(|shape| {
                    let mut more = counts.clone();
                    more[shape] += 1;
                    more
                });
                if fit(&counts, &free) && !more.into_iter().any(|more| fit(&more, &free)) {
                    plain.push(counts);
                }
            }
            plain.reverse();
            assert!(kind.patterns().eq(plain.iter()), "{free:?}: {plain:?}");
            assert!(kind.complete && looked_at >= plain.len() as u64);
        }
    }

    #[test]
    fn the_dearest_pattern_is_the_first_of_equal_ones() {
        let (kind, _) = Kind::new(&REQUESTS, &[2, 6, 3], &[6, 8]);
        let (at, worth) = kind.dearest(&[3, 1, 2]);
        assert_eq!((kind.pattern(at), worth), (&[2, 0, 0][..], 6));
    }

    #[test]
    fn nodes_with_the_same_patterns_are_of_one_kind() {
        let mut table = KindTable::default();
        let make = |free: [i64; 2]| Kind::new(&REQUESTS[..2], &[1, 1], &free).0;
        let kinds = [[3, 2], [3, 3], [9, 9], [3, 2]]
            .map(|free| table.kind(free.as_slice().into(), || make(free)));
        assert_eq!((kinds, table.all.len()), ([0, 0, 1, 0], 2));
    }
}
