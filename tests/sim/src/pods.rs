//! Pods in scenarios, and events of their containers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use lockstep_api::member::Member;
use lockstep_api::member_pod::Identity;
use lockstep_api::names::labels;
use lockstep_kubelet::runtime::{Ended, Fault, ReportedProgress};
use serde_json::{Value, json};

use crate::api::{DeleteOptions, Object, Refused};
use crate::{Key, SimCluster, WatchedKind};

/// The member of a pod. `None` for foreign pods.
pub fn member_of(pod: &Pod) -> Option<Member> {
    let none = BTreeMap::new();
    let labels = pod.metadata.labels.as_ref().unwrap_or(&none);
    Identity::read(labels, &none).member
}

pub fn leaving(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

pub fn over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

pub fn gated(pod: &Pod) -> bool {
    let gates = pod.spec.as_ref().and_then(|s| s.scheduling_gates.as_ref());
    gates.is_some_and(|gates| !gates.is_empty())
}

/// Scheduling gate of another controller.
pub const FOREIGN_GATE: &str = "example.com/quota";

/// The webhook of that controller adds its gate to a new pod.
pub fn add_foreign_gate(pod: &mut Value) {
    if !pod["spec"]["nodeName"].is_null() {
        return;
    }
    let gates = &mut pod["spec"]["schedulingGates"];
    if gates.is_null() {
        *gates = json!([]);
    }
    if let Some(gates) = gates.as_array_mut() {
        gates.push(json!({"name": FOREIGN_GATE}));
    }
}

pub fn has_foreign_gate(pod: &Value) -> bool {
    let gates = pod["spec"]["schedulingGates"].as_array();
    gates.is_some_and(|gates| gates.iter().any(|gate| gate["name"] == FOREIGN_GATE))
}

pub fn published(pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key(labels::PUBLISHED))
}

/// Status and reason of a condition.
pub fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<(&'a str, &'a str)> {
    let mut all = pod.status.as_ref()?.conditions.iter().flatten();
    let found = all.find(|c| c.type_ == type_)?;
    Some((&found.status, found.reason.as_deref().unwrap_or_default()))
}

/// A variable of a pod's first container.
pub fn env(pod: &Pod, name: &str) -> Option<String> {
    let container = pod.spec.as_ref()?.containers.first()?;
    let mut all = container.env.iter().flatten();
    all.find(|e| e.name == name)?.value.clone()
}

impl SimCluster {
    /// The other controller removes its gates. False if no pod has one.
    pub fn open_foreign_gates(&mut self) -> bool {
        let of_pod = |(key, pod): (&Key, &Object)| has_foreign_gate(pod).then(|| key.clone());
        let held: Vec<Key> = {
            let store = self.store();
            store.all(WatchedKind::Pod).filter_map(of_pod).collect()
        };
        for key in &held {
            self.edit::<Pod>(key, |pod| {
                let spec = pod.spec.get_or_insert_default();
                let gates = spec.scheduling_gates.get_or_insert_default();
                gates.retain(|gate| gate.name != FOREIGN_GATE);
            });
        }
        !held.is_empty()
    }

    /// A user evicts a pod.
    ///
    /// # Errors
    ///
    /// A budget or a rule refuses.
    pub fn evict(&mut self, pod: &Pod) -> Result<(), Refused> {
        let key = Key::of(pod);
        let evicted = self
            .store()
            .evict("user", &key, &DeleteOptions::default(), false);
        evicted.map(drop)
    }

    /// The first running container of a pod exits. False without one.
    pub fn exit_pod(&mut self, pod: &Pod, code: i32) -> bool {
        self.end(pod, None, code)
    }

    /// A container of a pod exits. False if it does not run.
    pub fn exit_container(&mut self, pod: &Pod, name: &str, code: i32) -> bool {
        self.end(pod, Some(name), code)
    }

    /// Kills the first process of a pod's first running container: the supervisor, if it has one.
    /// False without a running container.
    pub fn kill_container(&mut self, pod: &Pod) -> bool {
        let (Some(node), Some(uid)) = (node_of(pod), &pod.metadata.uid) else {
            return false;
        };
        let node = self.node(node);
        node.catch_up();
        let view = node.runtime.table().view(uid);
        let Some(container) = view.containers.iter().find(|c| c.alive()) else {
            return false;
        };
        let effect = node.runtime.kill(&container.id);
        node.follow([effect]);
        true
    }

    /// The training process of a supervised pod reports its progress.
    pub fn progress(&mut self, pod: &Pod, step: u64, checkpoint: Option<u64>) {
        self.progress_with(pod, ReportedProgress::of(step, checkpoint));
    }

    /// The same, with further words.
    pub fn progress_with(&mut self, pod: &Pod, report: ReportedProgress<'_>) {
        let (Some(node), Some(uid)) = (node_of(pod), &pod.metadata.uid) else {
            return;
        };
        let node = self.node(node);
        node.catch_up();
        let effects = (node.runtime).progress(uid, report, node.wall());
        node.follow(effects);
    }

    fn end(&mut self, pod: &Pod, name: Option<&str>, code: i32) -> bool {
        let (Some(node), Some(uid)) = (node_of(pod), &pod.metadata.uid) else {
            return false;
        };
        let node = self.node(node);
        node.catch_up();
        let running = node.runtime.table().view(uid);
        let mut alive = running.containers.iter().filter(|c| c.alive());
        let Some(container) = alive.find(|c| name.is_none_or(|name| c.name == name)) else {
            return false;
        };
        let fault = Fault::End {
            id: container.id.clone(),
            ended: Ended::with_code(code),
        };
        let effects = node.runtime.inject(&fault, node.wall());
        node.follow(effects);
        true
    }
}
