use std::sync::Arc;

use lockstep_api::ids::{NodeName, Uid};
use lockstep_api::provisioning::SIGNAL_SCHEDULER;
use lockstep_lifecycle::PodView;
use lockstep_lifecycle::nodes::NodeInfo;
use lockstep_lifecycle::zones::reach;
use lockstep_model::parse::partial::{
    PartialBudget, PartialNode, PartialPod, PartialPriorityClass,
};
use lockstep_model::{Budget, Node, Pod, PriorityClass};

use super::super::gangs::is_of_class;
use super::super::state::{Key, PodEntry, State, Touched, node_key};
use super::super::views::{member, node_info};
use super::super::watched_kind::WatchedKind;
use super::{AgentSelector, Watched, node_name};

pub(in crate::index) struct Pods;

/// A pod as the scheduler and its workload read it.
pub(in crate::index) struct PodObject {
    uid: Uid,
    pod: Pod,
    member: Option<(Uid, PodView)>,
    ready: bool,
    /// True if no scheduler serves it.
    for_autoscaler: bool,
}

impl Watched for Pods {
    type Received = PartialPod;
    type Object = PodObject;
    const KIND: WatchedKind = WatchedKind::Pod;

    fn read(received: PartialPod) -> Result<PodObject, String> {
        let pod = received.scheduling().map_err(|error| error.to_string())?;
        Ok(PodObject {
            uid: pod.uid.clone(),
            member: member(&received, &pod),
            ready: received.ready(),
            for_autoscaler: received.spec.scheduler_name.as_deref() == Some(SIGNAL_SCHEDULER),
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
            for_autoscaler,
        } = object;
        let (label, value) = &agents.label;
        if *key.namespace == *agents.namespace && pod.labels.get(label) == Some(value) {
            let agent_pod = pod.bound.clone().map(|node| (node, ready));
            for node in state.set_agent_pod(&key, agent_pod) {
                state.touch_node(&node, touched);
            }
        }
        let old = state.pods.remove(&key);
        let before = old
            .as_ref()
            .and_then(|old| old.member.as_ref())
            .map(|(_, view)| &**view);
        let received = |view: PodView| Arc::new(view.received(before, state.received_at));
        let entry = PodEntry {
            uid,
            member: member.map(|(workload, view)| (workload, received(view))),
        };
        if let Some(old) = old.as_ref().filter(|old| old.uid != entry.uid) {
            state.model.remove_pod(old.uid.as_str());
        }
        let node = pod.bound.clone();
        // An unbound signal pod counts in no figure.
        let is_signal = state.see_signal_pod(&key, &pod, for_autoscaler, touched);
        if !is_signal || node.is_some() {
            touched.scheduler |= state.model.upsert_pod(pod);
        }
        if let Some(node) = node {
            state.follow_requests(&node, touched);
        }
        // Model and tables share the key.
        let key = state
            .model
            .pod(entry.uid.as_str())
            .map(Pod::key)
            .unwrap_or(key);
        let old_member = old.and_then(|o| o.member);
        if old_member != entry.member {
            touched.provisioning |= state.has_demand();
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
        let pod = state.model.pod(old.uid.as_str());
        let node = pod.and_then(|pod| pod.bound.clone());
        touched.scheduler |= pod.is_some();
        touched.provisioning |= state.forget_signal_pod(key) || state.has_demand();
        state.model.remove_pod(old.uid.as_str());
        if let Some(node) = node {
            state.follow_requests(&node, touched);
        }
        if let Some((workload, view)) = &old.member {
            state.unlink_member(key, workload, view);
            state.keep_disrupted(key, workload, view);
            state.touch_owner(&key.namespace, workload.as_str(), touched);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        state.pods.keys().cloned().collect()
    }
}

pub(in crate::index) struct Nodes;

/// A node as the scheduler and its members read it.
pub(in crate::index) struct NodeObject {
    name: NodeName,
    node: Node,
    info: NodeInfo,
    received: PartialNode,
}

impl Watched for Nodes {
    type Received = PartialNode;
    type Object = NodeObject;
    const KIND: WatchedKind = WatchedKind::Node;

    fn read(received: PartialNode) -> Result<NodeObject, String> {
        let node = received.scheduling().map_err(|error| error.to_string())?;
        Ok(NodeObject {
            name: node_name(&received)?,
            info: node_info(&received, &node),
            node,
            received,
        })
    }

    fn apply(
        state: &mut State,
        _: &AgentSelector,
        _: Key,
        object: NodeObject,
        touched: &mut Touched,
    ) {
        let NodeObject {
            name,
            mut node,
            info,
            received,
        } = object;
        let before = state.nodes.get(&name).map(AsRef::as_ref);
        let mut info = info.received(before, state.received_at);
        info.state.reach = reach(&info, state.zones.get(&info.zone));
        state.read_signals(&name, &received, &mut info);
        node.state = info.state;
        touched.scheduler |= state.model.upsert_node(node);
        let old = state.nodes.get(&name);
        if old.is_none_or(|old| **old != info) {
            touched.signals |= old.map_or(&[][..], |old| &old.signals) != info.signals;
            state.touch_node(&name, touched);
            state.nodes.insert(name, Arc::new(info));
            state.zones_due = true;
            touched.scheduler = true;
        }
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        state.model.remove_node(&key.name);
        state.signals.remove(&key.name);
        if let Some((name, _)) = state.nodes.remove_entry(&*key.name) {
            state.touch_node(&name, touched);
            state.zones_due = true;
            touched.scheduler = true;
        }
    }

    fn follow(state: &mut State, touched: &mut Touched) {
        state.follow_zones(touched);
    }

    fn keys(state: &State) -> Vec<Key> {
        state.nodes.keys().map(node_key).collect()
    }
}

pub(in crate::index) struct PriorityClasses;

impl Watched for PriorityClasses {
    type Received = PartialPriorityClass;
    type Object = PriorityClass;
    const KIND: WatchedKind = WatchedKind::PriorityClass;

    fn read(received: PartialPriorityClass) -> Result<PriorityClass, String> {
        received.scheduling().map_err(|error| error.to_string())
    }

    fn apply(
        state: &mut State,
        _: &AgentSelector,
        key: Key,
        class: PriorityClass,
        touched: &mut Touched,
    ) {
        let old = state.priority_classes.get(&*key.name);
        if old != Some(&class) {
            let default = class.default || old.is_some_and(|old| old.default);
            touch_class(state, &key.name, default, touched);
            state.priority_classes.insert(key.name.to_string(), class);
            state.read_gangs_of_class(&key.name, default, touched);
        }
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        if let Some(old) = state.priority_classes.remove(&*key.name) {
            touch_class(state, &key.name, old.default, touched);
            state.read_gangs_of_class(&key.name, old.default, touched);
        }
    }

    fn keys(state: &State) -> Vec<Key> {
        let names = state.priority_classes.keys();
        names.map(|name| Key::new("", name)).collect()
    }
}

/// The default class includes workloads without a class.
fn touch_class(state: &State, name: &str, default: bool, touched: &mut Touched) {
    let concerned = state
        .workloads
        .iter()
        .filter(|(_, w)| is_of_class(w.spec.priority_class_name.as_deref(), name, default));
    touched
        .workloads
        .extend(concerned.map(|(key, _)| key.clone()));
}

pub(in crate::index) struct Budgets;

impl Watched for Budgets {
    type Received = PartialBudget;
    type Object = Budget;
    const KIND: WatchedKind = WatchedKind::PodDisruptionBudget;

    fn read(received: PartialBudget) -> Result<Budget, String> {
        received.scheduling().map_err(|error| error.to_string())
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
