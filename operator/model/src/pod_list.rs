//! All pods in a row.
//!
//! A cycle goes through all pods of the cluster many times, and to follow the pointer to each is most
//! of what that costs. So what is asked of all of them stands in the row. To make it costs as much, so a
//! pod that comes or goes has only the part of its node made anew.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use lockstep_engine::NodeIx;

use crate::pod::Pod;
use crate::resources::Resources;

/// A pod that takes capacity on a node.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an answer of the pod that is asked for by itself"
)]
pub struct ListedPod {
    /// The node.
    pub node: NodeIx,
    /// The pod.
    pub pod: Arc<Pod>,
    /// What it holds.
    pub requests: Arc<Resources>,
    /// Its priority.
    pub priority: i32,
    /// Whether it is bound.
    pub bound: bool,
    /// Whether it is bound, goes on, and is not protected.
    pub evictable: bool,
    /// Whether it is about to end.
    pub terminating: bool,
    /// Whether it goes on until somebody evicts it.
    pub endless: bool,
    /// Whether a workload controls it.
    pub owned: bool,
    /// Whether it belongs to work of others that is of use only together.
    pub in_unit: bool,
    /// The [`tag`] of its UID.
    pub tag: u64,
}

/// A number for a UID: where it differs, so does the UID. To look for a few UIDs among those of all pods
/// would be to follow the pointer to each.
pub fn tag(uid: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    hasher.finish()
}

/// The tags of a few UIDs, to look for pods by them. Each pod of the cluster is looked for among them, and a
/// tag need not be hashed again for that.
#[derive(Clone, Debug)]
pub struct Tags(Vec<u64>);

impl Tags {
    /// The tags of these.
    pub fn of<'u>(uids: impl IntoIterator<Item = &'u str>) -> Self {
        let mut tags: Vec<u64> = uids.into_iter().map(tag).collect();
        tags.sort_unstable();
        Self(tags)
    }

    /// Whether it is the tag of one of them.
    pub fn contains(&self, tag: u64) -> bool {
        self.0.binary_search(&tag).is_ok()
    }
}

impl ListedPod {
    /// A pod on a node.
    pub(crate) fn new(node: NodeIx, pod: &Arc<Pod>) -> Self {
        let (bound, terminating) = (pod.bound.is_some(), pod.terminating.is_some());
        Self {
            node,
            requests: Arc::clone(&pod.requests),
            priority: pod.priority,
            bound,
            evictable: bound && pod.alive() && !pod.protected,
            terminating,
            endless: !terminating && !pod.may_end,
            owned: pod.owner.is_some(),
            in_unit: pod.unit.is_some(),
            tag: tag(pod.uid.as_str()),
            pod: Arc::clone(pod),
        }
    }
}

/// Nodes of one part of the row.
const NODES: usize = 64;

/// The pods of a few nodes, and whether some of them are of kinds that are rarely there.
#[derive(Debug)]
pub(crate) struct PodPart {
    pub pods: Vec<ListedPod>,
    /// Some are not bound.
    pub unbound: bool,
    /// Some are about to end.
    pub terminating: bool,
    /// Some belong to work of others that is of use only together.
    pub in_units: bool,
}

/// All pods in a row, in parts that are made once somebody asks for them. Cloning costs a reference
/// count.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodRow(Arc<Vec<Arc<OnceLock<PodPart>>>>);

impl PodPart {
    fn new(pods: Vec<ListedPod>) -> Self {
        let any = |is: fn(&ListedPod) -> bool| pods.iter().any(is);
        Self {
            unbound: any(|pod| !pod.bound),
            terminating: any(|pod| pod.terminating),
            in_units: any(|pod| pod.in_unit),
            pods,
        }
    }
}

impl PodRow {
    /// Holds so many nodes from now on.
    pub fn grow(&mut self, nodes: usize) {
        let parts = nodes.div_ceil(NODES);
        if self.0.len() < parts {
            Arc::make_mut(&mut self.0).resize_with(parts, Arc::default);
        }
    }

    /// Forgets what stands there of a node.
    pub fn forget(&mut self, node: NodeIx) {
        if let Some(part) = Arc::make_mut(&mut self.0).get_mut(node / NODES) {
            *part = Arc::default();
        }
    }

    /// All parts, by node; `on` says which pods are on a node.
    pub fn parts<'r, 'p>(
        &'r self,
        on: impl Fn(NodeIx) -> &'p [Arc<Pod>] + Copy + 'r,
    ) -> impl Iterator<Item = &'r PodPart> + Clone {
        let listed = move |ix: NodeIx| on(ix).iter().map(move |pod| ListedPod::new(ix, pod));
        let make = move |at: usize| {
            let nodes = at * NODES..(at + 1) * NODES;
            PodPart::new(nodes.flat_map(listed).collect())
        };
        let parts = self.0.iter().enumerate();
        parts.map(move |(at, part)| part.get_or_init(|| make(at)))
    }
}
