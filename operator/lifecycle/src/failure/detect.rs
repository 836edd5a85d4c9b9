//! What has happened to a member.

use std::cmp::Reverse;

use chrono::{DateTime, Utc};
use lockstep_api::condition::types;
use lockstep_api::member::Member;
use lockstep_api::node_agent::{Report, ReportKind};
use lockstep_api::workload::{Cause, CauseKind};

use super::policy::{Failure, Reach, verdict};
use super::restart_all::is_swept;
use crate::cause::looks_killed;
use crate::facts::Facts;
use crate::ledger::{DomainLedger, OpenIncident};
use crate::pods::{ContainerState, ContainerView, PodPhase, PodView, Termination, bare_id};
use crate::wake::Wake;

/// Reason that the kubelet shows for containers that it killed to restart the whole pod.
pub(crate) const RESTARTING_ALL: &str = "RestartingAllContainers";
/// Reasons of runtimes for containers that could not be started.
const START_REASONS: [&str; 2] = ["StartError", "ContainerCannotRun"];
/// Reasons of pods that the kubelet ends for its node's sake.
const NODE_REASONS: [&str; 4] = ["Evicted", "NodeShutdown", "Terminated", "Preempting"];

/// The failure of a member's pod at the present attempt of its domain, if there is one. A pod that
/// was refused before it ran is not a failure of the workload but of its placement.
pub(crate) fn failure_of(
    facts: &Facts<'_>,
    domain: &DomainLedger,
    member: &Member,
    pod: &PodView,
) -> Option<Failure> {
    pod_failure(facts, member, pod).or_else(|| exit_at_attempt(facts, domain, member, pod))
}

/// Failures that end the pod: it is lost, deleted or failed.
pub(crate) fn pod_failure(facts: &Facts<'_>, member: &Member, pod: &PodView) -> Option<Failure> {
    let node = pod.node.as_deref()?;
    let disrupted = pod.condition(types::DISRUPTION_TARGET);
    let said = disrupted.map(|c| (c.reason.clone(), c.message.clone()));
    let (kind, reason, message) = if pod.phase == PodPhase::Failed && !ended_by_deletion(pod) {
        if !pod.has_run() {
            return None;
        }
        let for_node = NODE_REASONS.contains(&pod.reason.as_str());
        if !for_node && disrupted.is_none() {
            let exit = failed_exit(facts, member, pod);
            if exit.is_some() {
                return exit;
            }
        }
        // The kubelet says why in the condition alone where it ended the pod for another's sake.
        let (reason, message) = said
            .filter(|_| pod.reason.is_empty())
            .unwrap_or_else(|| (pod.reason.clone(), pod.message.clone()));
        (CauseKind::PodFailed, reason, message)
    } else if pod.terminating() {
        let (reason, message) = said.unwrap_or_default();
        (CauseKind::PodDeleted, reason, message)
    } else if !pod.terminal() && facts.lost(node) {
        let state = match facts.view.nodes().get(node) {
            None => "was deleted",
            Some(n) if n.out_of_service => "is out of service",
            Some(_) => "is not ready",
        };
        (
            CauseKind::NodeLost,
            "NodeLost".into(),
            format!("node {node} {state}"),
        )
    } else {
        return None;
    };
    let uncounted =
        !kind.is_counted() || disrupted.is_some() || NODE_REASONS.contains(&reason.as_str());
    let ended_at = first_end(pod).filter(|_| kind == CauseKind::PodFailed);
    let began_at = pod.deleted_at.into_iter().chain(ended_at).min();
    let time = began_at.map_or(facts.now, |t| t.min(facts.now));
    let cause = Cause {
        pod: pod.name.clone(),
        node: node.to_owned(),
        reason,
        message,
        ..Cause::new(kind, time)
    };
    Some(Failure {
        uncounted,
        ..failure(member, pod, cause, false)
    })
}

/// Whether a pod that has failed did so because it was being deleted: what it shows first may be
/// its end, with the code that its program gave the signal.
fn ended_by_deletion(pod: &PodView) -> bool {
    let Some(deleted_at) = pod.deleted_at else {
        return false;
    };
    let mut ends = pod.containers.values().filter_map(|c| c.terminated());
    ends.all(|t| t.exit_code == 0 || t.finished_at.is_none_or(|at| at >= deleted_at))
}

