//! Status of a workload: the ledger, written before acting, and the summary, computed after.

use chrono::{DateTime, Utc};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use std::collections::BTreeSet;

use super::{Group, HistoryEntry, Incident};
use crate::condition::Condition;
use crate::member::{Member, parse_indexes};

/// Status of a workload.
///
/// The *ledger* (`applied`, `gangs`, `domains`, `restarts.countedAt`) is what the operator must
/// remember to finish what it began; it is persisted before anything disruptive is done. The rest
/// is a *summary* for people and tools, computed from what is observed and never read back as
/// input.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainingWorkloadStatus {
    /// Generation of the spec that this status was computed from.
    #[serde(default)]
    pub observed_generation: i64,
    /// One word for people and columns. Never an input of decisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Why it stands there: the reason of the condition that gives the phase.
    #[serde(default)]
    pub reason: String,
    /// The same in words: the message of that condition. After the end that of Complete or Failed.
    #[serde(default)]
    pub message: String,
    /// Members that are ready or have succeeded, of all that should run, such as `31/32`.
    #[serde(default)]
    pub ready: String,
    /// Highest attempt over the restart domains.
    #[serde(default)]
    pub attempt: i64,
    /// Conditions; see the reference for types and reasons.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Ledger: what the running pods were made from.
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
    /// How often this workload was preempted.
    #[serde(default)]
    pub preemptions: i64,
    /// Counts per group.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub groups: Vec<GroupStatus>,
    /// When the workload was first acted on, or last resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<DateTime<Utc>>,
    /// When every gang was last placed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_time: Option<DateTime<Utc>>,
    /// When the workload completed or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<DateTime<Utc>>,
    /// The last 20 incidents, newest first.
    #[serde(default)]
    pub history: Vec<HistoryEntry>,
    /// Ledger: how far training has come, by what its processes tell; absent: they tell nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<TrainingProgress>,
    /// Accelerator time, written on transitions only.
    #[serde(default)]
    pub accounting: Accounting,
    /// Ledger: seconds of activity before the last suspension, for `activeDeadlineSeconds`.
    #[serde(default)]
    pub active_seconds: i64,
}

impl TrainingWorkloadStatus {
    /// Members that have succeeded, from the ledger. Indexes beyond the present size of a group are
    /// left out.
    pub fn completed(&self, groups: &[Group]) -> BTreeSet<Member> {
        let of = |group: &Group| {
            let ranges = self
                .groups
                .iter()
                .find(|s| s.name == group.name)
                .map_or("", |s| &s.completed_indexes);
            let (name, size, members) = (group.name.clone(), group.size.max(1), group.members());
            let indexes = parse_indexes(ranges).unwrap_or_default();
            indexes
                .into_iter()
                .filter(move |i| *i < members)
                .map(move |i| Member::new(name.clone(), i / size, i % size))
        };
        groups.iter().flat_map(of).collect()
    }
}

crate::worded! {
    /// One word for where a workload stands.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum Phase {
        /// Waiting for capacity or for another group.
        Pending = "Pending",
        /// Pods are being created or are starting.
        Starting = "Starting",
        /// Members run.
        Running = "Running",
        /// An incident is being handled.
        Restarting = "Restarting",
        /// Leaving for a more important gang.
        Preempting = "Preempting",
        /// Suspended.
        Suspended = "Suspended",
        /// Complete.
        Succeeded = "Succeeded",
        /// Failed.
        Failed = "Failed",
        /// Needs a change from outside.
        Stalled = "Stalled",
    }
}

/// What the running pods were made from; a difference to the spec is work to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppliedSpec {
    /// Hash of the parts of the spec that pods are made from, replica counts excluded.
    pub spec_hash: String,
    /// `spec.restartNonce` that has been acted on.
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
    /// Whether its dependencies were met once; it then never waits for them again.
    #[serde(default)]
    pub started: bool,
    /// Id of the placement that the gang has given back. The scheduler clears it once the gang's
    /// pods are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<String>,
    /// Why the gang waits before it queues again; removed when the wait is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// Placements in a row that ended before all members ran; the next back-off grows with it.
    #[serde(default)]
    pub placement_tries: i32,
    /// Starts in a row that failed because of the template: image, command, configuration or scheduler.
    /// The third fails the workload.
    #[serde(default)]
    pub start_tries: i32,
    /// Since when the gang holds its nodes: those of a preemption are its own when its victims have left.
    /// Absent while it holds none, or no accelerators there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_since: Option<DateTime<Utc>>,
    /// Nodes that this gang stays away from for a while.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["node".into()]))]
    pub avoid: Vec<AvoidedNode>,
}

