//! Kueue's objects in the index.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use lockstep_api::ids::Uid;
use lockstep_api::key::Key;
use lockstep_api::kueue::KueueWorkload;
use lockstep_lifecycle::view::{Held, KueueAccess, KueueClasses, KueueView};

use super::watched_kind::WatchedKind;

/// Kinds without which no decision about quota is made.
pub(super) const NEEDED: [WatchedKind; 3] = [
    WatchedKind::KueueWorkload,
    WatchedKind::ResourceFlavor,
    WatchedKind::WorkloadPriorityClass,
];

#[derive(Debug, Default)]
pub struct KueueTable {
    pub(super) access: KueueAccess,
    /// Version that is watched.
    pub(super) version: Option<String>,
    pub(super) listed: BTreeSet<WatchedKind>,
    pub(super) workloads: BTreeMap<Key, OwnedWorkload>,
    pub(super) by_owner: HashMap<Uid, BTreeSet<Key>>,
    pub(super) classes: Arc<KueueClasses>,
}

/// A Kueue Workload of a workload.
#[derive(Debug)]
pub(super) struct OwnedWorkload {
    pub(super) owner: Uid,
    /// Key of its owner, which may be gone.
    pub(super) of: Key,
    pub(super) held: Held<KueueWorkload>,
}

/// A Kueue Workload whose owner is gone.
#[derive(Clone, Debug)]
pub struct OrphanedQuota {
    pub name: String,
    pub held: Held<KueueWorkload>,
    /// Tells the served version.
    pub access: KueueAccess,
    /// True if a pod of the owner may still use capacity.
    pub in_use: bool,
}

impl KueueTable {
    pub(super) fn count(&self, kind: WatchedKind) -> usize {
        match kind {
            WatchedKind::ResourceFlavor => self.classes.flavors.len(),
            WatchedKind::WorkloadPriorityClass => self.classes.priorities.len(),
            _ => self.workloads.len(),
        }
    }

    /// Forgets all objects. `version`: the one that is watched from now on.
    pub(super) fn reset(version: Option<String>) -> Self {
        Self {
            access: match version {
                Some(_) => KueueAccess::Unread,
                None => KueueAccess::NotServed,
            },
            version,
            ..Self::default()
        }
    }

    pub(super) fn view(&self, namespace: &str, workload: &Uid) -> KueueView {
        let own = self.by_owner.get(workload).into_iter().flatten();
        let own = own.filter(|key| *key.namespace == *namespace);
        let workloads = own.filter_map(|key| {
            let entry = self.workloads.get(key)?;
            Some((key.name.to_string(), entry.held.clone()))
        });
        KueueView {
            access: self.access.clone(),
            workloads: workloads.collect(),
            classes: self.classes.clone(),
        }
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<OwnedWorkload> {
        let old = self.workloads.remove(key)?;
        if let Some(keys) = self.by_owner.get_mut(&old.owner) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_owner.remove(&old.owner);
            }
        }
        Some(old)
    }
}
