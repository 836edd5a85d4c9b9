//! The members of one domain as they stand.

use lockstep_api::member::Member;
use lockstep_api::workload::IncidentStage;

use crate::facts::{AssignedNodes, Facts};
use crate::ledger::{DomainLedger, GangLedger};
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

/// Whether a pod on a silent node is kept, because its member has no other node yet and others of the gang have nodes.
/// The pod may run on, and its node may come back before there is a replacement.
pub(crate) fn awaits_node(
    facts: &Facts<'_>,
    gang: &GangLedger,
    assigned: &AssignedNodes<'_>,
    member: &Member,
    pod: &PodView,
) -> bool {
    let silent = pod.node.as_deref().is_some_and(|node| facts.silent(node));
    let usable = |node: &&str| facts.usable(gang, node);
    silent
        && !pod.terminal()
        && !pod.terminating()
        && !assigned.get(member).is_some_and(usable)
        && assigned.values().any(|node| usable(&node))
}

/// Whether the incident of a domain waits until its members on silent nodes have other nodes, or their nodes are
/// back. Until then the survivors run on.
pub(crate) fn awaits_nodes<'m>(
    facts: &Facts<'_>,
    gang: &GangLedger,
    assigned: &AssignedNodes<'_>,
    domain: &DomainLedger,
    members: impl IntoIterator<Item = &'m Member>,
) -> bool {
    let Some(incident) = domain.domain_incident() else {
        return false;
    };
    let mut replaced = members.into_iter().filter(|m| incident.replace.contains(m));
    incident.stage == IncidentStage::Decided
        && replaced.any(|member| {
            let mut pods = facts.pods_of(member).iter();
            pods.any(|pod| awaits_node(facts, gang, assigned, member, pod))
        })
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
