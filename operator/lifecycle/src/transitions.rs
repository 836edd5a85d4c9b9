//! Events: one per transition, computed from two statuses.

use std::cell::LazyCell;
use std::collections::BTreeMap;

use lockstep_api::condition::{Condition, find, is_true, reasons, types};
use lockstep_api::gangs::gangs;
use lockstep_api::words::time;
use lockstep_api::workload::{
    Cause, CauseKind, CheckpointOccasion, CheckpointOutcome, DomainStatus, FailureAction,
    GangStatus, HistoryEntry, MoveOutcome, TrainingWorkloadSpec, TrainingWorkloadStatus,
};

use crate::ledger::Ledger;
use crate::messages::{NOT_MOVED, Restarts, nodes_to_leave, of_gang};
use crate::start_problem::START_PROBLEMS;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNote {
    pub type_: EventType,
    pub reason: String,
    pub note: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    Normal,
    Warning,
}

/// Reported conditions, with the event type for True and, if reported, for False.
const REPORTED: [(&str, EventType, Option<EventType>); 8] = [
    (types::STALLED, EventType::Warning, None),
    (types::ADMITTED, EventType::Normal, Some(EventType::Normal)),
    (types::READY, EventType::Normal, None),
    (types::DISRUPTION_TARGET, EventType::Warning, None),
    (types::SUSPENDED, EventType::Normal, Some(EventType::Normal)),
    (
        types::CHECKPOINT_REQUESTED,
        EventType::Normal,
        Some(EventType::Normal),
    ),
    (types::COMPLETE, EventType::Normal, None),
    (types::FAILED, EventType::Warning, None),
];

/// Reasons of Admitted=False that another condition reports at the same time.
const REPORTED_ELSEWHERE: [&str; 2] = [reasons::SUSPENDED, reasons::PREEMPTED];

fn ended(status: &TrainingWorkloadStatus) -> bool {
    is_true(&status.conditions, types::COMPLETE) || is_true(&status.conditions, types::FAILED)
}

/// Publish these events after the new status is written.
pub fn transitions(
    spec: &TrainingWorkloadSpec,
    before: &TrainingWorkloadStatus,
    after: &TrainingWorkloadStatus,
) -> Vec<EventNote> {
    let mut out = Vec::new();
    restarts(spec, before, after, &mut out);
    let recovered = out.iter().any(|e| e.reason == reasons::RECOVERED);
    let gangs_before: BTreeMap<&str, &GangStatus> =
        before.gangs.iter().map(|g| (g.key.as_str(), g)).collect();
    let others = after.gangs.len() > 1;
    for gang in &after.gangs {
        let old = gangs_before
            .get(gang.key.as_str())
            .and_then(|g| g.backoff.as_ref());
        if let Some(backoff) = gang.backoff.as_ref().filter(|b| Some(*b) != old) {
            let note = format!("nodes were released: {}", backoff.message);
            let note = of_gang(&gang.key, others, &note);
            out.push(EventNote {
                type_: EventType::Warning,
                reason: backoff.reason.clone(),
                note,
            });
        }
    }
    stuck_nodes(&gangs_before, after, &mut out);
    moves(&gangs_before, after, &mut out);
    failed_request(before, after, &mut out);
    withdrawn_preemption(before, after, &mut out);
    for (type_, on_true, on_false) in REPORTED {
        let Some(new) = find(&after.conditions, type_) else {
            continue;
        };
        // Another event implies this one.
        let implied = (type_ == types::READY && recovered)
            || (type_ == types::ADMITTED && REPORTED_ELSEWHERE.contains(&new.reason.as_str()))
            || ([types::ADMITTED, types::STALLED].contains(&type_) && ended(after));
        let old = find(&before.conditions, type_);
        let when = if new.status == true.into() {
            Some(on_true)
        } else if type_ == types::READY && START_PROBLEMS.contains(&new.reason.as_str()) {
            Some(EventType::Warning)
        } else {
            on_false
        };
        if let (Some(event_type), true) = (when, !implied && is_news(old, new)) {
            out.push(EventNote {
                type_: event_type,
                reason: new.reason.clone(),
                note: new.message.clone(),
            });
        }
    }
    out
}

/// A condition that is initially False is not reported, except Admitted.
fn is_news(old: Option<&Condition>, new: &Condition) -> bool {
    match old {
        Some(old) => old.status != new.status || old.reason != new.reason,
        None => new.status == true.into() || new.type_ == types::ADMITTED,
    }
}

