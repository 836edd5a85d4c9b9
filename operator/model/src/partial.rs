//! The parts of pods, nodes, budgets and priority classes that are read, and what the scheduler makes
//! of them. The manager and the command line tool read the same ones.
//!
//! 100,000 pods are held in memory as projections; these types live for one event. Fields that are
//! not named here are skipped by the parser without being stored, `managedFields` above all.
//!
//! This is the border at which identities are checked: what has no name, or no UID where that
//! counts, is [`Unreadable`], and inside nothing is the empty string.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;
use k8s_openapi::api::scheduling::v1 as scheduling;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, ObjectMeta, OwnerReference, Time,
};
use kube::Resource;
use lockstep_api::scheduling::PreemptionPolicy;
use lockstep_api::time::utc;
use serde::{Deserialize, Deserializer};

use crate::gang::preemption_priority;
use crate::node::{NodeSpecView, NodeStatusView};
use crate::pdb::Budget;
use crate::pod_view::{PodConditionView, PodSpecView, PodStatusView};
use crate::priority_class::PriorityClass;
use crate::unreadable::{Unreadable, present};
use crate::{Node, Pod};

/// A pod.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = core::Pod)]
#[serde(default)]
pub struct PartialPod {
    /// Name, UID, labels, owners and times.
    #[serde(deserialize_with = "trimmed")]
    pub metadata: ObjectMeta,
    /// What it asks for.
    pub spec: PodSpecView,
    /// How far it is.
    pub status: PartialPodStatus,
}

/// The parts of a pod's status that are read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PartialPodStatus {
    /// `status.phase`.
    pub phase: String,
    /// `status.reason`.
    pub reason: String,
    /// `status.message`.
    pub message: String,
    /// `status.podIP`.
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    /// `status.startTime`.
    pub start_time: Option<Time>,
    /// `status.nominatedNodeName`.
    pub nominated_node_name: Option<String>,
    /// `status.conditions`.
    pub conditions: Vec<PartialCondition>,
    /// `status.containerStatuses`.
    pub container_statuses: Vec<PartialContainer>,
    /// `status.initContainerStatuses`.
    pub init_container_statuses: Vec<PartialContainer>,
}

/// A condition of a pod or node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PartialCondition {
    /// Type.
    #[serde(rename = "type")]
    pub type_: String,
    /// Status.
    pub status: String,
    /// Reason.
    pub reason: Option<String>,
    /// Message.
    pub message: Option<String>,
    /// When the status last changed.
    pub last_transition_time: Option<Time>,
}

/// Status of a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PartialContainer {
    /// Name of the container.
    pub name: String,
    /// Whether its readiness probe passes.
    pub ready: bool,
    /// How often the kubelet has restarted it.
    pub restart_count: i32,
    /// Its id, with the runtime's scheme before it.
    #[serde(rename = "containerID")]
    pub container_id: Option<String>,
    /// Its state.
    pub state: PartialState,
    /// State of its previous run.
    pub last_state: PartialState,
}

/// State of a container; at most one is set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PartialState {
    /// It does not run yet, or not again.
    pub waiting: Option<core::ContainerStateWaiting>,
    /// It runs.
    pub running: Option<core::ContainerStateRunning>,
    /// It has ended.
    pub terminated: Option<core::ContainerStateTerminated>,
}

impl PartialPod {
    /// As the scheduler sees it.
    pub fn scheduling(&self) -> Result<Pod, Unreadable> {
        let status = PodStatusView {
            phase: Some(self.status.phase.clone()).filter(|p| !p.is_empty()),
            start_time: self.status.start_time.clone(),
            nominated_node_name: self.status.nominated_node_name.clone(),
            conditions: self.status.conditions.iter().map(condition).collect(),
        };
        Pod::new(&self.metadata, &self.spec, &status)
    }

    /// Whether the pod's Ready condition is True and it is not being deleted.
    pub fn ready(&self) -> bool {
        let holds = |c: &PartialCondition| c.type_ == "Ready" && c.status == "True";
        self.metadata.deletion_timestamp.is_none() && self.status.conditions.iter().any(holds)
    }
}

fn condition(partial: &PartialCondition) -> PodConditionView {
    PodConditionView {
        type_: partial.type_.clone(),
        status: partial.status.clone(),
        reason: partial.reason.clone(),
        message: partial.message.clone(),
    }
}

/// A node.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = core::Node)]
#[serde(default)]
pub struct PartialNode {
    /// Name, labels and times.
    #[serde(deserialize_with = "trimmed")]
    pub metadata: ObjectMeta,
    /// Taints, and whether it is cordoned.
    pub spec: NodeSpecView,
    /// What its kubelet says.
    pub status: PartialNodeStatus,
}

/// The parts of a node's status that are read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PartialNodeStatus {
    /// `status.allocatable`.
    pub allocatable: BTreeMap<String, Quantity>,
    /// `status.conditions`.
    pub conditions: Vec<PartialCondition>,
    /// `status.nodeInfo`.
    pub node_info: PartialNodeInfo,
    /// `status.declaredFeatures` (KEP-5328).
    pub declared_features: Vec<String>,
}

/// The parts of `status.nodeInfo` that are read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PartialNodeInfo {
    /// Such as `v1.37.2`.
    pub kubelet_version: String,
}

impl PartialNode {
    /// As the scheduler sees it.
    pub fn scheduling(&self) -> Result<Node, Unreadable> {
        let status = NodeStatusView {
            allocatable: self.status.allocatable.clone(),
            declared_features: self.status.declared_features.clone(),
        };
        let ready = self.not_ready_since().is_none();
        Node::new(&self.metadata, &self.spec, &status, ready)
    }

