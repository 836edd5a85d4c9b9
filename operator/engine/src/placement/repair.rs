//! Exchanges of patterns that bring a gang of several shapes closer to fitting.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use smallvec::SmallVec;

use super::mixture::{Effort, Mixture};
use super::patterns::{KindIx, Pattern};

/// Fraction bits of [`rate`].
const RATE_BITS: u32 = 20;

/// A node of a kind gets another pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Exchange {
    kind: KindIx,
    from: usize,
    to: usize,
}

impl Mixture<'_> {
    /// Exchanges patterns while that brings the gang closer to fitting, at the least loss of worth;
    /// with full effort, two at once where one does not.
    pub(super) fn repair(&mut self, end: u64, effort: Effort) -> bool {
        loop {
            while self.exchange_all_that_help(end) {
                if self.is_complete() {
                    return true;
                }
            }
            if effort == Effort::Little || self.steps() >= end || !self.exchange_two(end) {
                return false;
            }
            if self.is_complete() {
                return true;
            }
        }
    }

    /// How far the gang is from fitting, at the present prices, when this were missing.
    fn distance(&self, missing: impl Iterator<Item = i64>) -> i64 {
        let each = missing.zip(&self.prices);
        each.map(|(missing, price)| missing.max(0) * price).sum()
    }

    fn gain(&self, by: Exchange) -> Pattern {
        let kind = &self.kinds.all[by.kind];
        let both = kind.pattern(by.to).iter().zip(kind.pattern(by.from));
        both.map(|(to, from)| to - from).collect()
    }

    /// By how much an exchange brings the gang closer.
    fn closer_by(&self, gain: &Pattern) -> i64 {
        let now = self.distance(self.missing.iter().copied());
        now - self.distance(self.missing.iter().zip(gain).map(|(m, g)| m - g))
    }

    /// One round over all exchanges, those first that lose the least worth for what they bring.
    /// Whether any was made.
    fn exchange_all_that_help(&mut self, end: u64) -> bool {
        let mut helpful: Vec<Reverse<(i64, Exchange)>> = Vec::new();
        for kind in 0..self.nodes.len() {
            if self.nodes[kind] == 0 || self.chosen[kind].len() < 2 {
                continue;
            }
            for from in 0..self.chosen[kind].len() {
                if self.chosen[kind][from] == 0 {
                    continue;
                }
                self.steps += self.chosen[kind].len() as u64;
                self.rates(kind, from, &mut helpful);
            }
        }
        // Few of them are made before the gang fits.
        let mut helpful = BinaryHeap::from(helpful);
        let mut any = false;
        while let Some(Reverse((expected, by))) = helpful.pop() {
            while self.chosen[by.kind][by.from] > 0 {
                // No longer as good as it was.
                if self
                    .rate(by)
                    .is_none_or(|now| now > expected.max(0) * 2 + 1)
                {
                    break;
                }
                self.exchange(by, 1);
                any = true;
            }
            if self.is_complete() || self.steps() >= end {
                break;
            }
        }
        any
    }

    /// As [`rate`], for an exchange by itself.
    fn rate(&self, by: Exchange) -> Option<i64> {
        let kind = &self.kinds.all[by.kind];
        let (from, to) = (kind.pattern(by.from), kind.pattern(by.to));
        rate(from, to, &self.missing, &self.prices)
    }

    /// The exchanges of a pattern that bring the gang closer, with their rates.
    fn rates(&self, kind: KindIx, from: usize, helpful: &mut Vec<Reverse<(i64, Exchange)>>) {
        let mut found = |to, rate| helpful.push(Reverse((rate, Exchange { kind, from, to })));
        // Most of a search is spent here, and a number of shapes that the compiler knows halves it.
        let known = self.rates_of::<2>(kind, from, &mut found)
            || self.rates_of::<3>(kind, from, &mut found)
            || self.rates_of::<4>(kind, from, &mut found);
        if !known {
            let patterns: Vec<&[i64]> = self.kinds.all[kind].patterns().collect();
            rates(&patterns, from, &&*self.missing, &&*self.prices, &mut found);
        }
    }

    /// The same where there are so many shapes; else false.
    fn rates_of<const SHAPES: usize>(
        &self,
        kind: KindIx,
        from: usize,
        found: &mut impl FnMut(usize, i64),
    ) -> bool {
        let (missing, prices) = (self.missing.as_slice(), self.prices.as_slice());
        let (Ok(missing), Ok(prices)) = (missing.try_into(), prices.try_into()) else {
            return false;
        };
        let patterns = self.kinds.all[kind].rows::<SHAPES>();
        rates(patterns, from, missing, prices, found);
        true
    }

    /// The two exchanges that together bring the gang closest, of those that are looked at before the
    /// steps are spent; whether there are any.
    fn exchange_two(&mut self, end: u64) -> bool {
        let mut by_gain: BTreeMap<Pattern, SmallVec<[Exchange; 2]>> = BTreeMap::new();
        for kind in 0..self.nodes.len() {
            for from in 0..self.chosen[kind].len() {
                let count = self.chosen[kind][from];
                if count == 0 {
                    continue;
                }
                self.steps += self.chosen[kind].len() as u64;
                for to in (0..self.chosen[kind].len()).filter(|&to| to != from) {
                    let by = Exchange { kind, from, to };
                    let known = by_gain.entry(self.gain(by)).or_default();
                    let differs = |k: &Exchange| (k.kind, k.from) != (kind, from) || count > 1;
                    if known.len() < 2 && known.iter().all(differs) {
                        known.push(by);
                        if count > 1 && known.len() < 2 {
                            known.push(by);
                        }
                    }
                }
            }
        }
        let all: Vec<(&Pattern, &SmallVec<[Exchange; 2]>)> = by_gain.iter().collect();
        let mut best: Option<(i64, i64, Exchange, Exchange)> = None;
        for (at, (one, by_one)) in all.iter().enumerate() {
            if self.steps() >= end {
                break;
            }
            self.steps += (all.len() - at) as u64;
            for (other, by_other) in &all[at..] {
                let gain: Pattern = one.iter().zip(other.iter()).map(|(a, b)| a + b).collect();
                let closer = self.closer_by(&gain);
                if closer <= 0 {
                    continue;
                }
                let worth = self.worth(&gain);
                if best.as_ref().is_some_and(|b| (closer, worth) <= (b.0, b.1)) {
                    continue;
                }
                let free = |a: &Exchange, b: &Exchange| {
                    (a.kind, a.from) != (b.kind, b.from) || self.chosen[a.kind][a.from] > 1
                };
                let pair = by_one.iter().find_map(|a| {
                    let second = by_other.iter().find(|b| free(a, b))?;
                    Some((*a, *second))
                });
                if let Some((a, b)) = pair {
                    best = Some((closer, worth, a, b));
                }
            }
        }
        let Some((_, _, one, other)) = best else {
            return false;
        };
        self.exchange(one, 1);
        self.exchange(other, 1);
        true
    }

    fn exchange(&mut self, by: Exchange, times: i64) {
        self.choose(by.kind, by.from, -times);
        self.choose(by.kind, by.to, times);
    }
}

/// Says of each exchange of one pattern that brings the gang closer its rate.
fn rates<P: AsRef<[i64]>>(
    patterns: &[P],
    from: usize,
    missing: &P,
    prices: &P,
    found: &mut impl FnMut(usize, i64),
) {
    let from = patterns[from].as_ref();
    for (at, to) in patterns.iter().enumerate() {
        if let Some(rate) = rate(from, to.as_ref(), missing.as_ref(), prices.as_ref()) {
            found(at, rate);
        }
    }
}

/// The worth that an exchange loses for bringing the gang closer by one, in fixed point; `None` if it
/// does not.
#[inline]
fn rate(from: &[i64], to: &[i64], missing: &[i64], prices: &[i64]) -> Option<i64> {
    let (mut closer, mut loss) = (0, 0);
    for (((from, to), missing), price) in from.iter().zip(to).zip(missing).zip(prices) {
        let gain = to - from;
        closer += price * (missing.max(&0) - (missing - gain).max(0));
        loss -= price * gain;
    }
    (closer > 0).then(|| (loss << RATE_BITS) / closer)
}
