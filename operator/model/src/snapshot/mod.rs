//! The cluster as a file: what a decision of the engine depends on, and nothing else.
//!
//! The types here are the format, apart from those that the scheduler works with, so that a change
//! of the latter does not change the files that people keep. Environment, arguments, images,
//! annotations and status texts never get in: there is no field for them.
//!
//! Order is part of the content: the engine settles ties by ordinal, so equal files give equal
//! answers.

mod convert;
mod pseudonyms;

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use lockstep_api::scheduling::{
    Backfill, ExcludedNode, LastPreemption, ObservedSpec, Reservation, TopologyConstraint, Victim,
};
use lockstep_api::workload::AvoidedNode;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::pod::DEFAULT_GRACE;
use crate::share::Weights;

/// Version that this program writes, and the only one that it reads.
pub const VERSION: u32 = 2;

/// What is recorded of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotFile {
    /// Version of the format.
    pub version: u32,
    /// When it was taken: the time at which costs are weighed.
    pub taken_at: DateTime<Utc>,
    /// The one namespace whose pods and gangs were recorded; absent: all of them.
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
    /// Weights of namespaces in the queue that are not 1, in thousandths.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub namespace_weights: Weights,
}

/// Amounts by resource name: CPU in thousandths, everything else in whole units.
pub type AmountsByName = BTreeMap<String, i64>;

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRecord {
    /// Name.
    pub name: String,
    /// What it offers to pods.
    pub allocatable: AmountsByName,
    /// Labels, which selectors and topology keys ask for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Taints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// What its kubelet declares that it can do.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub features: BTreeSet<String>,
    /// Whether it is cordoned.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unschedulable: bool,
    /// Whether it is ready.
    pub ready: bool,
}

/// A pod that holds capacity on a node, or belongs to a gang.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a field of the object it was read from"
)]
pub struct PodRecord {
    /// UID.
    pub uid: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Labels that a disruption budget of its namespace asks for, and that by which it opts out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// UID of the workload that controls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Work of others that it belongs to, as [`crate::Pod::unit`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// Whether all pods of that are evicted, or none.
    #[serde(default, skip_serializing_if = "is_false")]
    pub whole: bool,
    /// Name of its pod group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_group: Option<String>,
    /// Address in its workload, as a range of one: `workers/0/3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// The node that it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<String>,
    /// The node that its affinity names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<String>,
    /// The node that kube-scheduler keeps free for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nominated: Option<String>,
    /// What it holds.
    pub requests: AmountsByName,
    /// Priority.
    pub priority: i32,
    /// Whether it may preempt.
    #[serde(default, skip_serializing_if = "is_false")]
    pub preempts: bool,
    /// Whether it must never be a victim.
    #[serde(default, skip_serializing_if = "is_false")]
    pub protected: bool,
    /// How many seconds it may take to end.
    #[serde(default = "default_grace", skip_serializing_if = "is_default_grace")]
    pub grace_seconds: u64,
    /// When it will have ended at the latest, when its deletion was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminating: Option<DateTime<Utc>>,
    /// Whether it is marked as about to be evicted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub disrupted: bool,
    /// When it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<DateTime<Utc>>,
    /// Its last checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<DateTime<Utc>>,
    /// Whether it may end by itself.
    #[serde(default, skip_serializing_if = "is_false")]
    pub may_end: bool,
    /// When it will have ended at the latest, by its own deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<DateTime<Utc>>,
}

/// A gang: one pod group of a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a field of the object it was read from"
)]
pub struct GangRecord {
    /// Namespace.
    pub namespace: String,
    /// Name of the pod group.
    pub name: String,
    /// UID of the pod group.
    pub uid: String,
    /// Name of the workload.
    pub workload: String,
    /// UID of the workload, the owner of the pods.
    pub workload_uid: String,
    /// The spec, as generations of the two.
    pub spec: ObservedSpec,
    /// Whether it has or requests capacity.
    pub phase: PhaseRecord,
    /// Priority.
    pub priority: i32,
    /// Priority that counts when others want its capacity, once it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_priority: Option<i32>,
    /// Whether it may preempt.
    pub preempts: bool,
    /// Whether preemption takes it whole or not at all.
    pub whole: bool,
    /// Policy Basic: each pod is placed alone.
    #[serde(default, skip_serializing_if = "is_false")]
    pub basic: bool,
    /// Members without which it is useless.
    pub min_count: i32,
    /// Members to be kept together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<TopologyConstraint>,
    /// Its restart domains, in order.
    pub domains: Vec<DomainRecord>,
    /// Pod templates, in the order of the groups in the workload's spec.
    pub templates: Vec<TemplateRecord>,
    /// Last checkpoint of the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<DateTime<Utc>>,
    /// Ranges of members that have succeeded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub completed: Vec<String>,
    /// Ranges of members that need no capacity any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finished: Vec<String>,
    /// Ranges of members that the current membership leaves out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<String>,
    /// Nodes that the workload keeps it away from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub avoid: Vec<AvoidedNode>,
    /// Placements in a row that ended before all members ran.
    #[serde(default)]
    pub placement_tries: i32,
    /// When it first requested capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<DateTime<Utc>>,
    /// Its placement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementRecord>,
    /// The preemption under way for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption: Option<PreemptionRecord>,
    /// Whether it is being preempted itself.
    #[serde(default, skip_serializing_if = "is_false")]
    pub disrupted: bool,
    /// What kube-scheduler refused that was no lack of capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<RefusalRecord>,
    /// The last preemption that evicted work for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_preemption: Option<LastPreemption>,
    /// Nodes that kube-scheduler refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded_nodes: Vec<ExcludedNode>,
    /// What is reserved for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Reservation>,
    /// When it will have ended at the latest, by the deadline of its workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<DateTime<Utc>>,
}

