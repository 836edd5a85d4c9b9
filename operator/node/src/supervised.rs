//! One pod whose training process has a supervisor: hold it for an order, release it when the
//! manager says that all members are at the barrier, tell how its child ended.
//!
//! No process starts in a new container before its supervisor is released, so a container is never
//! stopped here: it is of the attempt that its supervisor has come to.

use chrono::{DateTime, Utc};
use lockstep_api::node_agent::{Report, ReportKind};
use lockstep_api::restart_order::DomainOrder;

use super::pod::{REMOVED, Step, end_of_released, ended_unnoticed, report};
use super::supervisor::{ChildEnd, SupervisorState, Word};
use super::view::{Exit, NodePod, Record, SeenContainer, goes_on_alone, is_ordered};

/// `reported`: reports that were made already.
pub(super) fn step(
    pod: &NodePod,
    record: Option<&Record>,
    order: Option<&DomainOrder>,
    reported: &[Report],
    now: DateTime<Utc>,
) -> Step {
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
    step.tell = order.and_then(|o| word(o, pod, record, state));
    step
}

/// Whether the order is for this pod: its member restarts in place, or it was made for the attempt, and
/// no other has taken its place since. One that was made for a later attempt waits for the order of
/// that.
pub(super) fn is_for(order: &DomainOrder, pod: &NodePod) -> bool {
    let restarts = is_ordered(order, pod.member.as_ref());
    let comes = pod.attempt <= order.attempt && (restarts || pod.attempt == order.attempt);
    comes && !order.replaced_pods.contains(&pod.uid)
}

/// The attempt that the supervisor has come to; 0: none yet.
fn reached(state: &SupervisorState) -> i64 {
    let ended = state.exit.as_ref().map(|e| e.attempt);
    state.held.max(state.running).max(ended).unwrap_or_default()
}

/// Reports containers that have ended. One whose child's end was told already ends with that code
/// because it was told to, or because nobody answered; that is no second failure.
fn note_container_ends(pod: &NodePod, step: &mut Step, reported: &[Report], now: DateTime<Utc>) {
    if let Some(record) = &mut step.record {
        if let Some(c) = pod.containers.iter().find(|c| c.id == record.container_id) {
            record.restarts = c.restarts;
        }
        let child_told = record.told_end == Some(record.attempt);
        let ended = end_of_released(pod, record, now);
        let news = ended.filter(|r| {
            // How a removed container has ended nobody knows.
            let unknown = child_told && r.reason == REMOVED;
            !unknown && !reported.iter().any(|t| is_end_of_child(t, r))
        });
        step.reports.extend(news);
    }
    for c in ended_unnoticed(pod, step.record.as_ref(), reported) {
        let Some(exit) = &c.exit else { continue };
        // None of its processes was ever released.
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

/// Whether a report is the one that the supervisor's word made of the same end.
fn is_end_of_child(reported: &Report, end: &Report) -> bool {
    reported.supervised
        && (&reported.pod_uid, &reported.container_id) == (&end.pod_uid, &end.container_id)
        && (reported.attempt, reported.exit_code) == (end.attempt, end.exit_code)
}

/// Takes note of a container that was not seen running before. Where a process of the present
/// attempt has ended in this pod, the next container waits for the order that answers that end.
fn note_container(
    pod: &NodePod,
    step: &mut Step,
    container: &SeenContainer,
    order: Option<&DomainOrder>,
    now: DateTime<Utc>,
) {
    let attempt = order.map_or(pod.attempt, |o| o.attempt.max(pod.attempt));
    let alone = order.and_then(|o| goes_on_alone(o, pod.member.as_ref()));
    let may_start = match &step.record {
        None => true,
        Some(r) if r.exited_at.is_none() => false,
        Some(r) if r.attempt == attempt => alone.is_some_and(|seen| container.restarts > seen),
        // An order for an earlier attempt is what an API server that lags behind still shows.
        Some(r) => r.attempt < attempt,
    };
    if may_start {
        let new = Record::new(&container.id, container.restarts, attempt, now);
        step.record = Some(new);
    }
}

/// The end of the child, told once for each attempt of a container. The agent may have been away when it
/// came, so the time is the supervisor's; what comes from a container may be anything, but its child has
/// ended since the container was made, and not later than now.
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
    // The record remembers what the list of reports forgets, and the list is published, so that it
    // outlives the record.
    let known = record.told_end == Some(end.attempt);
    let known = known || reported.iter().any(|t| is_end_of_child(t, &new));
    (!known).then_some(new)
}

/// What the order has to say to the supervisor now.
fn word(
    order: &DomainOrder,
    pod: &NodePod,
    record: &Record,
    state: &SupervisorState,
) -> Option<Word> {
    let attempt = order.attempt;
    if reached(state) < attempt {
        return Some(Word::Hold { attempt });
    }
    let alone = goes_on_alone(order, pod.member.as_ref()) == Some(record.restarts);
    match &state.exit {
        Some(end)
            if end.code == 0 && end.attempt == attempt && order.completed_attempt == attempt =>
        {
            Some(Word::Complete { attempt })
        }
        // The failure of an earlier attempt ends the workload when the next one is ordered already.
        Some(end) if alone && end.attempt <= attempt => Some(Word::Exit {
            attempt: end.attempt,
        }),
        _ if state.held == Some(attempt) && order.released_attempt == attempt => {
            Some(Word::Release {
                attempt,
                coordinator: order.coordinator.clone(),
                peers: order.peers.clone(),
                progress: order.progress,
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
