//! The least work lost, within the rules of KEP-5710.
//!
//! A relaxation says which units pay at the price of a seat ([`relax`](super::relax)), a knapsack over independent pieces
//! closes the gap to the need ([`knapsack`](super::knapsack)), and a local search settles what both leave out: budgets,
//! several shapes, domains ([`search`](super::search)). The relaxation also bounds what any answer must cost.

use super::{
    Bound, Options, Order, Preemption,
    exact::prove,
    field::{CandIx, Field, after_evicting},
    goal::Goal,
    knapsack::{lower_bound, select},
    part::Parts,
    relax::Relaxation,
    search::Search,
    state::{Price, State},
};
use crate::{
    explain::Explanation,
    infeasible::Infeasible,
    placement::{Site, domains::pins, place_in},
    problem::{KeyIx, Scope, Toll, TopologyMode},
};

/// Rounds in which budgets that came out overdrawn close for the units that came last.
const BUDGET_ROUNDS: usize = 4;

pub(super) fn preempt(field: &Field<'_>, options: &Options) -> Result<Preemption, Infeasible> {
    let topology = field.demand.topology.filter(|t| t.mode == TopologyMode::Required && t.scope == Scope::Gang);
    if let Some(topology) = topology {
        return in_best_domain(field, options, topology.key);
    }
    let bound = priority_bound(field, options.order)?;
    let answer = solve(field, &Goal::new(field.site), &up_to(field, bound), options.work_budget);
    finish(field, answer, bound)
}

/// The gang in the domain where it costs least; every domain is a question of its own.
fn in_best_domain(field: &Field<'_>, options: &Options, key: KeyIx) -> Result<Preemption, Infeasible> {
    let pin = pins(field.site, key)?;
    let parts = Parts::new(field.site, key);
    let sites: Vec<Option<Site<'_>>> = (0..parts.len())
        .map(|domain| pin.is_none_or(|p| p == domain).then(|| parts.site(field.site, domain)))
        .collect();
    let mut questions = Vec::new();
    for (domain, site) in sites.iter().enumerate() {
        let Some(site) = site else { continue };
        let part = parts.field(field, site, domain);
        if let Ok(bound) = priority_bound(&part, options.order) {
            questions.push((bound, domain, part));
        }
    }
    // The whole question words the reason: which domain comes closest.
    let Some(bound) = questions.iter().map(|(bound, ..)| *bound).min() else {
        let everybody = place_in(field.site, field.room_without(0..field.cands.len()));
        return Err(everybody.err().map_or(Infeasible::GaveUp { steps: 0 }, after_evicting));
    };
    questions.retain(|(level, ..)| *level <= bound);
    let budget = options.work_budget / questions.len().max(1) as u64;
    let solved = |part: &Field<'_>| solve(part, &Goal::new(part.site), &up_to(part, bound), budget);
    let answers: Vec<Solved> = questions.iter().map(|(.., part)| solved(part)).collect();
    let settled: Vec<bool> = answers.iter().map(|a| a.proven).collect();
    let bounds: Vec<Bound> = answers.iter().map(|a| a.bound).collect();
    let best = answers.into_iter().zip(&questions).min_by_key(|(answer, _)| answer.toll);
    let Some((answer, (_, domain, part))) = best else { return Err(Infeasible::GaveUp { steps: 0 }) };
    let worth = worth(&answer.toll);
    let proven = settled.iter().zip(&bounds).all(|(&settled, bound)| settled || *bound >= worth);
    // A domain may lose less work by breaking more budgets, so the two are bounded each by itself.
    let floor = Bound {
        pdb_excess: bounds.iter().map(|b| b.pdb_excess).min().unwrap_or_default(),
        lost: bounds.iter().map(|b| b.lost).min().unwrap_or_default(),
    };
    let answer = Solved { bound: if proven { worth } else { floor }, proven, ..answer };
    let mut preemption = finish(part, answer, bound)?;
    parts.number(*domain, &mut preemption.placement);
    Ok(preemption)
}

