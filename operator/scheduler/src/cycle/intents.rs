//! Preemption intents. Each cycle validates them again and executes the next step.
//!
//! The intent is in the status of the preemptor's pod group. Everything else is derived from the
//! cluster. An intent with an invalid victim is void; victims that are gone need no action. Nothing
//! is evicted unless the preemptor's pods exist, fit without the victims, and do not fit with them.
//! So a new leader resumes any intent, and a forged intent evicts nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::ids::NodeName;
use lockstep_api::scheduling::{Preemption, Victim};
use lockstep_engine::{Amounts, NodeIx};
use lockstep_model::{Assignments, GangPhase, Pod};

use super::budgets::{BudgetAnswer, budgets_allow, guarded_pods};
use super::place::place_in_free;
use super::pursued::{Pursued, begun};
use super::unanswered::is_unanswered;
use super::victims::{Found, NamedVictims, Progress, find_victims, hold, is_spared};
use crate::capacity::Capacity;
use crate::context::{Context, Wake};
use crate::intent_id::{intent_id, is_own};
use crate::memory::Memory;
use crate::messages;
use crate::occupancy::occupancy;
use crate::pace::{LimitReached, pods_of};
use crate::pending::NoPreemption;
use crate::plan::{PodRef, Step};
use crate::refusal::{
    forget_open_preemption, record_eviction, record_failed_preemption, record_silence,
    why_no_preemption,
};
use crate::standing::position;
use crate::state::GangState;

/// Drops intents that are void without a look at their victims.
pub(super) fn drop_void(context: &Context<'_>, capacity: &mut Capacity, gangs: &mut [GangState]) {
    for gang in gangs {
        let Some(intent) = &gang.status.preemption else {
            continue;
        };
        if gang.phase() == GangPhase::Finished || gang.input.released() {
            gang.status.preemption = None;
        } else if gang.phase() != GangPhase::Active || !genuine(gang, intent) {
            withdraw(context, capacity, gang);
        }
    }
}

/// A valid intent with its victims.
struct Valid {
    at: usize,
    intent: Preemption,
    found: Vec<Found>,
}

/// Executes the intents. Runs after capacity is reserved.
pub(super) fn pursue(
    context: &Context<'_>,
    memory: &mut Memory,
    capacity: &mut Capacity,
    gangs: &mut [GangState],
) -> Pursued {
    let mut out = Pursued::default();
    let mut valid = Vec::new();
    let named = NamedVictims::look_up(context, gangs);
    for at in 0..gangs.len() {
        let Some(intent) = gangs[at].status.preemption.clone() else {
            continue;
        };
        let found = find_victims(context, gangs, &named, at, &intent);
        // Terminating pods are lost in any case, so their capacity can be used. A new leader may
        // not have requested the result of admission yet; it was known at the decision.
        let forbidden = why_no_preemption(context, &gangs[at])
            .is_some_and(|why| !matches!(why, NoPreemption::NotAdmitted(_)));
        let spares = |f: &Found| forbidden || is_spared(context, gangs, at, f);
        let found = found.filter(|all| !all.iter().any(|f| f.stays() && spares(f)));
        let Some(found) = found else {
            withdraw(context, capacity, &mut gangs[at]);
            continue;
        };
        if found.iter().any(|f| f.evicted) {
            record_eviction(&mut gangs[at], &intent);
        }
        // Before its first eviction, an intent may wait for the eviction limit.
        let waits = !begun(&intent) && found.iter().any(|f| f.progress == Progress::Here);
        if !waits && overdue(context, &intent, &found, &mut out.wake) {
            record_failed_preemption(context, &mut gangs[at]);
            withdraw(context, capacity, &mut gangs[at]);
            continue;
        }
        let there = found.iter().filter(|f| f.progress != Progress::Gone);
        capacity
            .evicting
            .extend(there.map(|f| f.victim.uid.clone()));
        valid.push(Valid { at, intent, found });
    }
    let intents = gangs.iter().filter_map(|g| g.status.preemption.as_ref());
    memory.evictions.read(intents, context.now);
    // In the order of the queue, in which gangs with nodes are first.
    valid.sort_by_cached_key(|valid| position(&gangs[valid.at]));
    out.evictions = memory.evictions.clone();
    for Valid { intent, found, .. } in &valid {
        if begun(intent) {
            out.spend(&guarded_pods(context, gangs, found));
        }
    }
    for valid in &valid {
        pursue_one(context, memory, capacity, gangs, valid, &mut out);
    }
    // Victims of a dropped or reduced intent stay, unless they are terminating. If they counted as
    // terminating, the next intent would lack one victim, and so on forever.
    for Valid { at, found, .. } in &valid {
        let intent = gangs[*at].status.preemption.iter();
        let victims = intent.flat_map(|intent| &intent.victims);
        let kept: HashSet<&str> = victims.map(|v| v.uid.as_str()).collect();
        for victim in found.iter().filter(|f| f.progress == Progress::Here) {
            let uid = victim.victim.uid.as_str();
            if !kept.contains(uid) {
                capacity.evicting.remove(uid);
            }
        }
    }
    out
}

