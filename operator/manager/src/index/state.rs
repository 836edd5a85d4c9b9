//! What is held of the cluster: one table per kind, and the ways from one object to another.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use lockstep_api::scheduling::PreemptionPolicy;
use lockstep_api::{NodeAgentStatus, PodGroup, RestartOrder, TrainingWorkload, Workload};
use lockstep_lifecycle::PodView;
use lockstep_lifecycle::view::{AgentInfo, Held, NodeInfo, ServiceContent};
use lockstep_model::{Budget, ClusterModel};

use super::Kind;

/// Namespace and name; the namespace of cluster-scoped objects is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// The key of an object.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of an object, from its metadata.
    pub fn of<K: kube::Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What a change concerns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Workloads that need a pass.
    pub workloads: BTreeSet<Key>,
    /// Whether the scheduler has to look.
    pub scheduler: bool,
}

/// A priority class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityClassEntry {
    /// Value.
    pub value: i32,
    /// Policy.
    pub preemption: PreemptionPolicy,
    /// Priority that gangs of the class have as victims, once they run.
    pub preemption_priority: Option<i32>,
    /// Whether it is the cluster's default.
    pub default: bool,
}

/// A pod of a workload.
#[derive(Clone, Debug)]
pub(super) struct PodEntry {
    pub uid: String,
    /// UID of the workload in its label, and the view.
    pub member: Option<(String, Arc<PodView>)>,
}

/// The tables. Readers hold the index's lock while they look, and take `Arc`s away.
#[derive(Debug, Default)]
pub struct State {
    /// Workloads that this operator manages and could read.
    pub workloads: BTreeMap<Key, Arc<TrainingWorkload>>,
    /// Workloads by UID.
    pub(super) workload_keys: HashMap<String, Key>,
    /// Our pod groups.
    pub pod_groups: BTreeMap<Key, Arc<PodGroup>>,
    /// Our Workloads.
    pub scheduling: BTreeMap<Key, Arc<Workload>>,
    /// Services with the workload label, with the UID of their controller.
    pub(super) services: BTreeMap<Key, (String, Held<ServiceContent>)>,
    /// Orders.
    pub(super) orders: BTreeMap<Key, Arc<RestartOrder>>,
    /// Nodes, as decisions about their members see them.
    pub nodes: BTreeMap<String, Arc<NodeInfo>>,
    /// Agents by node.
    pub agents: BTreeMap<String, Arc<AgentInfo>>,
    /// Node and readiness of the agents' own pods.
    pub(super) agent_pods: HashMap<Key, (String, bool)>,
    /// How many ready agent pods a node has.
    pub(super) ready_agents: HashMap<String, usize>,
    /// Priority classes.
    pub priority_classes: BTreeMap<String, PriorityClassEntry>,
    /// Disruption budgets.
    pub budgets: BTreeMap<Key, Arc<Budget>>,
    /// Nodes and all pods, as the scheduler sees them.
    pub model: ClusterModel,
    pub(super) pods: HashMap<Key, PodEntry>,
    /// Pods by the workload UID in their label.
    pub(super) members: HashMap<String, BTreeSet<Key>>,
    /// How many pods of which workload (by UID) a node has, pins included.
    pub(super) on_node: HashMap<String, HashMap<String, usize>>,
    /// Versions of `scheduling.k8s.io` that serve pod groups, once that is known.
    pub native: Option<Arc<[String]>>,
    /// Objects of ours that could not be read, and why. They are left alone.
    pub unreadable: BTreeMap<(Kind, Key), String>,
}

impl State {
    /// The workload with a UID.
    pub fn workload_by_uid(&self, uid: &str) -> Option<&Arc<TrainingWorkload>> {
        self.workloads.get(self.workload_keys.get(uid)?)
    }

    /// The pods that carry a workload's label, in the order of their names.
    pub fn members_of(&self, workload_uid: &str) -> impl Iterator<Item = &Arc<PodView>> {
        self.members
            .get(workload_uid)
            .into_iter()
            .flatten()
            .filter_map(|key| self.pods.get(key)?.member.as_ref().map(|(_, view)| view))
    }

