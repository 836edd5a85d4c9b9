use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use lockstep_api::TrainingWorkload;
use lockstep_api::member::Member;
use lockstep_api::names::member_of;
use lockstep_api::workload::Phase;

/// True if the workload is the controller of the object.
pub fn owns<K: Resource<DynamicType = ()>>(workload: &TrainingWorkload, object: &K) -> bool {
    let uid = workload.metadata.uid.as_deref();
    let mut owners = object.owner_references().iter();
    owners.any(|o| o.controller == Some(true) && Some(o.uid.as_str()) == uid)
}

/// The workload that controls the object.
pub fn owner<'w, K: Resource<DynamicType = ()>>(
    workloads: &'w [TrainingWorkload],
    object: &K,
) -> Option<&'w TrainingWorkload> {
    workloads.iter().find(|w| owns(w, object))
}

pub fn has_ended(workload: &TrainingWorkload) -> bool {
    let phase = workload.status.as_ref().and_then(|s| s.phase);
    matches!(phase, Some(Phase::Succeeded | Phase::Failed))
}

pub fn member(pod: &Pod) -> Option<Member> {
    member_of(pod.labels())
}

pub fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

pub fn holds(pod: &Pod, condition: &str) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    conditions
        .filter(|c| c.type_ == condition)
        .any(|c| c.status == "True")
}
