//! What each watched kind does to the tables.
//!
//! `read` is the border: what cannot be read, or has no identity, goes no further. `apply` and
//! `delete` are total and idempotent: a watch may repeat itself. An object whose meaning has not
//! changed touches nothing.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use kube::Resource;
use kube::core::DeserializeGuard;
use lockstep_api::ids::{NodeName, ResourceVersion, Uid};
use lockstep_api::names::MANAGED_BY;
use lockstep_api::{
    NodeAgent, NodeAgentStatus, PodGroup, RestartOrder, TrainingWorkload, Workload,
};
use lockstep_lifecycle::PodView;
use lockstep_lifecycle::nodes::NodeInfo;
use lockstep_lifecycle::view::{Held, ServiceContent};
use lockstep_model::wire::{BudgetWire, NodeWire, PodWire, PriorityClassWire, Unreadable, present};
use lockstep_model::{Budget, Node, Pod, PriorityClass};
use serde::de::DeserializeOwned;

use super::Kind;
use super::state::{Identified, Key, PodEntry, State, Touched, controller_uid, node_key};
use super::wire::{member, node_info};

/// One watched kind.
pub(super) trait Watched: Send + 'static {
    /// What the watch delivers.
    type Wire: Resource<DynamicType = ()>
        + DeserializeOwned
        + Clone
        + std::fmt::Debug
        + Send
        + 'static;
    /// What is made of it at the border.
    type Object;
    /// Which kind it is.
    const KIND: Kind;

    /// The object with its identity, or why it is left alone.
    fn read(wire: Self::Wire) -> Result<Self::Object, String>;
    /// The object is there, as given.
    fn apply(
        state: &mut State,
        agents: &AgentSelector,
        key: Key,
        object: Self::Object,
        touched: &mut Touched,
    );
    /// The object is gone.
    fn delete(state: &mut State, key: &Key, touched: &mut Touched);
    /// Everything that is held of this kind.
    fn keys(state: &State) -> Vec<Key>;
}

/// How pods of our node agents are recognised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentSelector {
    /// Namespace of the agents' pods.
    pub namespace: String,
    /// Label of the agents' pods.
    pub label: (String, String),
}

/// An object of a namespace with the identity that every one has.
fn identified<K: Resource<DynamicType = ()>>(object: K) -> Result<Identified<K>, String> {
    let meta = object.meta();
    present("name", meta.name.as_ref())
        .and_then(|_| present("namespace", meta.namespace.as_ref()))
        .map_err(|missing| missing.to_string())?;
    let missing = |field| Unreadable::Missing(field).to_string();
    let uid = Uid::read(meta.uid.as_deref()).ok_or_else(|| missing("uid"))?;
    let version = ResourceVersion::read(meta.resource_version.as_deref())
        .ok_or_else(|| missing("resourceVersion"))?;
    Ok(Identified {
        uid,
        version,
        object: Arc::new(object),
    })
}

/// Takes a guarded object out: one that does not fit its type degrades itself only.
fn guarded<K: Resource<DynamicType = ()>>(
    wire: DeserializeGuard<K>,
) -> Result<Identified<K>, String> {
    identified(wire.0.map_err(|invalid| invalid.error)?)
}

fn node_name(object: &impl Resource) -> Result<NodeName, String> {
    NodeName::read(object.meta().name.as_deref())
        .ok_or_else(|| Unreadable::Missing("name").to_string())
}

/// `TrainingWorkload`.
pub(super) struct Workloads;

impl Watched for Workloads {
    type Wire = DeserializeGuard<TrainingWorkload>;
    type Object = Identified<TrainingWorkload>;
    const KIND: Kind = Kind::TrainingWorkload;

    fn read(wire: Self::Wire) -> Result<Self::Object, String> {
        guarded(wire)
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
        if let Some(old) = old.and_then(|old| old.metadata.uid.as_deref())
            && workload.uid != *old
        {
            state.workload_keys.remove(old);
        }
        state.workload_keys.insert(workload.uid, key.clone());
        state.workloads.insert(key.clone(), workload.object);
        state.read_gangs_of(&key, touched);
        touched.workloads.insert(key);
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if let Some(old) = state.workloads.remove(key) {
            if let Some(uid) = old.metadata.uid.as_deref() {
                state.workload_keys.remove(uid);
            }
            state.read_gangs_of(key, touched);
            touched.workloads.insert(key.clone());
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.workloads.keys().cloned().collect()
    }
}

/// `Pod`.
pub(super) struct Pods;

/// A pod as the scheduler and as its workload see it.
pub(super) struct PodObject {
    uid: Uid,
    pod: Pod,
    member: Option<(Uid, PodView)>,
    ready: bool,
}

impl Watched for Pods {
    type Wire = PodWire;
    type Object = PodObject;
    const KIND: Kind = Kind::Pod;

