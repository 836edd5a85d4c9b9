//! One gang within a pass: what is known of it, and what becomes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::condition::{is_true, types};
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::names::short_hash;
use lockstep_api::scheduling::{NodePlacement, Placement, PodGroupStatus};
use lockstep_api::workload::TopologyScope;
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_lifecycle::gangs::Gang;
use lockstep_lifecycle::growth::{Seekers, finished};
use lockstep_model::gang::Standing;
use lockstep_model::{GangView, Pod, Seats, Snapshot, Turnout};

use super::memory::Memory;
use super::scene::GangObjects;
use crate::index::Key;

/// One gang within a pass.
#[derive(Debug)]
pub(super) struct Case {
    /// Namespace and name of the pod group.
    pub key: Key,
    /// UID of the pod group.
    pub uid: String,
    /// The pod group as read.
    pub group: Arc<PodGroup>,
    /// Its workload.
    pub workload: Arc<TrainingWorkload>,
    /// Its members.
    pub gang: Arc<Gang>,
    /// Priority that counts when others want its room, once it runs.
    pub preemption_priority: Option<i32>,
    /// Whether it may have or get room.
    pub standing: Standing,
    /// Pods of its members, of the controlling workload by owner UID.
    pub pods: BTreeMap<Member, Vec<Arc<Pod>>>,
    /// Members that need no room any more: they have succeeded, or their group has without them.
    pub done: BTreeSet<Member>,
    /// Those of the others for whom room is sought.
    pub seekers: Seekers,
    /// The placement, while the gang has one: as read at first, as decided in the end.
    pub seats: Option<Arc<Seats>>,
    /// The seats as read.
    read: Option<Arc<Seats>>,
    /// Why it waits, for people.
    pub note: Option<String>,
    /// The status as it is to be.
    pub status: PodGroupStatus,
}

impl Case {
    /// The case of a gang as of this pass.
    pub fn new(objects: &GangObjects, cluster: &Snapshot, memory: &mut Memory) -> Self {
        let group = memory.latest(&objects.key, &objects.group);
        let workload = Arc::clone(&objects.workload);
        let gang = memory.gang(objects);
        let seats = memory.seats(&group);
        let status = group.status.clone().unwrap_or_default();
        let pods = pods_of(&workload, &objects.key.name, cluster);
        let view = GangView { group: &group, workload: &workload };
        Self {
            key: objects.key.clone(),
            uid: group.metadata.uid.clone().unwrap_or_default(),
            standing: if gang.is_some() { view.standing() } else { Standing::Over },
            gang: gang.unwrap_or_else(|| Arc::new(nobody(&group))),
            preemption_priority: objects.preemption_priority,
            done: workload.status.as_ref().map(|s| finished(&workload.spec, s)).unwrap_or_default(),
            seekers: Seekers::default(),
            read: seats.clone(),
            seats,
            note: None,
            pods,
            group,
            workload,
            status,
        }
    }

