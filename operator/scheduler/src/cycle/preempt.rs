//! Capacity that others leave, or have to leave.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::reasons;
use lockstep_api::scheduling::{Preemption, Victim};
use lockstep_engine::{Cluster, Demand, EvictionPolicy, Infeasible, place};
use lockstep_model::attempt::may_not_preempt;
use lockstep_model::victims::extended_resources;
use lockstep_model::{
    Eviction, Occupancy, PlacementAttempt, PlacementRequest, Pod, Source, VictimFilter,
    VictimRules, VictimScope,
};

use super::place::{attempt, by_name};
use super::round::Round;
use crate::asks::Asks;
use crate::backoff::backoff;
use crate::capacity::Capacity;
use crate::context::Context;
use crate::decision::{ChosenVictim, Decision, OtherVictims, PreemptionDecision};
use crate::intent_id::intent_id;
use crate::memory::{Memory, REFUSAL_HOLDS};
use crate::messages;
use crate::no_victims::Searcher;
use crate::occupancy::{occupancy, occupancy_with_nodes, victim_priority};
use crate::pace::LimitReached;
use crate::pending::{NoPreemption, Pending};
use crate::refusal::why_no_preemption;
use crate::size;
use crate::state::{GangState, new_placement};

/// Placements in a row that may end with a rejection by some kubelet before its node counts as
/// useless.
const REJECTIONS: i32 = 3;

/// A gang that does not fit into free capacity.
pub(super) struct Unplaced<'q> {
    /// Its position.
    pub at: usize,
    pub request: &'q PlacementRequest,
    pub demand: &'q Demand,
    /// The cluster as the gang sees it.
    pub free: Cluster,
    /// What is missing.
    pub short: Infeasible,
    /// How many times the usual steps its searches may take.
    pub effort: u64,
    /// What it asks for, unless it has a history of its own.
    pub asks: Option<&'q Asks>,
}

/// Finds capacity that others leave, or have to leave.
pub(super) fn make_capacity(
    context: &Context<'_>,
    memory: &mut Memory,
    capacity: &mut Capacity,
    gangs: &mut [GangState],
    unplaced: Unplaced<'_>,
    round: &mut Round,
) -> Result<(), Pending> {
    let Unplaced {
        at,
        request,
        demand,
        free,
        short,
        effort,
        asks,
    } = unplaced;
    let leaving = if let Some(leaving) = round.leaving.take() {
        leaving
    } else {
        let leaving = occupancy(context, capacity, gangs).leaving();
        if let Some(until) = leaving.until {
            round.wake.at(until);
        }
        leaving.held
    };
    let input = Arc::clone(&gangs[at].input);
    let attempt = attempt(context, &input, request, demand, &round.ahead, effort);
    let (free, soon) = attempt.after_terminations(free, &leaving);
    round.leaving = Some(leaving);
    if let Some(placement) = soon {
        let nodes = request.assign(context.cluster, &placement);
        gangs[at].decision = Decision::AfterTerminations(nodes);
        return Err(Pending::Terminations);
    }
    // Nobody is evicted for a gang that may fit as it is.
    if let Infeasible::GaveUp { steps } = short {
        return Err(not_known(context, memory, &gangs[at], steps, round));
    }
    if demand.preemption == EvictionPolicy::Never && !gangs[at].input.group.preempts {
        return Err(Pending::Capacity(may_not_preempt(short)));
    }
    let retried = without_rejections(context, &gangs[at], request);
    if let Some((again, until)) = retried
        && let Ok(demand) = again.demand(context.cluster)
        && place(&free, &demand).is_ok()
    {
        round.wake.at(until);
        return Err(Pending::RejectingNodes);
    }
    if let Some(why) = why_no_preemption(context, &gangs[at]) {
        return Err(Pending::NoPreemption { short, why });
    }
    let who = asks.map_or(Searcher::Alone(gangs[at].uid()), Searcher::OneOf);
    if let Some(known) = memory.no_victims.known(who, context.now) {
        round.note_paced(known);
        return Err(known.clone());
    }
    if round.searches == context.settings.searches_per_cycle {
        round.left_out += 1;
        return Err(Pending::Capacity(short));
    }
    round.searches += 1;
    let wanted = extended_resources(request.templates.iter().map(|t| &*t.requests));
    let refused = memory.may_not_evict(context.ago(REFUSAL_HOLDS));
    let filter = VictimFilter {
        rules: &context.settings.rules.victims,
        wanted: &wanted,
        beyond_budgets: context.settings.delete_after.is_some(),
        refused: &refused,
    };
    let found = {
        let everything = occupancy_with_nodes(context, memory, capacity, gangs);
        search_victims(context, &everything, at, &attempt, &free, filter)
    };
    match found {
        Ok(eviction) => {
            if let Err(reached) = in_pace(context, memory, gangs, &eviction, round) {
                let why = NoPreemption::Paced(reached);
                let pending = Pending::NoPreemption { short, why };
                let until = Some(reached.next_try);
                return Err(memory.no_victims.remember(who, until, pending));
            }
            intend(context, capacity, gangs, at, request, &eviction)?;
            (round.leaving, round.work) = (None, None);
            Ok(())
        }
        Err(NoVictimsFound {
            short: Some(Infeasible::GaveUp { steps }),
            ..
        }) => {
            let pending = not_known(context, memory, &gangs[at], steps, round);
            // Or a few such gangs would take all searches of every cycle.
            let until = context.now + backoff(1);
            let cache = &mut memory.no_victims;
            Err(cache.remember(Searcher::Alone(gangs[at].uid()), Some(until), pending))
        }
        Err(found) => {
            let asked_again = (!refused.is_empty()).then(|| {
                let holds = TimeDelta::from_std(REFUSAL_HOLDS).unwrap_or(TimeDelta::MAX);
                context.now + holds
            });
            let until = found.until.into_iter().chain(asked_again).min();
            let cache = &mut memory.no_victims;
            Err(cache.remember(who, until, found.pending(short)))
        }
    }
}

