//! Stage 07: members that their nodes did not start. The placement was wrong, not the workload.
//! Before a gang first runs it releases everything; later only the member is placed elsewhere,
//! while the others hold their nodes.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::reasons;
use lockstep_api::gangs::Gang;
use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use lockstep_api::words::span;

use crate::cause::describe;
use crate::facts::Facts;
use crate::failure::{detect, requested};
use crate::ledger::ops::ReleaseReason;
use crate::ledger::{Avoidance, Ledger};
use crate::orders::is_released;
use crate::pods::{ContainerState, ContainerView, PodPhase, PodView};
use crate::wake::Wake;

/// A member that its node cannot start.
struct StartFailure {
    member: Member,
    node: String,
    reason: &'static str,
    message: String,
}

/// Answers start failures of every gang that is placed.
pub(super) fn follow_starts(facts: &Facts<'_>, ledger: &mut Ledger) -> Wake {
    let mut wake = Wake::NEVER;
    for gang in &facts.gangs {
        if facts.placement(ledger, &gang.key).is_some() {
            let failures = start_failures(facts, ledger, gang, &mut wake);
            answer(facts, ledger, gang, &failures);
        }
    }
    wake
}

fn answer(facts: &Facts<'_>, ledger: &mut Ledger, gang: &Gang, failures: &[StartFailure]) {
    let Some(first) = failures.first() else {
        return;
    };
    for failure in failures {
        if let Some(node) = NodeName::read(Some(&failure.node)) {
            ledger.avoid_node(&gang.key, node, avoidance(facts, failure.reason));
        }
    }
    if gang.basic || ledger.is_under_way(gang) {
        let failures = failures
            .iter()
            .map(|f| detect::start_failure(&f.member, &f.node, f.reason, &f.message, facts.now))
            .collect();
        requested::place_elsewhere(facts, ledger, gang, failures);
    } else {
        let message = format!(
            "member {} on node {}: {}",
            first.member, first.node, first.message
        );
        let reason = first.reason;
        ledger.release_gang(facts, &gang.key, Some(ReleaseReason { reason, message }));
    }
}

/// What a kubelet sees at the moment and the scheduler does not will soon be seen by both; then the
/// node is not avoided for long.
fn avoidance(facts: &Facts<'_>, reason: &str) -> Avoidance {
    let settings = &facts.view.settings;
    let wait = if reason == reasons::REJECTED_BY_NODE {
        settings.retry
    } else {
        settings.avoid
    };
    Avoidance {
        reason: reason.into(),
        until: facts.now + wait,
    }
}

fn start_failures(
    facts: &Facts<'_>,
    ledger: &Ledger,
    gang: &Gang,
    wake: &mut Wake,
) -> Vec<StartFailure> {
    let assigned = facts.assigned_nodes(&gang.key);
    let mut out = Vec::new();
    for domain in &gang.domains {
        let Some(entry) = ledger.domain(&domain.key) else {
            continue;
        };
        for member in domain.members.iter().filter(|m| assigned.contains_key(*m)) {
            let pod = facts.current(entry, member);
            if let Some(pod) = pod.filter(|p| !p.terminating() && !p.gated) {
                let evicts = facts
                    .pod_group_status(&gang.key)
                    .is_some_and(|s| s.preemption.is_some());
                out.extend(start_failure(facts, &domain.key, member, pod, evicts, wake));
            }
        }
    }
    out
}

/// Since when a kubelet can start the pod: it was bound, or at first when it was made.
fn may_start_since(pod: &PodView) -> DateTime<Utc> {
    let bound = pod.condition("PodScheduled").and_then(|c| c.since);
    bound.map_or(pod.created_at, |at| at.max(pod.created_at))
}

/// The container that keeps the pod from starting, with the kubelet's reason. While an init container
/// waits the others say `PodInitializing`, which is the reason of nothing.
fn waiting_container(pod: &PodView) -> Option<String> {
    let mut waiting = pod
        .containers
        .iter()
        .filter_map(|(name, c)| match &c.state {
            ContainerState::Waiting { reason, .. } if !reason.is_empty() => Some((name, reason)),
            _ => None,
        });
    let (name, reason) = waiting.find(|(_, reason)| *reason != "PodInitializing")?;
    Some(format!(": container {name} waits: {reason}"))
}

/// `evicts`: work is being evicted for the gang, which has not been bound since.
fn start_failure(
    facts: &Facts<'_>,
    domain: &str,
    member: &Member,
    pod: &PodView,
    evicts: bool,
    wake: &mut Wake,
) -> Option<StartFailure> {
    let node = pod.node.as_ref().or(pod.pinned.as_ref())?;
    let limit = facts.spec().failure_policy.start_deadline_seconds;
    // Arrivals are forgotten in time, releases are not.
    let released = is_released(facts, domain, pod.identity.attempt);
    let held = pod.is_supervised() && !facts.is_at(member, pod, pod.identity.attempt) && !released;
    let started = !held
        && facts
            .trainer(member, pod)
            .is_some_and(ContainerView::started);
    let (reason, message) = if pod.phase == PodPhase::Failed && !pod.has_run() {
        let message = format!("{}: {}", pod.reason, pod.message);
        (reasons::REJECTED_BY_NODE, message)
    } else if let Some(failure) = detect::start_error(facts, member, pod) {
        let message = format!("cannot be started: {}", describe(&failure.cause));
        (reasons::START_ERROR, message)
    } else if pod.terminal() || started {
        return None;
    } else if pod.node.is_some() && facts.lost(node) {
        let message = "the node was lost before the pod started".to_owned();
        (reasons::NODE_LOST, message)
    } else if pod.node.is_none() && evicts {
        // Its victims may take as long as they are granted to end; the scheduler watches that.
        return None;
    } else if facts
        .due(may_start_since(pod) + TimeDelta::seconds(limit))
        .passed(wake)
    {
        let limit = span(limit);
        let waits = waiting_container(pod).unwrap_or_default();
        let message = if held {
            format!(
                "the supervisor did not come to the barrier within {limit} (failurePolicy.startDeadlineSeconds){waits}"
            )
        } else {
            format!(
                "containers did not start within {limit} (failurePolicy.startDeadlineSeconds){waits}"
            )
        };
        (reasons::START_DEADLINE_EXCEEDED, message)
    } else {
        return None;
    };
    Some(StartFailure {
        member: member.clone(),
        node: node.clone(),
        reason,
        message,
    })
}
