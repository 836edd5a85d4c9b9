//! The condition `CheckpointRequested`: open requests, and the last outcome.

use lockstep_api::condition::reasons;
use lockstep_api::template::grace_seconds;
use lockstep_api::words::{count, span, time};
use lockstep_api::workload::{Backend, CheckpointOccasion, CheckpointOnRequest, CheckpointRequest};

use super::value::{ConditionValue, condition};
use crate::checkpoints::BEFORE_KILL;
use crate::facts::Facts;
use crate::ledger::Ledger;

/// `None` if no request is ever made.
pub(super) fn checkpoint_requested(facts: &Facts<'_>, ledger: &Ledger) -> Option<ConditionValue> {
    let requests = || ledger.domains.values().filter_map(|d| d.request.as_ref());
    let open: Vec<&CheckpointRequest> = requests().filter(|r| r.is_open()).collect();
    if let Some(first) = open.first() {
        let message = awaited(first, open.len(), requests().count());
        return Some(condition(true, reasons::AWAITING_CHECKPOINT, message));
    }
    if let Some(last) = requests().max_by_key(|r| r.requested_at) {
        let outcome = last.summary().unwrap_or_default();
        let message = format!("last request ({}): {outcome}", last.reason.as_str());
        return Some(condition(false, reasons::CHECKPOINT_ANSWERED, message));
    }
    let policy = facts.checkpoint_policy()?;
    let message = [short_grace(facts, policy), preempted_elsewhere(facts)];
    let message: Vec<String> = message.into_iter().flatten().collect();
    Some(condition(
        false,
        reasons::NO_CHECKPOINT_REQUESTED,
        message.join(". "),
    ))
}

fn awaited(request: &CheckpointRequest, open: usize, all: usize) -> String {
    let reason = request.reason.as_str();
    let asked = if request.watch {
        "the next regular checkpoint is awaited"
    } else {
        "a checkpoint was requested"
    };
    let stop = match request.reason {
        CheckpointOccasion::User => "nothing is stopped; an answer is awaited until",
        _ => "the stop waits for it at most until",
    };
    let of = if all > 1 {
        format!(
            "; {open} of {} have not answered",
            count(all, "restart domain")
        )
    } else {
        String::new()
    };
    let until = request.deadline.map(time).unwrap_or_default();
    format!("{asked} ({reason}): {stop} {until}{of}")
}

/// An evicted pod has less time than the time-out.
fn short_grace(facts: &Facts<'_>, policy: &CheckpointOnRequest) -> Option<String> {
    if !facts.asks_before(CheckpointOccasion::Eviction) {
        return None;
    }
    let groups = facts.spec().groups.iter();
    let graces = groups.map(|g| (grace_seconds(&g.template.0), &g.name));
    let (grace, group) = graces.min()?;
    let left = (grace - BEFORE_KILL.num_seconds()).max(0);
    (left < policy.timeout_seconds).then(|| {
        format!(
            "an evicted member has {} for its checkpoint, and not timeoutSeconds ({}): terminationGracePeriodSeconds \
             of group {group} is {grace}",
            span(left),
            span(policy.timeout_seconds)
        )
    })
}

fn preempted_elsewhere(facts: &Facts<'_>) -> Option<String> {
    let lockstep = facts.view.backend() == Backend::Lockstep;
    (!lockstep).then(|| {
        "kube-scheduler preempts without a request; the deletion of its victims counts as Eviction".to_owned()
    })
}
