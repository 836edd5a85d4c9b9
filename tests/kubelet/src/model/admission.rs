//! Admission of pods on a node. A refused pod fails at once, with a reason, and never runs.

use lockstep_model::pods::resources::Resources;

use super::FEATURE_RESTART_ALL;
use super::pod::PodDesc;

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// `status.reason`, such as `OutOfcpu`.
    pub reason: String,
    /// Text of `status.message` after "Pod was rejected: ".
    pub message: String,
}

/// Admits the pod on a node with these features and resources, of which other pods use `used`, or
/// refuses it.
///
/// The wording is that of `lifecycle.predicateAdmitHandler` and of the declared-features handler
/// (KEP-5328).
pub fn admit(
    pod: &PodDesc,
    requests: &Resources,
    features: &[String],
    allocatable: &Resources,
    used: &dyn Fn(&str) -> i64,
) -> Result<(), Rejection> {
    if pod.has_restart_all_rule() && !features.iter().any(|f| f == FEATURE_RESTART_ALL) {
        return Err(Rejection {
            reason: "PodFeatureUnsupported".into(),
            message: format!(
                "Pod requires node features that are not available: {FEATURE_RESTART_ALL}"
            ),
        });
    }
    for (name, requested) in requests.iter() {
        let (in_use, capacity) = (used(name), allocatable.get(name));
        if requested > capacity - in_use {
            return Err(Rejection {
                reason: format!("OutOf{name}"),
                message: format!(
                    "Node didn't have enough resource: {name}, requested: {requested}, used: {in_use}, capacity: {capacity}"
                ),
            });
        }
    }
    Ok(())
}
