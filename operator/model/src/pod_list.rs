//! All pods in a row.
//!
//! A cycle goes through all pods of the cluster many times, and to follow the pointer to each is most
//! of what that costs. So what is asked of all of them stands in the row.

use std::sync::Arc;

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
            pod: Arc::clone(pod),
        }
    }
}
