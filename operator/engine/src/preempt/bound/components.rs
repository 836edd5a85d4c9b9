//! Independent components of the relaxed instance. Finds subsets that free enough capacity at the
//! least price, by dynamic programming over capacity.
//!
//! A claim links two candidates of one component. A component offers subsets of its candidates,
//! each with a capacity and a price. Choosing at most one subset per component to cover the need is
//! a multiple-choice knapsack problem.

use std::collections::BTreeSet;

use super::lagrangian::{FRACTION, PricedSet, Relaxation, round_up};
use super::table::{Choice, cheapest_union, least_prices};
use crate::{objective::Price, preempt::instance::CandidateIx};

/// Most cells of a table; larger tables get coarser cells.
const CELLS: i64 = 1_000_000;
/// Most claims of a component whose single claims are offered as subsets.
const SMALL_COMPONENT: usize = 200;

/// Most candidates of a component whose subsets are all enumerated.
const ENUMERABLE: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Subset {
    capacity: i64,
    price: Price,
    units: Vec<CandidateIx>,
}

impl Subset {
    /// Table entry if its capacity takes this many cells.
    fn to_choice(&self, cells: i64) -> Choice {
        Choice {
            cells: cells as usize,
            price: self.price,
        }
    }
}

/// Candidates without claims shared with other components.
#[derive(Default)]
struct Component {
    units: Vec<CandidateIx>,
    claims: Vec<usize>,
}

/// A union with at most one subset per component.
pub(in crate::preempt) struct Selection {
    pub units: Vec<CandidateIx>,
    /// Equal to [`lower_bound`] if all subsets were enumerated and no capacity was rounded.
    pub bound: Option<Price>,
}

/// The cheapest union of subsets that covers the need, at the resolution of the table, if any.
/// `sets`: solutions of the relaxation to choose from.
pub(in crate::preempt) fn select(relaxation: &Relaxation, sets: &[PricedSet]) -> Option<Selection> {
    let need = relaxation.need - relaxation.base;
    if need <= 0 {
        return None;
    }
    let mut all_subsets = !relaxation.has_cascades();
    let mut choices: Vec<Vec<Subset>> = Vec::new();
    for component in components(relaxation) {
        all_subsets &= component.units.len() <= ENUMERABLE;
        let subsets = candidate_subsets(relaxation, &component, sets);
        if !subsets.is_empty() {
            choices.push(subsets);
        }
    }
    // A coarse cell rounds capacity down. Local search repairs the deficit.
    let cell = cell_size(need, &choices);
    let width = (need + cell - 1) / cell;
    let in_cells = choices_in_cells(&choices, |capacity| capacity / cell);
    let (price, union) = cheapest_union(&in_cells, width as usize)?;
    let taken = choices.iter().zip(&union);
    let mut units: Vec<CandidateIx> = taken
        .filter_map(|(subsets, &taken)| Some(&subsets.get(taken?)?.units))
        .flatten()
        .copied()
        .collect();
    units.sort_unstable();
    let is_exact = |capacity: i64| capacity % cell == 0;
    let exact = is_exact(need) && choices.iter().flatten().all(|s| is_exact(s.capacity));
    Some(Selection {
        units,
        bound: (all_subsets && exact).then_some(price),
    })
}

fn choices_in_cells(choices: &[Vec<Subset>], cells: impl Fn(i64) -> i64) -> Vec<Vec<Choice>> {
    let choice = |s: &Subset| s.to_choice(cells(s.capacity));
    let of_component = |subsets: &Vec<Subset>| subsets.iter().map(choice).collect();
    choices.iter().map(of_component).collect()
}

/// Lower bound of the price of every set that covers the need.
///
/// Enumerates small components. The dual function at the multipliers of `sets` bounds the other
/// ones. If the table would be too large, rounds capacity up, which keeps the bound valid.
pub(in crate::preempt) fn lower_bound(relaxation: &Relaxation, sets: &[PricedSet]) -> Price {
    bound_of_components(relaxation, sets, ENUMERABLE)
}

/// As [`lower_bound`], with enumeration up to this many candidates.
pub(super) fn bound_of_components(
    relaxation: &Relaxation,
    sets: &[PricedSet],
    enumerable: usize,
) -> Price {
    let need = relaxation.need - relaxation.base;
    if need <= 0 || relaxation.has_cascades() {
        return 0;
    }
    let (small, large): (Vec<Component>, Vec<Component>) = components(relaxation)
        .into_iter()
        .partition(|p| p.units.len() <= enumerable);
    let choices: Vec<Vec<Subset>> = small.iter().map(|p| enumerate(relaxation, p)).collect();
    let cell = cell_size(need, &choices);
    let in_cells = choices_in_cells(&choices, |capacity| (capacity + cell - 1) / cell);
    let least = least_prices(&in_cells, (need / cell) as usize);
    let lines = dual_lines(relaxation, &large, sets);
    let mut best: Option<Price> = None;
    for (have, price) in least.iter().enumerate() {
        let missing = need - have as i64 * cell;
        let rest = if missing < cell {
            // All cells are full.
            Some(0)
        } else if large.is_empty() {
            None
        } else {
            Some(bound_at(&lines, missing))
        };
        if let (Some(price), Some(rest)) = (price, rest) {
            best = Some(best.map_or(price + rest, |known| known.min(price + rest)));
        }
    }
    best.unwrap_or(0)
}

/// A multiplier and the dual function of some components at it. Capacity `c` costs them at least
/// `at_zero + multiplier * c`.
struct DualLine {
    at_zero: i128,
    multiplier: i128,
}

