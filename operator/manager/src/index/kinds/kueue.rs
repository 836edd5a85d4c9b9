//! Objects of Kueue. They are watched only if the configuration enables Kueue, and where the API
//! server serves them.

use std::sync::Arc;

use kube::core::DynamicObject;
use lockstep_api::Reach;
use lockstep_api::ids::{ResourceVersion, Uid};
use lockstep_api::kueue::{FINALIZER, FlavorSpec, KueueWorkload};
use lockstep_lifecycle::view::{Held, KueueAccess};
use lockstep_model::pods::pod::workload_of;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{AgentSelector, Watched};
use crate::index::kueue_table::{NEEDED, OrphanedQuota, OwnedWorkload};
use crate::index::state::{Key, State, Touched};
use crate::index::watched_kind::WatchedKind;

impl State {
    /// Kueue Workloads of earlier workloads of this name that are being deleted and wait for the
    /// integration.
    pub fn orphaned_quota(&self, workload: &Key) -> Vec<OrphanedQuota> {
        let first = Key::new(&workload.namespace, "");
        let within = self.kueue.workloads.range(first..);
        let within = within.take_while(|(key, _)| key.namespace == workload.namespace);
        let orphaned = within.filter(|(_, entry)| {
            let metadata = &entry.held.content.metadata;
            let mut finalizers = metadata.finalizers.iter().flatten();
            entry.of == *workload
                && !self.workload_keys.contains_key(&entry.owner)
                && metadata.deletion_timestamp.is_some()
                && finalizers.any(|f| f == FINALIZER)
        });
        let each = orphaned.map(|(key, entry)| OrphanedQuota {
            name: key.name.to_string(),
            held: entry.held.clone(),
            access: self.kueue.access,
            in_use: self.uses_capacity(&key.namespace, &entry.owner),
        });
        each.collect()
    }

    /// True if a pod of the workload may still run on a node that answers.
    fn uses_capacity(&self, namespace: &str, workload: &Uid) -> bool {
        let mut pods = self.members_of(namespace, workload.as_str());
        pods.any(|pod| {
            let node = pod.node.as_deref().map(|node| self.nodes.get(node));
            let answers = node
                .is_none_or(|node| node.is_some_and(|info| info.state.reach == Reach::Responding));
            answers && !pod.terminal() && !pod.never_runs()
        })
    }

    fn touch_all(&self, touched: &mut Touched) {
        touched.workloads.extend(self.workloads.keys().cloned());
    }

    /// Quota is decided once all kinds are listed.
    fn listed(&mut self, kind: WatchedKind, touched: &mut Touched) {
        let Some(version) = self.kueue.version else {
            return;
        };
        if self.kueue.listed.insert(kind) && NEEDED.iter().all(|k| self.kueue.listed.contains(k)) {
            self.kueue.access = KueueAccess::Served(version);
            self.touch_all(touched);
        }
    }
}

fn parsed<T: DeserializeOwned>(data: &Value) -> Result<T, String> {
    serde_json::from_value(data.clone()).map_err(|error| error.to_string())
}

pub(in crate::index) struct KueueWorkloads;

impl Watched for KueueWorkloads {
    type Received = DynamicObject;
    type Object = KueueWorkload;
    const KIND: WatchedKind = WatchedKind::KueueWorkload;

    fn read(received: DynamicObject) -> Result<KueueWorkload, String> {
        Ok(KueueWorkload {
            metadata: received.metadata,
            ..parsed(&received.data)?
        })
    }

    fn apply(
        state: &mut State,
        _: &AgentSelector,
        key: Key,
        content: KueueWorkload,
        touched: &mut Touched,
    ) {
        Self::delete(state, &key, touched);
        let metadata = &content.metadata;
        let owner = workload_of(metadata);
        let (Some(owner), Some(uid), Some(resource_version)) = (
            owner.and_then(|o| Some((Uid::read(Some(&o.uid))?, o.name.clone()))),
            Uid::read(metadata.uid.as_deref()),
            ResourceVersion::read(metadata.resource_version.as_deref()),
        ) else {
            return;
        };
        let (owner, name) = owner;
        let of = Key::new(&key.namespace, name);
        touched.workloads.insert(of.clone());
        let held = Held {
            uid,
            resource_version,
            owned: true,
            orphaned: false,
            content,
        };
        let entry = OwnedWorkload { owner, of, held };
        state.kueue.workloads.insert(key, entry);
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        let removed = state.kueue.workloads.remove(key);
        touched.workloads.extend(removed.map(|entry| entry.of));
    }

    fn follow(state: &mut State, touched: &mut Touched) {
        state.listed(Self::KIND, touched);
    }

    fn keys(state: &State) -> Vec<Key> {
        state.kueue.workloads.keys().cloned().collect()
    }
}

/// A kind without namespace, of whose objects one field is kept.
macro_rules! class {
    ($watched:ident, $kind:ident, $field:literal: $object:ty, $table:ident) => {
        pub(in crate::index) struct $watched;

        impl Watched for $watched {
            type Received = DynamicObject;
            type Object = $object;
            const KIND: WatchedKind = WatchedKind::$kind;

            fn read(received: DynamicObject) -> Result<$object, String> {
                let field = received.data.get($field);
                field.map_or_else(|| Ok(<$object>::default()), parsed)
            }

            fn apply(
                state: &mut State,
                _: &AgentSelector,
                key: Key,
                object: $object,
                touched: &mut Touched,
            ) {
                let table = &mut Arc::make_mut(&mut state.kueue.classes).$table;
                table.insert(key.name.to_string(), object);
                state.touch_all(touched);
            }

            fn delete(state: &mut State, key: &Key, _: &mut Touched) {
                let table = &mut Arc::make_mut(&mut state.kueue.classes).$table;
                table.remove(&*key.name);
            }

            fn follow(state: &mut State, touched: &mut Touched) {
                state.listed(Self::KIND, touched);
            }

            fn keys(state: &State) -> Vec<Key> {
                let names = state.kueue.classes.$table.keys();
                names.map(|name| Key::new("", name)).collect()
            }
        }
    };
}

class!(Flavors, ResourceFlavor, "spec": FlavorSpec, flavors);
class!(WorkloadPriorityClasses, WorkloadPriorityClass, "value": i32, priorities);
