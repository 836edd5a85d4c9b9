//! Follows one pod with a supervisor: pauses it for an order, releases it when the manager reports
//! that all members are at the barrier, and reports exits of its child.
//!
//! In a new container, no process starts before the supervisor is released. Therefore containers
//! are never stopped here: a container belongs to the attempt at which its supervisor has arrived.

use chrono::{DateTime, Utc};
use lockstep_api::node_agent::{Report, ReportKind};
use lockstep_api::restart_order::DomainOrder;

use super::pod::{REMOVED, Step, end_of_released, ended_unnoticed, report};
use super::supervisor::{ChildEnd, SupervisorCommand, SupervisorState};
use super::view::{Exit, NodePod, ObservedContainer, Record, goes_on_alone, is_ordered};

pub(super) fn step(
    pod: &NodePod,
    record: Option<&Record>,
    order: Option<&DomainOrder>,
    reported: &[Report],
    now: DateTime<Utc>,
) -> Step {
    let replaced = order.and_then(|o| end_replaced(o, pod));
    let order = order.filter(|o| is_for(o, pod));
    let mut step = Step {
        record: record.cloned(),
        ..Step::default()
    };
    note_container_ends(pod, &mut step, reported, now);
    if let Some(container) = pod.newest_running() {
        note_container(pod, &mut step, container, order, now);
    }
    let Some(state) = &pod.supervisor else {
        return step;
    };
    let Some(record) = (step.record.as_mut()).filter(|r| r.exited_at.is_none()) else {
        return step;
    };
    let reached = reached(state);
    if reached > 0 && (reached != record.attempt || !record.arrived) {
        record.attempt = reached;
        record.arrived = true;
        record.seen_at = now;
    }
    if let Some(end) = &state.exit {
        step.reports
            .extend(child_end(pod, record, end, reported, now));
        record.told_end = Some(end.attempt);
    }
    step.command = order.map_or(replaced, |o| command(o, pod, record, state));
    step
}

/// Pauses the process of a replaced pod, for example of a pod on an unreachable node. Both
/// processes would have the same rank and write the same checkpoint. Not before the release of the
/// attempt: until then no replacement runs, and an evicted pod keeps its grace period.
/// If its kubelet stops it, that signal is not held back.
fn end_replaced(order: &DomainOrder, pod: &NodePod) -> Option<SupervisorCommand> {
    let attempt = order.attempt;
    let state = pod.supervisor.as_ref()?;
    let running = state.running?;
    if is_for(order, pod) || running > attempt {
        None
    } else if order.released_attempt == attempt {
        // A supervisor that runs this attempt would ignore `Hold`.
        Some(SupervisorCommand::Hold {
            attempt: attempt.max(running + 1),
        })
    } else if running < attempt || order.replaced_pods.contains(&pod.uid) {
        stop(running, state)
    } else {
        None
    }
}

/// True if the order includes this pod: its member restarts in place, or the pod was created for
/// the attempt. A replaced pod is not included. A pod of a later attempt waits for its own order.
pub(super) fn is_for(order: &DomainOrder, pod: &NodePod) -> bool {
    let restarts = is_ordered(order, pod.member.as_ref());
    let comes = pod.attempt <= order.attempt && (restarts || pod.attempt == order.attempt);
    comes && !order.replaced_pods.contains(&pod.uid)
}

/// Attempt at which the supervisor has arrived; 0 before that.
fn reached(state: &SupervisorState) -> i64 {
    let ended = state.exit.as_ref().map(|e| e.attempt);
    state.held.max(state.running).max(ended).unwrap_or_default()
}

/// Reports ended containers. After a reported exit of the child, the container exits with the same
/// code. This is not a second failure.
fn note_container_ends(pod: &NodePod, step: &mut Step, reported: &[Report], now: DateTime<Utc>) {
    if let Some(record) = &mut step.record {
        if let Some(c) = pod.containers.iter().find(|c| c.id == record.container_id) {
            record.restarts = c.restarts;
        }
        let child_reported = record.told_end == Some(record.attempt);
        let ended = end_of_released(pod, record, now);
        let news = ended.filter(|r| {
            // The exit of a removed container is unknown.
            let removed = child_reported && r.reason == REMOVED;
            !removed && !reported.iter().any(|t| is_end_of_child(t, r))
        });
        step.reports.extend(news);
    }
    for c in ended_unnoticed(pod, step.record.as_ref(), reported) {
        let Some(exit) = &c.exit else { continue };
        // No process of this container was ever released.
        let attempt = step.record.as_ref().map_or(pod.attempt, |r| r.attempt);
        let ended = Record {
            exited_at: Some(exit.at),
            ..Record::new(&c.id, c.restarts, attempt, now)
        };
        step.reports
            .push(report(pod, &ended, ReportKind::Exited, exit));
        step.record = Some(ended);
    }
}

