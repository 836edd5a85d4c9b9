//! The cluster as a file: what a decision of the engine depends on, and nothing else.
//!
//! The types here are the format, apart from those that the scheduler works with, so that a change of the latter does not
//! change the files that people keep. Environment, arguments, images, annotations and status texts never get in: there is
//! no field for them.
//!
//! Order is part of the content: the engine settles ties by ordinal, so equal files give equal answers.

mod convert;
mod pseudonyms;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use lockstep_api::scheduling::TopologyConstraint;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Version that this program writes, and the only one that it reads.
pub const VERSION: u32 = 1;

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
    /// Pods that hold room, by namespace and name.
    pub pods: Vec<PodRecord>,
    /// Gangs, by namespace and name of their pod group.
    pub gangs: Vec<GangRecord>,
    /// Disruption budgets, by namespace and name.
    pub budgets: Vec<BudgetRecord>,
    /// Priority classes, by name.
    pub priority_classes: Vec<PriorityClassRecord>,
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
    /// Whether it is cordoned.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unschedulable: bool,
    /// Whether it is ready.
    pub ready: bool,
}

/// A pod that holds room on a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRecord {
    /// UID.
    pub uid: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Labels that a disruption budget of its namespace asks for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// UID of the controlling owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Name of its pod group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_group: Option<String>,
    /// Address in its workload, as a range of one: `workers/0/3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// The node.
    pub node: String,
    /// By what right it holds room there.
    #[serde(default, skip_serializing_if = "Claim::is_bound")]
    pub claim: Claim,
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
    /// When it will have ended at the latest, when its deletion was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminating: Option<DateTime<Utc>>,
    /// When it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<DateTime<Utc>>,
    /// Its last checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<DateTime<Utc>>,
}

/// By what right a pod holds room on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Claim {
    /// It is bound to the node.
    #[default]
    Bound,
    /// Its affinity names the node.
    Pinned,
    /// kube-scheduler keeps the room for it.
    Nominated,
}

/// A gang: one pod group of a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
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
    /// Priority.
    pub priority: i32,
    /// Priority that counts when others want its room, once it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_priority: Option<i32>,
    /// Whether it may preempt.
    pub preempts: bool,
    /// Whether preemption takes it whole or not at all.
    pub whole: bool,
    /// Policy Basic: each pod is placed alone.
    #[serde(default, skip_serializing_if = "is_false")]
    pub basic: bool,
    /// Whether it has or asks for room.
    pub standing: Standing,
    /// UIDs of the pods and pod groups that it is about to evict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub victims: Vec<String>,
    /// When it first asked for room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<DateTime<Utc>>,
    /// Members without which it is useless.
    pub min_count: u32,
    /// Members that should run, by template.
    pub cohorts: Vec<CohortRecord>,
    /// Ranges of members by the node on which they have their seat.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub seats: BTreeMap<String, Vec<String>>,
    /// Members to be kept together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<TopologyConstraint>,
    /// Nodes that it stays away from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub avoid: Vec<String>,
    /// Last checkpoint of the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<DateTime<Utc>>,
    /// When its last incident was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<DateTime<Utc>>,
}

/// Whether a gang has or asks for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// It has room, or asks for it.
    Active,
    /// It does not ask for room now; it keeps what it has.
    Held,
    /// It ended, gave its room back or is being preempted: what it holds is about to become free.
    Leaving,
}

/// Members made from one template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CohortRecord {
    /// Ranges of members, in rank order.
    pub members: Vec<String>,
    /// What each holds.
    pub requests: AmountsByName,
    /// Nodes that admit them: first and last position in [`SnapshotFile::nodes`] of each run.
    pub eligible: Vec<(usize, usize)>,
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

impl SnapshotFile {
    /// The file's content as JSON.
    pub fn to_json(&self) -> Result<Vec<u8>, SnapshotError> {
        Ok(serde_json::to_vec(self)?)
    }

    /// Reads JSON that [`SnapshotFile::to_json`] wrote. A file of another version is refused as such, whatever else it has.
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !*value
}

impl Claim {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    fn is_bound(&self) -> bool {
        *self == Self::Bound
    }
}
