//! What the failures of one domain call for together.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use lockstep_api::condition::reasons;
use lockstep_api::member::Member;
use lockstep_api::workload::{AvoidedNode, Cause, CauseKind, FailedMember, FailureAction};

use super::context::Ctx;
use super::failure::{Failure, Verdict, verdict};
use crate::tier::Tier;

/// The response to failures, or to a request.
pub(super) struct Response {
    /// The most severe action.
    pub action: FailureAction,
    /// The earliest cause, with the name of its rule.
    pub cause: Cause,
    /// Whether it takes a unit of the budget.
    pub counted: bool,
    /// Members whose pods cannot or shall not go on.
    pub replace: BTreeSet<Member>,
    /// Nodes to stay away from.
    pub avoid: Vec<AvoidedNode>,
}

impl Response {
    /// The response to something that is no failure.
    pub fn uncounted(action: FailureAction, cause: Cause) -> Self {
        Self { action, cause, counted: false, replace: BTreeSet::new(), avoid: Vec::new() }
    }
}

/// Folds failures into one response: the most severe action, the earliest cause. None when there is nothing to do, because
/// the kubelet restarts the one container by its own rule, or the policy says Ignore.
pub(super) fn respond(ctx: &Ctx<'_>, failures: &[Failure]) -> Option<Response> {
    let spec = ctx.view.spec();
    let mut judged: Vec<(&Failure, Verdict<'_>)> = failures
        .iter()
        .map(|f| (f, verdict(spec, f)))
        .filter(|(_, v)| v.action != FailureAction::Ignore)
        .filter(|(f, v)| v.action > FailureAction::RestartPod || !f.usable || !kubelet_restarts(ctx, f, v.action))
        .collect();
    judged.sort_by(|(a, _), (b, _)| (a.cause.time, &a.member).cmp(&(b.cause.time, &b.member)));
    let (first, by) = judged.first()?;
    let mut response = Response {
        action: FailureAction::RestartContainer,
        cause: Cause { rule: by.rule.map(|r| r.name.clone()).unwrap_or_default(), ..first.cause.clone() },
        // What failed after the first may have failed because of it.
        counted: by.counted,
        replace: BTreeSet::new(),
        avoid: Vec::new(),
    };
    for (f, v) in &judged {
        response.action = response.action.max(v.action);
        if !f.usable || v.failed_member != FailedMember::InPlace || v.action <= FailureAction::RestartPod {
            response.replace.insert(f.member.clone());
        }
        response.avoid.extend(avoided(ctx, f, v));
    }
    if response.action == FailureAction::FailWorkload {
        // What failed the workload is the cause, not what happened to fail a moment earlier.
        if let Some((f, v)) = judged.iter().find(|(_, v)| v.action == FailureAction::FailWorkload) {
            let rule = v.rule.map(|r| r.name.clone()).unwrap_or_default();
            response.cause = Cause { rule, ..f.cause.clone() };
        }
    }
    // One pod alone is replaced: there is no rule by which it restarts.
    response.action = response.action.max(FailureAction::RestartPod);
    Some(response)
}

/// Whether the pod's own restart rules do what the action says, so that there is only the restart to count.
fn kubelet_restarts(ctx: &Ctx<'_>, failure: &Failure, action: FailureAction) -> bool {
    let pod = ctx.pods_of(&failure.member).iter().find(|p| p.uid == failure.pod_uid).copied();
    let alone = pod.is_none_or(|p| p.containers.values().filter(|c| !c.init).count() <= 1);
    let tier = pod.and_then(|p| p.identity.tier);
    action == FailureAction::RestartContainer || tier == Some(Tier::RestartAll) || alone
}

fn avoided(ctx: &Ctx<'_>, failure: &Failure, verdict: &Verdict<'_>) -> Option<AvoidedNode> {
    let node = failure.cause.node.clone();
    let (reason, wait) = match (failure.cause.kind, verdict.failed_member, verdict.rule) {
        (_, FailedMember::ReplaceElsewhere, Some(rule)) => {
            (reasons::FAILED_MEMBER, TimeDelta::seconds(rule.avoid_seconds))
        }
        (CauseKind::NodeLost, ..) => (reasons::NODE_LOST, ctx.view.settings.avoid),
        _ => return None,
    };
    (!node.is_empty()).then(|| AvoidedNode { node, reason: reason.into(), until: ctx.now + wait })
}

/// A cause for people: who, where, what.
pub(crate) fn describe(cause: &Cause) -> String {
    let mut parts = vec![format!("{:?}", cause.kind)];
    let named = [("pod", &cause.pod), ("on node", &cause.node), ("container", &cause.container)];
    parts.extend(named.iter().filter(|(_, v)| !v.is_empty()).map(|(label, v)| format!("{label} {v}")));
    parts.extend(cause.exit_code.map(|code| format!("exit code {code}")));
    let why = [("reason", &cause.reason), ("rule", &cause.rule)];
    parts.extend(why.iter().filter(|(_, v)| !v.is_empty()).map(|(label, v)| format!("({label} {v})")));
    let what = parts.join(" ");
    if cause.message.is_empty() { what } else { format!("{what}: {}", cause.message) }
}
