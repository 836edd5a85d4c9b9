//! Records of what the scheduler works with, and back. What is made of a record names every
//! field, so that a new one cannot be forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockstep_api::member::{Member, MemberSet};
use lockstep_engine::NodeSet;

use super::SnapshotFile;
use super::{AmountsByName, BudgetRecord, Claim, CohortRecord, GangRecord, NodeRecord, PodRecord, SnapshotError};
use crate::cluster::{ClusterModel, Snapshot};
use crate::node::Node;
use crate::pdb::Budget;
use crate::pod::{Pod, Stage};
use crate::request::Cohort;
use crate::requests::Resources;

impl SnapshotFile {
    /// Nodes and pods as the scheduler holds them, with these topology keys in use beside those of the gangs.
    pub fn model<'a>(&'a self, topology_keys: impl IntoIterator<Item = &'a str>) -> ClusterModel {
        let mut model = ClusterModel::default();
        let of_gangs = self.gangs.iter().filter_map(|g| g.topology.as_ref()).map(|t| t.key.as_str());
        for key in of_gangs.chain(topology_keys).collect::<BTreeSet<_>>() {
            model.use_topology_key(key);
        }
        for node in &self.nodes {
            model.upsert_node(node.to_node());
        }
        for pod in &self.pods {
            model.upsert_pod(pod.to_pod());
        }
        model
    }

    /// Refuses what the format allows and nobody can use.
    pub(super) fn check(&self) -> Result<(), SnapshotError> {
        let bad =
            |path: String, value: &str, expected| Err(SnapshotError::Value { path, value: value.to_owned(), expected });
        for (ix, pod) in self.pods.iter().enumerate() {
            if let Some(text) = pod.member.as_deref().filter(|m| member(m).is_none()) {
                return bad(format!("pods[{ix}].member"), text, "a member range of one");
            }
        }
        for (ix, gang) in self.gangs.iter().enumerate() {
            if let Some(range) = gang.ranges().find(|&r| MemberSet::parse(&[r]).is_err()) {
                return bad(format!("gangs[{ix}]"), range, "a member range");
            }
            for &(first, last) in gang.cohorts.iter().flat_map(|c| &c.eligible) {
                if first > last || last >= self.nodes.len() {
                    let range = format!("{first}-{last}");
                    return bad(format!("gangs[{ix}].cohorts"), &range, "a range of positions of nodes");
                }
            }
        }
        Ok(())
    }
}

impl NodeRecord {
    /// The record of a node.
    pub fn of(node: &Node) -> Self {
        let Node { name, allocatable, labels, taints, unschedulable, ready } = node;
        Self {
            name: name.clone(),
            allocatable: amounts(allocatable),
            labels: labels.clone(),
            taints: taints.clone(),
            unschedulable: *unschedulable,
            ready: *ready,
        }
    }

    /// The node as the scheduler holds it.
    pub fn to_node(&self) -> Node {
        Node {
            name: self.name.clone(),
            allocatable: resources(&self.allocatable),
            labels: self.labels.clone(),
            taints: self.taints.clone(),
            unschedulable: self.unschedulable,
            ready: self.ready,
        }
    }
}

impl PodRecord {
    /// The record of a pod with the labels of these keys; `None` when it holds no room.
    pub fn of(pod: &Pod, label_keys: &BTreeSet<&str>) -> Option<Self> {
        let node = pod.holds()?.to_owned();
        let claim = match (&pod.bound, &pod.pinned) {
            (Some(_), _) => Claim::Bound,
            (None, Some(_)) => Claim::Pinned,
            (None, None) => Claim::Nominated,
        };
        let labels = label_keys.iter().filter_map(|&key| Some((key.to_owned(), pod.labels.get(key)?.clone())));
        Some(Self {
            uid: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            labels: labels.collect(),
            owner: pod.owner.clone(),
            pod_group: pod.pod_group.clone(),
            member: pod.member.as_ref().map(|m| format!("{}/{}/{}", m.group, m.replica, m.index)),
            node,
            claim,
            requests: amounts(&pod.requests),
            priority: pod.priority,
            preempts: pod.preempts,
            protected: pod.protected,
            terminating: pod.terminating,
            started: pod.started,
            last_checkpoint: pod.last_checkpoint,
        })
    }

