//! The victim set of least cost, within the rules of KEP-5710.
//!
//! - Lagrangian relaxation ([`lagrangian`](super::bound::lagrangian)) yields a lower bound, and the
//!   sets that are optimal at its multipliers.
//! - Local search ([`local_search`](super::search::local_search)) adds what the relaxation ignores
//!   (budgets, several shapes, domains) and improves the set.

use std::cmp::Reverse;

use super::{
    bound::lagrangian::{PricedSet, Relaxation},
    fit::FitCondition,
    instance::{CandidateIx, DomainInstances, PreemptionInstance, after_evicting},
    plan::{Explanation, PreemptionOptions, PreemptionPlan},
    priority_bound::{PriorityBound, priority_bound},
    search::{
        local_search::{LAST_STEPS, LocalSearch},
        state::{VictimSet, VictimState},
    },
};
use crate::{
    infeasible::Infeasible,
    method::Method,
    objective::{Bound, EvictionCost, Price, Weights},
    placement::{PlacementInstance, Steps, domains::pins, levels::LevelDomains, place_in},
    problem::GangPlacement,
};

/// Budgets of steps for the decision whether replicas fit at all.
const REPLICAS: u64 = 4;

/// Maximum rounds of re-pricing units that exceed a disruption budget.
const BUDGET_ROUNDS: usize = 4;

pub(super) fn preempt(
    instance: &PreemptionInstance<'_>,
    options: &PreemptionOptions,
) -> Result<PreemptionPlan, Infeasible> {
    if let Some(level) = &instance.placement.required().gang {
        return in_best_domain(instance, options, level);
    }
    let (bound, spent) = priority_bound_within(instance, options, options.work_budget)?;
    let mut solution = solve(instance, &bound, options.work_budget + spent);
    if bound.undecided.is_some() {
        solution.prove_nothing();
    }
    let placement = place_after(instance, &solution, options.work_budget)?;
    Ok(solution.into_preemption(instance, placement, bound.level))
}

/// The priority bound, and the steps of the decision whether the gang fits. That decision costs
/// more if replicas must share a domain.
fn priority_bound_within(
    instance: &PreemptionInstance<'_>,
    options: &PreemptionOptions,
    budget: u64,
) -> Result<(PriorityBound, u64), Infeasible> {
    let steps = &instance.placement.steps;
    if instance.placement.required().replica.is_some() {
        steps.grant(REPLICAS * budget);
    }
    let before = steps.spent();
    let bound = priority_bound(instance, options.order)?;
    Ok((bound, steps.spent() - before))
}

/// The gang in one domain, with the candidates and the lowest priority bound there.
struct DomainQuestion<'a> {
    domain: usize,
    priority_bound: PriorityBound,
    /// Steps beyond the budget that the placement of replicas has spent.
    spent: u64,
    instance: PreemptionInstance<'a>,
}

