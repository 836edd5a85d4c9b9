//! Native groups of kube-scheduler. They are watched only where the API server serves them.

use std::sync::Arc;

use k8s_openapi::api::scheduling::v1beta1::{PodGroup, Workload};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::core::DeserializeGuard;
use lockstep_api::condition::types;
use lockstep_api::ids::Uid;
use lockstep_lifecycle::view::{Held, NativePodGroup};
use lockstep_model::pods::pod::workload_of;
use lockstep_model::{NativeGroup, NativeKind};

use super::{AgentSelector, Watched, guarded};
use crate::index::state::{Identified, Key, State, Touched, controller_uid};
use crate::index::watched_kind::WatchedKind;

pub(in crate::index) struct NativePodGroups;

impl Watched for NativePodGroups {
    type Received = DeserializeGuard<PodGroup>;
    type Object = Identified<PodGroup>;
    const KIND: WatchedKind = WatchedKind::NativePodGroup;

    fn read(received: Self::Received) -> Result<Self::Object, String> {
        guarded(received)
    }

    fn apply(
        state: &mut State,
        _: &AgentSelector,
        key: Key,
        group: Self::Object,
        touched: &mut Touched,
    ) {
        let object = &group.object;
        let spec = &object.spec;
        // Members are units of their gang, not of its native group.
        if workload_of(&object.metadata).is_none() {
            let mode = spec.disruption_mode.as_ref();
            let unit = NativeGroup {
                gang: spec.scheduling_policy.gang.is_some(),
                all: mode.is_some_and(|mode| mode.all.is_some()),
                parent: spec
                    .parent_composite_pod_group_name
                    .as_deref()
                    .map(Arc::from),
                priority: spec.priority,
            };
            let model = &mut state.model;
            touched.scheduler |= model.set_native_group(NativeKind::PodGroup, &key, Some(unit));
        }
        let owner = Uid::read(controller_uid(&**object));
        if let Some(owner) = &owner {
            state.touch_owner(&key.namespace, owner.as_str(), touched);
        }
        let gang = spec.scheduling_policy.gang.as_ref();
        let held = held(
            &group,
            NativePodGroup {
                min_count: gang.map_or(0, |gang| gang.min_count),
                scheduled: is_scheduled(object),
                unschedulable: why_unscheduled(object),
                terminating: object.metadata.deletion_timestamp.is_some(),
            },
        );
        state.native_pod_groups.insert(key, (owner, held));
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        touched.scheduler |= state
            .model
            .set_native_group(NativeKind::PodGroup, key, None);
        if let Some((Some(owner), _)) = state.native_pod_groups.remove(key) {
            state.touch_owner(&key.namespace, owner.as_str(), touched);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.native_pod_groups.keys().cloned().collect()
    }
}

pub(in crate::index) struct NativeWorkloads;

impl Watched for NativeWorkloads {
    type Received = DeserializeGuard<Workload>;
    type Object = Identified<Workload>;
    const KIND: WatchedKind = WatchedKind::NativeWorkload;

    fn read(received: Self::Received) -> Result<Self::Object, String> {
        guarded(received)
    }

    fn apply(
        state: &mut State,
        _: &AgentSelector,
        key: Key,
        workload: Self::Object,
        touched: &mut Touched,
    ) {
        let owner = Uid::read(controller_uid(&*workload.object));
        if let Some(owner) = &owner {
            state.touch_owner(&key.namespace, owner.as_str(), touched);
        }
        let held = held(&workload, ());
        state.native_workloads.insert(key, (owner, held));
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if let Some((Some(owner), _)) = state.native_workloads.remove(key) {
            state.touch_owner(&key.namespace, owner.as_str(), touched);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.native_workloads.keys().cloned().collect()
    }
}

fn held<K, T>(object: &Identified<K>, content: T) -> Held<T> {
    Held {
        uid: object.uid.clone(),
        resource_version: object.version.clone(),
        owned: false,
        orphaned: false,
        content,
    }
}

fn is_scheduled(group: &PodGroup) -> bool {
    scheduled(group).is_some_and(|c| c.status == "True")
}

fn why_unscheduled(group: &PodGroup) -> Option<String> {
    let waits = scheduled(group).filter(|c| c.status != "True")?;
    Some(waits.message.clone())
}

fn scheduled(group: &PodGroup) -> Option<&Condition> {
    let status = group.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    conditions.find(|c| c.type_ == types::POD_GROUP_INITIALLY_SCHEDULED)
}
