//! The view, indexed for decisions, and the one place where time is compared.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use lockstep_api::member::{Member, MemberSet, format_indexes};
use lockstep_api::node_agent::{Report, capabilities};
use lockstep_api::scheduling::Placement;
use lockstep_api::workload::{DomainStatus, GangStatus, Group, GroupStatus, Incident, TrainingWorkloadStatus};

use super::members::replaces_all;
use crate::build::training_container;
use crate::gangs::{Domain, Gang, gangs};
use crate::pods::{ContainerView, PodPhase, PodView};
use crate::ranks::completion_index;
use crate::view::{AgentInfo, WorkloadView};

/// Pod condition that announces a disruption (eviction, preemption, node shutdown).
pub(crate) const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// A view with its indexes.
pub(crate) struct Ctx<'a> {
    pub view: &'a WorkloadView,
    pub now: DateTime<Utc>,
    /// Gangs of the spec.
    pub gangs: Vec<Gang>,
    pods: BTreeMap<&'a Member, Vec<&'a PodView>>,
    reports: BTreeMap<&'a str, Vec<(&'a str, &'a Report)>>,
    arrivals: BTreeMap<&'a str, (&'a str, i64, &'a str)>,
    training: BTreeMap<&'a str, &'a str>,
    wake: Cell<Option<DateTime<Utc>>>,
}

/// Whether a gang has room.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Room<'a> {
    /// No placement.
    None,
    /// A placement that the gang has given back.
    Released,
    /// A placement.
    Held(&'a Placement),
}

impl<'a> Ctx<'a> {
    pub fn new(view: &'a WorkloadView, now: DateTime<Utc>) -> Self {
        let mut pods: BTreeMap<&Member, Vec<&PodView>> = BTreeMap::new();
        for pod in view.pods.iter().filter(|p| p.owner_uid == view.uid()) {
            if let Some(member) = &pod.identity.member {
                pods.entry(member).or_default().push(pod);
            }
        }
        for pods in pods.values_mut() {
            pods.sort_by_key(|p| (p.created_at, &p.uid));
        }
        let mut reports: BTreeMap<&str, Vec<(&str, &Report)>> = BTreeMap::new();
        let mut arrivals = BTreeMap::new();
        for (node, agent) in &view.agents {
            for r in &agent.status.reports {
                reports.entry(&r.pod_uid).or_default().push((node, r));
            }
            for a in agent.status.arrivals.iter().filter(|a| a.workload_uid == view.uid()) {
                for p in &a.pods {
                    arrivals.insert(p.pod_uid.as_str(), (node.as_str(), a.epoch, p.container_id.as_str()));
                }
            }
        }
        let groups = &view.spec().groups;
        let training =
            groups.iter().filter_map(|g| Some((g.name.as_str(), training_container(&g.template.0)?))).collect();
        Self { view, now, gangs: gangs(view.spec()), pods, reports, arrivals, training, wake: Cell::new(None) }
    }

    /// Whether a deadline has passed; if not, the pass is repeated then.
    pub fn due(&self, at: DateTime<Utc>) -> bool {
        if self.now >= at {
            return true;
        }
        self.wake.set(Some(self.wake.get().map_or(at, |w| w.min(at))));
        false
    }

    /// Time until the nearest deadline that was asked for and has not passed.
    pub fn requeue_after(&self) -> Option<Duration> {
        (self.wake.get()? - self.now).to_std().ok()
    }

