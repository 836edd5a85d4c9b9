//! How often the training container of a member had been restarted when an order is decided: what
//! has more restarts then belongs to the new attempt, the rest to older ones.

use lockstep_api::member::Member;
use lockstep_api::node_agent::ReportKind;
use lockstep_api::workload::CauseKind;

use super::detect::{RESTARTING_ALL, reported_failure};
use super::policy::verdict;
use crate::facts::Facts;
use crate::ledger::DomainLedger;
use crate::pods::{ContainerState, ContainerView};

/// Of a container that has not started.
const NONE: i32 = -1;

/// The number of the last container of a member that belongs to an older attempt.
///
/// That is the one whose failure restarts the domain, where there is one: what the kubelet has made
/// of it since is new. Else it is the highest that anybody has told of. Too high costs one more
/// restart of that member, too low would leave it in the old attempt.
pub(crate) fn restarts_seen(facts: &Facts<'_>, domain: &DomainLedger, member: &Member) -> i32 {
    let Some(pod) = facts.current(domain, member) else {
        return NONE;
    };
    let mut seen = facts.trainer(member, pod).map_or(NONE, shown);
    let (attempt, arrived) = facts
        .last_arrival(pod)
        .unwrap_or((pod.identity.attempt, NONE));
    seen = seen.max(arrived);
    // A process that takes over finds what has arrived since; the failure stays the one recorded.
    let cause = domain.incident.as_ref().map(|i| &i.cause);
    let recorded = cause.filter(|c| c.kind == CauseKind::ContainerExit && c.pod == pod.name);
    let mut failed: Option<i32> = None;
    for report in facts.reports(member, pod) {
        let failure = reported_failure(facts, member, pod, report);
        let alone = verdict(facts.spec(), &failure).action.affects_single_pod();
        let exited = report.kind == ReportKind::Exited && report.exit_code != 0;
        if exited && alone {
            // The kubelet starts, or has started, another one.
            seen = seen.max(report.restarts.saturating_add(1));
        } else {
            seen = seen.max(report.restarts);
        }
        let since = report.attempt >= attempt && report.restarts >= arrived;
        let opened = recorded.is_some() && report.attempt == domain.attempt - 1;
        if exited && !alone && (since || opened) {
            failed = failed.max(Some(report.restarts));
        }
    }
    failed.unwrap_or(seen)
}

/// The number of the newest container that has started, as pod status shows it.
fn shown(container: &ContainerView) -> i32 {
    match &container.state {
        _ if !container.started() => NONE,
        // The count is raised when the restart begins, before the container is made.
        ContainerState::Waiting { reason, .. } if reason == RESTARTING_ALL => {
            container.restart_count - 1
        }
        _ => container.restart_count,
    }
}
