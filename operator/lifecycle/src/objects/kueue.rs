//! The Kueue Workload of a workload.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use lockstep_api::kueue::{
    FINALIZER, JOB_UID_LABEL, KUEUE_GROUP, KueueWorkload, KueueWorkloadSpec, KueueWorkloadStatus,
    MAX_TIME_LABEL, PRIORITY_LABEL, PROVISIONING_PREFIX, PodSetRequest, PriorityClassRef,
    kueue_workload_name,
};
use lockstep_api::tier::Tier;
use serde_json::json;

use super::metadata::metadata;
use super::pod::dry_run_pods;
use crate::observed::Observed;
use crate::view::Priority;

pub(crate) fn name(view: Observed<'_>) -> String {
    kueue_workload_name(view.name(), view.uid())
}

/// Class and value of the priority in Kueue's queue. `Err`: the name of a missing
/// WorkloadPriorityClass.
pub(crate) fn class_of(view: Observed<'_>) -> Result<(Option<PriorityClassRef>, i32), String> {
    let class = |group: &str, kind: &str, name: &str| PriorityClassRef {
        group: group.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
    };
    if let Some(name) = view.label(PRIORITY_LABEL).filter(|name| !name.is_empty()) {
        let value = view.kueue().classes.priorities.get(name);
        let value = value.ok_or_else(|| name.to_owned())?;
        return Ok((
            Some(class(KUEUE_GROUP, "WorkloadPriorityClass", name)),
            *value,
        ));
    }
    let value = match *view.priority() {
        Priority::Resolved { value, .. } => value,
        Priority::ClassMissing => 0,
    };
    let named = view.spec().priority_class_name.as_deref();
    let class = named.map(|name| class("scheduling.k8s.io", "PriorityClass", name));
    Ok((class, value))
}

/// One pod set for each group with members. An elastic gang requests quota for all members.
pub(crate) fn pod_sets(view: Observed<'_>) -> Vec<PodSetRequest> {
    let spec = view.spec();
    let groups = spec.groups.iter().filter(|g| spec.members_of(g) > 0);
    let pods = dry_run_pods(view, Tier::RestartRules);
    let sets = groups.zip(pods).map(|(group, pod)| PodSetRequest {
        name: group.name.clone(),
        count: spec.members_of(group),
        template: json!({"spec": template(pod.spec.unwrap_or_default())}),
    });
    sets.collect()
}

/// The fields on which quota and flavors depend. They are in all versions of Kueue.
fn template(spec: PodSpec) -> PodSpec {
    let containers = |all: Vec<Container>| all.into_iter().map(container).collect();
    PodSpec {
        containers: containers(spec.containers),
        init_containers: spec.init_containers.map(containers),
        node_selector: spec.node_selector,
        affinity: spec.affinity,
        tolerations: spec.tolerations,
        priority_class_name: spec.priority_class_name,
        runtime_class_name: spec.runtime_class_name,
        overhead: spec.overhead,
        resource_claims: spec.resource_claims,
        restart_policy: spec.restart_policy,
        ..PodSpec::default()
    }
}

fn container(container: Container) -> Container {
    Container {
        name: container.name,
        image: container.image,
        resources: container.resources,
        restart_policy: container.restart_policy,
        ..Container::default()
    }
}

/// `None` without the class of its priority.
pub(crate) fn workload(view: Observed<'_>, queue: &str) -> Option<KueueWorkload> {
    let (priority_class_ref, priority) = class_of(view).ok()?;
    let longest = view.label(MAX_TIME_LABEL).and_then(|l| l.parse().ok());
    let mut metadata = metadata(view, name(view));
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(JOB_UID_LABEL.to_owned(), view.uid().to_owned());
    let provisioning = view
        .annotations()
        .filter(|(k, _)| k.starts_with(PROVISIONING_PREFIX));
    let annotations: BTreeMap<String, String> =
        provisioning.map(|(k, v)| (k.clone(), v.clone())).collect();
    metadata.annotations = Some(annotations).filter(|all| !all.is_empty());
    metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    Some(KueueWorkload {
        metadata,
        spec: KueueWorkloadSpec {
            queue_name: queue.to_owned(),
            pod_sets: pod_sets(view),
            priority_class_ref,
            priority: Some(priority),
            active: None,
            maximum_execution_time_seconds: longest.filter(|seconds| *seconds > 0),
        },
        status: KueueWorkloadStatus::default(),
    })
}
