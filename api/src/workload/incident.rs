//! Open and finished incidents in a status.

use chrono::{DateTime, Utc};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FailureAction;
use crate::scheduling::Preemptor;

/// An open incident of a whole restart domain. Its key is workload UID, domain and attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Incident {
    /// Attempt that this incident leads to.
    pub attempt: i64,
    /// First cause.
    pub cause: Cause,
    /// Action of the incident: the most severe match of all its failures.
    pub action: FailureAction,
    /// True if it used the restart budget.
    #[serde(default)]
    pub counted: bool,
    /// Stage of the incident.
    pub stage: IncidentStage,
    /// Members whose pods are replaced, as ranges.
    #[serde(default)]
    pub replace: Vec<String>,
    /// UIDs of existing pods that are being replaced, so that each is deleted once. With action
    /// `RecreateGang` all pods of earlier attempts are replaced, and not listed.
    #[serde(default)]
    pub old_pods: Vec<String>,
    /// End of the back-off between counted incidents. Before it no action is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<DateTime<Utc>>,
    /// Time at which the manager detected the failure.
    pub detected_at: DateTime<Utc>,
    /// Time at which the action was recorded.
    pub decided_at: DateTime<Utc>,
    /// Time at which the order was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordered_at: Option<DateTime<Utc>>,
    /// Time at which all members had stopped and arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrived_at: Option<DateTime<Utc>>,
    /// Members at the barrier, for people. No decision reads them.
    #[serde(flatten)]
    pub arrivals: Option<BarrierArrivals>,
}

/// Members at the barrier of an open incident.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BarrierArrivals {
    /// Number of members that stand at the barrier. Absent until 5 s after the order, and removed
    /// within 10 s after the barrier has opened. The numbers of a workload change at most every
    /// 10 s; at most eight of its incidents have numbers.
    pub arrived: i32,
    /// Number of members that have to arrive before the barrier opens. Written with `arrived`.
    pub expected: i32,
    /// Members that have not arrived although others wait, as `<group>/<replica>/<index>`, the
    /// smallest ranks first, at most eight. Written with `arrived`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub late: Vec<String>,
    /// Time at which `arrived`, `expected` or `late` last changed here.
    pub arrivals_time: DateTime<Utc>,
}

/// An open replacement of single pods. The other members of their restart domain continue to run at
/// the same attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodReplacement {
    /// First cause.
    pub cause: Cause,
    /// True if it used the restart budget.
    #[serde(default)]
    pub counted: bool,
    /// Members whose pods are replaced, as ranges.
    #[serde(default)]
    pub members: Vec<String>,
    /// UIDs of existing pods that are being replaced, so that each is deleted once.
    #[serde(default)]
    pub old_pods: Vec<String>,
    /// End of the back-off between replacements. Before it no pod of these members is deleted or
    /// created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<DateTime<Utc>>,
    /// Time at which the manager detected the failure.
    pub detected_at: DateTime<Utc>,
}

/// Stage of an incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum IncidentStage {
    /// Recorded; nothing disruptive has been done.
    Decided,
    /// The order is written; members stop and arrive.
    Ordered,
    /// All members have arrived at the new attempt.
    Arrived,
}

/// Cause of an incident.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    /// Kind of failure.
    pub kind: CauseKind,
    /// Pod that failed first.
    #[serde(default)]
    pub pod: String,
    /// Node of the pod.
    #[serde(default)]
    pub node: String,
    /// Container that failed.
    #[serde(default)]
    pub container: String,
    /// True exit code, if a container exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Reason from the runtime or the kubelet, such as `OOMKilled`.
    #[serde(default)]
    pub reason: String,
    /// Message for people.
    #[serde(default)]
    pub message: String,
    /// Name of the matching failure rule; empty: the default.
    #[serde(default)]
    pub rule: String,
    /// Time at which the container exited or the event was seen.
    pub time: DateTime<Utc>,
}

impl Cause {
    /// A cause with only a kind.
    pub fn new(kind: CauseKind, time: DateTime<Utc>) -> Self {
        Self {
            kind,
            pod: String::new(),
            node: String::new(),
            container: String::new(),
            exit_code: None,
            reason: String::new(),
            message: String::new(),
            rule: String::new(),
            time,
        }
    }

