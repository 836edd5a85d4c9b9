//! The members of one domain as they stand.

use lockstep_api::member::Member;

use crate::facts::Facts;
use crate::ledger::DomainLedger;
use crate::pods::{ContainerView, PodView};

/// Whether the training container of a pod can be stopped and will be started again by its kubelet.
pub(crate) fn restarts_in_place(facts: &Facts<'_>, member: &Member, pod: &PodView) -> bool {
    let Some(node) = pod.place() else {
        return false;
    };
    let finished = facts
        .trainer(member, pod)
        .and_then(ContainerView::terminated)
        .is_some_and(|t| t.exit_code == 0);
    !pod.terminal() && !pod.terminating() && !finished && !facts.lost(node) && facts.can_stop(node)
}

/// Whether all members are where they should be: their training containers run, or have succeeded,
/// and belong to the present attempt.
pub(crate) fn all_up(facts: &Facts<'_>, domain: &DomainLedger, members: &[&Member]) -> bool {
    members.iter().all(|member| is_up(facts, domain, member))
}

fn is_up(facts: &Facts<'_>, domain: &DomainLedger, member: &Member) -> bool {
    let Some(pod) = facts.current(domain, member) else {
        return false;
    };
    if !facts.running(member, pod) && !facts.succeeded(member, pod) {
        return false;
    }
    let Some(incident) = domain.domain_incident() else {
        return true;
    };
    if incident.replace.contains(member) {
        return true;
    }
    let shown = facts.trainer(member, pod);
    shown.is_some_and(|c| facts.is_container_at(member, pod, incident.attempt, c))
}

/// Restarts that the kubelet has made of the training containers of the domain's present pods.
pub(crate) fn restart_count<'m>(
    facts: &Facts<'_>,
    domain: &DomainLedger,
    members: impl IntoIterator<Item = &'m Member>,
) -> i64 {
    members
        .into_iter()
        .filter_map(|m| facts.trainer(m, facts.current(domain, m)?))
        .map(|c| i64::from(c.restart_count))
        .sum()
}
