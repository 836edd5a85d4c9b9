//! The least work lost, within the rules of KEP-5710.

use std::cmp::Reverse;

use super::{
    Bound, Options, Order, Preemption,
    field::{CandIx, Field, after_evicting},
};
use crate::{explain::Explanation, infeasible::Infeasible, placement::place_in};

pub(super) fn preempt(field: &Field<'_>, options: &Options) -> Result<Preemption, Infeasible> {
    let pool = pool(field, options.order)?;
    let mut gone = pool.clone();
    let mut order = pool;
    order.sort_by_key(|&c| (Reverse(field.unit(c).pdbs.len()), Reverse(field.unit(c).cost), c));
    for cand in order {
        let fewer: Vec<CandIx> = gone.iter().copied().filter(|&c| c != cand).collect();
        if place_in(field.site, field.room_without(fewer.iter().copied())).is_ok() {
            gone = fewer;
        }
    }
    let placement = place_in(field.site, field.room_without(gone.iter().copied()))?;
    let victims = field.unit_ordinals(gone);
    let toll = field.units.toll(&victims);
    Ok(Preemption {
        victims,
        placement,
        toll,
        bound: Bound::default(),
        proven: false,
        explanation: Explanation::default(),
    })
}

/// The candidates that may go: all, or those up to the lowest priority that makes room at all.
fn pool(field: &Field<'_>, order: Order) -> Result<Vec<CandIx>, Infeasible> {
    let all: Vec<CandIx> = (0..field.cands.len()).collect();
    let fits = |pool: &[CandIx]| place_in(field.site, field.room_without(pool.iter().copied()));
    fits(&all).map_err(after_evicting)?;
    if order == Order::LeastWork {
        return Ok(all);
    }
    let mut levels: Vec<i32> = all.iter().map(|&c| field.unit(c).priority).collect();
    levels.sort_unstable();
    levels.dedup();
    let up_to =
        |level: i32| -> Vec<CandIx> { all.iter().copied().filter(|&c| field.unit(c).priority <= level).collect() };
    let lowest = levels.into_iter().map(up_to).find(|pool| fits(pool).is_ok());
    Ok(lowest.unwrap_or(all))
}
