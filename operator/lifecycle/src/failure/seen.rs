//! Restart counts of training containers at the time of an order. Containers with a higher count
//! belong to the new attempt.

use chrono::SubsecRound;
use lockstep_api::member::Member;
use lockstep_api::node_agent::ReportKind;
use lockstep_api::workload::{Cause, CauseKind};

use super::detect::{RESTARTING_ALL, reported_failure};
use super::policy::verdict;
use crate::facts::Facts;
use crate::ledger::DomainLedger;
use crate::pods::{ContainerState, ContainerView, PodView, Termination};

/// Count of a container that has not started.
const NONE: i32 = -1;

/// The restart count of a member's last container of an older attempt.
///
/// If a container's failure restarts the domain, it is the count of that container, because later
/// containers are new. Otherwise it is the highest count from any source. A count that is too high
/// costs one more restart of the member. A count that is too low leaves it in the old attempt.
pub(crate) fn restarts_seen(facts: &Facts<'_>, domain: &DomainLedger, member: &Member) -> i32 {
    let Some(pod) = facts.current(domain, member) else {
        return NONE;
    };
    let trainer = facts.trainer(member, pod);
    let mut seen = trainer.map_or(NONE, shown);
    let (attempt, arrived) = facts
        .arrivals
        .last(pod)
        .unwrap_or((pod.identity.attempt, NONE));
    seen = seen.max(arrived);
    let mut failed = trainer.and_then(|container| recorded(domain, pod, container));
    for report in facts.reports(member, pod) {
        let failure = reported_failure(facts, member, pod, report);
        let alone = verdict(facts.spec(), &failure).action.affects_single_pod();
        let exited = report.kind == ReportKind::Exited && report.exit_code != 0;
        if exited && alone {
            // The kubelet starts the next container by itself.
            seen = seen.max(report.restarts.saturating_add(1));
        } else {
            seen = seen.max(report.restarts);
        }
        let since = report.attempt >= attempt && report.restarts >= arrived;
        if exited && !alone && since {
            failed = failed.max(Some(report.restarts));
        }
    }
    failed.unwrap_or(seen)
}

/// From pod status, because the agent's report may arrive after the order.
fn recorded(domain: &DomainLedger, pod: &PodView, container: &ContainerView) -> Option<i32> {
    let cause = &domain.incident.as_ref()?.cause;
    if cause.kind != CauseKind::ContainerExit || cause.pod != pod.name {
        return None;
    }
    let newest = shown(container);
    if container.terminated().is_some_and(|t| is_cause(t, cause)) {
        return Some(newest);
    }
    let last = container.last.as_ref()?;
    if let ContainerState::Waiting { .. } = container.state {
        return is_cause(last, cause).then_some(newest);
    }
    // A container removed by a restart of the whole pod has lost its code and time. Its successor
    // started after the failure by the node's clock, in whole seconds.
    let failed_at = cause.time.trunc_subsecs(0);
    let began_after = container.running_since().is_some_and(|at| at >= failed_at);
    let removed = last.reason == RESTARTING_ALL && began_after;
    (removed || is_cause(last, cause)).then_some(newest - 1)
}

fn is_cause(end: &Termination, cause: &Cause) -> bool {
    end.finished_at == Some(cause.time) && Some(end.exit_code) == cause.exit_code
}

/// Count of the newest started container in pod status.
fn shown(container: &ContainerView) -> i32 {
    match &container.state {
        _ if !container.started() => NONE,
        // The kubelet increments the count before it creates the container.
        ContainerState::Waiting { reason, .. } if reason == RESTARTING_ALL => {
            container.restart_count - 1
        }
        _ => container.restart_count,
    }
}