/// Solves each domain separately, and returns the plan of the cheapest domain.
fn in_best_domain(
    instance: &PreemptionInstance<'_>,
    options: &PreemptionOptions,
    level: &LevelDomains,
) -> Result<PreemptionPlan, Infeasible> {
    let pin = pins(instance.placement, level)?;
    let domains = DomainInstances::new(instance.placement, level);
    let share = options.work_budget / domains.len().max(1) as u64;
    let placements: Vec<Option<PlacementInstance<'_>>> = (0..domains.len())
        .map(|domain| {
            pin.is_none_or(|p| p == domain).then(|| {
                let mut placement = domains.placement(instance.placement, domain);
                placement.steps = Steps::new(share);
                placement
            })
        })
        .collect();
    let mut questions = Vec::new();
    let mut undecided_levels = Vec::new();
    let mut all_decided = true;
    for (domain, placement) in placements.iter().enumerate() {
        let Some(placement) = placement else { continue };
        let instance = domains.preemption(instance, placement, domain);
        match priority_bound_within(&instance, options, share) {
            Ok((priority_bound, spent)) => {
                let by_replica = instance.placement.required().replica.is_some();
                undecided_levels.extend(priority_bound.undecided);
                questions.push(DomainQuestion {
                    domain,
                    priority_bound,
                    spent: if by_replica { spent } else { 0 },
                    instance,
                });
            }
            // The domain might hold the gang at a lower cost.
            Err(Infeasible::GaveUp { .. }) => all_decided = false,
            Err(_) => {}
        }
    }
    let Some(bound) = questions.iter().map(|q| q.priority_bound.level).min() else {
        return Err(shortfall_of_all_domains(instance));
    };
    questions.retain(|q| q.priority_bound.level <= bound);
    // A plan with more important victims is not better.
    all_decided &= undecided_levels.iter().all(|level| Some(*level) > bound);
    let budget = options.work_budget / questions.len().max(1) as u64;
    let solutions: Vec<Solution> = questions
        .iter()
        .map(|q| solve(&q.instance, &q.priority_bound, budget + q.spent))
        .collect();
    let (bounds, all_proven) = bound_over_domains(&solutions);
    let best = solutions
        .into_iter()
        .zip(&questions)
        .min_by_key(|(solution, _)| solution.set.cost);
    let Some((mut solution, question)) = best else {
        return Err(Infeasible::GaveUp { steps: 0 });
    };
    solution.proven = all_proven;
    solution.bound = bounds;
    if !all_decided {
        solution.prove_nothing();
    }
    let mut placement = place_after(&question.instance, &solution, budget)?;
    domains.to_whole(question.domain, &mut placement);
    Ok(solution.into_preemption(&question.instance, placement, bound))
}

/// Bound over all domains, and whether it proves the best of these solutions.
fn bound_over_domains(solutions: &[Solution]) -> (Bound, bool) {
    let best: Option<EvictionCost> = solutions.iter().map(|s| s.set.cost).min();
    let best = best.unwrap_or_default().bounded_part();
    if solutions.iter().all(|s| s.proven || s.bound >= best) {
        return (best, true);
    }
    let bounds: Vec<Bound> = solutions.iter().map(|s| s.bound).collect();
    (Bound::weakest(&bounds), false)
}

/// Smallest shortage of all domains.
fn shortfall_of_all_domains(instance: &PreemptionInstance<'_>) -> Infeasible {
    let free = instance.free_without(0..instance.candidates.len());
    place_in(instance.placement, free)
        .err()
        .map_or(Infeasible::GaveUp { steps: 0 }, after_evicting)
}

/// Places the gang without the victims. Falls back to the placement of the search.
fn place_after(
    instance: &PreemptionInstance<'_>,
    solution: &Solution,
    budget: u64,
) -> Result<GangPlacement, Infeasible> {
    instance.placement.steps.grant(budget);
    let evicted = solution.set.victims.iter().copied();
    let placed = place_in(instance.placement, instance.free_without(evicted));
    match &solution.set.placement {
        Some(earlier) => placed.or_else(|_| Ok(earlier.clone())),
        None => placed,
    }
}

/// A victim set, and a bound over all sets.
#[derive(Default)]
struct Solution {
    set: VictimSet,
    bound: Bound,
    proven: bool,
}

impl Solution {
    /// Drops bound and proof, because unknown sets can be better.
    fn prove_nothing(&mut self) {
        self.bound = Bound::default();
        self.proven = false;
    }

    fn into_preemption(
        self,
        instance: &PreemptionInstance<'_>,
        placement: GangPlacement,
        priority_bound: Option<i32>,
    ) -> PreemptionPlan {
        PreemptionPlan {
            victims: instance.unit_ordinals(self.set.victims),
            placement,
            cost: self.set.cost,
            bound: self.bound,
            proven: self.proven,
            explanation: Explanation {
                priority_bound,
                follow_on: Vec::new(),
            },
        }
    }
}

