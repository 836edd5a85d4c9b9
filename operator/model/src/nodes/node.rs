use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::ids::NodeName;
use serde::Deserialize;

use crate::common::unreadable::Unreadable;
use crate::pods::resources::Resources;

/// Taint of KEP-2268.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// A node, trimmed for the scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub name: NodeName,
    /// Resources that the kubelet offers to pods.
    pub allocatable: Resources,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// Features that its kubelet declares.
    pub features: BTreeSet<String>,
    pub unschedulable: bool,
    pub state: NodeState,
}

/// Whether a node reports to the API server. Silence is a loss only after some time, because nodes
/// are NotReady for seconds when a kubelet restarts or its lease is overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    Ready,
    /// NotReady, and its silence counts from `since`. `None` during an outage of its zone, in which
    /// no node is lost.
    Silent {
        since: Option<DateTime<Utc>>,
    },
    /// Being deleted, or out of service (KEP-2268).
    Removed,
}

impl NodeState {
    pub fn is_ready(self) -> bool {
        self == Self::Ready
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeSpecView {
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeStatusView {
    pub allocatable: BTreeMap<String, Quantity>,
    /// `status.declaredFeatures` (KEP-5328).
    pub declared_features: Vec<String>,
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
            unschedulable: false,
            state: NodeState::Removed,
        }
    }

    /// Reads a node. `state`: by its Ready condition.
    pub fn new(
        metadata: &ObjectMeta,
        spec: &NodeSpecView,
        status: &NodeStatusView,
        state: NodeState,
    ) -> Result<Self, Unreadable> {
        let out_of_service = spec.taints.iter().any(|t| t.key == OUT_OF_SERVICE);
        Ok(Self {
            name: NodeName::read(metadata.name.as_deref()).ok_or(Unreadable::Missing("name"))?,
            allocatable: Resources::parse(&status.allocatable)?,
            labels: metadata.labels.clone().unwrap_or_default(),
            taints: spec.taints.clone(),
            features: status.declared_features.iter().cloned().collect(),
            unschedulable: spec.unschedulable,
            state: if metadata.deletion_timestamp.is_some() || out_of_service {
                NodeState::Removed
            } else {
                state
            },
        })
    }
}
