//! Incidents in a status: the one that is handled, and those that are over.

use chrono::{DateTime, Utc};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FailureAction;

/// One failure being handled. Its key is workload UID, domain and attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Incident {
    /// Attempt that this incident leads to.
    pub attempt: i64,
    /// What happened first.
    pub cause: Cause,
    /// What is done; the most severe match of all failures that joined.
    pub action: FailureAction,
    /// Whether it took a unit of the restart budget.
    #[serde(default)]
    pub counted: bool,
    /// How far it is.
    pub stage: IncidentStage,
    /// Members whose pods are replaced, as ranges.
    #[serde(default)]
    pub replace: Vec<String>,
    /// Pods that were there when the incident began and are being replaced (UIDs), so that each is
    /// deleted once. With action `RecreateGang` all pods of an earlier attempt are, and not listed.
    #[serde(default)]
    pub old_pods: Vec<String>,
    /// Nothing is done before this time (back-off between counted incidents).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<DateTime<Utc>>,
    /// When the failure was seen by the manager.
    pub detected_at: DateTime<Utc>,
    /// When the action was recorded.
    pub decided_at: DateTime<Utc>,
    /// When the order was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordered_at: Option<DateTime<Utc>>,
    /// When all members had stopped and arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrived_at: Option<DateTime<Utc>>,
}

/// Stage of an incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum IncidentStage {
    /// Recorded; nothing disruptive has been done.
    Decided,
    /// The order is out; members stop and come back.
    Ordered,
    /// All members have arrived at the new attempt.
    Arrived,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    /// Kind of failure.
    pub kind: CauseKind,
    /// Pod that failed first.
    #[serde(default)]
    pub pod: String,
    /// Its node.
    #[serde(default)]
    pub node: String,
    /// Its container.
    #[serde(default)]
    pub container: String,
    /// True exit code, when a container exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Reason given by the runtime or the kubelet, such as `OOMKilled`.
    #[serde(default)]
    pub reason: String,
    /// For people.
    #[serde(default)]
    pub message: String,
    /// Name of the failure rule that matched; empty: the default.
    #[serde(default)]
    pub rule: String,
    /// When the container finished or the event was seen.
    pub time: DateTime<Utc>,
}

impl Cause {
    /// A cause of which no more than the kind is known.
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

    /// The cause of a restart that answers a change of the spec or of capacity, and no failure.
    pub fn requested(kind: CauseKind, time: DateTime<Utc>, message: impl Into<String>) -> Self {
        Self {
            reason: kind.as_str().into(),
            message: message.into(),
            ..Self::new(kind, time)
        }
    }
}

crate::worded! {
    /// Kinds of failure and of uncounted interruption.
    #[derive(
        Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
    )]
    pub enum CauseKind {
        /// A container exited with a failure.
        ContainerExit = "ContainerExit",
        /// The node was lost.
        NodeLost = "NodeLost",
        /// The pod object was deleted or evicted, not by Lockstep.
        PodDeleted = "PodDeleted",
        /// The pod failed as a whole (eviction by the kubelet, active deadline).
        PodFailed = "PodFailed",
        /// The training container hung.
        Hang = "Hang",
        /// `restartNonce` was raised.
        Requested = "Requested",
        /// `replicas` changed, or an elastic gang goes on with more or fewer members. Uncounted.
        Resize = "Resize",
        /// Preempted by a more important gang. Uncounted.
        Preempted = "Preempted",
    }
}

impl CauseKind {
    /// Whether a restart of this kind was asked for, and answers no failure.
    pub fn is_requested(self) -> bool {
        match self {
            Self::Requested | Self::Resize => true,
            Self::ContainerExit
            | Self::NodeLost
            | Self::PodDeleted
            | Self::PodFailed
            | Self::Hang
            | Self::Preempted => false,
        }
    }

    /// Whether a failure of this kind takes a unit of the restart budget, where neither a rule nor what caused
    /// it says otherwise. Whoever deletes a pod, the program has not failed.
    pub fn is_counted(self) -> bool {
        match self {
            Self::ContainerExit | Self::NodeLost | Self::PodFailed | Self::Hang => true,
            Self::PodDeleted | Self::Requested | Self::Resize | Self::Preempted => false,
        }
    }
}

/// A finished incident.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// Restart domain.
    pub domain: String,
    /// Attempt it led to.
    pub attempt: i64,
    /// What happened first.
    pub cause: Cause,
    /// What was done.
    pub action: FailureAction,
    /// Whether it took a unit of the restart budget.
    #[serde(default)]
    pub counted: bool,
    /// Pods that were replaced.
    #[serde(default)]
    pub recreated: i32,
    /// When the failure happened.
    pub time: DateTime<Utc>,
    /// When all members ran again, or the workload ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovered_at: Option<DateTime<Utc>>,
    /// How long each phase took.
    #[serde(default)]
    pub phases: Phases,
    /// Accelerator-seconds lost: work since the last checkpoint and the time of the restart, over
    /// all members.
    #[serde(default)]
    pub lost_accelerator_seconds: i64,
}

/// Durations of an incident in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Phases {
    /// Failure to its detection.
    pub detect_ms: i64,
    /// Detection to the recorded decision, back-off included.
    pub decide_ms: i64,
    /// Order to all members stopped and arrived.
    pub stop_ms: i64,
    /// Arrival to release.
    pub barrier_ms: i64,
    /// Release to all running.
    pub start_ms: i64,
}
