//! Exchanges of patterns that reduce the value of missing pods.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::exchange::{Exchange, Rated};
use super::mixture::{Effort, Mixture};
use super::patterns::{KindIx, Pattern, worth};
use crate::method::Method;

/// Fraction bits of [`rate`].
const RATE_BITS: u32 = 20;

/// An exchange or two of equal gain.
struct Gain {
    pods: Pattern,
    worth: i64,
    by: SmallVec<[Exchange; 2]>,
}

impl Mixture<'_> {
    /// Exchanges patterns while that reduces the value of missing pods, at the least loss of value.
    /// With full effort, also tries two exchanges at once.
    pub(super) fn repair(&mut self, end: u64, effort: Effort) -> bool {
        loop {
            while self.exchange_all_that_help(end) {
                if self.is_complete() {
                    return true;
                }
            }
            if effort == Effort::Little
                || !self.kinds.instance.uses(Method::TwoPatterns)
                || self.steps() >= end
                || !self.exchange_two(end)
            {
                return false;
            }
            if self.is_complete() {
                return true;
            }
        }
    }

    fn gain(&self, by: Exchange) -> Pattern {
        let kind = &self.kinds.all[by.kind];
        let both = kind.pattern(by.to).iter().zip(kind.pattern(by.from));
        both.map(|(to, from)| to - from).collect()
    }

    /// One pass over all exchanges, least loss of value per gain first. True if any was made.
    fn exchange_all_that_help(&mut self, end: u64) -> bool {
        let mut helpful = std::mem::take(&mut self.helpful);
        helpful.clear();
        for kind in 0..self.nodes.len() {
            if self.nodes[kind] == 0 || self.chosen[kind].len() < 2 {
                continue;
            }
            for from in 0..self.chosen[kind].len() {
                if self.chosen[kind][from] == 0 {
                    continue;
                }
                self.steps += self.chosen[kind].len() as u64;
                if self.another_may_help(kind, from) {
                    self.rates(kind, from, &mut helpful);
                }
            }
        }
        helpful.sort_unstable();
        let mut any = false;
        for &rated in &helpful {
            let (expected, by) = (rated.rate(), rated.exchange());
            while self.chosen[by.kind][by.from] > 0 {
                // The exchange is no longer as good as expected.
                if self
                    .rate(by)
                    .is_none_or(|now| now > expected.max(0) * 2 + 1)
                {
                    break;
                }
                self.exchange(by, self.times_alike(by));
                any = true;
            }
            if self.is_complete() || self.steps() >= end {
                break;
            }
        }
        self.helpful = helpful;
        any
    }

    /// True if any pattern of a kind has more missing pods than this one.
    fn another_may_help(&self, kind: KindIx, from: usize) -> bool {
        let kind = &self.kinds.all[kind];
        let mut shapes = self.missing.iter().zip(&kind.most).zip(kind.pattern(from));
        shapes.any(|((&missing, most), from)| missing > 0 && most > from)
    }

    /// As [`rate`], for a single exchange.
    fn rate(&self, by: Exchange) -> Option<i64> {
        match self.prices.len() {
            2 => self.rate_of::<2>(by),
            3 => self.rate_of::<3>(by),
            4 => self.rate_of::<4>(by),
            _ => {
                let kind = &self.kinds.all[by.kind];
                let (from, to) = (kind.pattern(by.from), kind.pattern(by.to));
                rate(from, to, &self.missing, &self.prices)
            }
        }
    }

    fn rate_of<const SHAPES: usize>(&self, by: Exchange) -> Option<i64> {
        let kind = &self.kinds.all[by.kind];
        rate(
            kind.pattern(by.from).first_chunk::<SHAPES>()?,
            kind.pattern(by.to).first_chunk::<SHAPES>()?,
            self.missing.first_chunk::<SHAPES>()?,
            self.prices.first_chunk::<SHAPES>()?,
        )
    }

    /// As [`times_alike`], bounded by the number of nodes with the pattern.
    fn times_alike(&self, by: Exchange) -> i64 {
        let kind = &self.kinds.all[by.kind];
        let (from, to) = (kind.pattern(by.from), kind.pattern(by.to));
        let nodes = self.chosen[by.kind][by.from];
        times_alike(from, to, &self.missing).min(nodes)
    }

    fn rates(&self, kind: KindIx, from: usize, helpful: &mut Vec<Rated>) {
        let mut add = |to, rate| helpful.push(Rated::new(rate, Exchange { kind, from, to }));
        // Hot path: a constant number of shapes halves the time.
        let fixed_size = self.rates_of::<2>(kind, from, &mut add)
            || self.rates_of::<3>(kind, from, &mut add)
            || self.rates_of::<4>(kind, from, &mut add);
        if !fixed_size {
            let patterns: Vec<&[i64]> = self.kinds.all[kind].patterns().collect();
            let mut without = self.missing.clone();
            for (without, held) in without.iter_mut().zip(patterns[from]) {
                *without += held;
            }
            let missing = [&&*self.missing, &&*without];
            rates(&patterns, from, missing, &&*self.prices, &mut add);
        }
    }

    /// False if the number of shapes differs.
    fn rates_of<const SHAPES: usize>(
        &self,
        kind: KindIx,
        from: usize,
        add: &mut impl FnMut(usize, i64),
    ) -> bool {
        let missing: Result<&[i64; SHAPES], _> = self.missing.as_slice().try_into();
        let (Ok(missing), Ok(prices)) = (missing, self.prices.as_slice().try_into()) else {
            return false;
        };
        let patterns = self.kinds.all[kind].rows::<SHAPES>();
        let mut without: [i64; SHAPES] = *missing;
        for (without, held) in without.iter_mut().zip(&patterns[from]) {
            *without += held;
        }
        rates(patterns, from, [missing, &without], prices, add);
        true
    }

    /// Makes the best pair of exchanges found within the step limit. False without a pair.
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
                    let same_gain = by_gain.entry(self.gain(by)).or_default();
                    let differs = |k: &Exchange| (k.kind, k.from) != (kind, from) || count > 1;
                    if same_gain.len() < 2 && same_gain.iter().all(differs) {
                        same_gain.push(by);
                        if count > 1 && same_gain.len() < 2 {
                            same_gain.push(by);
                        }
                    }
                }
            }
        }
        let all: Vec<Gain> = by_gain
            .into_iter()
            .map(|(pods, by)| Gain {
                worth: self.worth(&pods),
                pods,
                by,
            })
            .collect();
        let Some((one, other)) = self.best_two(&all, end) else {
            return false;
        };
        self.exchange(one, 1);
        self.exchange(other, 1);
        true
    }

    /// Best pair of exchanges found within the step limit: least value of missing pods, then most
    /// value of all pods.
    fn best_two(&mut self, all: &[Gain], end: u64) -> Option<(Exchange, Exchange)> {
        let now = distance(self.missing.iter().copied(), &self.prices);
        let mut best: Option<((i64, i64), (Exchange, Exchange))> = None;
        for (at, one) in all.iter().enumerate() {
            if self.steps() >= end {
                break;
            }
            self.steps += (all.len() - at) as u64;
            let missing = self.missing.iter().zip(&one.pods);
            let missing: Pattern = missing.map(|(missing, gain)| missing - gain).collect();
            for other in &all[at..] {
                let then = missing
                    .iter()
                    .zip(&other.pods)
                    .map(|(missing, gain)| missing - gain);
                let closer = now - distance(then, &self.prices);
                let merit = (closer, one.worth + other.worth);
                if closer <= 0 || best.is_some_and(|(best, _)| merit <= best) {
                    continue;
                }
                if let Some(pair) = self.pair(&one.by, &other.by) {
                    best = Some((merit, pair));
                }
            }
        }
        best.map(|(_, pair)| pair)
    }

    /// One exchange of each list, on different nodes.
    fn pair(&self, ones: &[Exchange], others: &[Exchange]) -> Option<(Exchange, Exchange)> {
        ones.iter().find_map(|a| {
            let second = others.iter().find(|b| self.are_apart(a, b))?;
            Some((*a, *second))
        })
    }

    fn are_apart(&self, one: &Exchange, other: &Exchange) -> bool {
        (one.kind, one.from) != (other.kind, other.from) || self.chosen[one.kind][one.from] > 1
    }

    fn exchange(&mut self, by: Exchange, times: i64) {
        self.choose(by.kind, by.from, -times);
        self.choose(by.kind, by.to, times);
    }
}