/// Places the gang where the victims make room.
fn finish(field: &Field<'_>, answer: Solved, bound: Option<i32>) -> Result<Preemption, Infeasible> {
    let placement = place_in(field.site, field.room_without(answer.gone.iter().copied()))?;
    let victims = field.unit_ordinals(answer.gone);
    Ok(Preemption {
        victims,
        placement,
        toll: answer.toll,
        bound: answer.bound,
        proven: answer.proven,
        explanation: Explanation { priority_bound: bound, follow_on: Vec::new() },
    })
}

/// Victims, and what is known about them.
#[derive(Default)]
struct Solved {
    gone: Vec<CandIx>,
    toll: Toll,
    bound: Bound,
    proven: bool,
}

fn solve(field: &Field<'_>, goal: &Goal, pool: &[bool], budget: u64) -> Solved {
    let within: Vec<bool> = (0..pool.len()).map(|c| pool[c] && field.excess_alone(c) == 0).collect();
    let mut state = State::new(field, goal);
    for cand in (0..pool.len()).filter(|&c| within[c]) {
        state.evict(cand);
    }
    // First without units that break their budget by themselves. If that does, they are in no best answer.
    let mut spared = state.fits().then(|| solve_pool(state.clone(), &within, budget));
    if let Some(best) = spared.take_if(|s| s.toll.pdb_excess == 0) {
        return best;
    }
    for cand in (0..pool.len()).filter(|&c| pool[c] && !within[c]) {
        state.evict(cand);
    }
    let all = solve_pool(state, pool, budget);
    // What is known of any answer over the whole pool is known of the better of the two.
    let (bound, proven) = (all.bound, all.proven);
    let best = std::iter::once(all).chain(spared).min_by_key(|solved| solved.toll);
    best.map(|best| Solved { bound, proven, ..best }).unwrap_or_default()
}

/// Solves over a pool that makes room when all of it goes; `state` is that.
fn solve_pool(state: State<'_>, pool: &[bool], budget: u64) -> Solved {
    let (field, goal) = (state.field, state.goal);
    let mut search = Search::new(state, pool, budget);
    let everybody = search.state.victims();
    let mut best = None;
    if goal.counting_decides {
        search.reprieve();
        note(&mut best, &search);
    }
    let mut closed: Vec<i64> = vec![0; pool.len()];
    let mut floor = None;
    for _ in 0..BUDGET_ROUNDS {
        let Some(mut relaxation) = Relaxation::new(field, goal, weights(field, pool, &closed)) else { break };
        let priced = relaxation.solve();
        let mut starts: Vec<Vec<CandIx>> = select(&relaxation, &priced.sets).into_iter().collect();
        let enough = priced.sets.iter().filter(|s| s.room >= relaxation.need).min_by_key(|s| s.cost);
        starts.extend(enough.map(|s| (0..pool.len()).filter(|&c| s.gone[c]).collect()));
        let mut overdrawn = false;
        for start in starts {
            overdrawn |= close_overdrawn(field, &start, &priced.sets, &mut closed);
            search.become_set(|c| start.binary_search(&c).is_ok());
            if search.repair() {
                search.reprieve();
                note(&mut best, &search);
            }
        }
        // Only the first round leaves every answer its chance.
        floor.get_or_insert((relaxation, priced));
        if !overdrawn {
            break;
        }
    }
    if best.is_none() {
        search.become_set(|c| everybody.binary_search(&c).is_ok());
        search.reprieve();
    }
    let mut best = best.unwrap_or_else(|| found(&search));
    search.become_set(|c| best.1.binary_search(&c).is_ok());
    search.improve();
    best = best.min(found(&search));
    // Where nothing is needed nobody goes.
    let Some((relaxation, priced)) = floor else { return Solved::default() };
    let least = priced.bound.max(lower_bound(&relaxation, &priced.sets)).max(0).unsigned_abs();
    let excess_price = field.excess_price.unsigned_abs();
    let mut bound = Bound { pdb_excess: (least / excess_price) as u64, lost: least % excess_price };
    let proven = bound >= worth(&best.0) || prove(relaxation, &mut search, &mut best, priced.price, budget);
    let toll = best.0;
    if proven {
        bound = worth(&toll);
    } else if bound.pdb_excess != toll.pdb_excess {
        bound.lost = least_work(field, goal, pool);
    }
    Solved { gone: best.1, toll, bound, proven }
}