    /// Its objects.
    pub fn view(&self) -> GangView<'_> {
        GangView { group: &self.group, workload: &self.workload }
    }

    /// The placement as read.
    pub fn placement(&self) -> Option<&Placement> {
        self.view().placement()
    }

    /// The placement as it is to be: the one that was read while the seats are the same, else a new decision.
    pub fn to_placement(&self, now: DateTime<Utc>) -> Option<Placement> {
        if self.unmoved() {
            self.placement().cloned()
        } else {
            self.seats.as_ref().map(|s| new_placement(&self.uid, s, now))
        }
    }

    /// Whether the seats are those that were read.
    pub fn unmoved(&self) -> bool {
        match (&self.read, &self.seats) {
            (None, None) => true,
            // The content is compared only where a pass has touched it.
            (Some(read), Some(seats)) => Arc::ptr_eq(read, seats) || read == seats,
            _ => false,
        }
    }

    /// Placed members and their nodes.
    pub fn seated_members(&self) -> impl Iterator<Item = (&Member, &String)> {
        self.seats.iter().flat_map(|s| s.iter())
    }

    /// Whether the workload has given this placement back.
    pub fn released(&self) -> bool {
        self.view().released()
    }

    /// Whether the gang goes whole or not at all.
    pub fn whole(&self) -> bool {
        self.view().whole(self.gang.basic)
    }

    /// Priority of the gang.
    pub fn priority(&self) -> i32 {
        self.view().priority()
    }

    /// Whether it may evict others.
    pub fn preempts(&self) -> bool {
        self.view().preempts()
    }

    /// The members that it asks for.
    pub fn turnout(&self) -> Turnout {
        // The engine knows replicas of one size: where it places by replica, all are asked for.
        let by_replica = self.view().topology().is_some_and(|t| t.scope == TopologyScope::Replica);
        let members: Vec<&Member> = self.gang.members().filter(|m| by_replica || self.seekers.contains(m)).collect();
        let groups = &self.workload.spec.groups;
        Turnout::new(groups, &members, self.gang.min_count, &self.done, self.view().topology())
    }

    /// Whether a condition says that it is being preempted.
    pub fn disrupted(&self) -> bool {
        is_true(&self.status.conditions, types::DISRUPTION_TARGET)
    }

    /// All pods of the gang.
    pub fn all_pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.values().flatten()
    }

    /// The pod of a member that takes room on a node.
    pub fn pod_at(&self, member: &Member, node: &str) -> Option<&Arc<Pod>> {
        self.pods.get(member)?.iter().find(|p| p.holds() == Some(node))
    }

    /// Whether a pod is on, or waits for, the seat of its member.
    pub fn seated(&self, pod: &Pod) -> bool {
        let seat = pod.member.as_ref().and_then(|m| self.seats.as_ref()?.get(m));
        seat.is_some() && seat.map(String::as_str) == pod.holds()
    }

    /// Whether a member's pod is bound to its node and not about to end.
    pub fn bound(&self, member: &Member, node: &str) -> bool {
        self.pods.get(member).into_iter().flatten().any(|p| p.alive() && p.bound.as_deref() == Some(node))
    }

    /// Seats whose pods are not bound yet.
    pub fn open_seats(&self) -> Seats {
        self.seated_members()
            .filter(|(m, n)| !self.done.contains(*m) && !self.bound(m, n))
            .map(|(m, n)| (m.clone(), n.clone()))
            .collect()
    }

    /// The pod that waits for a seat.
    pub fn waiting_pod(&self, member: &Member, node: &str) -> Option<&Arc<Pod>> {
        self.pods.get(member)?.iter().find(|p| p.alive() && p.pinned.as_deref() == Some(node))
    }

    /// Members that should have a seat.
    pub fn wanted(&self) -> impl Iterator<Item = &Member> {
        self.gang.members().filter(|m| !self.done.contains(*m) && self.seekers.contains(m))
    }

    /// Members without which the gang is useless, less those that have succeeded.
    pub fn min_count(&self) -> u32 {
        let done = self.gang.members().filter(|m| self.done.contains(*m)).count();
        (self.gang.min_count.max(0) as usize).saturating_sub(done) as u32
    }

    /// When the last incident of the gang was closed.
    pub fn resumed(&self) -> Option<DateTime<Utc>> {
        self.view().resumed(&self.gang.domains.iter().map(|d| d.key.as_str()).collect::<Vec<_>>())
    }

    /// Generation of the pod group.
    pub fn generation(&self) -> i64 {
        self.group.metadata.generation.unwrap_or_default()
    }

    /// Members whose pods the workload is replacing, with the UIDs of the pods that go.
    pub fn replacing(&self) -> (MemberSet, BTreeSet<&str>) {
        let domains = self.workload.status.iter().flat_map(|s| &s.domains);
        let keys: BTreeSet<&str> = self.gang.domains.iter().map(|d| d.key.as_str()).collect();
        let mut members = MemberSet::default();
        let mut old = BTreeSet::new();
        for incident in domains.filter(|d| keys.contains(d.key.as_str())).filter_map(|d| d.incident.as_ref()) {
            // A range that does not parse names nobody: the workload's controller writes the ledger, and writes it anew.
            for member in MemberSet::parse(&incident.replace).unwrap_or_default() {
                members.insert(member);
            }
            old.extend(incident.old_pods.iter().map(String::as_str));
        }
        (members, old)
    }

    /// Whether the gang has run, or an incident is being handled: its nodes are then kept for it.
    pub fn under_way(&self) -> bool {
        let domains = self.workload.status.iter().flat_map(|s| &s.domains);
        let ours = |key: &str| self.gang.domains.iter().any(|d| d.key == key);
        domains.filter(|d| ours(&d.key)).any(|d| d.incident.is_some() || d.healthy_since.is_some())
    }
}

fn pods_of(workload: &TrainingWorkload, group: &str, cluster: &Snapshot) -> BTreeMap<Member, Vec<Arc<Pod>>> {
    let mut out: BTreeMap<Member, Vec<Arc<Pod>>> = BTreeMap::new();
    let (uid, namespace) = (workload.metadata.uid.as_deref(), workload.metadata.namespace.as_deref());
    for pod in cluster.pods_of(uid.unwrap_or_default()) {
        let ours = pod.pod_group.as_deref() == Some(group) && Some(pod.namespace.as_str()) == namespace;
        if let Some(member) = pod.member.as_ref().filter(|_| ours) {
            out.entry(member.clone()).or_default().push(Arc::clone(pod));
        }
    }
    out
}

/// The seats as a decision of this moment. Another decision of the same gang has another id.
fn new_placement(group_uid: &str, seats: &Seats, now: DateTime<Utc>) -> Placement {
    let mut nodes: BTreeMap<&str, MemberSet> = BTreeMap::new();
    for (member, node) in seats {
        nodes.entry(node).or_default().insert(member.clone());
    }
    let nodes: Vec<NodePlacement> = nodes
        .into_iter()
        .map(|(node, members)| NodePlacement { node: node.to_owned(), members: members.to_ranges() })
        .collect();
    let mut parts = vec![group_uid.to_owned(), now.timestamp_micros().to_string()];
    parts.extend(nodes.iter().flat_map(|n| std::iter::once(&n.node).chain(&n.members)).cloned());
    let id = short_hash(&parts.iter().map(String::as_str).collect::<Vec<_>>());
    Placement { id, decided_at: now, members: seats.len() as i32, nodes }
}

/// The gang of a pod group whose members the spec has no more.
fn nobody(group: &PodGroup) -> Gang {
    Gang {
        key: group.spec.gang_key.clone(),
        template: group.spec.workload_ref.template_name.clone(),
        basic: true,
        min_count: 0,
        disruption: lockstep_api::workload::DisruptionMode::Single,
        domains: Vec::new(),
    }
}
