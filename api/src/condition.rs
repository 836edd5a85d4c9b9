//! Condition types and reasons, and the function that sets a condition.
//!
//! Conditions are a list-map by type. `observedGeneration` is always set. The transition time
//! changes only with the status. An unchanged condition compares equal, so no write follows
//! (Kubernetes API conventions).

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A condition. Field names and meaning are those of `meta/v1.Condition`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition, in CamelCase.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: ConditionStatus,
    /// Reason of the last transition, one word in CamelCase.
    pub reason: String,
    /// Message for people.
    #[serde(default)]
    pub message: String,
    /// Time of the last change of the status.
    pub last_transition_time: DateTime<Utc>,
    /// Generation of the object from which this condition was computed.
    #[serde(default)]
    pub observed_generation: i64,
}

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// The condition is met.
    True,
    /// The condition is not met.
    False,
    /// The status is not known yet.
    Unknown,
}

impl ConditionStatus {
    /// The word in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(v: bool) -> Self {
        if v { Self::True } else { Self::False }
    }
}

/// Sets a condition. Replaces a condition of the same type, and keeps its transition time unless
/// the status changes.
pub fn upsert(conditions: &mut Vec<Condition>, mut new: Condition) {
    match conditions.iter_mut().find(|c| c.type_ == new.type_) {
        Some(old) => {
            if old.status == new.status {
                new.last_transition_time = old.last_transition_time;
            }
            *old = new;
        }
        None => conditions.push(new),
    }
}

/// Finds the condition of a type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// True if the condition of a type exists and is True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|c| c.status == ConditionStatus::True)
}

/// Condition types of a `TrainingWorkload`, and upstream's condition types for pod groups.
pub mod types {
    /// Every gang is placed: its nodes are reserved, and its pods are being created or run.
    pub const ADMITTED: &str = "Admitted";
    /// Every member that should run is running and ready. Absent while the workload is suspended
    /// and after its end: no member should run then (kstatus).
    pub const READY: &str = "Ready";
    /// The operator is working towards the desired state (kstatus).
    pub const RECONCILING: &str = "Reconciling";
    /// The operator cannot continue without a change by a user (kstatus).
    pub const STALLED: &str = "Stalled";
    /// An incident is being handled.
    pub const RESTARTING: &str = "Restarting";
    /// The workload, pod group or pod is being preempted.
    pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
    /// The workload is suspended and has no pods or nodes.
    pub const SUSPENDED: &str = "Suspended";
    /// The success policy is met. Terminal.
    pub const COMPLETE: &str = "Complete";
    /// The workload failed. Terminal.
    pub const FAILED: &str = "Failed";
    /// True if RestartGang restarts members inside their pods. If False, pods are recreated.
    pub const RESTARTS_IN_PLACE: &str = "RestartsInPlace";
    /// True while a stop, or a user, waits for a checkpoint that was requested. Absent without
    /// `spec.checkpoint`, until a request is made.
    pub const CHECKPOINT_REQUESTED: &str = "CheckpointRequested";
    /// Members run on nodes that will be removed or stopped, or that have a fault. The message has
    /// the nodes, their signals and deadlines, and the plan of the gang. Absent otherwise.
    pub const NODE_LEAVING: &str = "NodeLeaving";
    /// Pods have another priority than their gang (an idea of KEP-5710). Absent until this happens
    /// for the first time.
    pub const PODS_NOT_MATCHING_PRIORITY: &str = "PodsNotMatchingPriority";
    /// On pod groups (KEP-4671): False while the gang waits for capacity, True while it is placed.
    /// In upstream, True is terminal. In Lockstep it becomes False again, with the reason, when a
    /// gang releases its nodes and queues.
    pub const POD_GROUP_INITIALLY_SCHEDULED: &str = "PodGroupInitiallyScheduled";
}

