//! `RestartOrder`: orders of the manager to the node agents for one workload.

use chrono::{DateTime, Utc};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::workload::{CheckpointSignal, ProgressPolicy};

/// The orders for one workload. The workload owns the object and shares its name. The object is
/// small, because every node agent watches all orders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "training.lockstep.dev",
    version = "v1alpha1",
    kind = "RestartOrder",
    plural = "restartorders",
    namespaced,
    derive = "PartialEq",
    doc = "Orders of the manager for node agents, for one workload. Written by the operator."
)]
#[serde(rename_all = "camelCase")]
pub struct RestartOrderSpec {
    /// UID of the workload.
    #[serde(rename = "workloadUID")]
    pub workload_uid: String,
    /// One order per restart domain.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".into()]))]
    pub domains: Vec<DomainOrder>,
}

/// The order for one restart domain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DomainOrder {
    /// Key of the domain.
    pub key: String,
    /// Attempt at which the members must run. Agents stop containers that were released for an
    /// older attempt.
    pub attempt: i64,
    /// Members that restart in place at this attempt, as ranges. Members with replaced pods are not
    /// included.
    #[serde(default)]
    pub members: Vec<String>,
    /// Number of members of the domain at this attempt.
    #[serde(default)]
    pub world: i32,
    /// Attempt whose training processes may start. A supervisor waits at the barrier until this
    /// value equals its attempt. Members without a supervisor do not wait.
    #[serde(default)]
    pub released_attempt: i64,
    /// Attempt at which the domain meets the success policy. Supervisors whose process exited 0 at
    /// this attempt then exit too.
    #[serde(default)]
    pub completed_attempt: i64,
    /// All members of the attempt, as ranges. Training processes of supervised members get them as
    /// `LOCKSTEP_PEERS`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
    /// Limits after which a training process that reports progress counts as hung. Applies to
    /// supervised members from the next start of their process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressPolicy>,
    /// How the processes are asked for a checkpoint. Applies from the next start of a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<SavePolicyOrder>,
    /// The open request for a checkpoint to the processes of this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<SaveRequestOrder>,
    /// True if the manager stops the members of this attempt: supervisors hold back no stop signal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
    /// Supervised members whose failure at this attempt does not restart the domain, with the
    /// restart count of the failed container. The supervisor of that container exits with the exit
    /// code of its child. The next container may start at the same attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alone: Vec<RestartsSeen>,
    /// Most common restart count of the members' training containers when the order was decided;
    /// -1: not started. `exceptions` lists members with other counts. An agent uses the count if it
    /// does not know the attempt of a container: a container with a higher count belongs to this
    /// attempt, any other container to an older attempt.
    #[serde(default)]
    pub restarts_seen: i32,
    /// Members whose restart count differs from `restartsSeen`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exceptions: Vec<RestartsSeen>,
    /// Time of the failure that caused this attempt. For a lost node: time at which the manager
    /// detected the loss. Absent if no incident caused the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<DateTime<Utc>>,
    /// Rendezvous address of the members at this attempt. Absent: members use the address in the
    /// environment of their pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<CoordinatorAddress>,
    /// UIDs of replaced pods that may still run on their nodes; the last 1000. Agents report no
    /// arrival of these pods and do not release them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced_pods: Vec<String>,
    /// Longest time for members to arrive at the attempt, in seconds: `inPlace.deadlineSeconds`, or
    /// `startDeadlineSeconds` for a supervised start without an incident. Agents report members
    /// that have not arrived by then. Absent: no deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<i64>,
}

/// How processes are asked for a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SavePolicyOrder {
    /// Signal to processes with a handler. Absent: the file only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<CheckpointSignal>,
    /// `checkpoint.onRequest.timeoutSeconds` of the workload.
    pub timeout_seconds: i64,
    /// How long a supervisor may hold back SIGTERM to its container, in seconds, while a checkpoint
    /// is requested from all members. Absent: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_stop_seconds: Option<i64>,
}

/// A request for a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SaveRequestOrder {
    /// Id of the request.
    pub id: String,
    /// Reason, for the process.
    pub reason: String,
    /// Time at which the process is stopped without an answer.
    pub deadline: DateTime<Utc>,
    /// True: no file is written and no signal is sent; agents report the next saved step at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub watch: bool,
}

/// Members whose training containers have the same restart count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestartsSeen {
    /// Number of restarts; -1: the container has not started.
    pub restarts: i32,
    /// The members, as ranges.
    pub members: Vec<String>,
}

/// Rendezvous address. The port changes with the attempt, so a straggler of an earlier attempt
/// finds no peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CoordinatorAddress {
    /// IP of the coordinator's pod.
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    /// Port of the coordinator.
    pub port: i32,
}