/// The scheduler has withdrawn the preemption of this workload, or by it, before an eviction.
fn withdrawn_preemption(
    before: &TrainingWorkloadStatus,
    after: &TrainingWorkloadStatus,
    out: &mut Vec<EventNote>,
) {
    let is_withdrawn = |status: &TrainingWorkloadStatus, id: &str| {
        let mut requests = status.checkpoint_requests();
        requests.any(|(_, r)| r.id == id && r.outcome == Some(CheckpointOutcome::Withdrawn))
    };
    let spared = after.checkpoint_requests().any(|(_, r)| {
        r.reason == CheckpointOccasion::Preemption
            && is_withdrawn(after, &r.id)
            && !is_withdrawn(before, &r.id)
    });
    let reason_of = |status: &TrainingWorkloadStatus| {
        let admitted = find(&status.conditions, types::ADMITTED);
        let waits = admitted.filter(|c| c.status == false.into());
        waits.map(|c| c.reason.clone())
    };
    let preempted = reason_of(before).as_deref() == Some(reasons::PREEMPTING);
    let waits = reason_of(after).filter(|_| preempted && !ended(after));
    let waits_again = waits.is_some_and(|r| {
        ![
            reasons::PREEMPTING,
            reasons::SUSPENDED,
            reasons::BACKING_OFF,
        ]
        .contains(&r.as_str())
    });
    let notes = [
        (
            spared,
            "the preemption was withdrawn before an eviction: the gang keeps its nodes",
        ),
        (
            waits_again,
            "the preemption was withdrawn: the gang waits for capacity again",
        ),
    ];
    out.extend(
        notes
            .into_iter()
            .filter(|(due, _)| *due)
            .map(|(_, note)| EventNote {
                type_: EventType::Normal,
                reason: reasons::PREEMPTION_WITHDRAWN.into(),
                note: note.to_owned(),
            }),
    );
}

fn failed_request(
    before: &TrainingWorkloadStatus,
    after: &TrainingWorkloadStatus,
    out: &mut Vec<EventNote>,
) {
    let reported = |status: &TrainingWorkloadStatus| {
        let condition = find(&status.conditions, types::RECONCILING);
        condition
            .filter(|c| c.reason == reasons::API_SERVER_ERROR)
            .cloned()
    };
    if let (None, Some(new)) = (reported(before), reported(after)) {
        out.push(EventNote {
            type_: EventType::Warning,
            reason: new.reason,
            note: new.message,
        });
    }
}

/// Newly avoided nodes on which pods do not end.
fn stuck_nodes(
    before: &BTreeMap<&str, &GangStatus>,
    after: &TrainingWorkloadStatus,
    out: &mut Vec<EventNote>,
) {
    for gang in &after.gangs {
        let old = before.get(gang.key.as_str());
        for avoided in gang.avoid.iter().filter(|a| a.reason == reasons::POD_STUCK) {
            let was_stuck = old.is_some_and(|g| {
                let mut nodes = g.avoid.iter().filter(|a| a.reason == reasons::POD_STUCK);
                nodes.any(|a| a.node == avoided.node)
            });
            if !was_stuck {
                let note = format!(
                    "pods on node {} did not end within their grace period: they are deleted by force, and the node is avoided until {}",
                    avoided.node,
                    time(avoided.until)
                );
                out.push(EventNote {
                    type_: EventType::Warning,
                    reason: reasons::POD_STUCK.into(),
                    note: of_gang(&gang.key, after.gangs.len() > 1, &note),
                });
            }
        }
    }
}

/// Requested moves, and those that did not happen. The restart of a move has its own event.
fn moves(
    before: &BTreeMap<&str, &GangStatus>,
    after: &TrainingWorkloadStatus,
    out: &mut Vec<EventNote>,
) {
    for gang in &after.gangs {
        let old = before.get(gang.key.as_str());
        let old = old.and_then(|g| g.moving.as_ref());
        let Some(new) = &gang.moving else { continue };
        let nodes = nodes_to_leave(new);
        let same = old.filter(|old| old.id == new.id);
        let is_news = same.is_none_or(|old| old.outcome != new.outcome);
        let (type_, reason, note) = match new.outcome.filter(|_| is_news) {
            _ if new.with_restart => continue,
            Some(MoveOutcome::Stayed) => {
                let note = format!("the gang stays on {nodes} {NOT_MOVED}");
                (EventType::Warning, reasons::MOVE_STAYED, note)
            }
            Some(MoveOutcome::Withdrawn) => {
                let note = format!(
                    "the move away from {nodes} is withdrawn: no signal requires it now, or the gang has lost its placement"
                );
                (EventType::Normal, reasons::MOVE_WITHDRAWN, note)
            }
            None if same.is_none() => {
                let (type_, reason) = match new.reason {
                    CauseKind::NodeFaulty => (EventType::Warning, reasons::NODE_FAULTY),
                    _ => (EventType::Normal, reasons::NODE_LEAVING),
                };
                let note = format!("other nodes are sought, because the gang is to leave {nodes}");
                (type_, reason, note)
            }
            Some(MoveOutcome::Moved) | None => continue,
        };
        out.push(EventNote {
            type_,
            reason: reason.into(),
            note: of_gang(&gang.key, after.gangs.len() > 1, &note),
        });
    }
}

