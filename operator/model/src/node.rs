use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::ids::NodeName;
use serde::Deserialize;

use crate::resources::Resources;
use crate::unreadable::Unreadable;

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
    /// True if condition Ready is True and the node is not being deleted.
    pub ready: bool,
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
            ready: false,
        }
    }

    /// Reads a node. `ready`: whether its Ready condition is True.
    pub fn new(
        metadata: &ObjectMeta,
        spec: &NodeSpecView,
        status: &NodeStatusView,
        ready: bool,
    ) -> Result<Self, Unreadable> {
        Ok(Self {
            name: NodeName::read(metadata.name.as_deref()).ok_or(Unreadable::Missing("name"))?,
            allocatable: Resources::parse(&status.allocatable)?,
            labels: metadata.labels.clone().unwrap_or_default(),
            taints: spec.taints.clone(),
            features: status.declared_features.iter().cloned().collect(),
            unschedulable: spec.unschedulable,
            ready: ready && metadata.deletion_timestamp.is_none(),
        })
    }
}
