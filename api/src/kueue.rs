//! The part of Kueue's API (`kueue.x-k8s.io`) that the integration reads and writes.
//!
//! All types tolerate unknown fields, because Kueue has versions of its own. What is written to a
//! status is read whole before, so that a patch changes nothing else.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSpec, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ApiResource, GroupVersionKind};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha1::{Digest, Sha1};

use crate::TRAINING_GROUP;
use crate::condition::{Condition, is_true};
use crate::workload::KueuePodSet;

/// API group of Kueue.
pub const KUEUE_GROUP: &str = "kueue.x-k8s.io";
/// Versions that the integration speaks, the preferred one first.
pub const KUEUE_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];
/// Label of a workload: its LocalQueue.
pub const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";
/// Label of a workload: its WorkloadPriorityClass.
pub const PRIORITY_LABEL: &str = "kueue.x-k8s.io/priority-class";
/// Label of a workload: seconds for which Kueue lets it run.
pub const MAX_TIME_LABEL: &str = "kueue.x-k8s.io/max-exec-time-seconds";
/// Label of a Kueue Workload: UID of its owner.
pub const JOB_UID_LABEL: &str = "kueue.x-k8s.io/job-uid";
/// Label of members: their pod set.
pub const POD_SET_LABEL: &str = "kueue.x-k8s.io/podset";
/// Annotation of members: their Kueue Workload.
pub const WORKLOAD_ANNOTATION: &str = "kueue.x-k8s.io/workload";
/// Prefix of annotations that a Kueue Workload takes over from its owner.
pub const PROVISIONING_PREFIX: &str = "provreq.kueue.x-k8s.io/";
/// Keeps a Kueue Workload until no pod counts against its quota.
pub const FINALIZER: &str = "kueue.x-k8s.io/resource-in-use";
/// Most pod sets of a Kueue Workload.
pub const MOST_POD_SETS: usize = 8;

/// Types of conditions of a Kueue Workload.
pub mod kueue_conditions {
    /// Quota and all admission checks are given: pods may be created.
    pub const ADMITTED: &str = "Admitted";
    /// Quota is reserved. The integration ends it after an eviction.
    pub const QUOTA_RESERVED: &str = "QuotaReserved";
    /// Kueue takes the quota back. It stays True until the next admission.
    pub const EVICTED: &str = "Evicted";
    /// All pods are ready. The integration writes it.
    pub const PODS_READY: &str = "PodsReady";
    /// Whether the evicted workload is queued again. The integration writes it.
    pub const REQUEUED: &str = "Requeued";
    /// The workload has ended. The integration writes it.
    pub const FINISHED: &str = "Finished";
}

/// A `Workload` of Kueue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KueueWorkload {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What the quota is requested for.
    pub spec: KueueWorkloadSpec,
    /// State of the request.
    pub status: KueueWorkloadStatus,
}

/// Spec of a [`KueueWorkload`], in version `v1beta2`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KueueWorkloadSpec {
    /// LocalQueue.
    pub queue_name: String,
    /// One for each group of the workload.
    pub pod_sets: Vec<PodSetRequest>,
    /// Class of `priority`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_ref: Option<PriorityClassRef>,
    /// Priority in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// False: Kueue or a user has deactivated it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// Seconds for which Kueue lets it run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum_execution_time_seconds: Option<i32>,
}

impl KueueWorkloadSpec {
    /// The spec as JSON of a served version.
    pub fn to_json(&self, version: &str) -> Value {
        let mut spec = json!(self);
        if version == KUEUE_VERSIONS[1]
            && let Some(class) = &self.priority_class_ref
            && let Some(fields) = spec.as_object_mut()
        {
            fields.remove("priorityClassRef");
            let source = format!("{}/{}", class.group, class.kind.to_lowercase());
            fields.insert("priorityClassName".into(), json!(class.name));
            fields.insert("priorityClassSource".into(), json!(source));
        }
        spec
    }
}

/// Pods with one template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSetRequest {
    /// Name of the group.
    pub name: String,
    /// Number of pods.
    pub count: i32,
    /// Pod template with the fields that quota and flavors depend on.
    pub template: Value,
}

/// A class of priorities.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PriorityClassRef {
    /// API group of the class.
    pub group: String,
    /// Kind of the class.
    pub kind: String,
    /// Name of the class.
    pub name: String,
}

