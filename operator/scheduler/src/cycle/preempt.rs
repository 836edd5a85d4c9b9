//! Capacity from terminating pods and from preemption.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::reasons;
use lockstep_engine::{Cluster, Demand, EvictionPolicy, Infeasible, NodeIx, place};
use lockstep_model::attempt::may_not_preempt;
use lockstep_model::victims::extended_resources;
use lockstep_model::{
    Eviction, Occupancy, PlacementAttempt, PlacementRequest, VictimFilter, VictimRules, VictimScope,
};

use super::intend::intend;
use super::place::attempt;
use super::round::Round;
use crate::asks::Asks;
use crate::backoff::backoff;
use crate::capacity::Capacity;
use crate::context::Context;
use crate::decision::Decision;
use crate::input::GangInput;
use crate::memory::{Memory, REFUSAL_HOLDS};
use crate::no_victims::Searcher;
use crate::occupancy::{occupancy, occupancy_with_nodes};
use crate::pace::LimitReached;
use crate::pending::{NoPreemption, Pending};
use crate::refusal::why_no_preemption;
use crate::state::GangState;

/// Placements in a row that may end with a rejection by a kubelet. Afterwards the node is unusable.
const REJECTIONS: i32 = 3;

/// How long a result is valid if it exceeds the size of one object. Other victims may be cheaper by
/// then.
const TOO_LARGE_HOLDS: TimeDelta = TimeDelta::minutes(1);

/// A gang that does not fit into free capacity.
#[derive(Clone, Copy)]
pub(super) struct Unplaced<'q> {
    pub at: usize,
    pub request: &'q PlacementRequest,
    pub demand: &'q Demand,
    pub short: Infeasible,
    /// Factor on the usual steps of its searches.
    pub effort: u64,
    /// Its requests, unless it has a history.
    pub asks: Option<&'q Asks>,
}

impl<'q> Unplaced<'q> {
    pub fn searcher<'s>(&self, gangs: &'s [GangState]) -> Searcher<'s>
    where
        'q: 's,
    {
        Searcher::of(self.asks, gangs[self.at].uid())
    }
}

/// Finds capacity from terminations and preemption. `left`: capacity that the gang may use now.
pub(super) fn make_capacity(
    context: &Context<'_>,
    memory: &mut Memory,
    capacity: &mut Capacity,
    gangs: &mut [GangState],
    unplaced: Unplaced<'_>,
    left: Cluster,
    round: &mut Round,
) -> Result<(), Pending> {
    let free = after_terminations(context, capacity, gangs, unplaced, left, round)?;
    may_search(context, memory, gangs, unplaced, &free, round)?;
    let eviction = search(context, memory, capacity, gangs, unplaced, &free, round)?;
    let Unplaced {
        at, request, short, ..
    } = unplaced;
    if let Err(reached) = in_pace(context, memory, gangs, &eviction, round) {
        let why = NoPreemption::Paced(reached);
        let pending = Pending::NoPreemption { short, why };
        let (who, until) = (unplaced.searcher(gangs), Some(reached.next_try));
        return Err(memory.no_victims.remember(who, until, pending));
    }
    if let Err(too_large) = intend(context, capacity, gangs, at, request, &eviction) {
        let pending = Pending::TooLarge(too_large);
        let (who, until) = (unplaced.searcher(gangs), context.now + TOO_LARGE_HOLDS);
        return Err(memory.no_victims.remember(who, Some(until), pending));
    }
    (round.leaving, round.work) = (None, None);
    Ok(())
}

/// Free capacity after all terminations. An error if the gang fits then and waits for them.
fn after_terminations(
    context: &Context<'_>,
    capacity: &mut Capacity,
    gangs: &mut [GangState],
    unplaced: Unplaced<'_>,
    left: Cluster,
    round: &mut Round,
) -> Result<Cluster, Pending> {
    let leaving = if let Some(leaving) = round.leaving.take() {
        leaving
    } else {
        let leaving = occupancy(context, capacity, gangs).leaving();
        if let Some(until) = leaving.until {
            round.wake.at(until);
        }
        leaving.held
    };
    let gang = &mut gangs[unplaced.at];
    let input = Arc::clone(&gang.input);
    let attempt = attempt_of(context, &input, unplaced, round);
    let (free, soon) = attempt.after_terminations(left, &leaving);
    round.leaving = Some(leaving);
    let Some(placement) = soon else {
        return Ok(free);
    };
    let nodes = unplaced.request.assign(context.cluster, &placement);
    gang.decision = Decision::AfterTerminations(nodes);
    Err(Pending::Terminations {
        short: unplaced.short,
    })
}

