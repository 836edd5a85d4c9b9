//! The cluster as a file that contains exactly what the engine's decisions depend on.
//!
//! These types define the file format. Changes of the scheduler's own types do not affect existing
//! files. Environment, arguments, images, annotations and status messages are never recorded.
//!
//! Order is significant: the engine breaks ties by ordinal, so equal files give equal answers.

mod convert;
mod pseudonyms;

pub use convert::selected_keys;

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::{PodAffinityTerm, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use lockstep_api::Outlook;
use lockstep_api::scheduling::{
    Backfill, ExcludedNode, LastPreemption, MoveTarget, NodeDemand, ObservedSpec,
    PreemptionRequest, Reservation, TopologyLevel, Victim,
};
use lockstep_api::template::DEFAULT_GRACE;
use lockstep_api::workload::{AvoidedNode, CheckpointRequest, FailurePolicy, GangMove};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::demand::share::Weights;

/// Format version that this program writes and reads.
pub const VERSION: u32 = 3;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotFile {
    pub version: u32,
    /// Time of the snapshot, at which costs are computed.
    pub taken_at: DateTime<Utc>,
    /// Namespace of the recorded pods and gangs. Absent: all namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Nodes, by name.
    pub nodes: Vec<NodeRecord>,
    /// Pods that hold capacity or belong to a gang, by namespace and name.
    pub pods: Vec<PodRecord>,
    /// Gangs, by namespace and name of their pod group.
    pub gangs: Vec<GangRecord>,
    /// Disruption budgets, by namespace and name.
    pub budgets: Vec<BudgetRecord>,
    /// Priority classes, by name.
    pub priority_classes: Vec<PriorityClassRecord>,
    /// Queue weights of namespaces that are not 1, in thousandths.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub namespace_weights: Weights,
}

/// Amounts by resource name: CPU in thousandths, other resources in whole units.
pub type AmountsByName = BTreeMap<String, i64>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRecord {
    pub name: String,
    pub allocatable: AmountsByName,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub features: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<DateTime<Utc>>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub unschedulable: bool,
    pub ready: bool,
    /// Start of the silence of a node that is not ready. Absent for a node without its state: being
    /// deleted, or out of service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_since: Option<DateTime<Utc>>,
    /// True if the node is silent in an outage of its zone.
    #[serde(default, skip_serializing_if = "is_false")]
    pub outage: bool,
    #[serde(default, skip_serializing_if = "is_healthy")]
    pub outlook: Outlook,
}

/// A pod that holds capacity on a node, or belongs to a gang.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a field of the object it was read from"
)]
pub struct PodRecord {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// Labels in selectors of its namespace's disruption budgets and of anti-affinity, and the
    /// opt-out label.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Key of its foreign unit, as [`crate::Pod::unit`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// True if the unit is evicted whole or not at all.
    #[serde(default, skip_serializing_if = "is_false")]
    pub whole: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_group: Option<String>,
    /// Its member as a range of one: `workers/0/3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<String>,
    /// Node that kube-scheduler keeps free for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nominated: Option<String>,
    pub requests: AmountsByName,
    /// Required terms of its pod anti-affinity.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub anti_affinity: Vec<PodAffinityTerm>,
    pub priority: i32,
    #[serde(default, skip_serializing_if = "is_false")]
    pub preempts: bool,
    /// True if it is never a victim.
    #[serde(default, skip_serializing_if = "is_false")]
    pub protected: bool,
    /// Grace period in seconds.
    #[serde(default = "default_grace", skip_serializing_if = "is_default_grace")]
    pub grace_seconds: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminating: Option<DateTime<Utc>>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub disrupted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<DateTime<Utc>>,
    /// True if none of its containers has run yet.
    #[serde(default, skip_serializing_if = "is_false")]
    pub pending: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<DateTime<Utc>>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub may_end: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<DateTime<Utc>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a field of the object it was read from"
)]
pub struct GangRecord {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub workload: String,
    /// UID of the workload, the owner of the pods.
    pub workload_uid: String,
    /// Generations of pod group and workload.
    pub spec: ObservedSpec,
    pub phase: PhaseRecord,
    pub priority: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_priority: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_wait_seconds: Option<u64>,
    pub preempts: bool,
    /// True if preemption evicts it whole or not at all.
    pub whole: bool,
    /// Policy Basic: pods are placed independently.
    #[serde(default, skip_serializing_if = "is_false")]
    pub basic: bool,
    /// Number of members that it needs.
    pub min_count: i32,
    /// Levels of the topology, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology: Vec<TopologyLevel>,
    /// Restart domains in order.
    pub domains: Vec<DomainRecord>,
    /// Pod templates, in the order of the groups in the workload's spec.
    pub templates: Vec<TemplateRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<DateTime<Utc>>,
    /// Longest time of a checkpoint on request before a preemption. Absent: none is requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_request_seconds: Option<i64>,
    /// Usual time between checkpoints of a gang from which none is requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_interval_seconds: Option<i64>,
    /// Open request for a checkpoint before the gang is preempted, without names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_request: Option<PreemptionRequest>,
    /// Ranges of members that have succeeded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub completed: Vec<String>,
    /// Ranges of members that need no more capacity.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finished: Vec<String>,
    /// Ranges of members outside the current membership.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<String>,
    /// How long a node of the gang may be silent before it is lost.
    #[serde(
        default = "default_node_lost",
        skip_serializing_if = "is_default_node_lost"
    )]
    pub node_lost_seconds: i64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub avoid: Vec<AvoidedNode>,
    /// Consecutive placements that ended before all members ran.
    #[serde(default)]
    pub placement_tries: i32,
    /// Time of its first request for capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<DateTime<Utc>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption: Option<PreemptionRecord>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub disrupted: bool,
    /// Refusal by kube-scheduler for a reason other than capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<RefusalRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_preemption: Option<LastPreemption>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded_nodes: Vec<ExcludedNode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Reservation>,
    /// Without the autoscaler's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand: Option<NodeDemand>,
    /// The last move away from nodes with signals, without names of signals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<GangMove>,
    /// Nodes for that move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub move_target: Option<MoveTarget>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<DateTime<Utc>>,
    /// Seconds from the placement of a queued workload to its latest end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasts: Option<i64>,
}