fn pursue_one(
    context: &Context<'_>,
    memory: &mut Memory,
    capacity: &mut Capacity,
    gangs: &mut [GangState],
    valid: &Valid,
    out: &mut Pursued,
) {
    let Valid { at, intent, found } = valid;
    let gang = &mut gangs[*at];
    let unbound = gang.unbound();
    if unbound.is_empty() {
        gang.status.preemption = None;
        return;
    }
    let gone = found.iter().all(|f| f.progress == Progress::Gone);
    if gone && is_unanswered(context, memory, gang, &unbound, &mut out.wake) {
        record_failed_preemption(context, gang);
        record_silence(context, gang, &unbound);
        withdraw(context, capacity, gang);
        return;
    }
    let pods: Option<Vec<(Arc<Pod>, NodeName)>> = unbound
        .iter()
        .map(|(m, n)| Some((Arc::clone(gang.waiting_pod(m, n)?), n.clone())))
        .collect();
    // The workload is still creating pods, or a quota refuses them.
    let Some(pods) = pods else {
        if overdue(context, intent, found, &mut out.wake) {
            withdraw(context, capacity, gang);
        }
        return;
    };
    if found.iter().any(|f| f.progress == Progress::Here) {
        pursue_victims(context, memory, capacity, gangs, valid, &unbound, out);
        return;
    }
    // While a victim runs, kube-scheduler would itself preempt for pods that it sees.
    let early = context.settings.keeps_nominations;
    if found.iter().all(|f| f.progress.makes_way(early)) {
        nominate(&pods, out);
    }
}

/// Evicts the remaining victims, unless the gang fits without them or with fewer victims.
fn pursue_victims(
    context: &Context<'_>,
    memory: &mut Memory,
    capacity: &mut Capacity,
    gangs: &mut [GangState],
    valid: &Valid,
    unbound: &Assignments,
    out: &mut Pursued,
) {
    let Valid { at, intent, found } = valid;
    let nodes: BTreeSet<NodeIx> = unbound
        .values()
        .filter_map(|n| context.cluster.ordinal(n.as_str()))
        .collect();
    let after = free_after_terminations(context, capacity, gangs, *at, &nodes, out);
    if !fits(&after) {
        withdraw(context, capacity, &mut gangs[*at]);
        return;
    }
    if !begun(intent) && move_to_free_capacity(context, memory, capacity, &mut gangs[*at]) {
        return;
    }
    let here = found.iter().filter(|f| f.progress == Progress::Here);
    let here: Vec<&Found> = here.collect();
    let spared = can_stay(intent, &here, after);
    if !spared.is_empty() {
        let victims = intent.victims.iter();
        let left = victims.filter(|v| !spared.contains(v.uid.as_str()));
        gangs[*at].status.preemption = Some(reduced(intent.clone(), left.cloned().collect()));
        return;
    }
    let refused = match budgets_allow(context, memory, gangs, intent, &here, out) {
        BudgetAnswer::Yes => {
            evict_in_pace(context, memory, gangs, valid, here, out);
            false
        }
        BudgetAnswer::Asked => overdue(context, intent, found, &mut out.wake),
        BudgetAnswer::No => true,
    };
    if refused {
        withdraw(context, capacity, &mut gangs[*at]);
    }
}

fn evict_in_pace(
    context: &Context<'_>,
    memory: &mut Memory,
    gangs: &mut [GangState],
    valid: &Valid,
    here: Vec<&Found>,
    out: &mut Pursued,
) {
    let Valid { at, intent, .. } = valid;
    let gang = &mut gangs[*at];
    if !begun(intent) && !in_pace(context, gang, intent, out) {
        return;
    }
    record_eviction(gang, intent);
    note_request(context, gang, &here);
    for victim in here {
        evict(context, memory, gangs, *at, intent, victim, out);
    }
}

