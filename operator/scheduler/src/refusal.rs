//! What kube-scheduler refuses: nodes to stay away from, when to try again, and for which gangs no
//! work is preempted.
//!
//! Preemption makes capacity and nothing else. So it is not done for a gang that is refused for
//! another reason, until its spec changes, it is bound, or the claims that were missing are there
//! (`claims`). A gang that does not run after a preemption preempts again after a back-off only: it may
//! have lost a race, or it may never run. That is in the status of its pod group, for the next leader.
//! Nor is it done for a gang that asks kube-scheduler for what is not known here, such as another pod
//! nearby, or whose pods as they were admitted are not known: nobody can say that it would run then.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::reasons;
use lockstep_api::ids::NodeName;
use lockstep_api::scheduling::{ExcludedNode, LastPreemption, Preemption, Refusal};
use lockstep_engine::NodeIx;
use lockstep_model::pod::Stage;
use lockstep_model::refusal::{awaits_own_claim, lacks_capacity_only, may_end_with_others};
use lockstep_model::{Assignments, GangPhase, Pod};

use crate::backoff::{backoff, preemption_backoff};
use crate::context::{Context, Wake};
use crate::memory::Memory;
use crate::messages;
use crate::pending::{NoPreemption, Pending};
use crate::state::GangState;

/// How long the claims of a large gang's own volumes may take to be made: those of 5,000 pods, 20 a second.
const OWN_CLAIMS: Duration = Duration::from_mins(5);

/// Placements in a row that are refused before nothing is reserved for a gang any more: a node that is
/// tainted just then refuses once.
const REFUSALS: i32 = 3;
/// What only kube-scheduler knows of a claim that others mount.
const CLAIM_IN_USE: &str = "ReadWriteOncePod claim, which another pod mounts,";

/// Excludes nodes whose pinned pods kube-scheduler refuses for longer than it takes to make up its
/// mind, and notes what for. Adds the UIDs of all refused pods to `refused`.
pub(crate) fn note_refusals(
    context: &Context<'_>,
    memory: &mut Memory,
    gang: &mut GangState,
    refused: &mut HashSet<String>,
    wake: &mut Wake,
) {
    forget_refusals(gang, memory.claims.settle(gang));
    follow_preemption(context, gang, wake);
    expire_exclusions(context, gang, wake);
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
        let ordinal = context.cluster.ordinal(node.as_str());
        let may_end = pod.refusal.as_deref().is_none_or(may_end_with_others);
        if may_end && ordinal.is_some_and(|n| terminating_on(context, n, wake)) {
            // What was refused while there was no capacity is tried again when there is: that takes
            // a moment, too, and counts from the first look at the node without them.
            memory.refused_since.remove(pod.uid.as_str());
            continue;
        }
        let since = *memory
            .refused_since
            .entry(pod.uid.to_string())
            .or_insert(context.now);
        let waits = pod.refusal.as_deref().is_some_and(awaits_own_claim);
        let patience = if waits {
            OWN_CLAIMS
        } else {
            context.settings.refused_after
        };
        if context.due(since, patience, wake) {
            exclude(context, gang, node, wake);
            record_refusal(context, gang, &pod, node);
        }
    }
}

/// Whether a pod on the node is about to end, so that its capacity is not what it will be.
fn terminating_on(context: &Context<'_>, node: NodeIx, wake: &mut Wake) -> bool {
    let mut soon = false;
    for end in context
        .cluster
        .pods_on(node)
        .filter_map(|pod| pod.terminating)
    {
        if let Some(until) = context.settings.rules.waited_for(end, context.now) {
            wake.at(until);
            soon = true;
        }
    }
    soon
}

fn expire_exclusions(context: &Context<'_>, gang: &mut GangState, wake: &mut Wake) {
    if gang.phase() == GangPhase::Finished || gang.status.excluded_nodes.is_empty() {
        return;
    }
    gang.status.excluded_nodes.retain(|e| e.until > context.now);
    for excluded in &gang.status.excluded_nodes {
        wake.at(excluded.until);
    }
}