/// Reasons of conditions and events. Each reason has one meaning.
pub mod reasons {
    /// The gang waits for capacity in the cluster. The message names the resources that are
    /// insufficient.
    pub const UNSCHEDULABLE: &str = "Unschedulable";
    /// The gang is queued behind other gangs, or waits for the first scheduling cycle.
    pub const QUEUED: &str = "Queued";
    /// Kueue has not admitted the workload, or has evicted it. No pod is created.
    pub const WAITING_FOR_QUOTA: &str = "WaitingForQuota";
    /// A placement was decided.
    pub const SCHEDULED: &str = "Scheduled";
    /// Enough other gangs move away from nodes with signals, so the gang does not move yet.
    pub const MOVE_LIMIT_REACHED: &str = "MoveLimitReached";
    /// So many nodes are Faulty, or were left for faults, that no gang moves for faults.
    pub const TOO_MANY_FAULTY_NODES: &str = "TooManyFaultyNodes";
    /// The gang waits for the victims of its preemption to terminate.
    pub const PREEMPTING: &str = "Preempting";
    /// Preempted by a gang of higher priority (upstream's reason).
    pub const PREEMPTION_BY_SCHEDULER: &str = "PreemptionByScheduler";
    /// Preempted, and queued again.
    pub const PREEMPTED: &str = "Preempted";
    /// The gang waits for the groups named in `dependsOn`.
    pub const WAITING_FOR_DEPENDENCY: &str = "WaitingForDependency";
    /// All groups have 0 replicas.
    pub const NO_MEMBERS: &str = "NoMembers";
    /// Pods are being created or are starting.
    pub const STARTING: &str = "Starting";
    /// Every member is ready.
    pub const ALL_MEMBERS_READY: &str = "AllMembersReady";
    /// Some members are not ready.
    pub const MEMBERS_NOT_READY: &str = "MembersNotReady";
    /// Nodes of members are NotReady in an outage of their zone: no member counts as lost.
    pub const NODES_NOT_READY: &str = "NodesNotReady";
    /// A volume claim, a volume or a storage class is missing, so the gang is not placed.
    pub const VOLUME_MISSING: &str = "VolumeMissing";
    /// A quota of the namespace does not allow the gang, so it is not placed. Or the quota refused
    /// a pod, and all pods of the gang were deleted.
    pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
    /// No node matches the nodeSelector, affinity, tolerations or volumes of a group, so the gang is
    /// not placed.
    pub const NO_NODE_MATCHES: &str = "NoNodeMatches";
    /// A pod requests more of a resource than any matching node offers, so the gang is not placed.
    pub const EXCEEDS_LARGEST_NODE: &str = "ExceedsLargestNode";
    /// No node that could hold a pod has the label of the required topology, so the gang is not
    /// placed.
    pub const NO_TOPOLOGY_LABEL: &str = "NoTopologyLabel";
    /// The cluster could not hold the gang even without other work, so the gang is not placed.
    pub const EXCEEDS_CLUSTER: &str = "ExceedsCluster";
    /// A node autoscaler was asked for nodes. The gang waits for them.
    pub const NODES_REQUESTED: &str = "NodesRequested";
    /// The gang for which a node autoscaler was asked for nodes is placed.
    pub const NODES_PROVIDED: &str = "NodesProvided";
    /// A node autoscaler did not add nodes that suffice for the gang. After three tries, the gang is
    /// placed only if it fits.
    pub const NODES_NOT_PROVIDED: &str = "NodesNotProvided";
    /// A policy, Pod Security or RBAC refused a pod, and all pods of the gang were deleted.
    pub const FORBIDDEN: &str = "Forbidden";
    /// A webhook changed a part of a pod by which Lockstep identifies or places the pod, and all pods of
    /// the gang were deleted.
    pub const POD_ALTERED: &str = "PodAltered";
    /// The API server refuses a pod of the template. The message contains the field path.
    pub const INVALID_TEMPLATE: &str = "InvalidTemplate";
    /// The API server refuses another object of the workload. The message contains the field path.
    pub const INVALID_OBJECT: &str = "InvalidObject";
    /// The priority class does not exist or is not allowed.
    pub const INVALID_PRIORITY_CLASS: &str = "InvalidPriorityClass";
    /// kube-scheduler must place the gang, but the gang or the API server does not permit a native
    /// group.
    pub const NATIVE_GROUPS_UNAVAILABLE: &str = "NativeGroupsUnavailable";
    /// An object with a required name exists and belongs to another owner.
    pub const NAME_CONFLICT: &str = "NameConflict";
    /// All members restart in place.
    pub const RESTART_GANG: &str = "RestartGang";
    /// All pods are replaced.
    pub const RECREATE_GANG: &str = "RecreateGang";
    /// One pod is restarted or replaced.
    pub const RESTART_POD: &str = "RestartPod";
    /// No incident is open.
    pub const NOT_RESTARTING: &str = "NotRestarting";
    /// No gang preempts the workload.
    pub const NOT_PREEMPTED: &str = "NotPreempted";
    /// The restart waits for the end of the back-off between incidents.
    pub const BACKING_OFF: &str = "BackingOff";
    /// The restart budget is exhausted.
    pub const RESTART_LIMIT_EXCEEDED: &str = "RestartLimitExceeded";
    /// A failure matched the action FailWorkload, or only members with ignored failures are left.
    pub const FAILURE_POLICY: &str = "FailurePolicy";
    /// `activeDeadlineSeconds` have passed.
    pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
    /// `scheduling.timeoutSeconds` have passed with `onTimeout: Fail`.
    pub const SCHEDULING_TIMEOUT: &str = "SchedulingTimeout";
    /// An image cannot be pulled. In the third start in a row this fails the workload.
    pub const IMAGE_UNAVAILABLE: &str = "ImageUnavailable";
    /// No scheduler has bound a pod. In the third start in a row this fails the workload, unless
    /// the scheduler is the default one.
    pub const NOT_BOUND: &str = "NotBound";
    /// Containers did not start within `startDeadlineSeconds`, so the nodes were released.
    pub const START_DEADLINE_EXCEEDED: &str = "StartDeadlineExceeded";
    /// No replacement was found within `replacementTimeoutSeconds`, so the nodes were released.
    pub const REPLACEMENT_TIMEOUT: &str = "ReplacementTimeout";
    /// A container cannot be created or started. If its template is the cause, the third start in a
    /// row fails the workload.
    pub const START_ERROR: &str = "StartError";
    /// The kubelet of a node rejected a pod before it ran.
    pub const REJECTED_BY_NODE: &str = "RejectedByNode";
    /// `spec.suspend` is true.
    pub const SUSPENDED: &str = "Suspended";
    /// `spec.suspend` is false.
    pub const RESUMED: &str = "Resumed";
    /// The success policy is met.
    pub const SUCCESS_POLICY: &str = "SuccessPolicy";
    /// The observed state is the desired state.
    pub const RECONCILED: &str = "Reconciled";
    /// The API server answers a request of the manager with an error, for example because a webhook
    /// is down. The manager retries the request.
    pub const API_SERVER_ERROR: &str = "APIServerError";
    /// The operator is working on the workload.
    pub const PROGRESSING: &str = "Progressing";
    /// A supervisor in each training container restarts the training process in it, and keeps
    /// attempts apart.
    pub const SUPERVISED: &str = "Supervised";
    /// Members restart in place without a supervisor. Either
    /// `failurePolicy.inPlace.withoutSupervisor` is Allow, and two attempts may overlap, or the
    /// members have no peers.
    pub const UNSUPERVISED: &str = "Unsupervised";
    /// Without a supervisor two attempts may overlap, and `failurePolicy.inPlace.withoutSupervisor`
    /// is Deny: pods are recreated.
    pub const DENIED: &str = "Denied";
    /// A node was deleted, taken out of service, or NotReady for too long.
    pub const NODE_LOST: &str = "NodeLost";
    /// A pod did not terminate although its node is responsive. The pod was deleted by force, and
    /// the node is avoided.
    pub const POD_STUCK: &str = "PodStuck";
    /// A node will be removed or stopped. The gang moves away from it before.
    pub const NODE_LEAVING: &str = "NodeLeaving";
    /// A node has a fault that is certain. The gang moves away from it.
    pub const NODE_FAULTY: &str = "NodeFaulty";
    /// The gang stays on nodes with signals: no other node was free in time, the move failed, or a
    /// rule says so.
    pub const MOVE_STAYED: &str = "MoveStayed";
    /// The signals of nodes ended before the gang was stopped.
    pub const MOVE_WITHDRAWN: &str = "MoveWithdrawn";
    /// A failure rule requires another node.
    pub const FAILED_MEMBER: &str = "FailedMember";
    /// Every restart of the last minutes failed, so the nodes are released.
    pub const RESTARTS_EXHAUSTED: &str = "RestartsExhausted";
    /// A checkpoint was requested, and no answer has come yet.
    pub const AWAITING_CHECKPOINT: &str = "AwaitingCheckpoint";
    /// The last request for a checkpoint has an outcome.
    pub const CHECKPOINT_ANSWERED: &str = "CheckpointAnswered";
    /// No checkpoint was requested.
    pub const NO_CHECKPOINT_REQUESTED: &str = "NoCheckpointRequested";
    /// A preemption was withdrawn: the gang keeps its nodes, or the preemptor waits again.
    pub const PREEMPTION_WITHDRAWN: &str = "PreemptionWithdrawn";
    /// All members run again after an incident.
    pub const RECOVERED: &str = "Recovered";
    /// Kubelets restart all containers of pods (KEP-5532).
    pub const RESTARTING_ALL_CONTAINERS: &str = "RestartingAllContainers";
    /// Pods have another priority than their gang: their class was recreated with another value, or
    /// admission changed them.
    pub const PRIORITY_DIFFERS: &str = "PriorityDiffers";
    /// All pods have the priority of their gang.
    pub const PRIORITY_MATCHES: &str = "PriorityMatches";
    /// Some nodes of the gang have no ready agent. Restarts recreate the pods there.
    pub const AGENT_MISSING: &str = "AgentMissing";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(s, 0).unwrap()
    }

    #[test]
    fn the_transition_time_moves_only_when_the_status_flips() {
        let ready = |status: bool, generation, time| Condition {
            type_: types::READY.to_owned(),
            status: status.into(),
            reason: reasons::MEMBERS_NOT_READY.to_owned(),
            message: format!("of generation {generation}"),
            last_transition_time: at(time),
            observed_generation: generation,
        };
        let mut c = Vec::new();
        upsert(&mut c, ready(false, 1, 10));
        upsert(&mut c, ready(false, 2, 20));
        assert_eq!(c, [ready(false, 2, 10)]);
        upsert(&mut c, ready(true, 2, 30));
        assert_eq!((c.len(), c[0].last_transition_time), (1, at(30)));
    }
}
