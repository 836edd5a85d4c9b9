//! The view of a workload, indexed for decisions.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use lockstep_api::condition::{find, is_true, types};
use lockstep_api::gangs::{Domain, Gang, gangs};
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::node_agent::{Report, capabilities};
use lockstep_api::restart_order::DomainOrder;
use lockstep_api::scheduling::{Placement, PodGroupStatus};
use lockstep_api::workload::{FailureAction, TrainingWorkloadSpec};

use crate::arrivals::Arrivals;
use crate::ledger::{DomainLedger, GangLedger, Ledger, OpenIncident};
use crate::nodes::{AgentInfo, NodeInfo};
use crate::objects::training::{restart_by_rule, training_container};
use crate::pods::{ContainerView, PodPhase, PodView, bare_id};
use crate::view::{RefusedRequest, Target, WorkloadView};
use crate::wake::{Due, Wake};

/// How long pods may be shown unready after their node has come back: the node controller has said so
/// of all of them, and the kubelet corrects it pod by pod.
const READINESS_LAGS: TimeDelta = TimeDelta::seconds(10);

/// The node of each member that a placement assigns.
pub(crate) type AssignedNodes<'a> = BTreeMap<Member, &'a str>;

/// A view with its indexes.
pub(crate) struct Facts<'a> {
    pub view: &'a WorkloadView,
    pub now: DateTime<Utc>,
    /// Gangs of the spec.
    pub gangs: Vec<Gang>,
    /// When time alone changes what nodes are taken for: lost, or able to say that their agent is gone.
    pub node_wake: Wake,
    pods: BTreeMap<&'a Member, Vec<&'a PodView>>,
    /// Pods of ours whose labels name no member any more.
    strays: Vec<&'a PodView>,
    reports: BTreeMap<&'a str, Vec<(&'a str, &'a Report)>>,
    /// What agents say of the way of pods to an attempt.
    pub arrivals: Arrivals<'a>,
    training: BTreeMap<&'a str, &'a str>,
    assigned: BTreeMap<&'a str, AssignedNodes<'a>>,
    nowhere: AssignedNodes<'a>,
    lost: BTreeSet<&'a str>,
    /// Agents that are not known to be gone, by node.
    agents: BTreeMap<&'a str, &'a AgentInfo>,
    /// Positions of gangs, and of domains in them, by key.
    gang_at: BTreeMap<String, usize>,
    domain_at: BTreeMap<String, (usize, usize)>,
    orders: BTreeMap<&'a str, &'a DomainOrder>,
    refusals: BTreeMap<&'a Target, Vec<&'a RefusedRequest>>,
}

/// How far the placement of a gang is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PlacementState<'a> {
    /// There is none.
    Unplaced,
    /// The gang has released it.
    Released,
    /// The gang is placed.
    Placed(&'a Placement),
}

impl<'a> Facts<'a> {
    pub fn new(view: &'a WorkloadView, now: DateTime<Utc>) -> Self {
        let (pods, strays) = pods_of_ours(view);
        let mut node_wake = Wake::NEVER;
        let mut lost = BTreeSet::new();
        let limit = TimeDelta::seconds(view.spec().failure_policy.node_lost_seconds);
        for (name, node) in &view.nodes {
            if is_lost(node, limit, now, &mut node_wake) {
                lost.insert(name.as_str());
            }
        }
        let mut agents = BTreeMap::new();
        for (name, agent) in &view.agents {
            let node = view.nodes.get(name);
            if agent.ready || node.is_some_and(|n| !shows_readiness(n, now, &mut node_wake)) {
                agents.insert(name.as_str(), agent.as_ref());
            }
        }
        let gangs = gangs(view.spec());
        let mut gang_at = BTreeMap::new();
        let mut domain_at = BTreeMap::new();
        for (g, gang) in gangs.iter().enumerate() {
            gang_at.insert(gang.key.clone(), g);
            for (d, domain) in gang.domains.iter().enumerate() {
                domain_at.insert(domain.key.clone(), (g, d));
            }
        }
        let mut refusals: BTreeMap<&Target, Vec<&RefusedRequest>> = BTreeMap::new();
        for refusal in &view.refusals {
            refusals.entry(&refusal.target).or_default().push(refusal);
        }
        let order = view.order.as_ref().filter(|o| o.owned);
        let orders = order.into_iter().flat_map(|o| &o.content.domains);
        Self {
            view,
            now,
            gangs,
            gang_at,
            domain_at,
            orders: orders.map(|o| (o.key.as_str(), o)).collect(),
            refusals,
            node_wake,
            pods,
            strays,
            reports: reports_by_pod(view),
            arrivals: Arrivals::new(view),
            training: training_containers(view.spec()),
            assigned: view
                .pod_groups
                .iter()
                .filter_map(|(key, g)| {
                    let placement = g.status.as_ref()?.placement.as_ref()?;
                    Some((key.as_str(), assigned_nodes(placement)))
                })
                .collect(),
            nowhere: AssignedNodes::new(),
            lost,
            agents,
        }
    }

