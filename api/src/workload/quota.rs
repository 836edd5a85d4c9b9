//! What Kueue has decided about a workload, as the ledger keeps it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Ledger: quota of a workload that Kueue manages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct KueueStatus {
    /// LocalQueue.
    pub queue: String,
    /// True if Kueue has admitted the workload. Otherwise it is held as if it were suspended.
    #[serde(default)]
    pub admitted: bool,
    /// Name of the Kueue Workload of the last admission.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub workload: String,
    /// UID of the Kueue Workload of the last admission.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Hash of the spec that was admitted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub spec_hash: String,
    /// The last admission: what it adds to the pods of each group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub pod_sets: Vec<KueuePodSet>,
}

impl KueueStatus {
    /// What the admission adds to the pods of a group.
    pub fn pod_set(&self, group: &str) -> Option<&KueuePodSet> {
        self.pod_sets.iter().find(|set| set.name == group)
    }
}

/// What the admission adds to the pods of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KueuePodSet {
    /// Name of the group.
    pub name: String,
    /// Number of admitted pods.
    #[serde(default)]
    pub count: i32,
    /// Labels of the flavors' nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations of the flavors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Labels, from admission checks.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations, from admission checks.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}