/// Whether the gang may search victims now. An error says why it waits.
fn may_search(
    context: &Context<'_>,
    memory: &mut Memory,
    gangs: &[GangState],
    unplaced: Unplaced<'_>,
    free: &Cluster,
    round: &mut Round,
) -> Result<(), Pending> {
    let (gang, short) = (&gangs[unplaced.at], unplaced.short);
    // A gang that may fit without evictions must not preempt.
    if let Infeasible::GaveUp { steps } = short {
        return Err(not_known(context, memory, gang, steps, round));
    }
    if unplaced.demand.preemption == EvictionPolicy::Never && !gang.input.group.preempts {
        return Err(Pending::Capacity(may_not_preempt(short)));
    }
    let retried = without_rejections(context, gang, unplaced.request);
    if let Some(rejecting) = retried
        && let Ok(demand) = rejecting.without.demand(context.cluster)
        && place(free, &demand).is_ok()
    {
        round.wake.at(rejecting.until);
        return Err(Pending::RejectingNodes {
            node: rejecting.first.to_owned(),
            others: rejecting.others,
            next_try: rejecting.until,
        });
    }
    if let Some(why) = why_no_preemption(context, gang) {
        return Err(Pending::NoPreemption { short, why });
    }
    let who = unplaced.searcher(gangs);
    if let Some(known) = memory.no_victims.known(who, context.now) {
        round.note_paced(known);
        return Err(known.clone());
    }
    if round.searches == context.settings.searches_per_cycle {
        round.left_out += 1;
        return Err(Pending::Capacity(short));
    }
    Ok(())
}

/// Searches victims for the gang, and caches a search without result.
fn search(
    context: &Context<'_>,
    memory: &mut Memory,
    capacity: &Capacity,
    gangs: &[GangState],
    unplaced: Unplaced<'_>,
    free: &Cluster,
    round: &mut Round,
) -> Result<Eviction, Pending> {
    round.searches += 1;
    let gang = &gangs[unplaced.at];
    let templates = unplaced.request.templates.iter();
    let wanted = extended_resources(templates.map(|t| &*t.requests));
    let refused = memory.may_not_evict(context.ago(REFUSAL_HOLDS));
    let filter = VictimFilter {
        rules: &context.settings.rules.victims,
        wanted: &wanted,
        beyond_budgets: context.settings.delete_after.is_some(),
        refused: &refused,
    };
    let found = {
        let everything = occupancy_with_nodes(context, memory, capacity, gangs);
        let attempt = attempt_of(context, &gang.input, unplaced, round);
        search_victims(context, &everything, unplaced.at, &attempt, free, filter)
    };
    found.map_err(|found| {
        if let Some(Infeasible::GaveUp { steps }) = found.short {
            let pending = not_known(context, memory, gang, steps, round);
            // Otherwise a few such gangs would use all searches of every cycle.
            let until = context.now + backoff(1);
            let (cache, who) = (&mut memory.no_victims, Searcher::Alone(gang.uid()));
            return cache.remember(who, Some(until), pending);
        }
        let asked_again = (!refused.is_empty()).then(|| {
            let holds = TimeDelta::from_std(REFUSAL_HOLDS).unwrap_or(TimeDelta::MAX);
            context.now + holds
        });
        let until = found.until.into_iter().chain(asked_again).min();
        let (cache, who) = (&mut memory.no_victims, unplaced.searcher(gangs));
        cache.remember(who, until, found.pending(unplaced.short))
    })
}

fn attempt_of<'d>(
    context: &Context<'d>,
    input: &'d GangInput,
    unplaced: Unplaced<'d>,
    round: &'d Round,
) -> PlacementAttempt<'d> {
    let Unplaced {
        request,
        demand,
        effort,
        ..
    } = unplaced;
    attempt(context, input, request, demand, &round.ahead, effort)
}

fn in_pace(
    context: &Context<'_>,
    memory: &Memory,
    gangs: &[GangState],
    eviction: &Eviction,
    round: &mut Round,
) -> Result<(), LimitReached> {
    let units = &eviction.table.units.units;
    let victims = eviction.answer.victims.iter();
    let pods = victims.filter_map(|&unit| Some(units.get(unit)?.pod_count()));
    let pods = pods.fold(0, u32::saturating_add);
    if let Some(first) = round.paced {
        return Err(LimitReached { pods, ..first });
    }
    let limit = context.settings.max_evictions_per_minute;
    let intents = gangs.iter().filter_map(|g| g.status.preemption.as_ref());
    let evictions = memory.evictions.with_decided(intents, context.now);
    evictions
        .allow(pods, limit, context.now)
        .inspect_err(|reached| round.paced = Some(*reached))
}

/// Records a placement search without an answer. A longer one follows after a back-off.
fn not_known(
    context: &Context<'_>,
    memory: &mut Memory,
    gang: &GangState,
    steps: u64,
    round: &mut Round,
) -> Pending {
    let next_try = memory.unknown.failed(gang.uid(), context.now);
    round.wake.at(next_try);
    Pending::Unknown { steps, next_try }
}

