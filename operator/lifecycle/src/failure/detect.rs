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

/// Reason of containers that the kubelet killed to restart the whole pod.
pub(crate) const RESTARTING_ALL: &str = "RestartingAllContainers";
/// Runtimes' reasons for containers that did not start.
const START_REASONS: [&str; 2] = ["StartError", "ContainerCannotRun"];
/// Reasons of pods that the kubelet ended on behalf of the node.
const NODE_REASONS: [&str; 4] = ["Evicted", "NodeShutdown", "Terminated", "Preempting"];

/// A failure of a member's pod at the current attempt. A rejection by the kubelet is a failure of
/// the placement instead.
pub(crate) fn failure_of(
    facts: &Facts<'_>,
    domain: &DomainLedger,
    member: &Member,
    pod: &PodView,
) -> Option<Failure> {
    pod_failure(facts, member, pod).or_else(|| exit_at_attempt(facts, domain, member, pod))
}

/// The pod is lost, deleted or failed.
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
        // If the kubelet ended the pod for another pod, only the condition has a reason.
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

/// True if a pod failed because it was being deleted. Its first failed status may follow the signal
/// of the deletion.
fn ended_by_deletion(pod: &PodView) -> bool {
    let Some(deleted_at) = pod.deleted_at else {
        return false;
    };
    let mut ends = pod.containers.values().filter_map(|c| c.terminated());
    ends.all(|t| t.exit_code == 0 || t.finished_at.is_none_or(|at| at >= deleted_at))
}

fn first_end(pod: &PodView) -> Option<DateTime<Utc>> {
    let regular = pod.containers.values().filter(|c| !c.init);
    regular.filter_map(|c| c.terminated()?.finished_at).min()
}

/// The cause of an exit by a signal, if the pod reports its node or an eviction. Kubelets report
/// this after the last container has ended, long after the agent's report of the first.
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
    // An API-initiated eviction sets the condition before the first signal.
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

/// Until when pod status may explain an exit that looks like a kill. While it shows the container
/// as running, the kubelet may be ending the pod. If the container failed alone, pod status shows
/// it within two seconds.
fn confirmed_by(
    facts: &Facts<'_>,
    member: &Member,
    pod: &PodView,
    r: &Report,
) -> Option<DateTime<Utc>> {
    let shown = facts.trainer(member, pod)?;
    let runs = shown.running() && shown.id.as_deref().map(bare_id) == Some(&r.container_id);
    let open = runs && !pod.terminal() && !pod.terminating();
    // The supervisor observes its child directly. Only a signal that it forwards may come from the
    // kubelet.
    let told_by_supervisor = r.supervised && r.exit_code != 143;
    (open && looks_killed(r.exit_code, &r.reason) && !told_by_supervisor)
        .then(|| r.time.min(facts.now) + facts.view.settings().status_grace)
}

/// True if the pod of a charged exit may still report that its node ended it. Deleting the pod
/// could remove that report unread.
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

/// The exit that failed a pod: of the training container, else of an init container that prevented
/// its start, else the first of another container.
fn failed_exit(facts: &Facts<'_>, member: &Member, pod: &PodView) -> Option<Failure> {
    let training = facts.training(&member.group);
    let began = pod
        .containers
        .get(training)
        .is_some_and(ContainerView::started);
    let ended = pod.containers.iter().filter_map(|(name, c)| {
        let exit = c.terminated().filter(|t| t.exit_code != 0)?;
        // A started training container was not prevented by any init container.
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

/// A failed exit of the training container at the current attempt: reported by the agent, or shown
/// in pod status.
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
    // During an incident, only a container that has arrived at its attempt can fail at it.
    if domain
        .domain_incident()
        .is_some_and(|i| !i.replace.contains(member))
        && !facts.is_container_at(member, pod, domain.attempt, container)
    {
        return None;
    }
    Some(exit_failure(facts, member, pod, training, down, known))
}

/// A late report on the previous attempt, which belongs to the open incident.
pub(crate) fn late_exit(
    facts: &Facts<'_>,
    attempt: i64,
    member: &Member,
    pod: &PodView,
) -> Option<Failure> {
    worst_report(facts, member, pod, |at| at == attempt - 1)
}

/// The earliest of the failures with the most severe action, among the agent's reports for some
/// attempts. Exits that follow from a restart of the whole pod are no failures.
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

pub(super) fn report_of<'a>(
    facts: &Facts<'a>,
    pod: &PodView,
    container: &str,
    id: Option<&str>,
) -> Option<&'a Report> {
    let id = bare_id(id?);
    report_where(facts, pod, container, |r| r.container_id == id)
}

pub(super) fn report_where<'a>(
    facts: &Facts<'a>,
    pod: &PodView,
    container: &str,
    of_it: impl Fn(&Report) -> bool,
) -> Option<&'a Report> {
    let reports = facts.pod_reports(pod);
    // The supervisor reports the exit of each attempt. The agent reports the exit of the container,
    // unless the supervisor has already reported it. Reports are outdated after the container has
    // arrived at a later attempt.
    let came = facts.arrivals.last(pod);
    reports
        .filter(|r| r.container == container && of_it(r) && !has_ended_anew(r, came))
        .max_by_key(|r| (!r.supervised, r.attempt))
}

/// True if a supervised container has arrived at a later attempt since this report. `came`: the
/// pod's last attempt and its restart count.
fn has_ended_anew(report: &Report, came: Option<(i64, i32)>) -> bool {
    let later = |(attempt, restarts)| attempt > report.attempt && restarts == report.restarts;
    report.supervised && came.is_some_and(later)
}

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
    // When one container restarts the whole pod, the kubelet kills all other containers with 137.
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
        // After a hang, the supervisor's own signal determines the code.
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

/// The error that prevented the start of a training container, unless a rule matches it. The
/// runtime lacks the program, device or mount, so the workload's code has not run.
pub(crate) fn start_error(facts: &Facts<'_>, member: &Member, pod: &PodView) -> Option<Failure> {
    let container = facts.trainer(member, pod)?;
    let waits = matches!(container.state, ContainerState::Waiting { .. });
    let last = container.last.as_ref().filter(|_| waits);
    let exit = container.terminated().or(last)?;
    let training = facts.training(&member.group);
    let failure = exit_failure(facts, member, pod, training, exit, None);
    is_start_error(facts, &failure).then_some(failure)
}

pub(crate) fn is_start_error(facts: &Facts<'_>, failure: &Failure) -> bool {
    failure.cause.exit_code == Some(128)
        && START_REASONS.contains(&failure.cause.reason.as_str())
        && verdict(facts.spec(), failure).rule.is_none()
}

/// A member that its node did not start. The workload has not failed.
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

/// A member whose pod has disappeared while running.
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
