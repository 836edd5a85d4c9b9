//! Table of a multiple-choice knapsack: the least price of a union with at most one subset per
//! component, by freed capacity in cells.

use std::cell::Cell;
use std::ops::Add;

use crate::objective::Price;

#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub cells: usize,
    pub price: Price,
}

/// Least price of a union for each exact number of cells, if any. The last cell includes all higher
/// numbers.
pub(super) fn least_prices(choices: &[Vec<Choice>], width: usize) -> Vec<Option<Price>> {
    if fit_in_64_bits(choices) {
        least_prices_in::<i64>(choices, width)
    } else {
        least_prices_in::<Price>(choices, width)
    }
}

/// Least price of a union that fills all cells, and its subset of each component, if any.
pub(super) fn cheapest_union(
    choices: &[Vec<Choice>],
    width: usize,
) -> Option<(Price, Vec<Option<usize>>)> {
    if fit_in_64_bits(choices) {
        cheapest_union_in::<i64>(choices, width)
    } else {
        cheapest_union_in::<Price>(choices, width)
    }
}

/// Type of prices. 64 bits nearly always suffice and take half the time.
trait Number: Copy + Ord + Add<Output = Self> {
    /// Price of unreachable cells. Plus any price, it exceeds all prices without overflow.
    const UNREACHED: Self;

    fn from_price(price: Price) -> Self;
    fn into_price(self) -> Price;
}

impl Number for i64 {
    const UNREACHED: Self = Self::MAX / 2;

    fn from_price(price: Price) -> Self {
        price as Self
    }

    fn into_price(self) -> Price {
        self.into()
    }
}

impl Number for Price {
    const UNREACHED: Self = Self::MAX / 2;

    fn from_price(price: Price) -> Self {
        price
    }

    fn into_price(self) -> Price {
        self
    }
}

/// True if the price of every union fits into 64 bits.
fn fit_in_64_bits(choices: &[Vec<Choice>]) -> bool {
    let dearest = |subsets: &Vec<Choice>| subsets.iter().map(|s| s.price).max();
    let most: Price = choices.iter().filter_map(dearest).sum();
    most < i64::UNREACHED.into_price()
}

fn least_prices_in<N: Number>(choices: &[Vec<Choice>], width: usize) -> Vec<Option<Price>> {
    let mut table = PriceTable::<N>::new(width);
    for subsets in choices {
        table.add_component(subsets, |_, _, _| {});
    }
    let least = table.least.into_iter();
    least
        .map(|price| (price != N::UNREACHED).then(|| price.into_price()))
        .collect()
}

fn cheapest_union_in<N: Number>(
    choices: &[Vec<Choice>],
    width: usize,
) -> Option<(Price, Vec<Option<usize>>)> {
    let mut table = PriceTable::<N>::new(width);
    // Chosen subset (from 1) per component and number of cells below the last. Its size gives the
    // cells before, except for the last cell.
    let mut taken = vec![0_u32; choices.len() * width];
    let mut taken_last = vec![(0_u32, width); choices.len()];
    for (ix, subsets) in choices.iter().enumerate() {
        let taken = &mut taken[ix * width..(ix + 1) * width];
        let last = &mut taken_last[ix];
        table.add_component(subsets, |at, subset, have| {
            let subset = subset as u32 + 1;
            match taken.get_mut(at) {
                Some(taken) => *taken = subset,
                None => *last = (subset, have),
            }
        });
    }
    let least = table.least[width];
    if least == N::UNREACHED {
        return None;
    }
    let mut union = vec![None; choices.len()];
    let mut at = width;
    for (ix, subsets) in choices.iter().enumerate().rev() {
        let (subset, have) = if at == width {
            taken_last[ix]
        } else {
            let subset = taken[ix * width + at];
            (subset, at)
        };
        let subset = (subset as usize).checked_sub(1);
        at = match subset {
            Some(subset) if at < width => at - subsets[subset].cells,
            _ => have,
        };
        union[ix] = subset;
    }
    Some((least.into_price(), union))
}

struct PriceTable<N> {
    least: Vec<N>,
    most: usize,
}

