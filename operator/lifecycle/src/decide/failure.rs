//! What has happened to a member, and what the failure policy makes of it.

use std::cmp::Reverse;

use chrono::{DateTime, Utc};
use lockstep_api::member::Member;
use lockstep_api::node_agent::{Report, ReportKind};
use lockstep_api::workload::{
    Cause, CauseKind, DomainStatus, FailedMember, FailureAction, FailureRule, TrainingWorkloadSpec,
};

use super::context::{Ctx, DISRUPTION_TARGET};
use super::members::{replaced, solo};
use crate::pods::{PodPhase, PodView, Termination, bare_id};
use crate::policy::{code_matches, default_action};

/// Reason that the kubelet shows for containers that it killed to restart the whole pod.
pub(crate) const RESTARTING_ALL: &str = "RestartingAllContainers";
/// Reasons of pods that the kubelet ends for its node's sake.
const NODE_REASONS: [&str; 4] = ["Evicted", "NodeShutdown", "Terminated", "Preempting"];

/// One failed member.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    /// The member.
    pub member: Member,
    /// UID of its pod; empty when it is gone.
    pub pod_uid: String,
    /// For the ledger.
    pub cause: Cause,
    /// Whether the pod can go on: its container restarts.
    pub usable: bool,
    /// Whether the exit code hides the true one: the kubelet killed the container together with the others of its pod.
    pub masked: bool,
    /// Whether it is somebody's doing and costs no budget: eviction, drain, node shutdown.
    pub uncounted: bool,
    /// Conditions of the pod, type and status.
    pub conditions: Vec<(String, String)>,
}

/// What the policy says about a failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Verdict<'a> {
    /// The rule that matched.
    pub rule: Option<&'a FailureRule>,
    /// What is done.
    pub action: FailureAction,
    /// What becomes of the failed pod.
    pub failed_member: FailedMember,
    /// Whether it takes a unit of the budget.
    pub counted: bool,
}

/// Asks the policy: the first matching rule, else the default.
pub(crate) fn verdict<'a>(spec: &'a TrainingWorkloadSpec, failure: &Failure) -> Verdict<'a> {
    let rule = spec.failure_policy.rules.iter().find(|r| matches(r, failure));
    Verdict {
        rule,
        action: rule.map_or(default_action(spec.scheduling.policy), |r| r.action),
        failed_member: rule.map_or(FailedMember::InPlace, |r| r.failed_member),
        counted: rule.is_none_or(|r| r.counted) && !failure.uncounted,
    }
}

fn matches(rule: &FailureRule, failure: &Failure) -> bool {
    let m = &rule.matches;
    let cause = &failure.cause;
    let kind = format!("{:?}", cause.kind);
    (m.groups.is_empty() || m.groups.contains(&failure.member.group))
        && (m.containers.is_empty() || m.containers.contains(&cause.container))
        && (m.reasons.is_empty() || m.reasons.contains(&cause.reason) || m.reasons.contains(&kind))
        && m.exit_codes
            .as_ref()
            .is_none_or(|codes| !failure.masked && cause.exit_code.is_some_and(|c| code_matches(codes, c)))
        && m.pod_conditions
            .iter()
            .all(|want| failure.conditions.iter().any(|(t, s)| *t == want.type_ && *s == want.status))
}

/// The failure of a member's pod at the present epoch of its domain, if there is one. A pod that was refused before it ran
/// is not a failure of the workload but of its placement.
pub(crate) fn failure_of(ctx: &Ctx<'_>, domain: &DomainStatus, member: &Member, pod: &PodView) -> Option<Failure> {
    pod_failure(ctx, member, pod).or_else(|| exit_at_epoch(ctx, domain, member, pod))
}

