//! The members of one domain as they stand.

use std::collections::BTreeSet;

use lockstep_api::member::{Member, MemberSet};
use lockstep_api::workload::{DomainStatus, FailureAction, Incident};

use super::context::Ctx;
use crate::pods::{ContainerView, PodView, bare_id};

/// Members whose pods an incident replaces.
pub(crate) fn replaced(incident: &Incident) -> MemberSet {
    // Written by us; if a hand has damaged it, nobody more is replaced on its account.
    MemberSet::parse(&incident.replace).unwrap_or_default()
}

/// Whether an incident replaces all pods that were made before it. They are known by their epoch.
pub(super) fn replaces_all(incident: &Incident) -> bool {
    incident.action == FailureAction::RecreateGang
}

/// Adds members to those that an incident replaces, with the pods that they have now.
pub(super) fn replace(ctx: &Ctx<'_>, incident: &mut Incident, members: impl IntoIterator<Item = Member>) {
    let mut set = replaced(incident);
    let mut old: BTreeSet<String> = std::mem::take(&mut incident.old_pods).into_iter().collect();
    for member in members {
        let listed = |p: &&&PodView| !replaces_all(incident) || p.identity.epoch >= incident.epoch;
        old.extend(ctx.pods_of(&member).iter().filter(listed).map(|p| p.uid.clone()));
        set.insert(member);
    }
    incident.replace = set.to_ranges();
    incident.old_pods = old.into_iter().collect();
}

/// Whether the incident concerns single pods only; the epoch of the domain then stays.
pub(crate) fn solo(incident: &Incident) -> bool {
    incident.action <= FailureAction::RestartPod
}

/// Whether the training container of a pod can be stopped and will be started again by its kubelet.
pub(super) fn restarts_in_place(ctx: &Ctx<'_>, member: &Member, pod: &PodView) -> bool {
    let Some(node) = pod.node.as_deref().or(pod.pinned.as_deref()) else { return false };
    let finished = ctx.trainer(member, pod).and_then(ContainerView::terminated).is_some_and(|t| t.exit_code == 0);
    !pod.terminal() && !pod.terminating() && !finished && !ctx.lost(node) && ctx.can_stop(node)
}

/// Whether all members are where they should be: their training containers run, or have succeeded, and belong to the
/// present epoch.
pub(super) fn all_up(ctx: &Ctx<'_>, domain: &DomainStatus, members: &[&Member]) -> bool {
    let incident = domain.incident.as_ref().filter(|i| !solo(i));
    let out = incident.map(replaced).unwrap_or_default();
    members.iter().all(|member| {
        let Some(pod) = ctx.current(domain, member) else { return false };
        let runs = ctx.running(member, pod) || ctx.succeeded(member, pod);
        // Pod status may lag behind the agent and still show the container of the old epoch.
        let shown = || ctx.trainer(member, pod).and_then(container_id).map(bare_id);
        let present = |i: &Incident| ctx.arrival(pod, i.epoch).is_some_and(|arrived| shown() == Some(arrived));
        runs && incident.is_none_or(|i| out.contains(member) || present(i))
    })
}

fn container_id(container: &ContainerView) -> Option<&str> {
    container.id.as_deref().or_else(|| container.terminated()?.id.as_deref())
}

/// Restarts that the kubelet has made of the training containers of the domain's present pods.
pub(super) fn restart_count<'m>(
    ctx: &Ctx<'_>,
    domain: &DomainStatus,
    members: impl IntoIterator<Item = &'m Member>,
) -> i64 {
    members
        .into_iter()
        .filter_map(|m| ctx.trainer(m, ctx.current(domain, m)?))
        .map(|c| i64::from(c.restart_count))
        .sum()
}
