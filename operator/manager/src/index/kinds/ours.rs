//! Lockstep's own kinds, and the Services that workloads own.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;

use k8s_openapi::api::core::v1::Service;
use kube::Resource;
use kube::core::DeserializeGuard;
use lockstep_api::ids::{NodeName, Uid};
use lockstep_api::names::MANAGED_BY;
use lockstep_api::{
    NodeAgent, NodeAgentStatus, PodGroup, RestartOrder, TrainingWorkload, Workload,
};
use lockstep_lifecycle::view::{Held, ServiceContent};
use serde::de::DeserializeOwned;

use super::super::state::{Identified, Key, State, Touched, controller_uid, node_key};
use super::super::watched_kind::WatchedKind;
use super::{AgentSelector, Watched, guarded, identified, node_name};

pub(in crate::index) struct Workloads;

impl Watched for Workloads {
    type Received = DeserializeGuard<TrainingWorkload>;
    type Object = Identified<TrainingWorkload>;
    const KIND: WatchedKind = WatchedKind::TrainingWorkload;

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
        if workload.object.spec.managed_by != MANAGED_BY {
            return Self::delete(state, &key, touched);
        }
        let old = state.workloads.get(&key);
        let old_generation = old.and_then(|old| old.metadata.generation);
        if let Some(old) = old.and_then(|old| old.metadata.uid.as_deref())
            && workload.uid != *old
        {
            state.workload_keys.remove(old);
            state.admitted.remove(old);
            state.disrupted.remove(old);
        }
        let same_spec = old_generation == workload.object.metadata.generation;
        if !same_spec {
            state.forget_other_spec(&workload.uid, &workload.object);
        }
        state.workload_keys.insert(workload.uid, key.clone());
        state.set_workload(&key, Some(workload.object));
        state.read_gangs_of(&key, touched);
        touched.provisioning |= state.has_demand();
        if same_spec {
            touched.workloads.insert(key);
        } else {
            touched.urgent.insert(key);
        }
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if let Some(old) = state.set_workload(key, None) {
            if let Some(uid) = old.metadata.uid.as_deref() {
                state.workload_keys.remove(uid);
                state.admitted.remove(uid);
                state.disrupted.remove(uid);
            }
            state.read_gangs_of(key, touched);
            touched.provisioning |= state.has_demand();
            touched.urgent.insert(key.clone());
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.workloads.keys().cloned().collect()
    }
}

pub(in crate::index) struct PodGroups;

impl Watched for PodGroups {
    type Received = DeserializeGuard<PodGroup>;
    type Object = Identified<PodGroup>;
    const KIND: WatchedKind = WatchedKind::PodGroup;

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
        let group = group.object;
        let constraints = &group.spec.gang.scheduling_constraints;
        let levels = || constraints.iter().flat_map(|c| &c.topology);
        if levels().any(|level| !state.model.has_topology_key(&level.key)) {
            state.forget_unused();
        }
        for level in levels() {
            state.model.use_topology_key(&level.key);
        }
        if let Some(uid) = controller_uid(&*group) {
            state.touch_owner(&key.namespace, uid, touched);
        }
        state.follow_demand(&key, Some(&group), touched);
        state.set_pod_group(&key, Some(group));
        state.read_gang(&key, touched);
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        state.follow_demand(key, None, touched);
        if let Some(old) = state.set_pod_group(key, None) {
            if let Some(uid) = controller_uid(&*old) {
                state.touch_owner(&key.namespace, uid, touched);
            }
            state.read_gang(key, touched);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.pod_groups.keys().cloned().collect()
    }
}

pub(in crate::index) type SchedulingWorkloads = Namesake<Workload>;

pub(in crate::index) type Orders = Namesake<RestartOrder>;

/// A kind whose objects are named after their workloads.
pub(in crate::index) struct Namesake<K>(PhantomData<K>);

pub(in crate::index) trait Kept: Sized {
    const KIND: WatchedKind;
    fn all(state: &State) -> &BTreeMap<Key, Identified<Self>>;
    fn all_mut(state: &mut State) -> &mut BTreeMap<Key, Identified<Self>>;
}

impl Kept for Workload {
    const KIND: WatchedKind = WatchedKind::Workload;

    fn all(state: &State) -> &BTreeMap<Key, Identified<Self>> {
        &state.scheduling
    }

    fn all_mut(state: &mut State) -> &mut BTreeMap<Key, Identified<Self>> {
        &mut state.scheduling
    }
}

impl Kept for RestartOrder {
    const KIND: WatchedKind = WatchedKind::RestartOrder;

    fn all(state: &State) -> &BTreeMap<Key, Identified<Self>> {
        &state.orders
    }

    fn all_mut(state: &mut State) -> &mut BTreeMap<Key, Identified<Self>> {
        &mut state.orders
    }
}

impl<K> Watched for Namesake<K>
where
    K: Kept + Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + 'static,
{
    type Received = DeserializeGuard<K>;
    type Object = Identified<K>;
    const KIND: WatchedKind = K::KIND;

    fn read(received: Self::Received) -> Result<Self::Object, String> {
        guarded(received)
    }

    fn apply(
        state: &mut State,
        _: &AgentSelector,
        key: Key,
        object: Self::Object,
        touched: &mut Touched,
    ) {
        touched.workloads.insert(key.clone());
        K::all_mut(state).insert(key, object);
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if K::all_mut(state).remove(key).is_some() {
            touched.workloads.insert(key.clone());
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        K::all(state).keys().cloned().collect()
    }
}

/// Each agent is named after its node.
pub(in crate::index) struct Agents;

impl Watched for Agents {
    type Received = DeserializeGuard<NodeAgent>;
    type Object = (NodeName, NodeAgentStatus);
    const KIND: WatchedKind = WatchedKind::NodeAgent;

    fn read(received: Self::Received) -> Result<Self::Object, String> {
        let agent = received.0.map_err(|invalid| invalid.error)?;
        Ok((node_name(&agent)?, agent.status.unwrap_or_default()))
    }

    fn apply(
        state: &mut State,
        _: &AgentSelector,
        _: Key,
        (node, status): Self::Object,
        touched: &mut Touched,
    ) {
        if state.set_agent(&node, status) {
            state.touch_node(&node, touched);
        }
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if let Some(node) = state.agents.remove(&key.name) {
            state.forget_agent_pods(&key.name);
            state.touch_node(&node, touched);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.agents.keys().map(node_key).collect()
    }
}

pub(in crate::index) struct Services;

impl Watched for Services {
    type Received = Service;
    type Object = Identified<Service>;
    const KIND: WatchedKind = WatchedKind::Service;

    fn read(received: Service) -> Result<Self::Object, String> {
        identified(received)
    }

    fn apply(
        state: &mut State,
        _: &AgentSelector,
        key: Key,
        service: Self::Object,
        touched: &mut Touched,
    ) {
        let spec = service.object.spec.as_ref();
        let content = ServiceContent {
            selector: spec.and_then(|s| s.selector.clone()).unwrap_or_default(),
            publish_not_ready_addresses: spec
                .and_then(|s| s.publish_not_ready_addresses)
                .unwrap_or_default(),
        };
        let owner = Uid::read(controller_uid(&*service.object));
        state.touch_service(&key, touched);
        let held = Held {
            uid: service.uid,
            resource_version: service.version,
            owned: false,
            orphaned: false,
            content,
        };
        state.services.insert(key, (owner, held));
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if state.services.remove(key).is_some() {
            state.touch_service(key, touched);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.services.keys().cloned().collect()
    }
}
