//! All pods as an array.
//!
//! A cycle visits all pods many times. The array holds the fields of these visits, because
//! following a pointer to each pod would dominate the cost. A changed pod rebuilds only the part of
//! its node.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use lockstep_engine::NodeIx;

use crate::pods::pod::Pod;
use crate::pods::pod_view::namespaces_of;
use crate::pods::resources::Resources;

#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an independent property of the pod"
)]
pub struct ListedPod {
    pub node: NodeIx,
    pub pod: Arc<Pod>,
    pub requests: Arc<Resources>,
    pub priority: i32,
    pub bound: bool,
    /// True if it is bound, not terminating, and not protected.
    pub evictable: bool,
    pub terminating: bool,
    /// True if it runs until it is evicted.
    pub endless: bool,
    pub owned: bool,
    pub in_unit: bool,
    pub tag: u64,
}

/// Hash of a UID, for searches without following pointers.
pub fn tag(uid: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    hasher.finish()
}

/// Sorted tags of a few UIDs.
#[derive(Clone, Debug)]
pub struct Tags(Vec<u64>);

impl Tags {
    pub fn of<'u>(uids: impl IntoIterator<Item = &'u str>) -> Self {
        let mut tags: Vec<u64> = uids.into_iter().map(tag).collect();
        tags.sort_unstable();
        Self(tags)
    }

    /// True if one of the UIDs has this tag.
    pub fn contains(&self, tag: u64) -> bool {
        self.0.binary_search(&tag).is_ok()
    }
}

impl ListedPod {
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

/// Nodes per part.
const NODES: usize = 64;

/// Pods of some nodes, with flags for rare properties.
#[derive(Debug)]
pub(crate) struct PodPart {
    pub pods: Vec<ListedPod>,
    pub unbound: bool,
    pub terminating: bool,
    pub in_units: bool,
    /// Required anti-affinity terms, by the namespace to which each applies (`None`: all).
    pub anti_affinity: BTreeMap<Option<Arc<str>>, Vec<ListedTerm>>,
}

/// A required anti-affinity term of a pod.
#[derive(Debug)]
pub(crate) struct ListedTerm {
    pub node: NodeIx,
    pub pod: Arc<Pod>,
    /// Position in [`Pod::anti_affinity`].
    pub position: usize,
}

/// All pods, in parts that are built on first use. A clone increments a reference count.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodRow(Arc<Vec<Arc<OnceLock<PodPart>>>>);

impl PodPart {
    fn new(pods: Vec<ListedPod>) -> Self {
        let any = |is: fn(&ListedPod) -> bool| pods.iter().any(is);
        Self {
            unbound: any(|pod| !pod.bound),
            terminating: any(|pod| pod.terminating),
            in_units: any(|pod| pod.in_unit),
            anti_affinity: listed_terms(&pods),
            pods,
        }
    }
}

fn listed_terms(pods: &[ListedPod]) -> BTreeMap<Option<Arc<str>>, Vec<ListedTerm>> {
    let mut out: BTreeMap<Option<Arc<str>>, Vec<ListedTerm>> = BTreeMap::new();
    for ListedPod { node, pod, .. } in pods {
        let terms = pod.anti_affinity.iter().flat_map(|terms| terms.iter());
        for (position, term) in terms.enumerate() {
            for namespace in namespaces_of(term, &pod.namespace) {
                out.entry(namespace).or_default().push(ListedTerm {
                    node: *node,
                    pod: Arc::clone(pod),
                    position,
                });
            }
        }
    }
    out
}

impl PodRow {
    pub fn grow(&mut self, nodes: usize) {
        let parts = nodes.div_ceil(NODES);
        if self.0.len() < parts {
            Arc::make_mut(&mut self.0).resize_with(parts, Arc::default);
        }
    }

    pub fn forget(&mut self, node: NodeIx) {
        if let Some(part) = Arc::make_mut(&mut self.0).get_mut(node / NODES) {
            *part = Arc::default();
        }
    }

    /// `on`: pods of a node.
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
