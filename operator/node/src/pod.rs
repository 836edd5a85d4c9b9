//! Follows the training container of one pod through exits and restarts.

use chrono::{DateTime, Utc};
use lockstep_api::node_agent::{Report, ReportKind};
use lockstep_api::restart_order::DomainOrder;

use super::companions::companions;
use super::supervisor::SupervisorCommand;
use super::view::{Exit, NodePod, ObservedContainer, Record, is_ordered, restarts_seen};

/// The kubelet's reason for a removed container.
pub(super) const REMOVED: &str = "ContainerStatusUnknown";

#[derive(Default)]
pub(super) struct Step {
    pub record: Option<Record>,
    pub stop: Vec<String>,
    pub command: Option<SupervisorCommand>,
    pub reports: Vec<Report>,
}

/// `reported`: earlier reports, which remain if records are lost.
pub(super) fn step(
    pod: &NodePod,
    record: Option<&Record>,
    order: Option<&DomainOrder>,
    reported: &[Report],
    now: DateTime<Utc>,
) -> Step {
    // The lowest attempt of a pod is the one for which it was created.
    let attempt = order.map_or(pod.attempt, |o| o.attempt.max(pod.attempt));
    let mut record = record.cloned();
    let mut reports = Vec::new();
    if let Some(r) = &mut record {
        if let Some(c) = pod.containers.iter().find(|c| c.id == r.container_id) {
            r.restarts = c.restarts;
        }
        reports.extend(end_of_released(pod, r, now));
    }
    for c in ended_unnoticed(pod, record.as_ref(), reported) {
        let Some(exit) = &c.exit else { continue };
        let estimate = || attempt_of(pod, c, attempt, order);
        let at = record.as_ref().map_or_else(estimate, |r| r.attempt);
        let cleared_for = record.as_ref().and_then(|r| r.cleared_for);
        let ended = Record {
            exited_at: Some(exit.at),
            cleared_for,
            ..Record::new(&c.id, c.restarts, at, now)
        };
        reports.push(report(pod, &ended, ReportKind::Exited, exit));
        record = Some(ended);
    }
    match pod.newest_running() {
        Some(c) => {
            let by_number = attempt_of(pod, c, attempt, order);
            record = release(record, c, by_number, attempt, now);
        }
        None => {
            if let Some(r) = &mut record {
                r.cleared_for = Some(attempt).filter(|a| *a > r.attempt);
            }
        }
    }
    let mut stop = Vec::new();
    if let (Some(r), Some(o)) = (&mut record, order)
        && r.attempt < o.attempt
        && is_ordered(o, pod.member.as_ref())
    {
        if r.exited_at.is_none() {
            r.stopping_since.get_or_insert(now);
            stop.push(r.container_id.clone());
        }
        stop.extend(companions(pod, r));
    }
    Step {
        record,
        stop,
        command: None,
        reports,
    }
}

pub(super) fn end_of_released(
    pod: &NodePod,
    record: &mut Record,
    now: DateTime<Utc>,
) -> Option<Report> {
    if record.exited_at.is_some() {
        return None;
    }
    let exit = match pod.containers.iter().find(|c| c.id == record.container_id) {
        Some(ObservedContainer { exit: None, .. }) => return None,
        Some(ObservedContainer {
            exit: Some(exit), ..
        }) => exit.clone(),
        // RestartAllContainers removes containers. The kubelet reports this code and reason.
        None => Exit {
            code: 137,
            reason: REMOVED.into(),
            at: next_created(pod, record).unwrap_or(now),
        },
    };
    record.exited_at = Some(exit.at);
    // A container may exit by itself with another code before the signal.
    let stopped = record.stopping_since.is_some() && matches!(exit.code, 137 | 143);
    let kind = if stopped {
        ReportKind::Stopped
    } else {
        ReportKind::Exited
    };
    Some(report(pod, record, kind, &exit))
}

/// Upper bound of the recorded container's end.
fn next_created(pod: &NodePod, record: &Record) -> Option<DateTime<Utc>> {
    let newer =
        |c: &&ObservedContainer| c.restarts > record.restarts || c.created_at > record.seen_at;
    let newer = pod.containers.iter().filter(newer);
    newer.map(|c| c.created_at).min()
}

/// Oldest first.
pub(super) fn ended_unnoticed<'a>(
    pod: &'a NodePod,
    record: Option<&Record>,
    reported: &[Report],
) -> Vec<&'a ObservedContainer> {
    if record.is_some_and(|r| r.exited_at.is_none()) {
        return Vec::new();
    }
    let after = record.and_then(|r| r.exited_at);
    let mut ended: Vec<&ObservedContainer> = pod
        .containers
        .iter()
        .filter(|c| {
            c.exit
                .as_ref()
                .is_some_and(|e| after.is_none_or(|t| e.at > t))
        })
        .filter(|c| record.is_none_or(|r| r.container_id != c.id))
        .filter(|c| {
            reported
                .iter()
                .all(|r| r.pod_uid != pod.uid || r.container_id != c.id)
        })
        .collect();
    ended.sort_by_key(|c| (c.exit.as_ref().map(|e| e.at), &c.id));
    ended
}

/// The current or the previous attempt, by the restart count.
fn attempt_of(
    pod: &NodePod,
    container: &ObservedContainer,
    attempt: i64,
    order: Option<&DomainOrder>,
) -> i64 {
    let before = order.map(|o| restarts_seen(o, pod.member.as_ref()));
    let newer = pod.attempt >= attempt || before.is_none_or(|before| container.restarts > before);
    if newer { attempt } else { attempt - 1 }
}

/// Releases a newly running container for its attempt. `by_number`: its attempt by the restart
/// count.
fn release(
    record: Option<Record>,
    container: &ObservedContainer,
    by_number: i64,
    attempt: i64,
    now: DateTime<Utc>,
) -> Option<Record> {
    let for_attempt = match &record {
        Some(r) if r.exited_at.is_none() => return record,
        // The container waits for the order that handles the exit of its predecessor.
        Some(r) if r.attempt >= attempt => return record,
        Some(r) if r.cleared_for == Some(attempt) => attempt,
        // No record, or a container restarted by its rule. A container that started before the
        // cause of the order belongs to the old attempt.
        None | Some(_) => by_number,
    };
    Some(Record::new(
        &container.id,
        container.restarts,
        for_attempt,
        now,
    ))
}

pub(super) fn report(pod: &NodePod, record: &Record, kind: ReportKind, exit: &Exit) -> Report {
    Report {
        pod_uid: pod.uid.clone(),
        container: pod.training.clone(),
        container_id: record.container_id.clone(),
        attempt: record.attempt,
        supervised: false,
        restarts: record.restarts,
        kind,
        exit_code: exit.code,
        reason: exit.reason.clone(),
        message: String::new(),
        time: exit.at,
    }
}