/// Failures that end the pod: it is lost, deleted or failed.
pub(crate) fn pod_failure(ctx: &Ctx<'_>, member: &Member, pod: &PodView) -> Option<Failure> {
    let node = pod.node.as_deref()?;
    let disrupted = pod.condition(DISRUPTION_TARGET);
    let (kind, reason, message) = if pod.phase == PodPhase::Failed {
        if !pod.has_run() {
            return None;
        }
        let exit = pod.containers.get(ctx.training(&member.group)).and_then(|c| c.terminated());
        let for_node = NODE_REASONS.contains(&pod.reason.as_str());
        if let (Some(t), false) = (exit.filter(|t| t.exit_code != 0), for_node || disrupted.is_some()) {
            let known = report_of(ctx, member, pod, t.id.as_deref());
            return Some(Failure { usable: false, ..exit_failure(ctx, member, pod, t, known) });
        }
        (CauseKind::PodFailed, pod.reason.clone(), pod.message.clone())
    } else if pod.terminating() {
        let (reason, message) =
            disrupted.map_or((String::new(), "pod was deleted".into()), |c| (c.reason.clone(), c.message.clone()));
        (CauseKind::PodDeleted, reason, message)
    } else if !pod.terminal() && ctx.lost(node) {
        let state = match ctx.view.nodes.get(node) {
            None => "was deleted",
            Some(n) if n.out_of_service => "is out of service",
            Some(_) => "is not ready",
        };
        (CauseKind::NodeLost, "NodeLost".into(), format!("node {node} {state}"))
    } else {
        return None;
    };
    let uncounted = disrupted.is_some() || NODE_REASONS.contains(&reason.as_str());
    let time = pod.deleted_at.map_or(ctx.now, |t| t.min(ctx.now));
    let cause = Cause {
        kind,
        pod: pod.name.clone(),
        node: node.to_owned(),
        container: String::new(),
        exit_code: None,
        reason,
        message,
        rule: String::new(),
        time,
    };
    Some(Failure { uncounted, ..failure(member, pod, cause, false) })
}

/// An exit of the training container that belongs to the present epoch: what its agent reports for it, or what pod status
/// shows while the container is down.
pub(crate) fn exit_at_epoch(ctx: &Ctx<'_>, domain: &DomainStatus, member: &Member, pod: &PodView) -> Option<Failure> {
    if let Some(reported) = worst_report(ctx, member, pod, |epoch| epoch >= domain.epoch) {
        return Some(reported);
    }
    let down = pod.containers.get(ctx.training(&member.group))?.terminated().filter(|t| t.exit_code != 0)?;
    let known = report_of(ctx, member, pod, down.id.as_deref());
    if known.is_some_and(|r| r.epoch < domain.epoch || r.kind == ReportKind::Stopped) {
        return None;
    }
    // While an incident is handled, only the container that has come to its epoch can fail at it.
    if domain.incident.as_ref().is_some_and(|i| !solo(i) && !replaced(i).contains(member)) {
        let arrived = ctx.arrival(pod, domain.epoch)?;
        if down.id.as_deref().map(bare_id) != Some(arrived) {
            return None;
        }
    }
    Some(exit_failure(ctx, member, pod, down, known))
}

/// A failure of the epoch before that is reported only now: it belongs to the open incident.
pub(crate) fn late_exit(ctx: &Ctx<'_>, epoch: i64, member: &Member, pod: &PodView) -> Option<Failure> {
    worst_report(ctx, member, pod, |at| at == epoch - 1)
}

/// Of the failures that the agent reports for some epochs, the one with the most severe action; of those the earliest. A
/// container may have restarted alone before it failed for good.
fn worst_report(ctx: &Ctx<'_>, member: &Member, pod: &PodView, epochs: impl Fn(i64) -> bool) -> Option<Failure> {
    let spec = ctx.view.spec();
    ctx.reports(member, pod)
        .filter(|r| epochs(r.epoch) && r.kind == ReportKind::Exited && r.exit_code != 0)
        .map(|r| reported_failure(ctx, member, pod, r))
        .min_by_key(|f| (Reverse(verdict(spec, f).action), f.cause.time))
}

