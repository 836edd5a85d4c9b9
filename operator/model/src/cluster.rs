//! All nodes and pods, kept up to date event by event, and snapshots of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use lockstep_engine::{Cluster, ClusterNode as EngineNode, NodeIx};

use crate::dims::Dims;
use crate::node::Node;
use crate::node_class::{ClassId, NodeClass};
use crate::pod::Pod;
use crate::resources::Resources;
use crate::slots::{MOST, is_slot};

/// Nodes and pods as of one moment. Cloning costs a few reference counts: the model copies what it
/// changes while a snapshot is alive, and no more than that.
#[derive(Clone, Debug)]
pub struct Snapshot {
    engine: Arc<Cluster>,
    dims: Arc<Dims>,
    nodes: Arc<Vec<Arc<NodeEntry>>>,
    /// Another number whenever a node has changed, come or gone.
    nodes_version: u64,
    /// Another number whenever a node or a pod has changed, come or gone.
    version: u64,
    ordinals: Arc<BTreeMap<String, NodeIx>>,
    /// Pods by the UID of their controlling owner, for the owners that were asked for.
    owned: Arc<BTreeMap<String, Arc<Vec<Arc<Pod>>>>>,
}

/// One node and the pods that take capacity on it.
#[derive(Clone, Debug, Default)]
struct NodeEntry {
    name: String,
    /// `None` once it was deleted, and for a node that only pods speak of.
    node: Option<Arc<Node>>,
    class: Option<ClassId>,
    pods: Vec<Arc<Pod>>,
}

impl Snapshot {
    /// Free capacity by node ordinal, pods counted where they hold capacity.
    pub fn free_capacity(&self) -> &Cluster {
        &self.engine
    }

    /// Names of dimensions and domains.
    pub fn dims(&self) -> &Dims {
        &self.dims
    }

    /// Ordinal of a node that exists or that pods speak of.
    pub fn ordinal(&self, name: &str) -> Option<NodeIx> {
        self.ordinals.get(name).copied()
    }

    /// Name of a node by ordinal.
    pub fn node_name(&self, ix: NodeIx) -> &str {
        self.nodes.get(ix).map_or("", |n| &n.name)
    }

    /// A node that exists.
    pub fn node(&self, ix: NodeIx) -> Option<&Node> {
        self.nodes.get(ix)?.node.as_deref()
    }

    /// Class of a node that exists.
    pub fn class(&self, ix: NodeIx) -> Option<ClassId> {
        self.nodes.get(ix)?.class
    }

    /// A number that stays the same while all nodes stay as they are, whatever their pods do.
    pub fn nodes_version(&self) -> u64 {
        self.nodes_version
    }

    /// A number that stays the same while nothing changes.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// One more than the largest node ordinal.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Pods that take capacity on a node.
    pub fn pods_on(&self, ix: NodeIx) -> impl Iterator<Item = &Arc<Pod>> {
        self.nodes.get(ix).into_iter().flat_map(|n| &n.pods)
    }

    /// Pods controlled by an owner.
    pub fn pods_of(&self, owner: &str) -> &[Arc<Pod>] {
        self.owned.get(owner).map_or(&[], |pods| pods)
    }
}

/// The model that watch events keep up to date. All changes are proportional to what changes,
/// except that a resource or topology key that was never seen before rebuilds the tables.
#[derive(Debug)]
pub struct ClusterModel {
    now: Snapshot,
    pods: HashMap<String, Arc<Pod>>,
    /// Equal labels and requests are held once: pods come in large families.
    labels: Shared<BTreeMap<String, String>>,
    requests: Shared<Resources>,
    classes: BTreeMap<NodeClass, ClassId>,
    /// Never goes back, so that a verdict kept for a class is never taken for another's.
    next_class: ClassId,
}

impl Default for ClusterModel {
    fn default() -> Self {
        let dims = Dims::new([], Vec::new());
        Self {
            now: Snapshot {
                engine: Arc::new(Cluster::new(dims.len(), 0)),
                dims: Arc::new(dims),
                nodes: Arc::default(),
                nodes_version: 0,
                version: 0,
                ordinals: Arc::default(),
                owned: Arc::default(),
            },
            pods: HashMap::new(),
            labels: Shared::default(),
            requests: Shared::default(),
            classes: BTreeMap::new(),
            next_class: 0,
        }
    }
}