    /// Cause of a restart for a change of the spec or of capacity, without a failure.
    pub fn requested(kind: CauseKind, time: DateTime<Utc>, message: impl Into<String>) -> Self {
        Self {
            reason: kind.as_str().into(),
            message: message.into(),
            ..Self::new(kind, time)
        }
    }
}

crate::worded! {
    /// Kinds of failures and of uncounted interruptions.
    #[derive(
        Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
    )]
    pub enum CauseKind {
        /// A container exited with a failure.
        ContainerExit = "ContainerExit",
        /// The node was lost.
        NodeLost = "NodeLost",
        /// The pod was deleted or evicted, but not by Lockstep.
        PodDeleted = "PodDeleted",
        /// The pod failed as a whole (eviction by the kubelet, active deadline).
        PodFailed = "PodFailed",
        /// The training process hung.
        Hang = "Hang",
        /// `restartNonce` was changed.
        Requested = "Requested",
        /// `replicas` changed, or an elastic gang continues with more or fewer members. Uncounted.
        Resize = "Resize",
        /// Preempted by a gang of higher priority. Uncounted.
        Preempted = "Preempted",
        /// Members of a group in `dependsOn` restart or have no placement. Uncounted.
        DependencyBroken = "DependencyBroken",
        /// The gang moves from a node that will be removed or stopped. Uncounted.
        NodeLeaving = "NodeLeaving",
        /// The gang moves from a node with a fault that is certain. Uncounted.
        NodeFaulty = "NodeFaulty",
    }
}

impl CauseKind {
    /// True for a restart without a failure of the restart domain: requested, because of another
    /// group, or to leave a node.
    pub fn is_requested(self) -> bool {
        match self {
            Self::Requested
            | Self::Resize
            | Self::DependencyBroken
            | Self::NodeLeaving
            | Self::NodeFaulty => true,
            Self::ContainerExit
            | Self::NodeLost
            | Self::PodDeleted
            | Self::PodFailed
            | Self::Hang
            | Self::Preempted => false,
        }
    }

    /// True if the gang leaves a node with a signal.
    pub fn leaves_node(self) -> bool {
        match self {
            Self::NodeLeaving | Self::NodeFaulty => true,
            Self::ContainerExit
            | Self::NodeLost
            | Self::PodDeleted
            | Self::PodFailed
            | Self::Hang
            | Self::Requested
            | Self::Resize
            | Self::Preempted
            | Self::DependencyBroken => false,
        }
    }

    /// True if a failure of this kind uses the restart budget by default; a rule or the
    /// cause may override this. A deleted pod is no failure of the program.
    pub fn is_counted(self) -> bool {
        match self {
            Self::ContainerExit | Self::NodeLost | Self::PodFailed | Self::Hang => true,
            Self::PodDeleted
            | Self::Requested
            | Self::Resize
            | Self::Preempted
            | Self::DependencyBroken
            | Self::NodeLeaving
            | Self::NodeFaulty => false,
        }
    }
}

/// A finished incident.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// Key of the restart domain.
    pub domain: String,
    /// Attempt that the incident led to.
    pub attempt: i64,
    /// First cause.
    pub cause: Cause,
    /// Action of the incident.
    pub action: FailureAction,
    /// True if it used the restart budget.
    #[serde(default)]
    pub counted: bool,
    /// Number of replaced pods.
    #[serde(default)]
    pub recreated: i32,
    /// Time of the failure.
    pub time: DateTime<Utc>,
    /// Time at which all members ran again, or the workload ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovered_at: Option<DateTime<Utc>>,
    /// Duration of each phase.
    #[serde(default)]
    pub phases: Phases,
    /// Work of all members that was lost, in accelerator-seconds: from the last checkpoint, or from
    /// the time at which all members ran, to the failure. 0 if they have not run.
    #[serde(default)]
    pub lost_accelerator_seconds: i64,
    /// Cost of the restart in accelerator-seconds of all members: from the failure to
    /// `recoveredAt`, or to the end of the incident.
    #[serde(default)]
    pub restart_accelerator_seconds: i64,
    /// The gang for which this one was preempted whole by Lockstep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptor: Option<Preemptor>,
}

/// Durations of an incident in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Phases {
    /// From the failure to its detection.
    pub detect_ms: i64,
    /// From the detection to the recorded decision, including back-off.
    pub decide_ms: i64,
    /// From the order until all members have stopped and arrived.
    pub stop_ms: i64,
    /// From the arrival to the release.
    pub barrier_ms: i64,
    /// From the release until all members run.
    pub start_ms: i64,
}
