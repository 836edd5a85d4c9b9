use std::time::Duration;

use lockstep_api::scheduling::PreemptionPolicy;
use thiserror::Error;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityClass {
    pub name: String,
    pub value: i32,
    pub preemption: PreemptionPolicy,
    /// Priority of running gangs of the class as victims.
    pub preemption_priority: Option<i32>,
    /// Longest wait of its gangs for checkpoints of their victims.
    pub checkpoint_wait: Option<Duration>,
    /// True if it is the cluster's default.
    pub default: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no priority class {0:?}")]
pub struct NoSuchClass(pub String);

impl PriorityClass {
    /// The class with this name. Without a name, the cluster's default class with the lowest value,
    /// as for pods.
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
