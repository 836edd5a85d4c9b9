//! What a cycle wants done, as a list of requests.

use std::collections::BTreeSet;
use std::time::Duration;

use lockstep_api::key::Key;
use lockstep_api::scheduling::PodGroupStatus;

/// What a cycle wants done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SchedulingPlan {
    /// Requests, in the order in which they are sent. They are independent of each other: one that
    /// fails is decided again in the next cycle.
    pub steps: Vec<Step>,
    /// When to look again although nothing changed.
    pub wake_after: Option<Duration>,
    /// Gangs in the queue.
    pub queued: usize,
    /// Searches for victims.
    pub searches: usize,
}

/// One request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Write the status of a pod group.
    Status(Box<StatusWrite>),
    /// Add the condition DisruptionTarget to a pod that is about to be evicted. Best effort.
    MarkPod {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
        /// UID, a precondition.
        uid: String,
        /// Message of the condition.
        message: String,
    },
    /// Evict a pod.
    Evict {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
        /// UID, a precondition.
        uid: String,
        /// Delete it when its budgets refuse the eviction: they have done so for long enough.
        by_force: bool,
    },
    /// Have kube-scheduler keep a node's capacity for a pod.
    Nominate {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
        /// UID, a precondition.
        uid: String,
        /// The node.
        node: String,
    },
}

/// A write of a pod group's status.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusWrite {
    /// Namespace and name.
    pub key: Key,
    /// UID, a precondition.
    pub uid: String,
    /// Version that the decision was made from, a precondition.
    pub resource_version: String,
    /// The status as read.
    pub read: PodGroupStatus,
    /// The status as it is to be.
    pub status: PodGroupStatus,
    /// Set when the gang's capacity is promised to others next: the pods of the gang (by UID) that
    /// were seen to hold none. The write is sent only if the API server itself knows of no other,
    /// since the watch of pods may lag behind that of workloads.
    pub vacated: Option<Vacated>,
}

/// A gang that is believed to be gone.
#[derive(Clone, Debug, PartialEq)]
pub struct Vacated {
    /// UID of the workload.
    pub workload_uid: String,
    /// Its pods that were seen, by UID.
    pub seen: BTreeSet<String>,
}
