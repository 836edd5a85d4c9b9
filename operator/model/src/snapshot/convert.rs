//! Converts the scheduler's types to records, and back. Names every field, so that the compiler
//! reports a missing one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use lockstep_api::ids::{NodeName, Uid};
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::scheduling::PreemptionPolicy;
use lockstep_api::{NodeState, Reach};
use lockstep_engine::NodeSet;

use super::SnapshotFile;
use super::{
    AmountsByName, BudgetRecord, GangRecord, NodeRecord, PodRecord, PriorityClassRecord,
    SnapshotError, TemplateRecord,
};
use crate::cluster::ClusterModel;
use crate::nodes::node::Node;
use crate::pods::foreign::{PodUnit, UnitMode};
use crate::pods::pdb::Budget;
use crate::pods::pod::{Pod, Stage};
use crate::pods::priority_class::PriorityClass;
use crate::pods::resources::Resources;

impl SnapshotFile {
    /// The model of the recorded nodes and pods, with these topology keys and those of the gangs.
    pub fn model<'a>(&'a self, topology_keys: impl IntoIterator<Item = &'a str>) -> ClusterModel {
        let mut model = ClusterModel::default();
        let of_gangs = self
            .gangs
            .iter()
            .flat_map(|g| &g.topology)
            .map(|t| t.key.as_str());
        for key in of_gangs.chain(topology_keys).collect::<BTreeSet<_>>() {
            model.use_topology_key(key);
        }
        let templates = || self.gangs.iter().flat_map(|g| &g.templates);
        let ports = templates().flat_map(|t| t.requests.keys());
        let apart = templates().filter_map(|t| t.apart.as_ref());
        model.use_slots(ports.chain(apart).map(String::as_str));
        for node in self.nodes.iter().filter_map(NodeRecord::to_node) {
            model.upsert_node(node);
        }
        for pod in self.pods.iter().filter_map(PodRecord::to_pod) {
            model.upsert_pod(pod);
        }
        model
    }

    /// Rejects values without meaning that the format permits.
    pub(super) fn check(&self) -> Result<(), SnapshotError> {
        if let Some(ix) = self.nodes.iter().position(|node| node.name.is_empty()) {
            let path = format!("nodes[{ix}].name");
            return Err(SnapshotError::not(path, "", "a name"));
        }
        for (ix, pod) in self.pods.iter().enumerate() {
            if pod.uid.is_empty() {
                let path = format!("pods[{ix}].uid");
                return Err(SnapshotError::not(path, "", "a UID"));
            }
            if let Some(text) = pod.member.as_deref().filter(|m| member(m).is_none()) {
                let path = format!("pods[{ix}].member");
                return Err(SnapshotError::not(path, text, "a member range of one"));
            }
        }
        for (ix, gang) in self.gangs.iter().enumerate() {
            if let Some(range) = gang.ranges().find(|&r| MemberSet::parse(&[r]).is_err()) {
                let path = format!("gangs[{ix}]");
                return Err(SnapshotError::not(path, range, "a member range"));
            }
            for &(first, last) in gang.templates.iter().flat_map(|t| &t.eligible) {
                if first > last || last >= self.nodes.len() {
                    let path = format!("gangs[{ix}].templates");
                    let range = format!("{first}-{last}");
                    let expected = "a range of positions of nodes";
                    return Err(SnapshotError::not(path, &range, expected));
                }
            }
        }
        Ok(())
    }
}

impl NodeRecord {
    pub fn of(node: &Node) -> Self {
        let Node {
            name,
            allocatable,
            labels,
            taints,
            features,
            created,
            state,
        } = node;
        let (silent_since, outage) = match state.reach {
            Reach::Silent { since } if !state.deleting => (since, since.is_none()),
            _ => (None, false),
        };
        Self {
            name: name.as_str().to_owned(),
            allocatable: amounts(allocatable),
            labels: labels.clone(),
            taints: taints.clone(),
            features: features.clone(),
            created: *created,
            unschedulable: node.is_unschedulable(),
            ready: state.is_ready(),
            silent_since,
            outage,
            outlook: state.outlook,
        }
    }

