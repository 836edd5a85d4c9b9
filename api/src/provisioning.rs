//! `ProvisioningRequest` of Cluster Autoscaler (`autoscaling.x-k8s.io`), as far as Lockstep uses it,
//! and the annotations by which autoscalers know members.
//!
//! Versions `v1` and `v1beta1` have the same fields.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{CustomResource, Resource as _};
use serde::{Deserialize, Serialize};

use crate::scheduling::{ProvisioningPhase, ProvisioningState};
use crate::time::utc;

/// API group of [`ProvisioningRequest`].
pub const AUTOSCALING_GROUP: &str = "autoscaling.x-k8s.io";
/// Versions that Lockstep writes, the preferred one first.
pub const AUTOSCALING_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// `schedulerName` of signal pods. No scheduler has this name.
pub const SIGNAL_SCHEDULER: &str = "lockstep-autoscaler";

/// Default namespace of signal pods.
pub const SIGNAL_NAMESPACE: &str = "lockstep-autoscaler";

/// On members: the request whose capacity the pod uses.
pub const CONSUMED_REQUEST: &str = "autoscaling.x-k8s.io/consume-provisioning-request";
/// On members: the class of that request.
pub const CONSUMED_CLASS: &str = "autoscaling.x-k8s.io/provisioning-class-name";

/// Annotations and values by which Cluster Autoscaler and Karpenter leave the node of a pod alone.
pub const AGAINST_CONSOLIDATION: [(&str, &str); 2] = [
    ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
    ("karpenter.sh/do-not-disrupt", "true"),
];

/// Pods for which capacity is requested. Immutable.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "autoscaling.x-k8s.io",
    version = "v1",
    kind = "ProvisioningRequest",
    status = "ProvisioningRequestStatus",
    schema = "disabled",
    derive = "PartialEq",
    namespaced
)]
#[serde(rename_all = "camelCase")]
pub struct ProvisioningRequestSpec {
    /// The pods by template, at most 32.
    pub pod_sets: Vec<ProvisioningPodSet>,
    /// Class that decides how capacity is provided.
    pub provisioning_class_name: String,
    /// Parameters of the class, at most 100.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

/// Equal pods of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProvisioningPodSet {
    /// The `PodTemplate` in the namespace of the request.
    pub pod_template_ref: PodTemplateRef,
    /// Number of pods, from 1.
    pub count: i32,
}

/// Reference to a `PodTemplate` by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodTemplateRef {
    /// Its name.
    pub name: String,
}

/// What the autoscaler reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProvisioningRequestStatus {
    /// `Accepted`, `Provisioned`, `Failed`, `BookingExpired`, `CapacityRevoked`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// Conditions that end or mark a state, the last state first.
const PHASES: [(&str, ProvisioningPhase); 5] = [
    ("CapacityRevoked", ProvisioningPhase::CapacityRevoked),
    ("BookingExpired", ProvisioningPhase::BookingExpired),
    ("Failed", ProvisioningPhase::Failed),
    ("Provisioned", ProvisioningPhase::Provisioned),
    ("Accepted", ProvisioningPhase::Accepted),
];

impl ProvisioningRequest {
    /// The resource in a version.
    pub fn resource(version: &str) -> ApiResource {
        let kind = GroupVersionKind::gvk(AUTOSCALING_GROUP, version, "ProvisioningRequest");
        ApiResource::from_gvk(&kind)
    }

    /// Its state. Until it is provisioned, the words are those about the missing capacity.
    pub fn state(&self) -> ProvisioningState {
        let conditions = self.status.as_ref().map_or(&[][..], |s| &s.conditions);
        let find = |type_: &str, status: &str| {
            let mut all = conditions.iter();
            all.find(|c| c.type_ == type_ && c.status == status)
        };
        let reached = PHASES
            .into_iter()
            .find_map(|(type_, phase)| Some((phase, find(type_, "True")?)));
        let phase = reached.map_or(ProvisioningPhase::Created, |(phase, _)| phase);
        let waits = matches!(
            phase,
            ProvisioningPhase::Created | ProvisioningPhase::Accepted
        );
        let missing = find("Provisioned", "False").filter(|_| waits);
        let reached = reached.map(|(_, condition)| condition);
        let since = reached.map(|c| &c.last_transition_time);
        let since = since.or(self.metadata.creation_timestamp.as_ref());
        let told = missing.or(reached);
        ProvisioningState {
            name: self.meta().name.clone().unwrap_or_default(),
            phase,
            since: since.and_then(utc).unwrap_or_default(),
            message: told.map(|c| c.message.clone()).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn state(conditions: &[(&str, &str, &str)]) -> (ProvisioningPhase, String, i64) {
        let conditions: Vec<_> = (10..)
            .zip(conditions)
            .map(|(second, (type_, status, message))| {
                json!({"type": type_, "status": status, "reason": "R", "message": message,
                    "lastTransitionTime": format!("1970-01-01T00:00:{second}Z")})
            })
            .collect();
        let request: ProvisioningRequest = serde_json::from_value(json!({
            "apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "ProvisioningRequest",
            "metadata": {"name": "r", "creationTimestamp": "1970-01-01T00:00:01Z"},
            "spec": {"podSets": [], "provisioningClassName": "c"},
            "status": {"conditions": conditions}}))
        .unwrap();
        let state = request.state();
        (state.phase, state.message, state.since.timestamp())
    }

    #[test]
    fn the_last_state_counts_and_its_message_is_that_of_the_autoscaler() {
        let accepted = ("Accepted", "True", "in queue");
        let provisioned = ("Provisioned", "True", "there");
        assert_eq!(
            state(&[accepted, provisioned]),
            (ProvisioningPhase::Provisioned, "there".into(), 11)
        );
        for (type_, phase) in PHASES {
            let all = [accepted, provisioned, (type_, "True", "last")];
            let all = if phase == ProvisioningPhase::Accepted {
                &all[2..]
            } else {
                &all[..]
            };
            let told = state(all).1;
            let expected = if phase == ProvisioningPhase::Provisioned {
                "there"
            } else {
                "last"
            };
            assert_eq!((state(all).0, &*told), (phase, expected), "{type_}");
        }
    }

    #[test]
    fn before_the_capacity_is_there_the_message_says_what_is_missing() {
        assert_eq!(state(&[]), (ProvisioningPhase::Created, String::new(), 1));
        let missing = ("Provisioned", "False", "no capacity yet");
        assert_eq!(
            state(&[missing]),
            (ProvisioningPhase::Created, "no capacity yet".into(), 1)
        );
        assert_eq!(
            state(&[("Accepted", "True", "in queue"), missing]),
            (ProvisioningPhase::Accepted, "no capacity yet".into(), 10)
        );
    }

    #[test]
    fn a_refusal_that_is_false_has_not_happened() {
        let conditions = [("Failed", "False", ""), ("Provisioned", "True", "there")];
        assert_eq!(state(&conditions).0, ProvisioningPhase::Provisioned);
    }
}
