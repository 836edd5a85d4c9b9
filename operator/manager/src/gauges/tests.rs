//! Series that a leader exports for indexed objects.

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

/// An index and its feeds.
pub(crate) struct World {
    pub index: Arc<Index>,
    pub queue: Queue<Key>,
    feeds: Feeds,
}

/// Exports an index as a leader at a fixed time.
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

/// Exports at most this many single workloads as a leader.
struct Singles(Arc<Index>, usize);

impl std::fmt::Debug for Singles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Singles")
    }
}

impl Collector for Singles {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let all = self.0.read().workloads.clone();
        workloads::Shown::of(all, self.1).encode(&mut encoder)
    }
}

/// Series, one per line.
fn series_of(collector: impl Collector) -> Vec<String> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(collector));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let series = text.lines().filter(|l| !l.starts_with('#'));
    series.map(str::to_owned).collect()
}

impl World {
    pub fn new() -> Self {
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
            index: Index::new(agents, queue.clone(), clock),
            queue,
            feeds: Feeds::default(),
        }
    }

    pub fn see(&mut self, kind: WatchedKind, object: Value) {
        let told = self.feeds.handle(&self.index, kind, Event::Apply(object));
        told.unwrap();
    }

    pub fn forget(&mut self, kind: WatchedKind, object: Value) {
        let told = self.feeds.handle(&self.index, kind, Event::Delete(object));
        told.unwrap();
    }

    fn shows(&self) -> Vec<String> {
        series_of(Shown(self.index.clone()))
    }

    fn shows_single(&self, max: usize) -> Vec<String> {
        series_of(Singles(self.index.clone(), max))
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

pub(crate) fn workload(namespace: &str, name: &str, class: &str) -> Value {
    json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
        "metadata": {"name": name, "namespace": namespace, "uid": format!("w-{name}"), "resourceVersion": "1", "generation": 1},
        "spec": {"priorityClassName": class, "groups": [{"name": "workers", "template": {"spec": {"containers": [
            {"name": "t", "image": "i", "resources": {"limits": {GPU: "8"}}}]}}}]}})
}

#[test]
fn accelerators_are_counted_by_state_and_waiting_gangs_separately() {
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
fn a_gang_that_has_finished_is_in_no_state() {
    let mut world = World::new();
    let placed = json!({"placement": {"id": "p", "members": 1, "nodes": [{"node": "n1", "members": ["workers/0/0"]}]}});
    world.gang("placed", "low", 10, &placed);
    let waits = json!({"conditions": [{"type": "PodGroupInitiallyScheduled", "status": "False", "reason": "Unschedulable",
        "message": "", "lastTransitionTime": "2026-11-18T11:05:20Z"}]});
    world.gang("done", "low", 10, &placed);
    world.gang("given-up", "low", 10, &waits);
    for (name, type_) in [("done", "Complete"), ("given-up", "Failed")] {
        let mut object = workload("ml", name, "low");
        object["metadata"]["resourceVersion"] = json!("2");
        object["status"] = json!({"conditions": [{"type": type_, "status": "True", "reason": "R", "message": "",
            "lastTransitionTime": "2026-11-18T11:06:00Z"}], "gangs": [{"key": WHOLE, "started": true}]});
        world.see(WatchedKind::TrainingWorkload, object);
    }
    let shown = world.shows();
    for (state, n) in [
        ("placed", 1),
        ("waiting", 0),
        ("held", 0),
        ("preempting", 0),
    ] {
        let line = format!("lockstep_gangs{{state=\"{state}\"}} {n}");
        assert!(shown.contains(&line), "{line}\n{shown:#?}");
    }
    let reason = "lockstep_waiting_gangs{";
    assert!(!shown.iter().any(|l| l.starts_with(reason)), "{shown:#?}");
}

#[test]
fn what_victims_still_hold_is_not_held_by_their_preemptor_as_well() {
    let mut world = World::new();
    world.node("n1", false);
    world.pod("victim", "n1", 6, true);
    let preemptor = json!({"metadata": {"name": "preemptor", "namespace": "ml", "uid": "preemptor", "resourceVersion": "1"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {GPU: "8"}}}]},
        "status": {"phase": "Pending", "nominatedNodeName": "n1"}});
    world.see(WatchedKind::Pod, preemptor);
    let shown = world.shows();
    for (state, n) in [("held", 0), ("leaving", 6), ("reserved", 2), ("free", 0)] {
        let line = format!("lockstep_accelerators{{resource=\"{GPU}\",state=\"{state}\"}} {n}");
        assert!(shown.contains(&line), "{line}\n{shown:#?}");
    }
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
    // Six series count nodes with signals.
    assert!((500..=4010).contains(&shown), "{shown} series");
    for n in 0..1000 {
        world.forget(WatchedKind::TrainingWorkload, object(n));
    }
    assert_eq!(world.shows(), empty);
}

