//! A manager with a fleet of workloads, their pod groups, pods and nodes, to measure scrapes.

use std::convert::Infallible;
use std::sync::Arc;

use anyhow::Result;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use kube::runtime::watcher::Event;
use lockstep_api::NodeHealthMode;
use lockstep_api::names::{WHOLE, labels, pod_group_name};
use lockstep_api::node_signal::BUILT_IN;
use lockstep_manager::clock::{Random, SystemClock};
use lockstep_manager::stepped::{
    AgentSelector, ProvisioningSettings, SteppedManager, SteppedParts, WatchedKind,
};
use serde_json::{Value, json};
use tower::service_fn;

/// Namespaces of a fleet.
const NAMESPACES: usize = 50;
/// One in this number of workloads waits.
const WAITING: usize = 5;
const GPU: &str = "nvidia.com/gpu";
const THEN: &str = "2026-11-18T11:00:00Z";

/// A manager of which only the metrics are read.
pub struct Fleet(SteppedManager);

impl Fleet {
    /// A manager with this number of workloads of two nodes each. Requires a runtime of tokio.
    ///
    /// # Errors
    /// An object that is not of its kind.
    pub fn new(workloads: usize) -> Result<Self> {
        let nobody = || {
            let never =
                |_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>();
            Client::new(service_fn(never), "default")
        };
        let mut manager = SteppedManager::new(SteppedParts {
            controller: nobody(),
            scheduler: nobody(),
            clock: Arc::new(SystemClock),
            random: Random::seeded(1),
            agents: AgentSelector::default(),
            settings: Arc::default(),
            scheduler_settings: lockstep_scheduler::SchedulerSettings::default(),
            node_health: NodeHealthMode::default(),
            signal_rules: BUILT_IN.to_vec(),
            provisioning: ProvisioningSettings::default(),
        });
        for kind in WatchedKind::ALL {
            manager.deliver(kind, Event::Init)?;
            manager.deliver(kind, Event::InitDone)?;
        }
        for number in 0..workloads {
            for (kind, object) in objects(number) {
                manager.deliver(kind, Event::Apply(object))?;
            }
        }
        Ok(Self(manager))
    }

    /// Its metrics, with at most this number of single workloads.
    pub fn scrape(&self, single_workloads: usize) -> String {
        self.0.scrape(single_workloads)
    }
}

/// A workload and its objects.
fn objects(number: usize) -> Vec<(WatchedKind, Value)> {
    let (namespace, name) = (
        format!("team-{}", number % NAMESPACES),
        format!("job-{number}"),
    );
    let nodes = [0, 1].map(|n| format!("node-{number}-{n}"));
    let runs = !number.is_multiple_of(WAITING);
    let mut out: Vec<_> = nodes
        .iter()
        .map(|node| (WatchedKind::Node, self::node(node)))
        .collect();
    let uid = format!("w-{name}");
    out.push((
        WatchedKind::TrainingWorkload,
        workload(&namespace, &name, runs),
    ));
    let group = pod_group(&namespace, &name, &uid, runs.then_some(&nodes));
    out.push((WatchedKind::PodGroup, group));
    for node in nodes.iter().filter(|_| runs) {
        out.push((WatchedKind::Pod, pod(&namespace, node)));
    }
    out
}

fn node(name: &str) -> Value {
    json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"},
        "status": {"allocatable": {GPU: "8", "cpu": "64", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}]}})
}

fn workload(namespace: &str, name: &str, runs: bool) -> Value {
    let conditions = [
        "Admitted",
        "Ready",
        "Reconciling",
        "Restarting",
        "RestartsInPlace",
    ];
    let conditions = conditions.map(|kind| {
        json!({"type": kind, "status": if runs { "True" } else { "False" }, "reason": "AllMembersReady",
            "message": "", "lastTransitionTime": THEN})
    });
    json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
        "metadata": {"name": name, "namespace": namespace, "uid": format!("w-{name}"), "resourceVersion": "1",
            "generation": 1, "creationTimestamp": THEN},
        "spec": {"priorityClassName": "batch", "groups": [{"name": "workers", "replicas": 2, "template": {"spec": {
            "containers": [{"name": "t", "image": "i", "resources": {"limits": {GPU: "8"}}}]}}}]},
        "status": {"phase": if runs { "Running" } else { "Pending" }, "reason": "AllMembersReady", "attempt": 3,
            "conditions": conditions, "gangs": [{"key": WHOLE, "started": true}],
            "groups": [{"name": "workers", "desired": 2, "ready": if runs { 2 } else { 0 }}],
            "restarts": {"total": 2}, "accounting": {"accelerators": if runs { 16 } else { 0 }}}})
}

fn pod_group(namespace: &str, name: &str, uid: &str, nodes: Option<&[String; 2]>) -> Value {
    let status = match nodes {
        Some(nodes) => {
            let member = |(n, node)| json!({"node": node, "members": [format!("workers/{n}/0")]});
            let nodes: Vec<Value> = nodes.iter().enumerate().map(member).collect();
            json!({"placement": {"id": "p", "members": 2, "nodes": nodes}})
        }
        None => json!({"queuedAt": THEN, "conditions": [{"type": "PodGroupInitiallyScheduled",
            "status": "False", "reason": "Unschedulable", "message": "", "lastTransitionTime": THEN}]}),
    };
    json!({"metadata": {"name": pod_group_name(name, uid, WHOLE), "namespace": namespace, "uid": format!("g-{name}"),
            "resourceVersion": "1", "labels": {labels::WORKLOAD: name},
            "ownerReferences": [{"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
                "name": name, "uid": uid, "controller": true}]},
        "spec": {"workloadRef": {"workloadName": name, "templateName": "workload"}, "gangKey": WHOLE,
            "schedulingPolicy": {"gang": {"minCount": 2}}, "priority": 10, "priorityClassName": "batch"},
        "status": status})
}

fn pod(namespace: &str, node: &str) -> Value {
    let name = format!("pod-{node}");
    json!({"metadata": {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": {GPU: "8"}}}]},
        "status": {"phase": "Running"}})
}
