//! Gangs as read from their objects.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::Duration as Span;
use lockstep_api::names::annotations;
use lockstep_api::scheduling::PreemptionPolicy;

/// Priority of running gangs of this class as victims (`preemptionPriority` in KEP-5710, Future).
/// An annotation of the `PriorityClass`, because users could make their own workloads immune. An
/// invalid number counts as absent.
pub fn preemption_priority(class: &ObjectMeta) -> Option<i32> {
    let annotations = class.annotations.as_ref()?;
    annotations
        .get(annotations::PREEMPTION_PRIORITY)?
        .parse()
        .ok()
}

/// Longest wait of gangs of this class for checkpoints of their victims. An invalid time counts as
/// absent.
pub fn checkpoint_wait(class: &ObjectMeta) -> Option<Duration> {
    let wait = class
        .annotations
        .as_ref()?
        .get(annotations::CHECKPOINT_WAIT)?;
    let span: Span = wait.parse().ok()?;
    (!span.is_negative()).then(|| span.into())
}

/// Preemption policy of gangs of this class: the class's annotation, else its `policy`, which the
/// API server applies to pods. No workload can override it. An invalid annotation counts as absent.
pub fn preemption_policy(class: &ObjectMeta, policy: Option<&str>) -> PreemptionPolicy {
    let annotations = class.annotations.as_ref();
    let annotated = annotations
        .and_then(|a| a.get(annotations::PREEMPTION_POLICY))
        .map(String::as_str)
        .filter(|policy| ["Never", "PreemptLowerPriority"].contains(policy));
    match annotated.or(policy) {
        Some("Never") => PreemptionPolicy::Never,
        _ => PreemptionPolicy::PreemptLowerPriority,
    }
}
