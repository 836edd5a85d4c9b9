//! Intents to preempt: validated again in every cycle, then carried out step by step.
//!
//! The status of the preemptor's pod group holds the intent, and everything else is derived from
//! what is there: victims that are gone need nothing, victims that are no victims make the intent
//! void, and nothing is evicted unless the preemptor's pods exist, fit with the victims gone, and
//! do not fit otherwise. So a new leader resumes an intent where the last one left it, and one that
//! was forged evicts nothing.

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

/// Drops intents that are void on their face.
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

/// An intent that holds, with its victims.
struct Valid {
    /// Position of its gang.
    at: usize,
    intent: Preemption,
    found: Vec<Found>,
}

/// Carries intents on. Runs after capacity is reserved.
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
        // What is terminating already is lost either way, and the capacity that it leaves may be
        // used.
        // What the API server makes of its pods was known when the intent was decided: another process
        // that leads now has not asked yet.
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
        // One that has victims to evict and has evicted none may wait for the limit.
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
    // In the order of the queue, where those are first that hold nodes.
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
    // Victims that were only going to be told, of an intent that has just been dropped or
    // shortened, stay: to count their capacity as leaving would make the next intent one victim
    // short, and so on for ever.
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
    // Not all pods are there: the workload is still creating them, or a quota refuses them. Nothing
    // is evicted in vain.
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
    // While a victim runs, kube-scheduler would preempt by itself for pods that it sees.
    let early = context.settings.keeps_nominations;
    if found.iter().all(|f| f.progress.makes_way(early)) {
        nominate(&pods, out);
    }
}

/// Evicts the victims of an intent that are here, unless the gang fits without, or with fewer of them.
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

/// Evicts these victims as soon as the limit allows it.
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

/// Whether victims have been there for too long: after the decision, or their eviction, which may
/// have waited for the limit, and beyond the grace periods of those that are leaving.
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

/// Whether the victims of an intent may be evicted now, as far as their number goes; if not, the gang
/// says until when they wait.
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

/// UIDs of victims that can stay, given what is free with all of them gone; the most important come
/// first. Pods that go together stay together, where none of them has begun to leave.
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

/// What goes together: a victim, or the unit that it belongs to.
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

/// The intent without victims that can stay; the next cycle goes on with it.
fn reduced(mut intent: Preemption, victims: Vec<Victim>) -> Preemption {
    intent.cost = victims.iter().map(|v| v.cost).fold(0, i64::saturating_add);
    intent.explanation = messages::reduced(&victims, intent.cost);
    // What was proven was proven of another question.
    (intent.proven, intent.at_least, intent.next_best) = (false, 0, None);
    intent.victims = victims;
    intent.id = intent_id(&intent);
    intent
}

/// Whether the gang fits into free capacity by now; then it moves there, and needs no victims.
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
    // Of members that go one by one, some may fit while the intent is for the others.
    if moved.assigned_members().count() < gang.assigned_members().count() {
        return false;
    }
    moved.status.preemption = None;
    (*capacity, *gang) = (left, moved);
    true
}

/// What is free on these nodes once everything that is leaving has left, as the gang at this
/// position sees it.
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
    // A pod whose eviction is requested again is one whose budgets have refused it.
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

/// Notes in the intent that the eviction of these victims is requested, unless it has been before.
fn note_request(context: &Context<'_>, gang: &mut GangState, here: &[&Found]) {
    let here: HashSet<&str> = here.iter().map(|f| f.victim.uid.as_str()).collect();
    let intent = gang.status.preemption.iter_mut();
    let victims = intent.flat_map(|intent| &mut intent.victims);
    for victim in victims.filter(|v| here.contains(v.uid.as_str())) {
        victim.eviction_requested_at.get_or_insert(context.now);
    }
}

/// A member that is evicted by itself has no node any more. (A gang that goes whole releases its
/// placement itself.)
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

/// Gives up an intent and the nodes that it was to free.
fn withdraw(context: &Context<'_>, capacity: &mut Capacity, gang: &mut GangState) {
    if let Some(intent) = gang.status.preemption.take() {
        forget_open_preemption(gang, intent.decided_at);
    }
    capacity.vacate(context, gang);
}

/// Whether an intent is this gang's own, unchanged, and for the placement that it has.
fn genuine(gang: &GangState, intent: &Preemption) -> bool {
    is_own(&gang.input.group, intent) && gang.unmoved()
}