/// Whether a gang has or requests capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PhaseRecord {
    /// It has capacity, or requests it.
    Active,
    /// It does not request capacity now; it keeps what it has.
    Held,
    /// It ended: what it holds is about to become free.
    Finished,
}

/// Members that restart together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainRecord {
    /// What the ledger of the workload says about it; absent before it says anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger: Option<DomainLedgerRecord>,
    /// Ranges of its members.
    pub members: Vec<String>,
}

/// What the ledger says about a restart domain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainLedgerRecord {
    /// The pods that an incident replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incident: Option<ReplacementRecord>,
    /// Since when all of its members run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy_since: Option<DateTime<Utc>>,
}

/// The pods that an incident replaces.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplacementRecord {
    /// Ranges of members that get a new pod.
    pub members: Vec<String>,
    /// UIDs of the pods that go.
    pub old_pods: Vec<String>,
}

/// What is known of a pod template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateRecord {
    /// Name of the group.
    pub group: String,
    /// Of its labels the one by which its pods opt out of preemption.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What one pod holds.
    pub requests: AmountsByName,
    /// Nodes that admit it: first and last position in [`SnapshotFile::nodes`] of each run.
    pub eligible: Vec<(usize, usize)>,
    /// What each pod takes of its node so that no other of the gang gets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apart: Option<String>,
    /// What kube-scheduler asks of a node for its pods and the engine does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_modelled: Option<String>,
}

/// A placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementRecord {
    /// When it was decided.
    pub decided_at: DateTime<Utc>,
    /// Ranges of members by node.
    pub nodes: BTreeMap<String, Vec<String>>,
    /// Whether the workload has released it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub released: bool,
    /// By when the gang has to have ended, since others reserve the capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backfill: Option<Backfill>,
}

/// A preemption that has been decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreemptionRecord {
    /// When it was decided.
    pub decided_at: DateTime<Utc>,
    /// What is evicted.
    pub victims: Vec<Victim>,
    /// Whether it is the scheduler's own, for the placement that the gang has.
    pub genuine: bool,
}

/// A refusal by kube-scheduler that is no lack of capacity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusalRecord {
    /// When it was noted last.
    pub at: DateTime<Utc>,
    /// Placements in a row that ended so.
    pub tries: i32,
    /// The spec that was refused.
    pub observed: ObservedSpec,
}

/// A disruption budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetRecord {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Pods that it guards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Disruptions that it still allows.
    pub allowed: i32,
}

/// A priority class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PriorityClassRecord {
    /// Name.
    pub name: String,
    /// Priority of its pods.
    pub value: i32,
    /// Whether its pods may preempt.
    pub preempts: bool,
    /// Priority that gangs of this class have as victims, once they run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_priority: Option<i32>,
    /// Whether it is the default class.
    #[serde(default, skip_serializing_if = "is_false")]
    pub default: bool,
}

/// Why a snapshot file cannot be read.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// It is no JSON, or a field is not as it should be.
    #[error("not a snapshot: {0}")]
    Syntax(#[from] serde_json::Error),
    /// Another version of the format.
    #[error("the snapshot has format version {found}, this program reads version {VERSION}")]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// A field has a value that means nothing.
    #[error("{path}: {value:?} is not {expected}")]
    Value {
        /// Path of the field.
        path: String,
        /// Its value.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
}

impl SnapshotError {
    /// The field at this path has this value, and should be what is expected.
    fn not(path: String, value: &str, expected: &'static str) -> Self {
        Self::Value {
            path,
            value: value.to_owned(),
            expected,
        }
    }
}

impl SnapshotFile {
    /// The file's content as JSON.
    pub fn to_json(&self) -> Result<Vec<u8>, SnapshotError> {
        Ok(serde_json::to_vec(self)?)
    }

    /// Reads JSON that [`SnapshotFile::to_json`] wrote. A file of another version is refused as
    /// such, whatever else it has.
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
