//! Status of a workload: the ledger, written before an action, and the summary, computed after it.

use chrono::{DateTime, TimeDelta, Utc};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Backend, Cause, CheckpointRequest, GangMove, HistoryEntry, Incident, KueueStatus,
    PodReplacement,
};
use crate::condition::Condition;

/// Status of a workload.
///
/// The *ledger* (`applied`, `gangs`, `domains`, `restarts.countedAt`) is the state that the
/// operator needs to finish what it began. It is persisted before any disruptive action. The rest
/// is a *summary* for people and tools. It is computed from observed state and is never an input of
/// decisions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainingWorkloadStatus {
    /// Generation of the spec from which this status was computed.
    #[serde(default)]
    pub observed_generation: i64,
    /// State in one word, for people and columns. Never an input of decisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Reason of the condition that gives the phase.
    #[serde(default)]
    pub reason: String,
    /// Message of the condition that gives the phase; of a finished workload, of Complete or
    /// Failed.
    #[serde(default)]
    pub message: String,
    /// Members that are ready or have succeeded, of all members that should run, such as `31/32`.
    #[serde(default)]
    pub ready: String,
    /// Highest attempt of all restart domains.
    #[serde(default)]
    pub attempt: i64,
    /// Backend of the next placement of each gang, from `spec.scheduling.backend` or the manager's
    /// configuration. Absent: Lockstep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
    /// Conditions; see the reference for types and reasons.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Ledger: the spec from which the running pods were created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<AppliedSpec>,
    /// Ledger: one entry per gang.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".into()]))]
    pub gangs: Vec<GangStatus>,
    /// Ledger: one entry per restart domain.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".into()]))]
    pub domains: Vec<DomainStatus>,
    /// Restart counters and the restart budget.
    #[serde(default)]
    pub restarts: Restarts,
    /// Number of preemptions of this workload.
    #[serde(default)]
    pub preemptions: i64,
    /// Counts per group.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub groups: Vec<GroupStatus>,
    /// With `spec.replicas`: replicas of its group whose first member has a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// With `spec.replicas`: selector of the pod of each first member in a replica of its group.
    /// Autoscalers measure these pods, because they are as many as the replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Time since which a gang holds its nodes. Absent: all gangs are queued or suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<DateTime<Utc>>,
    /// Time of the latest placement of any gang, including a placement that adds or replaces
    /// members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_time: Option<DateTime<Utc>>,
    /// Time at which the workload completed or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<DateTime<Utc>>,
    /// The last 20 incidents, newest first.
    #[serde(default)]
    pub history: Vec<HistoryEntry>,
    /// The last 20 changes of the phase, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseChange>,
    /// Ledger: training progress, as the processes report it. Absent: no process reports progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<TrainingProgress>,
    /// Ledger: last handled value of annotation `training.lockstep.dev/request-checkpoint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_checkpoint_request: Option<String>,
    /// Accelerator time, written only on transitions.
    #[serde(default)]
    pub accounting: Accounting,
    /// Ledger: seconds with nodes before `startTime`, for `activeDeadlineSeconds`.
    #[serde(default)]
    pub active_seconds: i64,
    /// Ledger: quota from Kueue. Absent: Kueue does not manage the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kueue: Option<KueueStatus>,
}

crate::worded! {
    /// State of a workload in one word.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum Phase {
        /// Waiting for capacity or for another group.
        Pending = "Pending",
        /// Pods are being created or are starting.
        Starting = "Starting",
        /// All members have started and none has failed. Condition Ready tells whether all are ready.
        Running = "Running",
        /// An incident is being handled.
        Restarting = "Restarting",
        /// Being preempted by a gang of higher priority.
        Preempting = "Preempting",
        /// Suspended.
        Suspended = "Suspended",
        /// Complete.
        Succeeded = "Succeeded",
        /// Failed.
        Failed = "Failed",
        /// Needs a change by a user.
        Stalled = "Stalled",
    }
}

/// A change of the phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhaseChange {
    /// The new phase.
    pub phase: Phase,
    /// Reason of the condition that gave the phase.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Time of the change.
    pub since: DateTime<Utc>,
}

impl TrainingWorkloadStatus {
    /// The open or last request for a checkpoint of each restart domain that has one, with the key of
    /// the domain.
    pub fn checkpoint_requests(&self) -> impl Iterator<Item = (&str, &CheckpointRequest)> {
        let domains = self.domains.iter();
        domains.filter_map(|d| Some((d.key.as_str(), d.checkpoint_request.as_ref()?)))
    }
}