fn dual_lines(
    relaxation: &Relaxation,
    components: &[Component],
    sets: &[PricedSet],
) -> Vec<DualLine> {
    let mut lines = Vec::new();
    for set in sets {
        let mut at_zero = 0;
        for component in components {
            let subset = subset_of(relaxation, component, units_in(component, set));
            at_zero += (subset.price << FRACTION) - set.multiplier * i128::from(subset.capacity);
        }
        lines.push(DualLine {
            at_zero,
            multiplier: set.multiplier,
        });
    }
    lines
}

/// Lower bound of the price of this capacity, by the lines.
fn bound_at(lines: &[DualLine], capacity: i64) -> Price {
    let best = lines
        .iter()
        .map(|line| line.at_zero + line.multiplier * i128::from(capacity))
        .max();
    round_up(best.unwrap_or(0).max(0))
}

fn units_in(component: &Component, set: &PricedSet) -> Vec<CandidateIx> {
    component
        .units
        .iter()
        .copied()
        .filter(|&c| set.evicted[c])
        .collect()
}

/// True if all subsets of every component are enumerated, so solutions of the relaxation add none.
pub(in crate::preempt) fn all_enumerable(relaxation: &Relaxation) -> bool {
    let components = components(relaxation);
    components.iter().all(|c| c.units.len() <= ENUMERABLE)
}

fn enumerate(relaxation: &Relaxation, component: &Component) -> Vec<Subset> {
    let mut subsets = Vec::new();
    for bits in 1u32..1 << component.units.len() {
        let mut units = Vec::new();
        for (at, &unit) in component.units.iter().enumerate() {
            if bits >> at & 1 == 1 {
                units.push(unit);
            }
        }
        subsets.push(subset_of(relaxation, component, units));
    }
    undominated(subsets)
}

/// Undominated subsets of a component. A small component offers all subsets. A large component
/// offers its parts of the relaxation's solutions, single claims and single candidates.
fn candidate_subsets(
    relaxation: &Relaxation,
    component: &Component,
    sets: &[PricedSet],
) -> Vec<Subset> {
    if component.units.len() <= ENUMERABLE {
        return enumerate(relaxation, component);
    }
    let mut subsets: BTreeSet<Vec<CandidateIx>> = BTreeSet::new();
    for set in sets {
        subsets.insert(units_in(component, set));
    }
    if component.claims.len() <= SMALL_COMPONENT {
        for &claim in &component.claims {
            subsets.insert(relaxation.claims[claim].units.clone());
        }
    }
    for &unit in &component.units {
        if relaxation.share[unit] > 0 {
            subsets.insert(vec![unit]);
        }
    }
    subsets.remove(&Vec::new());
    let subsets = subsets
        .into_iter()
        .map(|units| subset_of(relaxation, component, units));
    undominated(subsets.collect())
}

/// Subsets without another subset that frees at least as much at no higher price.
fn undominated(mut subsets: Vec<Subset>) -> Vec<Subset> {
    subsets.retain(|s| s.capacity > 0);
    // In order of decreasing capacity, each must be cheaper than all before.
    subsets.sort_by(|a, b| {
        b.capacity
            .cmp(&a.capacity)
            .then_with(|| a.price.cmp(&b.price))
    });
    let mut cheapest = None;
    subsets.retain(|s| {
        let useful = cheapest.is_none_or(|price| s.price < price);
        if useful {
            cheapest = Some(s.price);
        }
        useful
    });
    subsets
}

/// Capacity and price of these candidates (ascending) of a component.
fn subset_of(relaxation: &Relaxation, component: &Component, units: Vec<CandidateIx>) -> Subset {
    let mut capacity: i64 = units.iter().map(|&u| relaxation.share[u]).sum();
    for &claim in &component.claims {
        let claim = &relaxation.claims[claim];
        if claim.units.iter().all(|u| units.binary_search(u).is_ok()) {
            capacity += claim.capacity;
        }
    }
    Subset {
        capacity,
        price: units.iter().filter_map(|&u| relaxation.price(u)).sum(),
        units,
    }
}

/// Candidates with capacity, grouped by the claims that link them.
fn components(relaxation: &Relaxation) -> Vec<Component> {
    let count = relaxation.share.len();
    let mut parent: Vec<usize> = (0..count).collect();
    for claim in &relaxation.claims {
        for pair in claim.units.windows(2) {
            let (a, b) = (root(&mut parent, pair[0]), root(&mut parent, pair[1]));
            parent[a.max(b)] = a.min(b);
        }
    }
    let mut components: Vec<Component> = (0..count).map(|_| Component::default()).collect();
    for candidate in (0..count).filter(|&c| relaxation.price(c).is_some()) {
        components[root(&mut parent, candidate)]
            .units
            .push(candidate);
    }
    for (ix, claim) in relaxation.claims.iter().enumerate() {
        components[root(&mut parent, claim.units[0])]
            .claims
            .push(ix);
    }
    components.retain(|p| !p.claims.is_empty() || p.units.iter().any(|&c| relaxation.share[c] > 0));
    components
}

fn root(parent: &mut [usize], mut at: usize) -> usize {
    while parent[at] != at {
        parent[at] = parent[parent[at]];
        at = parent[at];
    }
    at
}

/// Capacity of one cell: the greatest common divisor of all capacities, or a multiple that keeps
/// the table small.
fn cell_size(need: i64, choices: &[Vec<Subset>]) -> i64 {
    let subsets: usize = choices.iter().map(Vec::len).sum();
    let exact = choices
        .iter()
        .flatten()
        .map(|c| c.capacity)
        .fold(need, gcd)
        .max(1);
    let coarse = need.saturating_mul(subsets as i64) / CELLS + 1;
    exact * ((coarse + exact - 1) / exact)
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
