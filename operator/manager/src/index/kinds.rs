//! What each watched kind does to the tables.
//!
//! `apply` and `delete` are total and idempotent: a watch may repeat itself. An object whose meaning has not changed
//! touches nobody.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::core::DeserializeGuard;
use kube::{Resource, ResourceExt};
use lockstep_api::condition::{is_true, types};
use lockstep_api::names::MANAGED_BY;
use lockstep_api::scheduling::PreemptionPolicy;
use lockstep_api::{NodeAgent, PodGroup, RestartOrder, TrainingWorkload, TrainingWorkloadStatus, Workload};
use lockstep_lifecycle::view::{Held, ServiceContent};
use lockstep_model::gang::preemption_priority;
use serde::de::DeserializeOwned;
use tracing::warn;

use super::Kind;
use super::state::{Key, PodEntry, PriorityClassEntry, State, Touched, controller_uid};
use super::wire::{BudgetWire, NodeWire, PodWire};

/// One watched kind.
pub trait Watched: Send + 'static {
    /// What the watch delivers.
    type Wire: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug + Send + 'static;
    /// Which kind it is.
    const KIND: Kind;

    /// The object is there, as given.
    fn apply(state: &mut State, options: &Options, wire: Self::Wire, touched: &mut Touched);
    /// The object is gone.
    fn delete(state: &mut State, key: &Key, touched: &mut Touched);
    /// Everything that is held of this kind.
    fn keys(state: &State) -> Vec<Key>;
}

/// How pods of our node agents are recognised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Namespace of the agents' pods.
    pub agent_namespace: String,
    /// Label of the agents' pods.
    pub agent_label: (String, String),
}

/// Takes a guarded object out. One that cannot be read is as good as gone, and noted: it degrades itself only.
fn readable<W, K>(state: &mut State, wire: DeserializeGuard<K>, touched: &mut Touched) -> Option<K>
where
    W: Watched<Wire = DeserializeGuard<K>>,
    K: Resource<DynamicType = ()>,
{
    let key = Key::of(&wire);
    match wire.0 {
        Ok(object) => Some(object),
        Err(invalid) => {
            unreadable::<W>(state, key, &invalid.error, touched);
            None
        }
    }
}

fn unreadable<W: Watched>(state: &mut State, key: Key, error: &str, touched: &mut Touched) {
    warn!(object = %key, kind = W::KIND.name(), error, "unreadable object left alone");
    W::delete(state, &key, touched);
    state.unreadable.insert((W::KIND, key), error.to_owned());
}

/// `TrainingWorkload`.
pub struct Workloads;

impl Watched for Workloads {
    type Wire = DeserializeGuard<TrainingWorkload>;
    const KIND: Kind = Kind::TrainingWorkload;

    fn apply(state: &mut State, _: &Options, wire: Self::Wire, touched: &mut Touched) {
        let Some(workload) = readable::<Self, _>(state, wire, touched) else { return };
        let key = Key::of(&workload);
        if workload.spec.managed_by != MANAGED_BY {
            return Self::delete(state, &key, touched);
        }
        let uid = workload.uid().unwrap_or_default();
        let old = state.workloads.get(&key);
        touched.scheduler |= old.is_none_or(|old| concerns_room(old, &workload));
        if let Some(old) = old
            && old.metadata.uid != workload.metadata.uid
        {
            state.workload_keys.remove(old.metadata.uid.as_deref().unwrap_or_default());
        }
        state.workload_keys.insert(uid, key.clone());
        state.workloads.insert(key.clone(), Arc::new(workload));
        touched.workloads.insert(key);
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if let Some(old) = state.workloads.remove(key) {
            state.workload_keys.remove(old.metadata.uid.as_deref().unwrap_or_default());
            touched.workloads.insert(key.clone());
            touched.scheduler = true;
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.workloads.keys().cloned().collect()
    }
}

/// Whether a workload has changed in what the scheduler reads: most writes of a status are about what people are told.
fn concerns_room(old: &TrainingWorkload, new: &TrainingWorkload) -> bool {
    let (was, is) = (&old.metadata, &new.metadata);
    let none = TrainingWorkloadStatus::default();
    let (before, after) = (old.status.as_ref().unwrap_or(&none), new.status.as_ref().unwrap_or(&none));
    let ended = |s: &TrainingWorkloadStatus| [types::COMPLETE, types::FAILED].map(|t| is_true(&s.conditions, t));
    (&was.uid, was.generation, &was.annotations) != (&is.uid, is.generation, &is.annotations)
        || was.deletion_timestamp.is_some() != is.deletion_timestamp.is_some()
        || (&before.gangs, &before.domains) != (&after.gangs, &after.domains)
        || ended(before) != ended(after)
        || !ranges(before).eq(ranges(after))
}

/// The members of each group that have succeeded, and those that run together.
fn ranges(status: &TrainingWorkloadStatus) -> impl Iterator<Item = (&str, &str, Option<&str>)> {
    status.groups.iter().map(|g| (g.name.as_str(), g.completed_indexes.as_str(), g.world_indexes.as_deref()))
}

/// `Pod`.
pub struct Pods;

impl Watched for Pods {
    type Wire = PodWire;
    const KIND: Kind = Kind::Pod;

