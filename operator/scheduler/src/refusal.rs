//! Refusals by kube-scheduler: excluded nodes, back-off, and gangs that may not preempt.
//!
//! Preemption frees capacity only. A gang refused for another reason may not preempt until its spec
//! changes, it is bound, or missing claims exist (`claims`). A gang that does not run after a
//! preemption may have lost a race, or may never run, so it preempts again after a back-off. The
//! back-off is in the status of the pod group, for the next leader. A gang also may not preempt if
//! the scheduler cannot know whether it would run: its admitted pods are unknown, another controller
//! holds them with a scheduling gate, or kube-scheduler alone evaluates a constraint.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::reasons;
use lockstep_api::gangs::Assignments;
use lockstep_api::ids::NodeName;
use lockstep_api::scheduling::{
    ExcludedNode, LastPreemption, Preemption, Refusal, WithdrawnPreemptions,
};
use lockstep_engine::NodeIx;
use lockstep_model::Pod;
use lockstep_model::pods::pod::Stage;
use lockstep_model::pods::refusal::{awaits_own_claim, lacks_capacity_only, may_end_with_others};

use crate::context::Context;
use crate::gang::pending::{NoPreemption, Pending};
use crate::gang::state::GangState;
use crate::input::hold::GangPhase;
use crate::memory::backoff::{backoff, preemption_backoff};
use crate::memory::{Memory, RefusedPod};
use crate::messages;

/// Time to create the claims of a large gang's own volumes: 5,000 pods, 20 claims per second.
const OWN_CLAIMS: Duration = Duration::from_mins(5);

/// The longest time in which kube-scheduler does not retry although capacity is free:
/// `podMaxBackoffSeconds` (10 s) and one period of its queue.
const LONGEST_RETRY: Duration = Duration::from_secs(11);

/// Consecutive refused placements after which a gang gets no reservation. A fresh taint can cause
/// one.
const REFUSALS: i32 = 3;
/// Constraint of a claim that another pod mounts.
pub(crate) const CLAIM_IN_USE: &str = "ReadWriteOncePod claim that another pod mounts";

/// Excludes nodes that kube-scheduler refuses for pinned pods for too long, and records the reason.
/// Adds the UIDs of all refused pods to `refused`.
pub(crate) fn note_refusals(
    context: &Context<'_>,
    memory: &mut Memory,
    gang: &mut GangState,
    refused: &mut HashSet<String>,
) {
    forget_refusals(gang, memory.claims.settle(gang));
    follow_preemption(context, gang);
    let withdrawn = gang.status.withdrawn_preemptions.as_ref();
    if let Some(at) = withdrawn.map(after_withdrawal)
        && at > context.now
    {
        context.wake.at(at);
    }
    expire_exclusions(context, gang);
    if gang.fully_bound().is_some() {
        return;
    }
    let pods: Vec<Arc<Pod>> = gang
        .all_pods()
        .filter(|p| p.stage == Stage::Refused && p.alive())
        .cloned()
        .collect();
    for pod in pods {
        let Some(node) = pod.pinned.as_ref() else {
            continue;
        };
        refused.insert(pod.uid.to_string());
        let uid = pod.uid.to_string();
        let may_end = pod.refusal.as_deref().is_none_or(may_end_with_others);
        if is_caused_by_node(context, gang, &pod, node, may_end) {
            let outdated = RefusedPod {
                outdated: true,
                ..RefusedPod::default()
            };
            memory.refused.insert(uid, outdated);
            continue;
        }
        let refused = memory.refused.entry(uid).or_default();
        // The refusal may be older than the end of the victims.
        refused.outdated |= may_end && gang.status.preemption.is_some();
        let since = *refused.since.get_or_insert(context.now);
        let counts_from = *refused.counts_from.get_or_insert(since);
        let waits = pod.refusal.as_deref().is_some_and(awaits_own_claim);
        let usual = context.settings.refused_after;
        let patience = match (waits, refused.outdated) {
            (true, _) => OWN_CLAIMS,
            (false, true) => usual.max(LONGEST_RETRY),
            (false, false) => usual,
        };
        if context.due(counts_from, patience) {
            exclude(context, gang, node);
            record_refusal(context, gang, &pod, node);
        }
    }
}

