//! A cluster of three racks, 40 nodes and eight workloads in different states, as its API server
//! returns it.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use lockstep_api::names::{labels, pod_group_name};
use lockstep_cli::dashboard::view::{ClusterView, Leader, PageReads, Read, ReaderFacts};
use lockstep_cli::record::record;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::{GPU, RACK, ago, now};

/// Lists by path.
pub type Lists = BTreeMap<String, Vec<Value>>;

pub const NODES: &str = "/api/v1/nodes";
pub const PODS: &str = "/api/v1/pods";
pub const WORKLOADS: &str = "/apis/training.lockstep.dev/v1alpha1/trainingworkloads";
pub const AGENTS: &str = "/apis/training.lockstep.dev/v1alpha1/nodeagents";
pub const GROUPS: &str = "/apis/scheduling.lockstep.dev/v1alpha1/podgroups";
pub const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";
pub const NAMESPACES: &str = "/api/v1/namespaces";
pub const BUDGETS: &str = "/apis/policy/v1/poddisruptionbudgets";

/// One workload with a gang of members of eight accelerators.
pub struct Job {
    pub name: &'static str,
    pub namespace: &'static str,
    pub members: usize,
    pub priority: i32,
    /// Number of the first node; `None`: not placed.
    pub first: Option<usize>,
    pub status: Value,
    /// Of the pod group.
    pub more: Value,
}

fn incident(attempt: i64, seconds: i64, cause: &Value) -> Value {
    let mut cause = cause.clone();
    cause["time"] = json!(ago(seconds));
    json!({"domain": "workload", "attempt": attempt, "cause": cause, "action": "RestartGang", "counted": true,
        "time": ago(seconds), "recoveredAt": ago(seconds - 2), "lostAcceleratorSeconds": 3240,
        "restartAcceleratorSeconds": 128,
        "phases": {"detectMs": 90, "decideMs": 35, "stopMs": 165, "barrierMs": 28, "startMs": 0}})
}

fn waiting(reason: &str, message: &str) -> Value {
    json!([{"type": "PodGroupInitiallyScheduled", "status": "False", "reason": reason, "message": message,
        "lastTransitionTime": ago(7200)}])
}

