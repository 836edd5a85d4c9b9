//! One gang within a cycle: what was read of it, and what becomes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::condition::{Condition, is_true, types};
use lockstep_api::gangs::Domain;
use lockstep_api::ids::NodeName;
use lockstep_api::key::Key;
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::names::short_hash;
use lockstep_api::scheduling::{Backfill, NodePlacement, ObservedSpec, Placement, PodGroupStatus};
use lockstep_api::workload::TopologyScope;
use lockstep_model::volumes::MissingVolume;
use lockstep_model::{Assignments, GangPhase, Occupant, Pod};

use crate::decision::Decision;
use crate::growth::{MembersToPlace, Replacement};
use crate::input::{GangInput, TemplateInput};
use crate::member_pods::{FullyBound, GangPods};
use crate::pace::LimitReached;
use crate::pending::Pending;
use crate::status_to_be::StatusToBe;
use crate::waits::Moves;

/// One gang within a cycle.
#[derive(Clone, Debug)]
pub struct GangState {
    /// What was read of it.
    pub input: Arc<GangInput>,
    /// Pods of its members, of the controlling workload by owner UID.
    pub(crate) pods: GangPods,
    /// Nodes that its workload keeps it away from now.
    pub avoided: BTreeSet<String>,
    /// Which members are to be placed.
    pub to_place: MembersToPlace,
    /// The nodes of its members, while it has a placement: as read at first, as decided in the end.
    pub assigned: Option<Arc<Assignments>>,
    /// What members hold whose pods do not yet, with the nodes for which it was looked up.
    pub(crate) reserved: Option<(Arc<Assignments>, Arc<[Occupant]>)>,
    /// By when it has to have ended, where it runs on nodes that are reserved for others.
    pub backfill: Option<Backfill>,
    /// The status as it is to be.
    pub status: StatusToBe,
    /// The gang that it is preempted for, and the message of the condition DisruptionTarget that it is
    /// to get.
    pub preempted: Option<(Key, String)>,
    /// Why it waits.
    pub pending: Option<Pending>,
    /// That the victims of its intent wait for the limit of evictions.
    pub(crate) paced: Option<LimitReached>,
    /// What the queue has decided for it.
    pub decision: Decision,
}

/// The members that a gang requests, and how many of them it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestedMembers {
    /// By position of the group in the workload's spec; groups without requested members are left
    /// out.
    pub by_group: Vec<(usize, Vec<Member>)>,
    /// How many of them the gang needs.
    pub needed: u32,
    /// Whether members that have finished are among them. Under replica scope all are requested:
    /// the engine knows replicas of one size.
    pub all: bool,
}

impl GangState {
    /// The gang at the beginning of a cycle, with its pods.
    pub(crate) fn new(input: Arc<GangInput>, pods: GangPods, now: DateTime<Utc>) -> Self {
        let placed = input.group.status.placement.as_ref();
        let avoid = input.workload.avoid.iter().filter(|a| a.until > now);
        Self {
            pods,
            avoided: avoid.map(|a| a.node.clone()).collect(),
            to_place: MembersToPlace::default(),
            assigned: input.group.assigned.clone(),
            reserved: None,
            backfill: placed.and_then(|p| p.backfill.clone()),
            status: StatusToBe::read(&input),
            preempted: None,
            pending: None,
            paced: None,
            decision: Decision::None,
            input,
        }
    }

    /// UID of the pod group.
    pub fn uid(&self) -> &str {
        self.input.group.uid.as_str()
    }

    /// Whether it may have or get capacity.
    pub fn phase(&self) -> GangPhase {
        self.input.phase()
    }

    /// Priority of the gang.
    pub fn priority(&self) -> i32 {
        self.input.group.priority
    }

    /// Members that need no capacity any more.
    pub fn finished(&self) -> &BTreeSet<Member> {
        &self.input.workload.members.finished
    }

    /// All members that have not finished.
    pub fn unfinished(&self) -> impl Iterator<Item = &Member> {
        let finished = self.finished();
        self.input
            .gang
            .members()
            .filter(move |m| !finished.contains(*m))
    }

    /// The placement as a new decision: for a gang whose nodes are no longer those that were read.
    pub fn to_placement(&self, now: DateTime<Utc>) -> Option<Placement> {
        let assigned = self.assigned.as_ref()?;
        Some(Placement {
            backfill: self.backfill.clone(),
            ..new_placement(self.uid(), assigned, now)
        })
    }

    /// Whether the nodes are those that were read.
    pub fn unmoved(&self) -> bool {
        match (&self.input.group.assigned, &self.assigned) {
            (None, None) => true,
            // The content is compared only where the cycle has touched it.
            (Some(read), Some(now)) => Arc::ptr_eq(read, now) || read == now,
            _ => false,
        }
    }

