//! Foreign work that is useful only together: pods that restart or wait when one of them is
//! evicted.
//!
//! The controller of a pod decides, within its namespace. Labels count only on pods of a Job.
//! Labels of a `JobSet` count only if the Job has the name that the `JobSet` gives it, and labels of
//! a `LeaderWorkerSet` only if the `StatefulSet` has such a name. So labels alone do not raise the
//! cost of a pod. Pods of plain Jobs and of other services are independent.
//!
//! Two kinds of groups have no controller: `PodGroup`s of kube-scheduler (`scheduling.k8s.io`,
//! named in the pod spec) and Kueue's groups of plain pods (named in a label). Their labels are
//! trusted, because the cost of a whole group is the real loss. Pods of a `PodGroup` with mode
//! Single are evicted one by one.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::common::metadata::label;

/// On pods of an Indexed Job.
const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// On pods of a `JobSet`: its name and UID, its replicated job, and the index of the Job.
const JOBSET_NAME: &str = "jobset.sigs.k8s.io/jobset-name";
const JOBSET_UID: &str = "jobset.sigs.k8s.io/jobset-uid";
const REPLICATED_JOB: &str = "jobset.sigs.k8s.io/replicatedjob-name";
const JOB_INDEX: &str = "jobset.sigs.k8s.io/job-index";
/// On pods of a `LeaderWorkerSet`: its name, and the index of their group.
const LWS_NAME: &str = "leaderworkerset.sigs.k8s.io/name";
const LWS_GROUP: &str = "leaderworkerset.sigs.k8s.io/group-index";
/// On pods of a Kueue group: its name, and whether Kueue manages them.
const KUEUE_GROUP: &str = "kueue.x-k8s.io/pod-group-name";
const KUEUE_MANAGED: &str = "kueue.x-k8s.io/managed";
/// API groups and kinds whose controllers run their pods together. `None`: all kinds of the group.
const TOGETHER: [(&str, Option<&str>); 4] = [
    // Grove.
    ("grove.io", Some("PodClique")),
    // Volcano.
    ("batch.volcano.sh", Some("Job")),
    // KubeRay: a RayJob has a RayCluster.
    ("ray.io", Some("RayCluster")),
    // Kubeflow's training operator: PyTorchJob, MPIJob and other kinds.
    ("kubeflow.org", None),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodUnit {
    /// Unique key within the namespace.
    pub key: Arc<str>,
    pub mode: UnitMode,
}

impl PodUnit {
    fn new(key: &str, mode: UnitMode) -> Self {
        Self {
            key: key.into(),
            mode,
        }
    }
}

/// Pods of a unit that are evicted if the capacity of one is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitMode {
    Single,
    Whole,
    /// As the `PodGroup` of kube-scheduler with this name and its ancestors specify.
    Native,
}

/// Unit of a pod. `None`: independent. `group`: `PodGroup` in the pod spec.
pub(crate) fn unit_of(metadata: &ObjectMeta, group: Option<&str>) -> Option<PodUnit> {
    if let Some(group) = group {
        return Some(PodUnit::new(group, UnitMode::Native));
    }
    if let Some(key) = controlled(metadata) {
        let mode = UnitMode::Single;
        return Some(PodUnit { key, mode });
    }
    let managed = label(metadata, KUEUE_MANAGED) == Some("true");
    let group = label(metadata, KUEUE_GROUP).filter(|_| managed)?;
    let key = format!("{KUEUE_GROUP}/{group}");
    Some(PodUnit::new(&key, UnitMode::Whole))
}

fn controlled(metadata: &ObjectMeta) -> Option<Arc<str>> {
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners.find(|o| o.controller == Some(true))?;
    let (group, _) = owner.api_version.split_once('/')?;
    if group == "batch" && owner.kind == "Job" {
        return of_job(metadata, owner);
    }
    if group == "apps" && owner.kind == "StatefulSet" {
        return leader_worker_group(metadata, owner);
    }
    let together = TOGETHER
        .iter()
        .any(|(listed, kind)| group == *listed && kind.is_none_or(|kind| owner.kind == kind));
    together.then(|| owner.uid.as_str().into())
}

/// One unit for the pods of an Indexed Job, or of all Jobs of a `JobSet`.
fn of_job(metadata: &ObjectMeta, job: &OwnerReference) -> Option<Arc<str>> {
    let indexed = label(metadata, COMPLETION_INDEX).map(|_| job.uid.as_str());
    jobset_of(metadata, job).or(indexed).map(Arc::from)
}

/// Group of a `LeaderWorkerSet` in the pod's labels, if the `StatefulSet` has the name of the
/// `LeaderWorkerSet`, for a leader, or of the leader.
fn leader_worker_group(metadata: &ObjectMeta, set: &OwnerReference) -> Option<Arc<str>> {
    let (name, group) = (label(metadata, LWS_NAME)?, label(metadata, LWS_GROUP)?);
    let leader = format!("{name}-{group}");
    let is_named_by_it = set.name == name || set.name == leader;
    is_named_by_it.then(|| format!("{LWS_NAME}/{leader}").into())
}