impl<N: Number> PriceTable<N> {
    fn new(width: usize) -> Self {
        let mut least = vec![N::UNREACHED; width + 1];
        least[0] = N::from_price(0);
        Self { least, most: 0 }
    }

    /// Adds a component. Calls `note` for each cell that becomes cheaper, with the cell, the subset
    /// and the cells filled without it.
    fn add_component(&mut self, subsets: &[Choice], mut note: impl FnMut(usize, usize, usize)) {
        let width = self.least.len() - 1;
        if width == 0 {
            return;
        }
        let before = self.most;
        let largest = subsets.iter().map(|s| s.cells).max().unwrap_or(0);
        self.most = width.min(before + largest);
        // Descending, so that each cell is computed without this component.
        if before + largest >= width {
            for (ix, subset) in subsets.iter().enumerate() {
                for have in width.saturating_sub(subset.cells)..width {
                    let price = self.least[have] + N::from_price(subset.price);
                    if price < self.least[width] {
                        self.least[width] = price;
                        note(width, ix, have);
                    }
                }
            }
        }
        let last = (width - 1).min(self.most);
        if let &[subset] = subsets {
            self.add_single(subset, last, |at, have| note(at, 0, have));
            return;
        }
        for at in (0..=last).rev() {
            for (ix, subset) in subsets.iter().enumerate() {
                if subset.cells > at {
                    continue;
                }
                let have = at - subset.cells;
                let price = self.least[have] + N::from_price(subset.price);
                if price < self.least[at] {
                    self.least[at] = price;
                    note(at, ix, have);
                }
            }
        }
    }

    /// As [`PriceTable::add_component`], for a component with one subset and the cells up to `end`.
    fn add_single(&mut self, subset: Choice, end: usize, mut note: impl FnMut(usize, usize)) {
        if subset.cells > end {
            return;
        }
        let price = N::from_price(subset.price);
        // Hot path: slices of equal length need no bounds checks.
        let least = Cell::from_mut(&mut self.least[..=end]).as_slice_of_cells();
        let (without, with) = (&least[..=end - subset.cells], &least[subset.cells..]);
        for (have, (without, with)) in without.iter().zip(with).enumerate().rev() {
            let price = without.get() + price;
            if price < with.get() {
                with.set(price);
                note(have + subset.cells, have);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deterministic numbers below `below`.
    fn dice() -> impl FnMut(u64) -> u64 {
        let mut state = 1_u64;
        move |below| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        }
    }

    /// Least price of a union that fills all cells, by enumeration.
    fn plain(choices: &[Vec<Choice>], missing: usize) -> Option<Price> {
        let Some((first, rest)) = choices.split_first() else {
            return (missing == 0).then_some(0);
        };
        let with = |s: &Choice| Some(s.price + plain(rest, missing.saturating_sub(s.cells))?);
        let without = plain(rest, missing);
        first.iter().filter_map(with).chain(without).min()
    }

    #[test]
    fn the_cheapest_union_is_found_in_numbers_of_either_size() {
        let mut roll = dice();
        for round in 0..400 {
            let width = 1 + roll(9) as usize;
            // Some prices do not fit into 64 bits.
            let scale: Price = if round % 4 == 0 { 1 << 62 } else { 1 };
            let mut subset = || Choice {
                cells: roll(5) as usize,
                price: scale * (1 + Price::from(roll(20))),
            };
            let sizes = [1, 1, 2, 3, 1];
            let choices: Vec<Vec<Choice>> = sizes
                .iter()
                .map(|&subsets| (0..subsets).map(|_| subset()).collect())
                .collect();
            assert_eq!(fit_in_64_bits(&choices), scale == 1);
            let least = plain(&choices, width);
            assert_eq!(least_prices(&choices, width).pop(), Some(least));
            let Some((price, union)) = cheapest_union(&choices, width) else {
                assert_eq!(least, None);
                continue;
            };
            let taken = choices.iter().zip(union);
            let taken = taken.filter_map(|(subsets, taken)| Some(subsets[taken?]));
            let (cells, sum) = taken.fold((0, 0), |(c, p), s| (c + s.cells, p + s.price));
            assert!(cells >= width && sum == price && least == Some(price));
        }
    }
}
