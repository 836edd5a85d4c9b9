//! All nodes and pods, updated by events, and snapshots of them.

pub mod background;
pub mod eligibility;
mod mounting;
pub mod neighbours;
pub mod pod_list;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use lockstep_api::ids::{NodeName, Uid};
use lockstep_api::key::Key;
use lockstep_engine::{Cluster, ClusterNode as EngineNode, NodeIx};

use crate::cluster::pod_list::{ListedPod, PodPart, PodRow};
use crate::common::shared::Shared;
use crate::nodes::dims::Dims;
use crate::nodes::node::Node;
use crate::nodes::node_class::{ClassId, NodeClass};
use crate::pods::foreign::UnitMode;
use crate::pods::native_group::{ForeignUnit, NativeGroup, NativeGroups, NativeKind};
use crate::pods::pod::Pod;
use crate::pods::resources::Resources;
use crate::pods::slots::{MOST, is_slot};
use mounting::Mounting;

/// Nodes and pods at one moment. Copied on write, so a clone only increments reference counts.
#[derive(Clone, Debug)]
pub struct Snapshot {
    engine: Arc<Cluster>,
    dims: Arc<Dims>,
    nodes: Arc<Vec<Arc<NodeEntry>>>,
    /// Changes when a node is added, changed or removed.
    nodes_version: u64,
    /// Changes when a node or pod is added, changed or removed.
    version: u64,
    ordinals: Arc<HashMap<NodeName, NodeIx>>,
    listed: PodRow,
    /// Pods with a member label, by UID of their controlling owner.
    owned: Arc<BTreeMap<Uid, Arc<Vec<Arc<Pod>>>>>,
    native_groups: Arc<NativeGroups>,
    mounting: Arc<Mounting>,
}

#[derive(Clone, Debug)]
struct NodeEntry {
    name: NodeName,
    /// `None` if the node was deleted or is only named by pods.
    node: Option<Arc<Node>>,
    class: Option<ClassId>,
    pods: Vec<Arc<Pod>>,
}

impl Snapshot {
    /// Pods that hold capacity and mount the claim.
    pub fn pods_mounting(&self, namespace: &str, claim: &str) -> &[Arc<Pod>] {
        let all = self.nodes.iter().flat_map(|node| &node.pods);
        self.mounting.of((namespace, claim), all)
    }

    pub fn free_capacity(&self) -> &Cluster {
        &self.engine
    }

    pub fn dims(&self) -> &Dims {
        &self.dims
    }

    pub fn ordinal(&self, name: &str) -> Option<NodeIx> {
        self.ordinals.get(name).copied()
    }

    /// `None` for an ordinal of another snapshot.
    pub fn node_name(&self, ix: NodeIx) -> Option<&NodeName> {
        Some(&self.nodes.get(ix)?.name)
    }

    pub fn node(&self, ix: NodeIx) -> Option<&Node> {
        self.nodes.get(ix)?.node.as_deref()
    }

    pub fn class(&self, ix: NodeIx) -> Option<ClassId> {
        self.nodes.get(ix)?.class
    }

