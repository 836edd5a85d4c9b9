//! kube-scheduler: binds pods without gates to nodes that admit them, and refuses other pods with
//! recorded messages (kube-scheduler 1.37.2). Each filter returns the reason against a node. A test
//! that needs another reason adds a filter.

mod neighbours;
mod volumes;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec};
use lockstep_api::key::Key;
use lockstep_api::names::RESTART_ALL_FEATURE;
use lockstep_manager::stepped::WatchedKind;
use lockstep_model::pods::pod_view::PodSpecView;
use lockstep_model::pods::resources::{PODS, Resources, pod_requests};
use serde_json::{Value, json};

use crate::api::{Object, Patch, Store};
use crate::clock::api_time;
use neighbours::Around;

const WHO: &str = "kube-scheduler";
const RULED_OUT: &str = "node(s) didn't satisfy plugin(s) [NodeAffinity]";

/// Reason against a node with its bound pods, for a pod.
type Filter = fn(&PodSpec, &Node, &[&Pod]) -> Option<&'static str>;

/// In kube-scheduler's order. Resources, volumes and other pods follow.
const FILTERS: [Filter; 5] = [unschedulable, tainted, unselected, ports, incapable];

/// One turn over every waiting pod, highest priority first. Returns true if it wrote.
pub(crate) fn turn(store: &mut Store) -> bool {
    let before = store.version();
    let unbound = |pod: &Object| pod["spec"]["nodeName"].is_null();
    if !store.all(WatchedKind::Pod).any(|(_, pod)| unbound(pod)) {
        return false;
    }
    let mut pods: Vec<Pod> = store.list();
    let nodes: Vec<Node> = store.list();
    let mut waiting: Vec<usize> = (0..pods.len())
        .filter(|at| waits(&pods[*at]) && is_served(&pods[*at], store))
        .collect();
    let attempts = store.attempts.clone();
    // Stable: equal pods stay in the order of their names. A refused pod queues again behind pods
    // that were waiting.
    waiting.sort_by_key(|at| {
        let pod = &pods[*at].metadata;
        let last = pod.uid.as_ref().and_then(|uid| attempts.get(uid).copied());
        let created = pod.creation_timestamp.clone();
        (std::cmp::Reverse(priority(&pods[*at])), last, created)
    });
    if let Some(most) = store.attempts_per_turn {
        waiting.truncate(most);
        for &at in &waiting {
            let turn = store.version();
            let uid = pods[at].metadata.uid.clone().unwrap_or_default();
            store.attempts.insert(uid, turn);
        }
    }
    for at in waiting {
        match judge(&pods[at], &nodes, &pods, store) {
            Ok(node) => {
                let on = nodes
                    .iter()
                    .find(|n| n.metadata.name.as_ref() == Some(&node));
                volumes::bind(store, &pods[at], on);
                bind(store, &pods[at], &node);
                pods[at].spec.get_or_insert_default().node_name = Some(node);
            }
            Err(message) => refuse(store, &pods[at], &message),
        }
    }
    store.version() != before
}

fn waits(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let gated = spec
        .scheduling_gates
        .as_ref()
        .is_some_and(|g| !g.is_empty());
    let leaving = pod.metadata.deletion_timestamp.is_some();
    spec.node_name.is_none() && !gated && !leaving && !over(pod)
}

/// True if the pod's scheduler runs.
fn is_served(pod: &Pod, store: &Store) -> bool {
    let name = pod.spec.as_ref().and_then(|s| s.scheduler_name.as_ref());
    name.is_some_and(|name| store.schedulers.contains(name))
}

fn over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn priority(pod: &Pod) -> i32 {
    pod.spec
        .as_ref()
        .and_then(|s| s.priority)
        .unwrap_or_default()
}