/// True if victims have not gone in time. Counts from the last eviction request (before that, the
/// decision), or from the end of the last grace period if later.
fn overdue(context: &Context<'_>, intent: &Preemption, found: &[Found], wake: &mut Wake) -> bool {
    let mut there = found.iter().filter(|f| f.progress != Progress::Gone);
    if there.clone().next().is_none() {
        return false;
    }
    let evicted = intent.victims.iter();
    let evicted = evicted.filter_map(|v| v.eviction_requested_at).max();
    let begin = evicted.unwrap_or(intent.decided_at);
    let in_time = |end: &DateTime<Utc>| context.settings.rules.in_time(*end, context.now);
    let ends = there.by_ref().filter_map(|f| f.ends.filter(in_time));
    let since = ends.fold(begin, Ord::max);
    context.due(since, context.settings.intent_deadline, wake)
}

/// Whether the eviction limit permits the victims now. If not, sets `paced` of the gang.
fn in_pace(
    context: &Context<'_>,
    gang: &mut GangState,
    intent: &Preemption,
    out: &mut Pursued,
) -> bool {
    let (limit, pods) = (context.settings.max_evictions_per_minute, pods_of(intent));
    gang.paced = match out.paced {
        Some(first) => Some(LimitReached { pods, ..first }),
        None => out.evictions.allow(pods, limit, context.now).err(),
    };
    out.paced = out.paced.or(gang.paced);
    if let Some(reached) = &gang.paced {
        out.wake.at(reached.next_try);
    }
    gang.paced.is_none()
}

fn fits(after: &BTreeMap<NodeIx, Amounts>) -> bool {
    after.values().flatten().all(|&free| free >= 0)
}

/// UIDs of victims that can stay, most important first. `after`: free capacity without all victims.
/// Pods of a unit stay together if none of them is terminating.
fn can_stay<'f>(
    intent: &Preemption,
    here: &[&'f Found],
    mut after: BTreeMap<NodeIx, Amounts>,
) -> BTreeSet<&'f str> {
    let mut units: BTreeMap<UnitOfVictim<'_>, Vec<&'f Found>> = BTreeMap::new();
    for found in here {
        let unit = UnitOfVictim::of(&found.victim);
        units.entry(unit).or_default().push(found);
    }
    let mut named: BTreeMap<UnitOfVictim<'_>, usize> = BTreeMap::new();
    for victim in &intent.victims {
        *named.entry(UnitOfVictim::of(victim)).or_default() += 1;
    }
    units.retain(|unit, found| named.get(unit) == Some(&found.len()));
    let mut by_importance: Vec<Vec<&Found>> = units.into_values().collect();
    by_importance.sort_by_key(|unit| {
        let victims = || unit.iter().map(|f| &f.victim);
        (
            Reverse(victims().map(|v| v.priority).max()),
            Reverse(victims().map(|v| v.cost).fold(0, i64::saturating_add)),
            victims().map(|v| v.uid.clone()).min(),
        )
    });
    let mut spared = BTreeSet::new();
    for candidate in by_importance {
        let holds = || candidate.iter().map(|found| &found.holds);
        holds().for_each(|held| hold(&mut after, held, 1));
        let mut nodes = holds().flatten().filter_map(|(node, _)| after.get(node));
        if nodes.all(|free| free.iter().all(|&free| free >= 0)) {
            spared.extend(candidate.iter().map(|f| f.victim.uid.as_str()));
        } else {
            holds().for_each(|held| hold(&mut after, held, -1));
        }
    }
    spared
}

/// A single victim, or a unit of victims that are evicted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UnitOfVictim<'v> {
    Alone(&'v str),
    Together(&'v str, &'v str),
}

impl<'v> UnitOfVictim<'v> {
    fn of(victim: &'v Victim) -> Self {
        match &victim.unit {
            Some(unit) => Self::Together(&victim.namespace, unit),
            None => Self::Alone(&victim.uid),
        }
    }
}

/// The intent without spared victims. The next cycle continues with it.
fn reduced(mut intent: Preemption, victims: Vec<Victim>) -> Preemption {
    intent.cost = victims.iter().map(|v| v.cost).fold(0, i64::saturating_add);
    intent.explanation = messages::reduced(&victims, intent.cost);
    // The proof was for another set of victims.
    (intent.proven, intent.at_least, intent.next_best) = (false, 0, None);
    intent.victims = victims;
    intent.id = intent_id(&intent);
    intent
}