fn exclude(context: &Context<'_>, gang: &mut GangState, node: &NodeName, wake: &mut Wake) {
    let excluded = &mut gang.status.excluded_nodes;
    if excluded.iter().any(|e| *node == *e.node) {
        return;
    }
    let time = TimeDelta::from_std(context.settings.avoid_refused).unwrap_or(TimeDelta::MAX);
    let until = context.now + time;
    wake.at(until);
    excluded.push(ExcludedNode {
        node: node.to_string(),
        reason: reasons::UNSCHEDULABLE.to_owned(),
        until,
    });
    excluded.sort_by(|a, b| a.node.cmp(&b.node));
}

/// Why a gang is not placed now, although there may be capacity: the last placements were refused
/// for another reason.
pub(crate) fn backs_off(
    context: &Context<'_>,
    gang: &GangState,
    wake: &mut Wake,
) -> Option<Pending> {
    let refusal = gang.status.refusal.as_ref()?;
    let next_try = next_try(refusal);
    if context.now >= next_try {
        return None;
    }
    wake.at(next_try);
    Some(Pending::BackingOff {
        refusal: Box::new(refusal.clone()),
        next_try,
    })
}

/// Whether nodes that refused the gang may be tried once more, since no other has capacity for it:
/// what was missing may be there by now. They are no longer excluded then.
pub(crate) fn retry_excluded_nodes(gang: &mut GangState) -> bool {
    if gang.status.refusal.is_none() || gang.status.excluded_nodes.is_empty() {
        return false;
    }
    gang.status.excluded_nodes.clear();
    true
}

/// Whether kube-scheduler has refused a gang so often that nothing is kept for it: it may never run. A
/// scheduler that does not answer would have others wait for ever.
pub(crate) fn may_never_run(gang: &GangState) -> bool {
    let refusal = gang.status.refusal.as_ref();
    refusal.is_some_and(|r| r.unanswered || r.tries >= REFUSALS)
}

/// Why no work may be preempted for a gang, whatever its priority.
pub(crate) fn why_no_preemption(context: &Context<'_>, gang: &GangState) -> Option<NoPreemption> {
    let failed = gang.status.last_preemption.as_ref();
    let failed = failed.and_then(|last| Some((last.failures, next_preemption(last)?)));
    if !context.settings.preemption_enabled {
        Some(NoPreemption::Disabled)
    } else if let Some(missing) = gang.missing_volume() {
        Some(NoPreemption::Missing(missing.clone()))
    } else if let Some(what) = gang.not_modelled() {
        Some(NoPreemption::NotModelled(what.to_owned()))
    } else if mounts_claim_in_use(context, gang) {
        Some(NoPreemption::NotModelled(CLAIM_IN_USE.to_owned()))
    } else if let Some(refusal) = &gang.status.refusal {
        Some(NoPreemption::Refused(Box::new(refusal.clone())))
    } else if let Some((failures, next_try)) = failed.filter(|(_, at)| *at > context.now) {
        Some(NoPreemption::Failed { failures, next_try })
    } else {
        let unknown = gang.not_admitted()?;
        Some(NoPreemption::NotAdmitted(unknown.to_owned()))
    }
}

/// Whether a claim that one pod at a time may mount is mounted by a pod of somebody else. That it would
/// go, with whom is evicted or by itself, is not known here.
fn mounts_claim_in_use(context: &Context<'_>, gang: &GangState) -> bool {
    let group = &gang.input.key;
    let mut pods = gang
        .one_pod_claims()
        .flat_map(|claim| context.cluster.pods_mounting(&group.namespace, claim));
    pods.any(|pod| !is_of(gang, pod) && pod.alive())
}

/// Whether a pod is one of the gang.
fn is_of(gang: &GangState, pod: &Pod) -> bool {
    pod.owner.as_ref() == Some(&gang.input.workload.uid)
        && pod.pod_group.as_ref() == Some(&gang.input.key.name)
}

/// Notes that an intent has evicted work. Preemptions that failed before still count.
pub(crate) fn record_eviction(gang: &mut GangState, intent: &Preemption) {
    let observed = gang.observed_spec();
    let last = &mut gang.status.last_preemption;
    let last = last.get_or_insert_with(|| LastPreemption {
        observed,
        ..LastPreemption::default()
    });
    last.decided_at = intent.decided_at;
}

