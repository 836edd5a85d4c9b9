//! The manager writes only its own objects, and identifies them by UID or version (I4).

use std::collections::BTreeMap;

use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_manager::stepped::WatchedKind;
use serde_json::Value;

use crate::api::{Verb, Write};

pub(super) fn judge(
    write: &Write,
    workloads: &BTreeMap<String, TrainingWorkload>,
    groups: &BTreeMap<String, PodGroup>,
) -> Vec<String> {
    let mut broken = Vec::new();
    if !write.guarded {
        broken.push("the request names neither UID nor version".to_owned());
    }
    let owned = owner(&write.object).is_some_and(|uid| {
        let workload = workloads.get(uid);
        workload.is_some_and(|w| w.metadata.namespace.as_deref() == Some(&write.key.namespace))
    });
    let removes = matches!(write.verb, Verb::Evict | Verb::Delete | Verb::Gone)
        || write.who == "scheduler" && write.verb == Verb::UpdateStatus;
    let may = match write.kind {
        WatchedKind::TrainingWorkload => {
            write.who == "controller" && write.verb == Verb::UpdateStatus
                || matches!(write.verb, Verb::Delete | Verb::Gone)
        }
        WatchedKind::Pod
        | WatchedKind::PodGroup
        | WatchedKind::Workload
        | WatchedKind::NativeWorkload
        | WatchedKind::NativePodGroup
        | WatchedKind::KueueWorkload
        | WatchedKind::Service
        | WatchedKind::RestartOrder => {
            owned || write.kind == WatchedKind::Pod && removes && is_victim(&write.uid, groups)
        }
        WatchedKind::ProvisioningRequest | WatchedKind::PodTemplate => owned,
        // Budgets count evictions: the API server writes in the name of the requester.
        WatchedKind::PodDisruptionBudget => write.verb == Verb::UpdateStatus,
        WatchedKind::Node
        | WatchedKind::NodeAgent
        | WatchedKind::PriorityClass
        | WatchedKind::PersistentVolumeClaim
        | WatchedKind::PersistentVolume
        | WatchedKind::StorageClass
        | WatchedKind::ResourceQuota
        | WatchedKind::ResourceFlavor
        | WatchedKind::WorkloadPriorityClass
        | WatchedKind::Namespace => false,
    };
    if !may {
        broken.push("it is not the manager's to write".to_owned());
    }
    broken
}

pub(super) fn owner(object: &Value) -> Option<&str> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    let controller = owners.iter().find(|o| o["controller"] == true)?;
    let ours = controller["kind"] == "TrainingWorkload";
    controller["uid"].as_str().filter(|_| ours)
}

fn is_victim(uid: &str, groups: &BTreeMap<String, PodGroup>) -> bool {
    let intents = groups
        .values()
        .filter_map(|g| g.status.as_ref()?.preemption.as_ref());
    intents
        .flat_map(|intent| &intent.victims)
        .any(|victim| victim.uid == uid)
}
