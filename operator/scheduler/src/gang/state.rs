use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::condition::{Condition, is_true, types};
use lockstep_api::gangs::{Assignments, Domain};
use lockstep_api::ids::NodeName;
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::names::short_hash;
use lockstep_api::scheduling::{
    Backfill, MoveTarget, NodeDemand, NodePlacement, ObservedSpec, Placement, PodGroupStatus,
};
use lockstep_model::volumes::MissingVolume;
use lockstep_model::{Occupant, Pod};

use crate::context::Context;
use crate::gang::decision::{Decision, PreemptedGang};
use crate::gang::member_pods::{FullyBound, GangPods};
use crate::gang::moves::{MoveSearch, permitted_target};
use crate::gang::pending::Pending;
use crate::gang::unusable::UnusableNodes;
use crate::input::hold::GangPhase;
use crate::input::members::Replacement;
use crate::input::{GangEnd, GangInput, TemplateInput};
use crate::pace::LimitReached;
use crate::waits::Moves;

/// State of one gang within a cycle.
#[derive(Clone, Debug)]
pub struct GangState {
    pub input: Arc<GangInput>,
    /// Pods of its members, by owner UID.
    pub(crate) pods: GangPods,
    /// Nodes that the workload avoids at `now`.
    pub avoided: BTreeSet<String>,
    /// Members to place. `None`: all members.
    pub to_place: Option<BTreeSet<Member>>,
    /// True if the gang runs without the missing members, which take free capacity only.
    pub growing: bool,
    /// Nodes of its members while it has a placement: as read, then as decided.
    pub assigned: Option<Arc<Assignments>>,
    /// Decided nodes that cannot take pods now.
    pub(crate) unusable: UnusableNodes,
    /// Occupants for members without pods, with the assignments from which they were computed.
    pub(crate) reserved: Option<(Arc<Assignments>, Arc<[Occupant]>)>,
    /// Deadline of the gang if it runs on nodes reserved for other gangs.
    pub backfill: Option<Backfill>,
    /// As read, then as desired. Copied on change, because large gangs have long lists of nodes.
    pub status: Arc<PodGroupStatus>,
    pub(crate) preempted: Option<PreemptedGang>,
    pub pending: Option<Pending>,
    /// Set if the victims of its intent wait for the eviction limit.
    pub(crate) paced: Option<LimitReached>,
    pub decision: Decision,
    /// New nodes of members for the open move, which are reserved: as read, then as decided.
    pub(crate) target: Assignments,
    /// Result of this cycle's search for the open move.
    pub(crate) move_search: Option<MoveSearch>,
}

impl GangState {
    pub(crate) fn new(input: Arc<GangInput>, pods: GangPods, now: DateTime<Utc>) -> Self {
        let placed = input.group.status.placement.as_ref();
        let avoid = input.workload.avoid.iter().filter(|a| a.until > now);
        Self {
            pods,
            avoided: avoid.map(|a| a.node.clone()).collect(),
            to_place: None,
            growing: false,
            assigned: input.group.assigned.clone(),
            unusable: UnusableNodes::default(),
            reserved: None,
            backfill: placed.and_then(|p| p.backfill.clone()),
            status: Arc::clone(&input.group.status),
            preempted: None,
            pending: None,
            paced: None,
            decision: Decision::None,
            target: permitted_target(&input),
            move_search: None,
            input,
        }
    }

    pub(crate) fn status_mut(&mut self) -> &mut PodGroupStatus {
        Arc::make_mut(&mut self.status)
    }

    pub fn uid(&self) -> &str {
        self.input.group.uid.as_str()
    }

    /// True if kube-scheduler places the gang. The scheduler then only records the nodes of its bound
    /// pods.
    pub(crate) fn kube_scheduler_places(&self, context: &Context<'_>) -> bool {
        let own = self.input.workload.backend;
        own.unwrap_or(context.settings.backend)
            .kube_scheduler_places()
    }

    pub fn phase(&self) -> &GangPhase {
        self.input.phase()
    }

    pub fn priority(&self) -> i32 {
        self.input.group.priority
    }

    pub fn finished(&self) -> &BTreeSet<Member> {
        &self.input.workload.members.finished
    }

    /// True if the pod's member has succeeded. Such a pod stays.
    pub(crate) fn has_finished(&self, pod: &Pod) -> bool {
        let member = pod.member.as_ref();
        member.is_some_and(|m| self.finished().contains(m))
    }

