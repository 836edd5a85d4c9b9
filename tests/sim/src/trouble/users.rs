//! Actions of users and administrators.

use k8s_openapi::api::core::v1::Pod;
use lockstep_api::TrainingWorkload;
use lockstep_api::key::Key;
use lockstep_api::names::{annotations, labels};
use lockstep_manager::stepped::WatchedKind;
use serde_json::{Value, json};

use super::{CLASSES, NAMESPACE, TENANT, one_of, workload};
use crate::SimCluster;
use crate::api::Patch;
use crate::pods::leaving;

/// Kinds of objects that workloads own.
const OWNED: [WatchedKind; 6] = [
    WatchedKind::Pod,
    WatchedKind::Pod,
    WatchedKind::Service,
    WatchedKind::PodGroup,
    WatchedKind::Workload,
    WatchedKind::RestartOrder,
];
/// Most workloads at once.
const MOST_WORKLOADS: usize = 4;

pub(super) fn any_workload(c: &SimCluster, rng: &mut fastrand::Rng) -> Option<Key> {
    let all = c.list::<TrainingWorkload>();
    let there = all
        .iter()
        .filter(|w| w.metadata.deletion_timestamp.is_none());
    one_of(there.map(Key::of).collect(), rng)
}

/// A pod of a workload that is not terminating.
pub(super) fn any_member(c: &SimCluster, rng: &mut fastrand::Rng) -> Option<Pod> {
    let mut pods = c.list::<Pod>();
    pods.retain(|pod| {
        let mut owners = pod.metadata.owner_references.iter().flatten();
        let ours = owners.any(|o| o.kind == "TrainingWorkload" && o.controller == Some(true));
        ours && !leaving(pod) && pod.metadata.namespace.as_deref() != Some(TENANT)
    });
    one_of(pods, rng)
}

fn edit(
    c: &mut SimCluster,
    rng: &mut fastrand::Rng,
    change: impl FnOnce(&mut TrainingWorkload, &mut fastrand::Rng),
) -> bool {
    let Some(key) = any_workload(c, rng) else {
        return false;
    };
    c.edit::<TrainingWorkload>(&key, |w| change(w, rng));
    true
}

/// A name for a further workload. `None` if there are enough.
pub(super) fn free_name(c: &SimCluster) -> Option<String> {
    if c.list::<TrainingWorkload>().len() >= MOST_WORKLOADS {
        return None;
    }
    let free = |name: &String| {
        c.get::<TrainingWorkload>(&Key::new(NAMESPACE, name))
            .is_none()
    };
    (0..=MOST_WORKLOADS).map(|n| format!("w{n}")).find(free)
}

pub(super) fn new_workload(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let Some(name) = free_name(c) else {
        return false;
    };
    let object = workload(&name, rng);
    let made = c
        .store()
        .create("user", WatchedKind::TrainingWorkload, object, false);
    made.is_ok()
}

pub(super) fn delete_workload(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let key = any_workload(c, rng);
    if let Some(key) = &key {
        c.delete(WatchedKind::TrainingWorkload, key);
    }
    key.is_some()
}

pub(super) fn suspend(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    edit(c, rng, |w, _| w.spec.suspend = !w.spec.suspend)
}

/// A stop that waits for checkpoints is cancelled.
pub(super) fn suspend_briefly(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let Some(key) = any_workload(c, rng) else {
        return false;
    };
    c.edit::<TrainingWorkload>(&key, |w| w.spec.suspend = true);
    for _ in 0..rng.usize(1..4) {
        c.round();
        c.later(1);
    }
    c.edit::<TrainingWorkload>(&key, |w| w.spec.suspend = false);
    true
}

pub(super) fn nonce(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    edit(c, rng, |w, _| w.spec.restart_nonce += 1)
}

pub(super) fn request_checkpoint(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    edit(c, rng, |w, rng| {
        let all = w.metadata.annotations.get_or_insert_default();
        let id = format!("u{}", rng.u8(..));
        all.insert(annotations::REQUEST_CHECKPOINT.into(), id);
    })
}

pub(super) fn resize(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    edit(c, rng, |w, rng| {
        w.spec.groups[0].replicas = Some(rng.i32(1..4));
    })
}

pub(super) fn delete_pod(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let pod = any_member(c, rng);
    if let Some(pod) = &pod {
        c.delete(WatchedKind::Pod, &Key::of(pod));
    }
    pod.is_some()
}

pub(super) fn evict_pod(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    any_member(c, rng).is_some_and(|pod| c.evict(&pod).is_ok())
}

/// Most pods that are kept at once.
const MOST_KEPT: usize = 2;
const FINALIZER: &str = "example.com/audit";

