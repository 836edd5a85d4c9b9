//! What every command asks of objects.

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use lockstep_api::TrainingWorkload;
use lockstep_api::member::Member;
use lockstep_api::names::labels;

/// Whether an object was made for a workload.
pub fn owns<K: Resource<DynamicType = ()>>(workload: &TrainingWorkload, object: &K) -> bool {
    let uid = workload.metadata.uid.as_deref();
    let mut owners = object.owner_references().iter();
    owners.any(|o| o.controller == Some(true) && Some(o.uid.as_str()) == uid)
}

/// A time of the API server's.
pub fn moment(time: &Time) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(
        time.0.as_second(),
        time.0.subsec_nanosecond().unsigned_abs(),
    )
}

/// Which member a pod of ours is.
pub fn member(pod: &Pod) -> Option<Member> {
    let label = |key: &str| pod.labels().get(key);
    let number = |key: &str| label(key)?.parse().ok();
    Some(Member::new(
        label(labels::GROUP)?,
        number(labels::REPLICA)?,
        number(labels::INDEX)?,
    ))
}

/// The node that a pod is bound to.
pub fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// Whether a condition of a pod holds.
pub fn holds(pod: &Pod, condition: &str) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    conditions
        .filter(|c| c.type_ == condition)
        .any(|c| c.status == "True")
}
