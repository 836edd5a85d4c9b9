//! Gangs as read from their objects.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::names::annotations;

/// Whether a gang may have or get capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GangPhase {
    /// Ended, or being deleted. Its pods are deleted, and no capacity is kept.
    Finished,
    /// Requests no capacity now, for this reason.
    NotRequesting(&'static str),
    /// Requests capacity, or has it.
    Active,
}

/// Priority of running gangs of this class as victims (`preemptionPriority` in the future section
/// of KEP-5710). An annotation of the `PriorityClass`, because users could make their own workloads
/// immune. An invalid number counts as absent.
pub fn preemption_priority(class: &ObjectMeta) -> Option<i32> {
    class
        .annotations
        .as_ref()?
        .get(annotations::PREEMPTION_PRIORITY)?
        .parse()
        .ok()
}
