//! What controllers of the cluster do by themselves.

use std::collections::BTreeSet;

use lockstep_api::key::Key;
use lockstep_manager::stepped::WatchedKind;
use serde_json::Value;

use crate::api::{DeleteOptions, Store};

/// The collectors of garbage; whether anything was deleted.
pub(crate) fn collect_garbage(store: &mut Store) -> bool {
    collect_pods(store) | collect_orphans(store)
}

/// Pods of nodes that are there no more (PodGC): nobody else would ever say that they have ended.
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

/// The garbage collector: deletes what has owners of which none is there any more. An owner of another
/// namespace is none; one of a kind that the store does not have, a DaemonSet or a Job, is taken to be
/// there.
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
            .any(|kind| owner["kind"] == kind.name())
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
        // Deletes of what was there a moment ago.
        let _ = store.delete("garbage-collector", *kind, key, &DeleteOptions::default());
    }
    !orphans.is_empty()
}
