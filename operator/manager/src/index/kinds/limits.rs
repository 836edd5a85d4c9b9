//! Storage and quotas, for which gangs may wait, and namespaces, whose weights order the queue.

use std::sync::Arc;

use lockstep_model::Quota;
use lockstep_model::common::unreadable::present;
use lockstep_model::parse::quota_partial::{PartialNamespace, PartialQuota};
use lockstep_model::parse::volumes_partial::{PartialClaim, PartialStorageClass, PartialVolume};
use lockstep_model::volumes::{Claim, StorageClass, Volume};

use super::super::state::{Key, State, Touched};
use super::super::watched_kind::WatchedKind;
use super::{AgentSelector, Watched};

pub(in crate::index) struct Claims;

impl Watched for Claims {
    type Received = PartialClaim;
    type Object = Claim;
    const KIND: WatchedKind = WatchedKind::PersistentVolumeClaim;

    fn read(received: PartialClaim) -> Result<Claim, String> {
        received.scheduling().map_err(|error| error.to_string())
    }

    fn apply(state: &mut State, _: &AgentSelector, key: Key, claim: Claim, touched: &mut Touched) {
        let old = state.storage.claims.insert(key.clone(), claim);
        if old.as_ref() != state.storage.claims.get(&key) {
            claim_changed(state, &key, touched);
        }
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if state.storage.claims.remove(key).is_some() {
            claim_changed(state, key, touched);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.storage.claims.keys().cloned().collect()
    }
}

fn claim_changed(state: &mut State, claim: &Key, touched: &mut Touched) {
    let namespace = Some(&*claim.namespace);
    state.read_gangs_with(namespace, |v| v.claims.contains(&*claim.name), touched);
}

pub(in crate::index) struct Volumes;

impl Watched for Volumes {
    type Received = PartialVolume;
    type Object = (String, Volume);
    const KIND: WatchedKind = WatchedKind::PersistentVolume;

    fn read(received: PartialVolume) -> Result<Self::Object, String> {
        let volume = received.scheduling().map_err(|error| error.to_string())?;
        let name =
            present("name", received.metadata.name.as_ref()).map_err(|error| error.to_string())?;
        Ok((name.clone(), volume))
    }

    fn apply(
        state: &mut State,
        _: &AgentSelector,
        _: Key,
        (name, volume): Self::Object,
        touched: &mut Touched,
    ) {
        if state.storage.volumes.get(&name) != Some(&volume) {
            let old = (state.storage.volumes).insert(name.clone(), volume.clone());
            free_changed(state, &name, old.as_ref(), Some(&volume), touched);
            for volume in old.into_iter().chain([volume]) {
                volume_changed(state, &volume, touched);
            }
        }
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if let Some(old) = state.storage.volumes.remove(&*key.name) {
            free_changed(state, &key.name, Some(&old), None, touched);
            volume_changed(state, &old, touched);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.storage.volumes.keys().map(cluster_key).collect()
    }
}

/// Reads all gangs with volumes again if this volume decides whether its class has a free volume.
/// Most changes concern bound volumes.
fn free_changed(
    state: &mut State,
    name: &str,
    old: Option<&Volume>,
    new: Option<&Volume>,
    touched: &mut Touched,
) {
    let class_if_free = |v: Option<&Volume>| v.filter(|v| v.is_free()).map(|v| v.class.clone());
    let (old, new) = (class_if_free(old), class_if_free(new));
    if old == new {
        return;
    }
    let storage = &state.storage;
    let mut choosy = old.iter().chain(&new).filter(|c| storage.is_choosy(c));
    if choosy.any(|class| !storage.has_free_beside(class, name)) {
        state.read_gangs_with(None, |v| !v.is_empty(), touched);
    }
}

/// Reads the gangs of the volume's claim again. Without its StorageClass, also gangs with ephemeral
/// volumes of that class.
fn volume_changed(state: &mut State, volume: &Volume, touched: &mut Touched) {
    if let Some(claim) = &volume.claim {
        claim_changed(state, claim, touched);
    }
    if !volume.class.is_empty() && !state.storage.classes.contains_key(&volume.class) {
        state.read_gangs_with(None, |v| v.classes.contains(&volume.class), touched);
    }
}

pub(in crate::index) struct StorageClasses;

impl Watched for StorageClasses {
    type Received = PartialStorageClass;
    type Object = StorageClass;
    const KIND: WatchedKind = WatchedKind::StorageClass;

    fn read(received: PartialStorageClass) -> Result<StorageClass, String> {
        received.scheduling().map_err(|error| error.to_string())
    }

    fn apply(
        state: &mut State,
        _: &AgentSelector,
        key: Key,
        class: StorageClass,
        touched: &mut Touched,
    ) {
        if state.storage.classes.get(&*key.name) != Some(&class) {
            state.storage.classes.insert(key.name.to_string(), class);
            state.read_gangs_with(None, |v| !v.is_empty(), touched);
        }
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if state.storage.classes.remove(&*key.name).is_some() {
            state.read_gangs_with(None, |v| !v.is_empty(), touched);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.storage.classes.keys().map(cluster_key).collect()
    }
}

pub(in crate::index) struct Quotas;

impl Watched for Quotas {
    type Received = PartialQuota;
    type Object = Quota;
    const KIND: WatchedKind = WatchedKind::ResourceQuota;

    fn read(received: PartialQuota) -> Result<Quota, String> {
        received.scheduling().map_err(|error| error.to_string())
    }

    fn apply(state: &mut State, _: &AgentSelector, key: Key, quota: Quota, touched: &mut Touched) {
        if state.quotas.get(&key).is_none_or(|old| **old != quota) {
            touched.scheduler |= state.has_gangs(&key.namespace);
            state.quotas.insert(key, Arc::new(quota));
        }
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if state.quotas.remove(key).is_some() {
            touched.scheduler |= state.has_gangs(&key.namespace);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.quotas.keys().cloned().collect()
    }
}

pub(in crate::index) struct Namespaces;

impl Watched for Namespaces {
    type Received = PartialNamespace;
    type Object = Option<u64>;
    const KIND: WatchedKind = WatchedKind::Namespace;

    fn read(received: PartialNamespace) -> Result<Option<u64>, String> {
        received.weight().map_err(|error| error.to_string())
    }

    fn apply(
        state: &mut State,
        _: &AgentSelector,
        key: Key,
        weight: Option<u64>,
        touched: &mut Touched,
    ) {
        set_weight(state, &key.name, weight, touched);
        state.namespaces.insert(key.name.to_string());
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        set_weight(state, &key.name, None, touched);
        state.namespaces.remove(&*key.name);
    }

    fn keys(state: &State) -> Vec<Key> {
        state.namespaces.iter().map(cluster_key).collect()
    }
}

fn set_weight(state: &mut State, namespace: &str, weight: Option<u64>, touched: &mut Touched) {
    if state.weights.get(namespace).copied() == weight {
        return;
    }
    let weights = Arc::make_mut(&mut state.weights);
    match weight {
        Some(weight) => weights.insert(namespace.to_owned(), weight),
        None => weights.remove(namespace),
    };
    touched.scheduler = true;
}

fn cluster_key(name: &String) -> Key {
    Key::new("", name)
}
