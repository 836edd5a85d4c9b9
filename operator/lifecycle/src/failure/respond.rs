//! Combines the failures of one domain into one response.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::reasons;
use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use lockstep_api::names::SUPERVISOR_PROGRAM;
use lockstep_api::workload::{ActionScope, Cause, CauseKind, FailedMember, FailureAction};

use super::policy::{Failure, PolicyVerdict, Reach, verdict};
use crate::facts::Facts;
use crate::ledger::Avoidance;
use crate::tier::Tier;

/// Longest plausible delay of a failure report. An older time comes from a wrong clock.
const NEWS: TimeDelta = TimeDelta::minutes(1);

pub(crate) struct Response {
    pub action: FailureAction,
    /// With the name of its rule.
    pub cause: Cause,
    pub counted: bool,
    /// The member that failed first. `None` for a request.
    pub failed: Option<Member>,
    /// Members whose pods cannot continue.
    pub replace: BTreeSet<Member>,
    pub avoid: Vec<(NodeName, Avoidance)>,
}

/// `None` if no action is needed, because the kubelet restarts the container or the policy says
/// Ignore.
pub(crate) fn respond(facts: &Facts<'_>, failures: &[Failure]) -> Option<Response> {
    let spec = facts.spec();
    let mut judged: Vec<(&Failure, PolicyVerdict<'_>)> = failures
        .iter()
        .filter(|f| !is_left_to_kubelet(facts, f))
        .map(|f| (f, verdict(spec, f)))
        .collect();
    judged.sort_by_cached_key(|(f, _)| {
        let began = began(facts, &f.cause, facts.now, facts.now);
        // A hang causes failures of peers, but failures cause no hang.
        let follows = f.cause.kind != CauseKind::Hang;
        (began, follows, f.cause.time, f.member.clone())
    });
    let (first, by) = judged.first()?;
    let mut response = Response {
        action: FailureAction::RestartContainer,
        cause: Cause {
            rule: by.rule_name(),
            ..first.cause.clone()
        },
        // Later failures may be consequences of the first.
        counted: by.counted,
        failed: Some(first.member.clone()),
        replace: BTreeSet::new(),
        avoid: Vec::new(),
    };
    for (f, v) in &judged {
        response.action = response.action.or_more_severe(v.action);
        if !f.usable || v.failed_member != FailedMember::InPlace || v.action.affects_single_pod() {
            response.replace.insert(f.member.clone());
        }
        response.avoid.extend(avoided(facts, f, v));
    }
    if response.action.ends_workload() {
        // The failure that ends the workload is the cause, even if it was not the first.
        if let Some((f, v)) = judged.iter().find(|(_, v)| v.action.ends_workload()) {
            response.cause = Cause {
                rule: v.rule_name(),
                ..f.cause.clone()
            };
        }
    }
    // No restart rule covers a single pod.
    response.action = response.action.or_more_severe(FailureAction::RestartPod);
    Some(response)
}

/// When a failure began, to order failures. Because node clocks may be wrong, the time is limited
/// to its receipt (`heard`), and to [`NEWS`] before `detected`, the detection of the first failure.
/// A hang began one progress timeout earlier, before the resulting failures of peers.
pub(super) fn began(
    facts: &Facts<'_>,
    cause: &Cause,
    detected: DateTime<Utc>,
    heard: DateTime<Utc>,
) -> DateTime<Utc> {
    let found = cause.time.max(detected - NEWS).min(heard);
    let limits = facts.spec().failure_policy.progress;
    match limits.filter(|_| cause.kind == CauseKind::Hang) {
        Some(limits) => found - TimeDelta::seconds(limits.timeout_seconds),
        None => found,
    }
}

/// True if the policy says Ignore, or the kubelet restarts the container by its own rule.
pub(crate) fn is_left_to_kubelet(facts: &Facts<'_>, failure: &Failure) -> bool {
    let action = verdict(facts.spec(), failure).action;
    action.leaves_container()
        || action.affects_single_pod() && failure.usable && kubelet_restarts(facts, failure, action)
}

/// True if the pod's own restart rules execute the action, so that the restart is only counted.
fn kubelet_restarts(facts: &Facts<'_>, failure: &Failure, action: FailureAction) -> bool {
    let pod = facts
        .pods_of(&failure.member)
        .iter()
        .find(|p| Some(&p.uid) == failure.pod_uid.as_ref())
        .copied();
    match action.scope() {
        ActionScope::None | ActionScope::Container => true,
        // Only the training container has rules of the failure policy.
        ActionScope::Pod if failure.reach == Reach::Itself => false,
        ActionScope::Pod if failure.restarted_pod(facts.training(&failure.member.group)) => true,
        ActionScope::Pod | ActionScope::Domain | ActionScope::Workload => {
            // The rule covers the whole pod only without init containers and sidecars.
            let alone = pod.is_none_or(|p| {
                let names = p.containers.iter().map(|(name, _)| name);
                names.filter(|n| *n != SUPERVISOR_PROGRAM).count() <= 1
            });
            let tier = pod.and_then(|p| p.identity.tier);
            alone || tier.is_some_and(Tier::restarts_whole_pod)
        }
    }
}

fn avoided(
    facts: &Facts<'_>,
    failure: &Failure,
    verdict: &PolicyVerdict<'_>,
) -> Option<(NodeName, Avoidance)> {
    // A lost node needs no avoidance.
    let rule = verdict.rule?;
    if verdict.failed_member != FailedMember::ReplaceElsewhere {
        return None;
    }
    let avoidance = Avoidance {
        reason: reasons::FAILED_MEMBER.into(),
        until: facts.now + TimeDelta::seconds(rule.avoid_seconds),
    };
    Some((NodeName::read(Some(&failure.cause.node))?, avoidance))
}
