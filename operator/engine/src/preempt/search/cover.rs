//! Greedy covering: the cheapest units to evict for one more slot on a node.

use std::cmp::Ordering;

use smallvec::SmallVec;

use super::state::VictimState;
use crate::{
    objective::Price,
    preempt::instance::CandidateIx,
    problem::{Amounts, NodeIx, ShapeIx},
};

/// Units whose eviction frees a slot.
pub(super) type Cover = SmallVec<[CandidateIx; 8]>;

pub(super) struct Offer {
    pub node: NodeIx,
    pub cover: Cover,
    pub price: Price,
    /// Freed slots, or freed value to several shapes.
    pub frees: i64,
}

impl Ord for Offer {
    /// Compares the price per freed amount, then the node.
    fn cmp(&self, other: &Self) -> Ordering {
        self.compare_rate(other).then(self.node.cmp(&other.node))
    }
}

impl PartialOrd for Offer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Offer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Offer {}

impl Offer {
    /// Compares the price per freed amount.
    pub fn compare_rate(&self, other: &Self) -> Ordering {
        (self.price * Price::from(other.frees)).cmp(&(other.price * Price::from(self.frees)))
    }
}

/// Fixed-point share that covers all of a missing resource.
const WHOLE: i64 = 1 << 10;

struct Item<'i> {
    price: Price,
    /// Covered share of the missing amounts, summed over resources.
    covers: i64,
    candidate: CandidateIx,
    amounts: &'i [i64],
}

/// A cheap set of units on a node whose eviction makes room for one more pod of the shape. Contains
/// only units that are not evicted and pass `may_evict`. `None` if these do not suffice.
pub(super) fn cheapest_cover(
    state: &mut VictimState<'_>,
    shape: ShapeIx,
    node: NodeIx,
    may_evict: impl Fn(CandidateIx) -> bool,
) -> Option<Cover> {
    let need = &state.fit.shapes[shape];
    if !state.instance.placement.admits[need.shape].contains(node) {
        return None;
    }
    let target = i64::from(state.slots_on(shape, node)) + 1;
    let required: Amounts = need.request.iter().map(|r| r * target).collect();
    cover_of(state, &required, node, may_evict)
}

/// As [`cheapest_cover`], for this free capacity on the node.
pub(super) fn cover_of(
    state: &mut VictimState<'_>,
    required: &[i64],
    node: NodeIx,
    may_evict: impl Fn(CandidateIx) -> bool,
) -> Option<Cover> {
    let instance = state.instance;
    let mut missing: Amounts = state
        .free(node)
        .iter()
        .zip(required)
        .map(|(&free, &required)| required - free)
        .collect();
    let mut items: SmallVec<[Item<'_>; 8]> = SmallVec::new();
    for (candidate, amounts) in instance.uses_on(node) {
        if !may_evict(candidate) || state.is_evicted(candidate) {
            continue;
        }
        let covers = covered(amounts, &missing);
        if covers > 0 {
            items.push(Item {
                price: state.marginal(candidate),
                covers,
                candidate,
                amounts,
            });
        }
    }
    state.steps += items.len() as u64;
    items.sort_unstable_by(by_share);
    // Items before `at` are taken.
    let (mut at, mut cover) = (0, Cover::new());
    while is_missing(&missing, required) {
        let Item {
            candidate,
            amounts,
            price,
            ..
        } = *items.get(at)?;
        // Together with the cover, a unit can exceed its budget. Its price rises, so it moves back
        // in the order.
        let beside = state.marginal_beside(candidate, &cover);
        if beside > price {
            items[at].price = beside;
            let later = &items[at + 1..];
            let cheaper = later.partition_point(|other| by_share(other, &items[at]).is_lt());
            if cheaper > 0 {
                state.steps += 1;
                items[at..=at + cheaper].rotate_left(1);
                continue;
            }
        }
        for (missing, amount) in missing.iter_mut().zip(amounts) {
            *missing -= amount;
        }
        cover.push(candidate);
        at += 1;
    }
    items.truncate(at);
    // Later items can make an early item redundant.
    items.retain(|item| {
        let without: Amounts = missing
            .iter()
            .zip(item.amounts)
            .map(|(missing, amount)| missing + amount)
            .collect();
        let needed = is_missing(&without, required);
        if !needed {
            missing = without;
        }
        needed
    });
    Some(items.iter().map(|item| item.candidate).collect())
}

/// Least price per share first.
fn by_share(a: &Item<'_>, b: &Item<'_>) -> Ordering {
    (a.price * Price::from(b.covers))
        .cmp(&(b.price * Price::from(a.covers)))
        .then(a.candidate.cmp(&b.candidate))
}

fn is_missing(missing: &[i64], request: &[i64]) -> bool {
    missing
        .iter()
        .zip(request)
        .any(|(&missing, &request)| request > 0 && missing > 0)
}

/// Covered share of the missing amounts, with equal weight for all resources.
fn covered(amounts: &[i64], missing: &[i64]) -> i64 {
    let mut share = 0;
    for (&held, &missing) in amounts.iter().zip(missing) {
        if missing > 0 {
            share += held.min(missing) * WHOLE / missing;
        }
    }
    share
}

#[cfg(test)]
mod tests;