/// True if the node cannot take the pod now for a reason that passes: the refusal says nothing about
/// the time after it. `may_end`: the refusal can end with pods that terminate.
fn is_caused_by_node(
    context: &Context<'_>,
    gang: &GangState,
    pod: &Pod,
    node: &NodeName,
    may_end: bool,
) -> bool {
    let unusable = pod.member.as_ref().is_some_and(|member| {
        gang.unusable.waiting.contains(member) || gang.unusable.lost.contains(member)
    });
    let ordinal = context.cluster.ordinal(node.as_str());
    unusable && gang.on_assigned_node(pod)
        || may_end && ordinal.is_some_and(|n| terminating_on(context, n))
}

/// True if a terminating pod on the node is about to free capacity.
fn terminating_on(context: &Context<'_>, node: NodeIx) -> bool {
    let mut soon = false;
    for end in context
        .cluster
        .pods_on(node)
        .filter_map(|pod| pod.terminating)
    {
        if let Some(until) = context.settings.rules.waited_for(end, context.now) {
            context.wake.at(until);
            soon = true;
        }
    }
    soon
}

fn expire_exclusions(context: &Context<'_>, gang: &mut GangState) {
    if gang.phase() == &GangPhase::Finished || gang.status.excluded_nodes.is_empty() {
        return;
    }
    gang.status_mut()
        .excluded_nodes
        .retain(|e| e.until > context.now);
    for excluded in &gang.status.excluded_nodes {
        context.wake.at(excluded.until);
    }
}

fn exclude(context: &Context<'_>, gang: &mut GangState, node: &NodeName) {
    let excluded = &mut gang.status_mut().excluded_nodes;
    if excluded.iter().any(|e| *node == *e.node) {
        return;
    }
    let time = TimeDelta::from_std(context.settings.avoid_refused).unwrap_or(TimeDelta::MAX);
    let until = context.now + time;
    context.wake.at(until);
    excluded.push(ExcludedNode {
        node: node.to_string(),
        reason: reasons::UNSCHEDULABLE.to_owned(),
        until,
    });
    excluded.sort_by(|a, b| a.node.cmp(&b.node));
}

/// Back-off of a gang after refusals for reasons other than capacity.
pub(crate) fn backs_off(context: &Context<'_>, gang: &GangState) -> Option<Pending> {
    let refusal = gang.status.refusal.as_ref()?;
    let next_try = next_try(refusal);
    (context.now < next_try).then(|| Pending::BackingOff {
        refusal: Box::new(refusal.clone()),
        next_try,
    })
}

/// True if excluded nodes are permitted again when no other node has capacity, because the missing
/// object may exist by now.
pub(crate) fn may_retry_excluded_nodes(gang: &GangState) -> bool {
    gang.status.refusal.is_some() && !gang.status.excluded_nodes.is_empty()
}

/// True if a gang gets no reservation, because of too many refusals or a silent scheduler.
pub(crate) fn may_never_run(gang: &GangState) -> bool {
    let refusal = gang.status.refusal.as_ref();
    refusal.is_some_and(|r| r.unanswered || r.tries >= REFUSALS)
}

/// Why the gang may not preempt, whatever its priority.
pub(crate) fn why_no_preemption(context: &Context<'_>, gang: &GangState) -> Option<NoPreemption> {
    let failed = gang
        .status
        .last_preemption
        .as_ref()
        .and_then(|last| Some((last.failures, next_preemption(last)?)));
    let withdrawn = gang
        .status
        .withdrawn_preemptions
        .as_ref()
        .map(|w| (w.count, after_withdrawal(w)));
    let failed = failed
        .into_iter()
        .chain(withdrawn)
        .max_by_key(|(_, at)| *at);
    if !context.settings.preemption_enabled {
        Some(NoPreemption::Disabled)
    } else if let Some(missing) = gang.missing_volume() {
        Some(NoPreemption::Missing(missing.clone()))
    } else if let Some(gate) = gang.foreign_gate() {
        Some(NoPreemption::Gated(gate.to_owned()))
    } else if let Some(what) = gang.not_modelled() {
        Some(NoPreemption::NotModelled(what.to_owned()))
    } else if mounts_claim_in_use(context, gang) {
        Some(NoPreemption::NotModelled(CLAIM_IN_USE.to_owned()))
    } else if let Some(refusal) = &gang.status.refusal {
        Some(NoPreemption::Refused(Box::new(refusal.clone())))
    } else if let Some((failures, next_try)) = failed.filter(|(_, at)| *at > context.now) {
        Some(NoPreemption::Failed { failures, next_try })
    } else {
        let reason = gang.not_admitted()?;
        Some(NoPreemption::NotAdmitted(reason.to_owned()))
    }
}

