use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::ids::NodeName;
use lockstep_api::time::utc;
use lockstep_api::{NodeState, Outlook, Reach};
use serde::Deserialize;

use crate::common::unreadable::Unreadable;
use crate::pods::pod_view::PartialCondition;
use crate::pods::resources::Resources;

/// Taint of KEP-2268.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Taints of `spec.unschedulable`, and of drains that do not set it: Karpenter, Karpenter before
/// 1.0, the cluster autoscaler.
const CORDON_TAINTS: [&str; 4] = [
    "node.kubernetes.io/unschedulable",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "ToBeDeletedByClusterAutoscaler",
];

/// A node, trimmed for the scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub name: NodeName,
    /// Resources that the kubelet offers to pods.
    pub allocatable: Resources,
    pub labels: BTreeMap<String, String>,
    /// Including the taint of a cordon.
    pub taints: Vec<Taint>,
    /// Features that its kubelet declares.
    pub features: BTreeSet<String>,
    /// `None`: unknown.
    pub created: Option<DateTime<Utc>>,
    pub state: NodeState,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpecView {
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    /// Identifies the machine.
    #[serde(rename = "providerID")]
    pub provider_id: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatusView {
    pub allocatable: BTreeMap<String, Quantity>,
    pub capacity: BTreeMap<String, Quantity>,
    pub conditions: Vec<PartialCondition>,
    pub node_info: NodeVersions,
    /// `status.declaredFeatures` (KEP-5328).
    pub declared_features: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeVersions {
    /// For example `v1.37.2`.
    pub kubelet_version: String,
    /// For example `containerd://2.4.2`.
    pub container_runtime_version: String,
    /// Changes when the machine boots.
    #[serde(rename = "bootID")]
    pub boot_id: String,
}

impl Node {
    /// A node that offers nothing and is not ready.
    pub fn bare(name: NodeName) -> Self {
        Self {
            name,
            allocatable: Resources::default(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            features: BTreeSet::new(),
            created: None,
            state: NodeState::GONE,
        }
    }

    /// Reads a node. `ready`: its reach by condition Ready.
    pub fn new(
        metadata: &ObjectMeta,
        spec: &NodeSpecView,
        status: &NodeStatusView,
        ready: Reach,
    ) -> Result<Self, Unreadable> {
        let out_of_service = spec.taints.iter().any(|t| t.key == OUT_OF_SERVICE);
        let mut node = Self {
            name: NodeName::read(metadata.name.as_deref()).ok_or(Unreadable::Missing("name"))?,
            allocatable: Resources::parse(&status.allocatable)?,
            labels: metadata.labels.clone().unwrap_or_default(),
            taints: spec.taints.clone(),
            features: status.declared_features.iter().cloned().collect(),
            created: metadata.creation_timestamp.as_ref().and_then(utc),
            state: NodeState {
                reach: if out_of_service {
                    Reach::OutOfService
                } else {
                    ready
                },
                cordoned: false,
                deleting: metadata.deletion_timestamp.is_some(),
                outlook: Outlook::Healthy,
            },
        };
        node.read_cordon(spec.unschedulable);
        Ok(node)
    }

    /// Reads from its taints whether the node is cordoned. `unschedulable`: it is, and may have no
    /// taint yet.
    pub fn read_cordon(&mut self, unschedulable: bool) {
        if unschedulable && !self.is_unschedulable() {
            self.taints.push(Taint {
                key: CORDON_TAINTS[0].into(),
                effect: "NoSchedule".into(),
                ..Taint::default()
            });
        }
        let mut taints = self.taints.iter();
        self.state.cordoned = taints.any(|t| CORDON_TAINTS.contains(&t.key.as_str()));
    }

    /// True if the node has the taint of `spec.unschedulable`.
    pub(crate) fn is_unschedulable(&self) -> bool {
        self.taints.iter().any(|t| t.key == CORDON_TAINTS[0])
    }
}
