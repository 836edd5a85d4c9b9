//! What a pass sees.

use std::sync::Arc;

use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_lifecycle::gangs::{Gang, gangs};
use lockstep_model::{Budget, GangView, Snapshot};

use crate::index::{Key, State, controller_uid};

/// The cluster as of one moment.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Nodes and pods.
    pub cluster: Snapshot,
    /// Our gangs, in the order of their keys.
    pub gangs: Vec<GangObjects>,
    /// Disruption budgets.
    pub budgets: Vec<Arc<Budget>>,
}

/// One gang: its pod group, and the workload that controls it.
#[derive(Clone, Debug)]
pub struct GangObjects {
    /// Namespace and name of the pod group.
    pub key: Key,
    /// The pod group.
    pub group: Arc<PodGroup>,
    /// The workload.
    pub workload: Arc<TrainingWorkload>,
    /// Priority that counts when others want its room, from its priority class.
    pub preemption_priority: Option<i32>,
}

impl Scene {
    /// Takes what a pass needs out of the index.
    pub fn of(state: &State) -> Self {
        let gangs = state.pod_groups.iter().filter_map(|(key, group)| {
            let workload = state.workload_by_uid(controller_uid(&**group)?)?;
            let class = group.spec.gang.priority_class_name.as_ref().and_then(|name| state.priority_classes.get(name));
            GangObjects::new(key, group, workload, class.and_then(|c| c.preemption_priority))
        });
        Self {
            cluster: state.model.snapshot(),
            gangs: gangs.collect(),
            budgets: state.budgets.values().cloned().collect(),
        }
    }
}

impl GangObjects {
    /// A pod group counts only under the name that its workload gives it.
    pub fn new(
        key: &Key,
        group: &Arc<PodGroup>,
        workload: &Arc<TrainingWorkload>,
        preemption_priority: Option<i32>,
    ) -> Option<Self> {
        let genuine = GangView { group, workload }.genuine();
        let (key, group, workload) = (key.clone(), Arc::clone(group), Arc::clone(workload));
        genuine.then_some(Self { key, group, workload, preemption_priority })
    }

    /// The gang's members; `None` when the spec has no such gang any more.
    pub fn gang(&self) -> Option<Gang> {
        gangs(&self.workload.spec).into_iter().find(|g| g.key == self.group.spec.gang_key)
    }
}
