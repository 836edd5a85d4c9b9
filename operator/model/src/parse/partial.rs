//! The fields of pods, nodes, budgets and priority classes that the scheduler uses, and their
//! conversion. Shared by the manager and the command line tool.
//!
//! These types live for one event. The parser skips other fields, in particular `managedFields`.
//!
//! An object without name, or without a required UID, is [`Unreadable`], so no identity in the
//! model is an empty string.

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
use lockstep_api::node_signal::{
    FoundSignal, LimitedResource, NodeCondition, NodeFields, SignalRule,
};
use lockstep_api::time::utc;
use serde::{Deserialize, Deserializer};

use crate::common::unreadable::{Unreadable, present};
use crate::nodes::node::{NodeSpecView, NodeStatusView};
use crate::pods::gang::{checkpoint_wait, preemption_policy, preemption_priority};
use crate::pods::pdb::Budget;
use crate::pods::pod_view::{PodSpecView, PodStatusView};
use crate::pods::priority_class::PriorityClass;
use crate::pods::resources::is_extended;
use crate::{Node, Pod};
use lockstep_api::Reach;

#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = core::Pod)]
#[serde(default)]
pub struct PartialPod {
    /// Name, UID, labels, owners and times.
    #[serde(deserialize_with = "trimmed")]
    pub metadata: ObjectMeta,
    pub spec: PodSpecView,
    pub status: PodStatusView,
}

impl PartialPod {
    pub fn scheduling(&self) -> Result<Pod, Unreadable> {
        Pod::new(&self.metadata, &self.spec, &self.status)
    }

    /// True if condition Ready is True and the pod is not being deleted.
    pub fn ready(&self) -> bool {
        let ready = self.status.condition("Ready", "True").is_some();
        self.metadata.deletion_timestamp.is_none() && ready
    }
}

#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = core::Node)]
#[serde(default)]
pub struct PartialNode {
    /// Name, labels and times.
    #[serde(deserialize_with = "trimmed")]
    pub metadata: ObjectMeta,
    pub spec: NodeSpecView,
    pub status: NodeStatusView,
}

impl PartialNode {
    pub fn scheduling(&self) -> Result<Node, Unreadable> {
        let ready = match self.not_ready_since() {
            None => Reach::Responding,
            since => Reach::Silent { since },
        };
        Node::new(&self.metadata, &self.spec, &self.status, ready)
    }

    /// Start of condition Ready=True, by the node's clock. `None` if the condition is not True.
    pub fn became_ready(&self) -> Option<DateTime<Utc>> {
        let mut conditions = self.status.conditions.iter();
        let ready = conditions.find(|c| c.type_ == "Ready" && c.status == "True")?;
        ready.last_transition_time.as_ref().and_then(utc)
    }

    /// End of condition Ready=True; the node's creation if it has no condition.
    pub fn not_ready_since(&self) -> Option<DateTime<Utc>> {
        let since = match self.status.conditions.iter().find(|c| c.type_ == "Ready") {
            Some(ready) if ready.status == "True" => return None,
            Some(ready) => ready.last_transition_time.as_ref(),
            None => self.metadata.creation_timestamp.as_ref(),
        };
        Some(since.and_then(utc).unwrap_or_default())
    }

    /// The signals that rules find in the node's fields.
    pub fn find_signals(&self, rules: &[SignalRule]) -> Vec<FoundSignal> {
        let none = BTreeMap::new();
        let conditions = self.status.conditions.iter().map(|c| NodeCondition {
            type_: &c.type_,
            status: &c.status,
            reason: c.reason.as_deref().unwrap_or_default(),
            since: c.last_transition_time.as_ref().and_then(utc),
        });
        let fields = NodeFields {
            labels: self.metadata.labels.as_ref().unwrap_or(&none),
            annotations: self.metadata.annotations.as_ref().unwrap_or(&none),
            taints: &self.spec.taints,
            conditions: conditions.collect(),
            limited: self.limited(),
        };
        rules.iter().filter_map(|rule| rule.find(&fields)).collect()
    }

    /// Extended resources of which the node offers more than 0 and less than its capacity.
    fn limited(&self) -> Vec<LimitedResource> {
        let status = &self.status;
        let amount = |quantity: &Quantity| quantity.0.parse::<i64>().ok();
        let resources = status.capacity.iter().filter(|(name, _)| is_extended(name));
        let limited = resources.filter_map(|(name, capacity)| {
            let allocatable = amount(status.allocatable.get(name)?)?;
            (1..amount(capacity)?)
                .contains(&allocatable)
                .then(|| LimitedResource {
                    name: name.clone(),
                    allocatable,
                })
        });
        limited.collect()
    }
}

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
    pub fn scheduling(&self) -> Result<Budget, Unreadable> {
        Ok(Budget {
            namespace: present("namespace", self.metadata.namespace.as_ref())?.clone(),
            name: present("name", self.metadata.name.as_ref())?.clone(),
            selector: self.spec.selector.clone(),
            allowed: self.status.disruptions_allowed,
        })
    }
}

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
    pub fn scheduling(&self) -> Result<PriorityClass, Unreadable> {
        Ok(PriorityClass {
            name: present("name", self.metadata.name.as_ref())?.clone(),
            value: self.value,
            preemption: preemption_policy(&self.metadata, self.preemption_policy.as_deref()),
            preemption_priority: preemption_priority(&self.metadata),
            checkpoint_wait: checkpoint_wait(&self.metadata),
            default: self.global_default,
        })
    }
}

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
    use std::time::Duration;

    use super::*;
    use lockstep_api::scheduling::PreemptionPolicy;
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
        assert!(!node.scheduling().unwrap().state.is_ready());
    }

    #[test]
    fn a_node_is_cordoned_by_its_spec_or_by_the_taint_of_an_autoscaler() {
        let drained = json!([{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]);
        for (spec, cordoned) in [
            (json!({}), false),
            (json!({"unschedulable": true}), true),
            (json!({ "taints": drained }), true),
        ] {
            let node: PartialNode = partial(json!({"metadata": {"name": "n"}, "spec": spec}));
            assert_eq!(node.scheduling().unwrap().state.cordoned, cordoned);
        }
    }

    #[test]
    fn a_class_is_read_with_its_policy_and_its_priority_as_a_victim() {
        let class: PartialPriorityClass =
            partial(json!({"metadata": {"name": "high", "annotations":
            {"training.lockstep.dev/preemption-priority": "7",
            "training.lockstep.dev/checkpoint-wait": "1m30s"}}, "value": 100,
            "preemptionPolicy": "Never", "globalDefault": true}));
        let expected = PriorityClass {
            name: "high".into(),
            value: 100,
            preemption: PreemptionPolicy::Never,
            preemption_priority: Some(7),
            checkpoint_wait: Some(Duration::from_secs(90)),
            default: true,
        };
        assert_eq!(class.scheduling(), Ok(expected));
        let policy = |policy: &str, annotation: &str| {
            let annotations = json!({"training.lockstep.dev/preemption-policy": annotation});
            let class: PartialPriorityClass = partial(
                json!({"metadata": {"name": "high", "annotations": annotations},
                "value": 100, "preemptionPolicy": policy}),
            );
            class.scheduling().unwrap().preemption
        };
        let (never, lower) = (
            PreemptionPolicy::Never,
            PreemptionPolicy::PreemptLowerPriority,
        );
        assert_eq!(policy("Never", "PreemptLowerPriority"), lower);
        assert_eq!(policy("PreemptLowerPriority", "Never"), never);
        assert_eq!(policy("Never", "yes"), never);
    }
}