/// Reports the rate of each helpful exchange of one pattern. `missing`: now, and without that
/// pattern.
fn rates<P: AsRef<[i64]>>(
    patterns: &[P],
    from: usize,
    missing: [&P; 2],
    prices: &P,
    add: &mut impl FnMut(usize, i64),
) {
    let [now, without] = missing;
    let prices = prices.as_ref();
    let now = distance(now.as_ref().iter().copied(), prices);
    let held = worth(prices, patterns[from].as_ref());
    for (at, to) in patterns.iter().enumerate() {
        let left = without.as_ref().iter().zip(to.as_ref());
        let closer = now - distance(left.map(|(without, to)| without - to), prices);
        // Few exchanges help, so the loss is computed for few.
        if closer > 0 {
            let loss = held - worth(prices, to.as_ref());
            add(at, (loss << RATE_BITS) / closer);
        }
    }
}

/// Value of the missing pods.
fn distance(missing: impl Iterator<Item = i64>, prices: &[i64]) -> i64 {
    let each = missing.zip(prices);
    each.map(|(missing, price)| missing.max(0) * price).sum()
}

/// Loss of value per gained value of missing pods, in fixed point. `None` without a gain.
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

/// How many times in a row an exchange keeps its current rate; at least 1.
fn times_alike(from: &[i64], to: &[i64], missing: &[i64]) -> i64 {
    let mut times = i64::MAX;
    for ((from, to), missing) in from.iter().zip(to).zip(missing) {
        let gain = to - from;
        // A gain counts while pods are missing. A loss is free while there are surplus pods.
        if (gain > 0 && *missing > 0) || (gain < 0 && *missing < 0) {
            times = times.min(missing / gain);
        }
    }
    times.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Patterns of two shapes with up to `most` pods each.
    fn patterns(most: i64) -> impl Iterator<Item = [i64; 2]> + Clone {
        (0..=most).flat_map(move |a| (0..=most).map(move |b| [a, b]))
    }

    #[test]
    fn an_exchange_has_the_same_rate_as_often_as_is_said() {
        let prices = [5, 7];
        let mut more_than_once = 0;
        for (from, to) in patterns(3).flat_map(|from| patterns(3).map(move |to| (from, to))) {
            for missing in patterns(20).map(|m| m.map(|m| m - 10)) {
                let Some(now) = rate(&from, &to, &missing, &prices) else {
                    continue;
                };
                let times = times_alike(&from, &to, &missing);
                more_than_once += i32::from(times > 1);
                for before in 0..times {
                    let then = [0, 1].map(|at| missing[at] - before * (to[at] - from[at]));
                    assert_eq!(rate(&from, &to, &then, &prices), Some(now));
                }
            }
        }
        assert!(more_than_once > 1_000, "{more_than_once}");
    }
}