    pub fn nodes_version(&self) -> u64 {
        self.nodes_version
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    /// Nodes whose pods have changed since an earlier snapshot of the same model. `None` if a node
    /// or a pod with a member label has changed.
    pub fn pods_changed_since(&self, earlier: &Self) -> Option<Vec<NodeIx>> {
        let same = self.nodes_version == earlier.nodes_version
            && self.nodes.len() == earlier.nodes.len()
            && Arc::ptr_eq(&self.dims, &earlier.dims)
            && Arc::ptr_eq(&self.owned, &earlier.owned)
            && Arc::ptr_eq(&self.native_groups, &earlier.native_groups);
        let both = || self.nodes.iter().zip(earlier.nodes.iter()).enumerate();
        let changed = || both().filter(|(_, (now, then))| !Arc::ptr_eq(now, then));
        same.then(|| changed().map(|(ix, _)| ix).collect())
    }

    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Pods that hold capacity on a node, by namespace and name. This order makes ties
    /// deterministic.
    pub fn pods_on(&self, ix: NodeIx) -> impl Iterator<Item = &Arc<Pod>> {
        self.nodes.get(ix).into_iter().flat_map(|n| &n.pods)
    }

    pub fn listed_pods(&self) -> impl Iterator<Item = &ListedPod> + Clone {
        self.pod_parts().flat_map(|part| &part.pods)
    }

    pub(crate) fn pod_parts(&self) -> impl Iterator<Item = &PodPart> + Clone {
        let on = |ix: NodeIx| self.nodes.get(ix).map_or(&[][..], |node| &node.pods);
        self.listed.parts(on)
    }

    /// Foreign unit of a pod. `None`: the pod is independent.
    pub fn unit<'s>(&'s self, pod: &'s Pod) -> Option<ForeignUnit<'s>> {
        let unit = pod.unit.as_ref()?;
        match unit.mode {
            UnitMode::Native => self.native_groups.unit(&pod.namespace, &unit.key),
            mode => Some(ForeignUnit {
                key: &unit.key,
                whole: mode == UnitMode::Whole,
            }),
        }
    }

    /// True if preemption evicts the pod's foreign unit whole or not at all.
    pub fn goes_whole(&self, pod: &Pod) -> bool {
        self.unit(pod).is_some_and(|unit| unit.whole)
    }

    /// Priority of a foreign pod as a victim: the higher one of the pod's and of its root native
    /// group's. kube-scheduler preempts for a pod with the priority of its root group, so a lower
    /// one would let the two evict each other's pods in turn.
    pub fn victim_priority(&self, pod: &Pod) -> i32 {
        let native = pod.unit.as_ref().filter(|u| u.mode == UnitMode::Native);
        let group = native.and_then(|u| self.native_groups.priority(&pod.namespace, &u.key));
        group.map_or(pod.priority, |group| group.max(pod.priority))
    }

    pub fn pods_of(&self, owner: &str) -> &[Arc<Pod>] {
        self.list_of(owner).map_or(&[], |pods| pods)
    }

    /// As [`Self::pods_of`], as a shared list whose pointer changes with its content. `None`
    /// without pods.
    pub fn list_of(&self, owner: &str) -> Option<&Arc<Vec<Arc<Pod>>>> {
        self.owned.get(owner)
    }
}

/// The model, updated by watch events. A new resource or topology key rebuilds all tables. Any
/// other update costs as much as it changes.
#[derive(Debug)]
pub struct ClusterModel {
    now: Snapshot,
    pods: HashMap<Uid, Arc<Pod>>,
    /// Values that many pods share, stored once.
    labels: Shared<BTreeMap<String, String>>,
    requests: Shared<Resources>,
    namespaces: Shared<str>,
    classes: BTreeMap<NodeClass, ClassId>,
    /// Topology keys of gangs. Those that are labels of nodes are in [`Dims`].
    topology_keys: BTreeSet<String>,
    /// Never decreases, so that no cached verdict applies to another class.
    next_class: ClassId,
}

impl Default for ClusterModel {
    fn default() -> Self {
        let dims = Dims::new([], []);
        let engine = Cluster::new(dims.len(), dims.keys().len());
        Self {
            now: Snapshot {
                engine: Arc::new(engine),
                dims: Arc::new(dims),
                nodes: Arc::default(),
                nodes_version: 0,
                version: 0,
                ordinals: Arc::default(),
                listed: PodRow::default(),
                owned: Arc::default(),
                native_groups: Arc::default(),
                mounting: Arc::default(),
            },
            pods: HashMap::new(),
            labels: Shared::default(),
            requests: Shared::default(),
            namespaces: Shared::default(),
            classes: BTreeMap::new(),
            topology_keys: BTreeSet::new(),
            next_class: 0,
        }
    }
}

impl ClusterModel {
    pub fn snapshot(&self) -> Snapshot {
        self.now.clone()
    }

    /// Adds or updates a node. False if nothing relevant changed, as in most kubelet status
    /// updates.
    pub fn upsert_node(&mut self, node: Node) -> bool {
        let ix = self.entry(&node.name);
        if self.now.node(ix) == Some(&node) {
            return false;
        }
        self.nodes_changed();
        let class = self.class_id(NodeClass::of(&node));
        let entry = Arc::make_mut(&mut Arc::make_mut(&mut self.now.nodes)[ix]);
        entry.class = Some(class);
        let node = Arc::new(node);
        entry.node = Some(Arc::clone(&node));
        let new_keys: Vec<&str> = (node.labels.keys())
            .map(String::as_str)
            .filter(|key| self.topology_keys.contains(*key) && !self.now.dims.has_key(key))
            .collect();
        let mut offered = node.allocatable.iter();
        if offered.all(|(name, _)| self.now.dims.has(name)) && new_keys.is_empty() {
            self.update_engine(ix, &node);
        } else {
            let names: Vec<&str> = self
                .now
                .dims
                .resources()
                .chain(node.allocatable.iter().map(|(name, _)| name))
                .collect();
            let dims = Dims::new(names, self.now.dims.keys().chain(new_keys));
            self.rebuild(dims);
        }
        true
    }

