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
    /// Priority that gangs of the class have as victims, once they run.
    pub preemption_priority: Option<i32>,
    /// Whether it is the cluster's default.
    pub default: bool,
}

/// There is no class of this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no priority class {0:?}")]
pub struct NoSuchClass(pub String);

impl PriorityClass {
    /// The class of what names this one; of what names none the cluster's default, if it has one. Of
    /// several that say so the one of the lowest value counts, as for pods.
    ///
    /// # Errors
    /// Where no class has the name.
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