    pub fn unfinished(&self) -> impl Iterator<Item = &Member> {
        let finished = self.finished();
        self.input
            .gang
            .members()
            .filter(move |m| !finished.contains(*m))
    }

    /// A new placement with these assignments, for a gang whose nodes have changed in this cycle.
    pub fn to_placement(&self, now: DateTime<Utc>) -> Option<Placement> {
        let assigned = self.assigned.as_ref()?;
        Some(Placement {
            backfill: self.backfill.clone(),
            ..new_placement(self.uid(), assigned, now)
        })
    }

    /// True if the assignments have not changed in this cycle.
    pub fn unmoved(&self) -> bool {
        match (&self.input.group.assigned, &self.assigned) {
            (None, None) => true,
            // Compares content only if the cycle has written the assignments.
            (Some(read), Some(now)) => Arc::ptr_eq(read, now) || read == now,
            _ => false,
        }
    }

    pub(crate) fn moves(&self) -> Moves {
        let read = self.input.group.assigned.as_deref();
        Moves::between(read, self.assigned.as_deref())
    }

    /// True if the assignments are the same as `before`.
    pub(crate) fn holds_as(&self, before: Option<&Arc<Assignments>>) -> bool {
        match (before, &self.assigned) {
            (None, None) => true,
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            _ => false,
        }
    }

    pub fn assigned_members(&self) -> impl Iterator<Item = (&Member, &NodeName)> {
        self.assigned.iter().flat_map(|a| a.iter())
    }

    pub fn unfinished_assigned(&self) -> impl Iterator<Item = (&Member, &NodeName)> {
        self.assigned_members()
            .filter(|(m, _)| !self.finished().contains(*m))
    }

    /// Sets the backfill deadline of a new placement. Promises for kept nodes remain.
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

    /// UIDs of pod groups whose reserved nodes the gang keeps past the promised end, because its
    /// deadline was raised.
    pub(crate) fn overstays(&self) -> &[String] {
        let Some(promise) = &self.backfill else {
            return &[];
        };
        let overstays = match self.input.workload.ends {
            Some(GangEnd::At(end)) => end > promise.ends_by,
            // Its time has not begun.
            Some(GangEnd::After(_)) => false,
            None => true,
        };
        if overstays {
            &promise.reserved_for
        } else {
            &[]
        }
    }

    pub fn disrupted(&self) -> bool {
        is_true(&self.status.conditions, types::DISRUPTION_TARGET)
    }

