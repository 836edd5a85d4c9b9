//! Preemption: units that a gang evicts if it does not fit into free capacity.
//!
//! | module | |
//! |---|---|
//! | [`plan`] | options and plans |
//! | [`instance`], [`fit`] | the decision in flat tables; when the gang fits, by counting |
//! | [`bound`] | lower bounds: Lagrangian relaxation |
//! | [`search`] | a mutable victim set, and local search over such sets |
//! | [`least_cost`] | the default algorithm: bound, round, improve |
//! | [`follow_on`] | the same, including follow-on evictions |
//! | [`kep`] | KEP-5710 as released |
//! | [`explain`] | reasons for the choice of victims |

mod bound;
mod explain;
mod fit;
mod follow_on;
mod instance;
mod kep;
mod least_cost;
mod plan;
mod priority_bound;
mod search;
#[cfg(test)]
mod testing;

pub use explain::{Reasons, RunnerUp, Spared, Taken, explain};
pub use plan::{Algorithm, Explanation, FollowOn, PreemptionOptions, PreemptionPlan, VictimOrder};

use crate::{
    cluster::Cluster,
    infeasible::Infeasible,
    method::Method,
    objective::{Price, Weights},
    placement::{
        PlacementInstance, Steps, check, min_count::MinCount, place_if_it_fits, place_in_free,
    },
    problem::{Demand, EvictionPolicy, NodeIx, Units},
};
use instance::PreemptionInstance;

/// The price of further pods of a shape may take one part in so many of the work budget.
const PRICING_PART: u64 = 32;

/// Finds capacity for a gang, and evicts units of lower priority if necessary.
///
/// Evicts nothing unless the gang then fits, and no unit that could stay. If the search in free
/// capacity ends without a result, evictions are searched, but are not proven best.
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
) -> Result<PreemptionPlan, Infeasible> {
    decide(
        cluster,
        units,
        demand,
        options,
        |instance, work_budget| match options.algorithm {
            Algorithm::Kep => kep::preempt(&instance, None),
            Algorithm::LeastCost => {
                let options = PreemptionOptions {
                    work_budget,
                    ..options.clone()
                };
                follow_on::preempt(instance, &options)
            }
        },
    )
}

/// As [`preempt`] with [`Algorithm::Kep`]. Without a topology constraint, members are placed one by
/// one on the first node in this order with capacity. kube-scheduler has its own order (score,
/// random ties); an explicit order makes both plans comparable.
///
/// # Errors
///
/// As [`preempt`].
pub fn preempt_kep_in_order(
    cluster: &Cluster,
    units: &Units,
    demand: &Demand,
    node_order: &[NodeIx],
) -> Result<PreemptionPlan, Infeasible> {
    let options = PreemptionOptions::default();
    decide(cluster, units, demand, &options, |instance, _| {
        kep::preempt(&instance, Some(node_order))
    })
}

/// Places the gang in free capacity. Otherwise `algorithm` chooses victims, if the gang may
/// preempt. If `minCount` can be divided among the shapes in several ways, compares divisions.
fn decide(
    cluster: &Cluster,
    units: &Units,
    demand: &Demand,
    options: &PreemptionOptions,
    algorithm: impl Fn(PreemptionInstance<'_>, u64) -> Result<PreemptionPlan, Infeasible>,
) -> Result<PreemptionPlan, Infeasible> {
    check(cluster, demand)?;
    let work_budget = options.work_budget;
    let decide_divided = |demand: &Demand, work_budget| {
        let mut placing = PlacementInstance::new(cluster, demand);
        placing.steps = Steps::new(work_budget);
        placing.without = options.without;
        decide_divided(&placing, units, work_budget, &algorithm)
    };
    let Some(min_count) = MinCount::of(demand) else {
        return decide_divided(demand, work_budget);
    };
    if let Some(placement) = place_if_it_fits(cluster, demand, work_budget) {
        return Ok(PreemptionPlan::without_victims(placement));
    }
    let free = place_if_it_fits(cluster, &min_count.least(), work_budget);
    let placed = min_count.placed_beyond_least(&free.unwrap_or_default());
    let (mut divisions, complete) = min_count.alternatives(&placed);
    if !complete && options.without != Some(Method::Divisions) {
        let part = work_budget / PRICING_PART;
        let all_work = units.units.iter().map(|unit| Price::from(unit.cost)).sum();
        let weights = Weights::excess_first(all_work);
        divisions.extend(min_count.cheapest(&placed, |demand| {
            let plan = decide_divided(demand, part).ok()?;
            let bound = plan.explanation.priority_bound;
            Some((bound, weights.scalar(&plan.cost)))
        }));
    }
    let each = work_budget / divisions.len().max(1) as u64;
    let plans: Vec<Result<PreemptionPlan, Infeasible>> = divisions
        .iter()
        .map(|demand| decide_divided(demand, each))
        .collect();
    let is_proven = |plan: &Result<PreemptionPlan, Infeasible>| match plan {
        Ok(plan) => plan.proven,
        Err(reason) => !matches!(reason, Infeasible::GaveUp { .. }),
    };
    let proven = complete && plans.iter().all(is_proven);
    let plans = plans.into_iter().flatten();
    let best = plans.min_by_key(|a| (a.explanation.priority_bound, a.cost));
    match best {
        Some(best) if proven => Ok(best),
        Some(best) => Ok(best.without_proof()),
        None => {
            let plan = min_count.first(|demand| decide_divided(demand, each));
            plan.map(PreemptionPlan::without_proof)
        }
    }
}

/// As [`decide`], for one division of `minCount`.
fn decide_divided(
    placing: &PlacementInstance<'_>,
    units: &Units,
    work_budget: u64,
    algorithm: &impl Fn(PreemptionInstance<'_>, u64) -> Result<PreemptionPlan, Infeasible>,
) -> Result<PreemptionPlan, Infeasible> {
    let short = match place_in_free(placing) {
        Ok(placement) => return Ok(PreemptionPlan::without_victims(placement)),
        Err(reason) => reason,
    };
    if placing.demand.preemption == EvictionPolicy::Never {
        return Err(match short {
            Infeasible::InsufficientCapacity(s) => Infeasible::MayNotPreempt(s),
            other => other,
        });
    }
    let plan = algorithm(PreemptionInstance::new(placing, units), work_budget)?;
    Ok(match short {
        // Fewer evictions may suffice.
        Infeasible::GaveUp { .. } => plan.without_proof(),
        _ => plan,
    })
}
