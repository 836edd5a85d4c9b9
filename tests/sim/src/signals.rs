//! Signals of nodes, as clouds, autoscalers and health agents write them onto the Node.

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::{Node, Taint};
use serde_json::{Value, json};

use crate::api::Patch;
use crate::clock::api_time;
use crate::{Key, SimCluster, WatchedKind};

/// Taint of Karpenter on a node that it is about to remove.
pub const KARPENTER: &str = "karpenter.sh/disrupted";
/// Label of GKE with the start of a maintenance.
pub const MAINTENANCE: &str = "cloud.google.com/scheduled-maintenance-time";
/// Label of GKE while a maintenance is under way, with value `ONGOING`.
pub const ACTIVE_MAINTENANCE: &str = "cloud.google.com/active-node-maintenance";

impl SimCluster {
    /// Sets a label of a node, or removes it.
    pub fn label_node(&mut self, node: &str, key: &str, value: Option<&str>) {
        self.edit::<Node>(&Key::new("", node), |node| {
            let labels = node.metadata.labels.get_or_insert_default();
            match value {
                Some(value) => drop(labels.insert(key.to_owned(), value.to_owned())),
                None => drop(labels.remove(key)),
            }
        });
    }

    /// GKE announces a maintenance of a node.
    pub fn announce_maintenance(&mut self, node: &str, after: TimeDelta) {
        let at = (self.now() + after).timestamp().to_string();
        self.label_node(node, MAINTENANCE, Some(&at));
    }

    /// Sets a taint of a node, or removes it.
    pub fn taint_node(&mut self, node: &str, key: &str, is_set: bool) {
        self.edit::<Node>(&Key::new("", node), |node| {
            let taints = &mut node.spec.get_or_insert_default().taints;
            let taints = taints.get_or_insert_default();
            taints.retain(|taint| taint.key != key);
            if is_set {
                taints.push(Taint {
                    key: key.to_owned(),
                    effect: "NoSchedule".into(),
                    ..Taint::default()
                });
            }
        });
    }

    /// Reports a condition of a node, with a new heartbeat.
    pub fn report_node_condition(&mut self, node: &str, type_: &str, status: &str, reason: &str) {
        let (now, key) = (api_time(self.now()), Key::new("", node));
        let mut condition = json!({"type": type_, "status": status, "reason": reason,
            "lastHeartbeatTime": now});
        let mut store = self.store();
        let before = store.raw(WatchedKind::Node, &key);
        if !before.is_some_and(|node| has_condition(node, type_, status)) {
            condition["lastTransitionTime"] = json!(now);
        }
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        let written = store.patch("health-agent", WatchedKind::Node, &key, &patch, true);
        written.unwrap_or_else(|no| panic!("{}", no.message));
    }
}

/// Finds a signal in a stored node.
type Stands = fn(&Value) -> bool;

/// Signals that stories set, as an independent reader finds them in a stored node. A deadline in the
/// past does not end them here.
pub const STANDING: [(&str, Stands); 4] = [
    ("GKEScheduledMaintenance", |node| deadline(node).is_some()),
    ("KarpenterDisrupted", |node| {
        let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
        taints.any(|taint| taint["key"] == KARPENTER)
    }),
    ("GpuNvlinkWatch", |node| {
        has_condition(node, "GpuNvlinkWatch", "True")
    }),
    ("AcceleratedHardwareFault", |node| {
        has_condition(node, "AcceleratedHardwareReady", "False")
    }),
];

/// The announced start of a maintenance of a stored node.
pub fn deadline(node: &Value) -> Option<DateTime<Utc>> {
    let at = node["metadata"]["labels"][MAINTENANCE].as_str()?;
    DateTime::from_timestamp(at.parse().ok()?, 0)
}

fn has_condition(node: &Value, type_: &str, status: &str) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|c| c["type"] == type_ && c["status"] == status)
}
