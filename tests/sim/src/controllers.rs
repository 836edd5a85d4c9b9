//! What controllers of the cluster do by themselves.

use std::collections::BTreeSet;

use lockstep_api::key::Key;
use lockstep_manager::stepped::WatchedKind;

use crate::api::{DeleteOptions, Store};

/// The garbage collector: deletes what has owners of which none is there any more; whether anything
/// was deleted.
pub(crate) fn collect_garbage(store: &mut Store) -> bool {
    let uids: BTreeSet<String> = WatchedKind::ALL
        .into_iter()
        .flat_map(|kind| store.all(kind))
        .filter_map(|(_, object)| object["metadata"]["uid"].as_str().map(str::to_owned))
        .collect();
    let mut orphans: Vec<(WatchedKind, Key)> = Vec::new();
    for kind in WatchedKind::ALL {
        for (key, object) in store.all(kind) {
            let Some(owners) = object["metadata"]["ownerReferences"].as_array() else {
                continue;
            };
            let there = |owner: &serde_json::Value| {
                owner["uid"].as_str().is_some_and(|uid| uids.contains(uid))
            };
            let leaving = !object["metadata"]["deletionTimestamp"].is_null();
            if !owners.is_empty() && !leaving && !owners.iter().any(there) {
                orphans.push((kind, key.clone()));
            }
        }
    }
    for (kind, key) in &orphans {
        // Deletes of what was there a moment ago.
        let _ = store.delete("garbage-collector", *kind, key, &DeleteOptions::default());
    }
    !orphans.is_empty()
}
