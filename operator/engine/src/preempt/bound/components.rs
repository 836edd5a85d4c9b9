//! Independent components of the relaxed question: which subsets of them free enough capacity for
//! the least price, by dynamic programming over the capacity.
//!
//! Two candidates are in one component when a claim links them. A component offers some subsets of
//! its candidates, each with a capacity and a price; choosing at most one subset per component so
//! that the need is covered is a multiple-choice knapsack problem.

use std::collections::BTreeSet;

use super::lagrangian::{FRACTION, PricedSet, Relaxation, round_up};
use crate::{objective::Price, preempt::instance::CandidateIx};

/// Cells of a table beyond which it is made coarser.
const CELLS: i64 = 1_000_000;
/// Claims of one component beyond which its single claims are not subsets to choose from.
const SMALL_COMPONENT: usize = 200;

/// Candidates of a component up to which all its subsets are tried.
const ENUMERABLE: usize = 8;

/// One subset of a component's candidates.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Subset {
    /// Capacity that it frees.
    capacity: i64,
    price: Price,
    units: Vec<CandidateIx>,
}

/// Candidates that no claim links to others.
#[derive(Default)]
struct Component {
    units: Vec<CandidateIx>,
    /// Ordinals of the claims on them.
    claims: Vec<usize>,
}

/// The cheapest union of subsets that covers the need, as far as the table is fine enough to tell;
/// nothing when no union does. `sets` are solutions of the relaxation to choose from.
pub(in crate::preempt) fn select(
    relaxation: &Relaxation,
    sets: &[PricedSet],
) -> Option<Vec<CandidateIx>> {
    let need = relaxation.need - relaxation.base;
    if need <= 0 {
        return None;
    }
    let mut choices: Vec<Vec<Subset>> = Vec::new();
    for component in components(relaxation) {
        let subsets = candidate_subsets(relaxation, &component, sets);
        if !subsets.is_empty() {
            choices.push(subsets);
        }
    }
    // Too coarse a cell rounds capacity down; the local search repairs what is missing then.
    let cell = cell_size(need, &choices);
    let width = (need + cell - 1) / cell;
    solve_table(&choices, width as usize, cell)
}

/// A lower bound of the price of every set that covers the need.
///
/// Components small enough to be enumerated are chosen exactly; what the others contribute is
/// bounded by the dual function at the multipliers of `sets`. Where the table would be too large,
/// capacity is rounded up, which keeps the bound valid.
pub(in crate::preempt) fn lower_bound(relaxation: &Relaxation, sets: &[PricedSet]) -> Price {
    bound_of_components(relaxation, sets, ENUMERABLE)
}

/// As [`lower_bound`], with components of up to so many candidates enumerated.
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
    let least = least_price_table(&choices, (need / cell) as usize, cell);
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
        if let (false, Some(rest)) = (*price == UNREACHED, rest) {
            best = Some(best.map_or(price + rest, |known| known.min(price + rest)));
        }
    }
    best.unwrap_or(0)
}

/// The price of what no union of subsets fills. With any price added it is no less, and no overflow.
const UNREACHED: Price = Price::MAX / 2;

/// Per number of cells, the least price of a union of subsets that fills them, capacities rounded
/// up; [`UNREACHED`] where no union fills just so many.
fn least_price_table(choices: &[Vec<Subset>], width: usize, cell: i64) -> Vec<Price> {
    let mut table = PriceTable::new(width);
    for subsets in choices {
        let cells = |s: &Subset| ((s.capacity + cell - 1) / cell) as usize;
        let sizes: Vec<usize> = subsets.iter().map(cells).collect();
        table.add_component(subsets, &sizes, |_, _, _| {});
    }
    table.least
}

/// The least prices of unions of one subset per component, by the cells that they fill; the last cell
/// stands for all beyond it.
struct PriceTable {
    least: Vec<Price>,
    /// Cells that can be filled, at most.
    most: usize,
}

impl PriceTable {
    /// Without components: nothing is filled.
    fn new(width: usize) -> Self {
        let mut least = vec![UNREACHED; width + 1];
        least[0] = 0;
        Self { least, most: 0 }
    }

