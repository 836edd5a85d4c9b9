//! Preemption: the units that a gang evicts when it does not fit into free capacity.
//!
//! | module | |
//! |---|---|
//! | [`answer`] | the options of a question and the parts of its answer |
//! | [`instance`], [`fit`] | the question in flat tables; when the gang fits, by counting |
//! | [`bound`] | lower bounds and proofs: Lagrangian relaxation, components, branch and bound |
//! | [`search`] | a victim set under change, and the local search over such sets |
//! | [`least_cost`] | the default algorithm: bound, round, improve, prove |
//! | [`follow_on`] | the same, with the evictions that victims cause in turn |
//! | [`kep`] | KEP-5710 as released |
//! | [`explain`] | why these victims and no others |

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

/// Finds capacity for a gang, evicting units of lower priority where needed.
///
/// Nothing is evicted unless the gang then fits, and no unit that could stay is evicted.
///
/// # Errors
///
/// [`Infeasible`] when the gang does not fit with all candidates evicted, may not preempt, or
/// contradicts itself; [`Infeasible::GaveUp`] when that, or whether it fits without any eviction, was
/// not found out within the budget.
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

/// As [`preempt`] with [`Algorithm::Kep`], but where no topology is asked for, members go one by
/// one to the first node of this order that has capacity. kube-scheduler has an order of its own
/// (score, ties at random); with the order given, its answers can be compared with these.
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

/// Places the gang in free capacity, else lets `algorithm` choose victims, if the gang may preempt.
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
        // Nobody is evicted for a gang that may fit as it is.
        Err(unknown @ Infeasible::GaveUp { .. }) => return Err(unknown),
        Err(reason) => reason,
    };
    if demand.preemption == EvictionPolicy::Never {
        return Err(match short {
            Infeasible::InsufficientCapacity(s) => Infeasible::MayNotPreempt(s),
            other => other,
        });
    }
    algorithm(PreemptionInstance::new(&placing, units))
}
