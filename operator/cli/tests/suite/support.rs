//! Clusters in memory, from objects as an API server returns them.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use lockstep_api::Reach;
use lockstep_api::names::{labels, pod_group_name};
use lockstep_api::scheduling::PreemptionPolicy;
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_cli::args::Format;
use lockstep_cli::record::Objects;
use lockstep_cli::record::record;
use lockstep_cli::view::{RenderOptions, View, render};
use lockstep_model::nodes::node::{NodeSpecView, NodeStatusView};
use lockstep_model::{Budget, Node, Pod, PriorityClass, Rules, SnapshotFile};
use serde_json::{Value, json};

pub const RACK: &str = "topology.kubernetes.io/rack";
pub const GPU: &str = "nvidia.com/gpu";

/// Reference time of all tests.
pub fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_795_000_000, 0).unwrap()
}

pub fn ago(seconds: i64) -> String {
    (now() - chrono::TimeDelta::seconds(seconds)).to_rfc3339()
}

pub fn rules() -> Rules {
    Rules::default()
}

pub fn node(name: &str, rack: &str, gpus: i64) -> Node {
    let metadata = json!({"name": name, "labels": {RACK: rack, "kubernetes.io/hostname": name}});
    let allocatable = json!({"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: gpus.to_string()}});
    let status: NodeStatusView = serde_json::from_value(allocatable).unwrap();
    Node::new(
        &serde_json::from_value(metadata).unwrap(),
        &NodeSpecView::default(),
        &status,
        Reach::Responding,
    )
    .unwrap()
}

/// A pod bound to a node, from the parts of its object.
pub fn pod(name: &str, node: &str, gpus: i64, priority: i32, age: i64, metadata: &Value) -> Pod {
    let mut meta = json!({"name": name, "namespace": "ml", "uid": format!("uid-{name}")});
    meta.as_object_mut()
        .unwrap()
        .extend(metadata.as_object().unwrap().clone());
    let spec = json!({"nodeName": node, "priority": priority, "containers": [
        {"name": "c", "resources": {"requests": {"cpu": "1", GPU: gpus.to_string()}}}]});
    let status = json!({"phase": "Running", "startTime": ago(age)});
    Pod::new(
        &serde_json::from_value(meta).unwrap(),
        &serde_json::from_value(spec).unwrap(),
        &serde_json::from_value(status).unwrap(),
    )
    .unwrap()
}

pub fn class(name: &str, value: i32) -> PriorityClass {
    PriorityClass {
        name: name.into(),
        value,
        preemption: PreemptionPolicy::PreemptLowerPriority,
        preemption_priority: None,
        checkpoint_wait: None,
        default: false,
    }
}

pub fn budget(app: &str, allowed: i32) -> Budget {
    let selector = serde_json::from_value(json!({"matchLabels": {"app": app}})).unwrap();
    Budget {
        namespace: "ml".into(),
        name: app.into(),
        selector: Some(selector),
        allowed,
    }
}

/// Manifest of a workload of class `high` with one group, whose members request this many
/// accelerators each.
pub fn manifest(name: &str, members: i32, gpus: i64, scheduling: &Value) -> Value {
    json!({
        "apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"priorityClassName": "high", "scheduling": scheduling, "groups": [
            {"name": "workers", "size": members, "template": {"spec": {"containers": [
                {"name": "t", "image": "secret.example.com/image:1", "env": [{"name": "TOKEN", "value": "hunter2"}],
                 "args": ["--key=hunter2"], "resources": {"limits": {GPU: gpus}}}]}}}]},
    })
}

pub fn workload(manifest: Value) -> TrainingWorkload {
    serde_json::from_value(manifest).unwrap()
}

