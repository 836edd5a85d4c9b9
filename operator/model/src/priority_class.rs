//! Priority classes.

use lockstep_api::scheduling::PreemptionPolicy;

/// A priority class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityClass {
    /// Name.
    pub name: String,
    /// Priority of its pods.
    pub value: i32,
    /// Whether its pods may preempt.
    pub preemption: PreemptionPolicy,
    /// Priority that gangs of the class have as victims, once they run.
    pub preemption_priority: Option<i32>,
    /// Whether it is the cluster's default.
    pub default: bool,
}