/// Notes that the last preemption of a gang has failed.
pub(crate) fn record_failed_preemption(context: &Context<'_>, gang: &mut GangState) {
    if let Some(last) = &mut gang.status.last_preemption
        && !last.has_failed()
    {
        // The leader that decided it may have had a clock that is ahead.
        last.failed_at = Some(context.now.max(last.decided_at));
        last.failures = last.failures.saturating_add(1);
    }
}

/// Notes that the preemption decided at this time ended for no fault of the gang, as when a node is lost:
/// the search starts over. After a failure it stays noted, and counts.
pub(crate) fn forget_open_preemption(gang: &mut GangState, decided_at: DateTime<Utc>) {
    let last = &mut gang.status.last_preemption;
    *last = last
        .take()
        .filter(|last| last.failures > 0 || last.decided_at != decided_at);
}

/// Notes that a gang did not run although all its members were bound after a preemption: they did not
/// start, or lost their nodes before that.
fn follow_preemption(context: &Context<'_>, gang: &mut GangState, wake: &mut Wake) {
    let Some(decided_at) = gang.status.last_preemption.as_ref().map(|p| p.decided_at) else {
        return;
    };
    if gang.phase() == GangPhase::Finished {
        return;
    }
    // Other members of a basic group may have no node: an incident replaces a member that does not start.
    let lost = if gang.input.gang.basic {
        let mut domains = gang.input.workload.members.domains.iter();
        domains.any(|d| d.incident.is_some())
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
        wake.at(at);
    }
}

/// When work may be preempted again for a gang whose last preemption has failed.
fn next_preemption(last: &LastPreemption) -> Option<DateTime<Utc>> {
    let failed_at = last.failed_at.filter(|_| last.has_failed())?;
    Some(failed_at + preemption_backoff(last.failures))
}

fn record_refusal(context: &Context<'_>, gang: &mut GangState, pod: &Pod, node: &NodeName) {
    let now = context.now;
    // A pod whose member has another node was counted when that node was taken away, and will go.
    if gang.phase() != GangPhase::Active
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
    gang.status.refusal = Some(Refusal {
        pod: pod.name.to_string(),
        node: node.to_string(),
        message: message.to_owned(),
        unanswered: false,
        at: now,
        tries,
        observed: gang.observed_spec(),
    });
}

/// Notes that the pods of a gang were neither bound nor refused in time, in the words of the scheduler
/// where it fails over one of them. Pods that are not there yet, or that we hold back ourselves, are
/// nobody's silence.
pub(crate) fn record_silence(context: &Context<'_>, gang: &mut GangState, unbound: &Assignments) {
    let waiting: Option<Vec<(&Arc<Pod>, &NodeName)>> = unbound
        .iter()
        .map(|(m, n)| Some((gang.waiting_pod(m, n).filter(|p| !p.gated())?, n)))
        .collect();
    let Some(waiting) = waiting else {
        return;
    };
    let failed = waiting.iter().find(|(pod, _)| pod.refusal.is_some());
    let Some((pod, node)) = failed.or(waiting.first()) else {
        return;
    };
    let before = gang.status.refusal.as_ref().map_or(0, |r| r.tries);
    gang.status.refusal = Some(Refusal {
        pod: pod.name.to_string(),
        node: node.to_string(),
        message: match &pod.refusal {
            Some(said) => said.to_string(),
            None => messages::unanswered(context, gang, unbound),
        },
        unanswered: pod.refusal.is_none(),
        at: context.now,
        tries: before.saturating_add(1),
        observed: gang.observed_spec(),
    });
}

/// Drops what was noted of another spec, refusals of a gang that is bound, and preemptions of a gang that
/// runs. `mended`: what a refusal missed is there.
fn forget_refusals(gang: &mut GangState, mended: bool) {
    if gang.phase() == GangPhase::Finished {
        return;
    }
    let observed = gang.observed_spec();
    if let Some(refusal) = &gang.status.refusal
        && (mended || refusal.observed != observed || gang.every_member_bound())
    {
        gang.status.refusal = None;
        gang.status.excluded_nodes.clear();
    }
    if let Some(preemption) = &gang.status.last_preemption
        && (mended
            || preemption.observed != observed
            || gang.began_to_run_after(preemption.decided_at))
    {
        gang.status.last_preemption = None;
    }
}

/// When a gang is placed again after a refusal.
fn next_try(refusal: &Refusal) -> DateTime<Utc> {
    refusal.at + backoff(refusal.tries)
}