/// A workload with a status, created `minute` minutes after 11:00.
fn standing(name: &str, phase: &str, minute: usize) -> Value {
    let mut object = workload("ml", name, "batch");
    object["metadata"]["creationTimestamp"] = json!(format!("2026-11-18T11:{minute:02}:00Z"));
    object["status"] = json!({"phase": phase, "reason": "Because", "attempt": 3,
        "conditions": [{"type": "Ready", "status": "False", "reason": "R", "message": "",
            "lastTransitionTime": "2026-11-18T11:00:00Z"}],
        "groups": [{"name": "a", "desired": 4, "ready": 2, "succeeded": 1}, {"name": "b", "desired": 1, "ready": 1}],
        "restarts": {"total": 5}, "accounting": {"accelerators": 32, "lostAcceleratorSeconds": 640, "restartAcceleratorSeconds": 80}});
    object
}

#[test]
fn the_series_of_a_workload_show_its_status() {
    let mut world = World::new();
    world.see(
        WatchedKind::TrainingWorkload,
        standing("llama", "Running", 0),
    );
    world.see(
        WatchedKind::TrainingWorkload,
        workload("ml", "fresh", "batch"),
    );
    let shown = world.shows_single(10);
    let llama = r#"{namespace="ml",name="llama""#;
    for line in [
        format!(
            r#"lockstep_workload_info{llama},phase="Running",reason="Because",priority_class="batch"}} 1"#
        ),
        format!(r#"lockstep_workload_status_condition{llama},condition="Ready",status="True"}} 0"#),
        format!(
            r#"lockstep_workload_status_condition{llama},condition="Ready",status="False"}} 1"#
        ),
        format!("lockstep_workload_ready{llama}}} 3"),
        format!("lockstep_workload_succeeded{llama}}} 1"),
        format!("lockstep_workload_members{llama}}} 5"),
        format!("lockstep_workload_restarts{llama}}} 5"),
        format!("lockstep_workload_attempt{llama}}} 3"),
        format!("lockstep_workload_accelerators{llama}}} 32"),
        format!("lockstep_workload_lost_accelerator_seconds{llama}}} 640"),
        format!("lockstep_workload_restart_accelerator_seconds{llama}}} 80"),
        r#"lockstep_workload_info{namespace="ml",name="fresh",phase="New",reason="",priority_class="batch"} 1"#.to_owned(),
        r#"lockstep_workload_ready{namespace="ml",name="fresh"} 0"#.to_owned(),
        "lockstep_workloads_not_shown 0".to_owned(),
    ] {
        assert!(shown.contains(&line), "{line}\n{shown:#?}");
    }
}

#[test]
fn beyond_the_series_limit_the_oldest_running_workloads_are_shown() {
    let mut world = World::new();
    for (name, phase, minute) in [
        ("ended", "Succeeded", 1),
        ("waits", "Pending", 2),
        ("younger", "Running", 9),
        ("older", "Restarting", 5),
        ("waits-too", "Suspended", 3),
    ] {
        world.see(WatchedKind::TrainingWorkload, standing(name, phase, minute));
    }
    let shown = |max: usize| {
        let lines = world.shows_single(max);
        let names = lines
            .iter()
            .filter_map(|l| {
                l.strip_prefix(r#"lockstep_workload_attempt{namespace="ml",name=""#)?
                    .split('"')
                    .next()
            })
            .map(str::to_owned)
            .collect::<Vec<_>>();
        let left_out = lines
            .iter()
            .find_map(|l| l.strip_prefix("lockstep_workloads_not_shown "));
        (names, left_out.unwrap().to_owned())
    };
    let all = ["older", "younger", "waits", "waits-too", "ended"].map(str::to_owned);
    for max in 0..=5 {
        assert_eq!(shown(max), (all[..max].to_vec(), (5 - max).to_string()));
    }
}

#[test]
fn ten_thousand_short_lived_workloads_stay_within_the_series_limit_and_leave_none() {
    let mut world = World::new();
    let empty = world.shows_single(100);
    for round in 0..10 {
        let object = |n: usize| standing(&format!("job-{round}-{n}"), "Running", n % 60);
        for n in 0..1000 {
            world.see(WatchedKind::TrainingWorkload, object(n));
        }
        let shown = world.shows_single(100);
        // Eleven series each, and the count of workloads without series.
        assert_eq!(shown.len(), 100 * 11 + 1);
        assert!(shown.contains(&"lockstep_workloads_not_shown 900".to_owned()));
        for n in 0..1000 {
            world.forget(WatchedKind::TrainingWorkload, object(n));
        }
    }
    assert_eq!(world.shows_single(100), empty);
}
