//! Condition types and reasons, and the one way to set a condition.
//!
//! Conditions are a list-map by type. `observedGeneration` is always set, the transition time moves
//! only when the status flips, and an unchanged condition compares equal so that no write happens
//! (Kubernetes API conventions).

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One condition. Field names and meaning are those of `meta/v1.Condition`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition, CamelCase.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: ConditionStatus,
    /// One word for the last transition, CamelCase.
    pub reason: String,
    /// What happened, for people.
    #[serde(default)]
    pub message: String,
    /// When the status last changed.
    pub last_transition_time: DateTime<Utc>,
    /// Generation of the object that this condition was computed from.
    #[serde(default)]
    pub observed_generation: i64,
}

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// Not known yet.
    Unknown,
}

impl ConditionStatus {
    /// As the API writes it.
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

/// Sets a condition: replaces the one of the same type, keeps its transition time unless the status
/// flips.
pub fn upsert(
    conditions: &mut Vec<Condition>,
    type_: &str,
    status: impl Into<ConditionStatus>,
    reason: &str,
    message: impl Into<String>,
    generation: i64,
    now: DateTime<Utc>,
) {
    let mut new = Condition {
        type_: type_.to_owned(),
        status: status.into(),
        reason: reason.to_owned(),
        message: message.into(),
        last_transition_time: now,
        observed_generation: generation,
    };
    match conditions.iter_mut().find(|c| c.type_ == type_) {
        Some(old) => {
            if old.status == new.status {
                new.last_transition_time = old.last_transition_time;
            }
            *old = new;
        }
        None => conditions.push(new),
    }
}

/// The condition of a type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Whether the condition of a type is there and True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|c| c.status == ConditionStatus::True)
}

/// Condition types of a `TrainingWorkload`, and those that upstream defines for pod groups.
pub mod types {
    /// Every gang is placed: its nodes are reserved, and its pods are being created or run.
    pub const ADMITTED: &str = "Admitted";
    /// Every member that should run is running and ready. Absent while the workload is suspended and
    /// after its end: nothing is awaited then (kstatus).
    pub const READY: &str = "Ready";
    /// The operator is working towards the desired state (kstatus).
    pub const RECONCILING: &str = "Reconciling";
    /// The operator cannot go on without a change from outside (kstatus).
    pub const STALLED: &str = "Stalled";
    /// An incident is being handled.
    pub const RESTARTING: &str = "Restarting";
    /// The workload, pod group or pod is being preempted.
    pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
    /// The workload is suspended and holds nothing.
    pub const SUSPENDED: &str = "Suspended";
    /// The success policy is met. Terminal.
    pub const COMPLETE: &str = "Complete";
    /// The workload failed. Terminal.
    pub const FAILED: &str = "Failed";
    /// Whether RestartGang restarts members inside their pods; where it is False, pods are
    /// recreated.
    pub const RESTARTS_IN_PLACE: &str = "RestartsInPlace";
    /// Pods have another priority than their gang (an idea of KEP-5710); absent until it is so for
    /// the first time.
    pub const PODS_NOT_MATCHING_PRIORITY: &str = "PodsNotMatchingPriority";
    /// On pod groups (KEP-4671): False while waiting for capacity, True while placed. Upstream's
    /// True is terminal; ours becomes False again when a gang releases its nodes and queues, so
    /// that the reason why it waits is there.
    pub const POD_GROUP_INITIALLY_SCHEDULED: &str = "PodGroupInitiallyScheduled";
}

