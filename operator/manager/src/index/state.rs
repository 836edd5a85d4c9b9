use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::condition::types;
use lockstep_api::ids::{NodeName, ResourceVersion, Uid};
use lockstep_api::member::Member;
use lockstep_api::scheduling::NodePlacement;
use lockstep_api::{
    NodeAgentStatus, NodeState, PodGroup, RestartOrder, TrainingWorkload, Workload,
};
use lockstep_lifecycle::PodView;
use lockstep_lifecycle::nodes::{AgentInfo, NodeInfo};
use lockstep_lifecycle::view::{Held, NativePodGroup, ServiceContent};
use lockstep_lifecycle::zones::{ZoneInfo, reach};
use lockstep_model::{
    AdmittedPods, Budget, ClusterModel, Node, PriorityClass, Quota, Storage, Weights,
};
use lockstep_scheduler::GangInput;

use super::agents::AgentTable;
use super::kueue_table::KueueTable;
use super::provisioning_table::ProvisioningTable;
use super::signals::SignalTable;
use super::watched_kind::WatchedKind;

pub use lockstep_api::key::Key;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    pub workloads: BTreeSet<Key>,
    /// Workloads whose spec has changed, or that were deleted.
    pub urgent: BTreeSet<Key>,
    pub scheduler: bool,
    /// True if the signals of a node have changed.
    pub signals: bool,
    /// True if a node demand, or an object that serves one, has changed.
    pub provisioning: bool,
}

/// A Lockstep object with its identity at the read.
#[derive(Clone, Debug)]
pub struct Identified<K> {
    pub uid: Uid,
    pub version: ResourceVersion,
    pub object: Arc<K>,
}

#[derive(Clone, Debug)]
pub(super) struct PodEntry {
    pub uid: Uid,
    /// UID of the controlling workload, and the pod's view.
    pub member: Option<(Uid, Arc<PodView>)>,
}

#[derive(Debug)]
pub(super) struct AgentPods {
    pub bound: usize,
    pub ready: usize,
    /// Since when this is so: some pod is ready, or none is.
    pub since: DateTime<Utc>,
}

#[derive(Debug)]
pub(super) struct AdmittedSpec {
    pub spec_hash: String,
    pub pods: AdmittedPods,
}

/// Readers hold the lock only to clone `Arc`s.
#[derive(Debug, Default)]
pub struct State {
    /// Without unreadable workloads and workloads of other managers.
    pub workloads: BTreeMap<Key, Arc<TrainingWorkload>>,
    pub(super) workload_keys: HashMap<Uid, Key>,
    /// Workloads by the name of their Service.
    pub(super) in_need_of: HashMap<Key, BTreeSet<Key>>,
    pub pod_groups: BTreeMap<Key, Arc<PodGroup>>,
    pub(super) placed_on: HashMap<NodeName, BTreeSet<Key>>,
    pub(super) admitted: HashMap<Uid, AdmittedSpec>,
    pub(super) revision: u64,
    pub gang_inputs: BTreeMap<Key, Arc<GangInput>>,
    pub(super) scheduling: BTreeMap<Key, Identified<Workload>>,
    /// With the UIDs of their controllers.
    pub(super) services: BTreeMap<Key, (Option<Uid>, Held<ServiceContent>)>,
    pub(super) orders: BTreeMap<Key, Identified<RestartOrder>>,
    /// True if the API server supports native groups. `None`: not tested yet.
    pub native_supported: Option<bool>,
    /// With the UIDs of their controllers.
    pub(super) native_workloads: BTreeMap<Key, (Option<Uid>, Held<()>)>,
    /// With the UIDs of their controllers.
    pub(super) native_pod_groups: BTreeMap<Key, (Option<Uid>, Held<NativePodGroup>)>,
    pub(super) kueue: KueueTable,
    pub nodes: BTreeMap<NodeName, Arc<NodeInfo>>,
    pub(super) signals: SignalTable,
    pub(super) zones: BTreeMap<String, ZoneInfo>,
    /// True if a node has changed since the last computation of `zones`.
    pub(super) zones_due: bool,
    pub agents: AgentTable,
    pub(super) agent_pods: HashMap<Key, (NodeName, bool)>,
    pub(super) agents_of: HashMap<NodeName, AgentPods>,
    pub priority_classes: BTreeMap<String, PriorityClass>,
    pub budgets: BTreeMap<Key, Arc<Budget>>,
    pub storage: Storage,
    pub quotas: BTreeMap<Key, Arc<Quota>>,
    pub(super) namespaces: BTreeSet<String>,
    pub weights: Arc<Weights>,
    pub model: ClusterModel,
    pub(super) pods: HashMap<Key, PodEntry>,
    /// By the UID of the controlling workload.
    pub(super) members: HashMap<Uid, BTreeSet<Key>>,
    /// The last deleted pods of members, by the UID of the controlling workload, if they were
    /// disrupted before. A reconcile after the deletion needs the cause.
    pub(super) disrupted: HashMap<Uid, BTreeMap<Member, Arc<PodView>>>,
    /// Number of bound or pinned pods per workload UID.
    pub(super) on_node: HashMap<NodeName, HashMap<Uid, usize>>,
    pub(super) provisioning: ProvisioningTable,
    pub(super) received_at: DateTime<Utc>,
    /// Ignored objects, with the reason.
    pub unreadable: BTreeMap<(WatchedKind, Key), String>,
}