    /// The workload's spec.
    pub fn spec(&self) -> &'a TrainingWorkloadSpec {
        self.view.spec()
    }

    /// A deadline.
    pub fn due(&self, at: DateTime<Utc>) -> Due {
        Due::of(at, self.now)
    }

    /// Pods of ours, by member; those that name none come last.
    pub fn pods(&self) -> impl Iterator<Item = &'a PodView> {
        let of_members = self.pods.values().flatten().copied();
        of_members.chain(self.strays.iter().copied())
    }

    /// Whether pods of ours are left whose labels name no member: they are deleted, and their names
    /// may be those of the pods to be made.
    pub fn has_strays(&self) -> bool {
        !self.strays.is_empty()
    }

    /// Pods of a member, oldest first.
    pub fn pods_of(&self, member: &Member) -> &[&'a PodView] {
        self.pods.get(member).map_or(&[], Vec::as_slice)
    }

    /// The pod that stands for a member now: the newest that is not being replaced. Before all
    /// members ran for the first time a terminating pod is on its way out as well: nothing has
    /// happened yet that its deletion could interrupt.
    pub fn current(&self, domain: &DomainLedger, member: &Member) -> Option<&'a PodView> {
        for pod in self.pods_of(member).iter().rev() {
            let replaced = match &domain.incident {
                Some(incident) => incident.replaces_pod(pod),
                None => domain.healthy_since.is_none() && pod.terminating(),
            };
            if !replaced {
                return Some(pod);
            }
        }
        None
    }

    /// The members of a gang, each with the pod that stands for it now, if there is one.
    pub fn current_pods<'f>(
        &'f self,
        ledger: &'f Ledger,
        gang: &'f Gang,
    ) -> impl Iterator<Item = (&'f Member, Option<&'a PodView>)> {
        gang.domains.iter().flat_map(move |domain| {
            let entry = ledger.domain(&domain.key);
            let members = domain.members.iter();
            members.map(move |m| (m, entry.and_then(|e| self.current(e, m))))
        })
    }

    /// The gang of a key.
    pub fn gang(&self, key: &str) -> Option<&Gang> {
        self.gangs.get(*self.gang_at.get(key)?)
    }

    /// The gang of a restart domain.
    pub fn gang_of(&self, domain: &str) -> Option<&Gang> {
        self.gangs.get(self.domain_at.get(domain)?.0)
    }

    /// The order that is out for a restart domain.
    pub fn order(&self, domain: &str) -> Option<&'a DomainOrder> {
        self.orders.get(domain).copied()
    }

    /// Whether an attempt of a domain was released at a barrier.
    pub fn is_barrier_open(&self, domain: &str, attempt: i64) -> bool {
        let order = self.order(domain);
        order.is_some_and(|o| o.released_attempt == attempt && !o.peers.is_empty())
    }

    /// Whether it was, and none of the domain's pods does without.
    pub fn is_past_barrier(&self, domain: &str, attempt: i64) -> bool {
        let members = self.domain(domain).map_or(&[][..], |d| &d.members);
        let mut pods = members.iter().flat_map(|m| self.pods_of(m));
        self.is_barrier_open(domain, attempt) && pods.all(|p| p.is_supervised())
    }

    /// Whether a member's pod is ready, and has been let go once. Of a container without a readiness
    /// probe the kubelet says so as soon as its supervisor runs.
    pub fn is_ready(&self, domain: &str, pod: &PodView) -> bool {
        let begun = |o: &DomainOrder| o.released_attempt >= pod.identity.attempt;
        pod.ready() && (!pod.is_supervised() || self.order(domain).is_some_and(begun))
    }

    /// Refusals of a request.
    pub fn refusals(&self, target: &Target) -> &[&'a RefusedRequest] {
        self.refusals.get(target).map_or(&[], Vec::as_slice)
    }

    /// The restart domain of a key.
    pub fn domain(&self, key: &str) -> Option<&Domain> {
        let (gang, at) = *self.domain_at.get(key)?;
        self.gangs.get(gang)?.domains.get(at)
    }

    /// Status of a gang's pod group.
    pub fn pod_group_status(&self, gang: &str) -> Option<&'a PodGroupStatus> {
        self.view.pod_groups.get(gang)?.status.as_ref()
    }

    /// How far the placement of a gang is.
    pub fn placement_state(&self, key: &str, gang: &GangLedger) -> PlacementState<'a> {
        let placement = self
            .pod_group_status(key)
            .and_then(|s| s.placement.as_ref());
        match placement {
            None => PlacementState::Unplaced,
            Some(p) if gang.released.as_ref() == Some(&p.id) => PlacementState::Released,
            Some(p) => PlacementState::Placed(p),
        }
    }

    /// The placement that a gang holds.
    pub fn placement(&self, ledger: &Ledger, key: &str) -> Option<&'a Placement> {
        match self.placement_state(key, ledger.gang(key)?) {
            PlacementState::Placed(placement) => Some(placement),
            PlacementState::Unplaced | PlacementState::Released => None,
        }
    }

    /// Where the placement of a gang, released or not, assigns its members.
    pub fn assigned_nodes(&self, key: &str) -> &AssignedNodes<'a> {
        self.assigned.get(key).unwrap_or(&self.nowhere)
    }

    /// Where members are while it does not matter.
    pub fn nowhere(&self) -> &AssignedNodes<'a> {
        &self.nowhere
    }

    /// Whether victims of the gang's own preemption still have to leave its placement.
    pub fn is_preempting(&self, key: &str, placement: &str) -> bool {
        self.pod_group_status(key)
            .and_then(|s| s.preemption.as_ref())
            .is_some_and(|p| p.placement == placement)
    }

    /// The message of the pod group's `DisruptionTarget`. It is about the placement that is there: the
    /// scheduler takes both back in one write.
    pub fn preemptor(&self, gang: &str) -> Option<String> {
        let status = self.pod_group_status(gang)?;
        status.placement.as_ref()?;
        let condition = find(&status.conditions, types::DISRUPTION_TARGET)?;
        let present = is_true(&status.conditions, types::DISRUPTION_TARGET);
        present.then(|| condition.message.clone())
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
        let Some(template) = self.template(group).and_then(|t| t.spec.as_ref()) else {
            return 0;
        };
        let of = |container| self.view.settings.accelerators_of(container);
        let containers = template.containers.iter();
        containers.map(of).fold(0, i64::saturating_add)
    }

    /// Reports about a pod's training container, by the agent of the node that the pod is bound to.
    pub fn reports<'s>(
        &'s self,
        member: &Member,
        pod: &'s PodView,
    ) -> impl Iterator<Item = &'a Report> + 's {
        let container = self.training(&member.group);
        self.pod_reports(pod)
            .filter(move |r| r.container == container)
    }

    /// Reports about the containers of a pod, by the agent of the node that the pod is bound to.
    pub fn pod_reports<'s>(&'s self, pod: &'s PodView) -> impl Iterator<Item = &'a Report> + 's {
        let all = self.reports.get(pod.uid.as_str()).into_iter().flatten();
        all.filter(move |(node, _)| pod.node.as_deref() == Some(node))
            .map(|(_, r)| *r)
    }

    /// Whether a ready agent reports about the containers of a pod.
    pub fn is_reported(&self, pod: &PodView) -> bool {
        let node = pod.node.as_deref();
        node.is_some_and(|n| self.agent(n).is_some())
    }

    /// The template of a group.
    pub fn template(&self, group: &str) -> Option<&'a PodTemplateSpec> {
        let groups = &self.view.spec().groups;
        let group = groups.iter().find(|g| g.name == group)?;
        Some(&group.template.0)
    }

    /// Runtime id of the training container that has come to the attempt (or a later one), by the
    /// agent of its node.
    pub fn arrival(&self, pod: &PodView, attempt: i64) -> Option<&'a str> {
        let (container, _) = self.arrivals.container(pod, attempt)?;
        Some(container)
    }

    /// Whether the training container that pod status shows has come to the attempt (or a later one), or
    /// its kubelet has started it after the one that had. Pod status may lag behind the agent and
    /// still show the container before.
    pub fn is_container_at(
        &self,
        member: &Member,
        pod: &PodView,
        attempt: i64,
        shown: &ContainerView,
    ) -> bool {
        let Some((arrived, restarts)) = self.arrivals.container(pod, attempt) else {
            return false;
        };
        if shown.runtime_id().map(bare_id) == Some(arrived) || shown.restart_count > restarts {
            return true;
        }
        // A kubelet on an empty disk counts anew. Pod status has whole seconds.
        let since = shown.running_since().map(|at| at + TimeDelta::seconds(1));
        let mut reports = self.reports(member, pod);
        reports.any(|r| r.container_id == arrived && since.is_some_and(|since| since > r.time))
    }

    /// Whether a member's pod is at the attempt (or a later one): it has come to it, and its container
    /// has not ended since.
    pub fn is_at(&self, member: &Member, pod: &PodView, attempt: i64) -> bool {
        let ended = |id| {
            let mut reports = self.reports(member, pod);
            reports.any(|r| !r.supervised && r.container_id == id)
        };
        let arrived = self.arrival(pod, attempt);
        arrived.is_some_and(|id| !pod.is_supervised() || !ended(id))
    }

    /// The agent of a node: one that is ready, or of which its node says nothing now.
    pub fn agent(&self, node: &str) -> Option<&'a AgentInfo> {
        self.agents.get(node).copied()
    }

    /// Whether a node's agent can stop containers.
    pub fn can_stop(&self, node: &str) -> bool {
        self.is_capable(node, capabilities::STOP)
    }

    /// Whether a node's agent is linked to the supervisors there.
    pub fn can_supervise(&self, node: &str) -> bool {
        self.is_capable(node, capabilities::SUPERVISE)
    }

    fn is_capable(&self, node: &str, capability: &str) -> bool {
        let agent = self.agent(node);
        agent.is_some_and(|a| a.status.capabilities.iter().any(|c| c == capability))
    }

    /// Whether the node is lost: deleted, out of service, or NotReady for `nodeLostSeconds`.
    pub fn lost(&self, node: &str) -> bool {
        !self.view.nodes.contains_key(node) || self.lost.contains(node)
    }

    /// From when on a pod that still has not ended is stuck: its grace period is long over, and its
    /// node answers and has answered for as long. None: the node does not answer.
    pub fn stuck_from(&self, pod: &PodView) -> Option<DateTime<Utc>> {
        let (end, node) = (pod.ends_at()?, pod.node.as_deref()?);
        let node = self.view.nodes.get(node)?;
        let answers = node.answers();
        // A node that was silent may only now learn that the pod is to end.
        let since = node.ready_since.map_or(end, |ready| ready.max(end));
        answers.then(|| since + self.view.settings.overdue)
    }

    /// Whether a pod has not ended although its grace period is long over and its node answers: a
    /// process that no signal ends, a mount that hangs, a foreign finalizer.
    pub fn is_stuck(&self, pod: &PodView, wake: &mut Wake) -> bool {
        let from = self.stuck_from(pod).filter(|_| !pod.terminal());
        from.is_some_and(|from| self.due(from).passed(wake))
    }

    /// Whether a pod was deleted by force and its object is kept by a finalizer: nobody waits for
    /// it any more.
    pub fn is_given_up(&self, pod: &PodView, wake: &mut Wake) -> bool {
        pod.deletion_grace == 0 && self.is_stuck(pod, wake)
    }

    /// Whether a member of the gang may be created on a node. Avoidances that are over have been
    /// removed in a stage before.
    pub fn usable(&self, gang: &GangLedger, node: &str) -> bool {
        !gang.avoid.contains_key(node) && !self.lost(node)
    }

    /// Whether a member's pod has ended with success. A pod that is being deleted or disrupted has
    /// been told to stop, and an exit with 0 after SIGTERM is no success.
    pub fn succeeded(&self, member: &Member, pod: &PodView) -> bool {
        let zero = self
            .trainer(member, pod)
            .and_then(ContainerView::terminated)
            .is_some_and(|t| t.exit_code == 0 && pod.phase != PodPhase::Failed)
            && self.after_success(&member.group).is_none();
        let ended = zero && !pod.restarts_all() || pod.phase == PodPhase::Succeeded;
        ended && !pod.terminating() && pod.condition(types::DISRUPTION_TARGET).is_none()
    }

    /// How the user's own restart rules start the training container of a group again after it has
    /// ended with 0, which is then no success but the end of one task (KEP-5307). None: they do not.
    pub fn after_success(&self, group: &str) -> Option<FailureAction> {
        let template = self.template(group)?;
        restart_by_rule(template, training_container(template)?, 0)
    }

    /// Whether a member's training container runs.
    pub fn running(&self, member: &Member, pod: &PodView) -> bool {
        pod.phase == PodPhase::Running
            && self
                .trainer(member, pod)
                .is_some_and(ContainerView::running)
    }
}

