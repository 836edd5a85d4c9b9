//! `NodeAgent`: reports of a node's agent to the manager.

use chrono::{DateTime, Utc};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::workload::ProgressMetric;

/// Most reports per object. A node has fewer containers.
pub const MAX_REPORTS: usize = 1024;

/// The agent of one node, named after the node. There is no heartbeat: an agent is alive while its
/// own pod is ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "training.lockstep.dev",
    version = "v1alpha1",
    kind = "NodeAgent",
    plural = "nodeagents",
    status = "NodeAgentStatus",
    derive = "PartialEq",
    doc = "Report of the agent of one node for the manager. Named after its node; written by that node's agent only.",
    printcolumn(json_path = ".status.agentVersion", name = "Version", type_ = "string"),
    printcolumn(json_path = ".status.runtime", name = "Runtime", type_ = "string"),
    printcolumn(
        json_path = ".metadata.creationTimestamp",
        name = "Age",
        type_ = "date"
    )
)]
pub struct NodeAgentSpec {}

/// Status of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAgentStatus {
    /// Version of the agent.
    pub agent_version: String,
    /// Container runtime and its version.
    pub runtime: String,
    /// Capabilities of the agent: `Stop` containers on order, `Report` their exits, `Supervise`
    /// members.
    pub capabilities: Vec<String>,
    /// Members that have arrived at an attempt; the latest attempt of each domain on this node.
    pub arrivals: Vec<Arrival>,
    /// Container exits of members, oldest first: the last 8, and the last of each container of a
    /// pod that is still on the node.
    #[schemars(length(max = 1024))]
    pub reports: Vec<Report>,
    /// Progress of the members on this node that report it, sorted by UID of the pod. Updated at
    /// most once a minute per member, and less often in gangs of more than 600.
    pub progress: Vec<MemberProgress>,
    /// Answers of the members on this node to the open requests for checkpoints, sorted by UID of
    /// the pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<CheckpointReply>,
}

impl NodeAgentStatus {
    /// True if the agent reports one of [`capabilities`].
    pub fn has(&self, capability: &str) -> bool {
        self.capabilities.iter().any(|c| c == capability)
    }
}

/// Values of [`NodeAgentStatus::capabilities`].
pub mod capabilities {
    /// The agent stops containers on order.
    pub const STOP: &str = "Stop";
    /// The agent reports container exits.
    pub const REPORT: &str = "Report";
    /// The agent connects to the supervisors of its node's members, and holds and releases them.
    pub const SUPERVISE: &str = "Supervise";
    /// The agent asks supervised members for checkpoints.
    pub const CHECKPOINT: &str = "Checkpoint";
}

/// Members of one restart domain on this node that have arrived at an attempt. The container of the
/// old attempt is gone, and the container of the new one runs or, with a supervisor, waits at the
/// barrier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Arrival {
    /// UID of the workload.
    #[serde(rename = "workloadUID")]
    pub workload_uid: String,
    /// Key of the restart domain.
    pub domain: String,
    /// Attempt of the arrivals.
    pub attempt: i64,
    /// The arrived pods, sorted by UID.
    pub pods: Vec<ArrivedPod>,
    /// UIDs of pods that have not arrived although the order's deadline, counted from its receipt
    /// by the agent, has passed; sorted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<String>,
}

/// A member that has arrived at an attempt.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase", default)]
pub struct ArrivedPod {
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Runtime id of the training container at this attempt. The pod status may still show the
    /// previous container.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Number of restarts by the kubelet before this container.
    pub restarts: i32,
}

/// Progress of a member's training process, as the process reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberProgress {
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Attempt of the process.
    pub attempt: i64,
    /// Current step.
    pub step: i64,
    /// Time of the current step, by the node's clock.
    pub step_time: DateTime<Utc>,
    /// Step of the last saved checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_step: Option<i64>,
    /// Time of the first report of that checkpoint, by the node's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_time: Option<DateTime<Utc>>,
    /// Steps of the whole training, if the process reports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<i64>,
    /// Rate since the previous report. Absent before the second report after a start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_per_hour: Option<i64>,
    /// Values that the process reports with the step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub metrics: Vec<ProgressMetric>,
    /// Time of this report.
    pub time: DateTime<Utc>,
}

/// Answer of a member to a request for a checkpoint. Without an entry the request is open, or the
/// process has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointReply {
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Id of the request.
    pub id: String,
    /// The saved step: at least the step that the supervisor knew when it passed the request on.
    /// Absent: the process cannot be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<i64>,
}

/// Exit of a container from the runtime, or of a training process from its supervisor, with the
/// true exit code. The pod status may show the code late or never: a container restarted by
/// RestartAllContainers shows 137.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Name of the container.
    pub container: String,
    /// Runtime id of the container. There is one report per container, and one per attempt of a
    /// supervised container.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Attempt for which the container was released.
    pub attempt: i64,
    /// True if the supervisor reported the exit: the training process ended without an order while
    /// its container still ran.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub supervised: bool,
    /// Number of restarts by the kubelet before this container.
    #[serde(default)]
    pub restarts: i32,
    /// Stopped: the agent stopped the container for a restart order. Exited: the container exited
    /// by itself.
    #[serde(default)]
    pub kind: ReportKind,
    /// Exit code.
    pub exit_code: i32,
    /// Reason from the runtime, such as `OOMKilled`, or from the supervisor, such as `Hang`.
    #[serde(default)]
    pub reason: String,
    /// Details from the supervisor, for people; at most 256 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Time of the exit, by the node's clock.
    pub time: DateTime<Utc>,
}

/// Origin of a container's exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReportKind {
    /// The container ended without the agent.
    #[default]
    Exited,
    /// The agent stopped it for an order.
    Stopped,
}