    pub fn all_pods(&self) -> std::slice::Iter<'_, Arc<Pod>> {
        self.pods.all.iter()
    }

    pub(crate) fn pods_of(&self, member: &Member) -> &[Arc<Pod>] {
        let pods = self.pods.by_member.get(member);
        pods.map_or(&[], Vec::as_slice)
    }

    /// Precomputed facts, if each member has one pod, bound to its current node.
    pub(crate) fn fully_bound(&self) -> Option<&FullyBound> {
        let (bound, assigned) = (self.pods.fully_bound.as_deref()?, self.assigned.as_ref()?);
        bound.is_of(assigned).then_some(bound)
    }

    pub fn pod_at(&self, member: &Member, node: &str) -> Option<&Arc<Pod>> {
        let mut pods = self.pods_of(member).iter();
        pods.find(|p| p.holds() == Some(node))
    }

    /// Unbound pods outside their members' nodes. They will be deleted.
    pub(crate) fn stray_pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let unbound = self.pods.unbound.iter();
        unbound.filter(|pod| !self.on_assigned_node(pod))
    }

    /// True if a pod is bound or pinned to its member's node.
    pub fn on_assigned_node(&self, pod: &Pod) -> bool {
        let member = pod.member.as_ref();
        let node = member.and_then(|m| self.assigned.as_ref()?.get(m));
        node.is_some() && node.map(NodeName::as_str) == pod.holds()
    }

    /// Pods of the member that are bound to this node and not terminating.
    pub(crate) fn bound_pods(
        &self,
        member: &Member,
        node: &NodeName,
    ) -> impl Iterator<Item = &Arc<Pod>> {
        let pods = self.pods_of(member).iter();
        pods.filter(move |p| p.alive() && p.bound.as_ref() == Some(node))
    }

    /// True if the member's pod is bound to this node and not terminating.
    pub fn bound(&self, member: &Member, node: &NodeName) -> bool {
        self.bound_pods(member, node).next().is_some()
    }

    /// Members with a node, without a bound pod.
    pub fn unbound(&self) -> Assignments {
        if self.fully_bound().is_some() {
            return Assignments::new();
        }
        self.unfinished_assigned()
            .filter(|(m, n)| !self.bound(m, n))
            .map(|(m, n)| (m.clone(), n.clone()))
            .collect()
    }

    pub fn waiting_pod(&self, member: &Member, node: &NodeName) -> Option<&Arc<Pod>> {
        let mut pods = self.pods_of(member).iter();
        pods.find(|p| p.alive() && p.pinned.as_ref() == Some(node))
    }

    pub fn members_to_place(&self) -> impl Iterator<Item = &Member> {
        self.unfinished().filter(|m| self.places(m))
    }

    /// True if the member is to be placed, unless it has finished.
    pub fn places(&self, member: &Member) -> bool {
        self.to_place
            .as_ref()
            .is_none_or(|all| all.contains(member))
    }

    /// Number of members that the gang needs, less finished members.
    pub fn min_count(&self) -> u32 {
        let gang = &self.input.gang;
        let finished = gang.size() - self.unfinished().count();
        (gang.min_count.max(0) as usize).saturating_sub(finished) as u32
    }

    /// First volume claim, volume or storage class that members to place miss.
    pub(crate) fn missing_volume(&self) -> Option<&MissingVolume> {
        self.needed_templates()
            .find_map(|t| t.storage.missing.first())
    }

    /// Node constraint of members to place that only kube-scheduler evaluates.
    pub(crate) fn not_modelled(&self) -> Option<&str> {
        self.needed_templates()
            .find_map(|t| t.not_modelled.as_deref())
    }

    /// `ReadWriteOncePod` claims of members to place.
    pub(crate) fn one_pod_claims(&self) -> impl Iterator<Item = &str> {
        let templates = self.needed_templates();
        templates.flat_map(|t| t.storage.one_pod.iter().map(String::as_str))
    }

    /// Why the result of admission is unknown for members to place.
    pub(crate) fn not_admitted(&self) -> Option<&str> {
        self.needed_templates()
            .find_map(|t| t.not_admitted.as_deref())
    }

    /// Scheduling gate of another controller: on the admitted pods of members to place, or on an
    /// unbound pod of the gang.
    pub(crate) fn foreign_gate(&self) -> Option<&str> {
        let mut templates = self
            .needed_templates()
            .filter_map(|t| t.foreign_gate.as_deref());
        let mut pods = self
            .pods
            .unbound
            .iter()
            .filter(|pod| pod.alive())
            .filter_map(|pod| pod.foreign_gate.as_deref());
        templates.next().or_else(|| pods.next())
    }

    /// Templates with constraints, of unfinished members without a node or with victims.
    fn needed_templates(&self) -> impl Iterator<Item = &TemplateInput> {
        let templates = self.input.workload.templates.iter();
        let preempts = self.status.preemption.is_some();
        let placed = self.assigned.as_ref().filter(|_| preempts);
        templates.filter(move |t| {
            let constrained = !t.storage.missing.is_empty()
                || !t.storage.one_pod.is_empty()
                || t.not_modelled.is_some()
                || t.foreign_gate.is_some()
                || t.not_admitted.is_some();
            let concerned = |m: &&Member| placed.is_none_or(|placed| placed.contains_key(*m));
            let mut members = self.members_to_place().filter(concerned);
            constrained && members.any(|m| m.group == t.group)
        })
    }

    pub fn every_member_bound(&self) -> bool {
        self.all_bound(self.unfinished().count())
    }

    /// True if all assigned members are bound and enough to run (in a basic group, all).
    pub fn enough_bound(&self) -> bool {
        if self.input.gang.basic {
            self.every_member_bound()
        } else {
            self.all_bound(self.min_count() as usize)
        }
    }

    /// True if all restart domains with placed members run, the last one since after this time.
    pub fn began_to_run_after(&self, time: DateTime<Utc>) -> bool {
        let placed: BTreeSet<&Member> = self.unfinished_assigned().map(|(m, _)| m).collect();
        let ledger = &self.input.workload.members.domains;
        let runs = |domain: &Domain| {
            let mut entries = ledger.iter().filter(|l| l.key == domain.key);
            entries.any(|l| l.healthy_since.is_some())
        };
        let mut domains = self.input.gang.domains.iter();
        self.input.resumed() >= Some(time)
            && domains.all(|d| runs(d) || !d.members.iter().any(|m| placed.contains(m)))
    }

    fn all_bound(&self, least: usize) -> bool {
        let placed = self.unfinished_assigned().count();
        placed > 0 && placed >= least && self.unbound().is_empty()
    }

    pub fn observed_spec(&self) -> ObservedSpec {
        ObservedSpec {
            generation: self.input.group.generation,
            workload_generation: self.input.workload.generation,
        }
    }

    pub fn replaced(&self, member: &Member, pod: &Pod) -> bool {
        let domains = &self.input.workload.members.domains;
        let mut incidents = domains.iter().filter_map(|d| d.incident.as_ref());
        incidents.any(|Replacement { members, old_pods }| {
            members.contains(member) && old_pods.contains(pod.uid.as_str())
        })
    }

    /// True if the gang has run, or an incident is open. Its nodes are then kept.
    pub fn under_way(&self) -> bool {
        let mut domains = self.input.workload.members.domains.iter();
        domains.any(|d| d.incident.is_some() || d.healthy_since.is_some())
    }

    pub fn excluded(&self) -> BTreeSet<&str> {
        let refusing = self.status.excluded_nodes.iter();
        refusing
            .map(|e| e.node.as_str())
            .chain(self.avoided.iter().map(String::as_str))
            .collect()
    }

    /// True if the gang holds capacity, or keeps it from gangs behind it.
    pub(crate) fn holds_or_reserves(&self) -> bool {
        self.assigned.is_some()
            || !self.pods.all.is_empty()
            || self.status.preemption.is_some()
            || self.status.reservation.is_some()
    }

    /// True if both states hold and reserve the same capacity, under the same rules. Ignores
    /// versions, messages and the cost of lost work. Pods are compared with the cluster instead.
    pub(crate) fn holds_alike(&self, other: &Self) -> bool {
        let (status, others) = (&self.status, &other.status);
        self.input.alike(&other.input)
            && self.assigned == other.assigned
            && self.backfill == other.backfill
            && (Arc::ptr_eq(status, others)
                || status == others
                || without_words(status) == without_words(others))
    }

    /// True if neither pods, refusals, earlier preemptions nor constraints outside the engine
    /// affect the verdict on the gang.
    pub(crate) fn has_no_history(&self) -> bool {
        let status = &self.status;
        self.assigned.is_none()
            && self.pods.all.is_empty()
            && self.input.workload.avoid.is_empty()
            && status.excluded_nodes.is_empty()
            && status.refusal.is_none()
            && status.last_preemption.is_none()
            && status.withdrawn_preemptions.is_none()
            && self.not_modelled().is_none()
            && self.foreign_gate().is_none()
            && self.one_pod_claims().next().is_none()
            && self.not_admitted().is_none()
    }
}

pub(crate) fn without_words(status: &PodGroupStatus) -> PodGroupStatus {
    let conditions = status.conditions.iter().map(|c| Condition {
        message: String::new(),
        ..c.clone()
    });
    let target = status.move_target.as_ref().map(|target| MoveTarget {
        message: String::new(),
        ..target.clone()
    });
    PodGroupStatus {
        conditions: conditions.collect(),
        move_target: target,
        queue: None,
        demand: status.demand.as_ref().map(NodeDemand::without_words),
        ..status.clone()
    }
}

/// A placement with a new id, unlike any other decision for the same nodes.
pub(crate) fn new_placement(
    group_uid: &str,
    assigned: &Assignments,
    now: DateTime<Utc>,
) -> Placement {
    let nodes = by_node(assigned);
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

pub(crate) fn by_node(assigned: &Assignments) -> Vec<NodePlacement> {
    let mut by_node: BTreeMap<&str, MemberSet> = BTreeMap::new();
    for (member, node) in assigned {
        by_node
            .entry(node.as_str())
            .or_default()
            .insert(member.clone());
    }
    let nodes = by_node.into_iter().map(|(node, members)| NodePlacement {
        node: node.to_owned(),
        members: members.to_ranges(),
    });
    nodes.collect()
}