/// The spec from which the running pods were created. A difference to the current spec needs
/// action.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppliedSpec {
    /// Version and hash of the parts of the spec from which pods are created, without replica
    /// counts.
    pub spec_hash: String,
    /// Last handled value of `spec.restartNonce`.
    #[serde(default)]
    pub restart_nonce: i64,
    /// Replicas per group, in the order of `spec.groups`.
    #[serde(default)]
    pub replicas: Vec<i32>,
}

/// Ledger entry of a gang.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GangStatus {
    /// Key of the gang: `workload`, the group, or `<group>.<replica>`.
    pub key: String,
    /// True if the gang may start or run: its dependencies were met, and none has been broken since.
    #[serde(default)]
    pub started: bool,
    /// Id of the placement that the gang has released. The scheduler clears it once the gang's pods
    /// are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<String>,
    /// Why the gang waits before it queues again; removed after the wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// Placements in a row that ended before all members ran. The back-off grows with it.
    #[serde(default)]
    pub placement_tries: i32,
    /// Starts in a row that failed because of the template: image, command, configuration or
    /// scheduler. The third fails the workload; with policy `Basic`, only if no other member is left
    /// to run.
    #[serde(default)]
    pub start_tries: i32,
    /// Time since which the gang holds its nodes. After a preemption it holds them once its victims
    /// are gone. Absent if it holds no nodes, or no accelerators on them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_since: Option<DateTime<Utc>>,
    /// Nodes that this gang temporarily avoids.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["node".into()]))]
    pub avoid: Vec<AvoidedNode>,
    /// The open move away from nodes with signals, otherwise the last one while its signals stand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<GangMove>,
}

/// A wait before the gang queues again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Backoff {
    /// Reason, from the table of condition reasons.
    pub reason: String,
    /// The refusal, in the words of the API server.
    #[serde(default)]
    pub message: String,
    /// Placements in a row that ended for this reason.
    #[serde(default)]
    pub tries: i32,
    /// End of the wait.
    pub until: DateTime<Utc>,
}

/// A node to avoid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AvoidedNode {
    /// Name of the node.
    pub node: String,
    /// Reason, from the table of condition reasons.
    pub reason: String,
    /// End of the avoidance.
    pub until: DateTime<Utc>,
    /// `spec.providerID` of a node with a signal. Another machine of the same name is not avoided.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// `status.nodeInfo.bootID` of a node that was announced to leave. It is not avoided after its
    /// next boot.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot: String,
    /// Exit code of an init container that judged the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// Ledger entry of a restart domain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DomainStatus {
    /// Key of the domain: a gang key, or `<group>.<replica>` with restartScope Replica.
    pub key: String,
    /// Current attempt. It rises by one with each incident, and when a supervised gang is placed
    /// again.
    pub attempt: i64,
    /// The open incident: all members restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incident: Option<Incident>,
    /// The open replacement of single pods. An incident that opens later supersedes it. It can open
    /// during an incident.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement: Option<PodReplacement>,
    /// Restarts in a row for failures that use the restart budget, without ten healthy minutes
    /// between them. The first `inPlace.maxTries` restarts are in place, later ones recreate the
    /// pods.
    #[serde(default)]
    pub in_place_tries: i32,
    /// Restarts in a row for failures that do not use the restart budget, without ten healthy
    /// minutes between them.
    #[serde(default)]
    pub uncounted_tries: i32,
    /// Time since which all members run: the first start or the end of the last incident. Absent if
    /// not all members run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy_since: Option<DateTime<Utc>>,
    /// Sum of the restart counts of the members' training containers that the manager has handled.
    /// A higher observed sum is a restart that no agent reported.
    #[serde(default)]
    pub restarts_seen: i64,
    /// Time up to which lost accelerator time of the domain's failures is counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_until: Option<DateTime<Utc>>,
    /// The open request for a checkpoint, otherwise the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_request: Option<CheckpointRequest>,
    /// Number of times that all pods of the domain were replaced together. It changes `MASTER_PORT`
    /// and is part of `PET_RDZV_ID`, so a straggler finds no peer.
    #[serde(default)]
    pub recreations: i64,
}

impl DomainStatus {
    /// Causes of the open incident and of the open replacement.
    pub fn open_causes(&self) -> impl Iterator<Item = &Cause> {
        let incident = self.incident.iter().map(|i| &i.cause);
        incident.chain(self.replacement.iter().map(|r| &r.cause))
    }

    /// True if an incident or a replacement is open.
    pub fn is_restarting(&self) -> bool {
        self.open_causes().next().is_some()
    }
}