/// Best victim set among candidates up to a priority. First tries without candidates that exceed a
/// budget alone. If the result has no excess, the best set contains none of them.
fn solve(instance: &PreemptionInstance<'_>, bound: &PriorityBound, budget: u64) -> Solution {
    let fit = FitCondition::new(instance.placement);
    let pool = instance.candidates_up_to(bound.level);
    let within_budgets: Vec<bool> = (0..pool.len())
        .map(|c| pool[c] && instance.excess_alone(c) == 0)
        .collect();
    let mut state = VictimState::new(instance, &fit);
    for candidate in (0..pool.len()).filter(|&c| within_budgets[c]) {
        state.evict(candidate);
    }
    let mut without_excess = None;
    if state.fits() {
        let solution = solve_pool(state.clone(), &within_budgets, budget);
        if solution.set.cost.pdb_excess == 0 {
            return solution;
        }
        without_excess = Some(solution);
    }
    for candidate in (0..pool.len()).filter(|&c| pool[c] && !within_budgets[c]) {
        state.evict(candidate);
    }
    state.adopt(&bound.placement);
    // The bound for the whole pool is valid for the better of both sets.
    let mut solution = solve_pool(state, &pool, budget);
    if let Some(other) = without_excess
        && other.set.cost < solution.set.cost
    {
        solution.set = other.set;
    }
    solution
}

/// Solves over a pool. `state`: the whole pool is evicted, and the gang fits.
fn solve_pool(state: VictimState<'_>, pool: &[bool], budget: u64) -> Solution {
    let (instance, fit) = (state.instance, state.fit);
    let whole_pool = state.victims();
    let mut search = LocalSearch::new(state, pool, budget);
    let mut best = None;
    if fit.counting_is_exact {
        search.reprieve();
        keep_better(&mut best, &mut search);
    }
    let least = if instance.placement.uses(Method::Relaxation) {
        round_relaxations(&mut search, pool, &mut best)
    } else {
        cover_greedily(&mut search, &mut best)
    };
    let mut best = best.unwrap_or_else(|| {
        search.set_victims(|c| whole_pool.binary_search(&c).is_ok());
        search.reprieve();
        search.state.victim_set()
    });
    search.set_victims(|c| best.victims.binary_search(&c).is_ok());
    if instance.placement.uses(Method::Exchanges) {
        search.improve();
    }
    best = best.min(search.state.victim_set());
    if fit.several_shapes() {
        without_needless(&mut search, &mut best, budget);
    }
    // No shortfall, so no victims.
    let Some(least) = least else {
        return Solution::default();
    };
    let mut bound = instance.weights.split(least);
    let proven = bound >= best.cost.bounded_part();
    if proven {
        bound = best.cost.bounded_part();
    } else if bound.pdb_excess != best.cost.pdb_excess {
        bound.lost = least_work(instance, fit, pool);
    }
    Solution {
        set: best,
        bound,
        proven,
    }
}

/// Covers from the empty set. The bound is zero, or `None` without a shortfall.
fn cover_greedily(search: &mut LocalSearch<'_>, best: &mut Option<VictimSet>) -> Option<Price> {
    search.set_victims(|_| false);
    if search.state.fits() {
        return None;
    }
    if search.repair() {
        search.reprieve();
        keep_better(best, search);
    }
    Some(0)
}

/// Removes needless victims for several shapes, if the search ended early, and adds the placement
/// of the gang, if known.
fn without_needless(search: &mut LocalSearch<'_>, best: &mut VictimSet, budget: u64) {
    let steps = &search.state.instance.placement.steps;
    steps.grant(LAST_STEPS.max(budget / 2));
    search.state.use_full_effort();
    search.set_victims(|c| best.victims.binary_search(&c).is_ok());
    if !search.state.fits() {
        return;
    }
    search.reprieve();
    *best = search.state.victim_set();
    if search.state.fits() {
        best.placement = search.state.patterns();
    }
}