    /// Removes a node. Its pods count until they are removed.
    pub fn remove_node(&mut self, name: &str) {
        let Some(ix) = self.now.ordinal(name) else {
            return;
        };
        let entry = Arc::make_mut(&mut Arc::make_mut(&mut self.now.nodes)[ix]);
        entry.node = None;
        entry.class = None;
        self.nodes_changed();
        Arc::make_mut(&mut self.now.engine).remove_node(ix);
        self.compact();
    }

    /// Adds or updates a pod. False if nothing relevant changed.
    pub fn upsert_pod(&mut self, mut pod: Pod) -> bool {
        if let Some(old) = self.pods.get(&pod.uid) {
            if **old == pod {
                return false;
            }
            // Other tables share this text.
            pod.name = Arc::clone(&old.name);
        }
        self.remove_pod(pod.uid.as_str());
        self.pods_changed();
        self.labels.share(&mut pod.labels);
        self.requests.share(&mut pod.requests);
        self.namespaces.share(&mut pod.namespace);
        let on = pod.held_node().map(|node| self.entry(node));
        if let Some(ix) = on {
            pod.share_node_name(&self.now.nodes[ix].name);
        }
        let pod = Arc::new(pod);
        if let Some(ix) = on {
            let pods = &mut Arc::make_mut(&mut Arc::make_mut(&mut self.now.nodes)[ix]).pods;
            let at = pods.partition_point(|other| order(other) < order(&pod));
            pods.insert(at, Arc::clone(&pod));
            self.now.listed.forget(ix);
            Arc::make_mut(&mut self.now.engine).add_pod(ix, &self.now.dims.amounts(&pod.requests));
        }
        if let Some(owner) = pod.owner.as_ref().filter(|_| pod.member.is_some()) {
            let pods = Arc::make_mut(&mut self.now.owned)
                .entry(owner.clone())
                .or_default();
            Arc::make_mut(pods).push(Arc::clone(&pod));
        }
        self.pods.insert(pod.uid.clone(), pod);
        true
    }

    pub fn pod(&self, uid: &str) -> Option<&Pod> {
        self.pods.get(uid).map(AsRef::as_ref)
    }

    pub fn remove_pod(&mut self, uid: &str) {
        let Some(pod) = self.pods.remove(uid) else {
            return;
        };
        self.pods_changed();
        if let Some(ix) = pod.holds().and_then(|node| self.now.ordinal(node)) {
            let entry = Arc::make_mut(&mut Arc::make_mut(&mut self.now.nodes)[ix]);
            entry.pods.retain(|p| p.uid != uid);
            self.now.listed.forget(ix);
            Arc::make_mut(&mut self.now.engine)
                .remove_pod(ix, &self.now.dims.amounts(&pod.requests));
        }
        if let Some(owner) = &pod.owner
            && self.now.owned.contains_key(owner)
        {
            let owned = Arc::make_mut(&mut self.now.owned);
            if let Some(pods) = owned.get_mut(owner) {
                Arc::make_mut(pods).retain(|p| p.uid != uid);
                if pods.is_empty() {
                    owned.remove(owner);
                }
            }
        }
    }

    /// Sets or removes (`None`) a group of kube-scheduler. False if nothing changed.
    pub fn set_native_group(
        &mut self,
        kind: NativeKind,
        key: &Key,
        group: Option<NativeGroup>,
    ) -> bool {
        if self.now.native_groups.get(kind, key) == group.as_ref() {
            return false;
        }
        Arc::make_mut(&mut self.now.native_groups).set(kind, key, group);
        self.pods_changed();
        true
    }

    pub fn native_groups(&self, kind: NativeKind) -> Vec<Key> {
        self.now.native_groups.keys(kind)
    }

    /// Makes a node label a topology key, until [`Self::forget_unused`]. A label that no node has
    /// had takes no space, so the labels of the nodes bound what workloads can add.
    pub fn use_topology_key(&mut self, key: &str) {
        if !self.topology_keys.insert(key.to_owned()) {
            return;
        }
        let mut nodes = self
            .now
            .nodes
            .iter()
            .filter_map(|entry| entry.node.as_ref());
        if nodes.any(|node| node.labels.contains_key(key)) {
            let dims = &self.now.dims;
            let dims = Dims::new(dims.resources(), dims.keys().chain([key]));
            self.rebuild(dims);
        }
    }

