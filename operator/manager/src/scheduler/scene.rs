//! What a pass sees.

use std::sync::Arc;

use lockstep_api::names::{MANAGED_BY, pod_group_name};
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_lifecycle::gangs::{Gang, gangs};
use lockstep_model::{Budget, Snapshot};

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
}

impl Scene {
    /// Takes what a pass needs out of the index.
    pub fn of(state: &State) -> Self {
        let gangs = state.pod_groups.iter().filter_map(|(key, group)| {
            let workload = state.workload_by_uid(controller_uid(&**group)?)?;
            GangObjects::new(key, group, workload)
        });
        Self {
            cluster: state.model.snapshot(),
            gangs: gangs.collect(),
            budgets: state.budgets.values().cloned().collect(),
        }
    }
}

impl GangObjects {
    /// A pod group counts only under the name that its workload gives it, so that nobody can add one.
    pub fn new(key: &Key, group: &Arc<PodGroup>, workload: &Arc<TrainingWorkload>) -> Option<Self> {
        let (name, uid) = (workload.metadata.name.as_deref()?, workload.metadata.uid.as_deref()?);
        let genuine = workload.metadata.namespace.as_deref() == Some(&key.namespace)
            && workload.spec.managed_by == MANAGED_BY
            && pod_group_name(name, uid, &group.spec.gang_key) == key.name;
        genuine.then(|| Self { key: key.clone(), group: Arc::clone(group), workload: Arc::clone(workload) })
    }

    /// The gang's members; `None` when the spec has no such gang any more.
    pub fn gang(&self) -> Option<Gang> {
        gangs(&self.workload.spec).into_iter().find(|g| g.key == self.group.spec.gang_key)
    }
}
