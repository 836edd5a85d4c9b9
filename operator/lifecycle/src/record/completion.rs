//! Stage 02: members that have succeeded, and the end of the workload.

use lockstep_api::condition::reasons;
use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::words::span;
use lockstep_api::workload::{OnTimeout, SuccessOperator};

use crate::checkpoints::{deadline_id, has_finished};
use crate::facts::Facts;
use crate::failure::domain::DomainScope;
use crate::ledger::{DomainLedger, Ledger, Outcome};
use crate::waiting::scheduling_timed_out;
use crate::wake::Wake;

pub(super) fn record_completions(facts: &Facts<'_>, ledger: &mut Ledger) -> Wake {
    latch(facts, ledger);
    let mut wake = Wake::NEVER;
    if let Some((outcome, reason, message)) = end(facts, ledger, &mut wake) {
        ledger.finish(facts, outcome, reason, message);
    }
    wake
}

/// Completion survives the garbage collection of pods. During an incident, no completion is
/// recorded, because the exited container can belong to the old attempt. A replacement keeps the
/// attempt.
fn latch(facts: &Facts<'_>, ledger: &mut Ledger) {
    for gang in &facts.gangs {
        if facts.placement(ledger, &gang.key).is_none() {
            continue;
        }
        for domain in &gang.domains {
            let Some(entry) = ledger.domains.get(domain.key.as_str()) else {
                continue;
            };
            if entry.incident.is_some() {
                continue;
            }
            let mut known = None;
            for member in &domain.members {
                let pod = facts.current(entry, member);
                let is_new = !ledger.completed.contains(member);
                let Some(pod) = pod.filter(|p| is_new && facts.succeeded(member, p)) else {
                    continue;
                };
                // An end that answers a request for a checkpoint is no success, unless training is done.
                let end = facts.observe(member, pod).end_at(entry.attempt);
                let at = end.map_or(facts.now, |(_, at)| at);
                let replies = entry.request_to_end(facts, &domain.key, at).is_some();
                let finished = || all_finished(facts, ledger, gang, domain, entry);
                if !replies || *known.get_or_insert_with(finished) {
                    ledger.completed.insert(member.clone());
                }
            }
        }
    }
}

/// True if the whole training of a domain has finished.
fn all_finished(
    facts: &Facts<'_>,
    ledger: &Ledger,
    gang: &Gang,
    domain: &Domain,
    entry: &DomainLedger,
) -> bool {
    let membership = ledger.membership(facts.spec());
    let scope = DomainScope::placed(facts, ledger, &membership, gang, domain);
    has_finished(facts, ledger, entry, scope.all.into_iter())
}

fn end(
    facts: &Facts<'_>,
    ledger: &Ledger,
    wake: &mut Wake,
) -> Option<(Outcome, &'static str, String)> {
    let spec = facts.spec();
    if is_success(facts, ledger) {
        let message = match spec.success_policy.operator {
            SuccessOperator::All => "all groups selected by successPolicy succeeded",
            SuccessOperator::Any => "a group selected by successPolicy succeeded",
        };
        return Some((Outcome::Complete, reasons::SUCCESS_POLICY, message.into()));
    }
    if let (Some(limit), Some(deadline)) =
        (spec.active_deadline_seconds, ledger.active_deadline(spec))
    {
        let answered = ledger.has_reply(&deadline_id(deadline));
        if !ledger.awaits_reply() && answered || facts.due(deadline).passed(wake) {
            let message = format!(
                "not complete within {} (activeDeadlineSeconds)",
                span(limit)
            );
            return Some((Outcome::Failed, reasons::DEADLINE_EXCEEDED, message));
        }
    }
    match spec.scheduling.on_timeout {
        OnTimeout::Fail if scheduling_timed_out(facts, ledger, wake) => {
            let limit = spec.scheduling.timeout_seconds;
            let message = format!(
                "not scheduled within {} (scheduling.timeoutSeconds)",
                span(limit)
            );
            Some((Outcome::Failed, reasons::SCHEDULING_TIMEOUT, message))
        }
        OnTimeout::Fail | OnTimeout::Wait => None,
    }
}

/// Groups without running members are ignored.
fn is_success(facts: &Facts<'_>, ledger: &Ledger) -> bool {
    let policy = &facts.spec().success_policy;
    let membership = ledger.membership(facts.spec());
    let mut results = Vec::new();
    for group in &facts.spec().groups {
        let selected = policy.groups.is_empty() || policy.groups.contains(&group.name);
        if selected && membership.size_of(&group.name) > 0 {
            results.push(membership.complete(&group.name, &ledger.completed));
        }
    }
    match policy.operator {
        SuccessOperator::All => !results.is_empty() && results.iter().all(|done| *done),
        SuccessOperator::Any => results.iter().any(|done| *done),
    }
}
