//! Kueue's objects in the index.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockstep_api::ids::Uid;
use lockstep_api::key::Key;
use lockstep_api::kueue::{KueueWorkload, kueue_workload_name};
use lockstep_lifecycle::view::{Held, KueueAccess, KueueClasses, KueueView, WorkloadId};

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
    pub(super) version: Option<&'static str>,
    pub(super) listed: BTreeSet<WatchedKind>,
    pub(super) workloads: BTreeMap<Key, OwnedWorkload>,
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
    pub(super) fn reset(version: Option<&'static str>) -> Self {
        Self {
            access: match version {
                Some(_) => KueueAccess::Unread,
                None => KueueAccess::NotServed,
            },
            version,
            ..Self::default()
        }
    }

    pub(super) fn view(&self, workload: &WorkloadId) -> KueueView {
        let name = kueue_workload_name(&workload.name, workload.uid.as_str());
        let named = self.workloads.get(&Key::new(&workload.namespace, name));
        let own = named.filter(|entry| entry.owner == workload.uid);
        KueueView {
            access: self.access,
            workload: own.map(|entry| entry.held.clone()),
            classes: self.classes.clone(),
        }
    }
}