    fn read(wire: PodWire) -> Result<PodObject, String> {
        let pod = wire.scheduling().map_err(|error| error.to_string())?;
        let uid =
            Uid::read(Some(&pod.uid)).ok_or_else(|| Unreadable::Missing("uid").to_string())?;
        Ok(PodObject {
            uid,
            member: member(&wire, &pod),
            ready: wire.ready(),
            pod,
        })
    }

    fn apply(
        state: &mut State,
        agents: &AgentSelector,
        key: Key,
        object: PodObject,
        touched: &mut Touched,
    ) {
        let PodObject {
            uid,
            pod,
            member,
            ready,
        } = object;
        let entry = PodEntry {
            uid,
            member: member.map(|(workload, view)| (workload, Arc::new(view))),
        };
        let (label, value) = &agents.label;
        if key.namespace == agents.namespace && pod.labels.get(label) == Some(value) {
            let seen = NodeName::read(pod.bound.as_deref()).map(|node| (node, ready));
            for node in state.set_agent_pod(&key, seen) {
                state.touch_node(&node, touched);
            }
        }
        let old = state.pods.remove(&key);
        if let Some(old) = old.as_ref().filter(|old| old.uid != entry.uid) {
            state.model.remove_pod(old.uid.as_str());
        }
        touched.scheduler |= state.model.upsert_pod(pod);
        let old_member = old.and_then(|o| o.member);
        if old_member != entry.member {
            if let Some((workload, view)) = &old_member {
                state.unlink_member(&key, workload, view);
                state.touch_owner(&key.namespace, workload.as_str(), touched);
            }
            if let Some((workload, view)) = &entry.member {
                state.link_member(&key, workload, view);
                state.touch_owner(&key.namespace, workload.as_str(), touched);
            }
        }
        state.pods.insert(key, entry);
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        for node in state.set_agent_pod(key, None) {
            state.touch_node(&node, touched);
        }
        let Some(old) = state.pods.remove(key) else {
            return;
        };
        state.model.remove_pod(old.uid.as_str());
        touched.scheduler = true;
        if let Some((workload, view)) = &old.member {
            state.unlink_member(key, workload, view);
            state.touch_owner(&key.namespace, workload.as_str(), touched);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.pods.keys().cloned().collect()
    }
}

/// `Node`.
pub(super) struct Nodes;

/// A node as the scheduler and as its members see it.
pub(super) struct NodeObject {
    name: NodeName,
    node: Node,
    info: NodeInfo,
}

impl Watched for Nodes {
    type Wire = NodeWire;
    type Object = NodeObject;
    const KIND: Kind = Kind::Node;

    fn read(wire: NodeWire) -> Result<NodeObject, String> {
        Ok(NodeObject {
            name: node_name(&wire)?,
            node: wire.scheduling().map_err(|error| error.to_string())?,
            info: node_info(&wire),
        })
    }

    fn apply(
        state: &mut State,
        _: &AgentSelector,
        _: Key,
        object: NodeObject,
        touched: &mut Touched,
    ) {
        let NodeObject { name, node, info } = object;
        touched.scheduler |= state.model.upsert_node(node);
        if state.nodes.get(&name).is_none_or(|old| **old != info) {
            state.touch_node(&name, touched);
            state.nodes.insert(name, Arc::new(info));
            touched.scheduler = true;
        }
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        state.model.remove_node(&key.name);
        if let Some((name, _)) = state.nodes.remove_entry(key.name.as_str()) {
            state.touch_node(&name, touched);
            touched.scheduler = true;
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.nodes.keys().map(node_key).collect()
    }
}

/// Our `PodGroup`.
pub(super) struct PodGroups;

impl Watched for PodGroups {
    type Wire = DeserializeGuard<PodGroup>;
    type Object = Identified<PodGroup>;
    const KIND: Kind = Kind::PodGroup;

    fn read(wire: Self::Wire) -> Result<Self::Object, String> {
        guarded(wire)
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
        for topology in constraints.iter().flat_map(|c| &c.topology) {
            state.model.use_topology_key(&topology.key);
        }
        if let Some(uid) = controller_uid(&*group) {
            state.touch_uid(uid, touched);
        }
        state.pod_groups.insert(key.clone(), group);
        state.read_gang(&key, touched);
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if let Some(old) = state.pod_groups.remove(key) {
            if let Some(uid) = controller_uid(&*old) {
                state.touch_uid(uid, touched);
            }
            state.read_gang(key, touched);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.pod_groups.keys().cloned().collect()
    }
}

/// Our `Workload`: named like the `TrainingWorkload`.
pub(super) struct SchedulingWorkloads;

impl Watched for SchedulingWorkloads {
    type Wire = DeserializeGuard<Workload>;
    type Object = Identified<Workload>;
    const KIND: Kind = Kind::Workload;

    fn read(wire: Self::Wire) -> Result<Self::Object, String> {
        guarded(wire)
    }