impl State {
    pub fn uid_of(&self, key: &Key) -> Option<Uid> {
        Uid::read(self.workloads.get(key)?.metadata.uid.as_deref())
    }

    pub fn has_namespace(&self, name: &str) -> bool {
        let mut from = self.workloads.range(Key::new(name, "")..);
        self.namespaces.contains(name)
            || from.next().is_some_and(|(key, _)| *key.namespace == *name)
    }

    /// Pods that the workload controls, sorted by name.
    ///
    /// The API server does not check the namespace of an owner, and UIDs are no secret. So a pod of
    /// another namespace is never a member.
    pub fn members_of<'s>(
        &'s self,
        namespace: &'s str,
        workload_uid: &str,
    ) -> impl Iterator<Item = &'s Arc<PodView>> {
        self.members
            .get(workload_uid)
            .into_iter()
            .flatten()
            .filter(move |key| *key.namespace == *namespace)
            .filter_map(|key| self.pods.get(key)?.member.as_ref().map(|(_, view)| view))
    }

    pub fn has_members(&self, node: &NodeName) -> bool {
        self.on_node.contains_key(node)
    }

    pub fn nodes_with_members(&self) -> impl Iterator<Item = &NodeName> {
        self.on_node.keys()
    }

    pub fn counts(&self) -> [(WatchedKind, usize); WatchedKind::ALL.len()] {
        WatchedKind::ALL.map(|kind| {
            let count = match kind {
                WatchedKind::TrainingWorkload => self.workloads.len(),
                WatchedKind::RestartOrder => self.orders.len(),
                WatchedKind::NodeAgent => self.agents.len(),
                WatchedKind::Workload => self.scheduling.len(),
                WatchedKind::PodGroup => self.pod_groups.len(),
                WatchedKind::NativeWorkload => self.native_workloads.len(),
                WatchedKind::NativePodGroup => self.native_pod_groups.len(),
                WatchedKind::Service => self.services.len(),
                WatchedKind::Pod => self.pods.len(),
                WatchedKind::Node => self.nodes.len(),
                WatchedKind::PriorityClass => self.priority_classes.len(),
                WatchedKind::PodDisruptionBudget => self.budgets.len(),
                WatchedKind::PersistentVolumeClaim => self.storage.claims.len(),
                WatchedKind::PersistentVolume => self.storage.volumes.len(),
                WatchedKind::StorageClass => self.storage.classes.len(),
                WatchedKind::ResourceQuota => self.quotas.len(),
                WatchedKind::Namespace => self.namespaces.len(),
                WatchedKind::ProvisioningRequest => self.provisioning.requests.len(),
                WatchedKind::PodTemplate => self.provisioning.templates.len(),
                WatchedKind::KueueWorkload
                | WatchedKind::ResourceFlavor
                | WatchedKind::WorkloadPriorityClass => self.kueue.count(kind),
            };
            (kind, count)
        })
    }

    /// Queues the workload with this UID, if it is in the namespace of the object that names it.
    pub(super) fn touch_owner(&self, namespace: &str, uid: &str, touched: &mut Touched) {
        if let Some(key) = self
            .workload_keys
            .get(uid)
            .filter(|key| *key.namespace == *namespace)
        {
            touched.workloads.insert(key.clone());
        }
    }

    /// Queues workloads that can wait for the name of a changed Service.
    pub(super) fn touch_service(&self, service: &Key, touched: &mut Touched) {
        let concerned = self.in_need_of.get(service).into_iter().flatten();
        touched.workloads.extend(concerned.cloned());
    }

    /// `None` deletes the workload. Returns the previous one.
    pub(super) fn set_workload(
        &mut self,
        key: &Key,
        workload: Option<Arc<TrainingWorkload>>,
    ) -> Option<Arc<TrainingWorkload>> {
        let now = workload.as_deref().map(|w| service_of(key, w));
        let old = match workload {
            Some(workload) => self.workloads.insert(key.clone(), workload),
            None => self.workloads.remove(key),
        };
        let before = old.as_deref().map(|w| service_of(key, w));
        if before == now {
            return old;
        }
        if let Some(before) = before {
            remove_from(&mut self.in_need_of, &before, key);
        }
        if let Some(now) = now {
            self.in_need_of.entry(now).or_default().insert(key.clone());
        }
        old
    }

    /// Queues workloads with a pod or a placed member on this node.
    pub(super) fn touch_node(&self, node: &NodeName, touched: &mut Touched) {
        for uid in self.on_node.get(node).into_iter().flat_map(HashMap::keys) {
            touched
                .workloads
                .extend(self.workload_keys.get(uid.as_str()).cloned());
        }
        for key in self.placed_on.get(node).into_iter().flatten() {
            if let Some(uid) = self.pod_groups.get(key).and_then(|g| controller_uid(&**g)) {
                self.touch_owner(&key.namespace, uid, touched);
            }
        }
    }

    /// Recomputes the zones, and the states of their silent nodes. Queues workloads on changed nodes.
    pub(super) fn follow_zones(&mut self, touched: &mut Touched) {
        if !std::mem::take(&mut self.zones_due) {
            return;
        }
        let zones = ZoneInfo::of(self.nodes.values().map(AsRef::as_ref));
        if zones == self.zones {
            return;
        }
        let mut changed = Vec::new();
        for (name, node) in &mut self.nodes {
            let reach = reach(node, zones.get(&node.zone));
            if reach != node.state.reach {
                Arc::make_mut(node).state.reach = reach;
                touched.scheduler |= set_state(&mut self.model, name, node.state);
                changed.push(name.clone());
            }
        }
        self.zones = zones;
        for name in &changed {
            self.touch_node(name, touched);
        }
    }

    /// `None` deletes the pod group. Returns the previous one.
    pub(super) fn set_pod_group(
        &mut self,
        key: &Key,
        group: Option<Arc<PodGroup>>,
    ) -> Option<Arc<PodGroup>> {
        let before = self.pod_groups.get(key).map(|g| &**g);
        // This comparison avoids copying thousands of node names.
        if placed_nodes(before) != placed_nodes(group.as_deref()) {
            let (before, now) = (node_names(before), node_names(group.as_deref()));
            for node in before.difference(&now) {
                remove_from(&mut self.placed_on, node, key);
            }
            for node in now.difference(&before) {
                let groups = self.placed_on.entry(node.clone()).or_default();
                groups.insert(key.clone());
            }
        }
        match group {
            Some(group) => self.pod_groups.insert(key.clone(), group),
            None => self.pod_groups.remove(key),
        }
    }

    pub(super) fn link_member(&mut self, key: &Key, workload: &Uid, view: &PodView) {
        let members = self.members.entry(workload.clone()).or_default();
        members.insert(key.clone());
        if let (Some(pods), Some(member)) =
            (self.disrupted.get_mut(workload), &view.identity.member)
        {
            pods.remove(member);
        }
        for node in member_nodes(view) {
            let workloads = self.on_node.entry(node).or_default();
            *workloads.entry(workload.clone()).or_default() += 1;
        }
    }

    pub(super) fn unlink_member(&mut self, key: &Key, workload: &Uid, view: &PodView) {
        remove_from(&mut self.members, workload, key);
        for node in member_nodes(view) {
            let Some(workloads) = self.on_node.get_mut(&node) else {
                continue;
            };
            if let Some(count) = workloads.get_mut(workload) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    workloads.remove(workload);
                }
            }
            if workloads.is_empty() {
                self.on_node.remove(&node);
            }
        }
    }

    /// Keeps the last deleted pod of each member of a workload in its namespace, if it was disrupted.
    pub(super) fn keep_disrupted(&mut self, key: &Key, workload: &Uid, view: &Arc<PodView>) {
        let owner = self.workload_keys.get(workload);
        let is_owned = owner.is_some_and(|owner| owner.namespace == key.namespace);
        let Some(member) = view.identity.member.as_ref().filter(|_| is_owned) else {
            return;
        };
        if view.condition(types::DISRUPTION_TARGET).is_some() {
            let pods = self.disrupted.entry(workload.clone()).or_default();
            pods.insert(member.clone(), Arc::clone(view));
        } else if let Some(pods) = self.disrupted.get_mut(workload) {
            pods.remove(member);
        }
    }

    /// `None`: deleted or not bound. Returns the nodes whose agent readiness changed.
    pub(super) fn set_agent_pod(
        &mut self,
        key: &Key,
        agent_pod: Option<(NodeName, bool)>,
    ) -> Vec<NodeName> {
        let old = match &agent_pod {
            Some(agent_pod) => self.agent_pods.insert(key.clone(), agent_pod.clone()),
            None => self.agent_pods.remove(key),
        };
        if old == agent_pod {
            return Vec::new();
        }
        let mut changed = Vec::new();
        if let Some((node, ready)) = old {
            self.count_agents(&node, |pods| {
                pods.bound = pods.bound.saturating_sub(1);
                pods.ready = pods.ready.saturating_sub(usize::from(ready));
            });
            changed.push(node);
        }
        if let Some((node, ready)) = agent_pod {
            self.count_agents(&node, |pods| {
                pods.bound += 1;
                pods.ready += usize::from(ready);
            });
            changed.push(node);
        }
        changed.retain(|node| self.refresh_agent(node));
        for node in &changed {
            self.forget_agent_pods(node.as_str());
        }
        changed
    }

    fn count_agents(&mut self, node: &NodeName, change: impl Fn(&mut AgentPods)) {
        let since = self.received_at;
        let pods = self.agents_of.entry(node.clone()).or_insert(AgentPods {
            bound: 0,
            ready: 0,
            since,
        });
        let before = pods.ready;
        change(pods);
        if (pods.ready > 0) != (before > 0) {
            pods.since = since;
        }
    }

    /// Forgets a node without agent pod and `NodeAgent`: the node is gone.
    pub(super) fn forget_agent_pods(&mut self, node: &str) {
        let is_unused = self.agents_of.get(node).is_some_and(|pods| pods.bound == 0);
        if is_unused && !self.agents.contains_key(node) {
            self.agents_of.remove(node);
        }
    }

    /// `None` if the node never had an agent pod.
    pub(super) fn agent_pods_of(&self, node: &str) -> Option<&AgentPods> {
        self.agents_of.get(node)
    }

    fn has_ready_agent(&self, node: &str) -> bool {
        let pods = self.agent_pods_of(node);
        pods.is_some_and(|pods| pods.ready > 0)
    }

    /// The agent of a node. If its NodeAgent was deleted while its pod is ready, the result has no
    /// details: the agent will recreate the object.
    pub(super) fn agent(&self, node: &str) -> Option<Arc<AgentInfo>> {
        let published = self.agents.get(node).cloned();
        let ready = self.has_ready_agent(node);
        published.or_else(|| ready.then(bare_agent))
    }

    /// True if the agent changed or the NodeAgent is unknown.
    fn refresh_agent(&mut self, node: &NodeName) -> bool {
        let ready = self.has_ready_agent(node.as_str());
        self.agents.set_ready(node, ready).unwrap_or(true)
    }

    pub(super) fn set_agent(&mut self, node: &NodeName, status: NodeAgentStatus) -> bool {
        let ready = self.has_ready_agent(node.as_str());
        let before = self.agents.get(node);
        let agent = AgentInfo::received(ready, status, before.map(AsRef::as_ref), self.received_at);
        if before.is_some_and(|old| **old == agent) {
            return false;
        }
        self.agents.insert(node.clone(), Arc::new(agent));
        true
    }
}