    fn apply(state: &mut State, options: &Options, wire: PodWire, touched: &mut Touched) {
        let key = Key::of(&wire);
        let pod = match wire.scheduling() {
            Ok(pod) => pod,
            Err(error) => return unreadable::<Self>(state, key, &error.to_string(), touched),
        };
        let entry =
            PodEntry { uid: pod.uid.clone(), member: wire.member(&pod).map(|(uid, view)| (uid, Arc::new(view))) };
        let (label, value) = &options.agent_label;
        if key.namespace == options.agent_namespace && pod.labels.get(label) == Some(value) {
            let node = pod.bound.clone().unwrap_or_default();
            if state.set_agent_pod(&key, Some((node.clone(), wire.ready()))) {
                state.touch_node(&node, touched);
            }
        }
        let old = state.pods.remove(&key);
        if let Some(old) = old.as_ref().filter(|old| old.uid != entry.uid) {
            state.model.remove_pod(&old.uid);
        }
        touched.scheduler |= state.model.upsert_pod(pod);
        let old_member = old.and_then(|o| o.member);
        if old_member != entry.member {
            if let Some((uid, view)) = &old_member {
                state.unlink_member(&key, uid, view);
                state.touch_uid(uid, touched);
            }
            if let Some((uid, view)) = &entry.member {
                state.link_member(&key, uid, view);
                state.touch_uid(uid, touched);
            }
        }
        state.pods.insert(key, entry);
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if let Some((node, _)) = state.agent_pods.get(key).cloned()
            && state.set_agent_pod(key, None)
        {
            state.touch_node(&node, touched);
        }
        let Some(old) = state.pods.remove(key) else { return };
        state.model.remove_pod(&old.uid);
        touched.scheduler = true;
        if let Some((uid, view)) = &old.member {
            state.unlink_member(key, uid, view);
            state.touch_uid(uid, touched);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.pods.keys().cloned().collect()
    }
}

/// `Node`.
pub struct Nodes;

impl Watched for Nodes {
    type Wire = NodeWire;
    const KIND: Kind = Kind::Node;

    fn apply(state: &mut State, _: &Options, wire: NodeWire, touched: &mut Touched) {
        let key = Key::of(&wire);
        match wire.scheduling() {
            Ok(node) => {
                touched.scheduler |= state.model.upsert_node(node);
            }
            Err(error) => return unreadable::<Self>(state, key, &error.to_string(), touched),
        }
        let info = wire.info();
        if state.nodes.get(&key.name).is_none_or(|old| **old != info) {
            state.nodes.insert(key.name.clone(), Arc::new(info));
            state.touch_node(&key.name, touched);
            touched.scheduler = true;
        }
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        state.model.remove_node(&key.name);
        if state.nodes.remove(&key.name).is_some() {
            state.touch_node(&key.name, touched);
            touched.scheduler = true;
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.nodes.keys().map(|name| Key::new("", name)).collect()
    }
}

/// Our `PodGroup`.
pub struct PodGroups;

impl Watched for PodGroups {
    type Wire = DeserializeGuard<PodGroup>;
    const KIND: Kind = Kind::PodGroup;

    fn apply(state: &mut State, _: &Options, wire: Self::Wire, touched: &mut Touched) {
        let Some(group) = readable::<Self, _>(state, wire, touched) else { return };
        let topology = group.spec.gang.scheduling_constraints.iter().flat_map(|c| &c.topology);
        for key in topology.map(|t| t.key.clone()).collect::<Vec<_>>() {
            state.model.use_topology_key(&key);
        }
        if let Some(uid) = controller_uid(&group) {
            state.touch_uid(uid, touched);
        }
        touched.scheduler = true;
        state.pod_groups.insert(Key::of(&group), Arc::new(group));
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if let Some(old) = state.pod_groups.remove(key) {
            if let Some(uid) = controller_uid(&*old) {
                state.touch_uid(uid, touched);
            }
            touched.scheduler = true;
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.pod_groups.keys().cloned().collect()
    }
}

/// Our `Workload`: named like the `TrainingWorkload`.
pub struct SchedulingWorkloads;

impl Watched for SchedulingWorkloads {
    type Wire = DeserializeGuard<Workload>;
    const KIND: Kind = Kind::Workload;

