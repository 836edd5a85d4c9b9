//! Prices of pods that minimise the value of the nodes minus that of the gang.

use std::rc::Rc;

use super::patterns::{Kind, Pattern, worth};

/// Sum of the prices of all wanted pods.
const WORTH: i64 = 1 << 30;

/// Prices at which every shape has the same total price.
pub(super) fn even(required: &Pattern) -> Pattern {
    let share = WORTH / required.len().max(1) as i64;
    required
        .iter()
        .map(|w| (share / w.max(&1)).max(1))
        .collect()
}

/// Prices and their surplus (value of the nodes minus value of the gang), smallest first. A
/// negative surplus proves that the gang does not fit. Each round raises prices of missing pods and
/// lowers prices of surplus pods, by decreasing fractions. Ends after `rounds` or `steps`; also
/// returns the spent steps.
pub(super) fn tightest(
    kinds: &[Rc<Kind>],
    nodes: &[i64],
    required: &Pattern,
    first: &Pattern,
    rounds: usize,
    steps: u64,
) -> (Vec<(i64, Pattern)>, u64) {
    let mut tried: Vec<(i64, Pattern)> = Vec::new();
    let mut prices = first.clone();
    let mut spent = 0;
    for round in 0..rounds {
        let mut surplus = -worth(&prices, required);
        let mut missing = required.clone();
        for (kind, &nodes) in kinds.iter().zip(nodes) {
            if nodes == 0 {
                continue;
            }
            spent += kind.len as u64;
            let (dearest, worth) = kind.dearest(&prices);
            surplus += worth * nodes;
            for (missing, held) in missing.iter_mut().zip(kind.pattern(dearest)) {
                *missing -= held * nodes;
            }
        }
        tried.push((surplus, prices.clone()));
        if surplus < 0 || spent >= steps {
            break;
        }
        let part = 3 + 2 * round as i128;
        for ((price, missing), &required) in prices.iter_mut().zip(&missing).zip(required) {
            let missing = (*missing).clamp(-required, required);
            let by =
                i128::from(*price) * i128::from(missing) / (i128::from(required.max(1)) * part);
            *price = (*price + by as i64).max(1);
        }
        normalise(&mut prices, required);
    }
    tried.sort();
    tried.dedup();
    (tried, spent)
}

/// Scales the prices so that their sum over all wanted pods is [`WORTH`].
fn normalise(prices: &mut Pattern, required: &Pattern) {
    let each = prices.iter().zip(required);
    let sum: i128 = each.map(|(&p, &w)| i128::from(p) * i128::from(w)).sum();
    for price in prices {
        *price = ((i128::from(*price) * i128::from(WORTH) / sum.max(1)) as i64).max(1);
    }
}