fn service_of(key: &Key, workload: &TrainingWorkload) -> Key {
    let name = workload.spec.network.subdomain_of(&key.name);
    Key::new(&key.namespace, name)
}

fn bare_agent() -> Arc<AgentInfo> {
    Arc::new(AgentInfo {
        ready: true,
        ..AgentInfo::default()
    })
}

fn remove_from<K: Eq + Hash>(sets: &mut HashMap<K, BTreeSet<Key>>, of: &K, key: &Key) {
    if let Some(set) = sets.get_mut(of) {
        set.remove(key);
        if set.is_empty() {
            sets.remove(of);
        }
    }
}

fn placed_nodes(group: Option<&PodGroup>) -> &[NodePlacement] {
    let status = group.and_then(|g| g.status.as_ref());
    let placement = status.and_then(|s| s.placement.as_ref());
    placement.map_or(&[], |p| &p.nodes)
}

fn node_names(group: Option<&PodGroup>) -> BTreeSet<NodeName> {
    let nodes = placed_nodes(group).iter();
    nodes
        .filter_map(|n| NodeName::read(Some(&n.node)))
        .collect()
}

fn member_nodes(view: &PodView) -> impl Iterator<Item = NodeName> {
    let bound = view.node.as_deref();
    let pinned = view.pinned.as_deref().filter(|p| bound != Some(p));
    [bound, pinned].into_iter().filter_map(NodeName::read)
}

pub(super) fn node_key(name: &NodeName) -> Key {
    Key::new("", name.as_str())
}

pub fn controller_uid<K: kube::Resource>(object: &K) -> Option<&str> {
    object
        .meta()
        .owner_references
        .iter()
        .flatten()
        .find(|o| o.controller == Some(true))
        .map(|o| o.uid.as_str())
        .filter(|uid| !uid.is_empty())
}

/// False if nothing changed.
pub(super) fn set_state(model: &mut ClusterModel, name: &NodeName, state: NodeState) -> bool {
    let now = model.snapshot();
    let node = now.ordinal(name.as_str()).and_then(|ix| now.node(ix));
    let changed = node.map(|node| Node {
        state,
        ..node.clone()
    });
    drop(now);
    changed.is_some_and(|node| model.upsert_node(node))
}