/// Prefix of the event about an open incident with this charge and cause. `None` if its last event
/// has both. An agent reports an exit long before the kubelet reports the eviction that caused it.
fn prefix(before: Option<(bool, &Cause)>, after: (bool, &Cause)) -> Option<&'static str> {
    match before {
        None => Some(""),
        Some(before) => (before != after).then_some("corrected: "),
    }
}

fn restarts(
    spec: &TrainingWorkloadSpec,
    before: &TrainingWorkloadStatus,
    after: &TrainingWorkloadStatus,
    out: &mut Vec<EventNote>,
) {
    let (gangs, ledger) = (
        LazyCell::new(|| gangs(spec)),
        LazyCell::new(|| Ledger::read(after, spec)),
    );
    let restarts = || Restarts {
        spec,
        gangs: &gangs,
        ledger: &ledger,
    };
    let old_domains = before.domains.iter();
    let domains_before: BTreeMap<&str, &DomainStatus> =
        old_domains.map(|d| (d.key.as_str(), d)).collect();
    for domain in &after.domains {
        let before = domains_before.get(domain.key.as_str());
        let old = before.and_then(|d| d.incident.as_ref());
        let replaced = before.and_then(|d| d.replacement.as_ref());
        let mut notes = Vec::new();
        if let Some(new) = &domain.incident {
            let same = old
                .filter(|o| (o.attempt, o.detected_at) == (new.attempt, new.detected_at))
                .map(|old| (old.counted, &old.cause));
            let prefix = prefix(same, (new.counted, &new.cause));
            let entry = ledger.domains.get(domain.key.as_str());
            let open = entry.and_then(|entry| entry.incident.as_ref());
            notes.extend(prefix.zip(open).map(|(prefix, open)| {
                let note = restarts().under_way(&domain.key, open);
                (new.action, format!("{prefix}{note}"))
            }));
        }
        // Members of an incident continue as a replacement, which is no news.
        if let Some(new) = &domain.replacement
            && old.is_none_or(|o| o.detected_at != new.detected_at)
        {
            let same = replaced
                .filter(|o| o.detected_at == new.detected_at)
                .map(|old| (old.counted, &old.cause));
            let prefix = prefix(same, (new.counted, &new.cause));
            let entry = ledger.domains.get(domain.key.as_str());
            let open = entry.and_then(|entry| entry.replacement.as_ref());
            notes.extend(prefix.zip(open).map(|(prefix, open)| {
                let note = restarts().replacing(&domain.key, open);
                (FailureAction::RestartPod, format!("{prefix}{note}"))
            }));
        }
        out.extend(notes.into_iter().map(|(action, note)| EventNote {
            type_: EventType::Warning,
            reason: action.reason().into(),
            note,
        }));
    }
    let recorded = || {
        let entries = after.history.iter();
        entries.filter(|h| !before.history.contains(h))
    };
    let announced = |h: &HistoryEntry| {
        let domain = domains_before.get(h.domain.as_str());
        let replacement = domain.and_then(|d| d.replacement.as_ref());
        replacement.is_some_and(|r| r.cause == h.cause)
    };
    let by_kubelet =
        recorded().filter(|h| h.action.affects_single_pod() && h.recreated == 0 && !announced(h));
    out.extend(by_kubelet.map(|restart| EventNote {
        type_: EventType::Warning,
        reason: restart.action.reason().into(),
        note: restarts().by_kubelet(restart),
    }));
    let recovered = recorded().filter(|h| h.recovered_at.is_some());
    out.extend(recovered.map(|restart| EventNote {
        type_: EventType::Normal,
        reason: reasons::RECOVERED.into(),
        note: restarts().over(restart),
    }));
}