    /// Adds a component of which one subset may be taken; `sizes` are the subsets' cells. `note` is told
    /// of each cell that gets cheaper: the cell, the subset and the cells filled without it.
    fn add_component(
        &mut self,
        subsets: &[Subset],
        sizes: &[usize],
        mut note: impl FnMut(usize, usize, usize),
    ) {
        let width = self.least.len() - 1;
        if width == 0 {
            return;
        }
        let before = self.most;
        let largest = sizes.iter().copied().max().unwrap_or(0);
        self.most = width.min(before + largest);
        // From the last cell down, so that what a cell is made of is without this component.
        if before + largest >= width {
            for (ix, (subset, &cells)) in subsets.iter().zip(sizes).enumerate() {
                for have in width.saturating_sub(cells)..width {
                    let price = self.least[have] + subset.price;
                    if price < self.least[width] {
                        self.least[width] = price;
                        note(width, ix, have);
                    }
                }
            }
        }
        let last = (width - 1).min(self.most);
        if let ([subset], &[cells]) = (subsets, sizes) {
            for at in (cells..=last).rev() {
                let price = self.least[at - cells] + subset.price;
                if price < self.least[at] {
                    self.least[at] = price;
                    note(at, 0, at - cells);
                }
            }
            return;
        }
        for at in (0..=last).rev() {
            for (ix, (subset, &cells)) in subsets.iter().zip(sizes).enumerate() {
                if cells > at {
                    continue;
                }
                let price = self.least[at - cells] + subset.price;
                if price < self.least[at] {
                    self.least[at] = price;
                    note(at, ix, at - cells);
                }
            }
        }
    }
}

/// A multiplier and the value of the dual function of some components at it: capacity `c` costs
/// them at least `at_zero + multiplier * c`.
struct DualLine {
    at_zero: i128,
    multiplier: i128,
}

/// The dual lines of these components, one per multiplier of `sets`.
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

/// The least price of so much capacity, by the lines.
fn bound_at(lines: &[DualLine], capacity: i64) -> Price {
    let best = lines
        .iter()
        .map(|line| line.at_zero + line.multiplier * i128::from(capacity))
        .max();
    round_up(best.unwrap_or(0).max(0))
}

/// The candidates of a component that are in a set.
fn units_in(component: &Component, set: &PricedSet) -> Vec<CandidateIx> {
    component
        .units
        .iter()
        .copied()
        .filter(|&c| set.evicted[c])
        .collect()
}

/// All subsets of a component, dominated ones left out.
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

/// The cheapest union of one subset per component at most that fills `width` cells, capacities
/// rounded down.
fn solve_table(choices: &[Vec<Subset>], width: usize, cell: i64) -> Option<Vec<CandidateIx>> {
    let mut table = PriceTable::new(width);
    // Per component and number of cells: the subset taken, and the cells filled before it.
    let mut picked: Vec<Vec<(u32, u32)>> = Vec::with_capacity(choices.len());
    for subsets in choices {
        let cells = |s: &Subset| (s.capacity / cell) as usize;
        let sizes: Vec<usize> = subsets.iter().map(cells).collect();
        let mut from: Vec<(u32, u32)> = (0..=width as u32).map(|at| (u32::MAX, at)).collect();
        table.add_component(subsets, &sizes, |at, ix, have| {
            from[at] = (ix as u32, have as u32);
        });
        picked.push(from);
    }
    if table.least[width] == UNREACHED {
        return None;
    }
    let mut at = width;
    let mut units = Vec::new();
    for (subsets, from) in choices.iter().zip(&picked).rev() {
        let (ix, have) = from[at];
        if let Some(subset) = subsets.get(ix as usize) {
            units.extend(&subset.units);
        }
        at = have as usize;
    }
    units.sort_unstable();
    Some(units)
}

/// The subsets of a component to choose from, dominated ones left out: all of a small component,
/// else what the solutions of the relaxation hold of it, single claims and single candidates.
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

/// The subsets of which no other frees at least as much for at most the price.
fn undominated(mut subsets: Vec<Subset>) -> Vec<Subset> {
    subsets.retain(|s| s.capacity > 0);
    // From the largest capacity down, each must be cheaper than all before it.
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

/// These candidates of a component (ascending), with the capacity that they free and their price.
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

/// The candidates that can be of use, by the claims that link them.
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

/// The root of a vertex in the union-find forest.
fn root(parent: &mut [usize], mut at: usize) -> usize {
    while parent[at] != at {
        parent[at] = parent[parent[at]];
        at = parent[at];
    }
    at
}

/// The capacity of one cell: the greatest common divisor of all capacities, or a multiple of it
/// that keeps the table small.
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