    /// When the Ready condition became True, by the node's clock; none: it is not, or does not say.
    pub fn became_ready(&self) -> Option<DateTime<Utc>> {
        let mut conditions = self.status.conditions.iter();
        let ready = conditions.find(|c| c.type_ == "Ready" && c.status == "True")?;
        ready.last_transition_time.as_ref().and_then(utc)
    }

    /// Since when the Ready condition is other than True; a node that never had one is not ready
    /// since it exists.
    pub fn not_ready_since(&self) -> Option<DateTime<Utc>> {
        let since = match self.status.conditions.iter().find(|c| c.type_ == "Ready") {
            Some(ready) if ready.status == "True" => return None,
            Some(ready) => ready.last_transition_time.as_ref(),
            None => self.metadata.creation_timestamp.as_ref(),
        };
        Some(since.and_then(utc).unwrap_or_default())
    }
}

/// A pod disruption budget.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = policy::PodDisruptionBudget)]
#[serde(default)]
pub struct PartialBudget {
    /// Namespace and name.
    #[serde(deserialize_with = "trimmed")]
    pub metadata: ObjectMeta,
    spec: PartialBudgetSpec,
    status: PartialBudgetStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PartialBudgetSpec {
    selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PartialBudgetStatus {
    disruptions_allowed: i32,
}

impl PartialBudget {
    /// As the scheduler sees it.
    pub fn scheduling(&self) -> Result<Budget, Unreadable> {
        Ok(Budget {
            namespace: present("namespace", self.metadata.namespace.as_ref())?.clone(),
            name: present("name", self.metadata.name.as_ref())?.clone(),
            selector: self.spec.selector.clone(),
            allowed: self.status.disruptions_allowed,
        })
    }
}

/// A priority class.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = scheduling::PriorityClass)]
#[serde(rename_all = "camelCase", default)]
pub struct PartialPriorityClass {
    /// Name and annotations.
    #[serde(deserialize_with = "trimmed")]
    pub metadata: ObjectMeta,
    value: i32,
    preemption_policy: Option<String>,
    global_default: bool,
}

impl PartialPriorityClass {
    /// As the scheduler sees it.
    pub fn scheduling(&self) -> Result<PriorityClass, Unreadable> {
        Ok(PriorityClass {
            name: present("name", self.metadata.name.as_ref())?.clone(),
            value: self.value,
            preemption: match self.preemption_policy.as_deref() {
                Some("Never") => PreemptionPolicy::Never,
                _ => PreemptionPolicy::PreemptLowerPriority,
            },
            preemption_priority: preemption_priority(&self.metadata),
            default: self.global_default,
        })
    }
}

/// The parts of an object's metadata that are kept.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PartialMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

pub(crate) fn trimmed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let partial = PartialMeta::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: partial.name,
        namespace: partial.namespace,
        uid: partial.uid,
        resource_version: partial.resource_version,
        creation_timestamp: partial.creation_timestamp,
        deletion_timestamp: partial.deletion_timestamp,
        deletion_grace_period_seconds: partial.deletion_grace_period_seconds,
        labels: partial.labels,
        annotations: partial.annotations,
        owner_references: partial.owner_references,
        ..ObjectMeta::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    fn partial<T: DeserializeOwned>(object: Value) -> T {
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn managed_fields_are_not_kept() {
        let pod: PartialPod = partial(
            json!({"metadata": {"name": "p", "namespace": "ml", "uid": "u",
            "managedFields": [{"manager": "x"}]}}),
        );
        assert!(pod.metadata.managed_fields.is_none());
        assert_eq!(pod.metadata.uid.as_deref(), Some("u"));
    }

    #[test]
    fn what_has_no_identity_is_unreadable() {
        let nameless: PartialPod = partial(json!({"metadata": {"namespace": "ml", "uid": "u"}}));
        let anonymous: PartialPod =
            partial(json!({"metadata": {"name": "p", "namespace": "ml", "uid": ""}}));
        assert_eq!(nameless.scheduling(), Err(Unreadable::Missing("name")));
        assert_eq!(anonymous.scheduling(), Err(Unreadable::Missing("uid")));
        assert_eq!(
            PartialNode::default().scheduling(),
            Err(Unreadable::Missing("name"))
        );
        assert_eq!(
            PartialBudget::default().scheduling(),
            Err(Unreadable::Missing("namespace"))
        );
        let class = PartialPriorityClass::default().scheduling();
        assert_eq!(class, Err(Unreadable::Missing("name")));
    }

    #[test]
    fn a_node_without_a_ready_condition_is_not_ready_since_its_creation() {
        let node: PartialNode = partial(
            json!({"metadata": {"name": "n", "creationTimestamp": "2026-11-21T10:00:00Z"}}),
        );
        assert_eq!(
            node.not_ready_since().unwrap().to_rfc3339(),
            "2026-11-21T10:00:00+00:00"
        );
        assert!(!node.scheduling().unwrap().ready);
    }

    #[test]
    fn a_class_is_read_with_its_policy_and_its_priority_as_a_victim() {
        let class: PartialPriorityClass =
            partial(json!({"metadata": {"name": "high", "annotations":
            {"training.lockstep.dev/preemption-priority": "7"}}, "value": 100,
            "preemptionPolicy": "Never", "globalDefault": true}));
        let expected = PriorityClass {
            name: "high".into(),
            value: 100,
            preemption: PreemptionPolicy::Never,
            preemption_priority: Some(7),
            default: true,
        };
        assert_eq!(class.scheduling(), Ok(expected));
    }
}
