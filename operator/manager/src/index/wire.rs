//! Pods, nodes and budgets as they come over the wire, with only the fields that are read, and what is made of them.
//!
//! 100,000 pods are held in memory as projections; these types live for one event. Fields that are not named here are
//! skipped by the parser without being stored, `managedFields` above all.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference, Time};
use kube::Resource;
use lockstep_api::names::labels;
use lockstep_lifecycle::PodView;
use lockstep_lifecycle::pods::{ContainerState, ContainerView, Identity, PodConditionView, PodPhase, Termination};
use lockstep_lifecycle::view::NodeInfo;
use lockstep_model::node::{NodeSpecView, NodeStatusView};
use lockstep_model::pod::{PodSpecView, PodStatusView, Stage};
use lockstep_model::{Budget, Node, Pod};
use serde::{Deserialize, Deserializer};

use crate::edge::to_chrono;

/// Taint of a node that its operator has declared dead.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// A pod.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = core::Pod)]
#[serde(default)]
pub struct PodWire {
    #[serde(deserialize_with = "trimmed")]
    metadata: ObjectMeta,
    spec: PodSpecView,
    status: PodStatusWire,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatusWire {
    phase: String,
    reason: String,
    message: String,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    start_time: Option<Time>,
    nominated_node_name: Option<String>,
    conditions: Vec<ConditionWire>,
    container_statuses: Vec<ContainerWire>,
    init_container_statuses: Vec<ContainerWire>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ConditionWire {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    reason: Option<String>,
    message: Option<String>,
    last_transition_time: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerWire {
    name: String,
    ready: bool,
    restart_count: i32,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    state: StateWire,
    last_state: StateWire,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct StateWire {
    waiting: Option<core::ContainerStateWaiting>,
    running: Option<core::ContainerStateRunning>,
    terminated: Option<core::ContainerStateTerminated>,
}

impl PodWire {
    /// As the scheduler sees it.
    pub fn scheduling(&self) -> Result<Pod, lockstep_model::quantity::InvalidQuantity> {
        let status = PodStatusView {
            phase: Some(self.status.phase.clone()).filter(|p| !p.is_empty()),
            start_time: self.status.start_time.clone(),
            nominated_node_name: self.status.nominated_node_name.clone(),
            conditions: self
                .status
                .conditions
                .iter()
                .map(|c| lockstep_model::pod::PodConditionView {
                    type_: c.type_.clone(),
                    status: c.status.clone(),
                    reason: c.reason.clone(),
                })
                .collect(),
        };
        Pod::new(&self.metadata, &self.spec, &status)
    }

    /// As the decisions about its workload see it, where it carries a workload's label; with the UID in that label.
    /// Bound, pinned, nominated and gated are read once, for the scheduler.
    pub fn member(&self, pod: &Pod) -> Option<(String, PodView)> {
        let none = BTreeMap::new();
        let pod_labels = self.metadata.labels.as_ref().unwrap_or(&none);
        let workload_uid = pod_labels.get(labels::WORKLOAD_UID)?.clone();
        let status = &self.status;
        let view = PodView {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            owner_uid: pod.owner.clone().unwrap_or_default(),
            identity: Identity::read(pod_labels, self.metadata.annotations.as_ref().unwrap_or(&none)),
            node: pod.bound.clone(),
            pinned: pod.pinned.clone(),
            nominated: pod.nominated.clone(),
            gated: pod.stage == Stage::Gated,
            created_at: time(self.metadata.creation_timestamp.as_ref()).unwrap_or_default(),
            deleted_at: time(self.metadata.deletion_timestamp.as_ref()),
            phase: PodPhase::from(status.phase.as_str()),
            reason: status.reason.clone(),
            message: status.message.clone(),
            pod_ip: status.pod_ip.clone(),
            conditions: status.conditions.iter().map(|c| (c.type_.clone(), condition(c))).collect(),
            containers: status
                .init_container_statuses
                .iter()
                .map(|c| (c, true))
                .chain(status.container_statuses.iter().map(|c| (c, false)))
                .map(|(c, init)| (c.name.clone(), container(c, init)))
                .collect(),
        };
        Some((workload_uid, view))
    }

    /// Whether the pod's Ready condition is True and it is not being deleted.
    pub fn ready(&self) -> bool {
        self.metadata.deletion_timestamp.is_none()
            && self.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
    }
}

fn condition(c: &ConditionWire) -> PodConditionView {
    PodConditionView {
        status: c.status.clone(),
        reason: c.reason.clone().unwrap_or_default(),
        message: c.message.clone().unwrap_or_default(),
        since: time(c.last_transition_time.as_ref()),
    }
}

fn container(c: &ContainerWire, init: bool) -> ContainerView {
    ContainerView {
        init,
        ready: c.ready,
        restart_count: c.restart_count,
        id: c.container_id.clone().filter(|id| !id.is_empty()),
        state: if let Some(t) = &c.state.terminated {
            ContainerState::Terminated(termination(t))
        } else if let Some(r) = &c.state.running {
            ContainerState::Running { started_at: time(r.started_at.as_ref()) }
        } else {
            let waiting = c.state.waiting.clone().unwrap_or_default();
            ContainerState::Waiting {
                reason: waiting.reason.unwrap_or_default(),
                message: waiting.message.unwrap_or_default(),
            }
        },
        last: c.last_state.terminated.as_ref().map(termination),
    }
}

fn termination(t: &core::ContainerStateTerminated) -> Termination {
    Termination {
        exit_code: t.exit_code,
        reason: t.reason.clone().unwrap_or_default(),
        message: t.message.clone().unwrap_or_default(),
        finished_at: time(t.finished_at.as_ref()),
        id: t.container_id.clone(),
    }
}

/// A node.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = core::Node)]
#[serde(default)]
pub struct NodeWire {
    #[serde(deserialize_with = "trimmed")]
    metadata: ObjectMeta,
    spec: NodeSpecView,
    status: NodeStatusWire,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeStatusWire {
    allocatable: NodeStatusAllocatable,
    conditions: Vec<ConditionWire>,
    node_info: NodeInfoWire,
    declared_features: Vec<String>,
}

type NodeStatusAllocatable = BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeInfoWire {
    kubelet_version: String,
}

impl NodeWire {
    /// As the scheduler sees it.
    pub fn scheduling(&self) -> Result<Node, lockstep_model::quantity::InvalidQuantity> {
        let status = NodeStatusView { allocatable: self.status.allocatable.clone() };
        Node::new(&self.metadata, &self.spec, &status, self.not_ready_since().is_none())
    }

    /// As decisions about its members see it.
    pub fn info(&self) -> NodeInfo {
        NodeInfo {
            not_ready_since: self.not_ready_since(),
            out_of_service: self.spec.taints.iter().any(|t| t.key == OUT_OF_SERVICE),
            declared_features: self.status.declared_features.clone(),
            kubelet_version: self.status.node_info.kubelet_version.clone(),
        }
    }

    /// Since when the Ready condition is other than True; a node that never had one is not ready since it exists.
    fn not_ready_since(&self) -> Option<DateTime<Utc>> {
        match self.status.conditions.iter().find(|c| c.type_ == "Ready") {
            Some(c) if c.status == "True" => None,
            Some(c) => Some(time(c.last_transition_time.as_ref()).unwrap_or_default()),
            None => Some(time(self.metadata.creation_timestamp.as_ref()).unwrap_or_default()),
        }
    }
}

/// A pod disruption budget.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = policy::PodDisruptionBudget)]
#[serde(default)]
pub struct BudgetWire {
    #[serde(deserialize_with = "trimmed")]
    metadata: ObjectMeta,
    spec: BudgetSpecWire,
    status: BudgetStatusWire,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct BudgetSpecWire {
    selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BudgetStatusWire {
    disruptions_allowed: i32,
}

impl BudgetWire {
    /// As the scheduler sees it.
    pub fn budget(&self) -> Budget {
        Budget {
            namespace: self.metadata.namespace.clone().unwrap_or_default(),
            name: self.metadata.name.clone().unwrap_or_default(),
            selector: self.spec.selector.clone(),
            allowed: self.status.disruptions_allowed,
        }
    }
}

/// The parts of an object's metadata that are kept.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetaWire {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

fn trimmed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let wire = MetaWire::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: wire.name,
        namespace: wire.namespace,
        uid: wire.uid,
        resource_version: wire.resource_version,
        creation_timestamp: wire.creation_timestamp,
        deletion_timestamp: wire.deletion_timestamp,
        labels: wire.labels,
        annotations: wire.annotations,
        owner_references: wire.owner_references,
        ..ObjectMeta::default()
    })
}

fn time(t: Option<&Time>) -> Option<DateTime<Utc>> {
    t.map(|t| to_chrono(t.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_member_is_read_with_its_container_states_and_without_managed_fields() {
        let wire: PodWire = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ml", "uid": "u", "resourceVersion": "9",
                "creationTimestamp": "2026-11-21T10:00:00Z", "managedFields": [{"manager": "x"}],
                "labels": {labels::WORKLOAD_UID: "w"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "t", "image": "i"}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-21T10:00:05Z"}],
                "containerStatuses": [{"name": "t", "ready": true, "restartCount": 1, "containerID": "containerd://b",
                    "image": "i", "imageID": "",
                    "state": {"running": {"startedAt": "2026-11-21T10:00:04Z"}},
                    "lastState": {"terminated": {"exitCode": 137, "reason": "Error", "containerID": "containerd://a"}}}]},
        }))
        .unwrap();
        assert!(wire.metadata.managed_fields.is_none());
        let (uid, view) = wire.member(&wire.scheduling().unwrap()).unwrap();
        let c = view.containers.get("t").unwrap();
        assert_eq!((uid.as_str(), view.node.as_deref(), view.phase), ("w", Some("n1"), PodPhase::Running));
        assert_eq!((c.ready, c.restart_count, c.id.as_deref()), (true, 1, Some("containerd://b")));
        assert!(c.running() && wire.ready());
        assert_eq!(c.last.as_ref().map(|t| t.exit_code), Some(137));
    }

    #[test]
    fn a_node_without_a_ready_condition_is_not_ready_since_its_creation() {
        let wire: NodeWire =
            serde_json::from_value(json!({"metadata": {"name": "n", "creationTimestamp": "2026-11-21T10:00:00Z"}}))
                .unwrap();
        assert_eq!(wire.info().not_ready_since.unwrap().to_rfc3339(), "2026-11-21T10:00:00+00:00");
        assert!(!wire.scheduling().unwrap().ready);
    }
}