    pub fn to_node(&self) -> Option<Node> {
        let mut node = Node {
            name: NodeName::read(Some(&self.name))?,
            allocatable: resources(&self.allocatable),
            labels: self.labels.clone(),
            taints: self.taints.clone(),
            features: self.features.clone(),
            created: self.created,
            state: NodeState {
                reach: match self.silent_since {
                    _ if self.ready => Reach::Responding,
                    None if !self.outage => Reach::Gone,
                    since => Reach::Silent { since },
                },
                outlook: self.outlook,
                ..NodeState::default()
            },
        };
        node.read_cordon(self.unschedulable);
        Some(node)
    }
}

impl PodRecord {
    /// Record of a pod with its labels of these keys. `None` if it holds no capacity and belongs to
    /// no gang.
    pub fn of(pod: &Pod, label_keys: &BTreeSet<&str>) -> Option<Self> {
        if pod.ended() || (pod.holds().is_none() && pod.pod_group.is_none()) {
            return None;
        }
        let opt_out = lockstep_api::names::labels::EVICTABLE;
        let labels = label_keys
            .iter()
            .chain([&opt_out])
            .filter_map(|&key| Some((key.to_owned(), pod.labels.get(key)?.clone())));
        Some(Self {
            uid: pod.uid.as_str().to_owned(),
            namespace: pod.namespace.to_string(),
            name: pod.name.to_string(),
            labels: labels.collect(),
            owner: pod.owner.clone().map(String::from),
            unit: pod.unit.as_ref().map(|unit| unit.key.to_string()),
            whole: pod
                .unit
                .as_ref()
                .is_some_and(|u| u.mode != UnitMode::Single),
            pod_group: pod.pod_group.as_deref().map(str::to_owned),
            member: pod.member.as_ref().map(Member::to_range),
            bound: pod.bound.clone().map(String::from),
            pinned: pod.pinned.clone().map(String::from),
            nominated: pod.nominated.clone().map(String::from),
            requests: amounts(&pod.requests),
            anti_affinity: pod.anti_affinity.iter().flat_map(|t| t.to_vec()).collect(),
            priority: pod.priority,
            preempts: pod.preempts,
            protected: pod.protected,
            grace_seconds: pod.grace.as_secs(),
            terminating: pod.terminating,
            disrupted: pod.disrupted,
            started: pod.started,
            pending: pod.pending,
            last_checkpoint: pod.last_checkpoint,
            may_end: pod.may_end,
            ends: pod.ends,
        })
    }

    /// The pod of a record. `None` without a UID.
    pub fn to_pod(&self) -> Option<Pod> {
        Some(Pod {
            uid: Uid::read(Some(&self.uid))?,
            namespace: self.namespace.as_str().into(),
            name: self.name.as_str().into(),
            labels: self.labels.clone().into(),
            owner: Uid::read(self.owner.as_deref()),
            unit: self.unit.as_deref().map(|key| PodUnit {
                key: key.into(),
                mode: if self.whole {
                    UnitMode::Whole
                } else {
                    UnitMode::Single
                },
            }),
            pod_group: self.pod_group.as_deref().map(Arc::from),
            member: self.member.as_deref().and_then(member),
            placement: None,
            bound: NodeName::read(self.bound.as_deref()),
            pinned: NodeName::read(self.pinned.as_deref()),
            nominated: NodeName::read(self.nominated.as_deref()),
            requests: Arc::new(resources(&self.requests)),
            claims: None,
            anti_affinity: Some(&self.anti_affinity)
                .filter(|t| !t.is_empty())
                .map(|t| t.as_slice().into()),
            priority: self.priority,
            preempts: self.preempts,
            protected: self.protected,
            stage: Stage::Open,
            foreign_gate: None,
            refusal: None,
            grace: Duration::from_secs(self.grace_seconds),
            terminating: self.terminating,
            disrupted: self.disrupted,
            started: self.started,
            pending: self.pending,
            last_checkpoint: self.last_checkpoint,
            may_end: self.may_end,
            ends: self.ends,
        })
    }
}