impl ClusterModel {
    /// The state as of now.
    pub fn snapshot(&self) -> Snapshot {
        self.now.clone()
    }

    /// Adds or changes a node; false when it was there just so (a kubelet's status update mostly
    /// changes nothing here).
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
        if node
            .allocatable
            .iter()
            .all(|(name, _)| self.now.dims.has(name))
        {
            self.tell_engine(ix, &node);
        } else {
            let names: Vec<&str> = self
                .now
                .dims
                .resources()
                .chain(node.allocatable.iter().map(|(name, _)| name))
                .collect();
            self.rebuild(Dims::new(names, self.now.dims.keys().to_vec()));
        }
        true
    }

    /// Takes a node away. Its pods are counted until they are removed themselves.
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

    /// Adds or changes a pod; false when it was there just so.
    pub fn upsert_pod(&mut self, mut pod: Pod) -> bool {
        if self.pods.get(&pod.uid).is_some_and(|old| **old == pod) {
            return false;
        }
        self.remove_pod(&pod.uid);
        self.now.version += 1;
        self.labels.share(&mut pod.labels);
        self.requests.share(&mut pod.requests);
        let pod = Arc::new(pod);
        if let Some(node) = pod.holds() {
            let ix = self.entry(node);
            Arc::make_mut(&mut Arc::make_mut(&mut self.now.nodes)[ix])
                .pods
                .push(Arc::clone(&pod));
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

    /// Forgets a pod.
    pub fn remove_pod(&mut self, uid: &str) {
        let Some(pod) = self.pods.remove(uid) else {
            return;
        };
        self.now.version += 1;
        if let Some(ix) = pod.holds().and_then(|node| self.now.ordinal(node)) {
            let entry = Arc::make_mut(&mut Arc::make_mut(&mut self.now.nodes)[ix]);
            entry.pods.retain(|p| p.uid != uid);
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

    /// Makes a node label a topology key. Keys stay in use once they were.
    pub fn use_topology_key(&mut self, key: &str) {
        if self.now.dims.key(key).is_none() {
            let mut keys = self.now.dims.keys().to_vec();
            keys.push(key.to_owned());
            keys.sort();
            let dims = Dims::new(self.now.dims.resources(), keys);
            self.rebuild(dims);
        }
    }

    /// Gives every node one of each of these slots. Those in use stay so.
    pub fn use_slots<'s>(&mut self, slots: impl IntoIterator<Item = &'s str>) {
        let dims = &self.now.dims;
        let used = dims.resources().filter(|name| is_slot(name)).count();
        let new = slots
            .into_iter()
            .filter(|slot| is_slot(slot) && !dims.has(slot));
        let new: BTreeSet<&str> = new.take(MOST.saturating_sub(used)).collect();
        if !new.is_empty() {
            let names = dims.resources().chain(new);
            let dims = Dims::new(names, dims.keys().to_vec());
            self.rebuild(dims);
        }
    }

    fn nodes_changed(&mut self) {
        self.now.nodes_version += 1;
        self.now.version += 1;
    }

    fn entry(&mut self, name: &str) -> NodeIx {
        if let Some(ix) = self.now.ordinal(name) {
            return ix;
        }
        let nodes = Arc::make_mut(&mut self.now.nodes);
        nodes.push(Arc::new(NodeEntry {
            name: name.to_owned(),
            ..NodeEntry::default()
        }));
        Arc::make_mut(&mut self.now.ordinals).insert(name.to_owned(), nodes.len() - 1);
        nodes.len() - 1
    }

    fn class_id(&mut self, class: NodeClass) -> ClassId {
        // Labels that change over time leave classes behind; starting over costs one verdict per
        // class again.
        if self.classes.len() > 1024.max(4 * self.now.nodes.len()) {
            self.classes.clear();
        }
        *self.classes.entry(class).or_insert_with(|| {
            self.next_class += 1;
            self.next_class
        })
    }

    fn tell_engine(&mut self, ix: NodeIx, node: &Node) {
        let dims = Arc::make_mut(&mut self.now.dims);
        let spec = EngineNode {
            allocatable: dims.offered(node),
            domains: dims.domains_of(node),
            schedulable: node.ready,
        };
        Arc::make_mut(&mut self.now.engine).upsert_node(ix, &spec);
    }

    /// Drops the ordinals of nodes that are gone, once they are the larger part: clusters that
    /// scale by replacing nodes never reuse a name.
    fn compact(&mut self) {
        const SLACK: usize = 64;
        let gone = self
            .now
            .nodes
            .iter()
            .filter(|n| n.node.is_none() && n.pods.is_empty())
            .count();
        if gone > SLACK.max(self.now.nodes.len() / 2) {
            let dims = Dims::new(self.now.dims.resources(), self.now.dims.keys().to_vec());
            self.rebuild(dims);
        }
    }

    /// Builds everything that ordinals reach anew, in the order of node names.
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
        self.now.engine = Arc::new(Cluster::new(dims.len(), dims.keys().len()));
        self.now.dims = Arc::new(dims);
        self.now.ordinals = Arc::new(ordinals);
        self.nodes_changed();
        for (ix, entry) in entries.iter().enumerate() {
            if let Some(node) = &entry.node {
                self.tell_engine(ix, node);
            }
            for pod in &entry.pods {
                Arc::make_mut(&mut self.now.engine)
                    .add_pod(ix, &self.now.dims.amounts(&pod.requests));
            }
        }
        self.now.nodes = Arc::new(entries);
    }
}

/// Values of which equal ones are held once.
#[derive(Debug)]
struct Shared<T> {
    values: BTreeSet<Arc<T>>,
    /// Number of values at which those that nobody holds any more are dropped.
    limit: usize,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self {
            values: BTreeSet::new(),
            limit: 1024,
        }
    }
}