/// Reasons of conditions and events: one table, so that a reason means one thing.
pub mod reasons {
    /// Waiting for capacity in the cluster; the message says what is short.
    pub const UNSCHEDULABLE: &str = "Unschedulable";
    /// Waiting behind other gangs or for the first scheduling cycle.
    pub const QUEUED: &str = "Queued";
    /// A placement was decided.
    pub const SCHEDULED: &str = "Scheduled";
    /// Waiting until the victims of a preemption have left.
    pub const PREEMPTING: &str = "Preempting";
    /// Preempted by a gang of higher priority (upstream's word).
    pub const PREEMPTION_BY_SCHEDULER: &str = "PreemptionByScheduler";
    /// Preempted, and in the queue again.
    pub const PREEMPTED: &str = "Preempted";
    /// Waiting for the groups named in `dependsOn`.
    pub const WAITING_FOR_DEPENDENCY: &str = "WaitingForDependency";
    /// Pods are being created or are starting.
    pub const STARTING: &str = "Starting";
    /// Every member is ready.
    pub const ALL_MEMBERS_READY: &str = "AllMembersReady";
    /// Some members are not ready.
    pub const MEMBERS_NOT_READY: &str = "MembersNotReady";
    /// Nodes of members are NotReady in an outage of their zone: no member counts as lost.
    pub const NODES_NOT_READY: &str = "NodesNotReady";
    /// A claim for a volume, a volume or a storage class is missing: the gang is not placed.
    pub const VOLUME_MISSING: &str = "VolumeMissing";
    /// A quota of the namespace does not allow the gang, which is not placed; or it refused a pod, and
    /// the whole gang was rolled back.
    pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
    /// A policy, Pod Security or RBAC refused a pod; the whole gang was rolled back.
    pub const FORBIDDEN: &str = "Forbidden";
    /// The API server refuses a pod made from the template; the message has the field path.
    pub const INVALID_TEMPLATE: &str = "InvalidTemplate";
    /// The API server refuses another object that is made for the workload; the message has the
    /// field path.
    pub const INVALID_OBJECT: &str = "InvalidObject";
    /// The priority class does not exist or may not be used.
    pub const INVALID_PRIORITY_CLASS: &str = "InvalidPriorityClass";
    /// An object with a name that we need exists and is not ours.
    pub const NAME_CONFLICT: &str = "NameConflict";
    /// Restarting all members in place.
    pub const RESTART_GANG: &str = "RestartGang";
    /// Replacing all pods.
    pub const RECREATE_GANG: &str = "RecreateGang";
    /// Restarting or replacing one pod.
    pub const RESTART_POD: &str = "RestartPod";
    /// No incident is open.
    pub const NOT_RESTARTING: &str = "NotRestarting";
    /// Nobody preempts it.
    pub const NOT_PREEMPTED: &str = "NotPreempted";
    /// Waiting until the back-off between incidents has passed.
    pub const BACKING_OFF: &str = "BackingOff";
    /// The restart budget is spent.
    pub const RESTART_LIMIT_EXCEEDED: &str = "RestartLimitExceeded";
    /// A failure matched the action FailWorkload.
    pub const FAILURE_POLICY: &str = "FailurePolicy";
    /// `activeDeadlineSeconds` passed.
    pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
    /// `scheduling.timeoutSeconds` passed with `onTimeout: Fail`.
    pub const SCHEDULING_TIMEOUT: &str = "SchedulingTimeout";
    /// An image cannot be pulled. In the third start in a row it fails the workload.
    pub const IMAGE_UNAVAILABLE: &str = "ImageUnavailable";
    /// No scheduler has bound a pod. In the third start in a row it fails the workload, unless the
    /// scheduler is the default one.
    pub const NOT_BOUND: &str = "NotBound";
    /// Containers did not start within `startDeadlineSeconds`; the nodes were released.
    pub const START_DEADLINE_EXCEEDED: &str = "StartDeadlineExceeded";
    /// No replacement was found within `replacementTimeoutSeconds`; the nodes were released.
    pub const REPLACEMENT_TIMEOUT: &str = "ReplacementTimeout";
    /// A container cannot be created or started. If its template is the cause, the third start in a row
    /// fails the workload.
    pub const START_ERROR: &str = "StartError";
    /// A node's kubelet rejected a pod before it ran.
    pub const REJECTED_BY_NODE: &str = "RejectedByNode";
    /// `spec.suspend` is true.
    pub const SUSPENDED: &str = "Suspended";
    /// `spec.suspend` is false.
    pub const RESUMED: &str = "Resumed";
    /// The success policy is met.
    pub const SUCCESS_POLICY: &str = "SuccessPolicy";
    /// The observed state is the desired state.
    pub const RECONCILED: &str = "Reconciled";
    /// The API server answers a request of the manager with an error, such as that of a webhook that is
    /// down. The manager repeats the request.
    pub const API_SERVER_ERROR: &str = "APIServerError";
    /// Work is in progress.
    pub const PROGRESSING: &str = "Progressing";
    /// A supervisor in each training container restarts the training process inside it, and keeps
    /// attempts apart.
    pub const SUPERVISED: &str = "Supervised";
    /// Restarts in place without a supervisor: `failurePolicy.inPlace.withoutSupervisor` is Allow, and
    /// nothing keeps two attempts apart while members stop one after the other; or members have no
    /// peers.
    pub const UNSUPERVISED: &str = "Unsupervised";
    /// No supervisor keeps attempts apart, and `failurePolicy.inPlace.withoutSupervisor` is Deny:
    /// pods are recreated.
    pub const DENIED: &str = "Denied";
    /// A node was deleted, taken out of service, or NotReady for too long.
    pub const NODE_LOST: &str = "NodeLost";
    /// A pod did not end although its node answers: it was deleted by force, and the node is
    /// avoided.
    pub const POD_STUCK: &str = "PodStuck";
    /// A failure rule asks for another node.
    pub const FAILED_MEMBER: &str = "FailedMember";
    /// Every restart of the last minutes failed; the nodes are released.
    pub const RESTARTS_EXHAUSTED: &str = "RestartsExhausted";
    /// All members run again after an incident.
    pub const RECOVERED: &str = "Recovered";
    /// Kubelets restart all containers of pods (KEP-5532).
    pub const RESTARTING_ALL_CONTAINERS: &str = "RestartingAllContainers";
    /// Pods have another priority than their gang: their class was made anew with another value, or
    /// admission changed them.
    pub const PRIORITY_DIFFERS: &str = "PriorityDiffers";
    /// All pods have the priority of their gang.
    pub const PRIORITY_MATCHES: &str = "PriorityMatches";
    /// Some nodes of the gang have no ready agent; restarts recreate pods there.
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
        let mut c = Vec::new();
        upsert(
            &mut c,
            types::READY,
            false,
            reasons::STARTING,
            "0/2",
            1,
            at(10),
        );
        upsert(
            &mut c,
            types::READY,
            false,
            reasons::MEMBERS_NOT_READY,
            "1/2",
            2,
            at(20),
        );
        assert_eq!(
            (
                c[0].last_transition_time,
                c[0].observed_generation,
                c[0].message.as_str()
            ),
            (at(10), 2, "1/2")
        );
        upsert(
            &mut c,
            types::READY,
            true,
            reasons::ALL_MEMBERS_READY,
            "2/2",
            2,
            at(30),
        );
        assert_eq!((c.len(), c[0].last_transition_time), (1, at(30)));
    }
}