impl GangRecord {
    fn ranges(&self) -> impl Iterator<Item = &str> {
        let domains = self.domains.iter();
        let placed = self.placement.iter().flat_map(|p| p.nodes.values());
        let targets = self.move_target.iter().flat_map(|t| &t.nodes);
        let incidents = domains
            .clone()
            .filter_map(|d| d.ledger.as_ref()?.incident.as_ref());
        domains
            .flat_map(|d| &d.members)
            .chain(incidents.flat_map(|i| &i.members))
            .chain(placed.flatten())
            .chain(targets.flat_map(|at| &at.members))
            .chain(&self.completed)
            .chain(&self.finished)
            .chain(&self.absent)
            .map(String::as_str)
    }
}

impl TemplateRecord {
    /// Eligible nodes are positions in [`SnapshotFile::nodes`].
    pub fn of(group: &str, requests: &Resources, eligible: &NodeSet) -> Self {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for position in eligible.ones() {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == position => *last = position,
                _ => runs.push((position, position)),
            }
        }
        Self {
            group: group.to_owned(),
            labels: BTreeMap::new(),
            grace_seconds: 0,
            requests: amounts(requests),
            eligible: runs,
            apart: None,
            not_modelled: None,
        }
    }

    pub fn to_requests(&self) -> Resources {
        resources(&self.requests)
    }

    pub fn node_names<'a>(&'a self, file: &'a SnapshotFile) -> impl Iterator<Item = &'a str> {
        let positions = self.eligible.iter().flat_map(|&(first, last)| first..=last);
        positions.filter_map(|p| Some(file.nodes.get(p)?.name.as_str()))
    }
}

impl BudgetRecord {
    pub fn of(budget: &Budget) -> Self {
        let Budget {
            namespace,
            name,
            selector,
            allowed,
        } = budget;
        Self {
            namespace: namespace.clone(),
            name: name.clone(),
            selector: selector.clone(),
            allowed: *allowed,
        }
    }

    pub fn to_budget(&self) -> Budget {
        Budget {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            selector: self.selector.clone(),
            allowed: self.allowed,
        }
    }

    pub fn label_keys(&self) -> impl Iterator<Item = &str> {
        self.selector.iter().flat_map(selected_keys)
    }
}

/// Keys of the labels that a selector reads.
pub fn selected_keys(selector: &LabelSelector) -> impl Iterator<Item = &str> {
    let equal = selector
        .match_labels
        .iter()
        .flatten()
        .map(|(key, _)| key.as_str());
    let expressions = selector.match_expressions.iter().flatten();
    equal.chain(expressions.map(|e| e.key.as_str()))
}

fn amounts(resources: &Resources) -> AmountsByName {
    resources
        .iter()
        .map(|(name, amount)| (name.to_owned(), amount))
        .collect()
}

fn resources(amounts: &AmountsByName) -> Resources {
    amounts
        .iter()
        .map(|(name, &amount)| (name.as_str(), amount))
        .collect()
}

fn member(range: &str) -> Option<Member> {
    let mut all = MemberSet::parse(&[range]).ok()?.into_iter();
    all.next().filter(|_| all.next().is_none())
}

impl From<PriorityClass> for PriorityClassRecord {
    fn from(class: PriorityClass) -> Self {
        let PriorityClass {
            name,
            value,
            preemption,
            preemption_priority,
            checkpoint_wait,
            default,
        } = class;
        Self {
            name,
            value,
            preempts: preemption == PreemptionPolicy::PreemptLowerPriority,
            preemption_priority,
            checkpoint_wait_seconds: checkpoint_wait.map(|wait| wait.as_secs()),
            default,
        }
    }
}

impl From<&PriorityClassRecord> for PriorityClass {
    fn from(record: &PriorityClassRecord) -> Self {
        Self {
            name: record.name.clone(),
            value: record.value,
            preemption: if record.preempts {
                PreemptionPolicy::PreemptLowerPriority
            } else {
                PreemptionPolicy::Never
            },
            preemption_priority: record.preemption_priority,
            checkpoint_wait: record.checkpoint_wait_seconds.map(Duration::from_secs),
            default: record.default,
        }
    }
}