/// Rounds the solutions of the relaxation to victim sets for which the gang fits. If a set exceeds
/// a budget, re-prices the units beyond it and solves again.
///
/// Returns the lower bound of the first round, because the bound of a penalised round does not hold
/// for every set. `None` without a shortfall.
fn round_relaxations(
    search: &mut LocalSearch<'_>,
    pool: &[bool],
    best: &mut Option<VictimSet>,
) -> Option<Price> {
    let (instance, fit) = (search.state.instance, search.state.fit);
    let mut penalties: Vec<i64> = vec![0; pool.len()];
    let mut least = None;
    for _ in 0..BUDGET_ROUNDS {
        let prices = relaxed_prices(instance, instance.weights, pool, &penalties);
        let Some(mut relaxation) = Relaxation::new(instance, fit, prices) else {
            break;
        };
        let dual = relaxation.solve();
        least.get_or_insert(dual.bound);
        let covering = dual.sets.iter().filter(|s| s.capacity >= relaxation.need);
        let Some(start) = covering.min_by_key(|s| s.cost) else {
            break;
        };
        let repriced = penalise_excess(instance, &start.candidates(), &dual.sets, &mut penalties);
        search.set_victims(|c| start.evicted[c]);
        if search.repair() {
            search.reprieve();
            keep_better(best, search);
        }
        if !repriced || !instance.placement.uses(Method::Penalties) {
            break;
        }
    }
    least
}

fn keep_better(best: &mut Option<VictimSet>, search: &mut LocalSearch<'_>) {
    let set = search.state.victim_set();
    if best.as_ref().is_none_or(|b| set < *b) {
        *best = Some(set);
    }
}

/// Lower bound of the work lost by any plan, at any PDB excess.
fn least_work(instance: &PreemptionInstance<'_>, fit: &FitCondition, pool: &[bool]) -> u128 {
    let weights = Weights::work_only();
    let prices = relaxed_prices(instance, weights, pool, &vec![0; pool.len()]);
    let Some(mut relaxation) = Relaxation::new(instance, fit, prices) else {
        return 0;
    };
    weights.split(relaxation.solve().bound).lost
}

/// Price of each candidate of the pool in the relaxation: its work, and the larger of its own PDB
/// excess and its penalty.
fn relaxed_prices(
    instance: &PreemptionInstance<'_>,
    weights: Weights,
    pool: &[bool],
    penalties: &[i64],
) -> Vec<Option<Price>> {
    (0..pool.len())
        .map(|c| {
            let excess = instance.excess_alone(c).max(penalties[c]);
            pool[c].then(|| instance.cost(c).price_relaxed(weights, excess))
        })
        .collect()
}

/// If a set exceeds a budget, penalises the units beyond it, preferably units in few sets of the
/// relaxation. True if a penalty is new.
fn penalise_excess(
    instance: &PreemptionInstance<'_>,
    start: &[CandidateIx],
    sets: &[PricedSet],
    penalties: &mut [i64],
) -> bool {
    let mut of_budget: Vec<Vec<CandidateIx>> = vec![Vec::new(); instance.units.pdb_allowed.len()];
    for &candidate in start {
        for &(pdb, _) in &instance.unit(candidate).pdbs {
            of_budget[pdb].push(candidate);
        }
    }
    let mut any = false;
    for (pdb, mut candidates) in of_budget.into_iter().enumerate() {
        candidates.sort_by_cached_key(|&c| {
            let sets_with_it = sets.iter().filter(|s| s.evicted[c]).count();
            (Reverse(sets_with_it), c)
        });
        let mut left = i64::from(instance.units.pdb_allowed[pdb]);
        for candidate in candidates {
            let pods = i64::from(instance.cost(candidate).pods);
            left -= pods;
            if left < 0 && penalties[candidate] == 0 && instance.excess_alone(candidate) == 0 {
                penalties[candidate] = pods;
                any = true;
            }
        }
    }
    any
}