/// True if a report by the supervisor describes this exit.
fn is_end_of_child(reported: &Report, end: &Report) -> bool {
    reported.supervised
        && (&reported.pod_uid, &reported.container_id) == (&end.pod_uid, &end.container_id)
        && (reported.attempt, reported.exit_code) == (end.attempt, end.exit_code)
}

/// Records a newly running container. If a process of the current attempt has ended in this pod,
/// the next container waits for an order that handles the exit.
fn note_container(
    pod: &NodePod,
    step: &mut Step,
    container: &ObservedContainer,
    order: Option<&DomainOrder>,
    now: DateTime<Utc>,
) {
    let attempt = order.map_or(pod.attempt, |o| o.attempt.max(pod.attempt));
    let alone = order.and_then(|o| goes_on_alone(o, pod.member.as_ref()));
    let may_start = match &step.record {
        None => true,
        Some(r) if r.exited_at.is_none() => false,
        Some(r) if r.attempt == attempt => {
            alone.is_some_and(|ordered| container.restarts > ordered)
        }
        // A lagging API server may still show an order for an earlier attempt.
        Some(r) => r.attempt < attempt,
    };
    if may_start {
        let new = Record::new(&container.id, container.restarts, attempt, now);
        step.record = Some(new);
    }
}

/// Report on an exit of the child, once per attempt of a container. The time is the supervisor's,
/// because the agent may have been unavailable. It is limited to the container's lifetime, because
/// values from a container are untrusted.
fn child_end(
    pod: &NodePod,
    record: &Record,
    end: &ChildEnd,
    reported: &[Report],
    now: DateTime<Utc>,
) -> Option<Report> {
    let at = Record {
        attempt: end.attempt,
        ..record.clone()
    };
    let mut containers = pod.containers.iter();
    let since = containers
        .find(|c| c.id == record.container_id)
        .map(|c| c.created_at);
    let exit = Exit {
        code: end.code,
        reason: end.reason.clone(),
        at: since.map_or(end.at, |made| end.at.max(made)).min(now),
    };
    let new = Report {
        supervised: true,
        message: end.message.clone(),
        ..report(pod, &at, ReportKind::Exited, &exit)
    };
    // The record outlives entries in the list of reports. The published list outlives the record.
    let repeated = record.told_end == Some(end.attempt);
    let repeated = repeated || reported.iter().any(|t| is_end_of_child(t, &new));
    (!repeated).then_some(new)
}

/// The message that the order requires while its process runs.
fn on_running(order: &DomainOrder, state: &SupervisorState) -> Option<SupervisorCommand> {
    let attempt = order.attempt;
    if order.stopping {
        return stop(attempt, state);
    }
    let request = order.request.as_ref().filter(|_| state.takes_requests)?;
    (!state.knows(attempt, request)).then(|| SupervisorCommand::Checkpoint {
        attempt,
        request: request.clone(),
    })
}

fn stop(attempt: i64, state: &SupervisorState) -> Option<SupervisorCommand> {
    let needed = state.takes_requests && state.passes_stops < attempt;
    needed.then_some(SupervisorCommand::Stop { attempt })
}

/// The message that the order requires now.
fn command(
    order: &DomainOrder,
    pod: &NodePod,
    record: &Record,
    state: &SupervisorState,
) -> Option<SupervisorCommand> {
    let attempt = order.attempt;
    if reached(state) < attempt {
        return Some(SupervisorCommand::Hold { attempt });
    }
    if state.held == Some(attempt) {
        return (order.released_attempt == attempt).then(|| SupervisorCommand::Release {
            attempt,
            coordinator: order.coordinator.clone(),
            peers: order.peers.clone(),
            progress: order.progress,
            checkpoint: order.checkpoint.clone(),
        });
    }
    if state.running == Some(attempt) {
        return on_running(order, state);
    }
    let ended = state.exit.as_ref().filter(|e| e.attempt == attempt)?;
    let alone = goes_on_alone(order, pod.member.as_ref());
    if ended.code == 0 && order.completed_attempt == attempt {
        Some(SupervisorCommand::Complete { attempt })
    } else if alone == Some(record.restarts) {
        Some(SupervisorCommand::Exit { attempt })
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