impl OpenIncident {
    /// Whether a pod is one of those that the incident replaces. With an action that replaces all
    /// pods they are known by their attempt, and not listed.
    pub fn replaces_pod(&self, pod: &PodView) -> bool {
        self.old_pods.contains(pod.uid.as_str()) || self.knows_by_attempt(pod)
    }

    /// Whether a pod is replaced because it was made for an attempt before the incident's.
    pub fn knows_by_attempt(&self, pod: &PodView) -> bool {
        self.action.replaces_pods() && pod.identity.attempt < self.attempt
    }
}

/// The node of each member. A placement that does not parse places no member; the scheduler
/// writes it again.
fn assigned_nodes(placement: &Placement) -> AssignedNodes<'_> {
    let mut out = AssignedNodes::new();
    for n in &placement.nodes {
        for member in MemberSet::parse(&n.members).unwrap_or_default() {
            out.insert(member, n.node.as_str());
        }
    }
    out
}

fn is_lost(node: &NodeInfo, limit: TimeDelta, now: DateTime<Utc>, wake: &mut Wake) -> bool {
    let not_ready = node.not_ready_since;
    node.out_of_service || not_ready.is_some_and(|at| Due::of(at + limit, now).passed(wake))
}

/// Whether what is shown of the readiness of a node's pods comes from the node itself.
fn shows_readiness(node: &NodeInfo, now: DateTime<Utc>, wake: &mut Wake) -> bool {
    let settled = node.ready_since.map(|at| at + READINESS_LAGS);
    node.answers() && settled.is_none_or(|at| Due::of(at, now).passed(wake))
}

