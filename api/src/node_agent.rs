//! `NodeAgent`: what the agent of one node tells the manager.

use chrono::{DateTime, Utc};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most reports that an object may hold: a node has fewer containers.
pub const MAX_REPORTS: usize = 1024;

/// The agent of one node, named after it. No heartbeat: an agent lives while its own pod is ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "training.lockstep.dev",
    version = "v1alpha1",
    kind = "NodeAgent",
    plural = "nodeagents",
    status = "NodeAgentStatus",
    derive = "PartialEq",
    doc = "What the agent of one node tells the manager. Named after its node; written by that node's agent only.",
    printcolumn(json_path = ".status.agentVersion", name = "Version", type_ = "string"),
    printcolumn(json_path = ".status.runtime", name = "Runtime", type_ = "string"),
    printcolumn(
        json_path = ".metadata.creationTimestamp",
        name = "Age",
        type_ = "date"
    )
)]
pub struct NodeAgentSpec {}

/// State of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAgentStatus {
    /// Version of the agent.
    pub agent_version: String,
    /// Container runtime and its version.
    pub runtime: String,
    /// What this agent can do: `Stop` containers on order, `Report` their exits, `Supervise` members.
    pub capabilities: Vec<String>,
    /// Members that have come to an attempt; the latest attempt of each domain on this node.
    pub arrivals: Vec<Arrival>,
    /// Container exits of members, oldest first: the last 8, and the last of each container of a pod that
    /// is still on the node.
    #[schemars(length(max = 1024))]
    pub reports: Vec<Report>,
    /// How far the members on this node have come that tell it, by UID of the pod; told again at
    /// most once a minute for each, and less often in gangs of more than 600.
    pub progress: Vec<MemberProgress>,
}

/// Values of [`NodeAgentStatus::capabilities`].
pub mod capabilities {
    /// The agent stops containers on order.
    pub const STOP: &str = "Stop";
    /// The agent reports container exits.
    pub const REPORT: &str = "Report";
    /// The agent is linked to the supervisors of its node's members: it holds and releases them.
    pub const SUPERVISE: &str = "Supervise";
}

/// Members of one restart domain on this node that have come to an attempt: their container of the
/// old attempt is gone and that of the new one runs (or, with a supervisor, waits at the barrier).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Arrival {
    /// UID of the workload.
    #[serde(rename = "workloadUID")]
    pub workload_uid: String,
    /// Key of the restart domain.
    pub domain: String,
    /// The attempt.
    pub attempt: i64,
    /// The pods, sorted by UID.
    pub pods: Vec<ArrivedPod>,
    /// UIDs of pods that are to come to the attempt and have not, although the order's deadline is over
    /// since the agent saw it; sorted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<String>,
}

/// A member that has come to an attempt.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase", default)]
pub struct ArrivedPod {
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Runtime id of the training container that runs at the attempt. Pod status may still show the
    /// one before it.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// How often the kubelet had restarted the container before this one.
    pub restarts: i32,
}

/// How far the training process of one member has come, by what it says itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberProgress {
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Attempt of the process.
    pub attempt: i64,
    /// The step that it is at.
    pub step: i64,
    /// When it came to that step, by the node's clock.
    pub step_time: DateTime<Utc>,
    /// The step of the last checkpoint that it says it has saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_step: Option<i64>,
    /// When it first told of that checkpoint, by the node's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_time: Option<DateTime<Utc>>,
    /// When the agent told this.
    pub time: DateTime<Utc>,
}

/// The end of one container of a member as the runtime saw it, or of one training process as its
/// supervisor saw it: the true exit code, which pod status may show late or never (a container
/// restarted by RestartAllContainers shows 137).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Name of the container.
    pub container: String,
    /// Runtime id of the container; one report per container, and one per attempt of a supervised
    /// one.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Attempt at which the container was released.
    pub attempt: i64,
    /// Whether the supervisor told of it: the training process has ended by itself, and its
    /// container still ran.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub supervised: bool,
    /// How often the kubelet had restarted the container before this one.
    #[serde(default)]
    pub restarts: i32,
    /// Whether the agent had stopped it on order.
    #[serde(default)]
    pub kind: ReportKind,
    /// Exit code.
    pub exit_code: i32,
    /// Reason given by the runtime, such as `OOMKilled`, or by the supervisor, such as `Hang`.
    #[serde(default)]
    pub reason: String,
    /// For people: what a supervisor knows beyond the reason; at most 256 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When the container finished, by the node's clock.
    pub time: DateTime<Utc>,
}

/// Who ended a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReportKind {
    /// It ended by itself, or was stopped by something other than the agent.
    #[default]
    Exited,
    /// The agent stopped it for an order.
    Stopped,
}