    /// The pod as the scheduler holds it.
    pub fn to_pod(&self) -> Pod {
        let node = |claim: Claim| (self.claim == claim).then(|| self.node.clone());
        Pod {
            uid: self.uid.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            labels: self.labels.clone().into(),
            owner: self.owner.clone(),
            pod_group: self.pod_group.clone(),
            member: self.member.as_deref().and_then(member),
            placement: None,
            bound: node(Claim::Bound),
            pinned: node(Claim::Pinned),
            nominated: node(Claim::Nominated),
            requests: Arc::new(resources(&self.requests)),
            priority: self.priority,
            preempts: self.preempts,
            protected: self.protected,
            stage: Stage::Open,
            terminating: self.terminating,
            disrupted: false,
            started: self.started,
            last_checkpoint: self.last_checkpoint,
        }
    }
}

impl GangRecord {
    /// The seat of each member.
    pub fn seats(&self) -> BTreeMap<Member, &str> {
        let seats = self.seats.iter();
        seats.flat_map(|(node, ranges)| members(ranges).into_iter().map(|m| (m, node.as_str()))).collect()
    }

    fn ranges(&self) -> impl Iterator<Item = &str> {
        let members = self.cohorts.iter().flat_map(|c| &c.members);
        members.chain(self.seats.values().flatten()).map(String::as_str)
    }
}

impl CohortRecord {
    /// The record of a cohort whose eligible nodes are positions in [`SnapshotFile::nodes`].
    pub fn of(cohort: &Cohort) -> Self {
        let mut eligible: Vec<(usize, usize)> = Vec::new();
        for position in cohort.eligible.ones() {
            match eligible.last_mut() {
                Some((_, last)) if *last + 1 == position => *last = position,
                _ => eligible.push((position, position)),
            }
        }
        let set: MemberSet = cohort.members.iter().cloned().collect();
        Self { members: set.to_ranges(), requests: amounts(&cohort.requests), eligible }
    }

    /// The cohort, over the nodes of a snapshot made from the file.
    pub fn to_cohort(&self, file: &SnapshotFile, snapshot: &Snapshot) -> Cohort {
        let positions = self.eligible.iter().flat_map(|&(first, last)| first..=last);
        let eligible: NodeSet = positions.filter_map(|p| snapshot.ordinal(&file.nodes.get(p)?.name)).collect();
        Cohort {
            members: members(&self.members),
            requests: Arc::new(resources(&self.requests)),
            eligible: Arc::new(eligible),
        }
    }
}

impl BudgetRecord {
    /// The record of a budget.
    pub fn of(budget: &Budget) -> Self {
        let Budget { namespace, name, selector, allowed } = budget;
        Self { namespace: namespace.clone(), name: name.clone(), selector: selector.clone(), allowed: *allowed }
    }

    /// The budget as the scheduler holds it.
    pub fn to_budget(&self) -> Budget {
        Budget {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            selector: self.selector.clone(),
            allowed: self.allowed,
        }
    }

    /// Keys of the labels that the budget asks for.
    pub fn label_keys(&self) -> impl Iterator<Item = &str> {
        let selector = self.selector.iter();
        selector.flat_map(|s| {
            let equal = s.match_labels.iter().flatten().map(|(key, _)| key.as_str());
            equal.chain(s.match_expressions.iter().flatten().map(|e| e.key.as_str()))
        })
    }
}

fn amounts(resources: &Resources) -> AmountsByName {
    resources.iter().map(|(name, amount)| (name.to_owned(), amount)).collect()
}

fn resources(amounts: &AmountsByName) -> Resources {
    amounts.iter().map(|(name, &amount)| (name.as_str(), amount)).collect()
}

/// Members of ranges that were checked when the file was read.
fn members(ranges: &[String]) -> Vec<Member> {
    MemberSet::parse(ranges).unwrap_or_default().into_iter().collect()
}

fn member(range: &str) -> Option<Member> {
    let mut all = MemberSet::parse(&[range]).ok()?.into_iter();
    all.next().filter(|_| all.next().is_none())
}