/// Restart counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Restarts {
    /// Incidents handled by a restart.
    pub total: i64,
    /// Incidents without a replaced pod.
    pub in_place: i64,
    /// Replaced pods of all incidents.
    pub recreated: i64,
    /// Incidents that used the restart budget.
    pub counted: i64,
    /// Ledger: times of the counted incidents in the current window, at most 101.
    pub counted_at: Vec<DateTime<Utc>>,
}

/// A member that is behind the last step of the training.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SlowMember {
    /// The member, as `<group>/<replica>/<index>`.
    pub member: String,
    /// Its last reported step.
    pub step: i64,
    /// Number of steps behind the last step of its restart domain.
    pub behind: i64,
}

/// Training progress (docs/progress.md), updated about once a minute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainingProgress {
    /// Last step that a member reached.
    pub step: i64,
    /// Time of that step.
    pub step_time: DateTime<Utc>,
    /// Step of the last checkpoint that a member reports as saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_step: Option<i64>,
    /// Time of that checkpoint. The cost of preempting the workload counts from this time or from
    /// annotation `training.lockstep.dev/last-checkpoint`, whichever is later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_time: Option<DateTime<Utc>>,
    /// Ledger: seconds between the last checkpoints, at most five, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub checkpoint_intervals: Vec<i64>,
    /// Steps of the whole training: the largest number that a member reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<i64>,
    /// Rate of the member with the last step, between its last two reports. Absent until its second
    /// report after a start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_per_hour: Option<i64>,
    /// Seconds from `stepTime` to the last step of the training at this rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<i64>,
    /// Percentage and time left, for people: `42%, 3.5 h left`. Empty without `total`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// Members that are behind the last step by more than the steps of two reports, the slowest first,
    /// at most eight. Written with `step`. Empty without a rate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub slowest: Vec<SlowMember>,
    /// Values that the first member by rank reports with its step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub metrics: Vec<ProgressMetric>,
}

impl TrainingProgress {
    /// Usual time between checkpoints: the median. `None` with less than three intervals.
    pub fn usual_checkpoint_interval(&self) -> Option<TimeDelta> {
        let mut sorted = self.checkpoint_intervals.clone();
        sorted.sort_unstable();
        let middle = sorted.get(sorted.len() / 2).filter(|_| sorted.len() >= 3)?;
        TimeDelta::try_seconds(*middle)
    }
}

/// A value that a training process reports, such as a loss.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProgressMetric {
    /// Name from the process: lowercase letters, digits and underscores.
    #[schemars(length(max = 32))]
    pub name: String,
    /// A finite number, as the process wrote it.
    #[schemars(length(max = 32))]
    pub value: String,
}

/// Counts of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupStatus {
    /// Name of the group.
    pub name: String,
    /// Members that should exist.
    #[serde(default)]
    pub desired: i32,
    /// Existing pods.
    #[serde(default)]
    pub created: i32,
    /// Ready members.
    #[serde(default)]
    pub ready: i32,
    /// Members that have neither succeeded nor failed.
    #[serde(default)]
    pub active: i32,
    /// Members that have succeeded.
    #[serde(default)]
    pub succeeded: i32,
    /// Members whose pod has failed.
    #[serde(default)]
    pub failed: i32,
    /// Ledger: members that have succeeded, in the range format of a Job's `completedIndexes`,
    /// numbered replica x size + index. A finished member stays finished after its pod is
    /// garbage-collected.
    #[serde(default)]
    pub completed_indexes: String,
    /// Ledger: the members that run together if only some members of the gang are placed, in the
    /// format of `completedIndexes`. Absent: all members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub world_indexes: Option<String>,
}

/// Accelerator time of the workload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Accounting {
    /// Ledger: accelerators that the gangs hold. A gang that waits for its victims to terminate
    /// holds none.
    pub accelerators: i64,
    /// Ledger: accelerator-seconds held up to `until`. Since then the gangs hold `accelerators`.
    pub held_accelerator_seconds: i64,
    /// Ledger: time up to which `heldAcceleratorSeconds` is counted; written together with other
    /// changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<DateTime<Utc>>,
    /// Ledger: work lost by incidents and preemption, in held accelerator-seconds: the sum over all
    /// entries of the history.
    pub lost_accelerator_seconds: i64,
    /// Ledger: cost of restarts in held accelerator-seconds: the sum over all entries of the
    /// history.
    pub restart_accelerator_seconds: i64,
    /// Ledger: seconds in which a gang requested capacity and did not hold it, excluding the time
    /// since `waitingSince`.
    pub waited_seconds: i64,
    /// Ledger: time since which a gang requests capacity and does not hold it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_since: Option<DateTime<Utc>>,
    /// Share of the held time that was neither lost work nor cost of restarts, such as `97.3%`.
    /// Absent if no time was held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput: Option<String>,
}