    /// The nodes that it leaves and those that it gets.
    pub(crate) fn moves(&self) -> Moves<'_> {
        let (read, now) = (
            self.input.group.assigned.as_deref(),
            self.assigned.as_deref(),
        );
        Moves {
            gives_up: nodes_without(read, now),
            gains: nodes_without(now, read),
        }
    }

    /// Whether it has the nodes that it had then.
    pub(crate) fn holds_as(&self, before: Option<&Arc<Assignments>>) -> bool {
        match (before, &self.assigned) {
            (None, None) => true,
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            _ => false,
        }
    }

    /// Members with their nodes.
    pub fn assigned_members(&self) -> impl Iterator<Item = (&Member, &NodeName)> {
        self.assigned.iter().flat_map(|a| a.iter())
    }

    /// Members with their nodes, without those that have finished.
    pub fn unfinished_assigned(&self) -> impl Iterator<Item = (&Member, &NodeName)> {
        self.assigned_members()
            .filter(|(m, _)| !self.finished().contains(*m))
    }

    /// Notes by when the gang has to have ended, with a new placement. What it has promised for nodes
    /// that it keeps still holds.
    pub(crate) fn promise(&mut self, new: Option<Backfill>) {
        let kept = self.backfill.take().filter(|_| self.assigned.is_some());
        self.backfill = match (kept, new) {
            (Some(kept), Some(new)) => {
                let holders = kept.reserved_for.into_iter().chain(new.reserved_for);
                Some(Backfill {
                    ends_by: kept.ends_by.min(new.ends_by),
                    reserved_for: holders.collect::<BTreeSet<_>>().into_iter().collect(),
                })
            }
            (kept, new) => kept.or(new),
        };
    }

    /// UIDs of the pod groups to which it has promised to end sooner than it will: its deadline was
    /// raised since.
    pub(crate) fn overstays(&self) -> &[String] {
        let ends = self.input.workload.ends;
        match &self.backfill {
            Some(promise) if ends.is_none_or(|end| end > promise.ends_by) => &promise.reserved_for,
            _ => &[],
        }
    }

    /// Whether a condition says that it is being preempted.
    pub fn disrupted(&self) -> bool {
        is_true(&self.status.conditions, types::DISRUPTION_TARGET)
    }

    /// All pods of the gang, in the order of their members.
    pub fn all_pods(&self) -> std::slice::Iter<'_, Arc<Pod>> {
        self.pods.all.iter()
    }

    /// The pods of a member.
    pub(crate) fn pods_of(&self, member: &Member) -> &[Arc<Pod>] {
        let pods = self.pods.by_member.get(member);
        pods.map_or(&[], Vec::as_slice)
    }

    /// What all members have in common that have one pod each, on the nodes that the gang has now.
    pub(crate) fn fully_bound(&self) -> Option<&FullyBound> {
        let (bound, assigned) = (self.pods.fully_bound.as_deref()?, self.assigned.as_ref()?);
        bound.is_of(assigned).then_some(bound)
    }

    /// The pod of a member that takes capacity on a node.
    pub fn pod_at(&self, member: &Member, node: &str) -> Option<&Arc<Pod>> {
        let mut pods = self.pods_of(member).iter();
        pods.find(|p| p.holds() == Some(node))
    }

    /// Pods that wait for other nodes than their members have: they go anyway.
    pub(crate) fn stray_pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let unbound = self.pods.unbound.iter();
        unbound.filter(|pod| !self.on_assigned_node(pod))
    }

    /// Whether a pod is on, or waits for, the node of its member.
    pub fn on_assigned_node(&self, pod: &Pod) -> bool {
        let member = pod.member.as_ref();
        let node = member.and_then(|m| self.assigned.as_ref()?.get(m));
        node.is_some() && node.map(NodeName::as_str) == pod.holds()
    }

    /// Whether a member's pod is bound to its node and not about to end.
    pub fn bound(&self, member: &Member, node: &NodeName) -> bool {
        let mut pods = self.pods_of(member).iter();
        pods.any(|p| p.alive() && p.bound.as_ref() == Some(node))
    }

    /// Members with a node whose pods are not bound yet.
    pub fn unbound(&self) -> Assignments {
        if self.fully_bound().is_some() {
            return Assignments::new();
        }
        self.unfinished_assigned()
            .filter(|(m, n)| !self.bound(m, n))
            .map(|(m, n)| (m.clone(), n.clone()))
            .collect()
    }

    /// The pod that waits for its member's node.
    pub fn waiting_pod(&self, member: &Member, node: &NodeName) -> Option<&Arc<Pod>> {
        let mut pods = self.pods_of(member).iter();
        pods.find(|p| p.alive() && p.pinned.as_ref() == Some(node))
    }

    /// Members that should have a node.
    pub fn wanted(&self) -> impl Iterator<Item = &Member> {
        self.unfinished().filter(|m| self.to_place.contains(m))
    }

    /// Members without which the gang is useless, less those that have finished.
    pub fn min_count(&self) -> u32 {
        let gang = &self.input.gang;
        let finished = gang.size() - self.unfinished().count();
        (gang.min_count.max(0) as usize).saturating_sub(finished) as u32
    }

    /// A claim for a volume, a volume or a storage class that members miss which are to be placed.
    pub(crate) fn missing_volume(&self) -> Option<&MissingVolume> {
        self.needed_templates()
            .find_map(|t| t.storage.missing.first())
    }

    /// What kube-scheduler asks of a node for its members that we do not know.
    pub(crate) fn not_modelled(&self) -> Option<&str> {
        self.needed_templates()
            .find_map(|t| t.not_modelled.as_deref())
    }

    /// Claims of its members that are to be placed that one pod at a time may mount.
    pub(crate) fn one_pod_claims(&self) -> impl Iterator<Item = &str> {
        let templates = self.needed_templates();
        templates.flat_map(|t| t.storage.one_pod.iter().map(String::as_str))
    }

    /// Why it is not known what the API server makes of pods of members that are to be placed.
    pub(crate) fn not_admitted(&self) -> Option<&str> {
        self.needed_templates()
            .find_map(|t| t.not_admitted.as_deref())
    }

    /// Templates of members that are to be placed, or wait for their victims, and have not finished.
    fn needed_templates(&self) -> impl Iterator<Item = &TemplateInput> {
        let templates = self.input.workload.templates.iter();
        let preempts = self.status.preemption.is_some();
        let placed = self.assigned.as_ref().filter(|_| preempts);
        templates.filter(move |t| {
            let asks = !t.storage.missing.is_empty()
                || !t.storage.one_pod.is_empty()
                || t.not_modelled.is_some()
                || t.not_admitted.is_some();
            let concerned = |m: &&Member| placed.is_none_or(|placed| placed.contains_key(*m));
            let mut members = self.wanted().filter(concerned);
            asks && members.any(|m| m.group == t.group)
        })
    }

    /// The members that it requests.
    pub(crate) fn requested_members(&self) -> RequestedMembers {
        let topology = self.input.group.topology.as_ref();
        let all = topology.is_some_and(|t| t.scope == TopologyScope::Replica);
        let (finished, gang) = (self.finished(), &self.input.gang);
        let requested: Vec<&Member> = gang
            .members()
            .filter(|m| all || (self.to_place.contains(m) && !finished.contains(*m)))
            .collect();
        let templates = self.input.workload.templates.iter().enumerate();
        let by_group = templates
            .map(|(at, template)| (at, members_of(&requested, &template.group)))
            .filter(|(_, members)| !members.is_empty())
            .collect();
        let placed_before = gang
            .members()
            .filter(|m| !all && self.to_place.contains(m) && finished.contains(*m))
            .count();
        let min_count = usize::try_from(gang.min_count).unwrap_or_default();
        RequestedMembers {
            by_group,
            needed: min_count.saturating_sub(placed_before) as u32,
            all,
        }
    }

    /// Whether every member that has not finished is bound to its node.
    pub fn every_member_bound(&self) -> bool {
        self.all_bound(self.unfinished().count())
    }

    /// Whether the members that have a node are bound to it, and are enough to run. Members of a
    /// basic group are on their own, so none of them may be missing.
    pub fn enough_bound(&self) -> bool {
        if self.input.gang.basic {
            self.every_member_bound()
        } else {
            self.all_bound(self.min_count() as usize)
        }
    }

    /// Whether all restart domains with placed members run, and the last of them began after this time.
    pub fn began_to_run_after(&self, time: DateTime<Utc>) -> bool {
        let placed: BTreeSet<&Member> = self.unfinished_assigned().map(|(m, _)| m).collect();
        let ledger = &self.input.workload.members.domains;
        let runs = |domain: &Domain| {
            let mut known = ledger.iter().filter(|l| l.key == domain.key);
            known.any(|l| l.healthy_since.is_some())
        };
        let mut domains = self.input.gang.domains.iter();
        self.input.resumed() >= Some(time)
            && domains.all(|d| runs(d) || !d.members.iter().any(|m| placed.contains(m)))
    }

    fn all_bound(&self, least: usize) -> bool {
        let placed = self.unfinished_assigned().count();
        placed > 0 && placed >= least && self.unbound().is_empty()
    }

    /// The spec as it is now.
    pub fn observed_spec(&self) -> ObservedSpec {
        ObservedSpec {
            generation: self.input.group.generation,
            workload_generation: self.input.workload.generation,
        }
    }

    /// Whether an incident replaces this pod of the member.
    pub fn replaced(&self, member: &Member, pod: &Pod) -> bool {
        let domains = &self.input.workload.members.domains;
        let mut incidents = domains.iter().filter_map(|d| d.incident.as_ref());
        incidents.any(|Replacement { members, old_pods }| {
            members.contains(member) && old_pods.contains(pod.uid.as_str())
        })
    }

    /// Whether the gang has run, or an incident is being handled: its nodes are then kept for it.
    pub fn under_way(&self) -> bool {
        let mut domains = self.input.workload.members.domains.iter();
        domains.any(|d| d.incident.is_some() || d.healthy_since.is_some())
    }

    /// Nodes that the gang may not be put on now.
    pub fn excluded(&self) -> BTreeSet<&str> {
        let refusing = self.status.excluded_nodes.iter();
        refusing
            .map(|e| e.node.as_str())
            .chain(self.avoided.iter().map(String::as_str))
            .collect()
    }

    /// Whether it holds nothing and has no history that matters to where it may go: pods, nodes,
    /// refusals, constraints that only kube-scheduler knows.
    pub(crate) fn only_waits(&self) -> bool {
        let status = &self.status;
        self.assigned.is_none()
            && self.pods.all.is_empty()
            && self.avoided.is_empty()
            && self.input.workload.avoid.is_empty()
            && status.preemption.is_none()
            && status.excluded_nodes.is_empty()
            && status.refusal.is_none()
            && status.last_preemption.is_none()
            && self.not_modelled().is_none()
            && self.one_pod_claims().next().is_none()
            && self.not_admitted().is_none()
    }

    /// Whether a search for victims finds the same in both, as far as they are in its way: they
    /// differ at most in versions, words and what would be lost, and in pods, which are compared
    /// with the cluster.
    pub(crate) fn searched_alike(&self, other: &Self) -> bool {
        let status = &self.status;
        self.input.alike(&other.input)
            && self.avoided == other.avoided
            && self.to_place == other.to_place
            && self.assigned == other.assigned
            && self.backfill == other.backfill
            && self.preempted == other.preempted
            && (*status == other.status || without_words(status) == without_words(&other.status))
    }
}