/// A gang with one member on each of these nodes; without nodes it waits.
pub fn gang(
    objects: &mut Objects,
    name: &str,
    members: i32,
    gpus: i64,
    priority: i32,
    nodes: &[&str],
    age: i64,
) {
    let uid = format!("uid-{name}");
    let mut value = manifest(name, members, gpus, &json!({}));
    value["metadata"]["uid"] = json!(uid);
    value["status"] = json!({"gangs": [{"key": "workload", "started": true}]});
    let group_name = pod_group_name(name, &uid, "workload");
    let placed: Vec<Value> = (0..)
        .zip(nodes)
        .map(|(i, n)| json!({"node": n, "members": [format!("workers/0/{i}")]}))
        .collect();
    let owner = json!([{"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload", "name": name,
        "uid": uid, "controller": true}]);
    let mut status = json!({"queuedAt": ago(age)});
    if !placed.is_empty() {
        status["placement"] =
            json!({"id": "p", "decidedAt": ago(age), "members": members, "nodes": placed});
    }
    let group: PodGroup = serde_json::from_value(json!({
        "apiVersion": "scheduling.lockstep.dev/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": group_name, "namespace": "ml", "uid": format!("uid-group-{name}"),
            "ownerReferences": owner},
        "spec": {"workloadRef": {"workloadName": name, "templateName": "workload"}, "gangKey": "workload",
            "schedulingPolicy": {"gang": {"minCount": members}}, "disruptionMode": {"all": {}},
            "priority": priority},
        "status": status,
    }))
    .unwrap();
    for (index, node) in nodes.iter().enumerate() {
        let metadata = json!({"ownerReferences": owner, "labels": {labels::GROUP: "workers", labels::REPLICA: "0",
            labels::INDEX: index.to_string(), labels::POD_GROUP: group_name}});
        objects.pods.push(pod(
            &format!("{name}-{index}"),
            node,
            gpus,
            priority,
            age,
            &metadata,
        ));
    }
    objects.groups.push(group);
    objects.workloads.push(workload(value));
}

pub fn snapshot(objects: Objects) -> SnapshotFile {
    let (file, unread) = record(objects, &BTreeSet::new(), None, now());
    assert!(unread.is_empty(), "{unread:?}");
    file
}

/// Two full racks of two nodes with eight accelerators each. Rack a has an old and a young gang;
/// rack b has a pod with a budget and a protected pod.
pub fn full_cluster() -> Objects {
    let mut objects = Objects {
        classes: vec![class("high", 100)],
        ..Objects::default()
    };
    objects.nodes = vec![
        node("n1", "a", 8),
        node("n2", "a", 8),
        node("n3", "b", 8),
        node("n4", "b", 8),
    ];
    gang(&mut objects, "old", 1, 8, 10, &["n1"], 7200);
    gang(&mut objects, "young", 1, 8, 10, &["n2"], 600);
    objects.pods.push(pod(
        "web",
        "n3",
        8,
        5,
        3600,
        &json!({"labels": {"app": "web", "team": "shop"}}),
    ));
    let daemon = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true}]);
    objects.pods.push(pod(
        "exporter",
        "n4",
        8,
        5,
        3600,
        &json!({"ownerReferences": daemon}),
    ));
    objects.budgets = vec![budget("web", 1)];
    objects
}

/// Text output of a view at [`now`].
pub fn screen(view: &impl View) -> String {
    view.screen(&RenderOptions::plain(now()))
}

/// Compares a view at 80 and 120 columns with its golden file. `UPDATE_GOLDEN=1` writes the file.
pub fn matches_golden(name: &str, views: &[&impl View]) {
    let mut text = String::new();
    for width in [80, 120] {
        let options = RenderOptions {
            width: Some(width),
            ..RenderOptions::plain(now())
        };
        for view in views {
            let shown = render(*view, Format::Table, &options).unwrap();
            text.extend(["=== ", &width.to_string(), " columns\n", &shown, "\n"]);
        }
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let path = format!("{folder}/{name}.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "{path} has another screen: UPDATE_GOLDEN=1\n{text}"
    );
}