struct NoVictimsFound {
    /// Shortage after evicting all permitted work. `None`: enough would be free, but not all of it
    /// may be evicted together.
    short: Option<Infeasible>,
    until: Option<DateTime<Utc>>,
    /// Pods that the rules protect, if their eviction would free enough; else 0.
    out_of_reach: usize,
    /// Pods that disruption budgets protect, if their eviction would free enough; else 0.
    guarded: usize,
}

impl NoVictimsFound {
    /// Verdict on the gang. `short`: shortage without any eviction.
    fn pending(self, short: Infeasible) -> Pending {
        Pending::NoVictims {
            short: self.short.unwrap_or(short),
            until: self.until,
            out_of_reach: self.out_of_reach,
            guarded: self.guarded,
        }
    }
}

/// Searches the cheapest victims among work that the rules permit.
fn search_victims(
    context: &Context<'_>,
    everything: &Occupancy<'_>,
    at: usize,
    attempt: &PlacementAttempt<'_>,
    free: &Cluster,
    filter: VictimFilter<'_>,
) -> Result<Eviction, NoVictimsFound> {
    let rules = &context.settings.rules;
    // Evictions from other nodes do not help the gang.
    let may_use = |node: NodeIx| {
        let mut shapes = attempt.demand.shapes.iter();
        shapes.any(|shape| attempt.demand.admits(shape, node))
    };
    let search = |filter: VictimFilter<'_>| {
        let table = everything.units(Some(at), attempt.demand.priority, filter);
        let usable = |nodes: &[NodeIx]| nodes.iter().filter(|n| may_use(**n)).count();
        let left_out = (
            table.shielded_until,
            usable(&table.out_of_reach),
            usable(&table.guarded),
        );
        (attempt.by_preemption(free, table, rules), left_out)
    };
    let (found, (until, mut out_of_reach, mut guarded)) = search(filter);
    let short = match found {
        // Budgets permit each eviction alone, but not all together.
        Ok(eviction) if eviction.answer.cost.pdb_excess > 0 && !filter.beyond_budgets => {
            guarded += eviction.answer.cost.pdb_excess as usize;
            None
        }
        Ok(eviction) => return Ok(eviction),
        Err(short) => Some(short),
    };
    // Protected pods count only if the configuration or budgets cause the shortage.
    let enough = || {
        let most = everything.free_at_most(Some(at), attempt.demand.priority, free);
        !matches!(
            place(&most, attempt.demand),
            Err(Infeasible::InsufficientCapacity(_))
        )
    };
    if guarded + out_of_reach > 0 && !enough() {
        (guarded, out_of_reach) = (0, 0);
    }
    let nobody = BTreeSet::new();
    let beyond = VictimFilter {
        beyond_budgets: true,
        refused: &nobody,
        ..filter
    };
    if guarded > 0 && search(beyond).0.is_err() {
        guarded = 0;
    }
    let all = VictimRules {
        scope: VictimScope::Any,
        excluded_namespaces: BTreeSet::new(),
        excluded_labels: BTreeMap::new(),
        opt_out: false,
        longest_grace_period: Duration::MAX,
    };
    let any = VictimFilter {
        rules: &all,
        ..beyond
    };
    if out_of_reach > 0 && (guarded > 0 || search(any).0.is_err()) {
        out_of_reach = 0;
    }
    Err(NoVictimsFound {
        short,
        until,
        out_of_reach,
        guarded,
    })
}

/// Nodes that the workload avoids because their kubelets rejected its pods.
struct Rejecting<'g> {
    /// The request with these nodes permitted.
    without: PlacementRequest,
    until: DateTime<Utc>,
    first: &'g str,
    others: usize,
}

/// Nodes whose kubelets rejected pods of the gang, and the request with these nodes. The gang waits
/// for the end of the exclusion, when the unknown reason has most likely passed. `None` if its pods
/// were rejected too often.
fn without_rejections<'g>(
    context: &Context<'_>,
    gang: &'g GangState,
    request: &PlacementRequest,
) -> Option<Rejecting<'g>> {
    let workload = &gang.input.workload;
    if workload.placement_tries > REJECTIONS {
        return None;
    }
    let refusing = &gang.status.excluded_nodes;
    let mut again = request.clone();
    let mut rejecting = BTreeMap::new();
    for avoided in &workload.avoid {
        let rejected = avoided.reason == reasons::REJECTED_BY_NODE && avoided.until > context.now;
        if !rejected || refusing.iter().any(|e| e.node == avoided.node) {
            continue;
        }
        if let Some(node) = context.cluster.ordinal(&avoided.node) {
            again.excluded.remove(node);
            rejecting.insert(avoided.node.as_str(), avoided.until);
        }
    }
    let (&first, _) = rejecting.first_key_value()?;
    Some(Rejecting {
        without: again,
        until: rejecting.values().copied().max()?,
        first,
        others: rejecting.len() - 1,
    })
}