/// Moves the gang to free capacity if it fits there without victims.
fn move_to_free_capacity(
    context: &Context<'_>,
    memory: &mut Memory,
    capacity: &mut Capacity,
    gang: &mut GangState,
) -> bool {
    let mut left = capacity.clone();
    let mut moved = gang.clone();
    left.vacate(context, &mut moved);
    if !place_in_free(context, memory, &mut left, &mut moved) {
        return false;
    }
    // In a basic group, some members may fit while the rest needs victims.
    if moved.assigned_members().count() < gang.assigned_members().count() {
        return false;
    }
    moved.status.preemption = None;
    (*capacity, *gang) = (left, moved);
    true
}

/// Free capacity on these nodes after all terminations, as visible to the gang here.
fn free_after_terminations(
    context: &Context<'_>,
    capacity: &mut Capacity,
    gangs: &[GangState],
    at: usize,
    nodes: &BTreeSet<NodeIx>,
    out: &mut Pursued,
) -> BTreeMap<NodeIx, Amounts> {
    let free = capacity.visible_to(context, gangs[at].priority());
    let mut after: BTreeMap<NodeIx, Amounts> = nodes
        .iter()
        .map(|&n| (n, free.free(n).iter().copied().collect()))
        .collect();
    let leaving = occupancy(context, capacity, gangs).leaving();
    if let Some(until) = leaving.until {
        out.wake.at(until);
    }
    for (node, amounts) in leaving.held {
        for (free, amount) in after.get_mut(&node).into_iter().flatten().zip(amounts) {
            *free += amount;
        }
    }
    after
}

fn evict(
    context: &Context<'_>,
    memory: &mut Memory,
    gangs: &mut [GangState],
    at: usize,
    intent: &Preemption,
    found: &Found,
    out: &mut Pursued,
) {
    let victim = &found.victim;
    let text = messages::preempted_by(&gangs[at], intent, victim.cost);
    let preemptor = gangs[at].input.key.clone();
    // An eviction is requested again only if budgets refused it.
    let first = victim.eviction_requested_at.unwrap_or(context.now);
    out.evictions.note(&victim.uid, victim.pods, first);
    let gang = found.gang.map(|at| &mut gangs[at]);
    let Some(pod) = &found.pod else {
        if let Some(gang) = gang {
            gang.preempted = Some((preemptor, text));
        }
        return;
    };
    if let Some(gang) = gang {
        unassign(gang, pod);
    }
    if !pod.disrupted {
        out.steps.push(Step::MarkPod {
            preemptor: preemptor.clone(),
            pod: PodRef::of(pod),
            message: text,
        });
    }
    let last = memory.evicted_at.get(&victim.uid).copied();
    let retry = context.settings.retry;
    if last.is_some_and(|last| !context.due(last, retry, &mut out.wake)) {
        return;
    }
    memory.evicted_at.insert(victim.uid.clone(), context.now);
    let by_force = context
        .settings
        .delete_after
        .is_some_and(|wait| context.due(first, wait, &mut out.wake));
    out.steps.push(Step::Evict {
        preemptor,
        pod: PodRef::of(pod),
        by_force,
    });
}

/// Records the time of the eviction request in the intent, unless already recorded.
fn note_request(context: &Context<'_>, gang: &mut GangState, here: &[&Found]) {
    let here: HashSet<&str> = here.iter().map(|f| f.victim.uid.as_str()).collect();
    let intent = gang.status.preemption.iter_mut();
    let victims = intent.flat_map(|intent| &mut intent.victims);
    for victim in victims.filter(|v| here.contains(v.uid.as_str())) {
        victim.eviction_requested_at.get_or_insert(context.now);
    }
}

/// Unassigns a member that is evicted alone. A whole gang releases its placement itself.
fn unassign(gang: &mut GangState, pod: &Pod) {
    if let (Some(assigned), Some(member)) = (&mut gang.assigned, &pod.member) {
        Arc::make_mut(assigned).remove(member);
    }
}

fn nominate(pods: &[(Arc<Pod>, NodeName)], out: &mut Pursued) {
    for (pod, node) in pods {
        if pod.nominated.as_ref() != Some(node) {
            out.steps.push(Step::Nominate {
                pod: PodRef::of(pod),
                node: node.clone(),
            });
        }
    }
}

/// Withdraws an intent and releases the nodes that it was for.
fn withdraw(context: &Context<'_>, capacity: &mut Capacity, gang: &mut GangState) {
    if let Some(intent) = gang.status.preemption.take() {
        forget_open_preemption(gang, intent.decided_at);
    }
    capacity.vacate(context, gang);
}

/// True if the intent is unchanged and written for the gang's current placement.
fn genuine(gang: &GangState, intent: &Preemption) -> bool {
    is_own(&gang.input.group, intent) && gang.unmoved()
}
