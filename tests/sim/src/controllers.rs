//! Controllers of the cluster.

use std::collections::BTreeSet;

use lockstep_api::key::Key;
use lockstep_manager::stepped::WatchedKind;
use serde_json::Value;

use crate::api::{DeleteOptions, Store};

/// The garbage collectors. Returns true if an object was deleted.
pub(crate) fn collect_garbage(store: &mut Store) -> bool {
    collect_pods(store) | collect_orphans(store)
}

/// Deletes pods of nodes that do not exist (PodGC), because no kubelet reports their end.
fn collect_pods(store: &mut Store) -> bool {
    let nodes = store.all(WatchedKind::Node).map(|(key, _)| &*key.name);
    let nodes: BTreeSet<&str> = nodes.collect();
    let lost = |pod: &Value| {
        let node = pod["spec"]["nodeName"].as_str();
        node.is_some_and(|name| !nodes.contains(name))
    };
    let gone = store.all(WatchedKind::Pod).filter(|(_, pod)| lost(pod));
    let gone: Vec<Key> = gone.map(|(key, _)| key.clone()).collect();
    let options = DeleteOptions {
        grace: Some(0),
        ..DeleteOptions::default()
    };
    for key in &gone {
        let _ = store.delete("pod-garbage-collector", WatchedKind::Pod, key, &options);
    }
    !gone.is_empty()
}

/// Deletes objects without remaining owners. An owner in another namespace does not count. An owner
/// of an unknown kind (DaemonSet, Job) counts as existing.
fn collect_orphans(store: &mut Store) -> bool {
    let every = || {
        WatchedKind::ALL
            .into_iter()
            .flat_map(|kind| store.all(kind).map(move |o| (kind, o)))
    };
    let there: BTreeSet<(&str, &str)> = every()
        .filter_map(|(_, (key, object))| {
            let uid = object["metadata"]["uid"].as_str()?;
            Some((&*key.namespace, uid))
        })
        .collect();
    let elsewhere = |owner: &Value| {
        !WatchedKind::ALL
            .into_iter()
            .any(|kind| owner["kind"] == kind.as_str())
    };
    let owned = |key: &Key, owners: &[Value]| {
        owners.iter().any(elsewhere)
            || owners
                .iter()
                .filter_map(|owner| owner["uid"].as_str())
                .any(|uid| {
                    let namespaces = [&*key.namespace, ""];
                    namespaces
                        .iter()
                        .any(|namespace| there.contains(&(namespace, uid)))
                })
    };
    let orphans: Vec<(WatchedKind, Key)> = every()
        .filter(|(_, (key, object))| {
            let leaving = !object["metadata"]["deletionTimestamp"].is_null();
            let owners = object["metadata"]["ownerReferences"].as_array();
            let owners = owners.map(Vec::as_slice).unwrap_or_default();
            !leaving && !owners.is_empty() && !owned(key, owners)
        })
        .map(|(kind, (key, _))| (kind, key.clone()))
        .collect();
    for (kind, key) in &orphans {
        // The object existed a moment ago.
        let _ = store.delete("garbage-collector", *kind, key, &DeleteOptions::default());
    }
    !orphans.is_empty()
}
