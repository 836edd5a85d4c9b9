//! What Kueue does in a cluster: it admits and evicts Kueue Workloads.

use lockstep_api::condition::{Condition, upsert};
use lockstep_api::kueue::{
    KueueWorkload, PodSetAssignment, QUEUE_LABEL, QuotaAdmission, kueue_conditions,
};
use lockstep_api::{TrainingWorkload, key::Key};
use serde_json::{Value, json};

use crate::{SimCluster, WatchedKind};

/// Kinds that every manager watches.
pub const ALWAYS_WATCHED: &[WatchedKind] = WatchedKind::ALL.split_at(WatchedKind::ALL.len() - 5).0;

impl SimCluster {
    /// Sets or removes the label that names the queue of a workload.
    pub fn set_queue(&mut self, workload: &Key, queue: Option<&str>) {
        self.edit::<TrainingWorkload>(workload, |w| {
            let labels = w.metadata.labels.get_or_insert_default();
            labels.remove(QUEUE_LABEL);
            labels.extend(queue.map(|queue| (QUEUE_LABEL.to_owned(), queue.to_owned())));
        });
    }

    /// A ResourceFlavor whose nodes have this label.
    pub fn create_flavor(&mut self, name: &str, (label, value): (&str, &str)) {
        let spec = json!({"nodeLabels": {label: value},
            "tolerations": [{"key": label, "operator": "Exists", "effect": "NoSchedule"}]});
        let object = json!({"metadata": {"name": name}, "spec": spec});
        self.create_of_kueue(WatchedKind::ResourceFlavor, object);
    }

    /// Creates an object without a Rust type.
    pub fn create_of_kueue(&mut self, kind: WatchedKind, object: Value) {
        let created = self.store().create("admin", kind, object, false);
        created.unwrap_or_else(|refused| panic!("{}", refused.message));
    }

    /// Changes the status of a Kueue Workload as Kueue does.
    pub fn tell_quota(&mut self, key: &Key, change: impl FnOnce(&mut KueueWorkload)) {
        self.store().edit("kueue", key, change);
    }

    /// Kueue admits a Kueue Workload with one flavor.
    pub fn admit(&mut self, key: &Key, flavor: &str) {
        let now = self.now();
        self.tell_quota(key, |w| {
            let assigned = w.spec.pod_sets.iter().map(|set| PodSetAssignment {
                name: set.name.clone(),
                flavors: [("nvidia.com/gpu".to_owned(), flavor.to_owned())].into(),
            });
            w.status.admission = Some(QuotaAdmission {
                pod_set_assignments: assigned.collect(),
            });
            let mut set = |type_: &str, value| {
                upsert(
                    &mut w.status.conditions,
                    said(type_, value, "QuotaReserved", now),
                );
            };
            set(kueue_conditions::QUOTA_RESERVED, true);
            set(kueue_conditions::ADMITTED, true);
            set(kueue_conditions::EVICTED, false);
        });
    }

    /// Whether the API server serves Kueue's API, as the manager process finds it.
    pub fn serve_kueue(&mut self, version: Option<&'static str>) {
        self.deliver_kueue_version(version);
        for kind in WatchedKind::ALL {
            let on_demand = !ALWAYS_WATCHED.contains(&kind) && self.watches(kind);
            if on_demand && version.is_some() {
                self.store().relist(kind);
            }
        }
    }

    /// The Kueue Workload of a workload in this namespace, if it is the only one.
    pub fn quota_key(&self) -> Key {
        let all = self.list::<KueueWorkload>();
        let [only] = all.as_slice() else {
            panic!("{all:#?}")
        };
        let metadata = &only.metadata;
        Key::new(
            metadata.namespace.as_deref().unwrap_or_default(),
            metadata.name.as_deref().unwrap_or_default(),
        )
    }

    /// Kueue evicts a Kueue Workload for this reason.
    pub fn evict_quota(&mut self, key: &Key, reason: &str) {
        let now = self.now();
        self.tell_quota(key, |w| {
            let evicted = said(kueue_conditions::EVICTED, true, reason, now);
            upsert(&mut w.status.conditions, evicted);
        });
    }
}

fn said(type_: &str, value: bool, reason: &str, now: chrono::DateTime<chrono::Utc>) -> Condition {
    Condition {
        type_: type_.to_owned(),
        status: value.into(),
        reason: reason.to_owned(),
        message: format!("says Kueue of {type_}"),
        last_transition_time: now,
        observed_generation: 1,
    }
}