/// A wait before the gang queues again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Backoff {
    /// Reason, from the table of condition reasons.
    pub reason: String,
    /// What was refused, in the words of the API server.
    #[serde(default)]
    pub message: String,
    /// Placements in a row that ended so.
    #[serde(default)]
    pub tries: i32,
    /// Not before this time.
    pub until: DateTime<Utc>,
}

/// A node to stay away from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AvoidedNode {
    /// Name of the node.
    pub node: String,
    /// Reason, from the table of condition reasons.
    pub reason: String,
    /// Until when.
    pub until: DateTime<Utc>,
}

/// Ledger entry of a restart domain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DomainStatus {
    /// Key of the domain: a gang key, or `<group>.<replica>` with restartScope Replica.
    pub key: String,
    /// Current attempt; rises by one for each incident, and when a supervised gang is placed again.
    pub attempt: i64,
    /// The incident being handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incident: Option<Incident>,
    /// Restarts in a row for failures that take restart budget, without ten healthy minutes between them; in
    /// place at first, then with new
    /// pods.
    #[serde(default)]
    pub in_place_tries: i32,
    /// Restarts in a row for failures that take no restart budget, without ten healthy minutes between them.
    #[serde(default)]
    pub uncounted_tries: i32,
    /// Since when all members run: the first start or the end of the last incident. Absent while
    /// they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy_since: Option<DateTime<Utc>>,
    /// Restarts of the members' training containers that are accounted for; more than that is a
    /// restart that no agent reported.
    #[serde(default)]
    pub restarts_seen: i64,
    /// Up to when the accelerator time that failures of the domain have lost is counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_until: Option<DateTime<Utc>>,
    /// How often all pods of the domain were replaced together. It rotates `MASTER_PORT` and is
    /// part of `PET_RDZV_ID`, so that a straggler finds no peer.
    #[serde(default)]
    pub recreations: i64,
}

/// Restart counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Restarts {
    /// Incidents handled by a restart.
    pub total: i64,
    /// Of these, those in which no pod was replaced.
    pub in_place: i64,
    /// Pods replaced over all incidents.
    pub recreated: i64,
    /// Incidents that took a unit of the restart budget.
    pub counted: i64,
    /// Ledger: when the counted incidents of the present window happened, at most 101.
    pub counted_at: Vec<DateTime<Utc>>,
}

/// How far training has come (docs/progress.md). Brought up to date about once a minute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainingProgress {
    /// The step that a member has come to last.
    pub step: i64,
    /// When it came to it.
    pub step_time: DateTime<Utc>,
    /// The step of the last checkpoint that a member says it has saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_step: Option<i64>,
    /// When it was saved. The cost of preempting the workload counts from here, as it does from
    /// annotation `training.lockstep.dev/last-checkpoint`; the later one counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_time: Option<DateTime<Utc>>,
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
    /// Pods that exist.
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
    /// numbered replica x size + index. A finished member stays finished when its pod is
    /// garbage-collected.
    #[serde(default)]
    pub completed_indexes: String,
    /// Ledger: the members that run together when not all of the gang are placed, in the format of
    /// `completedIndexes`. Absent: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub world_indexes: Option<String>,
}

/// Accelerator time of the workload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Accounting {
    /// Ledger: accelerators that its gangs hold; none of a gang that waits for the victims of its preemption
    /// to leave.
    pub accelerators: i64,
    /// Ledger: accelerator-seconds held, up to `until`; since then the gangs hold `accelerators`.
    pub held_accelerator_seconds: i64,
    /// Ledger: up to when; written when something else is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<DateTime<Utc>>,
    /// Ledger: accelerator-seconds of these that incidents and preemption have lost: work since the
    /// last checkpoint, and the time until all members ran again.
    pub lost_accelerator_seconds: i64,
    /// Ledger: seconds in which a gang wanted capacity and had none, or not yet, those since `waitingSince` not
    /// included.
    pub waited_seconds: i64,
    /// Ledger: since when a gang wants capacity and has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_since: Option<DateTime<Utc>>,
    /// Share of the held time that was not lost, such as `97.3%`. Absent while nothing was held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput: Option<String>,
}
