use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use lockstep_api::workload::IncidentStage;

use crate::facts::Facts;
use crate::gangs::AssignedNodes;
use crate::ledger::{DomainLedger, GangLedger};
use crate::pods::{ContainerView, PodView};

/// True if the training container can be stopped and its kubelet then starts it again.
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

/// True if a pod on a silent node is kept: its member has no other node yet, while other members
/// have. The node may return before a replacement exists.
pub(crate) fn awaits_node(
    facts: &Facts<'_>,
    gang: &GangLedger,
    assigned: &AssignedNodes,
    member: &Member,
    pod: &PodView,
) -> bool {
    let silent = pod.node.as_deref().is_some_and(|node| facts.silent(node));
    let usable = |node: &NodeName| facts.usable(gang, node.as_str());
    silent
        && !pod.terminal()
        && !pod.terminating()
        && !assigned.get(member).is_some_and(usable)
        && assigned.values().any(usable)
}

/// True if the incident of a domain waits until members on silent nodes get other nodes or the
/// nodes return. The survivors run until then.
pub(crate) fn awaits_nodes<'m>(
    facts: &Facts<'_>,
    gang: &GangLedger,
    assigned: &AssignedNodes,
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

/// Running at the current attempt, or succeeded.
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

/// Restarts by the kubelet.
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
