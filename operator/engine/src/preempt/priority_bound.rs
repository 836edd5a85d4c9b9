//! Priority bound of candidates: KEP-5710 spares more important work first.

use super::{
    instance::{PreemptionInstance, after_evicting},
    plan::VictimOrder,
};
use crate::{infeasible::Infeasible, placement::place_in, problem::GangPlacement};

pub(super) struct PriorityBound {
    /// The bound. `None` if priorities set no bound.
    pub level: Option<i32>,
    /// Lowest priority for which the search ended without a plan.
    pub undecided: Option<i32>,
    /// Placement of the gang after the eviction of all candidates up to the bound.
    pub placement: GangPlacement,
}

/// Finds the lowest priority such that the gang fits if all candidates up to this priority are
/// evicted.
pub(super) fn priority_bound(
    instance: &PreemptionInstance<'_>,
    order: VictimOrder,
) -> Result<PriorityBound, Infeasible> {
    let mut bound = PriorityBound {
        level: None,
        undecided: None,
        placement: fits_without(instance, None).map_err(after_evicting)?,
    };
    if order == VictimOrder::LeastWork {
        return Ok(bound);
    }
    let mut levels: Vec<i32> = (0..instance.candidates.len())
        .map(|c| instance.unit(c).priority)
        .collect();
    levels.sort_unstable();
    levels.dedup();
    // The highest level includes all candidates, which was tried above.
    bound.level = levels.pop();
    for level in levels {
        match fits_without(instance, Some(level)) {
            Ok(placement) => {
                (bound.level, bound.placement) = (Some(level), placement);
                break;
            }
            Err(Infeasible::GaveUp { .. }) => drop(bound.undecided.get_or_insert(level)),
            Err(_) => {}
        }
    }
    Ok(bound)
}

fn fits_without(
    instance: &PreemptionInstance<'_>,
    bound: Option<i32>,
) -> Result<GangPlacement, Infeasible> {
    let pool = instance.candidates_up_to(bound);
    let evicted = (0..pool.len()).filter(|&c| pool[c]);
    place_in(instance.placement, instance.free_without(evicted))
}