/// What a bound on this answer may be at most.
fn worth(toll: &Toll) -> Bound {
    Bound { pdb_excess: toll.pdb_excess, lost: toll.lost }
}

/// Victims, and what they cost.
type Found = (Toll, Vec<CandIx>);

fn found(search: &Search<'_>) -> Found {
    (search.state.toll(), search.state.victims())
}

/// Keeps the search's set if it is the best so far.
fn note(best: &mut Option<Found>, search: &Search<'_>) {
    let found = found(search);
    if best.as_ref().is_none_or(|b| found < *b) {
        *best = Some(found);
    }
}

/// How much work any answer destroys at least, whatever it does to budgets.
fn least_work(field: &Field<'_>, goal: &Goal, pool: &[bool]) -> u128 {
    let weight = |c: CandIx| if field.unit(c).cascade.is_some() { 0 } else { field.cost(c) };
    let weights = (0..pool.len()).map(|c| pool[c].then(|| weight(c))).collect();
    let Some(mut relaxation) = Relaxation::new(field, goal, weights) else { return 0 };
    let priced = relaxation.solve();
    priced.bound.max(lower_bound(&relaxation, &priced.sets)).max(0).unsigned_abs()
}

/// What each candidate weighs in the relaxation: its work, and the pods beyond its budget at the price of excess.
fn weights(field: &Field<'_>, pool: &[bool], closed: &[i64]) -> Vec<Option<Price>> {
    (0..pool.len())
        .map(|c| {
            let lost = if field.unit(c).cascade.is_some() { 0 } else { field.cost(c) };
            pool[c].then(|| lost + Price::from(field.excess_alone(c).max(closed[c])) * field.excess_price)
        })
        .collect()
}

/// Where a set overdraws a budget, makes the units beyond it pay: those that pay at the fewest prices first.
fn close_overdrawn(field: &Field<'_>, start: &[CandIx], sets: &[super::relax::Paying], closed: &mut [i64]) -> bool {
    let mut hits: Vec<Vec<CandIx>> = vec![Vec::new(); field.units.pdb_allowed.len()];
    for &cand in start {
        for &(pdb, _) in &field.unit(cand).pdbs {
            hits[pdb].push(cand);
        }
    }
    let mut any = false;
    for (pdb, mut units) in hits.into_iter().enumerate() {
        units.sort_by_cached_key(|&c| (std::cmp::Reverse(sets.iter().filter(|s| s.gone[c]).count()), c));
        let mut left = i64::from(field.units.pdb_allowed[pdb]);
        for cand in units {
            left -= i64::from(field.pods(cand));
            if left < 0 && closed[cand] == 0 && field.excess_alone(cand) == 0 {
                closed[cand] = i64::from(field.pods(cand));
                any = true;
            }
        }
    }
    any
}

/// The lowest priority up to which units must go for the gang to fit; `None` where priorities set no bound.
fn priority_bound(field: &Field<'_>, order: Order) -> Result<Option<i32>, Infeasible> {
    let fits = |pool: &[bool]| place_in(field.site, field.room_without((0..pool.len()).filter(|&c| pool[c])));
    fits(&up_to(field, None)).map_err(after_evicting)?;
    if order == Order::LeastWork {
        return Ok(None);
    }
    let mut levels: Vec<i32> = (0..field.cands.len()).map(|c| field.unit(c).priority).collect();
    levels.sort_unstable();
    levels.dedup();
    Ok(levels.into_iter().find(|&level| fits(&up_to(field, Some(level))).is_ok()))
}

/// The candidates up to a priority.
fn up_to(field: &Field<'_>, bound: Option<i32>) -> Vec<bool> {
    (0..field.cands.len()).map(|c| bound.is_none_or(|b| field.unit(c).priority <= b)).collect()
}