fn admitted(status: &str, reason: &str, message: &str, seconds: i64) -> Value {
    json!([{"type": "Admitted", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": ago(seconds)}])
}

fn running(attempt: i64, held: i64, history: &[Value]) -> Value {
    json!({"phase": "Running", "reason": "AllMembersReady", "message": "all members are ready or have succeeded",
        "ready": format!("{}/{}", held / 8, held / 8), "attempt": attempt, "history": history,
        "restarts": {"total": history.len(), "inPlace": history.len(), "recreated": 0, "counted": history.len(),
            "countedAt": history.iter().map(|h| h["time"].clone()).collect::<Vec<_>>()},
        "progress": {"step": 18_240, "stepTime": ago(4), "checkpointStep": 18_000, "checkpointTime": ago(1200),
            "stepsPerHour": 726, "summary": ""},
        "gangs": [{"key": "workload", "started": true}],
        "conditions": admitted("True", "Admitted", "", 7200),
        "accounting": {"accelerators": held, "heldAcceleratorSeconds": 900_000, "lostAcceleratorSeconds": 3240,
            "restartAcceleratorSeconds": 128, "waitedSeconds": 60, "goodput": "96.8%"}})
}

fn pending(reason: &str, message: &str) -> Value {
    json!({"phase": "Pending", "reason": reason, "message": message, "ready": "0/0", "attempt": 1,
        "gangs": [{"key": "workload", "started": true}],
        "conditions": admitted("False", reason, message, 7200)})
}

/// The workloads.
pub fn jobs() -> Vec<Job> {
    let exit = json!({"kind": "ContainerExit", "exitCode": 137, "reason": "OOMKilled", "pod": "llama-workers-0-3",
        "node": "n04", "container": "t", "message": ""});
    let hang = json!({"kind": "Hang", "node": "n14", "pod": "probe-workers-0-1", "message": "no step for 300s"});
    let lost = json!({"kind": "NodeLost", "node": "n30", "pod": "vision-workers-0-1", "message": "node is lost"});
    let history = [incident(3, 1800, &exit), incident(2, 5400, &exit)];
    let mut restarting = running(2, 32, &[]);
    restarting["phase"] = json!("Restarting");
    restarting["reason"] = json!("RestartGang");
    restarting["message"] =
        json!("restarting all 4 pods in place (attempt 2, 1 of 10 restarts used)");
    restarting["domains"] = json!([{"key": "workload", "attempt": 1, "incident": {"attempt": 2, "cause":
        {"kind": "ContainerExit", "exitCode": 1, "reason": "Error", "node": "n14", "container": "t",
            "pod": "probe-workers-0-1", "message": "", "time": ago(3)},
        "action": "RestartGang", "counted": true, "stage": "Ordered", "detectedAt": ago(3), "decidedAt": ago(3),
        "orderedAt": ago(2)}}]);
    let mut preempted = running(1, 32, &[]);
    preempted["phase"] = json!("Preempting");
    preempted["reason"] = json!("Preempted");
    let mut stalled = pending("InvalidPriorityClass", "no priority class named \"hihg\"");
    stalled["phase"] = json!("Stalled");
    let reserved: Vec<Value> = (25..33)
        .map(|n| json!({"node": format!("n{n:02}"), "members": {"workers": 1}}))
        .collect();
    let large = json!({"conditions": waiting("Unschedulable", "insufficient nvidia.com/gpu on 8 nodes"),
        "reservation": {"since": ago(3000), "startsAt": ago(-7200), "nodes": reserved}});
    let victim = json!({"kind": "PodGroup", "namespace": "research", "name": pod_group_name("young", "uid-young", "workload"),
        "uid": "uid-group-young", "priority": 10, "pods": 4, "cost": 4800, "lostWork": 3900});
    let urgent = json!({"preemption": {"id": "p1", "preemptorUID": "uid-group-urgent", "decidedAt": ago(5),
        "placement": "p", "victims": [victim], "explanation": "frees 4 nodes", "cost": 4800, "lostWork": 3900,
        "atLeast": 4800, "proven": true}});
    let job = |name, namespace, members, priority, first, status| Job {
        name,
        namespace,
        members,
        priority,
        first,
        status,
        more: json!({}),
    };
    vec![
        job("llama", "ml", 8, 10, Some(1), running(4, 64, &history)),
        job("probe", "research", 4, 10, Some(13), {
            restarting["history"] = json!([incident(1, 9000, &hang)]);
            restarting
        }),
        job("young", "research", 4, 10, Some(17), preempted),
        Job {
            more: urgent,
            ..job(
                "urgent",
                "ml",
                4,
                1000,
                Some(17),
                pending("Preempting", "waits for 4 victims"),
            )
        },
        job(
            "vision",
            "vision",
            8,
            5,
            Some(21),
            running(2, 64, &[incident(1, 40_000, &lost)]),
        ),
        Job {
            more: large,
            ..job(
                "large",
                "ml",
                16,
                10,
                None,
                pending("Unschedulable", "insufficient nvidia.com/gpu"),
            )
        },
        Job {
            more: json!({"conditions": waiting("VolumeMissing", "claim \"data\" not found")}),
            ..job(
                "tuning",
                "ml",
                4,
                10,
                None,
                pending("VolumeMissing", "claim \"data\" not found"),
            )
        },
        job("typo", "vision", 2, 0, None, stalled),
    ]
}

fn node(number: usize) -> Value {
    let name = format!("n{number:02}");
    let rack = format!("r{}", (number - 1) / 14 + 1);
    let amounts = json!({"cpu": "64", "memory": "512Gi", "pods": "110", GPU: "8"});
    let ready = if number == 36 { "Unknown" } else { "True" };
    json!({"metadata": {"name": name, "uid": format!("uid-{name}"), "labels": {RACK: rack,
            "topology.kubernetes.io/zone": "z1", "kubernetes.io/hostname": name}},
        "spec": {"unschedulable": (37..=38).contains(&number)},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": [
            {"type": "Ready", "status": ready, "lastTransitionTime": ago(600)}]}})
}

fn workload(job: &Job) -> Value {
    let Job {
        name,
        namespace,
        members,
        ..
    } = job;
    json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
        "metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{name}"), "generation": 1,
            "creationTimestamp": ago(14_400)},
        "spec": {"scheduling": {"topology": {"levels": [{"key": RACK, "mode": "Preferred"}]}}, "groups": [
            {"name": "workers", "size": members, "template": {"spec": {"containers": [
                {"name": "t", "image": "registry.example/trainer:1", "resources": {"limits": {GPU: 8}}}]}}}]},
        "status": job.status})
}