/// The node for a pod, or the refusal.
fn judge(pod: &Pod, nodes: &[Node], pods: &[Pod], store: &Store) -> Result<String, String> {
    let total = nodes.len();
    if let Some(why) = volumes::missing_claim(pod, store) {
        return Err(format!("0/{total} nodes are available: {why}. not found"));
    }
    let spec = pod.spec.clone().unwrap_or_default();
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let nominated = pod
        .status
        .as_ref()
        .and_then(|s| s.nominated_node_name.clone());
    let mut fitting = Vec::new();
    for node in nodes {
        let around = Around {
            pod,
            spec: &spec,
            nodes,
            pods,
        };
        let why = filter(around, node, store);
        if why.is_empty() {
            fitting.push(node.metadata.name.clone().unwrap_or_default());
        }
        for reason in why {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    let preferred = nominated.filter(|node| fitting.contains(node));
    if let Some(node) = preferred.or_else(|| fitting.into_iter().next()) {
        return Ok(node);
    }
    let mut reasons: Vec<String> = reasons
        .into_iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    reasons.sort();
    Err(format!(
        "0/{total} nodes are available: {}. preemption: 0/{total} nodes are available: {total} \
         Preemption is not helpful for scheduling.",
        reasons.join(", ")
    ))
}

/// The reasons of the first filter that refuses a node.
fn filter(around: Around<'_>, node: &Node, store: &Store) -> Vec<String> {
    let Around {
        pod, spec, pods, ..
    } = around;
    let name = node.metadata.name.as_deref().unwrap_or_default();
    if pinned(spec).is_some_and(|pin| !pin.iter().any(|n| n == name)) {
        return vec![RULED_OUT.into()];
    }
    let on_node = |other: &&Pod| {
        let bound = other.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(name);
        bound && !over(other)
    };
    let bound: Vec<&Pod> = pods.iter().filter(on_node).collect();
    let nominated = |other: &&Pod| {
        let status = other.status.as_ref();
        let here = status.and_then(|s| s.nominated_node_name.as_deref()) == Some(name);
        here && waits(other)
            && other.metadata.uid != pod.metadata.uid
            && priority(other) >= priority(pod)
    };
    let nominated = pods.iter().filter(nominated);
    for filter in FILTERS {
        if let Some(reason) = filter(spec, node, &bound) {
            return vec![reason.into()];
        }
    }
    let counted: Vec<&Pod> = bound.iter().copied().chain(nominated).collect();
    let short = short_of(spec, node, &counted);
    if !short.is_empty() {
        return short;
    }
    if let Some(reason) = volumes::filter(pod, node, pods, store) {
        return vec![reason.into()];
    }
    let apart = neighbours::spread(around, node);
    let apart = apart.or_else(|| neighbours::affinity(around, node).map(str::to_owned));
    apart.into_iter().collect()
}

/// Nodes to which the first term of the required affinity pins the pod.
fn pinned(spec: &PodSpec) -> Option<Vec<String>> {
    let fields = terms(spec)?.first()?.match_fields.as_ref()?;
    let pin = fields
        .iter()
        .find(|f| f.key == "metadata.name" && f.operator == "In")?;
    pin.values.clone()
}

fn terms(spec: &PodSpec) -> Option<&Vec<NodeSelectorTerm>> {
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    Some(&required.node_selector_terms)
}

fn unschedulable(_: &PodSpec, node: &Node, _: &[&Pod]) -> Option<&'static str> {
    let cordoned = node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true);
    cordoned.then_some("node(s) were unschedulable")
}

fn tainted(spec: &PodSpec, node: &Node, _: &[&Pod]) -> Option<&'static str> {
    let taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    let mut binding = taints.filter(|t| t.effect != "PreferNoSchedule");
    let tolerated = |taint: &k8s_openapi::api::core::v1::Taint| {
        spec.tolerations.iter().flatten().any(|t| {
            let key = t.key.as_ref().is_none_or(|key| *key == taint.key);
            let effect = t
                .effect
                .as_ref()
                .is_none_or(|effect| *effect == taint.effect);
            let exists = t.operator.as_deref() == Some("Exists");
            key && effect && (exists || t.value == taint.value)
        })
    };
    binding
        .any(|taint| !tolerated(taint))
        .then_some("node(s) had untolerated taint(s)")
}