    /// Adds these slots to every node, until [`Self::forget_unused`]. Ignores slots beyond the
    /// limit.
    pub fn use_slots<'s>(&mut self, slots: impl IntoIterator<Item = &'s str>) {
        let dims = &self.now.dims;
        let used = dims.resources().filter(|name| is_slot(name)).count();
        let new: BTreeSet<&str> = slots
            .into_iter()
            .filter(|slot| is_slot(slot) && !dims.has(slot))
            .take(MOST.saturating_sub(used))
            .collect();
        if !new.is_empty() {
            let names = dims.resources().chain(new);
            let dims = Dims::new(names, dims.keys());
            self.rebuild(dims);
        }
    }

    /// True after [`Self::use_topology_key`].
    pub fn has_topology_key(&self, key: &str) -> bool {
        self.topology_keys.contains(key)
    }

    pub fn has_slot(&self, slot: &str) -> bool {
        self.now.dims.has(slot)
    }

    pub fn forget_unused(&mut self, keys: &BTreeSet<&str>, slots: &BTreeSet<&str>) {
        self.topology_keys.retain(|key| keys.contains(key.as_str()));
        let dims = &self.now.dims;
        let used = |name: &&str| !is_slot(name) || slots.contains(name);
        let names = dims.resources().filter(used);
        let dims = Dims::new(names, dims.keys().filter(|key| keys.contains(key)));
        if dims.len() < self.now.dims.len() || dims.keys().len() < self.now.dims.keys().len() {
            self.rebuild(dims);
        }
    }

    fn nodes_changed(&mut self) {
        self.now.nodes_version += 1;
        self.pods_changed();
    }

    fn pods_changed(&mut self) {
        self.now.mounting = Arc::default();
        self.now.version += 1;
    }

    fn entry(&mut self, name: &NodeName) -> NodeIx {
        if let Some(ix) = self.now.ordinal(name.as_str()) {
            return ix;
        }
        let nodes = Arc::make_mut(&mut self.now.nodes);
        nodes.push(Arc::new(NodeEntry {
            name: name.clone(),
            node: None,
            class: None,
            pods: Vec::new(),
        }));
        Arc::make_mut(&mut self.now.ordinals).insert(name.clone(), nodes.len() - 1);
        self.now.listed.grow(nodes.len());
        nodes.len() - 1
    }

    fn class_id(&mut self, class: NodeClass) -> ClassId {
        // Label changes leave unused classes. A reset costs one evaluation per class.
        if self.classes.len() > 1024.max(4 * self.now.nodes.len()) {
            self.classes.clear();
        }
        *self.classes.entry(class).or_insert_with(|| {
            self.next_class += 1;
            self.next_class
        })
    }

    fn update_engine(&mut self, ix: NodeIx, node: &Node) {
        let dims = Arc::make_mut(&mut self.now.dims);
        let spec = EngineNode {
            allocatable: dims.offered(node),
            domains: dims.domains_of(node),
            schedulable: node.state.takes_pods(),
        };
        Arc::make_mut(&mut self.now.engine).upsert_node(ix, &spec);
    }

    /// Drops the ordinals of deleted nodes once they are the majority, because clusters may never
    /// reuse a node name.
    fn compact(&mut self) {
        const SLACK: usize = 64;
        let unused = self
            .now
            .nodes
            .iter()
            .filter(|n| n.node.is_none() && n.pods.is_empty())
            .count();
        if unused > SLACK.max(self.now.nodes.len() / 2) {
            let dims = Dims::new(self.now.dims.resources(), self.now.dims.keys());
            self.rebuild(dims);
        }
    }

    fn rebuild(&mut self, dims: Dims) {
        let mut entries: Vec<Arc<NodeEntry>> = self
            .now
            .nodes
            .iter()
            .filter(|n| n.node.is_some() || !n.pods.is_empty())
            .cloned()
            .collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let ordinals = entries
            .iter()
            .enumerate()
            .map(|(ix, e)| (e.name.clone(), ix))
            .collect();
        let mut engine = Cluster::new(dims.len(), dims.keys().len());
        engine.set_accelerators(dims.extended().map(|(dim, _)| dim).collect());
        self.now.engine = Arc::new(engine);
        self.now.dims = Arc::new(dims);
        self.now.ordinals = Arc::new(ordinals);
        self.nodes_changed();
        for (ix, entry) in entries.iter().enumerate() {
            if let Some(node) = &entry.node {
                self.update_engine(ix, node);
            }
            for pod in &entry.pods {
                Arc::make_mut(&mut self.now.engine)
                    .add_pod(ix, &self.now.dims.amounts(&pod.requests));
            }
        }
        self.now.listed = PodRow::default();
        self.now.listed.grow(entries.len());
        self.now.nodes = Arc::new(entries);
    }
}

fn order(pod: &Pod) -> (&str, &str, &str) {
    (&pod.namespace, &pod.name, pod.uid.as_str())
}

#[cfg(test)]
mod tests;