fn owner(job: &Job) -> Value {
    json!([{"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload", "name": job.name,
        "uid": format!("uid-{}", job.name), "controller": true}])
}

fn group_name(job: &Job) -> String {
    pod_group_name(job.name, &format!("uid-{}", job.name), "workload")
}

fn placed(job: &Job) -> impl Iterator<Item = (usize, String)> {
    let first = job.first.unwrap_or_default();
    let count = if job.first.is_some() { job.members } else { 0 };
    (0..count).map(move |index| (index, format!("n{:02}", first + index)))
}

fn group(job: &Job) -> Value {
    let mut status = json!({"queuedAt": ago(7200), "conditions": []});
    if job.first.is_some() {
        let nodes = placed(job)
            .map(|(index, node)| json!({"node": node, "members": [format!("workers/0/{index}")]}));
        status["placement"] = json!({"id": "p", "decidedAt": ago(7000), "members": job.members,
            "nodes": nodes.collect::<Vec<_>>()});
    }
    let more = job.more.as_object().unwrap().clone();
    status.as_object_mut().unwrap().extend(more);
    json!({"apiVersion": "scheduling.lockstep.dev/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": group_name(job), "namespace": job.namespace, "uid": format!("uid-group-{}", job.name),
            "ownerReferences": owner(job)},
        "spec": {"workloadRef": {"workloadName": job.name, "templateName": "workload"}, "gangKey": "workload",
            "schedulingPolicy": {"gang": {"minCount": job.members}}, "disruptionMode": {"all": {}},
            "priority": job.priority},
        "status": status})
}

fn pods(job: &Job) -> Vec<Value> {
    let made = placed(job).map(|(index, node)| {
        let name = format!("{}-workers-0-{index}", job.name);
        json!({"metadata": {"name": name, "namespace": job.namespace, "uid": format!("uid-{name}"),
                "ownerReferences": owner(job), "labels": {labels::WORKLOAD: job.name,
                    labels::WORKLOAD_UID: format!("uid-{}", job.name), labels::GROUP: "workers",
                    labels::REPLICA: "0", labels::INDEX: index.to_string(), labels::POD_GROUP: group_name(job)}},
            "spec": {"nodeName": node, "priority": job.priority, "containers": [
                {"name": "t", "resources": {"requests": {"cpu": "1", GPU: "8"}, "limits": {GPU: "8"}}}]},
            "status": {"phase": "Running", "startTime": ago(7000), "conditions": [
                {"type": "Ready", "status": "True"}]}})
    });
    // The preemptor's pods wait for the victims.
    made.filter(|_| job.name != "urgent").collect()
}

fn agent(number: usize) -> Value {
    let name = format!("n{number:02}");
    let steps = jobs().into_iter().flat_map(|job| {
        let members: Vec<(usize, String)> =
            placed(&job).filter(|(_, node)| *node == name).collect();
        members.into_iter().map(move |(index, _)| {
            json!({"podUID": format!("uid-{}-workers-0-{index}", job.name), "attempt": 1,
                "step": 18_240 - index, "stepTime": ago(4), "time": ago(4)})
        })
    });
    json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "NodeAgent", "metadata": {"name": name},
        "spec": {}, "status": {"agentVersion": "0.1.0", "runtime": "containerd 2.4.2",
            "capabilities": ["Stop", "Report", "Supervise"], "progress": steps.collect::<Vec<_>>()}})
}

