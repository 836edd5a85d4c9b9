//! Preemption: units that a gang evicts if it does not fit into free capacity.
//!
//! | module | |
//! |---|---|
//! | [`answer`] | options and answers |
//! | [`instance`], [`fit`] | the decision in flat tables; when the gang fits, by counting |
//! | [`bound`] | lower bounds and proofs: Lagrangian relaxation, components, branch and bound |
//! | [`search`] | a mutable victim set, and local search over such sets |
//! | [`least_cost`] | the default algorithm: bound, round, improve, prove |
//! | [`follow_on`] | the same, including follow-on evictions |
//! | [`kep`] | KEP-5710 as released |
//! | [`explain`] | reasons for the choice of victims |

mod answer;
mod bound;
mod explain;
mod fit;
mod follow_on;
mod instance;
mod kep;
mod least_cost;
mod priority_bound;
mod search;
#[cfg(test)]
mod testing;

pub use answer::{
    Algorithm, Explanation, FollowOn, PreemptionAnswer, PreemptionOptions, VictimOrder,
};
pub use explain::{Reasons, RunnerUp, Spared, Taken, explain};

use crate::{
    cluster::Cluster,
    infeasible::Infeasible,
    placement::{PlacementInstance, Steps, check, place_in_free},
    problem::{Demand, EvictionPolicy, NodeIx, Units},
};
use instance::PreemptionInstance;

/// Finds capacity for a gang, and evicts units of lower priority if necessary.
///
/// Evicts nothing unless the gang then fits, and no unit that could stay. If the search in free
/// capacity ends without an answer, victims are searched, but not proven best.
///
/// # Errors
///
/// [`Infeasible`] if the gang does not fit even after evicting all candidates, may not preempt, or
/// is inconsistent. [`Infeasible::GaveUp`] if the budget ends before that.
pub fn preempt(
    cluster: &Cluster,
    units: &Units,
    demand: &Demand,
    options: &PreemptionOptions,
) -> Result<PreemptionAnswer, Infeasible> {
    let budget = options.work_budget;
    decide(cluster, units, demand, budget, |instance| {
        match options.algorithm {
            Algorithm::Kep => kep::preempt(&instance, None),
            Algorithm::LeastCost => follow_on::preempt(instance, options),
        }
    })
}

/// As [`preempt`] with [`Algorithm::Kep`]. Without a topology constraint, members are placed one by
/// one on the first node in this order with capacity. kube-scheduler has its own order (score,
/// random ties); an explicit order makes both answers comparable.
///
/// # Errors
///
/// As [`preempt`].
pub fn preempt_kep_in_order(
    cluster: &Cluster,
    units: &Units,
    demand: &Demand,
    node_order: &[NodeIx],
) -> Result<PreemptionAnswer, Infeasible> {
    let budget = PreemptionOptions::default().work_budget;
    decide(cluster, units, demand, budget, |instance| {
        kep::preempt(&instance, Some(node_order))
    })
}

/// Places the gang in free capacity. Otherwise `algorithm` chooses victims, if the gang may
/// preempt.
fn decide(
    cluster: &Cluster,
    units: &Units,
    demand: &Demand,
    work_budget: u64,
    algorithm: impl FnOnce(PreemptionInstance<'_>) -> Result<PreemptionAnswer, Infeasible>,
) -> Result<PreemptionAnswer, Infeasible> {
    check(cluster, demand)?;
    let mut placing = PlacementInstance::new(cluster, demand);
    placing.steps = Steps::new(work_budget);
    let short = match place_in_free(&placing) {
        Ok(placement) => return Ok(PreemptionAnswer::without_victims(placement)),
        Err(reason) => reason,
    };
    if demand.preemption == EvictionPolicy::Never {
        return Err(match short {
            Infeasible::InsufficientCapacity(s) => Infeasible::MayNotPreempt(s),
            other => other,
        });
    }
    let answer = algorithm(PreemptionInstance::new(&placing, units))?;
    Ok(match short {
        // Fewer evictions may suffice.
        Infeasible::GaveUp { .. } => answer.without_proof(),
        _ => answer,
    })
}