/// Whether these victims may be evicted now, as far as their number goes.
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

/// Takes note of a gang of which a search could not say whether it fits: the next, longer one comes
/// after a while.
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

/// No set of victims makes enough capacity.
struct NoVictimsFound {
    /// What is missing with everything evicted that may be; `None`: nothing, but not all of it may
    /// go together.
    short: Option<Infeasible>,
    /// When work may be evicted that is still within its guaranteed run time.
    until: Option<DateTime<Utc>>,
    /// Pods that the rules put out of reach, where their eviction would make enough; else 0.
    out_of_reach: usize,
    /// Pods that disruption budgets keep, where their eviction would make enough; else 0.
    guarded: usize,
}

impl NoVictimsFound {
    /// Why the gang waits. `short`: what is missing without any eviction.
    fn pending(self, short: Infeasible) -> Pending {
        Pending::NoVictims {
            short: self.short.unwrap_or(short),
            until: self.until,
            out_of_reach: self.out_of_reach,
            guarded: self.guarded,
        }
    }
}

/// Searches the cheapest victims for the gang at this position, among those that the rules admit.
fn search_victims(
    context: &Context<'_>,
    everything: &Occupancy<'_>,
    at: usize,
    attempt: &PlacementAttempt<'_>,
    free: &Cluster,
    filter: VictimFilter<'_>,
) -> Result<Eviction, NoVictimsFound> {
    let rules = &context.settings.rules;
    let search = |filter: VictimFilter<'_>| {
        let table = everything.units(Some(at), attempt.demand.priority, filter);
        let left_out = (table.shielded_until, table.out_of_reach, table.guarded);
        (attempt.by_preemption(free, table, rules), left_out)
    };
    let (found, (until, mut out_of_reach, mut guarded)) = search(filter);
    let short = match found {
        // Each of them may go by itself, and all together may not.
        Ok(eviction) if eviction.answer.cost.pdb_excess > 0 && !filter.beyond_budgets => {
            guarded += eviction.answer.cost.pdb_excess as usize;
            None
        }
        Ok(eviction) => return Ok(eviction),
        Err(short) => Some(short),
    };
    // Who reads why the gang waits should know when it is the configuration.
    let enough = || {
        let room = everything.room_at_most(Some(at), attempt.demand.priority, free);
        !matches!(
            place(&room, attempt.demand),
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

/// The request without the nodes that the workload excludes because their kubelets rejected its
/// pods, and until when it does: what they saw and we did not has most likely passed by then. A
/// gang that is rejected again and again does not wait for that.
fn without_rejections(
    context: &Context<'_>,
    gang: &GangState,
    request: &PlacementRequest,
) -> Option<(PlacementRequest, DateTime<Utc>)> {
    let workload = &gang.input.workload;
    if workload.placement_tries > REJECTIONS {
        return None;
    }
    let refusing = &gang.status.excluded_nodes;
    let mut again = request.clone();
    let mut latest = None;
    for avoided in &workload.avoid {
        let rejected = avoided.reason == reasons::REJECTED_BY_NODE && avoided.until > context.now;
        if !rejected || refusing.iter().any(|e| e.node == avoided.node) {
            continue;
        }
        if let Some(node) = context.cluster.ordinal(&avoided.node) {
            again.excluded.remove(node);
            latest = latest.max(Some(avoided.until));
        }
    }
    Some((again, latest?))
}

/// Assigns the nodes of its victims to a gang, and notes the intent to evict them, if both fit into
/// one object.
fn intend(
    context: &Context<'_>,
    capacity: &mut Capacity,
    gangs: &mut [GangState],
    at: usize,
    request: &PlacementRequest,
    eviction: &Eviction,
) -> Result<(), Pending> {
    let decision = decision(context, gangs, request, eviction);
    let gang = &mut gangs[at];
    let nodes = by_name(context, &decision.nodes);
    let victims: Vec<Victim> = decision.victims.iter().map(|v| v.victim.clone()).collect();
    let placement = || new_placement(gang.uid(), &nodes, context.now);
    size::check(nodes.len(), placement, &victims, context.now).map_err(Pending::TooLarge)?;
    capacity.assign(context, gang, nodes);
    capacity
        .evicting
        .extend(victims.iter().map(|v| v.uid.clone()));
    let mut intent = Preemption {
        id: String::new(),
        preemptor_uid: gang.uid().to_owned(),
        decided_at: context.now,
        placement: gang
            .to_placement(context.now)
            .map(|p| p.id)
            .unwrap_or_default(),
        victims,
        explanation: String::new(),
        cost: whole(decision.lost),
        at_least: whole(decision.at_least),
        proven: decision.proven,
        next_best: decision
            .next_best
            .as_ref()
            .map(|next| messages::next_best(&next.victims, whole(next.lost))),
    };
    intent.id = intent_id(&intent);
    let follow_on = &eviction.answer.explanation.follow_on;
    let caused = follow_on.iter().map(|f| f.lost).sum();
    intent.explanation = messages::explanation(&intent, decision.pdb_excess, caused);
    gang.status.preemption = Some(intent);
    gang.decision = Decision::Preempts(Box::new(decision));
    Ok(())
}

fn decision(
    context: &Context<'_>,
    gangs: &[GangState],
    request: &PlacementRequest,
    eviction: &Eviction,
) -> PreemptionDecision {
    let (answer, reasons) = (&eviction.answer, &eviction.reasons);
    let mut victims = Vec::new();
    for &unit in &answer.victims {
        let taken = reasons.taken.iter().find(|t| t.unit == unit);
        let of_unit = victims_of(context, gangs, eviction, unit);
        victims.extend(of_unit.into_iter().map(|victim| ChosenVictim {
            victim,
            nodes: taken.map(|t| t.nodes.clone()).unwrap_or_default(),
        }));
    }
    let next_best = reasons.runner_up.as_ref().map(|next| {
        let units = next.victims.iter();
        OtherVictims {
            victims: units
                .flat_map(|&unit| victims_of(context, gangs, eviction, unit))
                .collect(),
            lost: next.cost.lost,
            pdb_excess: next.cost.pdb_excess,
        }
    });
    PreemptionDecision {
        nodes: request.assign(context.cluster, &answer.placement),
        victims,
        lost: answer.cost.lost,
        pdb_excess: answer.cost.pdb_excess,
        at_least: answer.bound.lost,
        proven: answer.proven,
        next_best,
    }
}

/// The victims that a unit stands for: a gang, a pod, or all pods of a unit of others.
fn victims_of(
    context: &Context<'_>,
    gangs: &[GangState],
    eviction: &Eviction,
    unit: usize,
) -> Vec<Victim> {
    let table = &eviction.table;
    let (Some(source), Some(of)) = (table.sources.get(unit), table.units.units.get(unit)) else {
        return Vec::new();
    };
    match source {
        Source::Gang(number) => {
            let gang = gangs.get(*number).into_iter();
            let victim = |gang: &GangState| Victim {
                kind: "PodGroup".to_owned(),
                namespace: gang.input.key.namespace.clone(),
                name: gang.input.key.name.clone(),
                uid: gang.uid().to_owned(),
                priority: victim_priority(context, gang),
                pods: of.pod_count() as i32,
                cost: i64::try_from(of.cost).unwrap_or(i64::MAX),
                ..Victim::default()
            };
            gang.map(victim).collect()
        }
        Source::Pod(pod) => vec![Victim {
            priority: of.priority,
            ..pod_victim(pod, of.cost)
        }],
        Source::Pods(pods) => {
            let costs = &context.settings.rules.costs;
            let victim = |pod: &Arc<Pod>| Victim {
                unit: pod.unit.as_ref().map(|unit| unit.key.to_string()),
                ..pod_victim(pod, costs.loss_of_pod(pod, context.now))
            };
            pods.iter().map(victim).collect()
        }
    }
}

fn pod_victim(pod: &Pod, cost: u64) -> Victim {
    Victim {
        kind: "Pod".to_owned(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        priority: pod.priority,
        pods: 1,
        cost: i64::try_from(cost).unwrap_or(i64::MAX),
        ..Victim::default()
    }
}

/// Accelerator-seconds as objects hold them.
fn whole(lost: u128) -> i64 {
    i64::try_from(lost).unwrap_or(i64::MAX)
}
