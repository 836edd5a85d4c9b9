//! `RestartOrder`: what the manager tells the node agents about one workload.

use chrono::{DateTime, Utc};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::workload::ProgressPolicy;

/// The orders of one workload, owned by it and named like it. Small, because every node agent
/// watches all of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "training.lockstep.dev",
    version = "v1alpha1",
    kind = "RestartOrder",
    plural = "restartorders",
    namespaced,
    derive = "PartialEq",
    doc = "What the manager tells the node agents about one workload. Written by the operator."
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
    /// Attempt that the members are to run at. An agent stops what it knows as released for an
    /// older attempt.
    pub attempt: i64,
    /// Members that restart in place at this attempt, as ranges; members whose pods are replaced
    /// are not among them.
    #[serde(default)]
    pub members: Vec<String>,
    /// Number of members of the domain at this attempt.
    #[serde(default)]
    pub world: i32,
    /// Attempt that may start. A supervised member waits for it; nothing holds the others back.
    #[serde(default)]
    pub released_attempt: i64,
    /// Attempt of which all members have exited 0: supervisors that wait for it exit.
    #[serde(default)]
    pub completed_attempt: i64,
    /// All members of the attempt, as ranges; for supervised members, whose training process gets
    /// them as `LOCKSTEP_PEERS`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
    /// When a training process that tells its progress has hung; for supervised members, at their
    /// next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressPolicy>,
    /// Supervised members that failed at the attempt, and whose failure the policy answers for
    /// them alone; each with the restarts of the container that failed. The supervisor of that
    /// container exits with the code of its child, and a later container may start at the same
    /// attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alone: Vec<RestartsSeen>,
    /// Restarts of the members' training containers that were seen when the order was decided; -1:
    /// none has started. Where an agent does not know for which attempt a container runs, one with
    /// more restarts than that runs for this one, and any other for an older one.
    #[serde(default)]
    pub restarts_seen: i32,
    /// Members of which another number was seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exceptions: Vec<RestartsSeen>,
    /// When the first failure of the incident behind this attempt happened; absent for the first
    /// start, which nobody waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<DateTime<Utc>>,
    /// Where members rendezvous at this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<CoordinatorAddress>,
    /// UIDs of pods of this attempt, or of members that restart in place, that have been replaced and may
    /// still be on their nodes: they neither come to the attempt nor start. The last 1000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced_pods: Vec<String>,
    /// How long members may take to come to the attempt, in seconds: `inPlace.deadlineSeconds`, and at a
    /// first start under supervisors `startDeadlineSeconds`; absent where nobody waits for them. An agent says which of its members have not come when it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<i64>,
}

/// Restarts that were seen of some members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestartsSeen {
    /// How many; -1: the container has not started.
    pub restarts: i32,
    /// Of whom, as ranges.
    pub members: Vec<String>,
}

/// Address of the rendezvous. The port rotates with the attempt, so that a straggler of an old one
/// finds no peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CoordinatorAddress {
    /// IP of the coordinator's pod.
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    /// Port.
    pub port: i32,
}