/// Pods of ours by member, oldest first, and those whose labels name none.
fn pods_of_ours(view: &WorkloadView) -> (BTreeMap<&Member, Vec<&PodView>>, Vec<&PodView>) {
    let mut by_member: BTreeMap<&Member, Vec<&PodView>> = BTreeMap::new();
    let mut strays = Vec::new();
    for pod in view.pods.iter().filter(|p| p.owner_uid == view.uid()) {
        match &pod.identity.member {
            Some(member) => by_member.entry(member).or_default().push(pod),
            None => strays.push(&**pod),
        }
    }
    for pods in by_member.values_mut() {
        pods.sort_by_key(|p| (p.created_at, &p.uid));
    }
    (by_member, strays)
}

fn reports_by_pod(view: &WorkloadView) -> BTreeMap<&str, Vec<(&str, &Report)>> {
    let mut out: BTreeMap<&str, Vec<(&str, &Report)>> = BTreeMap::new();
    for (node, agent) in &view.agents {
        for report in &agent.status.reports {
            out.entry(&report.pod_uid).or_default().push((node, report));
        }
    }
    out
}

fn training_containers(spec: &TrainingWorkloadSpec) -> BTreeMap<&str, &str> {
    spec.groups
        .iter()
        .filter_map(|g| Some((g.name.as_str(), training_container(&g.template.0)?)))
        .collect()
}