/// True if a pod outside the gang mounts a `ReadWriteOncePod` claim of the gang. An eviction might
/// not release the claim.
fn mounts_claim_in_use(context: &Context<'_>, gang: &GangState) -> bool {
    let group = &gang.input.key;
    let mut pods = gang
        .one_pod_claims()
        .flat_map(|claim| context.cluster.pods_mounting(&group.namespace, claim));
    pods.any(|pod| !is_of(gang, pod) && pod.alive())
}

fn is_of(gang: &GangState, pod: &Pod) -> bool {
    let mut members = gang.input.gang.members();
    pod.owner.as_ref() == Some(&gang.input.workload.uid)
        && members.any(|m| Some(m) == pod.member.as_ref())
}

/// Records that a preemption has evicted work. Earlier failures still count.
pub(crate) fn record_eviction(gang: &mut GangState, intent: &Preemption) {
    let observed = gang.observed_spec();
    let status = gang.status_mut();
    status.withdrawn_preemptions = None;
    let last = status
        .last_preemption
        .get_or_insert_with(|| LastPreemption {
            observed,
            ..LastPreemption::default()
        });
    last.decided_at = intent.decided_at;
}

/// Records that a preemption was withdrawn before an eviction. The back-off is short, because pods
/// of other controllers can take capacity at any time. Without it, a decision that never holds would
/// be repeated in each cycle.
pub(crate) fn record_withdrawal(context: &Context<'_>, gang: &mut GangState) {
    let before = gang.status.withdrawn_preemptions.map_or(0, |w| w.count);
    gang.status_mut().withdrawn_preemptions = Some(WithdrawnPreemptions {
        last: context.now,
        count: before.saturating_add(1),
        observed: gang.observed_spec(),
    });
}

pub(crate) fn record_failed_preemption(context: &Context<'_>, gang: &mut GangState) {
    if let Some(last) = &mut gang.status_mut().last_preemption
        && !last.has_failed()
    {
        // The deciding leader's clock may be ahead.
        last.failed_at = Some(context.now.max(last.decided_at));
        last.failures = last.failures.saturating_add(1);
    }
}

/// Records that a preemption ended without fault of the gang, for example after the loss of a node.
/// Earlier failures still count.
pub(crate) fn forget_open_preemption(gang: &mut GangState, decided_at: DateTime<Utc>) {
    let last = &mut gang.status_mut().last_preemption;
    *last = last
        .take()
        .filter(|last| last.failures > 0 || last.decided_at != decided_at);
}

/// Records a failure if all members were bound after a preemption, but the gang did not run:
/// members did not start or lost their nodes.
fn follow_preemption(context: &Context<'_>, gang: &mut GangState) {
    let Some(decided_at) = gang.status.last_preemption.as_ref().map(|p| p.decided_at) else {
        return;
    };
    if gang.phase() == &GangPhase::Finished {
        return;
    }
    // Members of a Basic group start one by one. An incident replaces a member that does not start,
    // and a template that cannot start releases all nodes. A member without a node is no failure.
    let lost = if gang.input.gang.basic {
        let mut domains = gang.input.workload.members.domains.iter();
        let holds_no_node = gang.input.released() || gang.unfinished_assigned().next().is_none();
        holds_no_node || domains.any(|d| d.incident.is_some())
    } else {
        !gang.enough_bound()
    };
    if gang.status.preemption.is_none() && lost {
        if gang.disrupted() {
            forget_open_preemption(gang, decided_at);
        } else {
            record_failed_preemption(context, gang);
        }
    }
    let next = gang
        .status
        .last_preemption
        .as_ref()
        .and_then(next_preemption);
    if let Some(at) = next.filter(|at| *at > context.now) {
        context.wake.at(at);
    }
}