/// When the first of the containers that a failed pod ended with did so.
fn first_end(pod: &PodView) -> Option<DateTime<Utc>> {
    let regular = pod.containers.values().filter(|c| !c.init);
    regular.filter_map(|c| c.terminated()?.finished_at).min()
}

/// What a pod whose container was killed says in the end: that its node wanted it gone. Kubelets say
/// so only when the last container has ended, long after the agent's report of the first.
pub(crate) fn killed_for_node(
    facts: &Facts<'_>,
    members: &[Member],
    cause: &Cause,
) -> Option<Cause> {
    if cause.kind != CauseKind::ContainerExit
        || !cause
            .exit_code
            .is_some_and(|code| looks_killed(code, &cause.reason))
    {
        return None;
    }
    let mut pods = members.iter().flat_map(|m| facts.pods_of(m));
    let pod = pods.find(|p| p.name == cause.pod)?;
    let disrupted = pod.condition(types::DISRUPTION_TARGET);
    let for_node = pod.phase == PodPhase::Failed && NODE_REASONS.contains(&pod.reason.as_str());
    // Of an eviction through the API the condition tells before the first signal.
    let before = disrupted
        .and_then(|c| c.since)
        .is_some_and(|at| at <= cause.time);
    if !for_node && !before {
        return None;
    }
    let (reason, message) = disrupted
        .filter(|_| !for_node)
        .map_or((&pod.reason, &pod.message), |c| (&c.reason, &c.message));
    Some(Cause {
        kind: if for_node {
            CauseKind::PodFailed
        } else {
            CauseKind::PodDeleted
        },
        reason: reason.clone(),
        message: message.clone(),
        rule: String::new(),
        ..cause.clone()
    })
}

/// Until when pod status may tell more about a container of which the agent has reported an end
/// that looks like a kill. While it shows the container running, a kubelet may be ending the pod: of
/// a container that failed alone it shows the end within a second or two.
fn confirmed_by(
    facts: &Facts<'_>,
    member: &Member,
    pod: &PodView,
    r: &Report,
) -> Option<DateTime<Utc>> {
    let shown = facts.trainer(member, pod)?;
    let runs = shown.running() && shown.id.as_deref().map(bare_id) == Some(&r.container_id);
    let open = runs && !pod.terminal() && !pod.terminating();
    // The supervisor has seen the end of its child itself; only the signal that it has passed on
    // may have come from a kubelet that ends the pod.
    let told_by_supervisor = r.supervised && r.exit_code != 143;
    (open && looks_killed(r.exit_code, &r.reason) && !told_by_supervisor)
        .then(|| r.time.min(facts.now) + facts.view.settings().status_grace)
}

/// Whether the pod whose exit was charged may yet say that its node wanted it gone. Deleted now, it
/// could be gone before anybody has read it.
pub(crate) fn may_take_charge_back(
    facts: &Facts<'_>,
    incident: &OpenIncident,
    member: &Member,
    pod: &PodView,
    wake: &mut Wake,
) -> bool {
    let mut reports = facts.reports(member, pod);
    incident.counted
        && incident.cause.pod == pod.name
        && reports.any(|r| {
            let by = confirmed_by(facts, member, pod, r);
            by.is_some_and(|by| !facts.due(by).passed(wake))
        })
}

/// The exit that a failed pod ended with: that of the training container, else of an init container
/// that kept it from starting, else of the first of the others.
fn failed_exit(facts: &Facts<'_>, member: &Member, pod: &PodView) -> Option<Failure> {
    let training = facts.training(&member.group);
    let began = pod
        .containers
        .get(training)
        .is_some_and(ContainerView::started);
    let ended = pod.containers.iter().filter_map(|(name, c)| {
        let exit = c.terminated().filter(|t| t.exit_code != 0)?;
        // Once the training container has started, none of the init containers has kept it from that.
        let rank = match c.init {
            _ if name == training => 0,
            true if began => return None,
            true => 1,
            false => 2,
        };
        Some((rank, exit.finished_at, name, exit))
    });
    let (_, _, name, exit) = ended.min_by_key(|(rank, at, name, _)| (*rank, *at, *name))?;
    let known = report_of(facts, pod, name, exit.id.as_deref());
    Some(Failure {
        usable: false,
        ..exit_failure(facts, member, pod, name, exit, known)
    })
}