/// Those of the members that are of a group.
fn members_of(members: &[&Member], group: &str) -> Vec<Member> {
    let of_group = members.iter().filter(|m| m.group == group);
    of_group.map(|m| (*m).clone()).collect()
}

/// Nodes on which the one has members that the other does not have there.
fn nodes_without<'a>(
    assigned: Option<&'a Assignments>,
    other: Option<&Assignments>,
) -> BTreeSet<&'a str> {
    let there = |member: &Member, node: &NodeName| other.and_then(|o| o.get(member)) == Some(node);
    let members = assigned.into_iter().flatten();
    members
        .filter(|(member, node)| !there(member, node))
        .map(|(_, node)| node.as_str())
        .collect()
}

/// A status without what only people read.
pub(crate) fn without_words(status: &PodGroupStatus) -> PodGroupStatus {
    let conditions = status.conditions.iter().map(|c| Condition {
        message: String::new(),
        ..c.clone()
    });
    PodGroupStatus {
        conditions: conditions.collect(),
        ..status.clone()
    }
}

/// The nodes as a decision of this moment. Another decision of the same gang has another id.
pub(crate) fn new_placement(
    group_uid: &str,
    assigned: &Assignments,
    now: DateTime<Utc>,
) -> Placement {
    let mut by_node: BTreeMap<&str, MemberSet> = BTreeMap::new();
    for (member, node) in assigned {
        by_node
            .entry(node.as_str())
            .or_default()
            .insert(member.clone());
    }
    let nodes: Vec<NodePlacement> = by_node
        .into_iter()
        .map(|(node, members)| NodePlacement {
            node: node.to_owned(),
            members: members.to_ranges(),
        })
        .collect();
    let mut parts = vec![group_uid.to_owned(), now.timestamp_micros().to_string()];
    for on_node in &nodes {
        parts.push(on_node.node.clone());
        parts.extend(on_node.members.iter().cloned());
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    Placement {
        id: short_hash(&parts),
        decided_at: now,
        members: assigned.len() as i32,
        nodes,
        backfill: None,
    }
}
