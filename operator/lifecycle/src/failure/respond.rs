//! What the failures of one domain call for together.

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

/// News of a failure are seldom under way for longer: what is older by its node's clock was told by a
/// clock that is off.
const NEWS: TimeDelta = TimeDelta::minutes(1);

/// The response to failures, or to a request.
pub(crate) struct Response {
    /// The most severe action.
    pub action: FailureAction,
    /// The earliest cause, with the name of its rule.
    pub cause: Cause,
    /// Whether it takes a unit of the budget.
    pub counted: bool,
    /// The member whose failure came first; none for a request.
    pub failed: Option<Member>,
    /// Members whose pods cannot or shall not go on.
    pub replace: BTreeSet<Member>,
    /// Nodes to stay away from.
    pub avoid: Vec<(NodeName, Avoidance)>,
}

/// Folds failures into one response: the most severe action, the earliest cause. None when there is
/// nothing to do, because the kubelet restarts the one container by its own rule, or the policy
/// says Ignore.
pub(crate) fn respond(facts: &Facts<'_>, failures: &[Failure]) -> Option<Response> {
    let spec = facts.spec();
    let mut judged: Vec<(&Failure, PolicyVerdict<'_>)> = failures
        .iter()
        .filter(|f| !is_left_to_kubelet(facts, f))
        .map(|f| (f, verdict(spec, f)))
        .collect();
    judged.sort_by_cached_key(|(f, _)| {
        let began = began(facts, &f.cause, facts.now, facts.now);
        // Peers fail because of a hang, and no hang because of a failure.
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
        // What failed after the first may have failed because of it.
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
        // What failed the workload is the cause, not what happened to fail a moment earlier.
        if let Some((f, v)) = judged.iter().find(|(_, v)| v.action.ends_workload()) {
            response.cause = Cause {
                rule: v.rule_name(),
                ..f.cause.clone()
            };
        }
    }
    // One pod alone is replaced: there is no rule by which it restarts.
    response.action = response.action.or_more_severe(FailureAction::RestartPod);
    Some(response)
}

/// When a failure began, to tell which came first. The clock of its node may be off: what is heard of at one
/// time has not happened later, and how long before `detected`, when the first of them was heard of, makes
/// no difference beyond [`NEWS`]. Who has hung made no progress for long before that was found, and what its peers
/// made of that came later.
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

/// Whether nothing is done about a failure: the policy says Ignore, or the kubelet restarts the one
/// container by its own rule.
pub(crate) fn is_left_to_kubelet(facts: &Facts<'_>, failure: &Failure) -> bool {
    let action = verdict(facts.spec(), failure).action;
    action.leaves_container()
        || action.affects_single_pod() && failure.usable && kubelet_restarts(facts, failure, action)
}

/// Whether the pod's own restart rules do what the action says, so that there is only the restart
/// to count.
fn kubelet_restarts(facts: &Facts<'_>, failure: &Failure, action: FailureAction) -> bool {
    let pod = facts
        .pods_of(&failure.member)
        .iter()
        .find(|p| Some(&p.uid) == failure.pod_uid.as_ref())
        .copied();
    match action.scope() {
        ActionScope::None | ActionScope::Container => true,
        // Rules are written to the training container alone.
        ActionScope::Pod if failure.reach == Reach::Itself => false,
        ActionScope::Pod if failure.restarted_pod(facts.training(&failure.member.group)) => true,
        ActionScope::Pod | ActionScope::Domain | ActionScope::Workload => {
            // Init containers and sidecars start again as well, or it would not be the whole pod.
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
    // A lost node is of no use while it is lost, and needs no avoidance after that.
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
