//! Priority classes.

use lockstep_api::scheduling::PreemptionPolicy;
use thiserror::Error;

/// A priority class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityClass {
    /// Name.
    pub name: String,
    /// Priority of its pods.
    pub value: i32,
    /// Whether its pods may preempt.
    pub preemption: PreemptionPolicy,
    /// Priority of running gangs of the class as victims.
    pub preemption_priority: Option<i32>,
    /// True if it is the cluster's default.
    pub default: bool,
}

/// No class has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no priority class {0:?}")]
pub struct NoSuchClass(pub String);

impl PriorityClass {
    /// The class with this name. Without a name, the cluster's default, if any. Of several
    /// defaults, the one with the lowest value, as for pods.
    ///
    /// # Errors
    /// If no class has the name.
    pub fn resolve<'c>(
        name: Option<&str>,
        mut classes: impl Iterator<Item = &'c Self>,
    ) -> Result<Option<&'c Self>, NoSuchClass> {
        let Some(name) = name else {
            return Ok(classes.filter(|c| c.default).min_by_key(|c| c.value));
        };
        let class = classes.find(|c| c.name == name);
        class.map(Some).ok_or_else(|| NoSuchClass(name.to_owned()))
    }
}
