//! Storage filters of kube-scheduler (plugins `VolumeRestrictions` and `VolumeBinding`), with its
//! messages.

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use lockstep_api::key::Key;
use lockstep_manager::stepped::WatchedKind;
use serde_json::{Value, json};

use super::{matches_any, over};
use crate::api::{Patch, Store};

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const IN_USE: &str =
    "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";

/// Problem of a claim that the pod names.
pub(super) fn missing_claim(pod: &Pod, store: &Store) -> Option<String> {
    let mut wrong = names(pod).filter_map(|name| {
        let Some(claim) = claim_of(pod, name, store) else {
            return Some(format!("persistentvolumeclaim {name:?} not found"));
        };
        let immediate = volume_of(&claim).is_none() && !waits_for_consumer(&claim, store);
        immediate.then(|| "pod has unbound immediate PersistentVolumeClaims".to_owned())
    });
    wrong.next()
}

/// Reason against a node for a pod and its claims.
pub(super) fn filter(pod: &Pod, node: &Node, pods: &[Pod], store: &Store) -> Option<&'static str> {
    let claims = || names(pod).filter_map(|name| claim_of(pod, name, store));
    if claims().any(|claim| in_use(pod, &claim, pods)) {
        return Some(IN_USE);
    }
    let out_of_reach = |claim: PersistentVolumeClaim| {
        let volume = store.get::<PersistentVolume>(&Key::new("", volume_of(&claim)?));
        volume.filter(|volume| !reaches(volume, node))
    };
    if claims().any(|claim| out_of_reach(claim).is_some()) {
        return Some("node(s) had volume node affinity conflict");
    }
    claims()
        .any(|claim| volume_of(&claim).is_none() && !finds_volume(&claim, node, store))
        .then_some(NO_VOLUME)
}

/// Binds the waiting claims of a pod to existing volumes. Claims whose volume would be provisioned
/// stay unbound.
pub(super) fn bind(store: &mut Store, pod: &Pod, node: Option<&Node>) {
    let claims: Vec<PersistentVolumeClaim> = names(pod)
        .filter_map(|name| claim_of(pod, name, store))
        .filter(|claim| volume_of(claim).is_none())
        .collect();
    for claim in claims {
        let Some(volume) = node.and_then(|node| free_volume(&claim, node, store)) else {
            continue;
        };
        let (name, claim) = (volume.metadata.name, Key::of(&claim));
        let volume = Key::new("", name.clone().unwrap_or_default());
        let of = json!({"claimRef": {"namespace": &*claim.namespace, "name": &*claim.name}});
        write(
            store,
            WatchedKind::PersistentVolume,
            &volume,
            json!({"spec": of}),
        );
        let bound = json!({"spec": {"volumeName": name}, "metadata": {"annotations": {BIND_COMPLETED: "yes"}}});
        write(store, WatchedKind::PersistentVolumeClaim, &claim, bound);
    }
}

fn write(store: &mut Store, kind: WatchedKind, key: &Key, change: Value) {
    let written = store.patch(super::WHO, kind, key, &Patch::Merge(change), false);
    written.unwrap_or_else(|no| panic!("{}", no.message));
}

/// Names of the mounted claims.
fn names(pod: &Pod) -> impl Iterator<Item = &String> {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.filter_map(|v| Some(&v.persistent_volume_claim.as_ref()?.claim_name))
}

fn claim_of(pod: &Pod, name: &str, store: &Store) -> Option<PersistentVolumeClaim> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    store.get(&Key::new(namespace, name))
}

/// The volume to which a claim is bound.
fn volume_of(claim: &PersistentVolumeClaim) -> Option<String> {
    let notes = claim.metadata.annotations.as_ref()?;
    notes.get(BIND_COMPLETED)?;
    claim.spec.as_ref()?.volume_name.clone()
}

fn class_of(claim: &PersistentVolumeClaim, store: &Store) -> Option<StorageClass> {
    let name = claim.spec.as_ref()?.storage_class_name.as_ref()?;
    store.get(&Key::new("", name))
}

fn waits_for_consumer(claim: &PersistentVolumeClaim, store: &Store) -> bool {
    let mode = class_of(claim, store).and_then(|class| class.volume_binding_mode);
    mode.as_deref() == Some("WaitForFirstConsumer")
}

/// True if another pod with a node mounts a single-pod claim.
fn in_use(pod: &Pod, claim: &PersistentVolumeClaim, pods: &[Pod]) -> bool {
    let modes = claim
        .spec
        .iter()
        .flat_map(|s| s.access_modes.iter().flatten());
    let one_pod = modes.into_iter().any(|mode| mode == "ReadWriteOncePod");
    let mounts = |other: &Pod| {
        other.metadata.namespace == pod.metadata.namespace
            && names(other).any(|name| Some(name) == claim.metadata.name.as_ref())
    };
    let on_a_node = |other: &&Pod| other.spec.as_ref().is_some_and(|s| s.node_name.is_some());
    let mut others = pods.iter().filter(on_a_node);
    one_pod
        && others
            .any(|other| other.metadata.uid != pod.metadata.uid && !over(other) && mounts(other))
}

fn reaches(volume: &PersistentVolume, node: &Node) -> bool {
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required.as_ref());
    required.is_none_or(|a| matches_any(&a.node_selector_terms, node))
}

/// True if a claim that waits for its pod finds a volume on a node: an existing or a new one.
fn finds_volume(claim: &PersistentVolumeClaim, node: &Node, store: &Store) -> bool {
    let Some(class) = class_of(claim, store) else {
        return false;
    };
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let topologies = class.allowed_topologies.unwrap_or_default();
    let allowed = topologies.iter().any(|term| {
        let mut labels_of = term.match_label_expressions.iter().flatten();
        labels_of.all(|label| {
            let value = labels.get(&label.key);
            value.is_some_and(|value| label.values.contains(value))
        })
    });
    let makes = class.provisioner != "kubernetes.io/no-provisioner";
    free_volume(claim, node, store).is_some() || (makes && (topologies.is_empty() || allowed))
}

/// A volume of the claim's class on a node that is free or reserved for the claim.
fn free_volume(
    claim: &PersistentVolumeClaim,
    node: &Node,
    store: &Store,
) -> Option<PersistentVolume> {
    let class = claim.spec.as_ref()?.storage_class_name.as_ref()?;
    let volumes = store.list::<PersistentVolume>();
    volumes.into_iter().find(|volume| {
        let spec = volume.spec.clone().unwrap_or_default();
        let taken = spec.claim_ref.is_some_and(|of| {
            of.namespace != claim.metadata.namespace || of.name != claim.metadata.name
        });
        spec.storage_class_name.as_ref() == Some(class) && !taken && reaches(volume, node)
    })
}