/// An exit of the training container that belongs to the present attempt: what its agent reports
/// for it, or what pod status shows while the container is down.
pub(crate) fn exit_at_attempt(
    facts: &Facts<'_>,
    domain: &DomainLedger,
    member: &Member,
    pod: &PodView,
) -> Option<Failure> {
    if let Some(reported) = worst_report(facts, member, pod, |attempt| attempt >= domain.attempt) {
        return Some(reported);
    }
    let training = facts.training(&member.group);
    let container = pod.containers.get(training)?;
    let down = container.terminated().filter(|t| t.exit_code != 0)?;
    let known = report_of(facts, pod, training, down.id.as_deref());
    if known.is_some_and(|r| r.attempt < domain.attempt || r.kind == ReportKind::Stopped) {
        return None;
    }
    // While an incident is handled, only a container that has come to its attempt can fail at it.
    if domain
        .domain_incident()
        .is_some_and(|i| !i.replace.contains(member))
        && !facts.is_container_at(member, pod, domain.attempt, container)
    {
        return None;
    }
    Some(exit_failure(facts, member, pod, training, down, known))
}

/// A failure of the attempt before that is reported only now: it belongs to the open incident.
pub(crate) fn late_exit(
    facts: &Facts<'_>,
    attempt: i64,
    member: &Member,
    pod: &PodView,
) -> Option<Failure> {
    worst_report(facts, member, pod, |at| at == attempt - 1)
}

/// Of the failures that the agent reports for some attempts, the one with the most severe action;
/// of those the earliest. A container may have restarted alone before it failed for good. What ended
/// because another container restarts the whole pod has not failed.
fn worst_report(
    facts: &Facts<'_>,
    member: &Member,
    pod: &PodView,
    attempts: impl Fn(i64) -> bool,
) -> Option<Failure> {
    let spec = facts.spec();
    facts
        .reports(member, pod)
        .filter(|r| attempts(r.attempt) && r.kind == ReportKind::Exited && r.exit_code != 0)
        .filter(|r| !is_swept(facts, member, pod, r))
        .map(|r| reported_failure(facts, member, pod, r))
        .min_by_key(|f| (Reverse(verdict(spec, f).action.severity()), f.cause.time))
}

/// What is reported of the end of the container of this id.
pub(super) fn report_of<'a>(
    facts: &Facts<'a>,
    pod: &PodView,
    container: &str,
    id: Option<&str>,
) -> Option<&'a Report> {
    let id = bare_id(id?);
    report_where(facts, pod, container, |r| r.container_id == id)
}

/// What is reported of the end of one of the containers that a pod has had under this name.
pub(super) fn report_where<'a>(
    facts: &Facts<'a>,
    pod: &PodView,
    container: &str,
    of_it: impl Fn(&Report) -> bool,
) -> Option<&'a Report> {
    let reports = facts.pod_reports(pod);
    // A supervisor tells of each attempt; of the end of the container the agent tells, unless it
    // is what the supervisor has told last. One that has come to another attempt since has ended anew.
    let came = facts.arrivals.last(pod);
    reports
        .filter(|r| r.container == container && of_it(r) && !has_ended_anew(r, came))
        .max_by_key(|r| (!r.supervised, r.attempt))
}

/// Whether the container of which a supervisor has told this has come to a later attempt since. `came`:
/// the last attempt that one of the pod has come to, with the number of its restarts.
fn has_ended_anew(report: &Report, came: Option<(i64, i32)>) -> bool {
    let later = |(attempt, restarts)| attempt > report.attempt && restarts == report.restarts;
    report.supervised && came.is_some_and(later)
}

/// The exit that an agent reports.
pub(crate) fn reported_failure(
    facts: &Facts<'_>,
    member: &Member,
    pod: &PodView,
    r: &Report,
) -> Failure {
    let exit = Termination {
        exit_code: r.exit_code,
        reason: r.reason.clone(),
        message: String::new(),
        finished_at: Some(r.time),
        id: Some(r.container_id.clone()),
    };
    Failure {
        confirmed_by: confirmed_by(facts, member, pod, r),
        ..exit_failure(facts, member, pod, &r.container, &exit, Some(r))
    }
}