pub(super) fn finalizer(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let kept = kept_pods(c);
    if let Some(pod) = one_of(kept.clone(), rng).filter(|_| kept.len() >= MOST_KEPT) {
        release(c, &pod);
        return true;
    }
    let Some(pod) = any_member(c, rng) else {
        return false;
    };
    let key = Key::of(&pod);
    c.edit::<Pod>(&key, |pod| {
        pod.metadata.finalizers = Some(vec![FINALIZER.into()]);
    });
    c.delete(WatchedKind::Pod, &key);
    true
}

/// Pods with a finalizer.
pub(super) fn kept_pods(c: &SimCluster) -> Vec<Pod> {
    let mut pods = c.list::<Pod>();
    pods.retain(|pod| pod.metadata.finalizers.is_some());
    pods
}

/// Removes the finalizer of a pod, and the pod, if nothing else keeps it.
pub(super) fn release(c: &mut SimCluster, pod: &Pod) {
    let key = Key::of(pod);
    c.edit::<Pod>(&key, |pod| pod.metadata.finalizers = None);
    if pod.metadata.deletion_grace_period_seconds == Some(0) {
        c.remove(WatchedKind::Pod, &key);
    }
}

/// A random object of a kind, outside the tenant's namespace.
fn any_owned(c: &SimCluster, kind: WatchedKind, rng: &mut fastrand::Rng) -> Option<Key> {
    let mut keys: Vec<Key> = c.store().all(kind).map(|(key, _)| key.clone()).collect();
    keys.retain(|key| &*key.namespace != TENANT);
    one_of(keys, rng)
}

pub(super) fn delete_owned(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let kind = OWNED[rng.usize(2..OWNED.len())];
    let key = any_owned(c, kind, rng);
    if let Some(key) = &key {
        c.delete(kind, key);
    }
    key.is_some()
}

pub(super) fn other_hash_version(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let Some(key) = any_workload(c, rng) else {
        return false;
    };
    let hash = format!("0-{:08x}", rng.u32(..));
    record_hash(c, &key, &hash)
}

/// Records this hash of the spec in the status of a workload and on its pods. False if the workload
/// has no hash.
pub fn record_hash(c: &mut SimCluster, key: &Key, hash: &str) -> bool {
    let mut uid = None;
    c.edit::<TrainingWorkload>(key, |workload| {
        if let Some(applied) = workload.status.as_mut().and_then(|s| s.applied.as_mut()) {
            hash.clone_into(&mut applied.spec_hash);
            uid.clone_from(&workload.metadata.uid);
        }
    });
    let Some(uid) = uid else {
        return false;
    };
    for pod in c.list::<Pod>() {
        let mut owners = pod.metadata.owner_references.iter().flatten();
        if owners.any(|owner| owner.uid == uid) {
            c.edit::<Pod>(&Key::of(&pod), |pod| {
                let present = pod.metadata.annotations.get_or_insert_default();
                present.insert(annotations::SPEC_HASH.into(), hash.to_owned());
            });
        }
    }
    true
}

pub(super) fn edit_labels(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let kind = OWNED[rng.usize(..OWNED.len())];
    let Some(key) = any_owned(c, kind, rng) else {
        return false;
    };
    let ours = [
        labels::WORKLOAD_UID,
        labels::GROUP,
        labels::REPLICA,
        labels::POD_GROUP,
    ];
    let label = ours[rng.usize(..ours.len())];
    let value = if rng.bool() {
        json!("other")
    } else {
        Value::Null
    };
    let patch = Patch::Merge(json!({"metadata": {"labels": {label: value}}}));
    c.store().patch("user", kind, &key, &patch, false).is_ok()
}

pub(super) fn class_gone(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let (name, _) = CLASSES[rng.usize(..CLASSES.len())];
    let key = Key::new("", name);
    let there = c.store().raw(WatchedKind::PriorityClass, &key).is_some();
    if there {
        c.delete(WatchedKind::PriorityClass, &key);
    }
    there
}

pub(super) fn class_anew(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let (name, value) = CLASSES[rng.usize(..CLASSES.len())];
    let key = Key::new("", name);
    if c.store().raw(WatchedKind::PriorityClass, &key).is_some() {
        c.delete(WatchedKind::PriorityClass, &key);
    }
    make_class(c, name, value + [5, 15, -15][rng.usize(..3)])
}

/// Creates a missing class. Returns true if it was missing.
pub(super) fn make_class(c: &mut SimCluster, name: &str, value: i32) -> bool {
    let policy = if name == "never" {
        json!("Never")
    } else {
        Value::Null
    };
    let class = json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": policy});
    let made = c
        .store()
        .create("user", WatchedKind::PriorityClass, class, false);
    made.is_ok()
}

pub(super) fn claim_made(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    any_workload(c, rng).is_some_and(|key| {
        let claim = Key::new(NAMESPACE, format!("data-{}", key.name));
        c.store().make_claim(&claim, true)
    })
}