/// UID (or name) of the `JobSet` in the pod's labels, if the Job has the name that the `JobSet`
/// gives it.
fn jobset_of<'m>(metadata: &'m ObjectMeta, job: &OwnerReference) -> Option<&'m str> {
    let name = label(metadata, JOBSET_NAME)?;
    let replicated = label(metadata, REPLICATED_JOB)?;
    let index = label(metadata, JOB_INDEX)?;
    let is_named_by_it = job.name == format!("{name}-{replicated}-{index}");
    is_named_by_it.then(|| label(metadata, JOBSET_UID).unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn unit(api_version: &str, kind: &str, name: &str, labels: &Value) -> Option<String> {
        let owner = json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": format!("uid-{name}"),
            "controller": true});
        let metadata = json!({"labels": labels, "ownerReferences": [owner]});
        let unit = unit_of(&serde_json::from_value(metadata).unwrap(), None)?;
        assert_eq!(unit.mode, UnitMode::Single);
        Some(unit.key.to_string())
    }

    #[test]
    fn pods_of_one_indexed_job_volcano_job_ray_cluster_or_kubeflow_job_belong_together() {
        let index = json!({COMPLETION_INDEX: "3"});
        let plain = json!({});
        for (api_version, kind, labels, belongs) in [
            ("batch/v1", "Job", &index, true),
            ("batch/v1", "Job", &plain, false),
            ("batch.volcano.sh/v1alpha1", "Job", &plain, true),
            ("ray.io/v1", "RayCluster", &plain, true),
            ("kubeflow.org/v1", "PyTorchJob", &plain, true),
            ("kubeflow.org/v1", "MPIJob", &plain, true),
            ("grove.io/v1alpha1", "PodClique", &plain, true),
            ("apps/v1", "ReplicaSet", &index, false),
            ("apps/v1", "StatefulSet", &plain, false),
            ("v1", "ReplicationController", &index, false),
        ] {
            let found = unit(api_version, kind, "x", labels);
            assert_eq!(found, belongs.then(|| "uid-x".to_owned()), "{kind}");
        }
    }

    fn of_jobset(index: &str) -> Value {
        json!({JOBSET_NAME: "llama", JOBSET_UID: "uid-llama", REPLICATED_JOB: "workers", JOB_INDEX: index,
            COMPLETION_INDEX: "0"})
    }

    #[test]
    fn pods_of_all_jobs_of_a_jobset_belong_together() {
        for index in ["0", "1"] {
            let job = format!("llama-workers-{index}");
            let found = unit("batch/v1", "Job", &job, &of_jobset(index));
            assert_eq!(found.as_deref(), Some("uid-llama"));
        }
    }

    #[test]
    fn leader_and_workers_of_a_group_of_a_leader_worker_set_belong_together() {
        let of_set = |set: &str, group: &str| {
            let labels = json!({LWS_NAME: "llama", LWS_GROUP: group});
            unit("apps/v1", "StatefulSet", set, &labels)
        };
        let (leader, worker) = (of_set("llama", "1"), of_set("llama-1", "1"));
        assert!(leader.is_some() && leader == worker);
        assert_ne!(of_set("llama", "0"), leader);
        assert_eq!(of_set("database", "1"), None);
    }

    #[test]
    fn labels_alone_make_no_unit() {
        let labels = of_jobset("0");
        let other = unit("batch/v1", "Job", "other", &labels);
        assert_eq!(other.as_deref(), Some("uid-other"));
        let deployed = unit("apps/v1", "ReplicaSet", "llama-workers-0", &labels);
        assert_eq!(deployed, None);
        let bare = json!({"labels": labels});
        assert_eq!(unit_of(&serde_json::from_value(bare).unwrap(), None), None);
    }

    #[test]
    fn groups_without_a_controller_are_evicted_whole_unless_kube_scheduler_groups_them() {
        let mode = |labels: Value, group: Option<&str>| {
            let metadata = serde_json::from_value(json!({ "labels": labels })).unwrap();
            unit_of(&metadata, group).map(|unit| (unit.key.to_string(), unit.mode))
        };
        let kueue = json!({KUEUE_GROUP: "g", KUEUE_MANAGED: "true"});
        let whole = (
            "kueue.x-k8s.io/pod-group-name/g".to_owned(),
            UnitMode::Whole,
        );
        assert_eq!(mode(kueue.clone(), None), Some(whole));
        assert_eq!(mode(json!({KUEUE_GROUP: "g"}), None), None);
        let native = Some(("pg".to_owned(), UnitMode::Native));
        assert_eq!(mode(json!({}), Some("pg")), native);
        assert_eq!(mode(kueue, Some("pg")), native);
    }
}