fn next_preemption(last: &LastPreemption) -> Option<DateTime<Utc>> {
    let failed_at = last.failed_at.filter(|_| last.has_failed())?;
    Some(failed_at + preemption_backoff(last.failures))
}

fn after_withdrawal(withdrawn: &WithdrawnPreemptions) -> DateTime<Utc> {
    withdrawn.last + backoff(withdrawn.count)
}

fn record_refusal(context: &Context<'_>, gang: &mut GangState, pod: &Pod, node: &NodeName) {
    let now = context.now;
    // The refusal was counted when the member got another node. The pod will be deleted.
    if gang.phase() != &GangPhase::Active
        || gang.input.released()
        || gang.disrupted()
        || !gang.on_assigned_node(pod)
    {
        return;
    }
    record_failed_preemption(context, gang);
    let message = pod.refusal.as_deref().unwrap_or_default();
    if lacks_capacity_only(message) {
        return;
    }
    let tries = match &gang.status.refusal {
        // Another pod of the same placement.
        Some(refusal) if now < next_try(refusal) => return,
        Some(refusal) => refusal.tries.saturating_add(1),
        None => 1,
    };
    gang.status_mut().refusal = Some(Refusal {
        pod: pod.name.to_string(),
        node: node.to_string(),
        message: message.to_owned(),
        unanswered: false,
        at: now,
        tries,
        observed: gang.observed_spec(),
    });
}

/// Records that pods of a gang were neither bound nor refused in time, with the scheduler's error
/// message if any. Missing and gated pods need no response.
pub(crate) fn record_silence(context: &Context<'_>, gang: &mut GangState, unbound: &Assignments) {
    let free = |pod: &&Arc<Pod>| !pod.gated() && pod.foreign_gate.is_none();
    let waiting: Option<Vec<(&Arc<Pod>, &NodeName)>> = unbound
        .iter()
        .map(|(m, n)| Some((gang.waiting_pod(m, n).filter(free)?, n)))
        .collect();
    let Some(waiting) = waiting else {
        return;
    };
    let failed = waiting.iter().find(|(pod, _)| pod.refusal.is_some());
    let Some((pod, node)) = failed.or(waiting.first()) else {
        return;
    };
    let before = gang.status.refusal.as_ref().map_or(0, |r| r.tries);
    gang.status_mut().refusal = Some(Refusal {
        pod: pod.name.to_string(),
        node: node.to_string(),
        message: match &pod.refusal {
            Some(message) => message.to_string(),
            None => messages::scheduler_timeout(context, gang, unbound),
        },
        unanswered: pod.refusal.is_none(),
        at: context.now,
        tries: before.saturating_add(1),
        observed: gang.observed_spec(),
    });
}

/// Drops records of an older spec, refusals of a bound gang, and preemptions of a running gang.
/// `mended`: the missing object of a refusal exists now.
fn forget_refusals(gang: &mut GangState, mended: bool) {
    if gang.phase() == &GangPhase::Finished {
        return;
    }
    let observed = gang.observed_spec();
    if let Some(refusal) = &gang.status.refusal
        && (mended || refusal.observed != observed || gang.every_member_bound())
    {
        gang.status_mut().refusal = None;
        gang.status_mut().excluded_nodes.clear();
    }
    if let Some(withdrawn) = gang.status.withdrawn_preemptions
        && (withdrawn.observed != observed || gang.began_to_run_after(withdrawn.last))
    {
        gang.status_mut().withdrawn_preemptions = None;
    }
    if let Some(preemption) = &gang.status.last_preemption
        && (mended
            || preemption.observed != observed
            || gang.began_to_run_after(preemption.decided_at))
    {
        gang.status_mut().last_preemption = None;
    }
}

fn next_try(refusal: &Refusal) -> DateTime<Utc> {
    refusal.at + backoff(refusal.tries)
}
