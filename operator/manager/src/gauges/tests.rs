//! What the process that leads shows of the objects that it holds.

use std::time::Duration;

use kube::runtime::watcher::Event;
use lockstep_api::names::{ACCELERATORS, WHOLE, labels, pod_group_name};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use super::*;
use crate::clock::{Random, SystemClock};
use crate::index::{AgentSelector, Feeds, Key};
use crate::queue::{Queue, QueueMetrics, RetryBackoff};

const GPU: &str = ACCELERATORS[0];

/// An index, and who tells it news.
struct World {
    index: Arc<Index>,
    feeds: Feeds,
}

/// Shows an index as a leader does, at a fixed time.
struct Shown(Arc<Index>);

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shown")
    }
}

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let now = DateTime::from_timestamp(1_795_000_000, 0).unwrap();
        OfLeader::of(&self.0.read(), &[GPU.to_owned()], now).encode(&mut encoder)
    }
}

impl World {
    fn new() -> Self {
        let second = Duration::from_secs(1);
        let backoff = RetryBackoff {
            first: second,
            max: second,
        };
        let clock = Arc::new(SystemClock);
        let random = Random::seeded(1);
        let queue: Queue<Key> = Queue::new(backoff, random, clock.clone(), QueueMetrics::default());
        let agents = AgentSelector {
            namespace: "agents".into(),
            label: ("app".into(), "agent".into()),
        };
        Self {
            index: Index::new(agents, queue, clock),
            feeds: Feeds::default(),
        }
    }

    fn see(&mut self, kind: WatchedKind, object: Value) {
        let told = self.feeds.handle(&self.index, kind, Event::Apply(object));
        told.unwrap();
    }

    fn forget(&mut self, kind: WatchedKind, object: Value) {
        let told = self.feeds.handle(&self.index, kind, Event::Delete(object));
        told.unwrap();
    }

    /// Series, one a line.
    fn shows(&self) -> Vec<String> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Shown(self.index.clone())));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let series = text.lines().filter(|l| !l.starts_with('#'));
        series.map(str::to_owned).collect()
    }

    fn node(&mut self, name: &str, cordoned: bool) {
        let node = json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"},
            "spec": {"unschedulable": cordoned},
            "status": {"allocatable": {GPU: "8", "cpu": "64", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}]}});
        self.see(WatchedKind::Node, node);
    }

    fn pod(&mut self, name: &str, node: &str, gpus: i64, leaving: bool) {
        let mut pod = json!({"metadata": {"name": name, "namespace": "ml", "uid": name, "resourceVersion": "1"},
            "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": {GPU: gpus.to_string()}}}]},
            "status": {"phase": "Running"}});
        if leaving {
            pod["metadata"]["deletionTimestamp"] = json!("2026-11-18T12:00:00Z");
        }
        self.see(WatchedKind::Pod, pod);
    }

    /// A gang of one member with eight accelerators.
    fn gang(&mut self, name: &str, class: &str, priority: i32, status: &Value) {
        let uid = format!("w-{name}");
        let mut object = workload("ml", name, class);
        object["status"] = json!({"gangs": [{"key": WHOLE, "started": true}]});
        self.see(WatchedKind::TrainingWorkload, object);
        let owner = json!([{"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
            "name": name, "uid": uid, "controller": true}]);
        let group = json!({"metadata": {"name": pod_group_name(name, &uid, WHOLE), "namespace": "ml", "uid": format!("g-{name}"),
                "resourceVersion": "1", "ownerReferences": owner, "labels": {labels::WORKLOAD: name}},
            "spec": {"workloadRef": {"workloadName": name, "templateName": "workload"}, "gangKey": "workload",
                "schedulingPolicy": {"gang": {"minCount": 1}}, "priority": priority, "priorityClassName": class},
            "status": status});
        self.see(WatchedKind::PodGroup, group);
    }
}

fn workload(namespace: &str, name: &str, class: &str) -> Value {
    json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
        "metadata": {"name": name, "namespace": namespace, "uid": format!("w-{name}"), "resourceVersion": "1", "generation": 1},
        "spec": {"priorityClassName": class, "groups": [{"name": "workers", "template": {"spec": {"containers": [
            {"name": "t", "image": "i", "resources": {"limits": {GPU: "8"}}}]}}}]}})
}

#[test]
fn accelerators_are_held_leaving_reserved_unusable_or_free_and_who_waits_is_told_apart() {
    let mut world = World::new();
    for (name, cordoned) in [("n1", false), ("n2", false), ("n3", true)] {
        world.node(name, cordoned);
    }
    world.pod("runs", "n1", 4, false);
    world.pod("ends", "n1", 2, true);
    let placed = json!({"placement": {"id": "p", "members": 1, "nodes": [{"node": "n2", "members": ["workers/0/0"]}]}});
    world.gang("placed", "low", 10, &placed);
    let waits = json!({"queuedAt": "2026-11-18T11:05:20Z", "conditions": [{"type": "PodGroupInitiallyScheduled",
        "status": "False", "reason": "Unschedulable", "message": "", "lastTransitionTime": "2026-11-18T11:05:20Z"}]});
    world.gang("waits", "high", 100, &waits);
    let shown = world.shows();
    for (state, n) in [
        ("held", 4),
        ("leaving", 2),
        ("reserved", 8),
        ("unusable", 8),
        ("free", 2),
    ] {
        let line = format!("lockstep_accelerators{{resource=\"{GPU}\",state=\"{state}\"}} {n}");
        assert!(shown.contains(&line), "{line}\n{shown:#?}");
    }
    for line in [
        "lockstep_accelerators_requested{namespace=\"ml\",priority_class=\"high\"} 8",
        "lockstep_accelerators_outranked 8",
        "lockstep_waiting_gangs{namespace=\"ml\",reason=\"Unschedulable\"} 1",
        "lockstep_gangs{state=\"placed\"} 1",
    ] {
        assert!(shown.iter().any(|l| l == line), "{line}\n{shown:#?}");
    }
    let oldest = "lockstep_oldest_wait_seconds{priority_class=\"high\"} ";
    assert!(shown.iter().any(|l| l.starts_with(oldest)), "{shown:#?}");
}

#[test]
fn a_thousand_workloads_in_fifty_namespaces_are_few_series_and_leave_none_behind() {
    let mut world = World::new();
    let empty = world.shows();
    let conditions = [
        "Admitted",
        "Ready",
        "Reconciling",
        "Stalled",
        "Restarting",
        "DisruptionTarget",
        "Suspended",
        "RestartsInPlace",
    ];
    let object = |n: usize| {
        let mut object = workload(&format!("team-{}", n % 50), &format!("job-{n}"), "batch");
        // Two reasons for each status of each condition, in every namespace.
        let says = conditions.map(|type_| {
            json!({"type": type_, "status": if n.is_multiple_of(3) { "True" } else { "False" },
                "reason": format!("Reason{}", n % 2), "message": "", "lastTransitionTime": "2026-11-18T11:00:00Z"})
        });
        object["status"] =
            json!({"phase": "Running", "conditions": says, "accounting": {"accelerators": 8}});
        object
    };
    for n in 0..1000 {
        world.see(WatchedKind::TrainingWorkload, object(n));
    }
    let shown = world.shows().len();
    assert!((500..=4000).contains(&shown), "{shown} series");
    for n in 0..1000 {
        world.forget(WatchedKind::TrainingWorkload, object(n));
    }
    assert_eq!(world.shows(), empty);
}