    /// Number of objects of each kind.
    pub fn counts(&self) -> [(Kind, usize); Kind::ALL.len()] {
        Kind::ALL.map(|kind| {
            let count = match kind {
                Kind::TrainingWorkload => self.workloads.len(),
                Kind::RestartOrder => self.orders.len(),
                Kind::NodeAgent => self.agents.len(),
                Kind::Workload => self.scheduling.len(),
                Kind::PodGroup => self.pod_groups.len(),
                Kind::Service => self.services.len(),
                Kind::Pod => self.pods.len(),
                Kind::Node => self.nodes.len(),
                Kind::PriorityClass => self.priority_classes.len(),
                Kind::PodDisruptionBudget => self.budgets.len(),
            };
            (kind, count)
        })
    }

    pub(super) fn touch_uid(&self, uid: &str, touched: &mut Touched) {
        if let Some(key) = self.workload_keys.get(uid) {
            touched.workloads.insert(key.clone());
        }
    }

    /// A node has changed: everybody who has a pod or a placed member there needs a pass.
    pub(super) fn touch_node(&self, node: &str, touched: &mut Touched) {
        for uid in self.on_node.get(node).into_iter().flat_map(HashMap::keys) {
            self.touch_uid(uid, touched);
        }
        for group in self.pod_groups.values() {
            let placement = group.status.as_ref().and_then(|s| s.placement.as_ref());
            if placement.is_some_and(|p| p.nodes.iter().any(|n| n.node == node))
                && let Some(uid) = controller_uid(&**group)
            {
                self.touch_uid(uid, touched);
            }
        }
    }

    pub(super) fn link_member(&mut self, key: &Key, uid: &str, view: &PodView) {
        self.members.entry(uid.to_owned()).or_default().insert(key.clone());
        for node in member_nodes(view) {
            *self.on_node.entry(node.to_owned()).or_default().entry(uid.to_owned()).or_default() += 1;
        }
    }

    pub(super) fn unlink_member(&mut self, key: &Key, uid: &str, view: &PodView) {
        if let Some(keys) = self.members.get_mut(uid) {
            keys.remove(key);
            if keys.is_empty() {
                self.members.remove(uid);
            }
        }
        for node in member_nodes(view) {
            let Some(workloads) = self.on_node.get_mut(node) else { continue };
            if let Some(count) = workloads.get_mut(uid) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    workloads.remove(uid);
                }
            }
            if workloads.is_empty() {
                self.on_node.remove(node);
            }
        }
    }

    /// Takes note of an agent's own pod; `None`: it is gone. True when the readiness of the node's agent changed.
    pub(super) fn set_agent_pod(&mut self, key: &Key, seen: Option<(String, bool)>) -> bool {
        let old = match &seen {
            Some(seen) => self.agent_pods.insert(key.clone(), seen.clone()),
            None => self.agent_pods.remove(key),
        };
        if old == seen {
            return false;
        }
        let mut changed = false;
        for (gain, (node, ready)) in [(false, old), (true, seen)].into_iter().filter_map(|(g, s)| Some((g, s?))) {
            let count = self.ready_agents.entry(node.clone()).or_default();
            if ready {
                *count = if gain { *count + 1 } else { count.saturating_sub(1) };
            }
            let now_ready = *count > 0;
            if let Some(agent) = self.agents.get_mut(&node).filter(|agent| agent.ready != now_ready) {
                Arc::make_mut(agent).ready = now_ready;
                changed = true;
            }
        }
        changed
    }

    /// Takes note of what an agent has published; true when it is news.
    pub(super) fn set_agent(&mut self, node: &str, status: NodeAgentStatus) -> bool {
        let ready = self.ready_agents.get(node).is_some_and(|count| *count > 0);
        let agent = AgentInfo { ready, status };
        if self.agents.get(node).is_some_and(|old| **old == agent) {
            return false;
        }
        self.agents.insert(node.to_owned(), Arc::new(agent));
        true
    }
}

/// Nodes on which a member's pod is, or is to be: each once.
fn member_nodes(view: &PodView) -> impl Iterator<Item = &str> {
    let pinned = view.pinned.as_deref().filter(|p| view.node.as_deref() != Some(p));
    view.node.as_deref().into_iter().chain(pinned)
}

/// UID of an object's controlling owner.
pub fn controller_uid<K: kube::Resource>(object: &K) -> Option<&str> {
    object.meta().owner_references.iter().flatten().find(|o| o.controller == Some(true)).map(|o| o.uid.as_str())
}