    fn apply(
        state: &mut State,
        _: &AgentSelector,
        key: Key,
        workload: Self::Object,
        touched: &mut Touched,
    ) {
        touched.workloads.insert(key.clone());
        state.scheduling.insert(key, workload);
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if state.scheduling.remove(key).is_some() {
            touched.workloads.insert(key.clone());
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.scheduling.keys().cloned().collect()
    }
}

/// `Service` with the workload label.
pub(super) struct Services;

impl Watched for Services {
    type Wire = Service;
    type Object = Identified<Service>;
    const KIND: Kind = Kind::Service;

    fn read(wire: Service) -> Result<Self::Object, String> {
        identified(wire)
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
        if let Some(owner) = &owner {
            state.touch_uid(owner.as_str(), touched);
        }
        let held = Held {
            uid: service.uid,
            resource_version: service.version,
            owned: false,
            content,
        };
        state.services.insert(key, (owner, held));
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if let Some((Some(owner), _)) = state.services.remove(key) {
            state.touch_uid(owner.as_str(), touched);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.services.keys().cloned().collect()
    }
}

/// `RestartOrder`: named like the workload.
pub(super) struct Orders;

impl Watched for Orders {
    type Wire = DeserializeGuard<RestartOrder>;
    type Object = Identified<RestartOrder>;
    const KIND: Kind = Kind::RestartOrder;

    fn read(wire: Self::Wire) -> Result<Self::Object, String> {
        guarded(wire)
    }

    fn apply(
        state: &mut State,
        _: &AgentSelector,
        key: Key,
        order: Self::Object,
        touched: &mut Touched,
    ) {
        touched.workloads.insert(key.clone());
        state.orders.insert(key, order);
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if state.orders.remove(key).is_some() {
            touched.workloads.insert(key.clone());
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.orders.keys().cloned().collect()
    }
}

/// `NodeAgent`: named like its node.
pub(super) struct Agents;

impl Watched for Agents {
    type Wire = DeserializeGuard<NodeAgent>;
    type Object = (NodeName, NodeAgentStatus);
    const KIND: Kind = Kind::NodeAgent;

    fn read(wire: Self::Wire) -> Result<Self::Object, String> {
        let agent = wire.0.map_err(|invalid| invalid.error)?;
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
        if let Some((node, _)) = state.agents.remove_entry(key.name.as_str()) {
            state.touch_node(&node, touched);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.agents.keys().map(node_key).collect()
    }
}

/// `PriorityClass`.
pub(super) struct PriorityClasses;

impl Watched for PriorityClasses {
    type Wire = PriorityClassWire;
    type Object = PriorityClass;
    const KIND: Kind = Kind::PriorityClass;

    fn read(wire: PriorityClassWire) -> Result<PriorityClass, String> {
        wire.scheduling().map_err(|error| error.to_string())
    }

    fn apply(
        state: &mut State,
        _: &AgentSelector,
        key: Key,
        class: PriorityClass,
        touched: &mut Touched,
    ) {
        if state.priority_classes.get(&key.name) != Some(&class) {
            touch_class(state, &key.name, class.default, touched);
            state.priority_classes.insert(key.name.clone(), class);
            state.read_gangs_of_class(&key.name, touched);
        }
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if let Some(old) = state.priority_classes.remove(&key.name) {
            touch_class(state, &key.name, old.default, touched);
            state.read_gangs_of_class(&key.name, touched);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        let names = state.priority_classes.keys();
        names.map(|name| Key::new("", name)).collect()
    }
}

/// Workloads of a class, and with the default class those without one, may be judged anew.
fn touch_class(state: &State, name: &str, default: bool, touched: &mut Touched) {
    let concerned =
        state
            .workloads
            .iter()
            .filter(|(_, w)| match w.spec.priority_class_name.as_deref() {
                Some(class) => class == name,
                None => default,
            });
    touched
        .workloads
        .extend(concerned.map(|(key, _)| key.clone()));
}

/// `PodDisruptionBudget`.
pub(super) struct Budgets;

impl Watched for Budgets {
    type Wire = BudgetWire;
    type Object = Budget;
    const KIND: Kind = Kind::PodDisruptionBudget;

    fn read(wire: BudgetWire) -> Result<Budget, String> {
        wire.scheduling().map_err(|error| error.to_string())
    }

    fn apply(
        state: &mut State,
        _: &AgentSelector,
        key: Key,
        budget: Budget,
        touched: &mut Touched,
    ) {
        if state.budgets.get(&key).is_none_or(|old| **old != budget) {
            state.budgets.insert(key, Arc::new(budget));
            touched.scheduler = true;
        }
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        touched.scheduler |= state.budgets.remove(key).is_some();
    }

    fn keys(state: &State) -> Vec<Key> {
        state.budgets.keys().cloned().collect()
    }
}
