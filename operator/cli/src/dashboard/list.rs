//! Which workloads are there?

use lockstep_api::workload::TrainingWorkloadStatus;
use serde_json::{Map, Value, json};

use super::incidents::priority;
use super::needs::since;
use super::view::{ClusterView, path_of};

/// The workloads of a namespace, or of all, from which the reader chooses.
pub fn list(view: &ClusterView, namespace: Option<&str>) -> Value {
    let none = TrainingWorkloadStatus::default();
    let rows = view.workloads_in(namespace).map(|workload| {
        let status = workload.status.as_ref().unwrap_or(&none);
        let row = json!({
            "phase": status.phase,
            "reason": status.reason,
            "message": status.message,
            "ready": status.ready,
            "attempt": status.attempt,
            "accelerators": status.accounting.accelerators,
            "priority": priority(view.groups(), workload),
            "since": since(workload, status),
        });
        (path_of(workload), row)
    });
    json!({ "list": rows.collect::<Map<String, Value>>() })
}