    fn apply(state: &mut State, _: &Options, wire: Self::Wire, touched: &mut Touched) {
        let Some(workload) = readable::<Self, _>(state, wire, touched) else { return };
        let key = Key::of(&workload);
        touched.workloads.insert(key.clone());
        state.scheduling.insert(key, Arc::new(workload));
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
pub struct Services;

impl Watched for Services {
    type Wire = Service;
    const KIND: Kind = Kind::Service;

    fn apply(state: &mut State, _: &Options, wire: Service, touched: &mut Touched) {
        let spec = wire.spec.as_ref();
        let held = Held {
            uid: wire.uid().unwrap_or_default(),
            resource_version: wire.resource_version().unwrap_or_default(),
            owned: false,
            content: ServiceContent {
                selector: spec.and_then(|s| s.selector.clone()).unwrap_or_default(),
                publish_not_ready_addresses: spec.and_then(|s| s.publish_not_ready_addresses).unwrap_or_default(),
            },
        };
        let owner = controller_uid(&wire).unwrap_or_default().to_owned();
        state.touch_uid(&owner, touched);
        state.services.insert(Key::of(&wire), (owner, held));
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if let Some((owner, _)) = state.services.remove(key) {
            state.touch_uid(&owner, touched);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.services.keys().cloned().collect()
    }
}

/// `RestartOrder`: named like the workload.
pub struct Orders;

impl Watched for Orders {
    type Wire = DeserializeGuard<RestartOrder>;
    const KIND: Kind = Kind::RestartOrder;

    fn apply(state: &mut State, _: &Options, wire: Self::Wire, touched: &mut Touched) {
        let Some(order) = readable::<Self, _>(state, wire, touched) else { return };
        let key = Key::of(&order);
        touched.workloads.insert(key.clone());
        state.orders.insert(key, Arc::new(order));
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
pub struct Agents;

impl Watched for Agents {
    type Wire = DeserializeGuard<NodeAgent>;
    const KIND: Kind = Kind::NodeAgent;

    fn apply(state: &mut State, _: &Options, wire: Self::Wire, touched: &mut Touched) {
        let Some(agent) = readable::<Self, _>(state, wire, touched) else { return };
        let node = agent.name_any();
        if state.set_agent(&node, agent.status.unwrap_or_default()) {
            state.touch_node(&node, touched);
        }
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if state.agents.remove(&key.name).is_some() {
            state.touch_node(&key.name, touched);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.agents.keys().map(|name| Key::new("", name)).collect()
    }
}

/// `PriorityClass`.
pub struct PriorityClasses;

impl Watched for PriorityClasses {
    type Wire = PriorityClass;
    const KIND: Kind = Kind::PriorityClass;

    fn apply(state: &mut State, _: &Options, wire: PriorityClass, touched: &mut Touched) {
        let entry = PriorityClassEntry {
            value: wire.value.unwrap_or_default(),
            preemption: match wire.preemption_policy.as_deref() {
                Some("Never") => PreemptionPolicy::Never,
                _ => PreemptionPolicy::PreemptLowerPriority,
            },
            preemption_priority: preemption_priority(&wire.metadata),
            default: wire.global_default.unwrap_or_default(),
        };
        let name = wire.name_any();
        if state.priority_classes.insert(name.clone(), entry) != Some(entry) {
            touch_class(state, &name, entry.default, touched);
            touched.scheduler = true;
        }
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if let Some(old) = state.priority_classes.remove(&key.name) {
            touch_class(state, &key.name, old.default, touched);
            touched.scheduler = true;
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.priority_classes.keys().map(|name| Key::new("", name)).collect()
    }
}

/// Workloads of a class, and with the default class those without one, may be judged anew.
fn touch_class(state: &State, name: &str, default: bool, touched: &mut Touched) {
    let concerned = state.workloads.iter().filter(|(_, w)| match w.spec.priority_class_name.as_deref() {
        Some(class) => class == name,
        None => default,
    });
    touched.workloads.extend(concerned.map(|(key, _)| key.clone()));
}

/// `PodDisruptionBudget`.
pub struct Budgets;

impl Watched for Budgets {
    type Wire = BudgetWire;
    const KIND: Kind = Kind::PodDisruptionBudget;

    fn apply(state: &mut State, _: &Options, wire: BudgetWire, touched: &mut Touched) {
        let budget = wire.budget();
        let key = Key::of(&wire);
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
