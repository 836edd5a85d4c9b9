//! What it takes to win one more seat on a node.

use smallvec::SmallVec;

use super::{
    field::CandIx,
    state::{Price, State},
};
use crate::problem::{Amounts, NodeIx, ShapeIx};

/// Units that together win a seat.
pub(super) type Bundle = SmallVec<[CandIx; 8]>;

/// What covers all that is lacking of a resource; what units cover is summed over the resources.
const WHOLE: i64 = 1 << 10;

/// A unit on the node.
struct Piece<'f> {
    price: Price,
    /// How much of what is lacking it covers.
    covers: i64,
    cand: CandIx,
    amounts: &'f [i64],
}

/// A cheap set of units on a node whose eviction makes room for one more pod of the shape there; only units that `may_go`
/// and are not gone yet.
pub(super) fn cheapest_bundle(
    state: &mut State<'_>,
    shape: ShapeIx,
    node: NodeIx,
    may_go: impl Fn(CandIx) -> bool,
) -> Option<Bundle> {
    let (field, goal) = (state.field, &state.goal.shapes[shape]);
    if !field.site.admits[goal.shape].contains(node) {
        return None;
    }
    let target = i64::from(state.seats_on(shape, node)) + 1;
    let mut missing: Amounts =
        state.room(node).iter().zip(&goal.request).map(|(&have, &r)| r * target - have).collect();
    let lacks = |missing: &[i64]| missing.iter().zip(&goal.request).any(|(&m, &r)| r > 0 && m > 0);
    let mut pieces: SmallVec<[Piece<'_>; 8]> = SmallVec::new();
    for (cand, amounts) in field.uses_on(node).filter(|&(c, _)| may_go(c) && !state.is_gone(c)) {
        let covers = covered(amounts, &missing);
        if covers > 0 {
            pieces.push(Piece { price: state.marginal(cand), covers, cand, amounts });
        }
    }
    state.steps += pieces.len() as u64;
    // The least price for what is lacking first.
    pieces.sort_unstable_by(|a, b| {
        (a.price * Price::from(b.covers)).cmp(&(b.price * Price::from(a.covers))).then(a.cand.cmp(&b.cand))
    });
    let mut taken = 0;
    while lacks(&missing) {
        let piece = pieces.get(taken)?;
        missing.iter_mut().zip(piece.amounts).for_each(|(m, a)| *m -= a);
        taken += 1;
    }
    pieces.truncate(taken);
    // What was taken early may have become needless.
    pieces.retain(|piece| {
        let without: Amounts = missing.iter().zip(piece.amounts).map(|(m, a)| m + a).collect();
        let needed = lacks(&without);
        if !needed {
            missing = without;
        }
        needed
    });
    Some(pieces.into_iter().map(|piece| piece.cand).collect())
}

/// How much of what is missing these amounts cover, all resources alike.
fn covered(amounts: &[i64], missing: &[i64]) -> i64 {
    amounts
        .iter()
        .zip(missing)
        .map(|(&held, &lacking)| if lacking > 0 { held.min(lacking) * WHOLE / lacking } else { 0 })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        placement::Site,
        preempt::{
            field::{Field, tests::Question},
            goal::Goal,
        },
    };

    #[test]
    fn a_seat_is_won_by_the_cheapest_units_that_are_enough_and_each_unit_weighed_is_a_step() {
        let mut question = Question::new(&[8], 1, 4);
        for (cost, amount) in [(1, 1), (50, 3), (20, 4)] {
            question.unit(cost, amount, &[0]);
        }
        let site = Site::new(&question.cluster, &question.demand);
        let (field, goal) = (Field::new(&site, &question.units), Goal::new(&site));
        let mut state = State::new(&field, &goal);
        let bundle = cheapest_bundle(&mut state, 0, 0, |_| true).expect("there are enough");
        assert_eq!(
            bundle.as_slice(),
            [2],
            "the first comes cheapest by what it frees, and is needless beside the third"
        );
        assert_eq!(state.steps, 3);
    }
}