    /// Pods of ours, by member.
    pub fn pods(&self) -> impl Iterator<Item = &'a PodView> {
        self.pods.values().flatten().copied()
    }

    /// Pods of a member, oldest first.
    pub fn pods_of(&self, member: &Member) -> &[&'a PodView] {
        self.pods.get(member).map_or(&[], Vec::as_slice)
    }

    /// The pod that stands for a member now: the newest that is not being replaced. Before all members ran for the first
    /// time a terminating pod is on its way out as well: nothing has happened yet that its deletion could interrupt.
    pub fn current(&self, domain: &DomainStatus, member: &Member) -> Option<&'a PodView> {
        let incident = domain.incident.as_ref();
        let starting = domain.incident.is_none() && domain.healthy_since.is_none();
        let old = |i: &Incident, p: &PodView| {
            // The ledger keeps them sorted.
            i.old_pods.binary_search(&p.uid).is_ok() || (replaces_all(i) && p.identity.epoch < i.epoch)
        };
        let replaced = |p: &PodView| incident.is_some_and(|i| old(i, p)) || (starting && p.terminating());
        self.pods_of(member).iter().rev().find(|p| !replaced(p)).copied()
    }

    /// Room of a gang.
    pub fn room(&self, gang: &GangStatus) -> Room<'a> {
        let placement = self.view.pod_groups.get(&gang.key).and_then(|g| g.status.as_ref()?.placement.as_ref());
        match placement {
            None => Room::None,
            Some(p) if gang.released.as_ref() == Some(&p.id) => Room::Released,
            Some(p) => Room::Held(p),
        }
    }

    /// The placement that a gang holds.
    pub fn placement(&self, ledger: &TrainingWorkloadStatus, gang: &Gang) -> Option<&'a Placement> {
        match self.room(ledger.gangs.iter().find(|g| g.key == gang.key)?) {
            Room::Held(placement) => Some(placement),
            Room::None | Room::Released => None,
        }
    }

    /// The gang of a key.
    pub fn gang(&self, key: &str) -> Option<&Gang> {
        self.gangs.iter().find(|g| g.key == key)
    }

    /// The gang that a domain belongs to, and the domain.
    pub fn domain(&self, key: &str) -> Option<(&Gang, &Domain)> {
        self.gangs.iter().find_map(|g| g.domains.iter().find(|d| d.key == key).map(|d| (g, d)))
    }

    /// Status of the training container of a member's pod.
    pub fn trainer<'p>(&self, member: &Member, pod: &'p PodView) -> Option<&'p ContainerView> {
        pod.containers.get(self.training(&member.group))
    }

    /// Name of the training container of a group.
    pub fn training(&self, group: &str) -> &'a str {
        self.training.get(group).copied().unwrap_or_default()
    }

    /// Accelerators of one member of a group: the limits of its containers.
    pub fn accelerators(&self, group: &str) -> i64 {
        let groups = &self.view.spec().groups;
        let Some(template) = groups.iter().find(|g| g.name == group).and_then(|g| g.template.0.spec.as_ref()) else {
            return 0;
        };
        let limits = template.containers.iter().filter_map(|c| c.resources.as_ref()?.limits.as_ref());
        let counted = limits.flat_map(|l| self.view.settings.accelerators.iter().filter_map(|name| l.get(name)));
        // Extended resources are whole numbers.
        counted.filter_map(|q| q.0.parse::<i64>().ok()).fold(0, i64::saturating_add)
    }

    /// Reports about a pod's training container, by the agent of the node that the pod is bound to.
    pub fn reports<'s>(&'s self, member: &Member, pod: &'s PodView) -> impl Iterator<Item = &'a Report> + 's {
        let container = self.training(&member.group);
        let all = self.reports.get(pod.uid.as_str()).into_iter().flatten();
        all.filter(move |(node, r)| pod.node.as_deref() == Some(node) && r.container == container).map(|(_, r)| *r)
    }

    /// Runtime id of the training container that has come to the epoch (or a later one), by the agent of its node.
    pub fn arrival(&self, pod: &PodView, epoch: i64) -> Option<&'a str> {
        let (node, at, container) = self.arrivals.get(pod.uid.as_str())?;
        (pod.node.as_deref() == Some(node) && *at >= epoch).then_some(container)
    }

    /// The agent of a node, if it is ready.
    pub fn agent(&self, node: &str) -> Option<&'a AgentInfo> {
        self.view.agents.get(node).map(AsRef::as_ref).filter(|a| a.ready)
    }

    /// Whether a node's agent can stop containers.
    pub fn can_stop(&self, node: &str) -> bool {
        self.agent(node).is_some_and(|a| a.status.capabilities.iter().any(|c| c == capabilities::STOP))
    }

    /// Whether the node is lost: deleted, out of service, or NotReady for `nodeLostSeconds`.
    pub fn lost(&self, node: &str) -> bool {
        let Some(info) = self.view.nodes.get(node) else { return true };
        let limit = chrono::TimeDelta::seconds(self.view.spec().failure_policy.node_lost_seconds);
        info.out_of_service || info.not_ready_since.is_some_and(|since| self.due(since + limit))
    }

    /// Whether a member's pod has ended with success. A pod that is being deleted or disrupted has been told to stop, and
    /// an exit with 0 after SIGTERM is no success.
    pub fn succeeded(&self, member: &Member, pod: &PodView) -> bool {
        let zero = self.trainer(member, pod).and_then(ContainerView::terminated).is_some_and(|t| t.exit_code == 0);
        let ended = zero || pod.phase == PodPhase::Succeeded;
        ended && !pod.terminating() && pod.condition(DISRUPTION_TARGET).is_none()
    }

    /// Whether a member's training container runs.
    pub fn running(&self, member: &Member, pod: &PodView) -> bool {
        pod.phase == PodPhase::Running && self.trainer(member, pod).is_some_and(ContainerView::running)
    }
}

/// Where each placed member is to run.
pub(crate) fn nodes(placement: &Placement) -> BTreeMap<Member, &str> {
    let mut out = BTreeMap::new();
    for n in &placement.nodes {
        // A placement that does not parse places nobody; the scheduler writes it anew.
        for member in MemberSet::parse(&n.members).unwrap_or_default() {
            out.insert(member, n.node.as_str());
        }
    }
    out
}

/// Writes the members that have succeeded into the ledger.
pub(crate) fn set_completed(groups: &[Group], status: &mut TrainingWorkloadStatus, members: &BTreeSet<Member>) {
    for group in groups {
        let text = indexes(group, members.iter().filter(|m| m.group == group.name));
        if !text.is_empty() || status.groups.iter().any(|s| s.name == group.name) {
            entry(status, &group.name).completed_indexes = text;
        }
    }
}

/// Numbers of members of a group, in the range format.
pub(super) fn indexes<'m>(group: &Group, members: impl Iterator<Item = &'m Member>) -> String {
    let mut indexes: Vec<i32> = members.map(|m| completion_index(group, m)).collect();
    indexes.sort_unstable();
    format_indexes(&indexes)
}

/// The ledger entry of a group, made when it is missing.
pub(super) fn entry<'l>(status: &'l mut TrainingWorkloadStatus, group: &str) -> &'l mut GroupStatus {
    let at = status.groups.iter().position(|s| s.name == group).unwrap_or_else(|| {
        status.groups.push(GroupStatus { name: group.to_owned(), ..GroupStatus::default() });
        status.groups.len() - 1
    });
    &mut status.groups[at]
}