/// Everything that the API server has.
pub fn lists() -> Lists {
    let jobs = jobs();
    let class = |name: &str, value: i32| json!({"metadata": {"name": name}, "value": value});
    let namespaces = ["ml", "research", "vision"];
    let web = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "uid-web"},
        "spec": {"nodeName": "n30", "containers": [{"name": "c", "resources": {"requests": {GPU: "2"}}}]},
        "status": {"phase": "Running", "startTime": ago(7000)}});
    let mut all_pods: Vec<Value> = jobs.iter().flat_map(pods).collect();
    all_pods.push(web);
    [
        (NODES, (1..=40).map(node).collect()),
        (WORKLOADS, jobs.iter().map(workload).collect()),
        (GROUPS, jobs.iter().map(group).collect()),
        (PODS, all_pods),
        // Two nodes with members have no agent.
        (
            AGENTS,
            (1..=38)
                .filter(|n| ![21, 22].contains(n))
                .map(agent)
                .collect(),
        ),
        (CLASSES, vec![class("high", 1000), class("normal", 10)]),
        (
            NAMESPACES,
            namespaces.map(|n| json!({"metadata": {"name": n}})).into(),
        ),
        (BUDGETS, Vec::new()),
        ("/api/v1/events", Vec::new()),
        ("/apis/apps/v1/deployments", Vec::new()),
        (
            "/apis/training.lockstep.dev/v1alpha1/restartorders",
            Vec::new(),
        ),
        (
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
            Vec::new(),
        ),
        (
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
            Vec::new(),
        ),
    ]
    .map(|(path, items)| (path.to_owned(), items))
    .into()
}

fn parsed<T: DeserializeOwned>(lists: &Lists, path: &str) -> Vec<T> {
    let items = lists[path].iter();
    let mut items: Vec<Value> = items.cloned().collect();
    items.sort_by_key(|o| {
        (
            o["metadata"]["namespace"].to_string(),
            o["metadata"]["name"].to_string(),
        )
    });
    items
        .into_iter()
        .map(|o| serde_json::from_value(o).unwrap())
        .collect()
}

/// What an administrator reads.
pub fn view() -> ClusterView {
    let lists = lists();
    let mut view = ClusterView {
        reader: ReaderFacts {
            context: "prod".to_owned(),
            user: Some("ana".to_owned()),
            server: "https://prod.example:6443".to_owned(),
        },
        groups: Some(parsed(&lists, GROUPS)),
        nodes: Some(parsed(&lists, NODES)),
        agents: Some(parsed(&lists, AGENTS)),
        classes: Some(parsed(&lists, CLASSES)),
        namespaces: Some(parsed(&lists, NAMESPACES)),
        budgets: Some(Vec::new()),
        last_read: now(),
        leader: Some(Leader {
            holder: "lockstep-manager-a".to_owned(),
            renewed_at: Some(now() - chrono::TimeDelta::seconds(2)),
            duration_seconds: 15,
        }),
        ..ClusterView::default()
    };
    let workloads = parsed(&lists, WORKLOADS);
    for workload in &workloads {
        view.note_workload(workload);
    }
    view.workloads = Some(workloads);
    for kind in ["trainingworkloads", "podgroups", "nodes", "nodeagents"] {
        view.reads.insert(kind.to_owned(), Read::Watched);
    }
    view
}

/// What is read for the page of `ml/llama`, and the queue.
pub fn reads(view: &ClusterView) -> PageReads {
    reads_of(view, "llama")
}

/// What is read for the page of a workload with this name, and the queue.
pub fn reads_of(view: &ClusterView, name: &str) -> PageReads {
    let mut pods = lists().remove(PODS).unwrap();
    pods.retain(|pod| pod["metadata"]["labels"][labels::WORKLOAD] == name);
    let (file, unread) = record(
        view.objects(None),
        &std::collections::BTreeSet::new(),
        None,
        now(),
    );
    assert!(unread.is_empty(), "{unread:?}");
    PageReads {
        queue: Some(lockstep_cli::queue::queue(&file, view.groups())),
        pods: Some(
            pods.into_iter()
                .map(|p| serde_json::from_value(p).unwrap())
                .collect(),
        ),
        ..PageReads::default()
    }
}

/// Time of the fixture.
pub fn time() -> DateTime<Utc> {
    now()
}
