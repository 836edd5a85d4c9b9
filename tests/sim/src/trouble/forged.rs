//! Objects with false claims about themselves.

use k8s_openapi::api::core::v1::Pod;
use lockstep_api::TrainingWorkload;
use lockstep_api::key::Key;
use lockstep_manager::stepped::WatchedKind;
use serde_json::json;

use super::TENANT;
use super::users::any_member;
use crate::SimCluster;
use crate::pods::node_of;

/// A pod with the labels and annotations of a member, with or without its owner.
fn copy(c: &mut SimCluster, rng: &mut fastrand::Rng, abroad: bool, owned: bool) -> bool {
    let Some(Pod {
        metadata: meta,
        spec,
        ..
    }) = any_member(c, rng)
    else {
        return false;
    };
    let pod = Pod {
        metadata: meta.clone(),
        spec,
        ..Pod::default()
    };
    let version = c.store().version();
    let namespace = meta
        .namespace
        .as_deref()
        .filter(|_| !abroad)
        .unwrap_or(TENANT);
    let mut forged = json!({
        "metadata": {"name": format!("forged-{version}"), "namespace": namespace, "labels": meta.labels, "annotations": meta.annotations},
        "spec": {"priority": 0, "preemptionPolicy": "PreemptLowerPriority", "nodeName": node_of(&pod),
            "containers": [{"name": "c", "image": "i"}]},
    });
    if owned {
        forged["metadata"]["ownerReferences"] = json!(meta.owner_references);
    }
    let made = c.store().create("tenant", WatchedKind::Pod, forged, false);
    made.is_ok()
}

pub(super) fn member(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    copy(c, rng, false, false)
}

pub(super) fn owned(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    copy(c, rng, false, true)
}

pub(super) fn abroad(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    copy(c, rng, true, true)
}

/// Removes remaining forged pods, except pods with an existing owner, which that owner removes, and
/// pods without a claim.
pub(super) fn sweep(c: &mut SimCluster) {
    let owners: Vec<String> = c
        .list::<TrainingWorkload>()
        .into_iter()
        .filter_map(|w| w.metadata.uid)
        .collect();
    let mut pods = c.list::<Pod>();
    pods.retain(|pod| {
        let forged = pod
            .metadata
            .name
            .as_ref()
            .is_some_and(|name| name.starts_with("forged-"));
        let claimed = pod.metadata.owner_references.as_deref().unwrap_or_default();
        let abroad = pod.metadata.namespace.as_deref() == Some(TENANT);
        let lost = !claimed.is_empty() && !claimed.iter().any(|o| owners.contains(&o.uid));
        forged && (abroad || lost)
    });
    for pod in pods {
        c.remove(WatchedKind::Pod, &Key::of(&pod));
    }
}