fn incapable(spec: &PodSpec, node: &Node, _: &[&Pod]) -> Option<&'static str> {
    let inits = spec.init_containers.iter().flatten();
    let containers = inits.chain(&spec.containers);
    let mut rules = containers.flat_map(|c| c.restart_policy_rules.iter().flatten());
    let needed = rules.any(|rule| rule.action == "RestartAllContainers");
    let status = node.status.as_ref();
    let mut declared = status
        .into_iter()
        .flat_map(|s| s.declared_features.iter().flatten());
    let missing = needed && !declared.any(|f| f == RESTART_ALL_FEATURE);
    missing.then_some("node(s) didn't match Pod's required features")
}

fn unselected(spec: &PodSpec, node: &Node, _: &[&Pod]) -> Option<&'static str> {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    // The pin was checked before.
    let affine = terms(spec).is_none_or(|terms| matches_any(terms, node));
    (!selected || !affine).then_some("node(s) didn't match Pod's node affinity/selector")
}

fn matches_any(terms: &[NodeSelectorTerm], node: &Node) -> bool {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let holds = |r: &NodeSelectorRequirement| {
        let value = labels.get(&r.key);
        let listed = value.is_some_and(|v| r.values.iter().flatten().any(|w| w == v));
        match r.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            other => panic!("operator {other:?} of node affinity is not simulated"),
        }
    };
    let mut terms = terms.iter();
    terms.any(|term| term.match_expressions.iter().flatten().all(holds))
}

fn ports(spec: &PodSpec, _: &Node, bound: &[&Pod]) -> Option<&'static str> {
    let wanted = host_ports(spec);
    let taken = bound
        .iter()
        .filter_map(|p| p.spec.as_ref())
        .flat_map(host_ports);
    let clash = taken.into_iter().any(|port| wanted.contains(&port));
    clash.then_some("node(s) didn't have free ports for the requested pod ports")
}

fn host_ports(spec: &PodSpec) -> Vec<i32> {
    let ports = spec
        .containers
        .iter()
        .flat_map(|c| c.ports.iter().flatten());
    ports.filter_map(|p| p.host_port).collect()
}

fn short_of(spec: &PodSpec, node: &Node, counted: &[&Pod]) -> Vec<String> {
    let requests = |spec: &PodSpec| pod_requests(&PodSpecView::from(spec)).unwrap_or_default();
    let allocatable = node.status.as_ref().and_then(|s| s.allocatable.clone());
    let allocatable = Resources::parse(&allocatable.unwrap_or_default()).unwrap_or_default();
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for pod in counted.iter().filter_map(|p| p.spec.as_ref()) {
        for (name, amount) in requests(pod).iter() {
            *used.entry(name.to_owned()).or_default() += amount;
        }
    }
    let asked = requests(spec);
    let short = asked.iter().filter(|(name, amount)| {
        *amount > 0 && used.get(*name).copied().unwrap_or(0) + amount > allocatable.get(name)
    });
    short
        .map(|(name, _)| match name {
            PODS => "Too many pods".to_owned(),
            name => format!("Insufficient {name}"),
        })
        .collect()
}

fn bind(store: &mut Store, pod: &Pod, node: &str) {
    let key = Key::of(pod);
    let uid = pod.metadata.uid.clone();
    let binding = Patch::Merge(json!({"metadata": {"uid": uid}, "spec": {"nodeName": node}}));
    store
        .patch(WHO, WatchedKind::Pod, &key, &binding, false)
        .unwrap_or_else(|no| panic!("{}", no.message));
    let gone = Value::Null;
    let condition = json!({"type": "PodScheduled", "status": "True", "reason": gone, "message": gone,
        "lastTransitionTime": api_time(store.clock.now())});
    show(store, &key, &condition);
}

fn refuse(store: &mut Store, pod: &Pod, message: &str) {
    let conditions = pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    let told = conditions
        .into_iter()
        .any(|c| c.type_ == "PodScheduled" && c.message.as_deref() == Some(message));
    if !told {
        let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
            "lastTransitionTime": api_time(store.clock.now())});
        show(store, &Key::of(pod), &condition);
    }
}

fn show(store: &mut Store, pod: &Key, condition: &Value) {
    let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
    store
        .patch(WHO, WatchedKind::Pod, pod, &patch, true)
        .unwrap_or_else(|no| panic!("{}", no.message));
}