impl<T: Ord> Shared<T> {
    /// Replaces a value by the equal one that is held, or holds it.
    fn share(&mut self, value: &mut Arc<T>) {
        if let Some(held) = self.values.get(value) {
            *value = Arc::clone(held);
            return;
        }
        if self.values.len() >= self.limit {
            self.values.retain(|v| Arc::strong_count(v) > 1);
            self.limit = 1024.max(2 * self.values.len());
        }
        self.values.insert(Arc::clone(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::Stage;
    use crate::test_support::{mk_node, mk_pod};
    use proptest::prelude::*;

    #[test]
    fn a_snapshot_stays_as_it_was_while_the_model_moves_on() {
        let mut model = ClusterModel::default();
        model.upsert_node(mk_node("n1", 8));
        let before = model.snapshot();
        model.upsert_pod(mk_pod("p", "n1", 3));
        let gpus = |s: &Snapshot| {
            s.free_capacity()
                .free(s.ordinal("n1").unwrap())
                .last()
                .copied()
        };
        assert_eq!((gpus(&before), gpus(&model.snapshot())), (Some(8), Some(5)));
    }

    #[test]
    fn a_resource_never_seen_before_becomes_a_dimension_and_nothing_is_lost() {
        let mut model = ClusterModel::default();
        model.upsert_pod(mk_pod("p", "n1", 3));
        model.upsert_node(mk_node("n1", 8));
        let s = model.snapshot();
        assert_eq!(
            s.free_capacity().free(s.ordinal("n1").unwrap()).last(),
            Some(&5)
        );
    }

    #[test]
    fn pods_of_one_family_hold_their_labels_and_requests_once() {
        let mut model = ClusterModel::default();
        for uid in ["a", "b"] {
            let labels = Arc::new([("app".to_owned(), "web".to_owned())].into());
            model.upsert_pod(Pod {
                labels,
                ..mk_pod(uid, "n1", 1)
            });
        }
        let s = model.snapshot();
        let pods: Vec<_> = s.pods_on(0).collect();
        assert!(
            Arc::ptr_eq(&pods[0].labels, &pods[1].labels)
                && Arc::ptr_eq(&pods[0].requests, &pods[1].requests)
        );
    }

    #[test]
    fn shared_values_that_nobody_holds_are_dropped_in_time() {
        let mut shared = Shared::default();
        for n in 0..5000 {
            shared.share(&mut Arc::new(n));
        }
        assert!(shared.values.len() <= 1024);
    }

    #[test]
    fn an_update_that_changes_nothing_is_told_from_one_that_does() {
        let mut model = ClusterModel::default();
        assert!(model.upsert_node(mk_node("n1", 8)) && model.upsert_pod(mk_pod("p", "n1", 3)));
        assert!(!model.upsert_node(mk_node("n1", 8)) && !model.upsert_pod(mk_pod("p", "n1", 3)));
        assert!(model.upsert_node(mk_node("n1", 7)) && model.upsert_pod(mk_pod("p", "n1", 2)));
    }

    #[test]
    fn pods_are_found_by_owner_until_they_are_gone() {
        let mut model = ClusterModel::default();
        let member = Some(lockstep_api::member::Member::new("g", 0, 0));
        model.upsert_pod(Pod {
            owner: Some("w".into()),
            member,
            ..mk_pod("p", "n1", 1)
        });
        assert_eq!(model.snapshot().pods_of("w").len(), 1);
        model.remove_pod("p");
        assert!(model.snapshot().pods_of("w").is_empty());
    }

    #[derive(Clone, Debug)]
    enum Event {
        Node(u8, i64, bool),
        NodeGone(u8),
        Pod(u8, u8, i64, bool),
        PodGone(u8),
        Key(u8),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            (0..6u8, 0..9i64, any::<bool>()).prop_map(|(n, g, r)| Event::Node(n, g, r)),
            (0..6u8).prop_map(Event::NodeGone),
            (0..20u8, 0..6u8, 0..4i64, any::<bool>())
                .prop_map(|(p, n, g, t)| Event::Pod(p, n, g, t)),
            (0..20u8).prop_map(Event::PodGone),
            (0..2u8).prop_map(Event::Key),
        ];
        prop::collection::vec(event, 0..60)
    }

    proptest! {
        /// The free capacity after any events is what the surviving nodes offer less what the surviving
        /// pods hold.
        #[test]
        fn events_in_any_order_leave_the_room_of_what_is_there(events in events()) {
            let mut model = ClusterModel::default();
            let mut nodes: BTreeMap<String, (i64, bool)> = BTreeMap::new();
            let mut pods: BTreeMap<String, (String, i64)> = BTreeMap::new();
            for event in events {
                match event {
                    Event::Node(n, gpus, ready) => {
                        let name = format!("n{n}");
                        model.upsert_node(Node { ready, ..mk_node(&name, gpus) });
                        nodes.insert(name, (gpus, ready));
                    }
                    Event::NodeGone(n) => {
                        model.remove_node(&format!("n{n}"));
                        nodes.remove(&format!("n{n}"));
                    }
                    Event::Pod(p, n, gpus, terminal) => {
                        let (uid, node) = (format!("p{p}"), format!("n{n}"));
                        let stage = if terminal { Stage::Ended } else { Stage::Open };
                        model.upsert_pod(Pod { stage, ..mk_pod(&uid, &node, gpus) });
                        pods.remove(&uid);
                        if !terminal {
                            pods.insert(uid, (node, gpus));
                        }
                    }
                    Event::PodGone(p) => {
                        model.remove_pod(&format!("p{p}"));
                        pods.remove(&format!("p{p}"));
                    }
                    Event::Key(k) => model.use_topology_key(&format!("key{k}")),
                }
            }
            let s = model.snapshot();
            let dim = (0..s.dims().len()).find(|&d| lockstep_engine::Names::resource(s.dims(), d) == "nvidia.com/gpu");
            for (name, (gpus, ready)) in nodes {
                let ix = s.ordinal(&name).unwrap();
                let held: i64 = pods.values().filter(|(n, _)| *n == name).map(|(_, g)| g).sum();
                let free = dim.map_or(0, |d| s.free_capacity().free(ix)[d]);
                prop_assert_eq!((free, s.free_capacity().schedulable(ix)), (if dim.is_some() { gpus - held } else { 0 }, ready));
            }
        }
    }
}