/// Whether a gang has or requests capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PhaseRecord {
    /// Has or requests capacity.
    Active,
    /// Requests no capacity, but keeps its current capacity.
    Held,
    /// Ended. Its capacity is about to become free.
    Finished,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainRecord {
    /// Absent before the first ledger entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger: Option<DomainLedgerRecord>,
    /// Ranges of its members.
    pub members: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainLedgerRecord {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incident: Option<ReplacementRecord>,
    /// Since when all its members run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy_since: Option<DateTime<Utc>>,
    /// Last request for a checkpoint, with the id of the gang's open request if it is that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<CheckpointRequest>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplacementRecord {
    /// Ranges of members that get a new pod.
    pub members: Vec<String>,
    pub old_pods: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateRecord {
    pub group: String,
    /// Labels in selectors of its namespace's disruption budgets and of anti-affinity, and the
    /// opt-out label.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub grace_seconds: u64,
    pub requests: AmountsByName,
    /// Eligible nodes as runs of positions (first, last) in [`SnapshotFile::nodes`].
    pub eligible: Vec<(usize, usize)>,
    /// Slot that each pod takes on its node to keep other members away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apart: Option<String>,
    /// Node constraint that only kube-scheduler evaluates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_modelled: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementRecord {
    pub decided_at: DateTime<Utc>,
    /// Ranges of members by node.
    pub nodes: BTreeMap<String, Vec<String>>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub released: bool,
    /// Time by which the gang must end, because other gangs have reserved the capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backfill: Option<Backfill>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreemptionRecord {
    pub decided_at: DateTime<Utc>,
    pub victims: Vec<Victim>,
    /// True if the scheduler decided it for the current placement.
    pub genuine: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusalRecord {
    pub at: DateTime<Utc>,
    /// Consecutive refused placements.
    pub tries: i32,
    pub observed: ObservedSpec,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetRecord {
    pub namespace: String,
    pub name: String,
    /// Pods that it guards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Currently allowed disruptions.
    pub allowed: i32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PriorityClassRecord {
    pub name: String,
    pub value: i32,
    pub preempts: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_priority: Option<i32>,
    /// Longest wait of its gangs for checkpoints of their victims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_wait_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub default: bool,
}

/// Why a snapshot file is invalid.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// Invalid JSON, or a field of the wrong type.
    #[error("not a snapshot: {0}")]
    Syntax(#[from] serde_json::Error),
    #[error("the snapshot has format version {found}, this program reads version {VERSION}")]
    Version { found: u32 },
    #[error("{path}: {value:?} is not {expected}")]
    Value {
        path: String,
        value: String,
        expected: &'static str,
    },
}

impl SnapshotError {
    fn not(path: String, value: &str, expected: &'static str) -> Self {
        Self::Value {
            path,
            value: value.to_owned(),
            expected,
        }
    }
}

impl SnapshotFile {
    pub fn to_json(&self) -> Result<Vec<u8>, SnapshotError> {
        Ok(serde_json::to_vec(self)?)
    }

    /// Decodes the output of [`SnapshotFile::to_json`]. Checks the version first.
    pub fn from_json(text: &[u8]) -> Result<Self, SnapshotError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version: found } = serde_json::from_slice(text)?;
        if found != VERSION {
            return Err(SnapshotError::Version { found });
        }
        let file: Self = serde_json::from_slice(text)?;
        file.check()?;
        Ok(file)
    }
}

fn is_healthy(outlook: &Outlook) -> bool {
    *outlook == Outlook::Healthy
}

fn default_node_lost() -> i64 {
    FailurePolicy::default().node_lost_seconds
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_default_node_lost(seconds: &i64) -> bool {
    *seconds == default_node_lost()
}

fn default_grace() -> u64 {
    DEFAULT_GRACE.unsigned_abs()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_default_grace(seconds: &u64) -> bool {
    *seconds == default_grace()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !*value
}