/// A restart that nobody reported: the last end of a container that runs again.
pub(crate) fn silent_restart(ctx: &Ctx<'_>, member: &Member, pod: &PodView) -> Option<Failure> {
    let last = pod.containers.get(ctx.training(&member.group))?.last.as_ref()?;
    let known = report_of(ctx, member, pod, last.id.as_deref());
    // The true code is on its way: the agent sees it before the kubelet tells the API server.
    let reporting = pod.node.as_deref().is_some_and(|n| ctx.agent(n).is_some());
    if known.is_none() && reporting && !ctx.due(last.finished_at? + ctx.view.settings.report_grace) {
        return None;
    }
    Some(exit_failure(ctx, member, pod, last, known))
}

fn report_of<'a>(ctx: &Ctx<'a>, member: &Member, pod: &PodView, id: Option<&str>) -> Option<&'a Report> {
    let id = bare_id(id?);
    ctx.reports(member, pod).find(|r| r.container_id == id)
}

fn reported_failure(ctx: &Ctx<'_>, member: &Member, pod: &PodView, r: &Report) -> Failure {
    let exit = Termination {
        exit_code: r.exit_code,
        reason: r.reason.clone(),
        message: String::new(),
        finished_at: Some(r.time),
        id: Some(r.container_id.clone()),
    };
    exit_failure(ctx, member, pod, &exit, Some(r))
}

fn exit_failure(ctx: &Ctx<'_>, member: &Member, pod: &PodView, exit: &Termination, known: Option<&Report>) -> Failure {
    let (code, reason, time) = match known {
        Some(r) => (r.exit_code, r.reason.clone(), r.time),
        None => (exit.exit_code, exit.reason.clone(), exit.finished_at.unwrap_or(ctx.now)),
    };
    // The kubelet kills the other containers of a pod with 137 when one of them restarts all.
    let last = pod.containers.get(ctx.training(&member.group)).and_then(|c| c.last.as_ref());
    let swept = last.is_some_and(|l| l.reason == RESTARTING_ALL && l.id == exit.id);
    let masked = code == 137
        && reason != "OOMKilled"
        && (reason == RESTARTING_ALL || swept || pod.condition("AllContainersRestarting").is_some());
    let cause = Cause {
        kind: CauseKind::ContainerExit,
        pod: pod.name.clone(),
        node: pod.node.clone().unwrap_or_default(),
        container: ctx.training(&member.group).to_owned(),
        exit_code: Some(code),
        reason,
        message: exit.message.clone(),
        rule: String::new(),
        time,
    };
    Failure { masked, ..failure(member, pod, cause, true) }
}

fn failure(member: &Member, pod: &PodView, cause: Cause, usable: bool) -> Failure {
    let conditions = pod.conditions.iter().map(|(t, c)| (t.clone(), c.status.clone())).collect();
    Failure {
        member: member.clone(),
        pod_uid: pod.uid.clone(),
        cause,
        usable,
        masked: false,
        uncounted: false,
        conditions,
    }
}

impl Failure {
    /// A member that its node did not start; nothing of the workload has failed.
    pub(super) fn placement(member: &Member, node: &str, reason: &str, message: &str, now: DateTime<Utc>) -> Self {
        let gone = vanished(member, node, now);
        let cause =
            Cause { kind: CauseKind::PodFailed, reason: reason.to_owned(), message: message.to_owned(), ..gone.cause };
        Self { cause, uncounted: true, ..gone }
    }
}

/// A member whose pod is gone although it ran.
pub(crate) fn vanished(member: &Member, node: &str, now: DateTime<Utc>) -> Failure {
    Failure {
        member: member.clone(),
        pod_uid: String::new(),
        cause: Cause {
            kind: CauseKind::PodDeleted,
            pod: String::new(),
            node: node.to_owned(),
            container: String::new(),
            exit_code: None,
            reason: String::new(),
            message: format!("the pod of member {member} is gone"),
            rule: String::new(),
            time: now,
        },
        usable: false,
        masked: false,
        uncounted: false,
        conditions: Vec::new(),
    }
}
