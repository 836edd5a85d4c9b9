//! Reasons for the victims: why each was taken, why other units were spared, and the cost of the
//! next best set.

mod reasons;

pub use reasons::{Reasons, RunnerUp, Spared, Taken};

use super::{
    fit::FitCondition,
    follow_on,
    instance::{CandidateIx, DomainInstances, PreemptionInstance},
    plan::{Algorithm, PreemptionOptions, PreemptionPlan},
    search::{
        local_search::LocalSearch,
        state::{VictimSet, VictimState},
    },
};
use crate::{
    cluster::Cluster,
    placement::{PlacementInstance, Steps, min_count::MinCount},
    problem::{Demand, NodeIx, UnitIx, Units},
};

/// Number of victims with a computed alternative: those with the largest savings.
const WORKED_OUT: usize = 32;

/// Explains a plan of [`preempt`](super::preempt) to the same arguments. Compares sets by the
/// work of their own units, within the chosen domain if a topology constraint binds the whole gang.
/// Adds follow-on evictions to the cost of the next best set, to the depth in the options.
pub fn explain(
    cluster: &Cluster,
    units: &Units,
    demand: &Demand,
    options: &PreemptionOptions,
    plan: &PreemptionPlan,
) -> Reasons {
    // Compares sets for the same division of `minCount`.
    let divided = MinCount::of(demand).map(|min_count| min_count.as_placed(&plan.placement));
    let demand = divided.as_ref().unwrap_or(demand);
    let mut reasons = compare_in_domain(cluster, units, demand, options, plan);
    if options.algorithm == Algorithm::LeastCost
        && let Some(next) = &mut reasons.runner_up
    {
        let lost = follow_on::cost(
            cluster,
            units,
            demand,
            &next.victims,
            options.follow_on_depth,
        );
        next.cost.add_follow_on(lost);
    }
    reasons
}

/// Compares within the domain of the plan, if a topology constraint binds the whole gang.
fn compare_in_domain(
    cluster: &Cluster,
    units: &Units,
    demand: &Demand,
    options: &PreemptionOptions,
    plan: &PreemptionPlan,
) -> Reasons {
    let mut placement = PlacementInstance::new(cluster, demand);
    placement.steps = Steps::new(options.work_budget);
    let instance = PreemptionInstance::new(&placement, units);
    let level = placement.required().gang.as_ref();
    let first = plan.placement.assignments.first();
    let Some((level, domain)) = level.and_then(|level| Some((level, level.of(first?.node)?)))
    else {
        return compare(&instance, options, plan, |node| node);
    };
    let domains = DomainInstances::new(&placement, level);
    let placement = domains.placement(&placement, domain);
    let instance = domains.preemption(&instance, &placement, domain);
    compare(&instance, options, plan, |node| domains.nodes(domain)[node])
}

/// `to_whole` converts the instance's node ordinals to those of the cluster.
fn compare(
    instance: &PreemptionInstance<'_>,
    options: &PreemptionOptions,
    plan: &PreemptionPlan,
    to_whole: impl Fn(NodeIx) -> NodeIx,
) -> Reasons {
    let pool = instance.candidates_up_to(plan.explanation.priority_bound);
    let victims: Vec<bool> = instance
        .candidates
        .iter()
        .map(|unit| plan.victims.binary_search(unit).is_ok())
        .collect();
    let fit = FitCondition::new(instance.placement);
    let mut search = LocalSearch::new(VictimState::new(instance, &fit), &pool, options.work_budget);
    search.set_victims(|c| victims[c]);
    let mut reasons = Reasons {
        spared: spared(&search.state, &pool, plan),
        ..Reasons::default()
    };
    let mut next_best: Option<VictimSet> = None;
    for candidate in search.by_savings() {
        let mut without_it = None;
        if reasons.taken.len() < WORKED_OUT && !search.is_spent() {
            let avoided = search.avoid(candidate);
            without_it = avoided.then(|| search.state.victim_set());
            search.set_victims(|c| victims[c]);
        }
        reasons.taken.push(Taken {
            unit: instance.candidates[candidate],
            nodes: used_nodes(instance, candidate, plan, &to_whole),
            without_it: without_it.as_ref().map(|set| set.cost),
        });
        next_best = next_best
            .into_iter()
            .chain(without_it)
            .min_by_key(|set| set.cost);
    }
    reasons.runner_up = next_best.map(|set| RunnerUp {
        victims: instance.unit_ordinals(set.victims),
        cost: set.cost,
    });
    reasons.taken.sort_by_key(|t| t.unit);
    reasons
}

/// Reason for each spared candidate. `state`: the set of victims.
fn spared(state: &VictimState<'_>, pool: &[bool], plan: &PreemptionPlan) -> Vec<(UnitIx, Spared)> {
    // A unit frees most if the whole pool is evicted too.
    let mut whole_pool = VictimState::new(state.instance, state.fit);
    for candidate in (0..pool.len()).filter(|&c| pool[c]) {
        whole_pool.evict(candidate);
    }
    let mut spared = Vec::new();
    for candidate in (0..pool.len()).filter(|&c| !state.is_evicted(c)) {
        let reason = if pool[candidate] {
            why_spared(state, &mut whole_pool, candidate, plan)
        } else {
            Spared::AbovePriorityBound
        };
        spared.push((state.instance.candidates[candidate], reason));
    }
    spared
}

fn why_spared(
    state: &VictimState<'_>,
    whole_pool: &mut VictimState<'_>,
    candidate: CandidateIx,
    plan: &PreemptionPlan,
) -> Spared {
    let beyond = state.marginal_excess(candidate);
    if beyond > 0 && plan.cost.pdb_excess == 0 {
        return Spared::OverBudget { pods: beyond };
    }
    let surplus = whole_pool.surplus();
    whole_pool.restore(candidate);
    let useful = whole_pool.surplus() < surplus;
    whole_pool.evict(candidate);
    if useful {
        Spared::Dearer
    } else {
        Spared::NoUse
    }
}

/// Nodes of a candidate, in the whole cluster, to which the plan assigns pods.
fn used_nodes(
    instance: &PreemptionInstance<'_>,
    candidate: CandidateIx,
    plan: &PreemptionPlan,
    to_whole: impl Fn(NodeIx) -> NodeIx,
) -> Vec<NodeIx> {
    let mut nodes = Vec::new();
    for (node, _) in instance.uses(candidate) {
        let node = to_whole(node);
        if plan.placement.assignments.iter().any(|s| s.node == node) {
            nodes.push(node);
        }
    }
    nodes.sort_unstable();
    nodes
}
