//! Pods of other controllers.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lockstep_api::key::Key;
use lockstep_manager::stepped::WatchedKind;
use serde_json::{Value, json};

use super::users::any_workload;
use super::{NAMESPACE, TENANT, one_of};
use crate::SimCluster;
use crate::api::merge;

/// Label of all foreign objects.
const FOREIGN: &str = "foreign";
/// Most foreign pods at once.
const MOST: usize = 6;

fn node(c: &SimCluster, rng: &mut fastrand::Rng) -> String {
    one_of(c.node_names(), rng).unwrap_or_default()
}

/// Creates a foreign pod, whatever capacity is free.
fn pod(c: &mut SimCluster, rng: &mut fastrand::Rng, more: &Value) -> bool {
    let mut store = c.store();
    let there = store
        .all(WatchedKind::Pod)
        .filter(|(_, pod)| !pod["metadata"]["labels"][FOREIGN].is_null());
    if there.count() >= MOST {
        return false;
    }
    let gpus = rng.i64(0..3).to_string();
    let priority = [-10, 0, 15, 1000][rng.usize(..4)];
    let container = json!({"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": gpus, "cpu": "1"}}});
    let mut pod = json!({
        "metadata": {"name": format!("foreign-{}", store.version()), "namespace": TENANT, "labels": {FOREIGN: "yes"}},
        "spec": {"priority": priority, "preemptionPolicy": "PreemptLowerPriority", "containers": [container]},
    });
    merge(&mut pod, more);
    store.create("tenant", WatchedKind::Pod, pod, false).is_ok()
}

pub(super) fn overcommit(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let node = node(c, rng);
    pod(c, rng, &json!({"spec": {"nodeName": node}}))
}

pub(super) fn daemon(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "ds", "uid": "ds", "controller": true});
    let node = node(c, rng);
    let more = json!({"metadata": {"ownerReferences": [owner]}, "spec": {"nodeName": node, "priority": 0}});
    pod(c, rng, &more)
}

pub(super) fn names_node(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node(c, rng)]});
    let terms = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": terms});
    let gates = json!([{"name": "example.com/never"}]);
    let spec = json!({"affinity": {"nodeAffinity": required}, "schedulingGates": gates});
    pod(c, rng, &json!({ "spec": spec }))
}

pub(super) fn nominated(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let node = node(c, rng);
    let gates = json!([{"name": "example.com/never"}]);
    pod(
        c,
        rng,
        &json!({"spec": {"schedulingGates": gates}, "status": {"nominatedNodeName": node}}),
    )
}

pub(super) fn with_resource_claim(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let claims = json!([{"name": "gpu", "resourceClaimName": "gpu"}]);
    let node = node(c, rng);
    pod(
        c,
        rng,
        &json!({"spec": {"nodeName": node, "resourceClaims": claims}}),
    )
}

pub(super) fn guarded(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let key = Key::new(TENANT, "guard");
    if c.store()
        .raw(WatchedKind::PodDisruptionBudget, &key)
        .is_none()
    {
        let budget = json!({"metadata": {"name": &*key.name, "namespace": TENANT},
            "spec": {"selector": {"matchLabels": {"guarded": "yes"}}},
            "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}});
        let made = c
            .store()
            .create("tenant", WatchedKind::PodDisruptionBudget, budget, false);
        made.unwrap_or_else(|no| panic!("{}", no.message));
    }
    let node = node(c, rng);
    let labels = json!({"guarded": "yes"});
    pod(
        c,
        rng,
        &json!({"metadata": {"labels": labels}, "spec": {"nodeName": node, "priority": 0}}),
    )
}

pub(super) fn gang(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let index = "batch.kubernetes.io/job-completion-index";
    let name = json!({"batch.kubernetes.io/job-name": "foreign", "batch.kubernetes.io/controller-uid": "job"});
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "foreign", "uid": "job", "controller": true});
    (0..2).fold(false, |made, at| {
        let node = node(c, rng);
        let mut labels = name.clone();
        labels[index] = json!(at.to_string());
        let meta = json!({"labels": labels, "ownerReferences": [owner]});
        let more = json!({"metadata": meta, "spec": {"nodeName": node, "priority": 0}});
        pod(c, rng, &more) | made
    })
}

/// Two pods of a Kueue group, which has no controller.
pub(super) fn kueue_group(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let group = format!("foreign-{}", c.store().version());
    let labels = json!({"kueue.x-k8s.io/pod-group-name": group, "kueue.x-k8s.io/managed": "true"});
    (0..2).fold(false, |made, _| {
        let node = node(c, rng);
        let more =
            json!({"metadata": {"labels": labels}, "spec": {"nodeName": node, "priority": 0}});
        pod(c, rng, &more) | made
    })
}

/// A pod beside the members, which their label selectors include.
pub(super) fn namesake(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let Some(workload) = any_workload(c, rng) else {
        return false;
    };
    let (node, labels) = (node(c, rng), json!({"app": &*workload.name}));
    let meta = json!({"namespace": NAMESPACE, "labels": labels});
    pod(
        c,
        rng,
        &json!({"metadata": meta, "spec": {"nodeName": node}}),
    )
}

/// Keys of the foreign pods.
fn all(c: &SimCluster) -> Vec<Key> {
    let store = c.store();
    let pods = store.all(WatchedKind::Pod);
    pods.filter(|(_, pod)| !pod["metadata"]["labels"][FOREIGN].is_null())
        .map(|(key, _)| key.clone())
        .collect()
}

/// A pod gets another amount of CPU while it runs.
pub(super) fn resize(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let Some(key) = one_of(all(c), rng) else {
        return false;
    };
    let cpu = ["1", "2", "16"][rng.usize(..3)];
    c.edit::<Pod>(&key, |pod| {
        let containers = pod.spec.iter_mut().flat_map(|spec| &mut spec.containers);
        for container in containers {
            let resources = container.resources.get_or_insert_default();
            let limits = resources.limits.get_or_insert_default();
            limits.insert("cpu".into(), Quantity(cpu.into()));
        }
    });
    true
}

pub(super) fn gone(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let Some(key) = one_of(all(c), rng) else {
        return false;
    };
    c.remove(WatchedKind::Pod, &key);
    true
}