/// Status of a [`KueueWorkload`]: the fields that the integration reads or writes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KueueWorkloadStatus {
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// The admission, while quota is reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<QuotaAdmission>,
    /// Pods that have ended and will not run again.
    pub reclaimable_pods: Vec<ReclaimablePods>,
    /// Checks, which can change pods.
    pub admission_checks: Vec<AdmissionCheck>,
    /// Seconds of earlier admissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accumulated_past_execution_time_seconds: Option<i32>,
}

impl KueueWorkloadStatus {
    /// True if the condition of this type is True.
    pub fn is(&self, type_: &str) -> bool {
        is_true(&self.conditions, type_)
    }

    /// The number of pods of a pod set whose quota has returned.
    pub fn reclaimed(&self, pod_set: &str) -> i32 {
        let mut all = self.reclaimable_pods.iter();
        all.find(|pods| pods.name == pod_set)
            .map_or(0, |pods| pods.count)
    }
}

/// Where quota is reserved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QuotaAdmission {
    /// One for each pod set.
    pub pod_set_assignments: Vec<PodSetAssignment>,
}

/// Flavors of a pod set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSetAssignment {
    /// Name of the pod set.
    pub name: String,
    /// ResourceFlavor of each resource.
    pub flavors: BTreeMap<String, String>,
}

/// Number of pods of a pod set whose quota returns early.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReclaimablePods {
    /// Name of the pod set.
    pub name: String,
    /// Number of pods.
    pub count: i32,
}

/// State of an admission check.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AdmissionCheck {
    /// Name of the check.
    pub name: String,
    /// What it says.
    pub message: String,
    /// Pending, Ready, Retry or Rejected.
    pub state: String,
    /// What it adds to pods.
    pub pod_set_updates: Vec<KueuePodSet>,
}

/// Spec of a `ResourceFlavor`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FlavorSpec {
    /// Labels of the flavor's nodes.
    pub node_labels: BTreeMap<String, String>,
    /// What pods of the flavor tolerate.
    pub tolerations: Vec<Toleration>,
}

impl KueuePodSet {
    /// Adds node selector and tolerations of the assignment to a pod.
    pub fn apply(&self, spec: &mut PodSpec) {
        if !self.node_selector.is_empty() {
            let selector = spec.node_selector.get_or_insert_default();
            selector.extend(self.node_selector.clone());
        }
        for toleration in &self.tolerations {
            let present = spec.tolerations.get_or_insert_default();
            if !present.contains(toleration) {
                present.push(toleration.clone());
            }
        }
    }
}

/// A resource of Kueue's API in a version.
pub fn kueue_resource(version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(KUEUE_GROUP, version, kind))
}

/// Name of the Kueue Workload of a workload, as Kueue's own integrations derive it. At most 63
/// characters, so that it is a label.
pub fn kueue_workload_name(workload: &str, uid: &str) -> String {
    const LONGEST: usize = 63 - 6;
    let hash = Sha1::digest(format!(
        "TrainingWorkload\n{TRAINING_GROUP}\n{workload}\n{uid}"
    ));
    let mut prefix = format!("trainingworkload-{workload}");
    prefix.truncate(LONGEST);
    format!("{prefix}-{:02x}{:02x}{:x}", hash[0], hash[1], hash[2] >> 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_one_by_which_kueue_finds_the_workload() {
        let name = |workload: &str| kueue_workload_name(workload, "u-1");
        // printf 'TrainingWorkload\ntraining.lockstep.dev\nllama\nu-1' | sha1sum
        assert_eq!(name("llama"), "trainingworkload-llama-88065");
        assert_eq!(name(&"x".repeat(63)).len(), 63);
        assert_ne!(name("llama"), name("gemma"));
    }

    #[test]
    fn the_older_version_names_the_class_in_two_fields() {
        let spec = KueueWorkloadSpec {
            priority_class_ref: Some(PriorityClassRef {
                group: KUEUE_GROUP.into(),
                kind: "WorkloadPriorityClass".into(),
                name: "high".into(),
            }),
            priority: Some(5),
            ..KueueWorkloadSpec::default()
        };
        assert_eq!(spec.to_json("v1beta2")["priorityClassRef"]["name"], "high");
        let old = spec.to_json("v1beta1");
        assert_eq!(old["priorityClassRef"], Value::Null);
        assert_eq!(old["priorityClassName"], "high");
        let source = "kueue.x-k8s.io/workloadpriorityclass";
        assert_eq!(old["priorityClassSource"], source);
    }
}