/// The end of a container as a failure of its member.
pub(super) fn exit_failure(
    facts: &Facts<'_>,
    member: &Member,
    pod: &PodView,
    container: &str,
    exit: &Termination,
    known: Option<&Report>,
) -> Failure {
    let (code, reason, time) = match known {
        Some(r) => (r.exit_code, r.reason.clone(), r.time),
        None => (
            exit.exit_code,
            exit.reason.clone(),
            exit.finished_at.unwrap_or(facts.now),
        ),
    };
    // The kubelet kills the other containers of a pod with 137 when one of them restarts all.
    let last = pod
        .containers
        .get(facts.training(&member.group))
        .and_then(|c| c.last.as_ref());
    let swept = last.is_some_and(|l| l.reason == RESTARTING_ALL && l.id == exit.id);
    let masked = code == 137
        && reason != "OOMKilled"
        && (reason == RESTARTING_ALL || swept || pod.restarts_all());
    let hangs = known.is_some_and(|r| r.supervised && r.reason == CauseKind::Hang.as_str());
    let kind = if hangs {
        CauseKind::Hang
    } else {
        CauseKind::ContainerExit
    };
    let reported = known.map(|r| &r.message).filter(|m| !m.is_empty());
    let cause = Cause {
        pod: pod.name.clone(),
        node: pod.node.clone().unwrap_or_default(),
        container: container.to_owned(),
        // The code of a process that hung is its supervisor's doing.
        exit_code: (!hangs).then_some(code),
        reason,
        message: reported.unwrap_or(&exit.message).clone(),
        ..Cause::new(kind, time)
    };
    Failure {
        masked,
        ..failure(member, pod, cause, true)
    }
}

fn failure(member: &Member, pod: &PodView, cause: Cause, usable: bool) -> Failure {
    let conditions = pod
        .conditions
        .iter()
        .map(|(t, c)| (t.clone(), c.status.clone()))
        .collect();
    Failure {
        member: member.clone(),
        pod_uid: Some(pod.uid.clone()),
        cause,
        usable,
        masked: false,
        uncounted: false,
        confirmed_by: None,
        reach: Reach::Training,
        conditions,
    }
}

/// How the training container of a pod could not be started, where no rule of the policy says what
/// to do about it: the runtime has no such program, device or mount, and nothing of the workload has
/// run that could have failed.
pub(crate) fn start_error(facts: &Facts<'_>, member: &Member, pod: &PodView) -> Option<Failure> {
    let container = facts.trainer(member, pod)?;
    let waits = matches!(container.state, ContainerState::Waiting { .. });
    let last = container.last.as_ref().filter(|_| waits);
    let exit = container.terminated().or(last)?;
    let training = facts.training(&member.group);
    let failure = exit_failure(facts, member, pod, training, exit, None);
    is_start_error(facts, &failure).then_some(failure)
}

/// Whether an exit is one that [`start_error`] answers for.
pub(crate) fn is_start_error(facts: &Facts<'_>, failure: &Failure) -> bool {
    failure.cause.exit_code == Some(128)
        && START_REASONS.contains(&failure.cause.reason.as_str())
        && verdict(facts.spec(), failure).rule.is_none()
}

/// A member that its node did not start; nothing of the workload has failed.
pub(crate) fn start_failure(
    member: &Member,
    node: &str,
    reason: &str,
    message: &str,
    now: DateTime<Utc>,
) -> Failure {
    let gone = vanished(member, node, now);
    let cause = Cause {
        kind: CauseKind::PodFailed,
        reason: reason.to_owned(),
        message: format!("member {member}: {message}"),
        ..gone.cause
    };
    Failure { cause, ..gone }
}

/// A member whose pod is gone although it ran.
pub(crate) fn vanished(member: &Member, node: &str, now: DateTime<Utc>) -> Failure {
    Failure {
        member: member.clone(),
        pod_uid: None,
        cause: Cause {
            node: node.to_owned(),
            message: format!("the pod of member {member} is gone"),
            ..Cause::new(CauseKind::PodDeleted, now)
        },
        usable: false,
        masked: false,
        uncounted: true,
        confirmed_by: None,
        reach: Reach::Training,
        conditions: Vec::new(),
    }
}
